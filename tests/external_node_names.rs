//! Names that the host hangs on: whatever is wished of interfaces, its NIC, its port and the bridge are not touched.

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::wish::{auto_tap, tap};
use support::{Agent, Etcd, Host, Nic, eventually_ok};

fn wait_state(agent: &Agent<'_>, name: &str, wanted: &[(&str, &str)]) -> Value {
    eventually_ok(&format!("`{name}` is one of {wanted:?}"), || {
        let status = agent.status(name).unwrap_or_default();
        let so = wanted.iter().any(|(state, reason)| status["state"] == *state && status["reason"] == *reason);
        if so { Ok(status) } else { Err(status) }
    })
}

/// The host's own port, in the host's own namespace, as it was made.
fn assert_stands(host: &Host, nic: &Nic<'_>, when: &str) {
    wait_reachable(host, nic, when);
    let port = link(host, "nic0");
    assert_eq!((port["ifalias"].as_str(), port["linkinfo"]["info_kind"].as_str()), (None, Some("tun")), "{when}: {port}");
}

/// A wish for a TAP of a program is written before, or while, or after the NIC of that name is put behind the bridge, whose port is a TAP.
#[test]
fn a_port_is_no_tap_that_a_program_made() {
    for (order, netns) in [("before", "red"), ("at once", "red"), ("after", "red"), ("after", "")] {
        let host = Host::with_netns(&["red"]);
        let nic = host.add_nic("nic0", 0);
        let before = settled_shape(&host, "nic0");
        let _ovs = host.start_ovs();
        let etcd = host.start_etcd();
        let mut agent = agent(&host).started();
        let put = |etcd: &Etcd<'_>| etcd.put_all(&[auto_tap("t", netns, "nic0", json!({"host_if_name": "eth1"}))]);
        if order == "before" {
            put(&etcd);
            // A NIC is no TAP.
            wait_state(&agent, "t", &[("FAILED", "FOREIGN_LINK")]);
        }
        wish(&etcd, &json!([{"name": "nic0"}]));
        if order == "at once" {
            put(&etcd);
        }
        wait_attached(&etcd, &["nic0"]);
        if order == "after" {
            put(&etcd);
        }
        let status = wait_state(&agent, "t", &[("FAILED", "NAME_CONFLICT")]);
        assert!(status["message"].as_str().is_some_and(|message| message.contains("the external node's NIC nic0")), "{status}");
        assert_stands(&host, &nic, order);
        // An agent that has just started knows it by its journal.
        agent.kill();
        agent.start();
        wait_state(&agent, "t", &[("FAILED", "NAME_CONFLICT")]);
        wait_attached(&etcd, &["nic0"]);
        assert_stands(&host, &nic, "after a restart");
        assert!(host.link(netns, "eth1").is_none());
        assert_eq!(repairs(&agent), 0, "{order}: nobody has touched it");
        unwish(&etcd);
        wait_plain(&host, "nic0", &before);
        wait_state(&agent, "t", &[("FAILED", "FOREIGN_LINK")]);
        nic.passes_all_but(5001, &[]);
    }
}

/// The names of the uplink and of the bridge are nobody's either, as long as there is a NIC; then whoever wished one gets it.
#[test]
fn a_name_is_reserved_until_the_nic_is_back() {
    let host = Host::with_netns(&["red"]);
    let furniture = ["ip link property add dev nic0 altname enp0"];
    let Moved { nic, before, ovs: _ovs, etcd, agent } = Moved::furnished(&host, &furniture, &json!([{"name": "nic0"}]));
    let names = ["nic0", "nic0~", "enp0", "br-int"];
    let wishes: Vec<Value> =
        names.iter().enumerate().map(|(n, name)| tap(&format!("t{n}"), "", json!({}), json!({"host_if_name": name}))).collect();
    etcd.put_all(&wishes);
    for n in 0..names.len() {
        wait_state(&agent, &format!("t{n}"), &[("FAILED", "NAME_CONFLICT")]);
    }
    assert_stands(&host, &nic, "while its names are wished");
    unwish(&etcd);
    wait_state(&agent, "t1", &[("CONFIGURED", "")]);
    wait_state(&agent, "t0", &[("FAILED", "FOREIGN_LINK")]);
    // It would be taken for the uplink.
    etcd.delete("t1");
    wait_plain(&host, "nic0", &before);
    nic.passes_all_but(5001, &[]);
}
