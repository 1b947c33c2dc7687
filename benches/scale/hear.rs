//! Listens to the kernel inside the namespaces, with eyes of its own, for the moment in which something became true.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use netlink_sys::Socket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bed::LIMIT;
use crate::netlink::{
    IFF_LOWER_UP, IFF_RUNNING, IFLA_IFNAME, IFLA_MTU, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, attributes, messages, number, read_now,
    socket, text,
};
use crate::support::Host;
use crate::work::netns_name;

/// `RTNLGRP_LINK`.
pub const LINKS: u32 = 1;
/// `RTNLGRP_IPV4_IFADDR`.
pub const ADDRESSES: u32 = 5;

/// A link: the place of its namespace and its index there.
pub type Id = (usize, u32);

/// What the kernel told of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is like this now.
    Link { name: String, mtu: u32, carrier: bool },
    /// It is gone.
    Gone,
    /// It has an IPv4 address.
    Address,
}

/// A thread that listens until it is dropped.
pub struct Ears {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ears {
    /// Hears these groups in the first so many namespaces of a host.
    pub fn open(host: &Host, spaces: usize, groups: &[u32], mut tell: impl FnMut(Instant, Id, News) + Send + 'static) -> Self {
        let sockets: Vec<Socket> = (0..spaces).map(|place| host.inside(&netns_name(place), || socket(groups))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut buffer = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let mut fds: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
                poll(&mut fds, PollTimeout::from(50_u8)).unwrap();
                let ready: Vec<usize> = (0..fds.len()).filter(|place| fds[*place].any() == Some(true)).collect();
                for place in ready {
                    while read_now(&sockets[place], &mut buffer) {
                        let at = Instant::now();
                        for (index, news) in messages(&buffer).filter_map(|(kind, _, _, payload)| read(kind, payload)) {
                            tell(at, (place, index), news);
                        }
                    }
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn read(kind: u16, payload: &[u8]) -> Option<(u32, News)> {
    match kind {
        RTM_NEWADDR => Some((number(&payload[4..]), News::Address)),
        RTM_DELLINK => Some((number(&payload[4..]), News::Gone)),
        RTM_NEWLINK => {
            let flags = number(&payload[8..]);
            let (mut name, mut mtu) = (String::new(), 0);
            for (kind, value) in attributes(&payload[16..]) {
                match kind {
                    IFLA_IFNAME => text(value).clone_into(&mut name),
                    IFLA_MTU => mtu = number(value),
                    _ => {}
                }
            }
            Some((number(&payload[4..]), News::Link { name, mtu, carrier: flags & IFF_RUNNING != 0 && flags & IFF_LOWER_UP != 0 }))
        }
        _ => None,
    }
}

/// Waits until something is told of so many links.
pub struct Counted {
    _ears: Ears,
    heard: Receiver<(Instant, Id, News)>,
}

impl Counted {
    /// Listens from now on.
    pub fn open(host: &Host, spaces: usize, group: u32) -> Self {
        let (tell, heard) = channel();
        let ears = Ears::open(host, spaces, &[group], move |at, id, news| drop(tell.send((at, id, news))));
        Self { _ears: ears, heard }
    }

    /// When this was told of the last of so many links.
    pub fn until(&self, what: &str, count: usize, wanted: impl Fn(&News) -> bool) -> Instant {
        let end = Instant::now() + LIMIT;
        let (mut links, mut last) = (HashSet::new(), Instant::now());
        while links.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.heard.recv_timeout(left);
            let (at, id, news) = heard.unwrap_or_else(|_| panic!("{what}: {} of {count}", links.len()));
            if wanted(&news) && links.insert(id) {
                last = at;
            }
        }
        last
    }
}

/// Notices when links can be used: carrier and an address.
#[derive(Default)]
pub struct Usable(HashMap<Id, (String, bool, bool, bool)>);

impl Usable {
    /// The name of a link that can be used from this piece of news on.
    pub fn hear(&mut self, id: Id, news: News) -> Option<String> {
        if news == News::Gone {
            self.0.remove(&id);
            return None;
        }
        let (known, carrier, address, told) = self.0.entry(id).or_default();
        match news {
            News::Link { name, carrier: now, .. } => (*known, *carrier) = (name, now),
            _ => *address = true,
        }
        let ready = *carrier && *address && !std::mem::replace(told, *carrier && *address);
        ready.then(|| known.clone())
    }
}
