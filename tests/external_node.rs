//! An external node with the real agent, etcd and Open vSwitch: a wish puts the host's NIC behind the bridge, and nothing loses the host.

mod node_support;
mod support;

use std::time::Duration;

use nix::sys::signal::Signal;
use node_support::*;
use serde_json::{Value, json};
use support::etcd::PREFIX;
use support::{Host, eventually, eventually_eq};

fn node(more: &Value) -> Value {
    let mut value = json!({"name": "vpp1", "interfaces": [{"name": "nic0", "ips": ["10.199.0.2"]}]});
    for (key, part) in more.as_object().expect("an object") {
        value[key] = part.clone();
    }
    value
}

#[test]
fn a_wish_puts_a_nic_behind_the_bridge_and_its_end_gives_it_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip route add default via 10.199.0.1 dev nic0 metric 50");
    let before = settled_shape(&host, "nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish_node(&etcd, &node(&json!({"labels": {"app": "db"}})));
    let attached = wait_configured(&etcd);
    let interface = &attached["interfaces"][0];
    assert_eq!((&interface["phase"], &interface["uplink"], &interface["mtu"]), (&json!("ATTACHED"), &json!("nic0~"), &json!(1400)));
    assert_eq!(interface["ip_addresses"], json!(["10.199.0.2/24", "fd99:199::2/64"]));
    nic.passes_all_but(5001, &[]);
    eventually_eq("it is as it was", &before, || shape(&host, "nic0"));
    // A policy stops what the flows carry: nothing goes past them.
    ovs.ofctl("add-flow br-int table=203,priority=100,ip,actions=drop");
    let ipv4: Vec<String> = nic.ways().into_iter().filter(|way| way.contains("10.199.")).collect();
    nic.passes_all_but(5002, &ipv4);
    ovs.ofctl("del-flows br-int table=203,ip");
    let reference =
        etcd.get(&format!("{PREFIX}external/status/v1/entity/default/{}", attached["entities"][0].as_str().unwrap_or_default()));
    let reference = reference.expect("a reference");
    assert_eq!(
        (&reference["external_node"], &reference["interface"], &reference["labels"]),
        (&json!("vpp1"), &json!("nic0"), &json!({"app": "db"}))
    );
    // Other labels change the reference and nothing else.
    let ports = |status: &Value| (status["interfaces"][0]["host_ofport"].clone(), status["interfaces"][0]["uplink_ofport"].clone());
    wish_node(&etcd, &node(&json!({"labels": {"app": "web"}})));
    eventually_eq("the labels are told", &json!({"app": "web"}), || {
        let key = format!("{PREFIX}external/status/v1/entity/default/{}", attached["entities"][0].as_str().unwrap_or_default());
        etcd.get(&key).map_or(Value::Null, |reference| reference["labels"].clone())
    });
    assert_eq!(ports(&wait_configured(&etcd)), ports(&attached));
    unwish(&etcd);
    eventually("the NIC is given back", || !is_behind(&host, "nic0") && status(&etcd).is_null());
    eventually_eq("everything is as it was", &before, || shape(&host, "nic0"));
    nic.passes_all_but(5003, &[]);
    eventually("no flow of ours is left", || !ovs.ofctl("dump-flows br-int").contains("table=201"));
    eventually_long("who stood by is gone, and was waited for", || {
        let children = host.try_run(&format!("ps --no-headers -o pid,stat,args --ppid {}", agent.pid())).unwrap_or_default();
        if children.trim().is_empty() { Ok(()) } else { Err(children) }
    });
    drop(agent);
}

#[test]
fn wishes_that_cannot_be_are_told_and_touch_nothing() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let _second = host.add_nic("nic1", 1);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    let interfaces = |value: Value| node(&json!({"interfaces": value}));
    wish_node(&etcd, &interfaces(json!([{"ips": ["10.9.9.9"]}])));
    wait_for(&etcd, "PENDING", "LINK_MISSING", "10.199.0.2/24 on nic0");
    wish_node(&etcd, &interfaces(json!([{"ips": ["10.199.0.2", "10.199.1.2"]}])));
    wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", "10.199.1.2 is on nic1");
    wish_node(&etcd, &interfaces(json!([{}])));
    wait_for(&etcd, "INVALID", "BAD_SELECTION", "");
    wish_node(&etcd, &json!({"name": "vpp1", "namespace": "elsewhere", "interfaces": [{"name": "nic0"}]}));
    wait_for(&etcd, "UNIMPLEMENTED", "", "");
    host.run("ip link add br9 type bridge");
    host.run("ip link set nic1 master br9");
    wish_node(&etcd, &interfaces(json!([{"name": "nic1"}])));
    wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", "port of br9");
    host.run("ip address change 10.199.0.2/24 dev nic0 valid_lft 3600 preferred_lft 3600");
    wish_node(&etcd, &node(&json!({})));
    wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", "lease");
    assert!(!is_behind(&host, "nic0"));
    host.run("ip address change 10.199.0.2/24 dev nic0 valid_lft forever preferred_lft forever");
    // And as soon as nothing stands against it, it happens.
    wait_configured(&etcd);
    nic.passes_all_but(5001, &[]);
    eventually_eq("it is as it was", &before, || shape(&host, "nic0"));
}

