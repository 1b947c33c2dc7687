//! Requests to the kernel. Links are addressed by index, never by name; names appear only where a link gets one.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkExtentMask};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::linux::batch::{Effect, Request};
use crate::linux::{LinkChange, NewAddress, NewLink};
use crate::model::{IfIndex, InterfaceAddress};

const IFLA_IFALIAS: u16 = 20;

/// Makes a veth pair. To be sent in the namespace of `a`; `peer_netns` is that of `b`, where it is another one.
///
/// Sent there, because names are looked up in the sender's namespace (a link of the same name in the agent's own would be in the way), and
/// because only there the kernel echoes the finished link. One queue each: otherwise every end costs an RCU grace period.
///
/// With an index for `a`, `EEXIST` may be about that as well as about a name.
pub(super) fn create_veth(
    a: &NewLink,
    b: &NewLink,
    group: u32,
    a_up: bool,
    peer_netns: Option<BorrowedFd<'_>>,
    index: Option<IfIndex>,
) -> Request {
    let mut peer = new_link(LinkMessageBuilder::<LinkUnspec>::new(), b, group);
    if let Some(netns) = peer_netns {
        peer = peer.setns_by_fd(netns.as_raw_fd());
    }
    // Not `LinkVeth::new`: its peer has a name and nothing else.
    let kind = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth);
    let mut link = new_link(kind, a, group).set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    if a_up {
        link = link.up();
    }
    let mut link = link.build();
    link.header.index = index.map_or(0, IfIndex::get);
    Request::write(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL | NLM_F_ECHO)
}

fn new_link<T>(builder: LinkMessageBuilder<T>, link: &NewLink, group: u32) -> LinkMessageBuilder<T> {
    let named = builder.name(link.name.as_str()).mtu(link.mtu).link_group(group);
    let single = named.append_extra_attribute(LinkAttribute::NumTxQueues(1)).append_extra_attribute(LinkAttribute::NumRxQueues(1));
    match link.mac {
        Some(mac) => single.address(mac.octets().to_vec()),
        None => single,
    }
}

/// Changes a link; `None` when nothing is to be changed.
pub(super) fn set_link(ifindex: IfIndex, change: &LinkChange) -> Option<Request> {
    // Not RTM_NEWLINK: without a link of this index that one could mean "change the whole group".
    let link = || Request::write(RouteNetlinkMessage::SetLink(changed(ifindex, change).build()), 0);
    (*change != LinkChange::default()).then(link)
}

/// Moves a link to another namespace, where it is changed.
pub(super) fn move_link(ifindex: IfIndex, change: &LinkChange, to: BorrowedFd<'_>) -> Request {
    Request::write(RouteNetlinkMessage::SetLink(changed(ifindex, change).setns_by_fd(to.as_raw_fd()).build()), 0)
}

fn changed(ifindex: IfIndex, change: &LinkChange) -> LinkMessageBuilder<LinkUnspec> {
    let mut link = of_index(ifindex);
    if let Some(up) = change.up {
        link = if up { link.up() } else { link.down() };
    }
    if let Some(name) = &change.name {
        link = link.name(name.as_str());
    }
    if let Some(mac) = change.mac {
        link = link.address(mac.octets().to_vec());
    }
    if let Some(mtu) = change.mtu {
        link = link.mtu(mtu);
    }
    if let Some(group) = change.group {
        link = link.link_group(group);
    }
    if let Some(alias) = &change.alias {
        // Without the closing NUL that the ready-made attribute has: it would count against the 255 bytes, and clear nothing when empty.
        let bytes = DefaultNla::new(IFLA_IFALIAS, alias.clone().into_bytes());
        link = link.append_extra_attribute(LinkAttribute::Other(bytes));
    }
    link
}

/// Reads one link, without its statistics.
pub(super) fn get_link(ifindex: IfIndex) -> Request {
    read_link(of_index(ifindex))
}

/// Reads one link by name.
pub(super) fn get_link_by_name(name: &str) -> Request {
    read_link(LinkUnspec::new_with_name(name))
}

/// Lists all links, without their statistics.
pub(super) fn list_links() -> Request {
    read_link(LinkMessageBuilder::<LinkUnspec>::new())
}

fn read_link(which: LinkMessageBuilder<LinkUnspec>) -> Request {
    let without_statistics = LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]);
    Request::read(RouteNetlinkMessage::GetLink(which.append_extra_attribute(without_statistics).build()))
}

