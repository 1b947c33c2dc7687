//! The tracker on the real kernel: where references lead, and what is said when that changes.
//!
//! Every test runs on a thread with a mount namespace and a `/run` of its own, so nothing that it mounts outlives it.
#![allow(clippy::disallowed_methods, reason = "test threads enter namespaces of their own and end there")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what they measure is printed")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
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
use vnf_agent::namespace::{NetnsEvent, NetnsHandle, NetnsSink, NetnsTracker, Remembered, Tracker, TrackerOptions};

const NOTHING: Option<&str> = None;
const PATIENCE: Duration = Duration::from_secs(60);

struct Inbox(Mutex<Sender<NetnsEvent>>);

impl NetnsSink for Inbox {
    fn netns_event(&self, event: NetnsEvent) {
        let _ = self.0.lock().unwrap().send(event);
    }
}

/// A tracker and what it said.
struct Watch {
    tracker: Arc<Tracker>,
    events: Receiver<NetnsEvent>,
}

impl Watch {
    fn start(options: TrackerOptions) -> Self {
        let (sender, events) = mpsc::channel();
        let tracker = Tracker::start(options, Arc::new(Inbox(Mutex::new(sender)))).unwrap();
        Self { tracker, events }
    }

    fn plain() -> Self {
        Self::start(TrackerOptions { create_named: false, ..TrackerOptions::default() })
    }

    /// Only what it is told of can wake it.
    fn without_a_clock() -> Self {
        let never = Duration::from_secs(3600);
        Self::start(TrackerOptions { create_named: false, check_all_every: never, check_unbound_every: never, ..TrackerOptions::default() })
    }

    fn next(&self) -> NetnsEvent {
        self.events.recv_timeout(PATIENCE).expect("an event")
    }

    fn ask(&self, slot: &NetnsSlot) -> NetnsEvent {
        self.tracker.watch(slot, false);
        self.next()
    }

    fn ask_file(&self, path: &str) -> NetnsEvent {
        self.ask(&NetnsSlot::new(NetnsRef::File(path.into()), 1))
    }

    /// Nothing is said, also after everything was looked at again.
    fn silent(&self) {
        self.tracker.recheck();
        let barrier = NetnsSlot::new(NetnsRef::Microservice("barrier".into()), 0);
        match self.ask(&barrier) {
            NetnsEvent::Unbound { slot, .. } if slot == barrier => {}
            other => panic!("expected nothing, got {other:?}"),
        }
    }
}

#[track_caller]
fn bound(event: NetnsEvent) -> NetnsHandle {
    match event {
        NetnsEvent::Bound { netns, .. } => netns,
        other => panic!("expected Bound, got {other:?}"),
    }
}

#[track_caller]
fn unbound(event: NetnsEvent) -> String {
    match event {
        NetnsEvent::Unbound { reason: Reason::NamespaceMissing, message, .. } => message,
        other => panic!("expected Unbound, got {other:?}"),
    }
}

#[track_caller]
fn refused(event: NetnsEvent, want: Reason) -> String {
    match event {
        NetnsEvent::Refused { reason, message, .. } if reason == want => message,
        other => panic!("expected Refused {want}, got {other:?}"),
    }
}

