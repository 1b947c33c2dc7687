//! Routes with all their attributes (`struct rtmsg` and `RTA_*`).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::IfIndex;
use crate::model::nic::NicAddress;
use crate::model::nic::message::{Attribute, Message, ip, number_at};

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
const RTA_EXPIRES: u16 = 23;
const RTA_NH_ID: u16 = 30;

/// Places in `struct rtmsg`.
const DST_LENGTH: usize = 1;
const TOS: usize = 3;
const TABLE: usize = 4;
const PROTOCOL: usize = 5;
const KIND: usize = 7;
const FLAGS: usize = 8;
const HEADER: usize = 12;

const AF_INET6: u8 = 10;
const RTPROT_KERNEL: u8 = 2;
const RTPROT_BOOT: u8 = 3;
const RTPROT_STATIC: u8 = 4;
const RTPROT_RA: u8 = 9;
const RTPROT_DHCP: u8 = 16;
const RTN_UNICAST: u8 = 1;
const RTM_F_CLONED: u32 = 0x200;
/// The only flag of a nexthop that people give.
pub(super) const ONLINK: u32 = 4;
/// Ticks of `rta_cacheinfo.rta_expires` in a second (`USER_HZ`).
const TICKS: u32 = 100;
/// `struct rtnexthop`: length, flags, hops, index.
const HOP_HEADER: usize = 8;

/// One route as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicRoute(Message);

/// A route without what changes by itself and without the NIC's index.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey(Vec<u8>, Vec<(u16, Vec<u8>)>);

/// The place of a route among all of its host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteSlot {
    header: [u8; 3],
    table: u32,
    metric: Option<u32>,
    destination: Vec<u8>,
}

/// One hop of a route with several.
struct Hop {
    flags: u8,
    weight: u8,
    ifindex: u32,
    attributes: Vec<u8>,
}

impl NicRoute {
    /// Wraps an `RTM_NEWROUTE`; `None` for what is no route of an IP family.
    #[must_use]
    pub fn new(message: Message) -> Option<Self> {
        (message.header.len() == HEADER && [2, AF_INET6].contains(&message.header[0])).then_some(Self(message))
    }

