//! What the kernel says, as our values.
//!
//! Only the attributes that we use are looked at, each on its own: a link of an unknown kind, with a name that is no UTF-8 or with an
//! attribute of a later kernel is listed like any other. (The ready-made parsers refuse the whole message then, so anyone who may create
//! links in a container could hide all others from us.)

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NlasIterator};

use crate::model::observed::TunInfo;
use crate::model::owner::ADDRESS_PROTO;
use crate::model::{IfIndex, InterfaceAddress, LinkKind, MacAddr, ObservedAddress, ObservedLink, OperState, PeerLink};

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_NEWNSID: u16 = 88;
pub(super) const RTM_DELNSID: u16 = 89;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `struct ifinfomsg`, `struct ifaddrmsg`, `struct rtgenmsg` (padded).
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const NSID_HEADER: usize = 4;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_GROUP: u16 = 27;
const IFLA_CARRIER: u16 = 33;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_PI: u16 = 4;
const IFLA_TUN_VNET_HDR: u16 = 5;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_INET6_CONF: u16 = 2;
/// Place of `disable_ipv6` in `IFLA_INET6_CONF` (`DEVCONF_DISABLE_IPV6`).
const DEVCONF_DISABLE_IPV6: usize = 26;
const IFF_UP: u32 = 1;
const IFF_TAP: u8 = 2;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_PROTO: u16 = 11;
const IFA_F_SECONDARY: u32 = 0x01;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
/// `IFA_PROTO` of link-locals that the kernel makes.
const IFAPROT_KERNEL_LL: u8 = 3;
const RT_SCOPE_LINK: u8 = 253;

const NETNSA_NSID: u16 = 1;
const NETNSA_CURRENT_NSID: u16 = 5;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NETLINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;

/// A link as told by `RTM_NEWLINK`; `None` for what only looks like one (a bridge port, told by the same message type).
pub(super) fn link(payload: &[u8]) -> Option<ObservedLink> {
    let (header, attributes) = payload.split_at_checked(LINK_HEADER)?;
    if header[0] != AF_UNSPEC {
        return None;
    }
    let mut link = ObservedLink::bare(IfIndex::new(u32_at(header, 4)?)?, "", LinkKind::Other("".into()));
    link.admin_up = u32_at(header, 8)? & IFF_UP != 0;
    link.oper = OperState::Unknown;
    let (mut peer, mut nsid, mut carrier) = (None, None, false);
    for (kind, value) in attributes_of(attributes) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = value.try_into().ok().and_then(|octets| MacAddr::new(octets).ok()),
            IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or_default(),
            IFLA_GROUP => link.group = u32_at(value, 0).unwrap_or_default(),
            IFLA_LINK => peer = u32_at(value, 0).and_then(IfIndex::new),
            IFLA_LINK_NETNSID => nsid = i32_at(value, 0),
            IFLA_CARRIER => carrier = value.first() == Some(&1),
            IFLA_OPERSTATE => link.oper = oper_state(value),
            IFLA_IFALIAS => link.alias = Some(text(value)),
            IFLA_LINKINFO => link.kind = link_kind(value),
            IFLA_PROP_LIST => link.altnames = altnames(value),
            IFLA_AF_SPEC => link.ipv6_disabled = ipv6_disabled(value),
            _ => {}
        }
    }
    match &mut link.kind {
        LinkKind::Veth => link.peer = peer.map(|ifindex| PeerLink { ifindex, nsid, netns: None }),
        LinkKind::Tun(info) => info.open |= carrier,
        LinkKind::Other(_) => {}
    }
    Some(link)
}

/// The index of a link that is gone, as told by `RTM_DELLINK`. A port that leaves its bridge is told by the same message and is no such link.
pub(super) fn link_gone(payload: &[u8]) -> Option<IfIndex> {
    (*payload.first()? == AF_UNSPEC).then(|| u32_at(payload, 4).and_then(IfIndex::new)).flatten()
}