/// Runs a test on a thread with its own mounts and an empty `/run`.
fn sandbox(test: impl FnOnce() + Send) {
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

fn named(name: &str) -> NetnsSlot {
    NetnsSlot::new(NetnsRef::Named(name.into()), 0)
}

/// What `ip netns add` does: a file, then the mount.
fn mount_netns(path: &Path) -> u64 {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    in_new_netns(|| {
        mount(Some("/proc/thread-self/ns/net"), path, NOTHING, MsFlags::MS_BIND, NOTHING)?;
        Ok(own_cookie()?.0.get())
    })
    .unwrap()
}

fn unmount(path: &Path) {
    umount2(path, MntFlags::MNT_DETACH).unwrap();
}

fn remove_netns(path: &Path) {
    unmount(path);
    fs::remove_file(path).unwrap();
}

fn red() -> PathBuf {
    PathBuf::from("/run/netns/red")
}

fn ip(args: &[&str]) {
    assert!(Command::new("ip").args(args).status().unwrap().success(), "ip {args:?}");
}

/// A process in a namespace of its own; killed and collected at the end.
struct Holder(Child);

impl Holder {
    fn start() -> Self {
        let child = Command::new("unshare").args(["-n", "sleep", "1000"]).spawn().unwrap();
        let holder = Self(child);
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        until(|| fs::read_link(format!("/proc/{}/ns/net", holder.pid())).is_ok_and(|ns| ns != own));
        holder
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn cookie(&self) -> u64 {
        let file = OwnedFd::from(fs::File::open(format!("/proc/{}/ns/net", self.pid())).unwrap());
        cookie_of(file.as_fd()).unwrap().0.get()
    }

    fn slot(&self, written_at: i64) -> NetnsSlot {
        NetnsSlot::new(NetnsRef::Pid(self.pid()), written_at)
    }

    fn end(&mut self) {
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
fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true");
        thread::sleep(Duration::from_millis(1));
    }
}

fn opens_as(netns: &NetnsHandle) -> io::Result<NetnsId> {
    let file = netns.opener.open()?;
    cookie_of(file.as_fd())
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn own_namespace() {
    sandbox(|| {
        let watch = Watch::plain();
        let own = bound(watch.ask(&NetnsSlot::new(NetnsRef::Default, 0)));
        assert!(own.own);
        assert_eq!(own.id, own_cookie().unwrap());
        assert_eq!(opens_as(&own).unwrap(), own.id);
        assert_eq!(watch.tracker.own().id, own.id);
    });
}

#[test]
fn microservices_are_said_to_be_missing() {
    sandbox(|| match Watch::plain().ask(&NetnsSlot::new(NetnsRef::Microservice("ms1".into()), 0)) {
        NetnsEvent::Unbound { reason: Reason::MicroserviceMissing, message, .. } => {
            assert!(message.contains("no running container has MICROSERVICE_LABEL=ms1: no container runtime is watched"), "{message}");
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn named_namespace_comes_and_goes() {
    sandbox(|| {
        let watch = Watch::plain();
        assert!(unbound(watch.ask(&named("red"))).contains("`red` does not exist"));
        ip(&["netns", "add", "red"]);
        let netns = loop {
            match watch.next() {
                NetnsEvent::Unbound { message, .. } => assert!(message.contains("nothing is mounted"), "{message}"),
                event => break bound(event),
            }
        };
        assert!(!netns.own && opens_as(&netns).unwrap() == netns.id);
        assert_eq!(netns.inode, std::os::unix::fs::MetadataExt::ino(&fs::metadata(red()).unwrap()));
        // A file reference to the same one.
        assert_eq!(bound(watch.ask_file("/var/run/netns/red")).id, netns.id);
        watch.silent();
        // Asked again, it is said again.
        assert_eq!(bound(watch.ask(&named("red"))).id, netns.id);
        ip(&["netns", "del", "red"]);
        let mut gone: Vec<NetnsSlot> = Vec::new();
        while !(gone.contains(&named("red")) && gone.iter().any(|slot| matches!(slot.reference, NetnsRef::File(_)))) {
            match watch.next() {
                NetnsEvent::Unbound { slot, .. } => gone.push(slot),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(netns.opener.open().unwrap_err().raw_os_error(), Some(nix::libc::ENOENT));
    });
}

#[test]
fn a_bare_file_is_waited_for_and_taken_at_once_when_mounted() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        let watch = Watch::without_a_clock();
        assert!(unbound(watch.ask(&named("red"))).contains("nothing is mounted"));
        assert!(unbound(watch.ask_file("/run/netns/red")).contains("nothing is mounted"));
        thread::sleep(Duration::from_millis(300));
        let cookie = mount_netns(&red());
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
    });
}

/// What the agent writes into the file before the mount covers it.
const OUR_STUB: &str = "made by vnf-agent, waits for its mount\n";

/// Also where missing namespaces are made: somebody may be about to mount on it.
#[test]
fn a_bare_file_of_others_is_never_mounted_over() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(unbound(watch.next()).contains("nothing is mounted"));
        // A creation that is not to be is over long before that.
        thread::sleep(Duration::from_millis(300));
        watch.silent();
        let cookie = mount_netns(&red());
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
    });
}

#[test]
fn a_namespace_that_is_replaced_is_a_new_one_though_its_inode_is_the_same() {
    sandbox(|| {
        let watch = Watch::plain();
        let mut cookie = mount_netns(&red());
        assert_eq!(bound(watch.ask(&named("red"))).id.0.get(), cookie);
        let mut inodes = std::collections::HashSet::new();
        for _ in 0..30 {
            remove_netns(&red());
            let next = mount_netns(&red());
            assert_ne!(next, cookie);
            cookie = next;
            let handle = loop {
                if let NetnsEvent::Bound { netns, .. } = watch.next() {
                    break netns;
                }
            };
            assert_eq!(handle.id.0.get(), cookie);
            assert_eq!(opens_as(&handle).unwrap(), handle.id);
            inodes.insert(handle.inode);
        }
        println!("30 namespaces had {} inodes", inodes.len());
    });
}

#[test]
fn what_is_no_network_namespace_is_named() {
    sandbox(|| {
        let watch = Watch::plain();
        let bad = |path: &str, what: &str| {
            let message = refused(watch.ask_file(path), Reason::BadNamespace);
            assert!(message.contains(what) && message.contains(&path[..path.len().min(40)]), "{path}: {message}");
        };
        fs::create_dir_all("/run/x/dir").unwrap();
        fs::write("/run/x/plain", "").unwrap();
        nix::unistd::mkfifo("/run/x/fifo", nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind("/run/x/socket").unwrap();
        let device = nix::sys::stat::makedev(1, 5);
        nix::sys::stat::mknod("/run/x/zero", nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, device).unwrap();
        mount_netns(Path::new("/run/x/real"));
        symlink("/run/x/real", "/run/x/link").unwrap();
        symlink("/run/x", "/run/y").unwrap();
        symlink("/proc/self/ns/net", "/run/x/magic").unwrap();
        fs::write("/run/x/uts", "").unwrap();
        mount(Some("/proc/thread-self/ns/uts"), "/run/x/uts", NOTHING, MsFlags::MS_BIND, NOTHING).unwrap();
        bad("/run/x/plain", "plain file");
        bad("/run/x/dir", "directory");
        bad("/run/x/fifo", "FIFO");
        bad("/run/x/socket", "socket");
        bad("/run/x/zero", "character device");
        bad("/dev/zero", "character device");
        bad("/run/x/link", "symbolic link");
        bad("/run/y/real", "symbolic link");
        bad("/run/x/magic", "symbolic link");
        bad("/proc/self/ns/net", "symbolic link");
        bad("/run/x/uts", "UTS namespace");
        bad("/run/x/../x/real", "`..`");
        bad("run/x/real", "absolute");
        bad(&format!("/run/{}", "x/".repeat(2100)), "too long");
        bad(&format!("/run/{}", "x".repeat(256)), "too long");
        assert!(unbound(watch.ask_file("/run/x/nothing")).contains("does not exist"));
        assert!(unbound(watch.ask_file("/run/x/plain/below")).contains("does not exist"));
        bound(watch.ask_file("/run/x/real"));
        bound(watch.ask_file("/var/run/x//real/"));
    });
}

#[test]
fn namespace_files_elsewhere_are_not_accepted() {
    sandbox(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("real");
        mount_netns(&path);
        let text = path.to_str().unwrap();
        let watch = Watch::plain();
        assert!(refused(watch.ask_file(text), Reason::BadNamespace).contains("below `/run`"));
        drop(watch);
        let watch = Watch::start(TrackerOptions { file_roots: vec![dir.path().into()], ..TrackerOptions::default() });
        bound(watch.ask_file(text));
        unmount(&path);
        assert!(refused(watch.next(), Reason::BadNamespace).contains("plain file"));
    });
}

#[test]
fn names_that_lead_elsewhere_are_refused_and_make_nothing() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        for name in ["../red", "a/b", "..", ".", "", "/etc/x", &"n".repeat(256)] {
            watch.tracker.watch(&named(name), true);
            refused(watch.next(), Reason::BadNamespace);
        }
        assert_eq!(fs::read_dir("/run").unwrap().count(), 0);
    });
}

