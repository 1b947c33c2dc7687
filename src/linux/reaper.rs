//! Deletes links without keeping anyone waiting.
//!
//! A deletion waits about 20 ms for the kernel's own clean-up, however many links it is about. So links are first put into the group of the
//! doomed, and some threads delete by that group, namespace by namespace. The kernel holds its lock for the whole group: hence only a few
//! links of a namespace are in it at a time, the others wait and are looked at when it is their turn; see [`agenda`].
//! Nothing is deleted by name, and by index only where deletion by group is refused (a stranger put a link into our group that cannot be deleted).

mod agenda;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use agenda::{Agenda, Portion, Queued};

use crate::linux::counters::Counters;
use crate::linux::socket::{Failure, RouteSocket};
use crate::linux::{Done, ExpectedMark, LinkChange, LinkEvent, LinkSink, encode, read};
use crate::model::{IfIndex, LinkId, NetnsId, ObservedLink};
use crate::namespace::NetnsHandle;

/// Threads that delete: each waits some 20 ms for the kernel's clean-up, and their waiting overlaps.
const THREADS: usize = 8;
/// So many links of a namespace are looked at and marked by who wants them deleted.
pub(super) const FEW: usize = 4;
/// Nobody who deletes waits longer than this for his turn: a note may be lost, and to make thousands of links takes seconds.
const PATIENCE: Duration = Duration::from_millis(100);

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

/// What the threads share with those who give them work and who hear what became of it.
pub(super) struct Shared {
    counters: Arc<Counters>,
    sink: Arc<dyn LinkSink>,
    state: Mutex<State>,
    /// There is work, or it is time to end.
    wake: Condvar,
    /// A turn may begin.
    turn: Condvar,
    /// Held by the one who prepares a portion and waits for its turn: many who ask for the kernel's lock at once only take time from each other.
    prepares: Mutex<()>,
}

#[derive(Default)]
struct State {
    agenda: Agenda,
    stop: bool,
}

impl Reaper {
    pub(super) fn start(shared: Arc<Shared>) -> Result<Self, Failure> {
        let mut reaper = Self { shared, threads: Vec::new() };
        for n in 0..THREADS {
            let shared = Arc::clone(&reaper.shared);
            reaper.threads.push(thread::Builder::new().name(format!("reaper-{n}")).spawn(move || shared.work())?);
        }
        Ok(reaper)
    }

    /// Takes over the deletion of many links of a namespace. They are compared with their marks when it is their turn, so that whoever makes something next need not wait
    /// for that either; it is told if they turn out not to be ours.
    pub(super) fn hand_over(&self, netns: &NetnsHandle, doomed: Vec<Doomed>) {
        for (group, links) in self.unknown(netns.id, doomed) {
            self.add(netns, group, Vec::new(), links.into_iter().map(|(_, doomed)| doomed));
        }
    }

    /// Those that are not on the list, by group, with their places.
    fn unknown(&self, netns: NetnsId, doomed: Vec<Doomed>) -> HashMap<u32, Vec<(usize, Doomed)>> {
        let pending = self.shared.lock().agenda.pending(netns);
        let mut groups: HashMap<u32, Vec<(usize, Doomed)>> = HashMap::new();
        for (place, doomed) in doomed.into_iter().enumerate().filter(|(_, doomed)| !pending.contains(&doomed.link)) {
            groups.entry(doomed.doomed_group).or_default().push((place, doomed));
        }
        groups
    }

    fn add(&self, netns: &NetnsHandle, group: u32, marked: Vec<Doomed>, later: impl Iterator<Item = Doomed>) {
        if self.shared.lock().agenda.add(netns, group, marked, later) {
            self.shared.wake.notify_one();
        }
    }

    /// Takes over the deletion of a few links in the namespace of this socket; the n-th answer belongs to the n-th link. They are compared with their marks now, and as many as
    /// may be deleted at once are put into the group.
    pub(super) fn take(&self, netns: &NetnsHandle, socket: &mut RouteSocket, doomed: Vec<Doomed>) -> Vec<Result<Done, Failure>> {
        let mut answers: Vec<Result<Done, Failure>> = vec![Ok(Done::Ok); doomed.len()];
        for (group, mut links) in self.unknown(netns.id, doomed) {
            let room = self.shared.lock().agenda.room((netns.id, group));
            let later = links.split_off(room.min(links.len()));
            let known = check(socket, links.iter().map(|(_, doomed)| doomed));
            for ((place, _), known) in links.iter().zip(known) {
                answers[*place] = known;
            }
            links.retain(|(place, _)| answers[*place] == Ok(Done::Ok));
            let now: Vec<Doomed> = links.iter().map(|(_, doomed)| doomed.clone()).collect();
            let mut marked = Vec::new();
            for ((place, doomed), outcome) in links.into_iter().zip(mark(socket, &now)) {
                match outcome {
                    Ok(()) => marked.push(doomed),
                    Err(failure) => answers[place] = gone_is_fine(failure),
                }
            }
            self.add(netns, group, marked, later.into_iter().map(|(_, doomed)| doomed));
        }
        answers
    }

