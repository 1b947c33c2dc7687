//! An external node under test: its wish, its status, and traffic that never stops.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::etcd::PREFIX;
use crate::support::{Agent, Etcd, Host, NETWORK, Nic, Ovs, eventually, eventually_ok, eventually_within};

pub const NODE: &str = "external/config/v1/node/vpp1";
pub const STATUS: &str = "external/status/v1/node/vpp1";

/// What the agent writes into its log when it has repaired what others had changed.
const REPAIRED: &str = "what others had changed is repaired";
/// For what is found by the regular look only (every 30 s), or after a silence of the switch.
const LONG: Duration = Duration::from_secs(150);

/// An agent on the etcd of its host, with a bridge of the user-space datapath.
pub fn agent(host: &Host) -> Agent<'_> {
    host.agent().on_etcd().with(&["--ovs-datapath", "netdev"])
}

/// The NIC `nic0`, behind the bridge, and all who had a part in that; dropped in the order of the fields.
pub struct Moved<'h> {
    pub agent: Agent<'h>,
    pub etcd: Etcd<'h>,
    pub ovs: Ovs<'h>,
    pub nic: Nic<'h>,
    /// Its shape as it was found.
    pub before: Vec<String>,
}

impl<'h> Moved<'h> {
    /// Makes the NIC on a bare host, wishes these interfaces, of which it is one, and waits until it is attached.
    pub fn start(host: &'h Host, interfaces: &Value) -> Self {
        Self::furnished(host, &[], interfaces)
    }

    /// As [`Self::start`]; before anything is wished, the NIC is furnished by these commands.
    pub fn furnished(host: &'h Host, commands: &[&str], interfaces: &Value) -> Self {
        let nic = host.add_nic("nic0", 0);
        commands.iter().for_each(|command| drop(host.run(command)));
        let before = settled_shape(host, &nic.name);
        let ovs = host.start_ovs();
        let etcd = host.start_etcd();
        let agent = agent(host).started();
        wish(&etcd, interfaces);
        wait_attached(&etcd, &[&nic.name]);
        Self { agent, etcd, ovs, nic, before }
    }
}

/// Wishes these interfaces.
pub fn wish(etcd: &Etcd<'_>, interfaces: &Value) {
    wish_node(etcd, &json!({"name": "vpp1", "interfaces": interfaces}));
}

pub fn wish_node(etcd: &Etcd<'_>, node: &Value) {
    etcd.put_key(&format!("{PREFIX}{NODE}"), node.to_string().as_bytes());
}

/// Wishes nothing any more.
pub fn unwish(etcd: &Etcd<'_>) {
    let key = format!("{PREFIX}{NODE}");
    etcd.client(async |mut client| client.delete(key, None).await.map(drop)).expect("etcd deletes");
}

pub fn status(etcd: &Etcd<'_>) -> Value {
    etcd.get(&format!("{PREFIX}{STATUS}")).unwrap_or_default()
}

/// Waits, longer than usual, until the probe is `Ok`.
pub fn eventually_long<T, E: Debug>(what: &str, probe: impl FnMut() -> Result<T, E>) -> T {
    eventually_within(LONG, what, probe)
}

/// Waits until the status says so, in a message with these words; returns it.
pub fn wait_for(etcd: &Etcd<'_>, state: &str, reason: &str, words: &str) -> Value {
    eventually_long(&format!("the node is {state} {reason} {words}"), || {
        let status = status(etcd);
        let so = status["state"] == state && status["reason"] == reason && status["message"].to_string().contains(words);
        if so { Ok(status) } else { Err(status) }
    })
}

pub fn wait_configured(etcd: &Etcd<'_>) -> Value {
    wait_for(etcd, "CONFIGURED", "", "")
}

/// Waits until every interface of the status is attached; returns it.
pub fn wait_attached(etcd: &Etcd<'_>, names: &[&str]) -> Value {
    eventually_long(&format!("{names:?} are attached"), || {
        let status = status(etcd);
        let attached = |name: &&str| interface(&status, name)["phase"] == "ATTACHED";
        if status["state"] == "CONFIGURED" && names.iter().all(attached) { Ok(status) } else { Err(status) }
    })
}

/// What a status says of one interface.
pub fn interface<'v>(status: &'v Value, name: &str) -> &'v Value {
    status["interfaces"].as_array().into_iter().flatten().find(|interface| interface["name"] == name).unwrap_or(&Value::Null)
}

/// The numbers of both ports and the index of the link that has the NIC's name: what a handover would change.
pub fn identity(host: &Host, status: &Value, name: &str) -> (Value, Value, String) {
    let interface = interface(status, name);
    (interface["host_ofport"].clone(), interface["uplink_ofport"].clone(), index(host, name))
}

pub fn index(host: &Host, name: &str) -> String {
    link(host, name)["ifindex"].to_string()
}

