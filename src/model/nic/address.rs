//! An address with all its attributes (`struct ifaddrmsg` and `IFA_*`).

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::nic::message::{Message, ip, number_at};
use crate::model::{IfIndex, InterfaceAddress};

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_PROTO: u16 = 11;

const AF_INET6: u8 = 10;
/// Places in `struct ifaddrmsg`.
const PREFIX: usize = 1;
const FLAGS: usize = 2;
const INDEX: usize = 4;

const SECONDARY: u32 = 0x01;
/// The same bit, of an IPv6 address.
const TEMPORARY: u32 = SECONDARY;
const NODAD: u32 = 0x02;
const DADFAILED: u32 = 0x08;
const HOMEADDRESS: u32 = 0x10;
const TENTATIVE: u32 = 0x40;
/// What duplicate address detection decides about.
const DECIDED: u32 = TENTATIVE | DADFAILED;
const MANAGETEMPADDR: u32 = 0x100;
const NOPREFIXROUTE: u32 = 0x200;
const MCAUTOJOIN: u32 = 0x400;
/// The flags that people give; the others say how the address stands at the moment.
const GIVEN: u32 = NODAD | HOMEADDRESS | MANAGETEMPADDR | NOPREFIXROUTE | MCAUTOJOIN;
/// `IFA_PROTO` of addresses of which nobody says whose they are, of those from router advertisements, and of link-locals that the kernel makes.
const PROTO_NONE: u8 = 0;
const PROTO_RA: u8 = 2;
const PROTO_LL: u8 = 3;
/// A lifetime that does not end.
const FOREVER: u32 = u32::MAX;
/// The least lifetime with which an address is put back, seconds: a host that came back late must not lose its address at once, and whoever
/// gave it the address (a DHCP client) needs time to notice.
const LEAST_LIFETIME: u32 = 300;

/// Ends that differ by less are the same, seconds: what is renewed all the time is not written down all the time.
const SLACK: u64 = 60;

/// Whether two ends are the same, seconds since boot.
#[must_use]
pub(super) fn end_together(one: Option<u64>, other: Option<u64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.abs_diff(other) <= SLACK,
        (one, other) => one == other,
    }
}

/// One address as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress(Message);

/// An address without what changes by itself: two that are equal in it need no repair.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressKey(Vec<u8>, Vec<(u16, Vec<u8>)>);

impl NicAddress {
    /// Wraps an `RTM_NEWADDR`; `None` for what is no address of an IP family.
    #[must_use]
    pub fn new(message: Message) -> Option<Self> {
        let address = Self(message);
        (address.0.header.len() == 8 && address.address().is_some()).then_some(address)
    }

    /// The address with its prefix length.
    #[must_use]
    pub fn address(&self) -> Option<InterfaceAddress> {
        let local = self.0.attribute(IFA_LOCAL).or_else(|| self.0.attribute(IFA_ADDRESS))?;
        InterfaceAddress::new(ip(local)?, self.0.byte(PREFIX))
    }