    /// Drops what is left to do in a namespace that is of no interest any more.
    pub(super) fn forget(&self, netns: NetnsId) {
        self.shared.lock().agenda.forget(netns);
    }

    /// Somebody makes links, or changes them: no deletion begins until [`Reaper::go_on`].
    pub(super) fn stand_back(&self) {
        self.shared.lock().agenda.begin_making();
    }

    /// Deletions go on.
    pub(super) fn go_on(&self) {
        if self.shared.lock().agenda.end_making(Instant::now()) {
            self.shared.turn.notify_all();
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.go_on();
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to finish.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    /// Shared by nobody yet; what comes of the deletions, and all that it is told of, goes to `sink`.
    pub(super) fn new(counters: Arc<Counters>, sink: Arc<dyn LinkSink>) -> Arc<Self> {
        Arc::new(Self { counters, sink, state: Mutex::default(), wake: Condvar::new(), turn: Condvar::new(), prepares: Mutex::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life: a portion at a time, until there is nothing left and the end has come.
    fn work(&self) {
        loop {
            let queued = {
                let mut state = self.lock();
                loop {
                    if let Some(queued) = state.agenda.next() {
                        break queued;
                    }
                    if state.stop {
                        return;
                    }
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            self.serve(queued);
        }
    }

    /// Deletes one portion.
    fn serve(&self, queued: Queued) {
        let portion = self.lock().agenda.portion(queued, Instant::now());
        let Some(Portion { netns, links, marked, socket }) = portion else { return };
        let opened = match socket.filter(|socket| !socket.is_broken()) {
            Some(open) => Ok(open),
            None => RouteSocket::open(&netns, &self.counters),
        };
        match opened {
            Ok(mut open) => {
                self.reap(&mut open, queued, &links, marked);
                self.lock().agenda.keep(queued, open);
            }
            Err(failure) => {
                links.iter().for_each(|doomed| self.gave_up(doomed, failure.clone()));
                self.portion_is_over(queued);
            }
        }
    }

    fn portion_is_over(&self, queued: Queued) {
        if self.lock().agenda.portion_is_over(queued) {
            self.wake.notify_one();
        }
    }

    fn reap(&self, socket: &mut RouteSocket, queued: Queued, links: &[Doomed], marked: bool) {
        let prepares = self.prepares.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ready: Vec<&Doomed> = links.iter().collect();
        if !marked {
            drop(self.wait_while(Agenda::is_making));
            ready = self.mark_late(socket, links);
        }
        if ready.is_empty() {
            return self.portion_is_over(queued);
        }
        let number = self.wait_while(Agenda::must_wait).agenda.begin_turn(queued, ready.iter().map(|doomed| doomed.link));
        drop(prepares);
        let deleted = socket.perform(&[encode::delete_group(queued.1)], |_, _, _| {}).pop();
        match deleted {
            // None in the group: all gone already.
            Some(Ok(())) => {}
            Some(Err(failure)) if failure.is(Errno::ENODEV) => {}
            _ => self.one_by_one(socket, queued.1, &ready),
        }
        let over = self.lock().agenda.answered(number);
        self.turn_is_over(over);
    }

    fn wait_while(&self, so: impl Fn(&Agenda) -> bool) -> MutexGuard<'_, State> {
        self.turn.wait_timeout_while(self.lock(), PATIENCE, |state| so(&state.agenda)).unwrap_or_else(PoisonError::into_inner).0
    }

    fn turn_is_over(&self, over: Option<Queued>) {
        if let Some(queued) = over {
            self.turn.notify_all();
            self.portion_is_over(queued);
        }
    }

    /// Looks at links again whose turn has come, and marks those that are still ours.
    fn mark_late<'a>(&self, socket: &mut RouteSocket, links: &'a [Doomed]) -> Vec<&'a Doomed> {
        let mut ours = Vec::new();
        for (doomed, answer) in links.iter().zip(check(socket, links.iter())) {
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
fn check<'a>(socket: &mut RouteSocket, doomed: impl Iterator<Item = &'a Doomed> + Clone) -> Vec<Result<Done, Failure>> {
    let indexes: Vec<IfIndex> = doomed.clone().map(|d| d.link.ifindex).collect();
    let found = read::bare_links(socket, &indexes);
    let compare = |(doomed, found): (&Doomed, Result<Option<ObservedLink>, Failure>)| match found? {
        None => Ok(Done::AlreadySo),
        Some(link) if doomed.still_marked(&link) => Ok(Done::Ok),
        Some(_) => Err(Failure::new(Errno::ESTALE, "the link does not carry our mark any more")),
    };
    doomed.zip(found).map(compare).collect()
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

/// What is told on its way to the configurator: a turn is over when its links are gone.
impl LinkSink for Shared {
    fn link_event(&self, event: LinkEvent) {
        if let LinkEvent::LinkGone(link) = event {
            let over = self.lock().agenda.gone(link);
            self.turn_is_over(over);
        }
        self.sink.link_event(event);
    }
}
