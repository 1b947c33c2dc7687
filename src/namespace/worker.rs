//! The tracker's thread: waits for requests, mounts, ends of processes and the clock; looks again at what they may have changed.
//!
//! A named namespace appears when something is mounted on its file, and goes when that is unmounted. The kernel tells both by
//! `/proc/…/mountinfo` becoming ready; a watch on the folder's entries would tell the file's creation, up to 6 ms too early, and not the
//! mount. What no mount tells (a FIFO removed, a process that appears or changes its namespace) the clock finds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::bindings::Writing;
use super::docker::Roster;
use super::process::Process;
use super::resolve::{Answer, Fate, Resolver, Target};
use super::search::search;
use super::tracker::{Request, Requests, TrackerOptions};
use super::{NetnsEvent, NetnsSink, create};
use crate::model::{NetnsRef, NetnsSlot, Reason};

/// Least pause between two looks because of mounts; a host that starts containers all the time mounts all the time.
const MOUNT_PAUSE: Duration = Duration::from_millis(10);
/// …and at most this share of the time is spent on it: one part in twenty.
const MOUNT_SHARE: u32 = 20;

/// Whether a missing named namespace is to be made.
#[derive(PartialEq, Eq)]
enum Creation {
    No,
    Wanted,
    Running,
    /// Just done by us; to be told with the next answer.
    Made,
    /// Why not. Wanted again with the next full check.
    Failed(String),
}

struct Watched {
    target: Target,
    told: Option<Answer>,
    /// Somebody asked and was not answered yet.
    owed: bool,
    creation: Creation,
    /// The last look failed, which was logged; what was told still counts.
    unsure: bool,
}

impl Watched {
    /// Whether only looking again can tell when this changes.
    fn needs_looks(&self) -> bool {
        let over = matches!(self.target, Target::Fixed(_) | Target::Label(_) | Target::Process(_, _, Fate::Ended));
        !over && (self.unsure || !matches!(self.told, Some(Answer::Bound(..))))
    }
}

/// Which slots a look goes through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    Paths,
    Unsettled,
}

/// State of the thread.
pub(super) struct Worker {
    options: TrackerOptions,
    resolver: Resolver,
    roster: Roster,
    sink: Arc<dyn NetnsSink>,
    requests: Requests,
    mounts: File,
    slots: HashMap<NetnsSlot, Watched>,
    to_create: Vec<NetnsSlot>,
    creator: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    events: Vec<NetnsEvent>,
    last_check: Arc<AtomicU64>,
    next_full: Instant,
    next_quick: Instant,
    /// Mounts have changed since the last look at paths.
    mounts_changed: bool,
    next_mount_look: Instant,
    /// Somebody asked for a look at everything.
    recheck: bool,
    save_failed: bool,
}

/// What the thread works with.
pub(super) struct Parts {
    pub options: TrackerOptions,
    pub resolver: Resolver,
    pub roster: Roster,
    pub sink: Arc<dyn NetnsSink>,
    pub requests: Requests,
    pub last_check: Arc<AtomicU64>,
}

impl Worker {
    pub(super) fn new(parts: Parts) -> io::Result<Self> {
        let now = Instant::now();
        let Parts { options, resolver, roster, sink, requests, last_check } = parts;
        let (next_full, next_quick) = (now + options.check_all_every, now + options.check_unbound_every);
        Ok(Self {
            options,
            resolver,
            roster,
            sink,
            requests,
            mounts: File::open("/proc/thread-self/mountinfo")?,
            slots: HashMap::new(),
            to_create: Vec::new(),
            creator: None,
            stopping: Arc::new(AtomicBool::new(false)),
            events: Vec::new(),
            last_check,
            next_full,
            next_quick,
            mounts_changed: false,
            next_mount_look: now,
            recheck: false,
            save_failed: false,
        })
    }

    pub(super) fn run(mut self, inbox: &Receiver<Request>, bell: &EventFd) {
        loop {
            self.wait(bell);
            let _ = bell.read();
            while let Ok(request) = inbox.try_recv() {
                if matches!(request, Request::Stop) {
                    self.stopping.store(true, Ordering::Relaxed);
                    // Wait for it: a namespace that is half made would stay so.
                    let _ = self.creator.map(JoinHandle::join);
                    return;
                }
                self.handle(request);
            }
            // Once for all who asked: a thousand namespaces that end together are not looked at a thousand times.
            if std::mem::take(&mut self.recheck) {
                self.look_at(Scope::All);
            }
            self.look_where_due();
            self.start_creator();
            self.save();
            for event in self.events.drain(..) {
                self.sink.netns_event(event);
            }
        }
    }