    /// Whether it is an IPv6 one.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.0.byte(0) == AF_INET6
    }

    /// The index of its link.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        number_at(&self.0.header, INDEX).unwrap_or_default()
    }

    fn flags(&self) -> u32 {
        self.0.number(IFA_FLAGS).unwrap_or_else(|| self.0.byte(FLAGS).into())
    }

    /// Whether the kernel drops it together with an earlier one of its subnet.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        !self.is_ipv6() && self.flags() & SECONDARY != 0
    }

    /// Whether it cannot be used: not yet, or because somebody else has it.
    #[must_use]
    pub fn is_unusable(&self) -> bool {
        self.is_ipv6() && self.flags() & (TENTATIVE | DADFAILED) != 0
    }

    /// Whether the network is still asked whether another host has it.
    #[must_use]
    pub(super) fn is_undecided(&self) -> bool {
        self.is_unusable() && !self.is_duplicate()
    }

    /// Whether another host was found to have it: the kernel keeps it, and does not use it.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        self.is_ipv6() && self.flags() & DADFAILED != 0
    }

    /// The same address, with what was found out about it where it stands now.
    #[must_use]
    pub(super) fn decided_as(&self, found: &Self) -> Self {
        let mut message = self.0.clone();
        message.set(IFA_FLAGS, ((self.flags() & !DECIDED) | (found.flags() & DECIDED)).to_ne_bytes().to_vec());
        Self(message)
    }

    /// A link-local that the kernel made by itself.
    #[must_use]
    pub fn is_kernel_link_local(&self) -> bool {
        let link_local = matches!(self.address().map(InterfaceAddress::ip), Some(IpAddr::V6(v6)) if v6.is_unicast_link_local());
        link_local && self.proto().is_none_or(|proto| proto == PROTO_LL)
    }

    /// Whether the kernel made it from another address of the link, to be used for some days (RFC 8981).
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        self.is_ipv6() && self.flags() & TEMPORARY != 0
    }

    /// Whether it is there for a time only: learned from a router, or leased. Whoever gave it renews it, or lets it go.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.lifetimes().1.is_some() || self.proto() == Some(PROTO_RA)
    }

    /// Whether somebody looks after it who gives it again where it is missing: the kernel, or a program that marks what is its own, as keepalived does.
    #[must_use]
    pub fn is_looked_after(&self) -> bool {
        self.is_temporary() || self.proto().is_some_and(|proto| proto != PROTO_NONE) || self.is_kernel_link_local()
    }

    /// Whether this is the network of the address, or of the other end of its line.
    #[must_use]
    pub fn has_network(&self, family: u8, length: u8, network: &[u8]) -> bool {
        let far = self.0.attribute(IFA_ADDRESS).or_else(|| self.0.attribute(IFA_LOCAL)).unwrap_or_default();
        let masked = far.iter().enumerate().map(|(at, octet)| {
            let bits = usize::from(length).saturating_sub(at * 8).min(8);
            u8::try_from(u16::from(*octet) & (0xff00 >> bits)).unwrap_or_default()
        });
        (self.0.byte(0), self.0.byte(PREFIX)) == (family, length) && masked.eq(network.iter().copied())
    }

    /// Whether a neighbour of this address is found on the link by it alone.
    #[must_use]
    pub fn reaches(&self, neighbour: IpAddr) -> bool {
        let far = self.0.attribute(IFA_ADDRESS).or_else(|| self.0.attribute(IFA_LOCAL)).and_then(ip);
        let net = |ip| InterfaceAddress::new(ip, self.0.byte(PREFIX));
        self.flags() & NOPREFIXROUTE == 0 && net(neighbour).zip(far.and_then(net)).is_some_and(|(one, other)| one.same_subnet(other))
    }

    /// When it ends, seconds since boot; `read_at` is when it was read, by the same clock. `None` for one that does not end.
    #[must_use]
    pub fn ends_at(&self, read_at: u64) -> Option<u64> {
        self.lifetimes().1.map(|valid| read_at.saturating_add(valid.into()))
    }

    /// The same address as it would have been read so many seconds earlier.
    #[must_use]
    pub fn as_read_earlier(&self, seconds: u64) -> Self {
        let mut message = self.0.clone();
        if let Some(info) = self.0.attribute(IFA_CACHEINFO) {
            let earlier = u32::try_from(seconds).unwrap_or(FOREVER);
            let longer = |at: usize| {
                let left = number_at(info, at).unwrap_or(FOREVER);
                // Nothing that ends may end never.
                if left == FOREVER { left } else { left.saturating_add(earlier).min(FOREVER - 1) }
            };
            let bytes: Vec<u8> =
                [longer(0), longer(4)].into_iter().flat_map(u32::to_ne_bytes).chain(info.iter().skip(8).copied()).collect();
            message.set(IFA_CACHEINFO, bytes);
        }
        Self(message)
    }

    fn proto(&self) -> Option<u8> {
        self.0.attribute(IFA_PROTO).and_then(|value| value.first()).copied()
    }

    /// Its preferred and its valid lifetime, seconds from when it was read; `None` for one that does not end.
    #[must_use]
    pub fn lifetimes(&self) -> (Option<u32>, Option<u32>) {
        let info = self.0.attribute(IFA_CACHEINFO).unwrap_or_default();
        let at = |place| number_at(info, place).filter(|seconds| *seconds != FOREVER);
        (at(0), at(4))
    }

    /// Whether it ends unless somebody renews it, and that somebody is not a router: a lease.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        let by_kernel = self.proto() == Some(PROTO_RA) || self.is_temporary() || (self.is_ipv6() && self.flags() & MANAGETEMPADDR != 0);
        self.lifetimes().1.is_some() && !by_kernel
    }

    /// Its label; IPv4 only.
    #[must_use]
    pub fn label(&self) -> Option<String> {
        self.0.text(IFA_LABEL)
    }

    /// Gives it the label that it would have if its link were called so: the kernel lets labels begin with the link's name, and changes them with it.
    pub fn rename_label(&mut self, from: &str, to: &str) {
        let label = self.label().unwrap_or_default();
        if let Some(rest) = label.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with(':')) {
            self.0.set(IFA_LABEL, format!("{to}{rest}\0").into_bytes());
        }
    }

    /// What must be equal for two addresses to need no repair. Without `labels`, IPv4 labels do not count (a rename changes them).
    #[must_use]
    pub fn key(&self, labels: bool) -> AddressKey {
        let mut message = self.0.clone();
        message.set_header_number(INDEX, 0);
        if let Some(flags) = message.header.get_mut(FLAGS) {
            *flags = 0;
        }
        let ends = [self.lifetimes().0, self.lifetimes().1].map(|end| u8::from(end.is_some()));
        message.set(IFA_FLAGS, (self.flags() & GIVEN).to_ne_bytes().to_vec());
        message.set(IFA_CACHEINFO, ends.to_vec());
        if !labels {
            message.drop_attributes(&[IFA_LABEL]);
        }
        let mut attributes: Vec<(u16, Vec<u8>)> = message.attributes.into_iter().map(|a| (a.0, a.1)).collect();
        attributes.sort();
        AddressKey(message.header, attributes)
    }

    /// The message that puts it onto a link, `age` seconds after it was read. `at_once` leaves out duplicate address detection: it is the
    /// host's own address that comes along. One that was not in use when it was read is not known to be that, so the network is asked again.
    #[must_use]
    pub fn to_add(&self, link: IfIndex, age: u64, at_once: bool) -> Message {
        let mut message = self.0.clone();
        message.set_header_number(INDEX, link.get());
        let nodad = if at_once && self.is_ipv6() && !self.is_unusable() { NODAD } else { 0 };
        message.set(IFA_FLAGS, ((self.flags() & GIVEN) | nodad).to_ne_bytes().to_vec());
        if let Some(flags) = message.header.get_mut(FLAGS) {
            *flags = 0;
        }
        let left = |end: Option<u32>, least: u32| {
            let age = u32::try_from(age).unwrap_or(u32::MAX);
            end.map_or(FOREVER, |seconds| seconds.saturating_sub(age).max(least))
        };
        let (preferred, valid) = self.lifetimes();
        let valid = left(valid, LEAST_LIFETIME);
        let info: Vec<u8> = [left(preferred, 0).min(valid), valid, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        message.set(IFA_CACHEINFO, info);
        message
    }

    /// The message that takes it off a link.
    #[must_use]
    pub fn to_remove(&self, link: IfIndex) -> Message {
        let mut message = self.0.clone();
        message.set_header_number(INDEX, link.get());
        message.attributes.retain(|a| [IFA_ADDRESS, IFA_LOCAL].contains(&a.0));
        message
    }
}

