//! A store that lost its memory gives no NIC back.

mod node_support;
mod support;

use node_support::*;
use serde_json::json;
use support::{Agent, Etcd, Host, Ovs, eventually, eventually_ok};

/// Waits until removals are held back, for the sake of the node.
fn wait_held(agent: &Agent<'_>) {
    eventually_ok("the node is held", || {
        let told = agent.vnfctl(&["status"]).stdout;
        if told.contains("hold") && told.contains("node vpp1") { Ok(()) } else { Err(told) }
    });
}

/// A NIC that is attached and confirmed, and a store that lost its memory; removals are held back.
fn held<'h>(host: &'h Host) -> (Ovs<'h>, Etcd<'h>, Agent<'h>) {
    let ovs = host.start_ovs();
    let mut etcd = host.start_etcd();
    let agent = agent(host).started();
    etcd.pass_revisions(50);
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    eventually("it is confirmed", || agent.log().contains("confirmed: the host"));
    agent.wait_ready();
    etcd.wipe();
    etcd.start();
    wait_held(&agent);
    (ovs, etcd, agent)
}

/// Who asks for a NIC back while removals are held back gets it, and is told so.
#[test]
fn a_nic_is_given_back_on_request_meanwhile() {
    let host = Host::new();
    host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let (_ovs, _etcd, agent) = held(&host);
    agent.ask(&["node", "rollback", "vpp1"]);
    wait_plain(&host, "nic0", &before);
    eventually_ok("it is told as what it is", || {
        let told = agent.vnfctl(&["nodes"]).stdout;
        if told.contains("nic0 was given back on request") { Ok(()) } else { Err(told) }
    });
}

#[test]
fn a_nic_stays_until_removals_are_accepted() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let mut etcd = host.start_etcd();
    let mut agent = agent(&host).started();
    etcd.pass_revisions(50);
    wish(&etcd, &json!([{"name": "nic0"}]));
    let stands = identity(&host, &wait_attached(&etcd, &["nic0"]), "nic0");
    eventually("it is confirmed", || agent.log().contains("confirmed: the host"));
    agent.wait_ready();
    etcd.wipe();
    etcd.start();
    wait_held(&agent);
    // Each start begins with a listing that says nothing of the node.
    for round in 0..3 {
        agent.restart();
        wait_held(&agent);
        eventually_ok("it is told as what it is", || {
            let told = agent.vnfctl(&["nodes"]).stdout;
            if told.contains("stays while removals are held back") { Ok(()) } else { Err(told) }
        });
        nic.passes_all_but(5001 + round, &[]);
        assert_eq!(index(&host, "nic0"), stands.2, "round {round}: the same port");
    }
    // Written again it is no removal any more.
    wish(&etcd, &json!([{"name": "nic0"}]));
    agent.wait_ready();
    assert_eq!(identity(&host, &wait_attached(&etcd, &["nic0"]), "nic0"), stands);
    etcd.wipe();
    etcd.start();
    wait_held(&agent);
    agent.ask(&["resync", "--accept-removals"]);
    wait_plain(&host, "nic0", &before);
    agent.wait_ready();
}

/// What is held back is no reason to keep a NIC from who asks for it by hand; and whoever does writes the wish again when it is to be attached again.
#[test]
fn a_rollback_works_while_removals_are_held_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let (_ovs, etcd, agent) = held(&host);
    agent.ask(&["node", "rollback", "vpp1"]);
    wait_plain(&host, "nic0", &before);
    nic.passes_all_but(5001, &[]);
    agent.ask(&["resync", "--accept-removals"]);
    eventually("that the wish is gone ends the request", || !agent.state_dir().join("rollback.json").exists());
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5002, &[]);
}