/// An address, and the index of its link.
///
/// The label is given as the kernel has it; whether it is just the link's name only who knows the link can tell.
pub(super) fn address(payload: &[u8]) -> Option<(IfIndex, ObservedAddress)> {
    let (header, attributes) = payload.split_at_checked(ADDRESS_HEADER)?;
    let (family, prefix, scope) = (header[0], header[1], header[3]);
    if family != AF_INET && family != AF_INET6 {
        return None;
    }
    let (mut local, mut given, mut flags) = (None, None, u32::from(header[2]));
    let (mut proto, mut broadcast, mut label) = (0, None, None);
    for (kind, value) in attributes_of(attributes) {
        match kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => given = ip(value),
            IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            IFA_PROTO => proto = value.first().copied().unwrap_or_default(),
            IFA_BROADCAST => broadcast = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
            IFA_LABEL => label = Some(text(value)),
            _ => {}
        }
    }
    let ip = local.or(given)?;
    let observed = ObservedAddress {
        address: InterfaceAddress::new(ip, prefix)?,
        proto,
        secondary: family == AF_INET && flags & IFA_F_SECONDARY != 0,
        tentative: flags & IFA_F_TENTATIVE != 0,
        dad_failed: flags & IFA_F_DADFAILED != 0,
        kernel_made: kernel_made(ip, proto, scope),
        scope,
        broadcast,
        label,
    };
    Some((IfIndex::new(u32_at(header, 4)?)?, observed))
}

/// Kernels before 5.18 do not say who made an address; then a link-local of link scope that is not ours counts as the kernel's.
fn kernel_made(ip: IpAddr, proto: u8, scope: u8) -> bool {
    let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    proto == IFAPROT_KERNEL_LL || (link_local && scope == RT_SCOPE_LINK && proto != ADDRESS_PROTO)
}

/// The namespace id in an `RTM_NEWNSID` or `RTM_DELNSID`; `None` when the namespace has none.
pub(super) fn nsid(payload: &[u8]) -> Option<i32> {
    let attributes = payload.get(NSID_HEADER..)?;
    i32_at(attribute(attributes, NETNSA_NSID)?, 0).filter(|id| *id >= 0)
}

/// From a listing of another namespace's ids: the id there, and the id of the same namespace as seen from here, if it has one.
pub(super) fn nsid_pair(payload: &[u8]) -> Option<(i32, i32)> {
    let attributes = payload.get(NSID_HEADER..)?;
    let id = |kind| i32_at(attribute(attributes, kind)?, 0).filter(|id| *id >= 0);
    Some((id(NETNSA_NSID)?, id(NETNSA_CURRENT_NSID)?))
}

/// The code at the start of an acknowledgement: zero or a negative errno.
pub(super) fn error_code(payload: &[u8]) -> Option<i32> {
    i32_at(payload, 0)
}

/// The kernel's words in an extended acknowledgement; empty when it gave none.
pub(super) fn kernel_words(flags: u16, payload: &[u8]) -> String {
    if flags & NLM_F_ACK_TLVS == 0 {
        return String::new();
    }
    // The header of the request is always repeated, the rest of it only where capping was not asked for.
    let repeated = if flags & NLM_F_CAPPED != 0 { NETLINK_HEADER } else { u32_at(payload, 4).unwrap_or_default() as usize };
    let attributes = payload.get(4 + repeated.next_multiple_of(4)..).unwrap_or_default();
    attribute(attributes, NLMSGERR_ATTR_MSG).map(|words| text(words).into()).unwrap_or_default()
}

fn link_kind(info: &[u8]) -> LinkKind {
    let word = attribute(info, IFLA_INFO_KIND).map(text).unwrap_or_default();
    match &*word {
        "veth" => LinkKind::Veth,
        "tun" => LinkKind::Tun(attribute(info, IFLA_INFO_DATA).map(tun).unwrap_or_default()),
        _ => LinkKind::Other(word),
    }
}

fn tun(data: &[u8]) -> TunInfo {
    let mut info = TunInfo::default();
    for (kind, value) in attributes_of(data) {
        let first = value.first().copied().unwrap_or_default();
        match kind {
            IFLA_TUN_OWNER => info.owner = u32_at(value, 0),
            IFLA_TUN_GROUP => info.group = u32_at(value, 0),
            IFLA_TUN_TYPE => info.tap = first == IFF_TAP,
            IFLA_TUN_PI => info.packet_info = first != 0,
            IFLA_TUN_VNET_HDR => info.vnet_hdr = first != 0,
            IFLA_TUN_PERSIST => info.persist = first != 0,
            IFLA_TUN_MULTI_QUEUE => info.multi_queue = first != 0,
            IFLA_TUN_NUM_QUEUES => info.open |= u32_at(value, 0).is_some_and(|queues| queues > 0),
            _ => {}
        }
    }
    info
}