/// Lists the addresses of both families, of one link or of all.
pub(super) fn list_addresses(ifindex: Option<IfIndex>) -> Request {
    let mut message = AddressMessage::default();
    message.header.index = ifindex.map_or(0, IfIndex::get);
    Request::read(RouteNetlinkMessage::GetAddress(message))
}

/// Deletes all links of a group in the socket's namespace. The caller makes sure that it is the group of doomed links.
pub(super) fn delete_group(group: u32) -> Request {
    Request::write(RouteNetlinkMessage::DelLink(LinkMessageBuilder::<LinkUnspec>::new().link_group(group).build()), 0)
}

/// Deletes one link.
pub(super) fn delete_link(ifindex: IfIndex) -> Request {
    Request::write(RouteNetlinkMessage::DelLink(of_index(ifindex).build()), 0)
}

/// Adds an address, or renews the one that is there.
pub(super) fn add_address(ifindex: IfIndex, new: &NewAddress) -> Request {
    let mut message = address(ifindex, new.address);
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(new.proto)));
    if new.nodad && new.address.is_ipv6() {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    if let Some(restore) = &new.restore {
        message.header.scope = restore.scope.into();
        message.attributes.extend(restore.broadcast.map(AddressAttribute::Broadcast));
        message.attributes.extend(restore.label.as_ref().map(|label| AddressAttribute::Label(label.to_string())));
    }
    Request::write(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Removes an address.
pub(super) fn remove_address(ifindex: IfIndex, gone: InterfaceAddress) -> Request {
    Request::write(RouteNetlinkMessage::DelAddress(address(ifindex, gone)), 0)
}

/// Gives a namespace an id, as seen from the socket's own.
pub(super) fn number_netns(netns: BorrowedFd<'_>) -> Request {
    const ANY: i32 = -1;
    let message = nsid_message(vec![fd_attribute(netns), NsidAttribute::Id(ANY)]);
    Request { message: RouteNetlinkMessage::NewNsId(message).into(), flags: 0, effect: Effect::Numbering }
}

/// Asks for the id of a namespace.
pub(super) fn get_nsid(netns: BorrowedFd<'_>) -> Request {
    let message = nsid_message(vec![fd_attribute(netns)]);
    Request { message: RouteNetlinkMessage::GetNsId(message).into(), flags: 0, effect: Effect::Numbering }
}

/// Asks whether an id is given to any namespace (`ENOENT` when not).
pub(super) fn probe_nsid(nsid: i32) -> Request {
    let message = nsid_message(vec![NsidAttribute::Id(nsid)]);
    Request { message: RouteNetlinkMessage::GetNsId(message).into(), flags: 0, effect: Effect::Numbering }
}

/// Asks for the id of a namespace as seen from the one that has the id `from` here.
pub(super) fn get_nsid_from(netns: BorrowedFd<'_>, from: i32) -> Request {
    let message = nsid_message(vec![fd_attribute(netns), NsidAttribute::TargetNsid(from)]);
    Request { message: RouteNetlinkMessage::GetNsId(message).into(), flags: 0, effect: Effect::Numbering }
}

/// Lists the ids that the namespace with the id `from` here knows.
pub(super) fn list_nsids(from: i32) -> Request {
    let message = nsid_message(vec![NsidAttribute::TargetNsid(from)]);
    Request { message: RouteNetlinkMessage::GetNsId(message).into(), flags: 0, effect: Effect::Numbering }
}

fn nsid_message(attributes: Vec<NsidAttribute>) -> NsidMessage {
    let mut message = NsidMessage::default();
    message.attributes = attributes;
    message
}

fn fd_attribute(netns: BorrowedFd<'_>) -> NsidAttribute {
    NsidAttribute::Fd(netns.as_raw_fd().unsigned_abs())
}

fn of_index(ifindex: IfIndex) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_index(ifindex.get())
}

/// Not `AddressMessageBuilder`: that one gives every IPv4 address a broadcast address, which nobody wished.
fn address(ifindex: IfIndex, address: InterfaceAddress) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    message.header.prefix_len = address.prefix();
    message.header.index = ifindex.get();
    let ip: IpAddr = address.ip();
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message
}

/// An attribute; the next one begins at a multiple of four.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
