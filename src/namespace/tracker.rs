//! The tracker of namespaces, however they are referred to: options, requests, and the thread's beginning and end.
//!
//! One thread of its own does everything (see `worker`), so calls return at once and nobody waits for a file system. Of microservices it knows what
//! the follower of the container runtime delivers.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::bindings::Bindings;
use super::docker::{Desk, News, Port, Roster};
use super::resolve::Resolver;
use super::search::Remembered;
use super::worker::{Parts, Worker};
use super::{NetnsHandle, NetnsSink, NetnsTracker};
use crate::model::NetnsSlot;

/// What the tracker works with.
#[derive(Clone, Debug)]
pub struct TrackerOptions {
    /// Folder of the named namespaces; need not exist.
    pub netns_dir: PathBuf,
    /// Missing named namespaces are made when `watch` asks for it; false: they are waited for.
    pub create_named: bool,
    /// Where PID bindings are kept over restarts (`pid-bindings.json`); `None`: nowhere.
    pub state_dir: Option<PathBuf>,
    /// Folders of the container runtimes' namespaces, searched at the start. Missing ones are no error.
    pub runtime_dirs: Vec<PathBuf>,
    /// Folders below which namespace files are accepted, besides those above.
    pub file_roots: Vec<PathBuf>,
    /// Namespaces that an earlier run has used in this boot; searched at the start.
    pub remembered: Vec<Remembered>,
    /// Where the container runtime is, in words; `None`: nobody follows one. Who does takes [`Tracker::runtime_port`].
    pub runtime: Option<String>,
    /// How often everything is looked at, told or not.
    pub check_all_every: Duration,
    /// How often what is not bound is looked at, told or not.
    pub check_unbound_every: Duration,
}

impl Default for TrackerOptions {
    fn default() -> Self {
        Self {
            netns_dir: PathBuf::from("/var/run/netns"),
            create_named: true,
            state_dir: None,
            runtime_dirs: vec![PathBuf::from("/run/docker/netns")],
            file_roots: vec![PathBuf::from("/run")],
            remembered: Vec::new(),
            runtime: None,
            check_all_every: Duration::from_secs(5),
            check_unbound_every: Duration::from_secs(1),
        }
    }
}

/// Why the tracker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file of PID bindings.
    #[error("cannot read the PID bindings in {}: {cause}", dir.display())]
    Bindings {
        /// The state directory.
        dir: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The agent's own namespace.
    #[error("cannot learn which network namespace the agent is in (Linux 5.14 or later and /proc are needed): {0}")]
    OwnNamespace(io::Error),
    /// The thread and what it waits on.
    #[error("cannot start watching namespaces: {0}")]
    Watch(io::Error),
}

/// What the thread is asked to do.
pub(super) enum Request {
    Watch {
        slot: NetnsSlot,
        create: bool,
    },
    Unwatch(NetnsSlot),
    Retain(Vec<NetnsSlot>),
    Recheck,
    Search,
    /// A named namespace was made (true), was there already (false), or cannot be made.
    Created(NetnsSlot, io::Result<bool>),
    CreatorDone,
    /// What the container runtime told.
    Runtime(News),
    Stop,
}

/// Puts requests before the thread and wakes it.
#[derive(Clone)]
pub(super) struct Requests {
    queue: Sender<Request>,
    bell: Arc<EventFd>,
}

impl Requests {
    pub(super) fn put(&self, request: Request) {
        // Both fail only when the thread has ended; then nobody waits for an answer.
        if self.queue.send(request).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}

/// Follows references to namespaces and tells where they lead. Stops when it is dropped.
pub struct Tracker {
    requests: Requests,
    desk: Arc<Desk>,
    own: NetnsHandle,
    last_check: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tracker {
    /// Starts the thread. The agent's own namespace is the one that the calling thread is in.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: TrackerOptions, sink: Arc<dyn NetnsSink>) -> Result<Arc<Self>, StartError> {
        let bindings = Bindings::load(options.state_dir.as_deref())
            .map_err(|cause| StartError::Bindings { dir: options.state_dir.clone().unwrap_or_default(), cause })?;
        let resolver = Resolver::new(options.netns_dir.clone(), options.runtime_dirs.clone(), options.file_roots.clone(), bindings)
            .map_err(StartError::OwnNamespace)?;
        let own = resolver.own.clone();
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags).map_err(|errno| StartError::Watch(errno.into()))?);
        let (queue, inbox) = mpsc::channel();
        let requests = Requests { queue, bell: bell.clone() };
        let last_check = Arc::new(AtomicU64::new(0));
        let desk = Arc::new(Desk::default());
        let roster = Roster::new(options.runtime.clone(), options.state_dir.as_deref(), desk.clone(), &resolver);
        let parts = Parts { options, resolver, roster, sink, requests: requests.clone(), last_check: last_check.clone() };
        let worker = Worker::new(parts).map_err(StartError::Watch)?;
        let thread =
            thread::Builder::new().name("netns-tracker".to_owned()).spawn(move || worker.run(&inbox, &bell)).map_err(StartError::Watch)?;
        Ok(Arc::new(Self { requests, desk, own, last_check, thread: Mutex::new(Some(thread)) }))
    }

    /// The agent's own namespace.
    #[must_use]
    pub fn own(&self) -> NetnsHandle {
        self.own.clone()
    }

    /// Where the follower of the container runtime delivers.
    #[must_use]
    pub fn runtime_port(&self) -> Port {
        Port::new(self.requests.clone(), self.desk.clone())
    }

    /// Asks for a report of every namespace that may hold links of an earlier run: [`super::NetnsEvent::Found`] for each, then
    /// [`super::NetnsEvent::SearchDone`].
    pub fn search(&self) {
        self.requests.put(Request::Search);
    }

    /// How long the last look at everything that is watched took.
    #[must_use]
    pub fn last_check(&self) -> Duration {
        Duration::from_nanos(self.last_check.load(Ordering::Relaxed))
    }

    /// Ends the thread and waits for it. No event comes after that.
    pub fn shutdown(&self) {
        self.requests.put(Request::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A sink may hold the last reference, so this may be the thread itself, which must not wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl NetnsTracker for Tracker {
    fn watch(&self, slot: &NetnsSlot, create: bool) {
        self.requests.put(Request::Watch { slot: slot.clone(), create });
    }

    fn unwatch(&self, slot: &NetnsSlot) {
        self.requests.put(Request::Unwatch(slot.clone()));
    }

    fn recheck(&self) {
        self.requests.put(Request::Recheck);
    }

    fn retain(&self, slots: &[NetnsSlot]) {
        self.requests.put(Request::Retain(slots.to_vec()));
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.shutdown();
    }
}