/// A link as `ip` shows it.
pub fn link(host: &Host, name: &str) -> Value {
    let links: Vec<Value> = serde_json::from_str(&host.run(&format!("ip -d -j link show dev {name}"))).expect("JSON");
    links.into_iter().next().expect("the link")
}

pub fn is_behind(host: &Host, name: &str) -> bool {
    host.link_names("").contains(&format!("{name}~"))
}

/// How often the agent has repaired what others had changed.
pub fn repairs(agent: &Agent<'_>) -> usize {
    agent.log().matches(REPAIRED).count()
}

/// Addresses and routes of a link, without what changes by itself.
pub fn shape(host: &Host, name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for family in ["-4", "-6"] {
        // On its way the link is not there for a moment, which is a shape of its own.
        let list = |what: &str| -> Vec<Value> {
            let text = host.try_run(&format!("ip {family} -d -j {what}")).unwrap_or_default();
            serde_json::from_str(&text).unwrap_or_default()
        };
        let links = list(&format!("address show dev {name}"));
        let mut addresses: Vec<Value> = links.iter().flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default()).collect();
        let mut routes = list(&format!("route show table all dev {name}"));
        for changing in ["valid_life_time", "preferred_life_time", "expires"] {
            addresses.iter_mut().chain(&mut routes).filter_map(Value::as_object_mut).for_each(|object| {
                // That it ends stays.
                if object.get(changing).is_some_and(|seconds| seconds.as_u64() != Some(u64::from(u32::MAX))) {
                    object.insert(changing.to_owned(), json!("ends"));
                }
            });
        }
        lines.extend(addresses.iter().chain(&routes).map(ToString::to_string));
    }
    lines.sort();
    lines
}

/// As [`shape`], once the kernel has tried its own link-locals, and has made the route of every address, which it does some time later.
pub fn settled_shape(host: &Host, name: &str) -> Vec<String> {
    eventually("addresses are usable", || {
        let text = host.run(&format!("ip -6 -o address show dev {name}"));
        let routes = host.run(&format!("ip -6 route show table local type local dev {name}"));
        let has_route = |line: &str| {
            let address = line.split_whitespace().skip_while(|word| *word != "inet6").nth(1).and_then(|word| word.split('/').next());
            address.is_some_and(|address| routes.lines().any(|route| route.split_whitespace().any(|word| word == address)))
        };
        text.contains("fe80") && !text.contains("tentative") && text.lines().all(has_route)
    });
    shape(host, name)
}

/// Waits until the NIC is plain and its shape is as it was.
pub fn wait_plain(host: &Host, name: &str, before: &Vec<String>) {
    eventually_long(&format!("{name} is given back as it was"), || {
        if is_behind(host, name) {
            return Err(vec!["it is behind the bridge".to_owned()]);
        }
        let now = shape(host, name);
        if now == *before { Ok(()) } else { Err(now.iter().filter(|line| !before.contains(line)).cloned().collect()) }
    });
}

/// As [`wait_plain`], and until the journal is gone too: nothing is told of the NIC any more.
pub fn wait_given_back(host: &Host, etcd: &Etcd<'_>, name: &str, before: &Vec<String>) {
    wait_plain(host, name, before);
    eventually(&format!("nothing more is told of {name}"), || interface(&status(etcd), name).is_null());
}

/// Waits until every address of a NIC answers from outside.
pub fn wait_reachable(host: &Host, nic: &Nic<'_>, when: &str) {
    for address in nic.addresses() {
        eventually_ok(&format!("{address} answers {when}"), || {
            if host.pings(NETWORK, &address.to_string()) {
                Ok(())
            } else {
                Err(host.run("ip -d address") + &host.run("ip route show table all"))
            }
        });
    }
}

/// A `ping` every 2 ms.
pub struct Ping(Child);

/// What became of probes.
#[derive(Debug)]
pub struct Lost {
    pub sent: u64,
    pub lost: u64,
}

impl Ping {
    pub fn start(host: &Host, netns: &str, address: IpAddr) -> Self {
        let mut command = host.command(netns, "ping");
        command.args(["-i", "0.002", "-W", "10", &address.to_string()]).stdout(Stdio::piped());
        Self(command.spawn().expect("nsenter starts"))
    }

    pub fn end(self) -> Lost {
        let pid = i32::try_from(self.0.id()).expect("a process number");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGINT).expect("it runs");
        let output = self.0.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let summary = text.lines().find(|line| line.contains("packets transmitted")).unwrap_or_else(|| panic!("no summary: {text}"));
        let numbers: Vec<u64> = summary.split([' ', ',', '+']).filter_map(|word| word.parse().ok()).collect();
        Lost { sent: numbers[0], lost: numbers[0].saturating_sub(numbers[1]) }
    }
}

