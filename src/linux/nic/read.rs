//! Reading everything that makes up a NIC's configuration.

use std::collections::{HashMap, HashSet};
use std::fs;

use nix::errno::Errno;

use crate::linux::batch::{Body, Request};
use crate::linux::decode::{RTM_NEWADDR, attributes_of};
use crate::linux::encode;
use crate::linux::nic::{NicKernel, sysctl};
use crate::linux::socket::{Failure, RouteSocket};
use crate::model::nic::{Attribute, Message, NicAddress, NicConfig, NicLink, NicNexthop, NicRoute};

pub(super) const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
const RTM_NEWNEXTHOP: u16 = 104;
const RTM_GETNEXTHOP: u16 = 106;

const ADDRESS_HEADER: usize = 8;
pub(super) const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
const RULE_HEADER: usize = 12;
const NEXTHOP_HEADER: usize = 8;

const FAMILIES: [u8; 2] = [2, 10];
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const NDA_CACHEINFO: u16 = 3;
const NDA_PROBES: u16 = 4;
const NUD_PERMANENT: u8 = 0x80;
const NTF_PROXY: u8 = 0x08;
const FRA_IIFNAME: u16 = 3;
const FRA_OIFNAME: u16 = 17;
/// Place of the link's index in `struct ndmsg`; its state and its flags.
const NEIGHBOUR_INDEX: usize = 4;
const NEIGHBOUR_STATE: usize = 8;
const NEIGHBOUR_FLAGS: usize = 10;

/// How often an interrupted listing is begun again.
const ATTEMPTS: usize = 8;

/// The whole configuration of a link.
pub(super) fn config(kernel: &mut NicKernel, link: &NicLink) -> Result<NicConfig, Failure> {
    let sysctls = sysctl::read(kernel, &link.name)?;
    let socket = kernel.socket()?;
    let found = super::links::all(socket)?.into_iter().find(|found| found.ifindex == link.ifindex);
    let now = found.ok_or_else(|| Failure::new(Errno::ENODEV, "the link is gone"))?;
    let index = link.ifindex;
    let addresses = addresses(socket, link)?;
    let mut routes = Vec::new();
    for family in FAMILIES {
        let found =
            listing(socket, &list_routes(family, RTA_OIF, index), RTM_NEWROUTE, ROUTE_HEADER)?.into_iter().filter_map(NicRoute::new);
        let found = found.filter(|route| !route.is_automatic() && (route.leads_through(index) || route.nexthop().is_some()));
        routes.extend(found.flat_map(|route| route.apart(index)));
    }
    let (mut nexthops, others): (Vec<NicNexthop>, Vec<NicNexthop>) =
        all_nexthops(socket)?.into_iter().partition(|object| object.leads_through(index));
    let own: HashSet<u32> = nexthops.iter().map(NicNexthop::id).collect();
    nexthops.extend(others.into_iter().filter(|object| object.members().iter().any(|member| own.contains(member))));
    let neighbours = neighbours(socket, index)?;
    let rules = rules(socket, &now.name)?;
    Ok(NicConfig { link: now, sysctls, addresses, nexthops, routes, leading: Vec::new(), neighbours, rules, taken_at: uptime() })
}

/// All IPv4 routes of one table, in the kernel's order.
pub(super) fn ipv4_table(socket: &mut RouteSocket, table: u32) -> Result<Vec<NicRoute>, Failure> {
    let request = list_routes(FAMILIES[0], RTA_TABLE, table);
    let found = listing(socket, &request, RTM_NEWROUTE, ROUTE_HEADER)?.into_iter().filter_map(NicRoute::new);
    Ok(found.filter(|route| route.table() == table).collect())
}

/// The addresses of one link; none where it is gone.
pub(super) fn addresses(socket: &mut RouteSocket, link: &NicLink) -> Result<Vec<NicAddress>, Failure> {
    let found = listing(socket, &encode::list_addresses(link.index()), RTM_NEWADDR, ADDRESS_HEADER)?;
    Ok(found.into_iter().filter_map(NicAddress::new).filter(|address| address.ifindex() == link.ifindex).collect())
}

/// All nexthop objects, whichever way they lead.
pub(super) fn all_nexthops(socket: &mut RouteSocket) -> Result<Vec<NicNexthop>, Failure> {
    let objects = listing(socket, &bare_listing(RTM_GETNEXTHOP, vec![0; NEXTHOP_HEADER]), RTM_NEWNEXTHOP, NEXTHOP_HEADER)?;
    Ok(objects.into_iter().filter_map(NicNexthop::new).collect())
}

