//! The tracker on the real kernel and what it said; namespaces by name, by file and by process.
//!
//! Every test runs on a thread with a mount namespace and a `/run` of its own, so nothing that it mounts outlives it.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "test threads enter namespaces of their own and end there")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what they measure is printed")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::CloneFlags;
use vnf_agent::linux::netns_thread::{cookie_of, in_new_netns, own_cookie};
use vnf_agent::model::{NetnsId, NetnsRef, NetnsSlot, Reason};
use vnf_agent::namespace::{NetnsEvent, NetnsHandle, NetnsSink, NetnsTracker, Tracker, TrackerOptions};

pub const NOTHING: Option<&str> = None;
const PATIENCE: Duration = Duration::from_secs(60);

struct Inbox(Mutex<Sender<NetnsEvent>>);

impl NetnsSink for Inbox {
    fn netns_event(&self, event: NetnsEvent) {
        let _ = self.0.lock().unwrap().send(event);
    }
}

/// A tracker and what it said.
pub struct Watch {
    pub tracker: Arc<Tracker>,
    pub events: Receiver<NetnsEvent>,
}

impl Watch {
    pub fn start(options: TrackerOptions) -> Self {
        let (sender, events) = mpsc::channel();
        let tracker = Tracker::start(options, Arc::new(Inbox(Mutex::new(sender)))).unwrap();
        Self { tracker, events }
    }

    pub fn plain() -> Self {
        Self::start(TrackerOptions { create_named: false, ..TrackerOptions::default() })
    }

    /// Only what it is told of can wake it.
    pub fn without_a_clock() -> Self {
        let never = Duration::from_secs(3600);
        Self::start(TrackerOptions { create_named: false, check_all_every: never, check_unbound_every: never, ..TrackerOptions::default() })
    }

    pub fn next(&self) -> NetnsEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    /// What it leads to, once it does: a file on which nothing is mounted yet may be seen before.
    pub fn next_bound(&self) -> NetnsHandle {
        loop {
            match self.next() {
                NetnsEvent::Unbound { message, .. } => assert!(message.contains("nothing is mounted"), "{message}"),
                event => break bound(event),
            }
        }
    }

    pub fn ask(&self, slot: &NetnsSlot) -> NetnsEvent {
        self.tracker.watch(slot, false);
        self.next()
    }

    pub fn ask_file(&self, path: &str) -> NetnsEvent {
        self.ask(&NetnsSlot::new(NetnsRef::File(path.into()), 1))
    }

    /// Nothing is said, also after everything was looked at again.
    pub fn silent(&self) {
        self.tracker.recheck();
        let barrier = NetnsSlot::new(NetnsRef::Microservice("barrier".into()), 0);
        match self.ask(&barrier) {
            NetnsEvent::Unbound { slot, .. } if slot == barrier => {}
            other => panic!("expected nothing, got {other:?}"),
        }
    }

    /// Takes what is still to be said, until nothing is.
    pub fn silent_after_changes(&self) {
        self.tracker.recheck();
        let barrier = NetnsSlot::new(NetnsRef::Microservice("barrier".into()), 0);
        self.tracker.watch(&barrier, false);
        while !matches!(self.next(), NetnsEvent::Unbound { slot, .. } if slot == barrier) {}
    }
}

#[track_caller]
pub fn bound(event: NetnsEvent) -> NetnsHandle {
    match event {
        NetnsEvent::Bound { netns, .. } => netns,
        other => panic!("expected Bound, got {other:?}"),
    }
}

#[track_caller]
pub fn unbound(event: NetnsEvent) -> String {
    match event {
        NetnsEvent::Unbound { reason: Reason::NamespaceMissing, message, .. } => message,
        other => panic!("expected Unbound, got {other:?}"),
    }
}

#[track_caller]
pub fn refused(event: NetnsEvent, want: Reason) -> String {
    match event {
        NetnsEvent::Refused { reason, message, .. } if reason == want => message,
        other => panic!("expected Refused {want}, got {other:?}"),
    }
}

/// Runs a test on a thread with its own mounts and an empty `/run`.
pub fn sandbox(test: impl FnOnce() + Send) {
    let outcome = thread::scope(|scope| {
        let body = || {
            nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING).unwrap();
            mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), NOTHING).unwrap();
            test();
        };
        scope.spawn(body).join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

pub fn named(name: &str) -> NetnsSlot {
    NetnsSlot::new(NetnsRef::Named(name.into()), 0)
}

/// What `ip netns add` does: a file, then the mount.
pub fn mount_netns(path: &Path) -> u64 {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    in_new_netns(|| {
        mount(Some("/proc/thread-self/ns/net"), path, NOTHING, MsFlags::MS_BIND, NOTHING)?;
        Ok(own_cookie()?.0.get())
    })
    .unwrap()
}

pub fn unmount(path: &Path) {
    umount2(path, MntFlags::MNT_DETACH).unwrap();
}

pub fn remove_netns(path: &Path) {
    unmount(path);
    fs::remove_file(path).unwrap();
}

pub fn red() -> PathBuf {
    PathBuf::from("/run/netns/red")
}

pub fn ip(args: &[&str]) {
    assert!(Command::new("ip").args(args).status().unwrap().success(), "ip {args:?}");
}

/// A process in a namespace of its own; killed and collected at the end.
pub struct Holder(pub Child);

impl Holder {
    pub fn start() -> Self {
        let child = Command::new("unshare").args(["-n", "sleep", "1000"]).spawn().unwrap();
        let holder = Self(child);
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        until(|| fs::read_link(format!("/proc/{}/ns/net", holder.pid())).is_ok_and(|ns| ns != own));
        holder
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn cookie(&self) -> u64 {
        let file = OwnedFd::from(fs::File::open(format!("/proc/{}/ns/net", self.pid())).unwrap());
        cookie_of(file.as_fd()).unwrap().0.get()
    }

    pub fn slot(&self, written_at: i64) -> NetnsSlot {
        NetnsSlot::new(NetnsRef::Pid(self.pid()), written_at)
    }

    pub fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn opens_as(netns: &NetnsHandle) -> io::Result<NetnsId> {
    let file = netns.opener.open()?;
    cookie_of(file.as_fd())
}

pub fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs one of the ignored tests of the same program in a process of its own, under this command.
pub fn alone(command: &[&str], test: &str) {
    let mut words = command.iter();
    let mut run = Command::new(words.next().unwrap());
    let run = run.args(words).arg(std::env::current_exe().unwrap()).args(["--exact", test, "--ignored", "--nocapture"]);
    let out = run.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    print!("{text}");
}
