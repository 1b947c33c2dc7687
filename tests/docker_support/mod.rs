//! A host with Docker, an agent that follows it, and strangers: links and containers that must not be touched.
#![allow(dead_code, reason = "each test file uses its own part of it")]

pub mod imposter;
pub mod proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::docker::SOCKET;
use crate::support::host::{Listener, inode};
use crate::support::kernel::Link;
use crate::support::wire::{thread_name, threads};
use crate::support::wish::with;
use crate::support::{Agent, Canaries, Docker, Host, eventually, eventually_eq, eventually_ok, veth};

/// One end of a pair in a microservice, up, with more fields set or replaced by `more`.
pub fn in_microservice(name: &str, peer: &str, label: &str, more: Value) -> Value {
    let place = json!({"namespace": {"type": "MICROSERVICE_REF_NS", "microservice": label}});
    with(&with(&veth(name, peer, "", json!({})), place), more)
}

/// The pair of most tests: veth1 in microservice ms1 with 10.11.1.1/24 and a MAC, veth2 in microservice ms2 with 10.11.1.2/24; eth1 both.
pub fn the_pair() -> [Value; 2] {
    let more = |n: u8| json!({"host_if_name": "eth1", "ip_addresses": [format!("10.11.1.{n}/24")]});
    [
        with(&in_microservice("veth1", "veth2", "ms1", more(1)), json!({"phys_address": MAC})),
        in_microservice("veth2", "veth1", "ms2", more(2)),
    ]
}

/// How many rounds a test makes: few with all other tests, many where `VNF_TEST_SOAK` is set.
pub fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("VNF_TEST_SOAK").is_some() { many } else { few }
}

/// The configured MAC of veth1.
pub const MAC: &str = "02:00:0a:0b:01:01";

/// A pair between microservice ms1 (veth1, as [`the_pair`]) and the namespace `red` (veth2 with 10.11.1.2/24).
pub fn half_named_pair() -> [Value; 2] {
    let [first, _] = the_pair();
    [first, veth("veth2", "veth1", "red", json!({"ip_addresses": ["10.11.1.2/24"]}))]
}

/// What an agent holds: open files, and ids of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub files: usize,
    pub ids: usize,
}

/// A host with Docker, a namespace `red`, an agent and strangers.
pub struct Bed<'h> {
    pub host: &'h Host,
    pub docker: Docker<'h>,
    pub agent: Agent<'h>,
    canaries: Canaries<'h>,
    /// Path and inode of a stranger's namespace, and its links.
    stranger: (String, u64, Vec<Link>),
    start: u64,
    held: Held,
}

/// A host for [`Bed`].
pub fn host() -> Host {
    let host = Host::contained();
    host.add_netns("red");
    host
}

impl<'h> Bed<'h> {
    /// Docker and strangers, and an agent on the embedded store that has connected to Docker.
    pub fn new(host: &'h Host) -> Self {
        Self::with(host, host.start_docker(), host.agent().on_docker())
    }

    /// With a Docker and an agent, not yet started, of one's own.
    pub fn with(host: &'h Host, docker: Docker<'h>, agent: Agent<'h>) -> Self {
        let canaries = Canaries::plant(host, &["", "red"]);
        docker.run_with("stranger", "vpp1", &["--network=none"], &["sleep", "infinity"]);
        let stranger = docker.netns("stranger");
        for line in ["add eth1 type bridge", "add veth1 group 7 type veth peer name veth2", "set veth2 alias vnf-agent:vpp10:veth:veth2"] {
            host.run(&format!("nsenter --net={stranger} ip link {line}"));
        }
        let (number, links) = (inode(&host.outside(&stranger)), host.links(&stranger));
        let mut bed = Self {
            host,
            docker,
            agent,
            canaries,
            stranger: (stranger, number, links),
            start: inode(&host.netns_file("")),
            held: Held { files: 0, ids: 0 },
        };
        bed.agent.start();
        bed.agent.wait_ready();
        bed.wait_connected();
        bed.held = bed.held();
        bed
    }