    /// Sleeps until something happens or is due. Processes that have ended are marked so.
    fn wait(&mut self, bell: &EventFd) {
        let timeout = PollTimeout::try_from(self.next_due().saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let mut polled = vec![
            PollFd::new(bell.as_fd(), PollFlags::POLLIN),
            // Level of interest by the kernel's own rule: mountinfo answers POLLPRI once per change.
            PollFd::new(self.mounts.as_fd(), PollFlags::POLLPRI),
        ];
        let mut bound = Vec::new();
        for (slot, watched) in &self.slots {
            if let Target::Process(_, _, Fate::Bound(process)) = &watched.target {
                bound.push((slot.clone(), process.clone()));
            }
        }
        let microservices: Vec<(String, Arc<Process>)> = self.roster.watched().map(|(id, process)| (id.clone(), process.clone())).collect();
        let processes = bound.iter().map(|(_, process)| process).chain(microservices.iter().map(|(_, process)| process));
        polled.extend(processes.map(|process| PollFd::new(process.pidfd(), PollFlags::POLLIN)));
        match poll(&mut polled, timeout.unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::warn!(%errno, "cannot wait for changes of namespaces; looking at them by the clock");
                thread::sleep(Duration::from_millis(100));
            }
        }
        let fired = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        self.mounts_changed |= fired(&polled[1]);
        let ended: Vec<bool> = polled[2..].iter().map(fired).collect();
        drop(polled);
        for ((id, _), _) in microservices.iter().zip(&ended[bound.len()..]).filter(|(_, ended)| **ended) {
            let labels = self.roster.died(id, &self.resolver);
            self.look_at_labels(Some(labels));
        }
        for ((slot, _), _) in bound.iter().zip(ended).filter(|(_, ended)| *ended) {
            if let Some(Watched { target: Target::Process(_, _, fate), .. }) = self.slots.get_mut(slot) {
                *fate = Fate::Ended;
            }
            self.look(slot);
        }
    }

