//! Deletes links without keeping anyone waiting.
//!
//! A deletion waits about 20 ms for the kernel's own clean-up, however many links it is about. So links are first put into the group of the
//! doomed, and a few threads delete by that group, namespace by namespace. The kernel holds its lock for the whole group: hence at most
//! [`MOST_AT_ONCE`] links of a namespace are in it at a time, the others wait and are looked at again when it is their turn.
//! Nothing is deleted by name, and by index only where deletion by group is refused (a stranger put a link into our group that cannot be deleted).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;

use crate::linux::counters::Counters;
use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::{Done, ExpectedMark, LinkChange, LinkEvent, LinkSink, encode, read};
use crate::model::{IfIndex, LinkId, NetnsId, ObservedLink};
use crate::namespace::NetnsHandle;

/// Threads that delete: their waiting overlaps.
const THREADS: usize = 4;
/// Most links of a namespace that one request deletes: 32 hold the kernel's lock for some 8 ms.
const MOST_AT_ONCE: usize = 32;

/// A link that is to be deleted.
#[derive(Clone, Debug)]
pub(super) struct Doomed {
    pub(super) link: LinkId,
    pub(super) doomed_group: u32,
    pub(super) expected: ExpectedMark,
}

/// The threads and what they have to do.
pub(super) struct Reaper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    counters: Arc<Counters>,
    sink: Arc<dyn LinkSink>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queues: HashMap<Queued, Queue>,
    ready: VecDeque<Queued>,
    stop: bool,
}

/// One namespace and the group of one agent in it.
type Queued = (NetnsId, u32);

struct Queue {
    netns: NetnsHandle,
    /// In the doomed group already.
    marked: Vec<Doomed>,
    /// Not yet.
    waiting: VecDeque<Doomed>,
    /// In the hands of a thread.
    working: Vec<Doomed>,
    busy: bool,
}

impl Queue {
    fn all(&self) -> impl Iterator<Item = &Doomed> {
        self.marked.iter().chain(&self.waiting).chain(&self.working)
    }

    /// How many more links may be marked at once.
    fn room(&self) -> usize {
        if self.waiting.is_empty() { MOST_AT_ONCE.saturating_sub(self.marked.len() + self.working.len()) } else { 0 }
    }
}

impl Reaper {
    pub(super) fn start(counters: Arc<Counters>, sink: Arc<dyn LinkSink>) -> Result<Self, Failure> {
        let shared = Arc::new(Shared { counters, sink, state: Mutex::default(), wake: Condvar::new() });
        let mut reaper = Self { shared, threads: Vec::new() };
        for n in 0..THREADS {
            let shared = Arc::clone(&reaper.shared);
            reaper.threads.push(thread::Builder::new().name(format!("reaper-{n}")).spawn(move || shared.work())?);
        }
        Ok(reaper)
    }

    /// Takes over the deletion of links in the namespace of this socket; the n-th answer belongs to the n-th link.
    ///
    /// They are compared with their marks now. As many as may be deleted at once are marked now, the others later.
    pub(super) fn take(&self, netns: &NetnsHandle, socket: &mut RouteSocket, doomed: Vec<Doomed>) -> Vec<Result<Done, Failure>> {
        let pending: HashSet<LinkId> = {
            let state = self.shared.lock();
            let here = state.queues.iter().filter(|((id, _), _)| *id == netns.id);
            here.flat_map(|(_, queue)| queue.all()).map(|d| d.link).collect()
        };
        let mut answers: Vec<Result<Done, Failure>> = check(socket, &doomed);
        let mut groups: HashMap<u32, Vec<(usize, Doomed)>> = HashMap::new();
        for (place, doomed) in doomed.into_iter().enumerate() {
            if answers[place] == Ok(Done::Ok) && !pending.contains(&doomed.link) {
                groups.entry(doomed.doomed_group).or_default().push((place, doomed));
            }
        }
        for (group, mut links) in groups {
            let room = self.shared.lock().queues.get(&(netns.id, group)).map_or(MOST_AT_ONCE, Queue::room);
            let later = links.split_off(room.min(links.len()));
            let now: Vec<Doomed> = links.iter().map(|(_, doomed)| doomed.clone()).collect();
            let mut marked = Vec::new();
            for ((place, doomed), outcome) in links.into_iter().zip(mark(socket, &now)) {
                match outcome {
                    Ok(()) => marked.push(doomed),
                    Err(failure) => answers[place] = gone_is_fine(failure),
                }
            }
            self.shared.submit(netns, group, marked, later.into_iter().map(|(_, doomed)| doomed));
        }
        answers
    }

