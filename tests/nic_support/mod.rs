//! A host with a NIC and a real Open vSwitch, and what is needed to move the NIC behind it without an agent.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod rig;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use vnf_agent::external_node::handover::{FlowsError, Handover, HandoverError, HandoverSettings, Outcome, PairFlows, Purpose, Seen};
use vnf_agent::external_node::journal::JournalFolder;
use vnf_agent::external_node::phase::{Goal, Observation, Step};
use vnf_agent::linux::netns_thread::cookie_of;
use vnf_agent::linux::nic::NicKernel;
use vnf_agent::model::{AgentLabel, Datapath};
use vnf_agent::namespace::{NetnsHandle, OpenNetns};
use vnf_agent::ovs::{Dpctl, Notes, OfPort, OvsClient, OvsEvent, OvsOptions, OvsSink, Switch};

use crate::support::ovs::Ovs;
use crate::support::{Host, eventually, eventually_ok};

pub const BRIDGE: &str = "br-int";
pub const HERE: &str = "10.0.0.2";
pub const HERE_6: &str = "2001:db8::2";

struct ByPath(PathBuf);

impl OpenNetns for ByPath {
    fn open(&self) -> io::Result<OwnedFd> {
        Ok(File::open(&self.0)?.into())
    }
}

/// The host's own namespace.
pub fn netns_of(host: &Host) -> NetnsHandle {
    let path = host.netns_file("");
    let file = File::open(&path).expect("the host's namespace");
    let id = cookie_of(file.as_fd()).expect("its cookie");
    NetnsHandle { id, inode: 0, own: true, opener: Arc::new(ByPath(path)) }
}

/// A host whose NIC `nic0` leads to the namespace `net`, with a little of everything on it.
pub fn furnish(host: &Host) {
    host.run("ip link add nic0 address 02:00:00:00:00:02 type veth peer name p0 netns net");
    host.run("ip link set nic0 up mtu 1400");
    host.run("ip -n net link set p0 up mtu 1400");
    for address in ["10.0.0.1/24", "10.0.0.254/24"] {
        host.run(&format!("ip -n net address add {address} dev p0"));
    }
    host.run("ip -n net address add 2001:db8::1/64 dev p0 nodad");
    for address in ["10.0.0.2/24 brd 10.0.0.255", "10.0.0.3/24", "10.0.0.4/24 label nic0:x", "10.1.0.2/24 noprefixroute"] {
        host.run(&format!("ip address add {address} dev nic0"));
    }
    host.run("ip address add 2001:db8::2/64 dev nic0 nodad");
    host.run("ip address add 2001:db8::3/64 dev nic0 nodad noprefixroute");
    eventually("addresses are usable", || !host.run("ip -6 address show dev nic0").contains("tentative"));
    for route in
        ["default via 10.0.0.1 metric 50 proto static", "10.50.0.0/16 via 10.0.0.254 table 100", "10.51.0.1 scope link src 10.0.0.3"]
    {
        host.run(&format!("ip route add {route} dev nic0"));
    }
    host.run("ip -6 route add default via 2001:db8::1 dev nic0 metric 77");
    host.run("ip rule add from 10.0.0.3 lookup 100");
    host.run("ip rule add iif nic0 lookup 100");
}

/// Everything that `ip` shows of the link with this name, without what changes by itself; and whether anything is left of the uplink.
pub fn digest(host: &Host, name: &str) -> Value {
    let json = |line: &str| -> Vec<Value> { serde_json::from_str(&host.run(line)).unwrap_or_default() };
    let link = json(&format!("ip -d -j address show dev {name}")).pop().expect("the link");
    let mut addresses = link["addr_info"].as_array().expect("addresses").clone();
    addresses[..].sort_by_key(|a| if a["family"] == "inet" { String::new() } else { a["local"].to_string() });
    let mut routes: Vec<Value> = ["-4", "-6"].iter().flat_map(|f| json(&format!("ip {f} -d -j route show table all dev {name}"))).collect();
    routes.sort_by_key(ToString::to_string);
    let flags = ["UP", "PROMISC"].map(|flag| link["flags"].as_array().is_some_and(|flags| flags.iter().any(|one| one == flag)));
    json!({"mtu": link["mtu"], "mac": link["address"], "flags": flags, "addresses": addresses, "routes": routes, "rules": json("ip -j rule")})
}