    /// Waits until the agent follows Docker.
    pub fn wait_connected(&self) {
        eventually_ok("the agent follows Docker", || {
            let runtime = self.runtime();
            if runtime["connected"] == true { Ok(()) } else { Err(runtime) }
        });
    }

    /// What the agent says of the container runtime.
    pub fn runtime(&self) -> Value {
        let status: Value = serde_json::from_str(&self.agent.http("/status").1).unwrap_or_default();
        status["agent"]["docker"].clone()
    }

    /// Runs the containers ms1 and ms2 with these labels.
    pub fn run_both(&self) {
        self.docker.run("ms1", "ms1");
        self.docker.run("ms2", "ms2");
    }

    /// Waits until [`the_pair`] lies in the containers of these names: after a restart, it may be CONFIGURED still because of the old ones.
    pub fn wait_pair_in(&self, first: &str, second: &str) {
        let places = [self.docker.netns(first), self.docker.netns(second)];
        eventually("the links are in these containers", || {
            places.iter().all(|netns| self.host.try_links(netns).is_ok_and(|links| links.iter().any(|link| link.name == "eth1")))
        });
        self.assert_pair_in(first, second);
    }

    /// Waits until [`the_pair`] is configured; it must be in the containers of these names then, and nowhere else, and carry traffic.
    pub fn assert_pair_in(&self, first: &str, second: &str) {
        self.assert_pair_in_beside(first, second, &[]);
    }

    /// The same, with other links of the agent in other places.
    pub fn assert_pair_in_beside(&self, first: &str, second: &str, others: &[(&str, &[&str])]) {
        self.agent.wait_configured(&["veth1", "veth2"]);
        let (first, second) = (self.docker.netns(first), self.docker.netns(second));
        self.assert_links(&[&[(first.as_str(), ["veth1"].as_slice()), (second.as_str(), ["veth2"].as_slice())], others].concat());
        assert_eq!(self.host.link(&first, "eth1").map(|link| link.mac), Some(MAC.to_owned()));
        assert!(self.host.pings(&first, "10.11.1.2"), "the other end answers");
        assert!(self.host.pings(&second, "10.11.1.1"), "the other end answers");
    }

    /// Waits until the agent's links, told by their aliases, are exactly these (logical names) in these namespaces, and asserts that nothing else was
    /// touched. The kernel removes the links of a namespace that ended only after a while.
    pub fn assert_links(&self, wanted: &[(&str, &[&str])]) {
        let mut by_inode: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for (netns, names) in wanted {
            by_inode.entry(inode(&self.host.netns_file(netns))).or_default().extend(names.iter().map(ToString::to_string));
        }
        eventually_eq("the agent's links by namespace", &by_inode, || self.links_by_inode());
        self.assert_untouched();
    }

    /// The logical names of the agent's links in every namespace of the host that a process is in or that has a name.
    fn links_by_inode(&self) -> BTreeMap<u64, BTreeSet<String>> {
        let mut all = BTreeMap::new();
        for (inode, path) in self.namespaces() {
            // One that ended since holds nothing.
            let Ok(links) = self.host.try_links(&path) else { continue };
            let names: BTreeSet<String> = links
                .iter()
                .filter_map(|link| link.alias.strip_prefix("vnf-agent:vpp1:")?.split_once(':'))
                .map(|(_, name)| name.to_owned())
                .collect();
            if !names.is_empty() {
                all.insert(inode, names);
            }
        }
        all
    }

    /// Paths of all namespaces, one for each.
    fn namespaces(&self) -> BTreeMap<u64, String> {
        let mut all = BTreeMap::new();
        let mut add = |path: String| match inode(&self.host.outside(&path)) {
            0 => {}
            inode => drop(all.entry(inode).or_insert(path)),
        };
        for folder in ["/run/netns", "/run/docker/netns"] {
            names(&self.host.outside(folder)).iter().for_each(|name| add(format!("{folder}/{name}")));
        }
        let processes = names(&self.host.outside("/proc"));
        processes.iter().filter(|name| name.parse::<u32>().is_ok()).for_each(|pid| add(format!("/proc/{pid}/ns/net")));
        all
    }