/// One TCP connection that asks and is answered every 2 ms, for as long as it lives.
pub struct Talk {
    stop: Arc<AtomicBool>,
    said: Arc<AtomicUsize>,
    thread: JoinHandle<Result<Duration, String>>,
}

/// How long an answer of a connection may take: TCP repeats what is lost ever more seldom.
const PATIENT: Duration = Duration::from_secs(100);

/// How much is said at a time, bytes: within a second it is more than a window of TCP, so that who was not told of all of it is outside.
const WORD: usize = 1024;

impl Talk {
    pub fn start(host: &Host, from: &str, to: &str, address: SocketAddr) -> Self {
        let listener = host.inside(to, || TcpListener::bind(address)).expect("the address is there and its port is free");
        std::thread::spawn(move || {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut word = [0; WORD];
            while stream.read_exact(&mut word).is_ok() && stream.write_all(&word).is_ok() {}
        });
        let stream = host.inside(from, || TcpStream::connect_timeout(&address, PATIENT)).expect("it connects");
        let (stop, said) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&said));
        let thread = std::thread::spawn(move || talk(stream, &stopped, &count).map_err(|error| error.to_string()));
        Self { stop, said, thread }
    }

    /// Waits until some more is said and answered.
    pub fn wait_for_some(&self) {
        let before = self.said.load(Ordering::SeqCst);
        eventually_long("the connection is answered", || {
            let now = self.said.load(Ordering::SeqCst);
            if now >= before + 20 { Ok(()) } else { Err(now - before) }
        });
    }

    /// Ends it; the longest that it waited for an answer.
    ///
    /// # Panics
    /// When the connection was lost.
    pub fn end(self) -> Duration {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("no panic in the connection").expect("the connection outlives everything")
    }
}

fn talk(mut stream: TcpStream, stop: &AtomicBool, said: &AtomicUsize) -> std::io::Result<Duration> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENT))?;
    let (mut longest, mut number) = (Duration::ZERO, 0_u64);
    while !stop.load(Ordering::SeqCst) {
        let asked = Instant::now();
        let mut word = [0; WORD];
        word[..8].copy_from_slice(&number.to_be_bytes());
        stream.write_all(&word)?;
        let mut answer = [0; WORD];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, word);
        longest = longest.max(asked.elapsed());
        number += 1;
        said.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(longest)
}

/// Pings and connections of both families, from the network to the host.
pub struct Traffic {
    pings: Vec<Ping>,
    talks: Vec<Talk>,
}

impl Traffic {
    /// Connections go to this port.
    pub fn start(host: &Host, nic: &Nic<'_>, port: u16) -> Self {
        let pings = nic.addresses().map(|address| Ping::start(host, NETWORK, address)).into();
        // The host asks: the address that it asks from stays the same wherever it stands.
        let talks = nic.far_addresses().map(|address| Talk::start(host, "", NETWORK, SocketAddr::new(address, port))).into();
        let traffic = Self { pings, talks };
        traffic.wait_for_some();
        traffic
    }

    pub fn wait_for_some(&self) {
        self.talks.iter().for_each(Talk::wait_for_some);
    }

    /// Ends it, says what was lost, and returns the greatest loss.
    #[allow(clippy::print_stderr, reason = "a measurement, shown with the test's output")]
    pub fn end(self, what: &str) -> Lost {
        self.wait_for_some();
        let longest: Vec<Duration> = self.talks.into_iter().map(Talk::end).collect();
        let lost: Vec<Lost> = self.pings.into_iter().map(Ping::end).collect();
        eprintln!("{what}: pings {lost:?}, longest silence of the connections {longest:?}");
        lost.into_iter().max_by_key(|lost| lost.lost).expect("two of them")
    }
}

/// Ends with the value, also when the test fails.
struct Disturber<'a>(&'a AtomicBool);

impl Drop for Disturber<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something again and again on a thread of its own, as long as this runs.
pub fn while_disturbed(disturb: impl Fn() + Sync, then: impl FnOnce()) {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _disturber = Disturber(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                disturb();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        then();
    });
}

/// Removes all flows of the bridge, if it can be had.
pub fn remove_flows(host: &Host) {
    let _its_outcome_does_not_matter =
        host.command("", "ovs-ofctl").args(["--timeout=10", "-O", "OpenFlow15", "del-flows", "br-int"]).output();
}

/// Runs `ip` with these words on the port that has a NIC's name, if it is one, by its own index: the NIC may have the name by the time.
pub fn on_port(host: &Host, nic: &str, words: &str) {
    let shown = host.try_run(&format!("ip -d -j link show dev {nic}")).unwrap_or_default();
    let links: Vec<Value> = serde_json::from_str(&shown).unwrap_or_default();
    if let Some(port) = links.iter().find(|link| link["linkinfo"]["info_kind"] == "tun") {
        let _it_may_be_gone = host.try_run(&format!("ip {words} if{}", port["ifindex"]));
    }
}