/// Waits until the digest is as it was.
pub fn wait_digest(host: &Host, what: &str, before: &Value) {
    eventually_ok(what, || {
        let now = digest(host, "nic0");
        let parts = before.as_object().expect("an object");
        let differing: Vec<String> =
            parts.iter().filter(|(k, v)| now[*k] != **v).map(|(k, v)| format!("{k}: {} not {v}", now[k])).collect();
        if differing.is_empty() { Ok(()) } else { Err(differing) }
    });
}

/// Both families answer from outside.
pub fn assert_reachable(host: &Host, when: &str) {
    for address in [HERE, HERE_6] {
        eventually(&format!("{address} answers {when}"), || host.pings("net", address));
    }
}

/// Flows that stand in for the real ones: a bridge without any forwards by itself.
#[derive(Default)]
pub struct NoFlows {
    installed: Mutex<BTreeSet<String>>,
    /// How often somebody asked whether they stand.
    pub asked: AtomicUsize,
}

impl PairFlows for NoFlows {
    fn stand(&self, nic: &str, _ports: Option<(OfPort, OfPort)>) -> Result<bool, FlowsError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(self.installed.lock().expect("no panic").contains(nic))
    }
    fn install(&self, nic: &str, _ports: (OfPort, OfPort)) -> Result<(), FlowsError> {
        self.installed.lock().expect("no panic").insert(nic.to_owned());
        Ok(())
    }
    fn remove(&self, nic: &str) -> Result<(), FlowsError> {
        self.installed.lock().expect("no panic").remove(nic);
        Ok(())
    }
    fn forget_connections(&self) -> Result<(), FlowsError> {
        Ok(())
    }
}

/// Remembers whether the switch's process answers.
pub struct Alive(pub Arc<AtomicBool>);

impl OvsSink for Alive {
    fn tell(&self, event: OvsEvent) {
        match event {
            OvsEvent::SwitchBack => self.0.store(true, Ordering::Relaxed),
            OvsEvent::SwitchLost(_) => self.0.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// What a fresh process would have: nothing but what is on disk, in the kernel and in the database.
pub struct Mover {
    pub handover: Handover,
    pub switch: Arc<dyn Switch>,
}

pub fn mover(ovs: &Ovs<'_>, flows: &Arc<NoFlows>, boot_id: &str) -> Mover {
    let host = ovs.host;
    let options = OvsOptions::new(ovs.target(), AgentLabel::new("vpp1").expect("a label"), BRIDGE.to_owned());
    let alive = Arc::new(AtomicBool::new(true));
    let switch: Arc<dyn Switch> = Arc::new(OvsClient::start(options, Arc::new(Alive(alive.clone()))).expect("a thread"));
    let journals = JournalFolder::open(&host.path("")).expect("a folder");
    let settings = HandoverSettings {
        bridge: BRIDGE.to_owned(),
        datapath: Datapath::Netdev,
        boot_id: boot_id.to_owned(),
        confirm_within: Duration::from_secs(60),
        dpctl: Dpctl::with_program(host.path("ovs-dpctl")),
    };
    let handover = Handover::new(NicKernel::new(netns_of(host)), switch.clone(), flows.clone(), journals, settings, alive);
    eventually("the database answers", || switch.read().is_ok());
    Mover { handover, switch }
}

pub fn purpose() -> Purpose {
    let notes = Notes { orig_name: Some("nic0".into()), entity: Some("default/host1".into()), ..Notes::default() };
    Purpose { node: "host1".into(), namespace: "default".into(), attachment: "a1".into(), notes }
}

impl Mover {
    pub fn drive(&mut self, goal: Goal) -> Result<Option<Outcome>, HandoverError> {
        self.handover.drive("nic0", goal, &purpose(), |_, _| true)
    }

    pub fn to(&mut self, goal: Goal) {
        match self.drive(goal) {
            Ok(Some(Outcome::Done(_))) => {}
            other => panic!("to {goal:?}: {other:#?}"),
        }
    }

    /// Goes until this many steps are taken, and stops as if it were killed; the step before which it stopped, if the way is that long.
    pub fn stop_after(&mut self, steps: usize, goal: Goal) -> Option<(Step, Observation)> {
        let (mut taken, mut stopped) = (0, None);
        let before = |step: Step, seen: &Seen| {
            if taken == steps {
                stopped = Some((step, seen.observation));
                return false;
            }
            taken += 1;
            true
        };
        self.handover.drive("nic0", goal, &purpose(), before).expect("every step goes well");
        stopped
    }
}