#[test]
fn what_is_in_the_way_of_a_name_is_refused_and_watched() {
    sandbox(|| {
        fs::create_dir_all(red()).unwrap();
        symlink("/run/netns/red", "/run/netns/link").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(refused(watch.next(), Reason::BadNamespace).contains("directory"));
        assert!(refused(watch.ask(&named("link")), Reason::BadNamespace).contains("symbolic link"));
        fs::remove_dir(red()).unwrap();
        assert!(unbound(watch.next()).contains("does not exist"));
        let cookie = mount_netns(&red());
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
    });
}

#[test]
fn references_to_the_agents_own_namespace_are_refused() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        mount(Some("/proc/thread-self/ns/net"), &red(), NOTHING, MsFlags::MS_BIND, NOTHING).unwrap();
        let watch = Watch::plain();
        let me = std::process::id();
        for reference in
            [NetnsRef::Named("red".into()), NetnsRef::File(red()), NetnsRef::Pid(me), NetnsRef::File(format!("/proc/{me}/ns/net").into())]
        {
            let message = refused(watch.ask(&NetnsSlot::new(reference, 3)), Reason::OwnNamespace);
            assert!(message.contains("leave `namespace` out to mean the agent's own"), "{message}");
        }
    });
}

#[test]
fn a_process_is_bound_until_it_ends() {
    sandbox(|| {
        let mut holder = Holder::start();
        let watch = Watch::without_a_clock();
        let file = NetnsSlot::new(NetnsRef::File(format!("/proc/{}/ns/net", holder.pid()).into()), 7);
        let netns = bound(watch.ask(&holder.slot(7)));
        assert_eq!(netns.id.0.get(), holder.cookie());
        assert_eq!(opens_as(&netns).unwrap(), netns.id);
        assert_eq!(bound(watch.ask(&file)).id, netns.id);
        watch.silent();
        holder.0.kill().unwrap(); // A zombie from here on.
        for _ in 0..2 {
            let message = unbound(watch.next());
            assert!(message.contains("has ended; write the key again"), "{message}");
        }
        assert!(unbound(watch.ask(&holder.slot(8))).contains("has ended"), "a zombie, first seen");
        holder.end();
        assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"), "for good");
        assert!(unbound(watch.ask(&holder.slot(9))).contains("does not exist"), "written anew");
        assert_eq!(netns.opener.open().unwrap_err().raw_os_error(), Some(nix::libc::ESRCH));
    });
}