#[test]
fn an_agent_that_is_killed_takes_up_its_journal_without_its_store() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let mut etcd = host.start_etcd();
    let mut agent = agent(&host).started();
    for round in 0..6u64 {
        wish_node(&etcd, &node(&json!({})));
        // At another moment of the way each time.
        std::thread::sleep(Duration::from_millis(15 * round * round));
        agent.kill();
        etcd.kill();
        eventually(&format!("the host is reachable after the kill of round {round}, with neither agent nor store"), || {
            host.pings("net", "10.199.0.2")
        });
        agent.spawn();
        nic.passes_all_but(5001, &[]);
        etcd.start();
        wait_configured(&etcd);
        nic.passes_all_but(5002, &[]);
        unwish(&etcd);
        std::thread::sleep(Duration::from_millis(10 * round * round));
        agent.kill();
        eventually("the host is reachable without an agent", || host.pings("net", "10.199.0.2"));
        agent.spawn();
        eventually_eq(&format!("everything is as it was after round {round}"), &before, || {
            if is_behind(&host, "nic0") { Vec::new() } else { shape(&host, "nic0") }
        });
    }
}

#[test]
fn what_is_not_confirmed_is_undone() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let mut agent = agent(&host).with(&["--node-confirm-timeout", "3s"]).started();
    let uplink = || is_behind(&host, "nic0");
    // The agent is frozen in the middle: the process that stands by ends it and goes back.
    wish_node(&etcd, &node(&json!({})));
    eventually("the way has begun", uplink);
    agent.signal(Signal::SIGSTOP);
    etcd.freeze();
    eventually("the NIC is given back although the agent hangs", || !uplink());
    eventually_eq("everything is as it was", &before, || shape(&host, "nic0"));
    agent.kill();
    // The agent lives and cannot reach its store any more.
    etcd.thaw();
    agent.start();
    eventually("it is attached again", uplink);
    etcd.freeze();
    eventually("it was not confirmed, or was confirmed before", || {
        !uplink() || agent.log().contains("confirmed: the host reaches its store")
    });
    etcd.thaw();
    // A busy machine may need longer than that for the whole way: with the usual time it is attached.
    agent.kill();
    let _patient = node_support::agent(&host).started();
    wait_configured(&etcd);
    nic.passes_all_but(5001, &[]);
}

#[test]
fn an_operator_sees_plans_and_takes_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    assert_eq!(agent.ask(&["-o", "json", "nodes"]).trim(), "[]");
    assert_eq!(agent.vnfctl(&["node", "plan", "vpp1"]).code, 1);
    wish_node(&etcd, &node(&json!({})));
    wait_configured(&etcd);
    let nodes: Value = serde_json::from_str(&agent.ask(&["-o", "json", "nodes"])).expect("JSON");
    assert_eq!((&nodes[0]["state"], &nodes[0]["interfaces"][0]["phase"]), (&json!("CONFIGURED"), &json!("ATTACHED")));
    assert!(agent.ask(&["nodes"]).contains("nic0~"));
    let plan = agent.ask(&["node", "plan", "vpp1"]);
    assert!(plan.contains("nic0 behind the bridge: nothing to do") && plan.contains("nic0 back: rename nic0~ to nic0"), "{plan}");
    agent.ask(&["node", "confirm", "vpp1"]);
    agent.ask(&["node", "rollback", "vpp1"]);
    eventually("the NIC is given back", || !is_behind(&host, "nic0"));
    wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", "given back on request");
    wish_node(&etcd, &node(&json!({"labels": {"again": "yes"}})));
    wait_configured(&etcd);
    nic.passes_all_but(5001, &[]);
}
