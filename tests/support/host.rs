//! A host for one test.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use tempfile::TempDir;

/// Prepares the namespaces and then lives until its standard input ends, that is at the latest with the test process.
const HOLDER: &str = "mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up && echo ready && exec cat";

/// The same with a PID namespace: when its first process (which buries orphans) ends, the kernel ends all that were started in it, daemons and
/// containers too. Only control groups would stay.
const CONTAINED_HOLDER: &str = r#"mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up || exit 1
exec 3<&0
unshare --pid --fork --kill-child sh -c 'mount -t proc proc /proc && echo ready && exec docker-init cat' <&3
find /sys/fs/cgroup/vnf-test-$$ /sys/fs/cgroup/*/vnf-test-$$ -depth -type d -exec rmdir {} + 2>/dev/null"#;

/// A network namespace and a mount namespace with an empty `/run`, and a folder for files.
pub struct Host {
    holder: Child,
    /// The file of its PID namespace, if it has one of its own.
    pids: Option<PathBuf>,
    files: TempDir,
}

impl Host {
    /// A fresh host, with `lo` up and nothing else.
    pub fn new() -> Self {
        let (holder, files) = Self::hold(HOLDER);
        Self { holder, pids: None, files }
    }

    /// A fresh host with a PID namespace of its own: process numbers that [`Process::pid`] and the like return are those outside of it.
    pub fn contained() -> Self {
        let (holder, files) = Self::hold(CONTAINED_HOLDER);
        let first = only_child(holder.id()).expect("the holder waits for its PID namespace");
        Self { holder, pids: Some(format!("/proc/{first}/ns/pid_for_children").into()), files }
    }

    fn hold(script: &str) -> (Child, TempDir) {
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare (util-linux) starts");
        let mut ready = String::new();
        let mut output = BufReader::new(holder.stdout.take().expect("piped"));
        output.read_line(&mut ready).expect("the holder speaks");
        assert_eq!(ready.trim(), "ready", "the holder could not prepare the namespaces (these tests need root)");
        (holder, TempDir::with_prefix("vnf-test-").expect("a temporary folder"))
    }

    /// The control group that daemons on a contained host put theirs under. It is removed with the host.
    pub fn cgroup(&self) -> String {
        format!("/vnf-test-{}", self.holder.id())
    }

    /// The number, outside of the host, of the program that was started by [`Host::command`].
    pub fn pid_of(&self, child: &Child) -> u32 {
        // To enter a PID namespace, nsenter must fork.
        if self.pids.is_none() { child.id() } else { only_child(child.id()).expect("nsenter has forked") }
    }

    /// A fresh host with named namespaces in it.
    pub fn with_netns(names: &[&str]) -> Self {
        let host = Self::new();
        names.iter().for_each(|name| host.add_netns(name));
        host
    }

    /// A path in the host's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn namespace(&self, kind: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/{kind}", self.holder.id()))
    }

    /// Where a path of the host's mount namespace is found from outside.
    pub fn outside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// The namespace file of a named namespace; of the host's own one for an empty name; of any, for its path on the host. All that take
    /// the name of a namespace understand the three.
    pub fn netns_file(&self, name: &str) -> PathBuf {
        match name {
            "" => self.namespace("net"),
            path if path.starts_with('/') => self.outside(path),
            name => self.outside(&format!("/run/netns/{name}")),
        }
    }

    /// A program in this host; in one of its named namespaces if that is not empty. It dies with the thread that starts it.
    pub fn command(&self, netns: &str, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount={}", self.namespace("mnt").display()));
        command.arg(format!("--net={}", self.netns_file(netns).display()));
        if let Some(pids) = &self.pids {
            command.arg(format!("--pid={}", pids.display()));
        }
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program.as_ref()).stdin(Stdio::null());
        command
    }

    /// Runs a command line (words between blanks) on the host and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn run(&self, line: &str) -> String {
        self.try_run(line).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a command line on the host; what it prints, or why it failed.
    pub fn try_run(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let output = self.command("", words.next().expect("a program")).args(words).output().expect("nsenter starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(format!("`{line}` failed: {}", text(&output.stderr))) }
    }

    /// Makes a named namespace, with `lo` up.
    pub fn add_netns(&self, name: &str) {
        self.run(&format!("ip netns add {name}"));
        self.run(&format!("ip -n {name} link set lo up"));
    }

    /// Removes a named namespace.
    pub fn del_netns(&self, name: &str) {
        self.run(&format!("ip netns del {name}"));
    }

    /// Whether the host has a named namespace.
    pub fn has_netns(&self, name: &str) -> bool {
        self.run("ip netns list").lines().any(|line| line.split_whitespace().next() == Some(name))
    }

    /// Starts a process that sits in a named namespace (the host's own one if empty) until it is dropped.
    pub fn process_in(&self, netns: &str) -> Process {
        let child = self.command(netns, "sleep").arg("infinity").spawn().expect("nsenter starts");
        let process = Process(child);
        let wanted = inode(&self.netns_file(netns));
        super::eventually("the process entered its namespace", || inode(&process.netns_path()) == wanted);
        process
    }

    /// Starts a process in a new namespace without a name, until it is dropped.
    pub fn process_in_new_netns(&self) -> Process {
        let own = inode(&self.netns_file(""));
        let child = self.command("", "unshare").args(["--net", "sleep", "infinity"]).spawn().expect("nsenter starts");
        let process = Process(child);
        let test = inode(Path::new("/proc/self/ns/net"));
        super::eventually("the process has its own namespace", || {
            let now = inode(&process.netns_path());
            now != 0 && now != own && now != test
        });
        process
    }

    /// Listens to the kernel's own news of links and addresses in the host's own namespace.
    pub fn listen(&self) -> Listener {
        self.listen_in("")
    }

    /// Listens to the kernel's own news of links and addresses in a namespace.
    pub fn listen_in(&self, netns: &str) -> Listener {
        let path = tempfile::NamedTempFile::new_in(self.path("")).expect("a file").into_temp_path();
        let file = File::create(&path).expect("a file");
        let child = self.command(netns, "ip").args(["-o", "monitor", "link", "address"]).stdout(file).spawn().expect("nsenter starts");
        let listener = Listener { process: Process(child), path, netns: netns.to_owned() };
        super::eventually("the listener hears", || {
            listener.make(self, "probe");
            listener.text().contains("probe")
        });
        listener
    }

    /// Runs a closure on a thread of its own inside a namespace of this host.
    pub fn inside<T: Send>(&self, netns: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.netns_file(netns)).expect("the namespace is there");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&file);
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Pings an address from a namespace; true when it answers.
    pub fn pings(&self, netns: &str, address: &str) -> bool {
        let mut ping = self.command(netns, "ping");
        ping.args(["-c", "1", "-W", "2", address]).stdout(Stdio::null()).stderr(Stdio::null());
        ping.status().is_ok_and(|status| status.success())
    }
}

#[allow(clippy::disallowed_methods, reason = "the thread is the closure's own and ends inside the namespace")]
fn enter(netns: &File) {
    setns(netns, CloneFlags::CLONE_NEWNET).expect("the tests run as root");
}

/// The inode behind a namespace file; 0 when there is none.
pub fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map_or(0, |meta| meta.ino())
}

/// The child of a process that has one.
fn only_child(pid: u32) -> Option<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?.split_whitespace().next()?.parse().ok()
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        if self.pids.is_some() {
            // It cleans up. Killed in the middle, it would leave empty control groups.
            let patience = Instant::now() + super::PATIENCE;
            while matches!(self.holder.try_wait(), Ok(None)) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A running `ip monitor`.
pub struct Listener {
    process: Process,
    path: tempfile::TempPath,
    netns: String,
}

impl Listener {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }

    /// The names of all links that it heard of up to now, its own left out.
    pub fn names(&self, host: &Host) -> BTreeSet<String> {
        let heard = self.heard(host);
        // `7: eth1@if5: <...`, `7: eth1    inet ...`, `Deleted 7: eth1@if5: <...`
        let name = |line: &str| {
            line.trim_start_matches("Deleted ")
                .split_whitespace()
                .nth(1)
                .map(|word| word.split(['@', ':']).next().unwrap_or(word).to_owned())
        };
        heard.lines().filter_map(name).filter(|name| !["probe", "closing"].contains(&name.as_str())).collect()
    }

    /// Makes and removes a link.
    fn make(&self, host: &Host, name: &str) {
        let ip = |arguments: &[&str]| host.command(&self.netns, "ip").args(arguments).status().is_ok_and(|status| status.success());
        assert!(ip(&["link", "add", name, "type", "bridge"]) && ip(&["link", "del", name]), "a link of the test's own");
    }

    /// What it has heard up to now. A last piece of news of our own shows that everything before it has arrived.
    pub fn heard(&self, host: &Host) -> String {
        self.make(host, "closing");
        super::eventually("the listener hears the end", || self.text().contains("closing"));
        self.text()
    }
}

/// A process that is killed when it is dropped.
pub struct Process(pub Child);

impl Process {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The file of its network namespace.
    pub fn netns_path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