#[test]
fn numbers_that_are_no_process() {
    sandbox(|| {
        let watch = Watch::plain();
        let ask = |pid| watch.ask(&NetnsSlot::new(NetnsRef::Pid(pid), 1));
        refused(ask(0), Reason::BadNamespace);
        refused(ask(u32::MAX), Reason::BadNamespace);
        assert!(unbound(ask(4_194_303)).contains("does not exist"));
        let thread = nix::unistd::gettid().as_raw().unsigned_abs();
        assert_ne!(thread, std::process::id());
        assert!(refused(ask(thread), Reason::BadNamespace).contains("is a thread, not a process"));
    });
}

#[test]
fn a_process_that_changes_its_namespace_is_followed() {
    sandbox(|| {
        let script = "import os,sys\nos.unshare(0x40000000)\nprint(flush=True)\nsys.stdin.readline()\nos.unshare(0x40000000)\nprint(flush=True)\nsys.stdin.readline()";
        let script = script.replace("os.unshare(", "libc.unshare(");
        let script = format!("import ctypes\nlibc = ctypes.CDLL(None)\n{script}");
        let pipe = std::process::Stdio::piped;
        let mut holder = Holder(Command::new("python3").args(["-c", &script]).stdin(pipe()).stdout(pipe()).spawn().unwrap());
        let mut out = io::BufReader::new(holder.0.stdout.take().unwrap());
        let mut line = String::new();
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        let watch = Watch::plain();
        let first = bound(watch.ask(&holder.slot(1)));
        io::Write::write_all(holder.0.stdin.as_mut().unwrap(), b"\n").unwrap();
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        watch.tracker.recheck();
        let second = bound(watch.next());
        assert_ne!(first.id, second.id);
        assert_eq!(second.id.0.get(), holder.cookie());
    });
}

