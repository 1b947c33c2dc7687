//! Tells when a route of a NIC behind the bridge is gone, or when another one came to its place.
//!
//! A host may have a million routes that change all the time, so this is a socket of its own that is open only while a NIC is attached, and only the
//! places of routes in a journal, and what people give to or take from the port, count. What was lost because too much came at once counts as a change.

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
    watched: Arc<Mutex<BTreeMap<String, Watched>>>,
    listening: Option<Listening>,
}

/// What is watched of one NIC.
#[derive(Default)]
struct Watched {
    /// The index of its port.
    port: u32,
    slots: HashSet<RouteSlot>,
}

impl Watched {
    fn concerns(&self, route: &NicRoute) -> bool {
        self.slots.contains(&route.slot()) || (route.is_given_by_hand() && route.leads_through(self.port))
    }
}

struct Listening {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatch {
    /// Calls `told`, on a thread of its own, when a route that is watched may be gone. Nothing is opened before there is something to watch.
    #[must_use]
    pub fn new(netns: NetnsHandle, told: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { netns, told, watched: Arc::default(), listening: None }
    }

    /// Watches these routes of a NIC, and those that people give to its port or take from it, in the place of what was watched before.
    ///
    /// # Errors
    /// When the kernel cannot be listened to; it is tried again the next time.
    pub fn watch<'r>(&mut self, nic: &str, port: u32, routes: impl Iterator<Item = &'r NicRoute>) -> Result<(), KernelError> {
        let slots = routes.map(NicRoute::slot).collect();
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(nic.to_owned(), Watched { port, slots });
        if self.listening.as_ref().is_none_or(Listening::has_ended) {
            let listening = self.listen().map_err(|failure| failure.attempting("listen to changes of routes"))?;
            self.listening = Some(listening);
        }
        Ok(())
    }

    /// Watches a NIC no more.
    pub fn forget(&mut self, nic: &str) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.remove(nic);
        let idle = watched.is_empty();
        drop(watched);
        if idle {
            self.listening = None;
        }
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
        let (stopped, watched, told) = (Arc::clone(&stop), Arc::clone(&self.watched), Arc::clone(&self.told));
        let work = move || follow(&socket, &stopped, &watched, &*told);
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

fn follow(socket: &Socket, stop: &EventFd, watched: &Mutex<BTreeMap<String, Watched>>, told: &dyn Fn()) {
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
                let watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                if is_told(&buffer[..length], |route| watched.values().any(|of_nic| of_nic.concerns(route))) {
                    drop(watched);
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

/// Whether something in this datagram is a route that is watched, or may have cost one its place.
fn is_told(datagram: &[u8], concerns: impl Fn(&NicRoute) -> bool) -> bool {
    batch::messages(datagram).any(|heard| {
        // One that is new in that place replaced it, or was joined to it.
        if [RTM_NEWROUTE, RTM_DELROUTE].contains(&heard.message_type()) {
            let route = message(heard.payload(), ROUTE_HEADER).and_then(NicRoute::new);
            return route.is_some_and(|route| concerns(&route));
        }
        // The routes that used it are gone without a word.
        heard.message_type() == RTM_DELNEXTHOP
    })
}