    /// Whether it is an IPv6 one.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.0.byte(0) == AF_INET6
    }

    /// Whether it, or one of its hops, leads through this link.
    #[must_use]
    pub fn leads_through(&self, link: u32) -> bool {
        self.0.number(RTA_OIF) == Some(link) || self.hops().iter().any(|hop| hop.ifindex == link)
    }

    /// The nexthop object that it uses.
    #[must_use]
    pub fn nexthop(&self) -> Option<u32> {
        self.0.number(RTA_NH_ID)
    }

    /// The hops of an IPv6 route that lead through this link, each as a route of its own: so the kernel has them, and so they are added and removed. Any
    /// other route as it is.
    #[must_use]
    pub fn apart(self, link: u32) -> Vec<Self> {
        if !self.is_ipv6() || self.nexthop().is_some() || self.0.attribute(RTA_MULTIPATH).is_none() {
            return vec![self];
        }
        let own = self.hops().into_iter().filter(|hop| hop.ifindex == link);
        let route = |hop: Hop| {
            let (plain, mut message) = (hop.weight == 0, self.0.clone());
            message.set(RTA_MULTIPATH, hop.bytes());
            if plain {
                canonical_hops(&mut message);
            }
            Self(message)
        };
        own.map(route).collect()
    }

    /// Whether the kernel keeps it by itself: cached ones, and local, broadcast, anycast and multicast ones that come with addresses.
    #[must_use]
    pub fn is_automatic(&self) -> bool {
        let cloned = number_at(&self.0.header, FLAGS).unwrap_or_default() & RTM_F_CLONED != 0;
        cloned || (self.is_kernel_made() && self.0.byte(KIND) != RTN_UNICAST)
    }

    /// Whether the kernel made it for an address.
    #[must_use]
    pub fn is_kernel_made(&self) -> bool {
        self.0.byte(PROTOCOL) == RTPROT_KERNEL
    }

    /// Whether a DHCP client made it.
    #[must_use]
    pub fn is_dhcp(&self) -> bool {
        self.0.byte(PROTOCOL) == RTPROT_DHCP
    }

    /// Whether it is there for a time only: learned from a router, or leased. Whoever gave it renews it, or lets it go.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.is_dhcp() || self.0.byte(PROTOCOL) == RTPROT_RA || self.expires().is_some()
    }

    /// Whether somebody on the host gave it: neither made by the kernel, nor learned from a router, nor gone by itself.
    #[must_use]
    pub fn is_given(&self) -> bool {
        !self.is_kernel_made() && self.0.byte(PROTOCOL) != RTPROT_RA && !self.ends()
    }

    /// Whether people gave it: no daemon puts it up again.
    #[must_use]
    pub fn is_given_by_hand(&self) -> bool {
        [RTPROT_BOOT, RTPROT_STATIC].contains(&self.0.byte(PROTOCOL)) && !self.ends()
    }

    /// Whether the kernel made it as the network of this address.
    #[must_use]
    pub fn is_of(&self, address: &NicAddress) -> bool {
        let destination = self.0.attribute(RTA_DST).unwrap_or_default();
        self.is_kernel_made() && address.has_network(self.0.byte(0), self.0.byte(DST_LENGTH), destination)
    }

    /// The source address that it tells the host to use.
    #[must_use]
    pub fn source(&self) -> Option<IpAddr> {
        self.0.attribute(RTA_PREFSRC).and_then(ip)
    }

    /// The gateways that the kernel looks for among the neighbours of the link.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        let own = gateway(&self.0.attributes).filter(|_| number_at(&self.0.header, FLAGS).unwrap_or_default() & ONLINK == 0);
        let hops = self.hops();
        let sought = hops.iter().filter(|hop| u32::from(hop.flags) & ONLINK == 0);
        own.into_iter().chain(sought.filter_map(|hop| gateway(&split(&hop.attributes)))).collect()
    }

    /// What no two routes of a family have in common: who takes this place takes the route's.
    #[must_use]
    pub fn slot(&self) -> RouteSlot {
        let destination = self.0.attribute(RTA_DST).unwrap_or_default().to_vec();
        let header = [self.0.byte(0), self.0.byte(DST_LENGTH), self.0.byte(TOS)];
        RouteSlot { header, table: self.table(), metric: self.0.number(RTA_PRIORITY), destination }
    }

    /// The number of its table.
    #[must_use]
    pub fn table(&self) -> u32 {
        self.0.number(RTA_TABLE).unwrap_or_else(|| self.0.byte(TABLE).into())
    }

    /// Routes without a gateway come first: the others need them to find theirs.
    #[must_use]
    pub fn rank(&self) -> u8 {
        let gateway = [RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH, RTA_NH_ID].iter().any(|kind| self.0.attribute(*kind).is_some());
        u8::from(gateway)
    }

    /// Whether it goes by itself.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.expires().is_some()
    }

    /// The same route through another link.
    #[must_use]
    pub fn on_link(&self, from: u32, to: u32) -> Self {
        Self(self.moved(from, to, 0))
    }

    fn expires(&self) -> Option<u32> {
        let ticks = number_at(self.0.attribute(RTA_CACHEINFO)?, 8)?;
        // One that has ended and has not been cleared away yet has less than nothing left.
        let left = u32::try_from(ticks.cast_signed()).unwrap_or_default() / TICKS;
        (self.is_ipv6() && ticks != 0).then_some(left)
    }

    fn hops(&self) -> Vec<Hop> {
        hops(&self.0)
    }

    /// What must be equal for two routes to need no repair; `link` is the NIC that this one was read from.
    #[must_use]
    pub fn key(&self, link: u32) -> RouteKey {
        let mut message = self.moved(link, 0, u64::MAX);
        if self.is_ipv6() {
            canonical_hops(&mut message);
        } else {
            // Through which link the others lead is not this NIC's affair: another one may be put behind the bridge as well.
            set_links(&mut message, |hop| if hop == 0 { 0 } else { u32::MAX });
        }
        if self.expires().is_some() {
            message.set(RTA_EXPIRES, vec![1]);
        }
        let mut attributes: Vec<(u16, Vec<u8>)> = message.attributes.into_iter().map(|a| (a.0, a.1)).collect();
        attributes.sort();
        RouteKey(message.header, attributes)
    }

    /// Whether some of its hops lead through other links than this one, all in one route (IPv4; IPv6 has them apart).
    #[must_use]
    pub fn is_shared(&self, link: u32) -> bool {
        !self.is_ipv6() && self.hops().iter().any(|hop| hop.ifindex != link)
    }

    /// The same route, with each hop's link replaced.
    #[must_use]
    pub fn with_links(&self, replaced: impl Fn(u32) -> u32) -> Self {
        let mut message = self.0.clone();
        set_links(&mut message, replaced);
        Self(message)
    }

    /// The message that makes it on link `to`, `age` seconds after it was read from link `from`. Of an IPv6 route with several hops it holds ours: the
    /// kernel joins them with those that other links still have.
    #[must_use]
    pub fn to_add(&self, from: u32, to: IfIndex, age: u64) -> Message {
        self.moved(from, to.get(), age)
    }

    fn moved(&self, from: u32, to: u32, age: u64) -> Message {
        let mut message = self.0.clone();
        let flags = number_at(&message.header, FLAGS).unwrap_or_default();
        message.set_header_number(FLAGS, flags & ONLINK);
        message.drop_attributes(&[RTA_CACHEINFO]);
        if self.nexthop().is_some() {
            // Told for programs that do not know nexthop objects; refused beside one.
            message.drop_attributes(&[RTA_OIF, RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH, RTA_ENCAP_TYPE, RTA_ENCAP]);
            message.set_header_number(FLAGS, 0);
            return message;
        }
        if let Some(seconds) = self.expires() {
            let left = u64::from(seconds).saturating_sub(age).max(1);
            message.set(RTA_EXPIRES, u32::try_from(left).unwrap_or(u32::MAX).to_ne_bytes().to_vec());
        }
        if message.number(RTA_OIF) == Some(from) {
            message.set(RTA_OIF, to.to_ne_bytes().to_vec());
        }
        if message.attribute(RTA_MULTIPATH).is_some() {
            let hops = self.hops().into_iter().filter(|hop| !self.is_ipv6() || hop.ifindex == from);
            let moved = hops.map(|hop| Hop { ifindex: if hop.ifindex == from { to } else { hop.ifindex }, ..hop });
            message.set(RTA_MULTIPATH, moved.flat_map(Hop::bytes).collect());
        }
        message
    }
}