#[test]
fn a_written_pid_keeps_its_process_over_restarts() {
    sandbox(|| {
        let state = tempfile::tempdir().unwrap();
        let start = || Watch::start(TrackerOptions { state_dir: Some(state.path().into()), ..TrackerOptions::default() });
        let mut holder = Holder::start();
        let watch = start();
        bound(watch.ask(&holder.slot(7)));
        drop(watch);
        let watch = start();
        bound(watch.ask(&holder.slot(7)));
        drop(watch);
        // The number now belongs to a process that started at another time, or in another boot.
        let file = state.path().join("pid-bindings.json");
        let good = fs::read_to_string(&file).unwrap();
        for (field, other) in [("started", "1"), ("inode", "1"), ("boot", "\"before\"")] {
            let mut records: serde_json::Value = serde_json::from_str(&good).unwrap();
            records[0][field] = other.parse().unwrap();
            fs::write(&file, records.to_string()).unwrap();
            let watch = start();
            assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"), "{field}");
            bound(watch.ask(&holder.slot(8)));
        }
        // Ended while no agent ran: still not waiting for a new process of that number.
        fs::write(&file, &good).unwrap();
        holder.end();
        let watch = start();
        assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"));
        // What nobody uses is forgotten.
        watch.tracker.unwatch(&holder.slot(7));
        watch.tracker.retain(&[]);
        watch.silent();
        drop(watch);
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]");
    });
}

/// Runs one of the ignored tests in a process of its own, under this command.
fn alone(command: &[&str], test: &str) {
    let mut words = command.iter();
    let mut run = Command::new(words.next().unwrap());
    let run = run.args(words).arg(std::env::current_exe().unwrap()).args(["--exact", test, "--ignored", "--nocapture"]);
    let out = run.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    print!("{text}");
}

/// In a PID namespace of its own a number can be given out again at once.
#[test]
fn a_number_that_is_used_again_is_not_the_process() {
    alone(&["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"], "inside_a_pid_namespace");
}

#[test]
#[ignore = "run by a_number_that_is_used_again_is_not_the_process, inside a PID namespace"]
fn inside_a_pid_namespace() {
    sandbox(|| {
        let next_number = |pid: u32| fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let state = tempfile::tempdir().unwrap();
        let start = || Watch::start(TrackerOptions { state_dir: Some(state.path().into()), ..TrackerOptions::default() });
        let watch = start();
        next_number(30_000);
        let mut first = Holder::start();
        assert_eq!(first.pid(), 30_000);
        let file = NetnsSlot::new(NetnsRef::File("/proc/30000/ns/net".into()), 2);
        let netns = bound(watch.ask(&first.slot(1)));
        bound(watch.ask(&file));
        first.end();
        next_number(30_000);
        let second = Holder::start();
        assert_eq!(second.pid(), 30_000);
        assert!(unbound(watch.next()).contains("has ended") && unbound(watch.next()).contains("has ended"));
        for watch in [watch, start()] {
            assert!(unbound(watch.ask(&second.slot(1))).contains("has ended"));
            assert!(unbound(watch.ask(&file)).contains("has ended"));
            watch.silent();
            assert_eq!(bound(watch.ask(&second.slot(3))).id.0.get(), second.cookie(), "written anew");
        }
        assert!(netns.opener.open().is_err(), "never the namespace of the other process");
    });
}