    /// Drops what is left to do in a namespace that is of no interest any more.
    pub(super) fn forget(&self, netns: NetnsId) {
        let mut state = self.shared.lock();
        for (_, queue) in state.queues.iter_mut().filter(|((id, _), _)| *id == netns) {
            queue.marked.clear();
            queue.waiting.clear();
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to finish.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, netns: &NetnsHandle, group: u32, marked: Vec<Doomed>, later: impl Iterator<Item = Doomed>) {
        let mut state = self.lock();
        let key = (netns.id, group);
        let queue = state.queues.entry(key).or_insert_with(|| Queue {
            netns: netns.clone(),
            marked: Vec::new(),
            waiting: VecDeque::new(),
            working: Vec::new(),
            busy: false,
        });
        queue.netns = netns.clone();
        queue.marked.extend(marked);
        queue.waiting.extend(later);
        if queue.busy || (queue.marked.is_empty() && queue.waiting.is_empty()) {
            return;
        }
        queue.busy = true;
        state.ready.push_back(key);
        self.wake.notify_one();
    }

    /// A thread's life: a namespace at a time, until there is nothing left and the end has come.
    fn work(&self) {
        loop {
            let key = {
                let mut state = self.lock();
                loop {
                    if let Some(key) = state.ready.pop_front() {
                        break key;
                    }
                    if state.stop {
                        return;
                    }
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.serve(key);
        }
    }

    /// Deletes everything that waits in one namespace, with one socket that is closed at the end.
    fn serve(&self, key: Queued) {
        let mut socket: Option<RouteSocket> = None;
        while let Some((netns, links, marked)) = self.next(key) {
            let opened = match socket.take().filter(|socket| !socket.is_broken()) {
                Some(open) => Ok(open),
                None => RouteSocket::open(&netns, &self.counters),
            };
            match opened {
                Ok(mut open) => {
                    self.reap(&mut open, key.1, &links, marked);
                    socket = Some(open);
                }
                Err(failure) => links.iter().for_each(|doomed| self.gave_up(doomed, failure.clone())),
            }
        }
    }

    /// What is to be done next in a namespace, and whether it is marked; `None`, and the queue is gone, when that was all.
    fn next(&self, key: Queued) -> Option<(NetnsHandle, Vec<Doomed>, bool)> {
        let mut state = self.lock();
        let queue = state.queues.get_mut(&key)?;
        let marked = !queue.marked.is_empty();
        queue.working = if marked {
            std::mem::take(&mut queue.marked)
        } else {
            let count = queue.waiting.len().min(MOST_AT_ONCE);
            queue.waiting.drain(..count).collect()
        };
        if queue.working.is_empty() {
            state.queues.remove(&key);
            return None;
        }
        Some((queue.netns.clone(), queue.working.clone(), marked))
    }

    fn reap(&self, socket: &mut RouteSocket, group: u32, links: &[Doomed], marked: bool) {
        let mut ready: Vec<&Doomed> = links.iter().collect();
        if !marked {
            ready = self.mark_late(socket, links);
        }
        if ready.is_empty() {
            return;
        }
        let deleted = socket.perform(&[encode::delete_group(group)], |_, _, _| {}).pop();
        match deleted {
            // None in the group: all gone already.
            Some(Ok(())) => {}
            Some(Err(failure)) if failure.is(Errno::ENODEV) => {}
            _ => self.one_by_one(socket, group, &ready),
        }
    }

    /// Looks at links again whose turn has come, and marks those that are still ours.
    fn mark_late<'a>(&self, socket: &mut RouteSocket, links: &'a [Doomed]) -> Vec<&'a Doomed> {
        let mut ours = Vec::new();
        for (doomed, answer) in links.iter().zip(check(socket, links)) {
            match answer {
                Ok(Done::Ok) => ours.push(doomed),
                Ok(_) => {}
                Err(failure) => self.gave_up(doomed, failure),
            }
        }
        let outcomes = mark(socket, &ours.iter().map(|doomed| (*doomed).clone()).collect::<Vec<_>>());
        let mut ready = Vec::new();
        for (doomed, outcome) in ours.into_iter().zip(outcomes) {
            match outcome.map_err(gone_is_fine) {
                Ok(()) => ready.push(doomed),
                Err(Ok(_)) => {}
                Err(Err(failure)) => self.gave_up(doomed, failure),
            }
        }
        ready
    }

    /// The kernel refuses the whole group when one link of it cannot be deleted.
    fn one_by_one(&self, socket: &mut RouteSocket, group: u32, links: &[&Doomed]) {
        let indexes: Vec<IfIndex> = links.iter().map(|doomed| doomed.link.ifindex).collect();
        let found = read::bare_links(socket, &indexes);
        let still: Vec<&Doomed> =
            links.iter().zip(found).filter(|(_, link)| matches!(link, Ok(Some(l)) if l.group == group)).map(|(d, _)| *d).collect();
        let requests: Vec<_> = still.iter().map(|doomed| encode::delete_link(doomed.link.ifindex)).collect();
        for (doomed, outcome) in still.into_iter().zip(socket.perform(&requests, |_, _, _| {})) {
            if let Err(Err(failure)) = outcome.map_err(gone_is_fine) {
                self.gave_up(doomed, failure);
            }
        }
    }

    fn gave_up(&self, doomed: &Doomed, failure: Failure) {
        let attempted = format!("delete link {} in namespace {}", doomed.link.ifindex, doomed.link.netns);
        self.sink.link_event(LinkEvent::ReapFailed(doomed.link, failure.attempting(attempted)));
    }
}

/// Compares links with the marks that they must still carry: `Ok` when they do, `AlreadySo` when they are gone.
fn check(socket: &mut RouteSocket, doomed: &[Doomed]) -> Vec<Result<Done, Failure>> {
    let indexes: Vec<IfIndex> = doomed.iter().map(|d| d.link.ifindex).collect();
    let found = read::bare_links(socket, &indexes);
    let compare = |(doomed, found): (&Doomed, Result<Option<ObservedLink>, Failure>)| match found? {
        None => Ok(Done::AlreadySo),
        Some(link) if doomed.still_marked(&link) => Ok(Done::Ok),
        Some(_) => Err(Failure::new(Errno::ESTALE, "the link does not carry our mark any more")),
    };
    doomed.iter().zip(found).map(compare).collect()
}

impl Doomed {
    fn still_marked(&self, link: &ObservedLink) -> bool {
        // Group 0 is every link's own: it marks nothing.
        let by_group = link.group != 0 && (link.group == self.expected.group || link.group == self.doomed_group);
        let by_alias = self.expected.alias.is_some() && link.alias == self.expected.alias;
        by_group || by_alias
    }
}

/// Puts links into their doomed group.
fn mark(socket: &mut RouteSocket, doomed: &[Doomed]) -> Vec<Result<(), Failure>> {
    let request = |d: &Doomed| {
        let change = LinkChange { group: Some(d.doomed_group), ..LinkChange::default() };
        encode::set_link(d.link.ifindex, &change)
    };
    let requests: Vec<_> = doomed.iter().filter_map(request).collect();
    socket.perform(&requests, |_, _, _| {})
}

fn gone_is_fine(failure: Failure) -> Result<Done, Failure> {
    if failure.is(Errno::ENODEV) { Ok(Done::AlreadySo) } else { Err(failure) }
}