impl fmt::Display for NicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => write!(f, "{address}")?,
            None => f.write_str("?")?,
        }
        let flags = self.flags();
        for (bit, word) in [(NODAD, "nodad"), (NOPREFIXROUTE, "noprefixroute"), (MANAGETEMPADDR, "mngtmpaddr"), (HOMEADDRESS, "home")] {
            if flags & bit != 0 {
                write!(f, " {word}")?;
            }
        }
        if let Some(label) = self.label() {
            write!(f, " label {label}")?;
        }
        match self.lifetimes().1 {
            Some(seconds) => write!(f, " valid {seconds} s"),
            None => Ok(()),
        }
    }
}

super::message_json!(NicAddress, NicAddress::new);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nic::message::Attribute;

    #[test]
    fn what_the_kernel_makes_for_some_days_is_no_lease() {
        let address = |family: u8, flags: u32| {
            let info: Vec<u8> = [600u32, 600, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
            let bytes = if family == AF_INET6 { vec![0x20; 16] } else { vec![192, 0, 2, 5] };
            let attributes =
                vec![Attribute(IFA_ADDRESS, bytes), Attribute(IFA_CACHEINFO, info), Attribute(IFA_FLAGS, flags.to_ne_bytes().to_vec())];
            NicAddress::new(Message { header: vec![family, 24, 0, 0, 0, 0, 0, 0], attributes }).unwrap()
        };
        let told = |family, flags| (address(family, flags).is_temporary(), address(family, flags).is_leased());
        assert_eq!(told(AF_INET6, TEMPORARY), (true, false));
        assert_eq!(told(AF_INET6, 0), (false, true));
        assert_eq!(told(2, SECONDARY), (false, true), "it is a secondary one");
    }

    #[test]
    fn a_label_goes_with_the_name_of_the_link() {
        let labelled = |label: &str| {
            let attributes = vec![Attribute(IFA_LOCAL, vec![192, 0, 2, 5]), Attribute(IFA_LABEL, format!("{label}\0").into_bytes())];
            NicAddress::new(Message { header: vec![2, 24, 0, 0, 0, 0, 0, 0], attributes }).unwrap()
        };
        for (before, after) in [("eth0~", "eth0"), ("eth0~:x", "eth0:x"), ("eth0", "eth0"), ("eth0~1", "eth0~1"), ("other", "other")] {
            let mut address = labelled(before);
            address.rename_label("eth0~", "eth0");
            assert_eq!(address, labelled(after), "{before}");
        }
        let mut bare =
            NicAddress::new(Message { header: vec![2, 24, 0, 0, 0, 0, 0, 0], attributes: vec![Attribute(IFA_LOCAL, vec![192, 0, 2, 5])] })
                .unwrap();
        let before = bare.clone();
        bare.rename_label("eth0~", "eth0");
        assert_eq!(bare, before);
    }
}
