//! Which namespace the kernel means by an id in a notification.
//!
//! The monitor's socket names foreign namespaces by small ids of the agent's own namespace. An id is given out again at once when its namespace
//! ends, and the note of that may arrive after the note of its new use. So nothing is concluded from a note alone: the kernel is asked.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::linux::batch::Request;
use crate::linux::counters::Counters;
use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::{LinkEvent, LinkSink, decode, encode};
use crate::model::NetnsId;
use crate::namespace::NetnsHandle;

/// The ids of the namespaces that we watch, shared by the executor (which learns them) and the monitor (which reads them).
pub(super) struct NsIds {
    sink: Arc<dyn LinkSink>,
    inner: Mutex<Inner>,
}

struct Inner {
    own: NetnsHandle,
    counters: Arc<Counters>,
    socket: Option<RouteSocket>,
    by_id: HashMap<i32, NetnsHandle>,
    ids: HashMap<NetnsId, i32>,
}

impl NsIds {
    pub(super) fn new(own: NetnsHandle, counters: Arc<Counters>, sink: Arc<dyn LinkSink>) -> Self {
        let inner = Inner { own, counters, socket: None, by_id: HashMap::new(), ids: HashMap::new() };
        Self { sink, inner: Mutex::new(inner) }
    }

    /// Makes sure that the namespace behind this socket has an id and that we know it, so that the monitor sees its links from now on.
    pub(super) fn learn(&self, netns: &NetnsHandle, inside: &RouteSocket) -> Result<(), Failure> {
        let mut inner = self.lock();
        if netns.own || inner.ids.contains_key(&netns.id) {
            return Ok(());
        }
        let file = inside.netns_file()?;
        match inner.ask(&encode::number_netns(file.as_fd())) {
            Err(failure) if !failure.is(Errno::EEXIST) => return Err(failure),
            _ => {}
        }
        let id = inner.ask(&encode::get_nsid(file.as_fd()))?.ok_or_else(|| Failure::new(Errno::ENOENT, "the namespace got no id"))?;
        inner.ids.insert(netns.id, id);
        if let Some(former) = inner.by_id.insert(id, netns.clone()) {
            // The id could be given out again only because its former namespace has ended.
            inner.ids.remove(&former.id);
            self.sink.link_event(LinkEvent::NetnsGone(former.id));
        }
        Ok(())
    }

    /// Which namespace an id stands for; `None` for those that we do not watch.
    pub(super) fn netns(&self, id: i32) -> Option<NetnsId> {
        self.lock().by_id.get(&id).map(|netns| netns.id)
    }

    /// Forgets a namespace: its events are ignored from now on.
    pub(super) fn forget(&self, netns: NetnsId) {
        let mut inner = self.lock();
        if let Some(id) = inner.ids.remove(&netns) {
            inner.by_id.remove(&id);
        }
    }

    /// The kernel told that an id was taken back.
    pub(super) fn taken_back(&self, id: i32) {
        let mut inner = self.lock();
        let Some(netns) = inner.by_id.get(&id).cloned() else { return };
        let event = match inner.ask(&encode::probe_nsid(id)) {
            Err(failure) if failure.is(Errno::ENOENT) => LinkEvent::NetnsGone(netns.id),
            // In use again: perhaps by this very namespace, which got the id after the one that the note is about.
            _ if inner.still_has(&netns, id) => return,
            _ => LinkEvent::Lost(Some(netns.id)),
        };
        inner.by_id.remove(&id);
        inner.ids.remove(&netns.id);
        self.sink.link_event(event);
    }

    /// After events were lost: tells of the namespaces that ended meanwhile.
    pub(super) fn check_all(&self) {
        let ids: Vec<i32> = self.lock().by_id.keys().copied().collect();
        for id in ids {
            self.taken_back(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panicking holder left is at worst an id too few; `taken_back` asks the kernel anyway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn still_has(&mut self, netns: &NetnsHandle, id: i32) -> bool {
        let Ok(file) = RouteSocket::open(netns, &self.counters).and_then(|inside| Ok(inside.netns_file()?)) else { return false };
        self.ask(&encode::get_nsid(file.as_fd())) == Ok(Some(id))
    }

    fn ask(&mut self, request: &Request) -> Result<Option<i32>, Failure> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => RouteSocket::open(&self.own, &self.counters)?,
        };
        let mut id = None;
        let answer = socket.perform(std::slice::from_ref(request), |_, kind, payload| {
            if kind == decode::RTM_NEWNSID {
                id = decode::nsid(payload);
            }
        });
        if !socket.is_broken() {
            self.socket = Some(socket);
        }
        answer.into_iter().collect::<Result<Vec<()>, Failure>>().map(|_| id)
    }
}
