//! Tells when a route of a NIC behind the bridge is gone, or when another one came to its place.
//!
//! A host may have a million routes that change all the time, so this is a socket of its own that is open only while a NIC is attached, and only the
//! places of routes in a journal count. What was lost because too much came at once counts as a change.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc::MSG_DONTWAIT;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::linux::KernelError;
use crate::linux::batch;
use crate::linux::netns_thread::in_netns;
use crate::linux::nic::read::{ROUTE_HEADER, RTM_NEWROUTE, message};
use crate::linux::socket::Failure;
use crate::model::nic::{NicRoute, RouteSlot};
use crate::namespace::NetnsHandle;

const RTM_DELROUTE: u16 = 25;
const RTM_DELNEXTHOP: u16 = 105;
/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`, `RTNLGRP_NEXTHOP`.
const GROUPS: [u32; 3] = [7, 11, 32];
/// Larger than any notification (bytes).
const READ_SIZE: usize = 128 * 1024;

/// Listens for routes of NICs; dropping it ends its thread.
pub struct RouteWatch {
    netns: NetnsHandle,
    told: Arc<dyn Fn() + Send + Sync>,
    slots: Arc<Mutex<BTreeMap<String, HashSet<RouteSlot>>>>,
    listening: Option<Listening>,
}

struct Listening {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatch {
    /// Calls `told`, on a thread of its own, when a route that is watched may be gone. Nothing is opened before there is something to watch.
    #[must_use]
    pub fn new(netns: NetnsHandle, told: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { netns, told, slots: Arc::default(), listening: None }
    }

    /// Watches these routes of a NIC, in the place of those that were watched before; none: it is not watched any more.
    ///
    /// # Errors
    /// When the kernel cannot be listened to; it is tried again the next time.
    pub fn watch<'r>(&mut self, nic: &str, routes: impl Iterator<Item = &'r NicRoute>) -> Result<(), KernelError> {
        let wanted: HashSet<RouteSlot> = routes.map(NicRoute::slot).collect();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.is_empty() {
            slots.remove(nic);
        } else {
            slots.insert(nic.to_owned(), wanted);
        }
        let idle = slots.is_empty();
        drop(slots);
        if idle {
            self.listening = None;
        } else if self.listening.as_ref().is_none_or(Listening::has_ended) {
            let listening = self.listen().map_err(|failure| failure.attempting("listen to changes of routes"))?;
            self.listening = Some(listening);
        }
        Ok(())
    }

    fn listen(&self) -> Result<Listening, Failure> {
        let file = self.netns.opener.open()?;
        let socket = in_netns(file.as_fd(), || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            for group in GROUPS {
                socket.add_membership(group)?;
            }
            Ok(socket)
        })?;
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(io::Error::from)?);
        let (stopped, slots, told) = (Arc::clone(&stop), Arc::clone(&self.slots), Arc::clone(&self.told));
        let work = move || follow(&socket, &stopped, &slots, &*told);
        let thread = Some(thread::Builder::new().name("route-watch".into()).spawn(work)?);
        Ok(Listening { stop, thread })
    }
}

impl Listening {
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // It can fail only when the counter is full, and then the thread is awake.
        let _told = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn follow(socket: &Socket, stop: &EventFd, slots: &Mutex<BTreeMap<String, HashSet<RouteSlot>>>, told: &dyn Fn()) {
    let mut buffer = vec![0u8; READ_SIZE];
    loop {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) if fds[1].any().unwrap_or(true) => return,
            Ok(_) => {}
        }
        match socket.recv_from(&mut &mut buffer[..], MSG_DONTWAIT) {
            Ok((length, _)) => {
                let slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
                let watched = |slot: &RouteSlot| slots.values().any(|of_nic| of_nic.contains(slot));
                if is_told(&buffer[..length], watched) {
                    drop(slots);
                    told();
                }
            }
            Err(error) if error.raw_os_error() == Some(Errno::EAGAIN as i32) => {}
            // Too much at once: something is lost, nobody knows what.
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => told(),
            Err(error) => {
                tracing::warn!(%error, "changes of routes are not heard any more");
                return;
            }
        }
    }
}

/// Whether something in this datagram may have cost a watched route its place.
fn is_told(datagram: &[u8], watched: impl Fn(&RouteSlot) -> bool) -> bool {
    batch::messages(datagram).any(|heard| {
        // One that is new in that place replaced it, or was joined to it.
        if [RTM_NEWROUTE, RTM_DELROUTE].contains(&heard.message_type()) {
            let route = message(heard.payload(), ROUTE_HEADER).and_then(NicRoute::new);
            return route.is_some_and(|route| watched(&route.slot()));
        }
        // The routes that used it are gone without a word.
        heard.message_type() == RTM_DELNEXTHOP
    })
}