/// The addresses of all links, by index, in one listing.
pub(super) fn all_addresses(socket: &mut RouteSocket) -> Result<HashMap<u32, Vec<NicAddress>>, Failure> {
    let mut all: HashMap<u32, Vec<NicAddress>> = HashMap::new();
    for address in listing(socket, &encode::list_addresses(None), RTM_NEWADDR, ADDRESS_HEADER)?.into_iter().filter_map(NicAddress::new) {
        all.entry(address.ifindex()).or_default().push(address);
    }
    Ok(all)
}

/// Lists messages of one type; begun again while changes interrupt it.
fn listing(socket: &mut RouteSocket, request: &Request, wanted: u16, header: usize) -> Result<Vec<Message>, Failure> {
    let mut found = Vec::new();
    for _ in 0..ATTEMPTS {
        found.clear();
        let complete = socket.dump(request, |kind, payload| {
            if kind == wanted {
                found.extend(message(payload, header));
            }
        });
        match complete {
            Ok(true) => return Ok(found),
            Ok(false) => {}
            // Told instead of an empty listing, by a link that is going or by a family that the kernel lacks.
            Err(failure) if failure.is(Errno::ENODEV) || failure.is(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            Err(failure) => return Err(failure),
        }
    }
    Err(Failure::new(Errno::EAGAIN, "the listing was interrupted by changes, again and again"))
}

/// A message as header and attributes.
pub(super) fn message(payload: &[u8], header: usize) -> Option<Message> {
    let (header, attributes) = payload.split_at_checked(header)?;
    let attributes = attributes_of(attributes).map(|(kind, value)| Attribute(kind, value.to_vec())).collect();
    Some(Message { header: header.to_vec(), attributes })
}

fn bare_listing(kind: u16, header: Vec<u8>) -> Request {
    Request::read(Body::Kept(kind, header))
}

/// The kernel itself picks those with this attribute: some hosts have a million others.
fn list_routes(family: u8, attribute: u16, value: u32) -> Request {
    let mut payload = vec![0; ROUTE_HEADER];
    payload[0] = family;
    payload.extend(8u16.to_ne_bytes());
    payload.extend(attribute.to_ne_bytes());
    payload.extend(value.to_ne_bytes());
    bare_listing(RTM_GETROUTE, payload)
}

/// Entries that do not go by themselves.
fn neighbours(socket: &mut RouteSocket, link: u32) -> Result<Vec<Message>, Failure> {
    let mut found = Vec::new();
    for flags in [0, NTF_PROXY] {
        for family in FAMILIES {
            let mut header = vec![0; NEIGHBOUR_HEADER];
            (header[0], header[NEIGHBOUR_FLAGS]) = (family, flags);
            let entries = listing(socket, &bare_listing(RTM_GETNEIGH, header), RTM_NEWNEIGH, NEIGHBOUR_HEADER)?;
            found.extend(entries.into_iter().filter(|entry| {
                let ours = crate::linux::decode::u32_at(&entry.header, NEIGHBOUR_INDEX) == Some(link);
                ours && (entry.byte(NEIGHBOUR_STATE) & NUD_PERMANENT != 0 || entry.byte(NEIGHBOUR_FLAGS) & NTF_PROXY != 0)
            }));
        }
    }
    for entry in &mut found {
        entry.drop_attributes(&[NDA_CACHEINFO, NDA_PROBES]);
    }
    Ok(found)
}

/// Rules bind by name, to whichever link has it.
fn rules(socket: &mut RouteSocket, name: &str) -> Result<Vec<Message>, Failure> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let mut header = vec![0; RULE_HEADER];
        header[0] = family;
        let rules = listing(socket, &bare_listing(RTM_GETRULE, header), RTM_NEWRULE, RULE_HEADER)?;
        let names = |rule: &Message| [FRA_IIFNAME, FRA_OIFNAME].iter().any(|kind| rule.text(*kind).is_some_and(|text| text == name));
        found.extend(rules.into_iter().filter(names));
    }
    Ok(found)
}

/// Seconds since boot; what cannot be read counts as the boot itself, which only lengthens lifetimes.
pub(super) fn uptime() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split('.').next().and_then(|seconds| seconds.parse().ok()).unwrap_or_default()
}
