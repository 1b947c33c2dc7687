//! Two NICs of one node: each stands and falls alone.

mod node_support;
mod support;

use nix::sys::signal::Signal;
use node_support::*;
use serde_json::json;
use support::{Agent, Etcd, Host, Nic, Ovs, eventually};

const NICS: [&str; 2] = ["nic0", "nic1"];

/// Both behind the bridge, and all who had a part in that; dropped in the order of the fields.
struct Both<'h> {
    agent: Agent<'h>,
    etcd: Etcd<'h>,
    ovs: Ovs<'h>,
    nics: [Nic<'h>; 2],
    before: [Vec<String>; 2],
}

impl<'h> Both<'h> {
    fn start(host: &'h Host) -> Self {
        let nics = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
        let before = NICS.map(|name| settled_shape(host, name));
        let ovs = host.start_ovs();
        let etcd = host.start_etcd();
        let agent = agent(host).started();
        wish(&etcd, &json!([{"name": "nic0"}, {"name": "nic1"}]));
        wait_attached(&etcd, &NICS);
        Self { agent, etcd, ovs, nics, before }
    }

    fn given_back(&self, host: &Host) {
        unwish(&self.etcd);
        NICS.iter().zip(&self.before).for_each(|(name, before)| wait_given_back(host, &self.etcd, name, before));
    }
}

