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
    /// Ids as seen from inside of other namespaces.
    inside: HashMap<NetnsId, HashMap<i32, NetnsId>>,
}

impl NsIds {
    pub(super) fn new(own: NetnsHandle, counters: Arc<Counters>, sink: Arc<dyn LinkSink>) -> Self {
        let inner = Inner { own, counters, socket: None, by_id: HashMap::new(), ids: HashMap::new(), inside: HashMap::new() };
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
            inner.forget_inside(former.id);
            self.sink.link_event(LinkEvent::NetnsGone(former.id));
        }
        Ok(())
    }

    /// Which namespace an id stands for; `None` for those that we do not watch.
    pub(super) fn netns(&self, id: i32) -> Option<NetnsId> {
        self.lock().by_id.get(&id).map(|netns| netns.id)
    }

    /// Which namespace the id `nsid` means inside of the namespace `from`; `None` for those that we do not watch.
    ///
    /// An id that is not known is asked for while `may_ask`, and then no more: many links may lead to namespaces that we do not watch.
    pub(super) fn seen_from(&self, from: NetnsId, nsid: i32, may_ask: &mut bool) -> Option<NetnsId> {
        let mut inner = self.lock();
        if from == inner.own.id {
            return inner.by_id.get(&nsid).map(|netns| netns.id);
        }
        let known = inner.inside.get(&from).and_then(|ids| ids.get(&nsid)).copied();
        if known.is_some() || !std::mem::take(may_ask) {
            return known;
        }
        let ids = inner.list_inside(from).unwrap_or_default();
        let found = ids.get(&nsid).copied();
        inner.inside.insert(from, ids);
        found
    }

    /// Forgets a namespace: its events are ignored from now on.
    pub(super) fn forget(&self, netns: NetnsId) {
        let mut inner = self.lock();
        inner.forget_inside(netns);
        if let Some(id) = inner.ids.remove(&netns) {
            inner.by_id.remove(&id);
        }
    }

    /// The kernel told that an id was taken back.
    pub(super) fn taken_back(&self, id: i32) {
        let mut inner = self.lock();
        let Some(netns) = inner.by_id.get(&id).cloned() else { return };
        let event = match inner.holder(&netns, id) {
            Holder::Nobody => LinkEvent::NetnsGone(netns.id),
            // It got the id after the one that the note is about.
            Holder::Same => return,
            Holder::Other | Holder::Unknown => LinkEvent::Lost(Some(netns.id)),
        };
        self.drop_id(&mut inner, id, event);
    }

    /// After notes were lost: finds the namespaces that ended meanwhile.
    pub(super) fn check_all(&self) {
        let mut inner = self.lock();
        let known: Vec<(i32, NetnsHandle)> = inner.by_id.iter().map(|(id, netns)| (*id, netns.clone())).collect();
        for (id, netns) in known {
            match inner.holder(&netns, id) {
                Holder::Nobody => self.drop_id(&mut inner, id, LinkEvent::NetnsGone(netns.id)),
                Holder::Other => self.drop_id(&mut inner, id, LinkEvent::Lost(Some(netns.id))),
                Holder::Same | Holder::Unknown => {}
            }
        }
    }

    fn drop_id(&self, inner: &mut Inner, id: i32, event: LinkEvent) {
        if let Some(netns) = inner.by_id.remove(&id) {
            inner.ids.remove(&netns.id);
            inner.forget_inside(netns.id);
            self.sink.link_event(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What a panicking holder left is at worst an id too few; `taken_back` asks the kernel anyway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has an id now.
enum Holder {
    Nobody,
    Same,
    Other,
    /// Someone, but the namespace that we mean cannot be reached to compare.
    Unknown,
}

impl Inner {
    fn holder(&mut self, netns: &NetnsHandle, id: i32) -> Holder {
        if self.ask(&encode::probe_nsid(id)).is_err_and(|failure| failure.is(Errno::ENOENT)) {
            return Holder::Nobody;
        }
        let Ok(file) = RouteSocket::open(netns, &self.counters).and_then(|inside| Ok(inside.netns_file()?)) else { return Holder::Unknown };
        match self.ask(&encode::get_nsid(file.as_fd())) {
            Ok(Some(now)) if now == id => Holder::Same,
            Ok(_) => Holder::Other,
            Err(_) => Holder::Unknown,
        }
    }

    /// What one namespace calls the others that we watch, and our own.
    fn list_inside(&mut self, from: NetnsId) -> Result<HashMap<i32, NetnsId>, Failure> {
        let from = *self.ids.get(&from).ok_or_else(|| Failure::new(Errno::ENOENT, "the namespace has no id yet"))?;
        let mut pairs = Vec::new();
        let mut socket = self.take_socket()?;
        let listing = socket.dump(&encode::list_nsids(from), |kind, payload| {
            if kind == decode::RTM_NEWNSID {
                pairs.extend(decode::nsid_pair(payload));
            }
        });
        let own = socket.netns_file();
        if !socket.is_broken() {
            self.socket = Some(socket);
        }
        listing?;
        let mut ids: HashMap<i32, NetnsId> =
            pairs.into_iter().filter_map(|(there, here)| Some((there, self.by_id.get(&here)?.id))).collect();
        if let Some(id) = self.ask(&encode::get_nsid_from(own?.as_fd(), from))? {
            ids.insert(id, self.own.id);
        }
        Ok(ids)
    }

    /// An id of a namespace that ended may mean another one soon.
    fn forget_inside(&mut self, gone: NetnsId) {
        self.inside.remove(&gone);
        self.inside.values_mut().for_each(|ids| ids.retain(|_, netns| *netns != gone));
    }

    fn take_socket(&mut self) -> Result<RouteSocket, Failure> {
        match self.socket.take() {
            Some(socket) => Ok(socket),
            None => RouteSocket::open(&self.own, &self.counters),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Option<i32>, Failure> {
        let mut socket = self.take_socket()?;
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;
    use crate::linux::netns_thread::own_cookie;
    use crate::namespace::OpenNetns;

    struct ByPath(String);

    impl OpenNetns for ByPath {
        fn open(&self) -> io::Result<OwnedFd> {
            Ok(std::fs::File::open(&self.0)?.into())
        }
    }

    /// A namespace that lives until the sender is dropped and the thread has ended.
    #[allow(clippy::disallowed_methods, reason = "on a thread that ends with the namespace")]
    fn netns() -> (NetnsHandle, Sender<()>, thread::JoinHandle<()>) {
        let (end, ended) = channel::<()>();
        let (tell, told) = channel();
        let thread = thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
            tell.send((own_cookie().unwrap(), path)).unwrap();
            let _end = ended.recv();
        });
        let (id, path) = told.recv().unwrap();
        (NetnsHandle { id, inode: 0, own: false, opener: Arc::new(ByPath(path)) }, end, thread)
    }

    struct Tell(Mutex<Sender<LinkEvent>>);

    impl LinkSink for Tell {
        fn link_event(&self, event: LinkEvent) {
            self.0.lock().unwrap().send(event).unwrap();
        }
    }

    fn ids() -> (NsIds, Receiver<LinkEvent>, (Sender<()>, thread::JoinHandle<()>)) {
        let (own, end, thread) = netns();
        let (tell, told) = channel();
        let own = NetnsHandle { own: true, ..own };
        (NsIds::new(own, Arc::default(), Arc::new(Tell(Mutex::new(tell)))), told, (end, thread))
    }

    #[test]
    fn a_late_note_about_a_former_owner_takes_nothing_away() {
        let (ids, told, _own) = ids();
        let (red, end, thread) = netns();
        let inside = RouteSocket::open(&red, &Arc::default()).unwrap();
        ids.learn(&red, &inside).unwrap();
        assert_eq!(ids.netns(0), Some(red.id));
        // The id is red's, who is alive: the note must be about someone before.
        ids.taken_back(0);
        ids.taken_back(5);
        assert_eq!((ids.netns(0), told.try_recv().ok()), (Some(red.id), None));
        drop((inside, end));
        thread.join().unwrap();
        // Namespaces end a moment after their last holder; until then nothing is concluded.
        let event = loop {
            ids.check_all();
            if let Ok(event) = told.try_recv() {
                break event;
            }
            thread::yield_now();
        };
        assert_eq!((event, ids.netns(0)), (LinkEvent::NetnsGone(red.id), None));
    }

    #[test]
    fn an_id_that_has_a_new_owner_tells_of_the_end_of_the_former() {
        let (ids, told, _own) = ids();
        let (red, end, thread) = netns();
        let inside = RouteSocket::open(&red, &Arc::default()).unwrap();
        ids.learn(&red, &inside).unwrap();
        drop((inside, end));
        thread.join().unwrap();
        let blue = loop {
            let (blue, end, thread) = netns();
            let inside = RouteSocket::open(&blue, &Arc::default()).unwrap();
            ids.learn(&blue, &inside).unwrap();
            if ids.netns(0) == Some(blue.id) {
                break (blue, end, thread);
            }
            // Red was not quite gone yet, so this one got another id.
            ids.forget(blue.id);
            drop((inside, end));
            thread.join().unwrap();
        };
        assert_eq!(told.try_recv().ok(), Some(LinkEvent::NetnsGone(red.id)));
        assert_eq!(ids.netns(0), Some(blue.0.id));
    }
}