/// The hops of a route with several.
fn hops(route: &Message) -> Vec<Hop> {
    let mut hops = Vec::new();
    let mut rest = route.attribute(RTA_MULTIPATH).unwrap_or_default();
    while rest.len() >= HOP_HEADER {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let Some(hop) = rest.get(..length).filter(|hop| hop.len() >= HOP_HEADER) else { break };
        let ifindex = number_at(hop, 4).unwrap_or_default();
        hops.push(Hop { flags: hop[2], weight: hop[3], ifindex, attributes: hop[HOP_HEADER..].to_vec() });
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

fn set_links(route: &mut Message, replaced: impl Fn(u32) -> u32) {
    if route.attribute(RTA_MULTIPATH).is_some() {
        let hops = hops(route).into_iter().map(|hop| Hop { ifindex: replaced(hop.ifindex), ..hop });
        let bytes = hops.flat_map(Hop::bytes).collect();
        route.set(RTA_MULTIPATH, bytes);
    }
}

/// IPv6 hops have no order, and the kernel joins routes with equal destinations from several links into one: a single hop of ours is the same as a
/// route of its own.
fn canonical_hops(route: &mut Message) {
    let mut hops = hops(route);
    match &*hops {
        [] => {}
        [only] => {
            route.drop_attributes(&[RTA_MULTIPATH]);
            route.set(RTA_OIF, only.ifindex.to_ne_bytes().to_vec());
            route.attributes.extend(split(&only.attributes));
            route.set_header_number(FLAGS, u32::from(only.flags) & ONLINK);
        }
        _ => {
            hops.sort_by(|a, b| (&a.attributes, a.weight).cmp(&(&b.attributes, b.weight)));
            route.set(RTA_MULTIPATH, hops.into_iter().flat_map(Hop::bytes).collect());
            route.set_header_number(FLAGS, 0);
        }
    }
}

/// The gateway that some attributes of a route name, of whichever family.
fn gateway(attributes: &[Attribute]) -> Option<IpAddr> {
    let value = |kind: u16| attributes.iter().find(|attribute| attribute.0 == kind).map(|attribute| attribute.1.as_slice());
    value(RTA_GATEWAY).or_else(|| value(RTA_VIA)?.get(2..)).and_then(ip)
}

/// The attributes in a run of them.
pub(super) fn split(mut bytes: &[u8]) -> Vec<Attribute> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & 0x3fff;
        let Some(value) = bytes.get(4..length) else { break };
        found.push(Attribute(kind, value.to_vec()));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

impl Hop {
    fn bytes(self) -> Vec<u8> {
        let length = u16::try_from(HOP_HEADER + self.attributes.len()).unwrap_or(u16::MAX);
        let flags = self.flags & u8::try_from(ONLINK).unwrap_or_default();
        let mut bytes = Vec::from(length.to_ne_bytes());
        bytes.extend([flags, self.weight]);
        bytes.extend(self.ifindex.to_ne_bytes());
        bytes.extend(self.attributes);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

impl fmt::Display for NicRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.attribute(RTA_DST).and_then(ip) {
            Some(dst) => write!(f, "{dst}/{}", self.0.byte(DST_LENGTH))?,
            None => f.write_str("default")?,
        }
        if let Some(gateway) = self.0.attribute(RTA_GATEWAY).and_then(ip) {
            write!(f, " via {gateway}")?;
        }
        if let Some(source) = self.0.attribute(RTA_PREFSRC).and_then(ip) {
            write!(f, " src {source}")?;
        }
        if let Some(metric) = self.0.number(RTA_PRIORITY) {
            write!(f, " metric {metric}")?;
        }
        if let Some(id) = self.nexthop() {
            write!(f, " nhid {id}")?;
        }
        for hop in self.hops() {
            write!(f, " nexthop index {} weight {}", hop.ifindex, u16::from(hop.weight) + 1)?;
        }
        write!(f, " table {} proto {}", self.table(), self.0.byte(PROTOCOL))
    }
}

super::message_json!(NicRoute, NicRoute::new);

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel told of these by `ip route add 10.55.0.0/16 nhid 12`, where the object 12 has an encapsulation.
    #[test]
    fn what_a_nexthop_object_tells_is_left_to_it() {
        let attribute = |kind: u16, value: &[u8]| Attribute(kind, value.to_vec());
        let own = [attribute(RTA_NH_ID, &12u32.to_ne_bytes()), attribute(RTA_TABLE, &254u32.to_ne_bytes())];
        let told =
            [attribute(RTA_OIF, &2u32.to_ne_bytes()), attribute(RTA_ENCAP_TYPE, &[2, 0]), attribute(RTA_ENCAP, &[8, 0, 1, 0, 0, 0, 0, 9])];
        let route = NicRoute::new(Message { header: vec![2; HEADER], attributes: [own.to_vec(), told.to_vec()].concat() }).unwrap();
        assert_eq!(route.to_add(2, IfIndex::new(7).unwrap(), 0).attributes, own, "refused beside a nexthop object");
    }
}
