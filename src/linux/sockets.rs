//! The namespaces that are known, and the sockets that are open in them.
//!
//! A socket keeps its namespace alive, with our links answering in it, after the owner is gone. So sockets are opened on demand, proved
//! by the cookie each time, and closed when they were idle, when the namespace is detached, and when too many are open.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::linux::counters::Counters;
use crate::linux::nsids::NsIds;
use crate::linux::socket::{Failure, RouteSocket};
use crate::model::{NetnsId, ObservedLink};
use crate::namespace::NetnsHandle;

/// A socket that was not used for this long is closed.
const IDLE: Duration = Duration::from_secs(2);
/// Most sockets open at a time, well below the usual limit of 1024 descriptors.
const MOST_OPEN: usize = 512;

/// All attached namespaces.
pub(super) struct Sockets {
    known: HashMap<NetnsId, NetnsHandle>,
    /// Attached, and not entered yet.
    unmet: Vec<NetnsId>,
    open: HashMap<NetnsId, Open>,
    ids: Arc<NsIds>,
    counters: Arc<Counters>,
}

struct Open {
    socket: RouteSocket,
    used: Instant,
}

impl Sockets {
    pub(super) fn new(ids: Arc<NsIds>, counters: Arc<Counters>) -> Self {
        Self { known: HashMap::new(), unmet: Vec::new(), open: HashMap::new(), ids, counters }
    }

    /// Makes a namespace known, or changes how it is reached.
    pub(super) fn attach(&mut self, netns: NetnsHandle) {
        let id = netns.id;
        if self.known.insert(id, netns).is_none() {
            self.unmet.push(id);
        }
    }

    /// Enters every namespace that was attached since, once, so that each has an id by which others refer to it.
    pub(super) fn meet_all(&mut self) {
        for netns in std::mem::take(&mut self.unmet) {
            // Whoever cannot be entered is found out by whoever needs it.
            let _met = self.get(netns);
        }
    }

    /// Forgets a namespace and closes its socket.
    pub(super) fn detach(&mut self, netns: NetnsId) {
        self.known.remove(&netns);
        self.unmet.retain(|unmet| *unmet != netns);
        self.open.remove(&netns);
        self.ids.forget(netns);
    }

    /// How a namespace is reached.
    pub(super) fn handle(&self, netns: NetnsId) -> Option<&NetnsHandle> {
        self.known.get(&netns)
    }

    /// How people know a namespace (`lsns`, `ip netns`): by its inode.
    pub(super) fn inode(&self, netns: NetnsId) -> u64 {
        self.handle(netns).map_or(0, |handle| handle.inode)
    }

    /// The socket in a namespace, opened when there is none.
    ///
    /// # Errors
    /// `ENOENT` for a namespace that is not attached; else as [`RouteSocket::open`].
    pub(super) fn get(&mut self, netns: NetnsId) -> Result<&mut RouteSocket, Failure> {
        let handle = self.known.get(&netns).ok_or_else(|| Failure::new(Errno::ENOENT, "the namespace is not attached"))?;
        let open = self.open.remove(&netns).filter(|open| !open.socket.is_broken());
        let socket = match open {
            Some(open) => open.socket,
            None => RouteSocket::open(handle, &self.counters)?,
        };
        // Before the first reading, so that no change after it goes unseen.
        self.ids.learn(handle, &socket)?;
        self.make_room();
        Ok(&mut self.open.entry(netns).insert_entry(Open { socket, used: Instant::now() }).into_mut().socket)
    }

    /// Fills in where the other ends of veths are.
    pub(super) fn find_peers<'a>(&self, netns: NetnsId, links: impl IntoIterator<Item = &'a mut ObservedLink>) {
        let mut may_ask = true;
        for peer in links.into_iter().filter_map(|link| link.peer.as_mut()) {
            peer.netns = peer.nsid.and_then(|nsid| self.ids.seen_from(netns, nsid, &mut may_ask));
        }
    }

    /// Closes the sockets that were not used for a while.
    pub(super) fn close_idle(&mut self) {
        let now = Instant::now();
        self.open.retain(|_, open| now.duration_since(open.used) < IDLE);
    }

    fn make_room(&mut self) {
        if self.open.len() < MOST_OPEN {
            return;
        }
        let oldest = self.open.iter().min_by_key(|(_, open)| open.used).map(|(netns, _)| *netns);
        if let Some(netns) = oldest {
            self.open.remove(&netns);
        }
    }
}