#[test]
fn created_once_and_then_waited_for() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        let first = match watch.next() {
            NetnsEvent::Bound { netns, created: true, .. } => netns,
            other => panic!("{other:?}"),
        };
        assert_eq!(opens_as(&first).unwrap(), first.id);
        ip(&["-n", "red", "link", "show", "lo"]);
        let links = Command::new("ip").args(["-n", "red", "-o", "link", "show", "lo", "up"]).output().unwrap();
        assert!(links.status.success() && links.stdout.is_empty(), "loopback stays down");
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(mounts.lines().any(|line| line.contains(" /run/netns rw") && line.contains("shared:")), "{mounts}");
        watch.silent();
        ip(&["netns", "del", "red"]);
        // For a moment the bare file may be seen.
        while !unbound(watch.next()).contains("does not exist") {}
        watch.silent();
        assert!(!red().exists());
        // The key is written again.
        watch.tracker.watch(&named("red"), true);
        let second = bound(watch.next());
        assert_ne!(first.id, second.id);
        watch.tracker.unwatch(&named("red"));
        watch.silent();
        assert!(red().exists(), "never deleted by us");
    });
}

#[test]
fn many_are_created_in_one_go() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        let start = Instant::now();
        (0..200).for_each(|n| watch.tracker.watch(&named(&format!("n{n}")), true));
        // Others are answered meanwhile.
        assert!(matches!(watch.ask(&NetnsSlot::new(NetnsRef::Default, 0)), NetnsEvent::Bound { netns, .. } if netns.own));
        println!("an answer after {:?}", start.elapsed());
        let ids: std::collections::HashSet<NetnsId> = (0..200).map(|_| bound(watch.next()).id).collect();
        println!("200 namespaces after {:?}", start.elapsed());
        assert_eq!(ids.len(), 200);
        watch.silent();
    });
}

#[test]
fn not_created_unless_asked() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        unbound(watch.ask(&named("red")));
        let watch = Watch::plain();
        watch.tracker.watch(&named("red"), true);
        unbound(watch.next());
        assert!(!red().exists());
    });
}

#[test]
fn a_file_of_our_own_that_a_kill_left_is_used() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), OUR_STUB).unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(matches!(watch.next(), NetnsEvent::Bound { created: true, .. }));
    });
}

#[test]
fn what_cannot_be_made_leaves_nothing_and_says_why() {
    sandbox(|| {
        fs::write("/run/netns", "in the way").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        let message = unbound(watch.next());
        assert!(message.contains("cannot be made"), "{message}");
        fs::remove_file("/run/netns").unwrap();
        assert!(matches!(watch.next(), NetnsEvent::Bound { created: true, .. }), "tried again by the clock");
    });
}

#[test]
fn many_who_make_one_name_end_up_with_one() {
    sandbox(|| {
        for round in 0..20 {
            let name = format!("n{round}");
            let left_over = round % 2 == 1;
            if left_over {
                fs::write(format!("/run/netns/{name}"), OUR_STUB).unwrap();
            }
            let watches: Vec<Watch> = (0..4).map(|_| Watch::start(TrackerOptions::default())).collect();
            watches.iter().for_each(|watch| watch.tracker.watch(&named(&name), true));
            if !left_over {
                let mut other = Command::new("ip").args(["netns", "add", &name]).stderr(std::process::Stdio::null()).spawn().unwrap();
                other.wait().unwrap();
            }
            let ids: std::collections::HashSet<NetnsId> = watches.iter().map(|watch| bound(watch.next()).id).collect();
            assert_eq!(ids.len(), 1, "round {round}");
            let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let target = format!(" /run/netns/{name} ");
            // A shared folder that is bound onto itself shows each mount in it twice at most; never two namespaces.
            let kinds: std::collections::HashSet<&str> =
                mounts.lines().filter(|line| line.contains(&target)).filter_map(|line| line.split(' ').nth(3)).collect();
            assert_eq!(kinds.len(), 1, "round {round}: {mounts}");
        }
    });
}