    /// Asserts that nothing foreign was touched, and that each thread of the agent that stays is where it began.
    pub fn assert_untouched(&self) {
        self.canaries.assert_untouched();
        // Some tests end all containers; Docker may be away.
        let (path, number, links) = &self.stranger;
        if inode(&self.host.outside(path)) == *number {
            assert_eq!(self.host.links(path), *links, "a stranger's links");
        }
        let pid = self.agent.pid();
        for thread in threads(pid, "") {
            let now = inode(Path::new(&format!("/proc/{pid}/task/{thread}/ns/net")));
            // Threads that enter a namespace are named before they do, so the name is read second.
            let name = thread_name(pid, thread);
            assert!(now == 0 || now == self.start || name == "netns", "thread {name} is elsewhere");
        }
    }

    /// What the agent holds now.
    pub fn held(&self) -> Held {
        Held { files: self.files().len(), ids: self.host.run("ip netns list-id").lines().count() }
    }

    /// Its open files, as the kernel shows them.
    fn files(&self) -> Vec<PathBuf> {
        let folder = format!("/proc/{}/fd", self.agent.pid());
        names(Path::new(&folder)).iter().filter_map(|name| std::fs::read_link(format!("{folder}/{name}")).ok()).collect()
    }

    /// Lets Docker tell so many things that concern nobody.
    pub fn flood(&self, count: usize) {
        let mut stream = UnixStream::connect(self.host.outside(SOCKET)).expect("Docker serves");
        for n in 0..count {
            let last = if n + 1 == count { "Connection: close\r\n" } else { "" };
            let path = format!("/images/busybox/tag?repo=other&tag={n}");
            write!(stream, "POST {path} HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n{last}\r\n").expect("Docker reads");
        }
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("Docker answers");
        assert_eq!(answers.matches("201 Created").count(), count, "{answers}");
    }

    /// Hears whatever happens to links in the stranger's namespace from now on.
    pub fn listen_to_stranger(&self) -> Listener {
        self.host.listen_in(&self.stranger.0)
    }

    /// Ends a test: the wishes and the containers go, and nothing may be left of either, nor be held.
    pub fn end(self, containers: &[&str]) {
        self.assert_untouched();
        let written: Vec<String> = self.agent.statuses().iter().filter_map(|status| status["name"].as_str().map(str::to_owned)).collect();
        written.iter().for_each(|name| self.agent.del(name));
        written.iter().for_each(|name| self.agent.wait_forgotten(name));
        eventually_ok("no link is left", || {
            let left = self.links_by_inode();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        if !containers.is_empty() {
            self.docker.ask(&[&["rm", "--force"], containers].concat());
        }
        self.assert_at_rest();
        self.assert_untouched();
    }

    /// Waits until the agent holds no more than it did at its start.
    pub fn assert_at_rest(&self) {
        eventually_ok("nothing is held any more", || {
            let now = self.held();
            // Connections to Docker and to whoever asks come and go.
            let slack = 4;
            let netns: Vec<PathBuf> = self.files().into_iter().filter(|path| path.to_string_lossy().starts_with("net:")).collect();
            let rest = now.files <= self.held.files + slack && now.ids <= self.held.ids && self.are_alive(&netns);
            if rest { Ok(()) } else { Err((now, self.held, netns)) }
        });
    }

    /// Whether these open namespaces (`net:[inode]`) are ones that somebody else keeps, too.
    fn are_alive(&self, open: &[PathBuf]) -> bool {
        let alive = self.namespaces();
        let number = |path: &PathBuf| path.to_string_lossy().trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().unwrap_or_default();
        open.iter().all(|path| alive.contains_key(&number(path)))
    }
}

/// The names in a folder; none when it is not there.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
