//! Listens to the changes of links and addresses in all namespaces, from outside of them.
//!
//! One socket in the agent's own namespace hears everything that happens in namespaces which have an id there, without keeping any of them
//! alive. What the kernel tells is handed on as a hint; losing some is told as well.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, NetlinkAddr, recvmsg, setsockopt, sockopt};

use crate::linux::netns_thread::in_netns;
use crate::linux::nsids::NsIds;
use crate::linux::socket::Failure;
use crate::linux::{LinkEvent, LinkSink, batch, decode, sys};
use crate::model::{LinkId, NetnsId};
use crate::namespace::NetnsHandle;

/// Holds some 1,800 changes (bytes); the default loses changes when 100 links appear at once.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;
/// Larger than any notification: its longest attribute has 64 KiB (bytes).
const READ_SIZE: usize = 128 * 1024;

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_NSID`.
const GROUPS: [u32; 4] = [1, 5, 9, 28];

const SOL_NETLINK: i32 = 270;
/// Type of the control message that names the namespace of a notification.
const NETLINK_LISTEN_ALL_NSID: i32 = 8;

/// The listening thread; dropping it ends the thread.
pub(super) struct Monitor {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to listen.
    ///
    /// # Errors
    /// What the kernel says; `EPERM` without `CAP_NET_BROADCAST`.
    pub(super) fn start(own: &NetnsHandle, ids: Arc<NsIds>, sink: Arc<dyn LinkSink>) -> Result<Self, Failure> {
        let file = own.opener.open()?;
        let socket = in_netns(file.as_fd(), || Ok(listening_socket()))??;
        if sys::netns_of(&socket)? != own.id {
            return Err(Failure::new(Errno::ESTALE, "the agent's own namespace is another one now"));
        }
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(io::Error::from)?);
        let listener = Listener { socket, stop: Arc::clone(&stop), own: own.id, ids, sink };
        let thread = thread::Builder::new().name("link-monitor".into()).spawn(move || listener.listen())?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It can fail only when the counter is full, and then the thread is awake.
        let _told = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn listening_socket() -> Result<Socket, Failure> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.set_listen_all_namespaces(true).map_err(|error| Failure {
        text: "the capability CAP_NET_BROADCAST is needed to see changes in other namespaces".to_owned(),
        ..Failure::from(error)
    })?;
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).map_err(|errno| Failure {
        text: "the capability CAP_NET_ADMIN is needed for a receive buffer that loses nothing".to_owned(),
        ..Failure::from(io::Error::from(errno))
    })?;
    socket.bind(&SocketAddr::new(0, 0))?;
    for group in GROUPS {
        socket.add_membership(group)?;
    }
    Ok(socket)
}

struct Listener {
    socket: Socket,
    stop: Arc<EventFd>,
    own: NetnsId,
    ids: Arc<NsIds>,
    sink: Arc<dyn LinkSink>,
}

impl Listener {
    fn listen(&self) {
        let mut buffer = vec![0u8; READ_SIZE];
        // After a loss the kernel goes on dropping, silently, until everything was read. So the loss is told once more then.
        let mut behind = false;
        while self.wait(behind) {
            match receive(&self.socket, &mut buffer) {
                Ok(Some((length, nsid))) => self.tell_all(&buffer[..length], nsid),
                Ok(None) if behind => {
                    self.ids.check_all();
                    self.tell_loss();
                    behind = false;
                }
                Ok(None) => {}
                // Too many changes at once (ENOBUFS), or something that cannot be read: some are lost, nobody knows which.
                Err(_) => {
                    self.tell_loss();
                    behind = true;
                }
            }
        }
    }

    /// Waits for something to read, or only looks; false when it is time to end.
    fn wait(&self, only_look: bool) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN), PollFd::new(self.stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, if only_look { PollTimeout::ZERO } else { PollTimeout::NONE }) {
            Ok(_) => !fds[1].any().unwrap_or(true),
            Err(errno) => errno == Errno::EINTR,
        }
    }

    fn tell_loss(&self) {
        self.sink.link_event(LinkEvent::Lost(None));
    }

    fn tell_all(&self, datagram: &[u8], nsid: Option<i32>) {
        for message in batch::messages(datagram) {
            if message.message_type() == decode::RTM_DELNSID {
                // With a foreign namespace's id it is about ids as seen from there.
                if let (None, Some(id)) = (nsid, decode::nsid(message.payload())) {
                    self.ids.taken_back(id);
                }
                continue;
            }
            let netns = match nsid {
                None => Some(self.own),
                Some(id) => self.ids.netns(id),
            };
            if let Some(event) = netns.and_then(|netns| event(netns, &message)) {
                self.sink.link_event(event);
            }
        }
    }
}

fn event(netns: NetnsId, message: &NetlinkBuffer<&[u8]>) -> Option<LinkEvent> {
    let payload = message.payload();
    match message.message_type() {
        decode::RTM_NEWLINK => decode::link(payload).map(|link| LinkEvent::Link(netns, Box::new(link))),
        decode::RTM_DELLINK => decode::link_gone(payload).map(|ifindex| LinkEvent::LinkGone(LinkId { netns, ifindex })),
        decode::RTM_NEWADDR => decode::address(payload).map(|(ifindex, address)| LinkEvent::Address(LinkId { netns, ifindex }, address)),
        decode::RTM_DELADDR => decode::address(payload).map(|(ifindex, a)| LinkEvent::AddressGone(LinkId { netns, ifindex }, a.address)),
        _ => None,
    }
}

/// A datagram to be passed over.
const NOTHING_SAID: Option<(usize, Option<i32>)> = Some((0, None));

/// Reads one datagram: its length and the id of the namespace that it is about (none: the agent's own). `None` when everything was read.
fn receive(socket: &Socket, buffer: &mut [u8]) -> nix::Result<Option<(usize, Option<i32>)>> {
    let mut control = nix::cmsg_space!(i32, [i32; 4]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = match recvmsg::<NetlinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
        Ok(message) => message,
        Err(Errno::EAGAIN) => return Ok(None),
        Err(Errno::EINTR) => return Ok(NOTHING_SAID),
        Err(errno) => return Err(errno),
    };
    if message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(Errno::EMSGSIZE);
    }
    // Only the kernel may speak: whoever is root in a namespace can send to its groups.
    if message.address.is_some_and(|sender| sender.pid() != 0) {
        return Ok(NOTHING_SAID);
    }
    let nsid = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::Unknown(raw)
            if raw.cmsg_header.cmsg_level == SOL_NETLINK && raw.cmsg_header.cmsg_type == NETLINK_LISTEN_ALL_NSID =>
        {
            raw.data_bytes.get(..4).and_then(|id| id.try_into().ok()).map(i32::from_ne_bytes)
        }
        _ => None,
    });
    Ok(Some((message.bytes, nsid)))
}