/// C85: chosen by addresses, by name, by hardware address; turned round; one of them given up.
#[test]
fn each_is_chosen_and_given_back_by_itself() {
    let host = Host::new();
    let nics = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
    let before = ["nic0", "nic1"].map(|name| settled_shape(&host, name));
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    let mac = link(&host, "nic1")["address"].as_str().expect("an address").to_owned();
    wish(&etcd, &json!([{"name": "nic0", "ips": ["10.199.0.2", "fd99:199::2"]}, {"name": "nic1", "mac": mac}]));
    let attached = wait_attached(&etcd, &["nic0", "nic1"]);
    nics.iter().zip([5001, 5002]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
    let identities = |status: &serde_json::Value| ["nic0", "nic1"].map(|name| identity(&host, status, name));
    let stand = identities(&attached);
    let mut entities: Vec<String> = attached["entities"].as_array().into_iter().flatten().map(ToString::to_string).collect();
    assert_eq!(entities.len(), 2, "{attached}");
    // Turned round, and chosen otherwise: the same NICs.
    for interfaces in [
        json!([{"name": "nic1", "mac": mac}, {"name": "nic0", "ips": ["10.199.0.2", "fd99:199::2"]}]),
        json!([{"name": "nic1"}, {"name": "nic0"}]),
        json!([{"name": "nic0", "ips": ["10.199.0.2"]}, {"name": "nic1", "ips": ["fd99:199:0:1::2"]}]),
    ] {
        let revision = status(&etcd)["revision"].clone();
        wish(&etcd, &interfaces);
        eventually("the status is that of the new wish", || status(&etcd)["revision"] != revision);
        let now = wait_attached(&etcd, &["nic0", "nic1"]);
        assert_eq!(identities(&now), stand, "after {interfaces}");
        let mut named: Vec<String> = now["entities"].as_array().into_iter().flatten().map(ToString::to_string).collect();
        named.sort();
        entities.sort();
        assert_eq!(named, entities);
    }
    // Alone it needs no name.
    wish(&etcd, &json!([{"ips": ["10.199.0.2"]}]));
    wait_given_back(&host, &etcd, "nic1", &before[1]);
    let alone = wait_attached(&etcd, &["nic0"]);
    assert_eq!(identity(&host, &alone, "nic0"), stand[0]);
    assert!(interface(&alone, "nic1").is_null(), "{alone}");
    nics.iter().zip([5003, 5004]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &before[0]);
    assert_eq!(shape(&host, "nic1"), before[1]);
}

/// The port of one is refused by Open vSwitch: only that one is undone, and told; the other one never notices.
#[test]
fn one_fails_and_the_other_stays() {
    let host = Host::new();
    let nics = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
    let before = settled_shape(&host, "nic1");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    let alone = wait_attached(&etcd, &["nic0"]);
    let stands = identity(&host, &alone, "nic0");
    let traffic = Traffic::start(&host, &nics[0], 5000);
    // Flows of somebody else stand where those of the next ports shall be.
    let strangers: Vec<String> = (1..=9).map(|port| format!("table=205,priority=200,in_port={port}")).collect();
    let numbers = [&stands.0, &stands.1].map(ToString::to_string);
    let free = |flow: &&String| !numbers.iter().any(|number| flow.ends_with(&format!("in_port={number}")));
    strangers.iter().filter(free).for_each(|flow| drop(ovs.ofctl(&format!("add-flow br-int {flow},actions=drop"))));
    wish(&etcd, &json!([{"name": "nic1"}, {"name": "nic0"}]));
    let failed = wait_for(&etcd, "RETRYING", "CONTENDED", "stands in the way");
    assert_eq!(interface(&failed, "nic0")["phase"], "ATTACHED");
    wait_plain(&host, "nic1", &before);
    nics.iter().zip([5001, 5002]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
    assert_eq!(identity(&host, &status(&etcd), "nic0"), stands);
    strangers.iter().filter(free).for_each(|flow| drop(ovs.ofctl(&format!("--strict del-flows br-int {flow}"))));
    let both = wait_attached(&etcd, &["nic0", "nic1"]);
    assert_eq!(identity(&host, &both, "nic0"), stands);
    traffic.end("nic0 while nic1 fails and comes");
    assert_eq!(repairs(&agent), 0);
    // One loses its port: the other one's stay.
    ovs.vsctl("del-port br-int nic1");
    eventually("it is repaired", || repairs(&agent) == 1);
    assert_eq!(identity(&host, &wait_attached(&etcd, &["nic0", "nic1"]), "nic0"), stands);
    nics.iter().zip([5003, 5004]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
}

/// A switch that hangs keeps nobody waiting who can go on without it: ports are waited for when each host is reachable by its NICs.
#[test]
fn no_nic_waits_for_the_ports_of_another() {
    let host = Host::new();
    let both = Both::start(&host);
    let Both { agent, etcd, ovs, nics, .. } = &both;
    let so_far = agent.log().len();
    ovs.signal_switch(Signal::SIGSTOP);
    let log = eventually_long("ports are waited for", || {
        let log = agent.log().split_off(so_far);
        if log.contains("step=CreatePorts") { Ok(log) } else { Err(log) }
    });
    let (first, _) = log.split_once("step=CreatePorts").expect("it is there");
    for name in NICS {
        let is_rescued = |line: &str| line.contains("step=CopyToNic") && line.contains(&format!("nic=\"{name}\""));
        assert!(first.lines().any(is_rescued), "{name}: {log}");
    }
    nics.iter().for_each(|nic| wait_reachable(&host, nic, "while the switch hangs"));
    ovs.signal_switch(Signal::SIGCONT);
    wait_attached(etcd, &NICS);
    nics.iter().zip([5001, 5002]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
    both.given_back(&host);
}

/// Flows are put up for all at once, by whichever NIC is looked at first; who removes them again and again does it to all.
#[test]
fn flows_of_both_that_somebody_removes_all_the_time() {
    let host = Host::new();
    let both = Both::start(&host);
    while_disturbed(
        || remove_flows(&host),
        || {
            eventually_long("both are given back at once", || {
                let now = status(&both.etcd);
                let is_plain = |name: &&str| interface(&now, name)["phase"] == "PLAIN";
                if now["reason"] == "CONTENDED" && NICS.iter().all(is_plain) { Ok(()) } else { Err(now) }
            });
            both.nics.iter().for_each(|nic| wait_reachable(&host, nic, "while somebody removes flows"));
        },
    );
    wait_attached(&both.etcd, &NICS);
    both.given_back(&host);
}