pub(super) fn altnames(list: &[u8]) -> Vec<Box<str>> {
    attributes_of(list).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME).map(|(_, name)| text(name)).collect()
}

fn ipv6_disabled(families: &[u8]) -> bool {
    let conf = attribute(families, u16::from(AF_INET6)).and_then(|inet6| attribute(inet6, IFLA_INET6_CONF));
    conf.and_then(|values| i32_at(values, 4 * DEVCONF_DISABLE_IPV6)).is_some_and(|disabled| disabled != 0)
}

/// `IF_OPER_*` of `linux/if.h`.
fn oper_state(value: &[u8]) -> OperState {
    match value.first() {
        Some(0) => OperState::Unknown,
        Some(2) => OperState::Down,
        Some(3) => OperState::LowerLayerDown,
        Some(6) => OperState::Up,
        _ => OperState::Other,
    }
}

/// The attributes of a buffer, type and value, up to the first one that is cut off.
pub(super) fn attributes_of(buffer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(buffer).map_while(Result::ok).map(|attribute| {
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        (kind, attribute.into_inner().get(ATTRIBUTE_HEADER..length).unwrap_or_default())
    })
}

pub(super) fn attribute(buffer: &[u8], kind: u16) -> Option<&[u8]> {
    attributes_of(buffer).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A text up to its NUL; bytes that are not UTF-8 are replaced.
pub(super) fn text(value: &[u8]) -> Box<str> {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into()
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(value).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute_bytes(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link_bytes(family: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; LINK_HEADER];
        bytes[0] = family;
        bytes[4..8].copy_from_slice(&7u32.to_ne_bytes());
        bytes.extend(attributes.iter().flat_map(|(kind, value)| attribute_bytes(*kind, value)));
        bytes
    }

    #[test]
    fn an_attribute_that_is_cut_off_costs_only_what_follows() {
        let mut bytes = link_bytes(0, &[(IFLA_IFNAME, b"x\0"), (999, b"later kernels"), (IFLA_MTU, &1400u32.to_ne_bytes())]);
        bytes.extend([200, 0, 20, 0, 1]);
        let link = link(&bytes).unwrap();
        assert_eq!((&*link.name, link.mtu, link.ifindex.get()), ("x", 1400, 7));
    }

    #[test]
    fn a_bridge_port_is_no_link() {
        const AF_BRIDGE: u8 = 7;
        assert_eq!(link(&link_bytes(AF_BRIDGE, &[(IFLA_IFNAME, b"x\0")])), None);
        assert_eq!(link_gone(&link_bytes(AF_BRIDGE, &[])), None);
        assert_eq!(link_gone(&link_bytes(AF_UNSPEC, &[])).map(IfIndex::get), Some(7));
    }

    #[test]
    fn the_kernels_words() {
        let words = attribute_bytes(NLMSGERR_ATTR_MSG, b"no such thing\0");
        let capped = [vec![0; 4 + NETLINK_HEADER], words.clone()].concat();
        assert_eq!(kernel_words(NLM_F_ACK_TLVS | NLM_F_CAPPED, &capped), "no such thing");
        assert_eq!(kernel_words(NLM_F_CAPPED, &capped), "");
        // Without capping the whole request is repeated, here one of 24 bytes.
        let mut whole = vec![0; 4 + 24];
        whole[4..8].copy_from_slice(&24u32.to_ne_bytes());
        assert_eq!(kernel_words(NLM_F_ACK_TLVS, &[whole, words].concat()), "no such thing");
    }

    #[test]
    fn whose_link_local() {
        let ip: IpAddr = "fe80::1".parse().unwrap();
        assert!(kernel_made(ip, IFAPROT_KERNEL_LL, RT_SCOPE_LINK) && kernel_made(ip, 0, RT_SCOPE_LINK));
        assert!(!kernel_made(ip, ADDRESS_PROTO, RT_SCOPE_LINK) && !kernel_made("fd00::1".parse().unwrap(), 0, 0));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(mut bytes in prop::collection::vec(any::<u8>(), 0..300), family in 0u8..12, flags: u16) {
            if let Some(first) = bytes.first_mut() {
                *first = family;
            }
            let _any = (link(&bytes), link_gone(&bytes), address(&bytes), nsid(&bytes), error_code(&bytes), kernel_words(flags, &bytes));
        }
    }
}
