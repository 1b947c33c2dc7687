//! Listens to the kernel inside a namespace, with eyes of its own, for the moment in which a link can be used.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc::UnboundedSender;

/// `RTNLGRP_LINK` and `RTNLGRP_IPV4_IFADDR`.
const GROUPS: [u32; 2] = [1, 5];

#[derive(Default)]
struct Link {
    name: String,
    running: bool,
    address: bool,
    told: bool,
}

/// Tells the name of each link of the calling thread's namespace as soon as it has carrier and an IPv4 address, until `stop`.
pub fn listen(usable: &UnboundedSender<(Instant, String)>, stop: &AtomicBool) {
    let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
    socket.bind(&SocketAddr::new(0, 0)).unwrap();
    GROUPS.iter().for_each(|group| socket.add_membership(*group).unwrap());
    let mut links: HashMap<u32, Link> = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(100_u8)).unwrap() == 0 {
            continue;
        }
        let (datagram, _) = socket.recv_from_full().unwrap();
        let at = Instant::now();
        let mut rest = &datagram[..];
        while let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
            let length = (message.header.length as usize).next_multiple_of(4);
            if let NetlinkPayload::InnerMessage(inner) = message.payload
                && let Some(link) = note(&mut links, inner)
                && link.running
                && link.address
                && !std::mem::replace(&mut link.told, true)
            {
                let _ = usable.send((at, link.name.clone()));
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn note(links: &mut HashMap<u32, Link>, message: RouteNetlinkMessage) -> Option<&mut Link> {
    match message {
        RouteNetlinkMessage::NewLink(message) => {
            let link = links.entry(message.header.index).or_default();
            link.running = message.header.flags.contains(LinkFlags::Running | LinkFlags::LowerUp);
            for attribute in message.attributes {
                if let LinkAttribute::IfName(name) = attribute {
                    link.name = name;
                }
            }
            Some(link)
        }
        RouteNetlinkMessage::NewAddress(message) => {
            let link = links.entry(message.header.index).or_default();
            link.address = true;
            Some(link)
        }
        RouteNetlinkMessage::DelLink(message) => {
            links.remove(&message.header.index);
            None
        }
        _ => None,
    }
}
