//! Fresh network namespaces for one test, and a record of what the kernel told.
//!
//! A namespace is held by a thread that lives in it; it ends with the thread. Nothing is done in the machine's own namespace.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::CloneFlags;
use vnf_agent::linux::{
    Done, Kernel, KernelError, KernelOp, LinkChange, LinkEvent, LinkSink, LinuxKernel, NewAddress, NewLink, netns_thread::own_cookie,
};
use vnf_agent::model::{HostIfName, IfIndex, InterfaceAddress, LinkId, MacAddr, NetnsId, ObservedLink};
use vnf_agent::namespace::{NetnsHandle, OpenNetns};

pub const GROUP: u32 = 0x5600_1234;
pub const DOOMED: u32 = 0x5700_1234;
pub const PROTO: u8 = 118;
/// Name of the threads that live in a namespace of the test.
pub const INSIDE: &str = "test-netns";
const PATIENCE: Duration = Duration::from_secs(60);

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace that lives as long as this value.
pub struct TestNetns {
    pub id: NetnsId,
    pub path: PathBuf,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl TestNetns {
    #[allow(clippy::disallowed_methods, reason = "on a thread that ends with the namespace")]
    pub fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (ready, is_ready) = channel();
        let builder = std::thread::Builder::new().name(INSIDE.into());
        let inside = move || {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let path = format!("/proc/{}/task/{}/ns/net", std::process::id(), nix::unistd::gettid());
            ready.send((own_cookie().unwrap(), PathBuf::from(path))).unwrap();
            todo.into_iter().for_each(|job| job());
        };
        let thread = builder.spawn(inside).unwrap();
        let (id, path) = is_ready.recv().unwrap();
        Self { id, path, jobs: Some(jobs), thread: Some(thread) }
    }

    pub fn handle(&self) -> NetnsHandle {
        self.handle_by(&self.path)
    }

    /// The namespace, to be reached by another path.
    pub fn handle_by(&self, path: &Path) -> NetnsHandle {
        let inode = std::fs::metadata(&self.path).unwrap().ino();
        NetnsHandle { id: self.id, inode, own: false, opener: Arc::new(ByPath(path.to_owned())) }
    }

    /// Runs something inside.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job: Job = Box::new(move || {
            let _receiver_waits = done.send(work());
        });
        self.jobs.as_ref().unwrap().send(job).unwrap();
        result.recv().expect("the job inside the namespace panicked")
    }

    /// Runs `ip` inside; false when it refuses.
    pub fn try_ip(&self, arguments: &str) -> bool {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        self.run(move || Command::new("ip").args(arguments).output().unwrap().status.success())
    }

    pub fn ip(&self, arguments: &str) {
        assert!(self.try_ip(arguments), "ip {arguments}");
    }

    /// The output of `ip` inside.
    pub fn show(&self, arguments: &str) -> String {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        let output = self.run(move || Command::new("ip").args(arguments).output().unwrap());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for TestNetns {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

struct ByPath(PathBuf);

impl OpenNetns for ByPath {
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_CLOEXEC;
        Ok(std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.0)?.into())
    }
}

/// Everything that the kernel told.
#[derive(Default)]
pub struct Record {
    events: Mutex<Vec<LinkEvent>>,
    more: Condvar,
}

impl LinkSink for Record {
    fn link_event(&self, event: LinkEvent) {
        self.events.lock().unwrap().push(event);
        self.more.notify_all();
    }
}