#[test]
fn search_finds_each_once() {
    sandbox(|| {
        let red_id = NetnsId::new(mount_netns(&red())).unwrap();
        let docker = NetnsId::new(mount_netns(Path::new("/run/docker/netns/abc"))).unwrap();
        mount_netns(Path::new("/run/other/unknown"));
        let kept = NetnsId::new(mount_netns(Path::new("/run/other/kept"))).unwrap();
        fs::write("/run/netns/stub", "").unwrap();
        let holder = Holder::start();
        let held = NetnsId::new(holder.cookie()).unwrap();
        let remembered = vec![
            Remembered { id: red_id, reference: NetnsRef::Named("red".into()) },
            Remembered { id: kept, reference: NetnsRef::File("/run/other/kept".into()) },
            Remembered { id: held, reference: NetnsRef::Microservice("ms1".into()) },
            Remembered { id: NetnsId::new(u64::MAX).unwrap(), reference: NetnsRef::Named("gone".into()) },
        ];
        let watch = Watch::start(TrackerOptions { remembered, ..TrackerOptions::default() });
        watch.tracker.search();
        let mut found = Vec::new();
        while let NetnsEvent::Found { netns, .. } = watch.next() {
            assert_eq!(opens_as(&netns).unwrap(), netns.id);
            found.push(netns.id);
        }
        let own = own_cookie().unwrap();
        assert_eq!(found[0], own);
        found.sort();
        let mut want = vec![own, red_id, docker, kept, held];
        want.sort();
        assert_eq!(found, want);
    });
}

/// Another agent's namespaces are reachable through its processes only, and its links may look like ours.
#[test]
fn namespaces_of_mere_processes_are_not_searched() {
    sandbox(|| {
        let holder = Holder::start();
        let watch = Watch::plain();
        watch.tracker.search();
        let found: Vec<u64> =
            std::iter::from_fn(|| if let NetnsEvent::Found { netns, .. } = watch.next() { Some(netns.id.0.get()) } else { None }).collect();
        assert!(!found.is_empty() && !found.contains(&holder.cookie()));
    });
}

#[test]
fn the_folder_may_be_removed_and_made_again() {
    sandbox(|| {
        let watch = Watch::plain();
        unbound(watch.ask(&named("red")));
        for _ in 0..5 {
            let cookie = mount_netns(&red());
            let mut event = watch.next();
            while !matches!(event, NetnsEvent::Bound { .. }) {
                event = watch.next();
            }
            assert_eq!(bound(event).id.0.get(), cookie);
            remove_netns(&red());
            fs::remove_dir("/run/netns").unwrap();
            unbound(watch.next());
        }
    });
}

#[test]
fn nothing_of_a_namespace_stays_open() {
    alone(&["env"], "counting_open_files");
}

#[test]
#[ignore = "run by nothing_of_a_namespace_stays_open, where no other test opens files"]
fn counting_open_files() {
    sandbox(|| {
        let watch = Watch::plain();
        unbound(watch.ask(&named("red")));
        let mut before = 0;
        let mut seen = 0;
        for round in 0..1000 {
            mount_netns(&red());
            if round % 10 == 0 {
                // Every tenth is waited for; the others may come and go unseen.
                until(|| watch.events.try_iter().any(|event| matches!(event, NetnsEvent::Bound { .. })));
                seen += 1;
            }
            remove_netns(&red());
            if round == 10 {
                watch.silent_after_changes();
                before = open_files();
            }
        }
        watch.silent_after_changes();
        let after = open_files();
        assert_eq!(seen, 100);
        assert_eq!(before, after);
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let inside = links.filter(|link| link.to_string_lossy().starts_with("net:")).count();
        println!("files open: {before} before, {after} after; namespaces among them: {inside}");
        assert_eq!(inside, 1, "the agent's own only");
    });
}