    fn next_due(&self) -> Instant {
        let mut due = self.next_full;
        if self.mounts_changed {
            due = due.min(self.next_mount_look);
        }
        if let Some(save) = self.roster.save_due() {
            due = due.min(save);
        }
        if self.save_failed || self.slots.values().any(Watched::needs_looks) {
            due = due.min(self.next_quick);
        }
        due
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Watch { slot, create } => self.watch(&slot, create),
            Request::Unwatch(slot) => self.unwatch(&slot),
            Request::Retain(slots) => self.retain(&slots),
            Request::Recheck => self.recheck = true,
            Request::Search => {
                self.events.extend(search(&self.resolver, &self.options.remembered));
            }
            Request::Created(slot, outcome) => self.created(&slot, outcome),
            Request::CreatorDone => self.creator = None,
            Request::Runtime(news) => {
                let labels = self.roster.take(news, &self.resolver);
                self.look_at_labels(labels);
            }
            Request::Stop => {}
        }
    }

    fn watch(&mut self, slot: &NetnsSlot, create: bool) {
        let watched = self.slots.entry(slot.clone()).or_insert_with(|| Watched {
            target: self.resolver.target(slot),
            told: None,
            owed: true,
            creation: Creation::No,
            unsure: false,
        });
        watched.owed = true;
        let may_create = create && self.options.create_named && matches!(slot.reference, NetnsRef::Named(_));
        if may_create && watched.creation != Creation::Running {
            watched.creation = Creation::Wanted;
        }
        self.look(slot);
    }

    fn unwatch(&mut self, slot: &NetnsSlot) {
        self.slots.remove(slot);
        if let Some(gone) = Writing::of(slot)
            && !self.slots.keys().any(|other| Writing::of(other) == Some(gone))
        {
            self.resolver.bindings.retain(|writing| writing != gone);
        }
    }

    fn retain(&mut self, slots: &[NetnsSlot]) {
        let used: HashSet<Writing> = self.slots.keys().chain(slots).filter_map(Writing::of).collect();
        self.resolver.bindings.retain(|writing| used.contains(&writing));
    }

    fn look_where_due(&mut self) {
        let now = Instant::now();
        if now >= self.next_full {
            self.next_full = now + self.options.check_all_every;
            self.next_quick = now + self.options.check_unbound_every;
            for watched in self.slots.values_mut().filter(|watched| matches!(watched.creation, Creation::Failed(_))) {
                watched.creation = Creation::Wanted;
            }
            self.look_at(Scope::All);
        } else if now >= self.next_quick {
            self.next_quick = now + self.options.check_unbound_every;
            self.look_at(Scope::Unsettled);
        }
        if self.mounts_changed && now >= self.next_mount_look {
            self.mounts_changed = false;
            self.look_at(Scope::Paths);
            let end = Instant::now();
            self.next_mount_look = end + MOUNT_PAUSE.max(end.duration_since(now) * MOUNT_SHARE);
        }
    }

    /// Looks at the slots of these labels; `None`: of all labels.
    fn look_at_labels(&mut self, labels: Option<BTreeSet<String>>) {
        let slot = |label| NetnsSlot::new(NetnsRef::Microservice(label), 0);
        let slots: Vec<NetnsSlot> = match labels {
            Some(labels) => labels.into_iter().map(slot).filter(|slot| self.slots.contains_key(slot)).collect(),
            None => self.slots.keys().filter(|slot| matches!(slot.reference, NetnsRef::Microservice(_))).cloned().collect(),
        };
        for slot in &slots {
            self.look(slot);
        }
    }

    fn look_at(&mut self, scope: Scope) {
        let start = Instant::now();
        if matches!(scope, Scope::All | Scope::Paths) {
            let labels = self.roster.look_at_files(&self.resolver);
            self.look_at_labels(Some(labels));
        }
        let wanted = |watched: &Watched| match scope {
            Scope::All => true,
            Scope::Paths => matches!(watched.target, Target::Place(..)),
            Scope::Unsettled => watched.needs_looks(),
        };
        let slots: Vec<NetnsSlot> = self.slots.iter().filter(|(_, w)| wanted(w)).map(|(slot, _)| slot.clone()).collect();
        for slot in &slots {
            self.look(slot);
        }
        if scope == Scope::All {
            self.last_check.store(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Looks at one slot and tells what is new.
    fn look(&mut self, slot: &NetnsSlot) {
        let Some(watched) = self.slots.get_mut(slot).filter(|watched| watched.creation != Creation::Running) else { return };
        let answer = match self.resolver.look(&self.roster, slot, &mut watched.target) {
            Ok(answer) => {
                watched.unsure = false;
                answer.or_else(|| watched.told.clone())
            }
            Err(error) => {
                if !std::mem::replace(&mut watched.unsure, true) {
                    tracing::warn!(namespace = %slot.reference, %error, "cannot look at this namespace; what was known of it stays");
                }
                let message = || format!("{} cannot be looked at: {error}; tried again every second", slot.reference);
                Some(watched.told.clone().unwrap_or_else(|| Answer::Unbound(Reason::NamespaceMissing, message())))
            }
        };
        if let Some(answer) = answer {
            self.settle(slot, answer);
        }
    }

    /// Starts to make what is missing and wanted; tells everything else.
    fn settle(&mut self, slot: &NetnsSlot, mut answer: Answer) {
        let Some(watched) = self.slots.get_mut(slot) else { return };
        let mut created = false;
        match (&watched.creation, &mut answer) {
            (Creation::Wanted, Answer::Unbound(..)) if watched.unsure => {}
            (Creation::Wanted, Answer::Unbound(..)) => {
                watched.creation = Creation::Running;
                return self.to_create.push(slot.clone());
            }
            (Creation::Failed(error), Answer::Unbound(_, message)) => {
                *message = format!("{} does not exist and cannot be made: {error}; tried again every few seconds", slot.reference);
            }
            (was, answer) => {
                created = *was == Creation::Made && matches!(answer, Answer::Bound(..));
                watched.creation = Creation::No;
            }
        }
        if watched.owed || !watched.told.as_ref().is_some_and(|told| told.same(&answer)) {
            watched.owed = false;
            watched.told = Some(answer.clone());
            self.events.push(event(slot.clone(), answer, created));
        }
    }

    /// One thread at a time makes all that is wanted. It ends after that, for it has been in other namespaces.
    fn start_creator(&mut self) {
        if self.creator.is_some() || self.to_create.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut self.to_create);
        let (folder, stopping, requests) = (self.options.netns_dir.clone(), self.stopping.clone(), self.requests.clone());
        let work = slots.clone();
        let spawned = thread::Builder::new().name("netns-creator".to_owned()).spawn(move || {
            for slot in work.into_iter().take_while(|_| !stopping.load(Ordering::Relaxed)) {
                let outcome = create::create(&folder, &slot.reference.reference());
                requests.put(Request::Created(slot, outcome));
            }
            requests.put(Request::CreatorDone);
        });
        match spawned {
            Ok(thread) => self.creator = Some(thread),
            Err(error) => slots.iter().for_each(|slot| self.created(slot, Err(io::Error::new(error.kind(), error.to_string())))),
        }
    }

    fn created(&mut self, slot: &NetnsSlot, outcome: io::Result<bool>) {
        let Some(watched) = self.slots.get_mut(slot) else { return };
        watched.creation = match outcome {
            Ok(true) => Creation::Made,
            Ok(false) => Creation::No,
            Err(error) => Creation::Failed(error.to_string()),
        };
        self.look(slot);
    }

    fn save(&mut self) {
        self.roster.save(&self.resolver);
        let saved = self.resolver.bindings.save();
        if let Err(error) = &saved
            && !self.save_failed
        {
            tracing::warn!(%error, "cannot keep PID bindings; a restart could bind them to other processes");
        }
        self.save_failed = saved.is_err();
    }
}

fn event(slot: NetnsSlot, answer: Answer, created: bool) -> NetnsEvent {
    match answer {
        Answer::Bound(netns, container) => NetnsEvent::Bound { slot, netns, created, container },
        Answer::Unbound(reason, message) => NetnsEvent::Unbound { slot, reason, message },
        Answer::Unknown(reason, message) => NetnsEvent::Unknown { slot, reason, message },
        Answer::Refused(reason, message) => NetnsEvent::Refused { slot, reason, message },
    }
}