impl Record {
    /// Waits until an event of this sort was told.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&LinkEvent) -> bool) -> LinkEvent {
        self.wait_for_sequence(what, |events| events.iter().any(&wanted));
        self.events.lock().unwrap().iter().find(|e| wanted(e)).cloned().unwrap()
    }

    /// Waits until what was told so far is like this.
    pub fn wait_for_sequence(&self, what: &str, wanted: impl Fn(&[LinkEvent]) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut events = self.events.lock().unwrap();
        while !wanted(&events) {
            let left = end.saturating_duration_since(Instant::now());
            let last = events.iter().rev().take(5).collect::<Vec<_>>();
            assert!(!left.is_zero(), "{what} was not told; told were {}, the last: {last:?}", events.len());
            events = self.more.wait_timeout(events, left).unwrap().0;
        }
    }

    pub fn has(&self, wanted: impl Fn(&LinkEvent) -> bool) -> bool {
        self.events.lock().unwrap().iter().any(wanted)
    }

    pub fn clear(&self) {
        self.events.lock().unwrap().clear();
    }
}

/// A kernel whose own namespace is a fresh one.
pub struct Bed {
    pub kernel: LinuxKernel,
    pub record: Arc<Record>,
    pub own: TestNetns,
}

impl Bed {
    pub fn new() -> Self {
        let own = TestNetns::new();
        let record = Arc::new(Record::default());
        let handle = NetnsHandle { own: true, ..own.handle() };
        let kernel = LinuxKernel::new(handle, record.clone()).unwrap();
        Self { kernel, record, own }
    }

    /// A fresh namespace that the kernel knows.
    pub fn netns(&mut self) -> TestNetns {
        let netns = TestNetns::new();
        self.kernel.attach(&netns.handle());
        netns
    }

    pub fn execute_one(&mut self, op: KernelOp) -> Result<Done, KernelError> {
        let mut answers = self.kernel.execute(&[op]);
        assert_eq!(answers.len(), 1);
        answers.swap_remove(0)
    }

    /// Makes a pair and returns its ends.
    pub fn pair(&mut self, a: (&TestNetns, &str), b: (&TestNetns, &str)) -> (LinkId, LinkId) {
        let done = self.execute_one(create(a, b)).unwrap();
        ends(a.0, b.0, done)
    }

    pub fn link(&mut self, link: LinkId) -> Option<ObservedLink> {
        self.kernel.read_link(link).unwrap()
    }

    pub fn names(&mut self, netns: &TestNetns) -> Vec<String> {
        self.kernel.read_netns(netns.id).unwrap().links.into_iter().map(|l| l.name.into()).collect()
    }

    /// Reads again and again until it is so.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut LinuxKernel) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(&mut self.kernel) {
                return found;
            }
            assert!(Instant::now() < end, "never came to be: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn name(text: &str) -> HostIfName {
    HostIfName::new(text).unwrap()
}

pub fn mac(last: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, last]).unwrap()
}

pub fn new_link(netns: &TestNetns, text: &str) -> NewLink {
    NewLink { netns: netns.id, name: name(text), mac: None, mtu: 1500 }
}

pub fn create(a: (&TestNetns, &str), b: (&TestNetns, &str)) -> KernelOp {
    KernelOp::CreateVeth { a: new_link(a.0, a.1), b: new_link(b.0, b.1), group: GROUP, a_up: true }
}

pub fn ends(a: &TestNetns, b: &TestNetns, done: Done) -> (LinkId, LinkId) {
    let Done::Created { a: first, b: second } = done else { panic!("{done:?}") };
    (LinkId { netns: a.id, ifindex: first }, LinkId { netns: b.id, ifindex: second })
}

pub fn set(link: LinkId, change: LinkChange) -> KernelOp {
    KernelOp::SetLink { link, change }
}

pub fn up(link: LinkId) -> KernelOp {
    set(link, LinkChange { up: Some(true), ..LinkChange::default() })
}

pub fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

pub fn add(link: LinkId, text: &str) -> KernelOp {
    KernelOp::AddAddress { link, address: NewAddress { address: address(text), proto: PROTO, nodad: true, restore: None } }
}

pub fn remove(link: LinkId, text: &str) -> KernelOp {
    KernelOp::RemoveAddress { link, address: address(text) }
}

pub fn no_such_index() -> IfIndex {
    IfIndex::new(0x00ff_fff0).unwrap()
}