impl Watch {
    /// Takes what is still to be said, until nothing is.
    fn silent_after_changes(&self) {
        self.tracker.recheck();
        let barrier = NetnsSlot::new(NetnsRef::Microservice("barrier".into()), 0);
        self.tracker.watch(&barrier, false);
        while !matches!(self.next(), NetnsEvent::Unbound { slot, .. } if slot == barrier) {}
    }
}

#[test]
fn a_thousand_are_looked_at_in_little_time() {
    sandbox(|| {
        let watch = Watch::plain();
        for n in 0..1000 {
            mount_netns(&PathBuf::from(format!("/run/netns/n{n}")));
        }
        for n in 0..1000 {
            bound(watch.ask(&named(&format!("n{n}"))));
        }
        let best = (0..5)
            .map(|_| {
                watch.silent();
                watch.tracker.last_check()
            })
            .min()
            .unwrap();
        println!("a look at 1000 namespaces: {best:?}");
        assert!(best > Duration::ZERO && best < Duration::from_millis(25), "{best:?}");
    });
}

#[test]
fn what_cannot_be_told_is_not_gone() {
    alone(&["prlimit", "--nofile=48:48"], "without_free_descriptors");
}

#[test]
#[ignore = "run by what_cannot_be_told_is_not_gone, with few descriptors"]
fn without_free_descriptors() {
    sandbox(|| {
        let holder = Holder::start();
        mount_netns(&red());
        let watch = Watch::plain();
        let process = bound(watch.ask(&holder.slot(1)));
        let name = bound(watch.ask(&named("red")));
        let mut hoard = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            hoard.push(file);
        }
        watch.silent();
        assert_eq!(bound(watch.ask(&holder.slot(1))).id, process.id);
        assert_eq!(bound(watch.ask(&named("red"))).id, name.id);
        assert!(unbound(watch.ask(&holder.slot(2))).contains("cannot be looked at"));
        assert!(unbound(watch.ask(&named("other"))).contains("cannot be looked at"));
        drop(hoard);
        // By itself, when it can be told again.
        let mut later = [watch.next(), watch.next()];
        later.sort_by_key(|event| matches!(event, NetnsEvent::Bound { .. }));
        let [other, again] = later;
        assert!(unbound(other).contains("does not exist"));
        assert_eq!(bound(again).id, process.id);
        watch.silent();
    });
}

/// The namespace lives on with the process in it, but the name leads nowhere; a search still finds it.
#[test]
fn unmounted_but_alive() {
    sandbox(|| {
        mount_netns(&red());
        let watch = Watch::plain();
        let netns = bound(watch.ask(&named("red")));
        let child = Command::new("ip").args(["netns", "exec", "red", "sleep", "1000"]).spawn().unwrap();
        let holder = Holder(child);
        until(|| fs::read_to_string(format!("/proc/{}/comm", holder.pid())).is_ok_and(|comm| comm.trim() == "sleep"));
        assert_eq!(holder.cookie(), netns.id.0.get());
        remove_netns(&red());
        unbound(watch.next());
        assert!(netns.opener.open().is_err());
        let remembered = vec![Remembered { id: netns.id, reference: NetnsRef::Named("red".into()) }];
        let watch = Watch::start(TrackerOptions { remembered, ..TrackerOptions::default() });
        watch.tracker.search();
        let own = watch.next();
        assert!(matches!(own, NetnsEvent::Found { ref netns, .. } if netns.own), "{own:?}");
        assert!(matches!(watch.next(), NetnsEvent::Found { netns: found, .. } if found.id == netns.id));
        assert!(matches!(watch.next(), NetnsEvent::SearchDone));
    });
}
