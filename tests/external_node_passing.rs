//! What is on a NIC for a time only: what a router told, what was leased; and names that somebody else wishes.

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::{Host, eventually, eventually_ok};

fn addresses(host: &Host) -> String {
    host.try_run("ip -6 -o address show dev nic0").unwrap_or_default()
}

fn routes(host: &Host) -> String {
    host.try_run("ip -6 route show dev nic0").unwrap_or_default()
}

/// What a router advertised comes along; what it takes back is gone and nobody puts it back; what it says anew is there, and goes back with the NIC.
#[test]
fn what_a_router_says() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let (first, second) = ("fd77::".parse().expect("an address"), "fd78::".parse().expect("an address"));
    let learned = |net: &str| {
        eventually_ok(&format!("{net} is learned"), || {
            let (addresses, routes) = (addresses(&host), routes(&host));
            let known = addresses.contains(net) && !addresses.contains("tentative") && routes.contains("proto ra");
            if known { Ok(()) } else { Err((addresses, routes)) }
        });
    };
    eventually("the far side can speak", || !host.run("ip -n net -6 address show").contains("tentative"));
    nic.advertise(first, 1800);
    learned("fd77::");
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    eventually_ok("all came along", || if shape(&host, "nic0") == before { Ok(()) } else { Err((shape(&host, "nic0"), before.clone())) });
    // The router lets its word run out: that is no drift. The kernel clears it away after some more time.
    nic.advertise(first, 2);
    eventually_long("the route is gone", || if routes(&host).contains("default") { Err(routes(&host)) } else { Ok(()) });
    let repaired = repairs(&agent);
    host.run("ip address del 10.199.0.2/24 dev nic0");
    eventually_long("what lasts is repaired", || if repairs(&agent) == repaired + 1 { Ok(()) } else { Err(repairs(&agent)) });
    wait_attached(&etcd, &["nic0"]);
    assert!(!routes(&host).contains("default"), "{}", routes(&host));
    assert_eq!(repaired, 0, "what a router takes back is no drift");
    nic.passes_all_but(5001, &[]);
    nic.advertise(second, 1800);
    learned("fd78::");
    unwish(&etcd);
    eventually("it is given back", || !is_behind(&host, "nic0"));
    learned("fd78::");
    nic.passes_all_but(5002, &[]);
}

/// A NIC that somebody leases addresses for is refused, unless that is allowed; then the lease comes along with what is left of it.
#[test]
fn a_lease_comes_along_where_that_is_allowed() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip address change 10.199.0.2/24 dev nic0 valid_lft 3600 preferred_lft 1800");
    host.run("ip route add default via 10.199.0.1 dev nic0 proto dhcp metric 100");
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).with(&["--node-managed-nic", "allow"]).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    assert_eq!(shape(&host, "nic0"), before);
    let left = || -> u64 {
        let links: Vec<Value> = serde_json::from_str(&host.run("ip -4 -j address show dev nic0")).expect("JSON");
        links[0]["addr_info"][0]["valid_life_time"].as_u64().expect("a lifetime")
    };
    assert!((1000..=3600).contains(&left()), "{}", left());
    // Its client renews it, or lets it go; neither is drift.
    host.run("ip address change 10.199.0.2/24 dev nic0 valid_lft 7200 preferred_lft 7200");
    host.run("ip address add 10.199.0.9/24 dev nic0");
    host.run("ip address del fd99:199::2/64 dev nic0");
    eventually_long("what lasts is repaired", || if repairs(&agent) == 1 { Ok(()) } else { Err(repairs(&agent)) });
    wait_attached(&etcd, &["nic0"]);
    assert!(left() > 3600, "{}", left());
    unwish(&etcd);
    eventually("it is given back", || !is_behind(&host, "nic0") && host.link_names("").contains(&"nic0".to_owned()));
    eventually("with the lease as it is now", || host.run("ip -4 -o address show dev nic0").contains("10.199.0.9/24") && left() > 3600);
    nic.passes_all_but(5001, &[]);
}

/// A port that is made anew has the lease, as it was renewed last; and a client that is given another address has no fault to answer for.
#[test]
fn a_lease_outlives_its_port_and_not_its_client() {
    let host = Host::new();
    host.add_nic("nic0", 0);
    host.run("ip address change 10.199.0.2/24 dev nic0 valid_lft 3600 preferred_lft 1800");
    host.run("ip route add default via 10.199.0.1 dev nic0 proto dhcp metric 100");
    host.run("ip route add 10.77.0.0/16 via 10.199.0.1 dev nic0");
    let before = settled_shape(&host, "nic0");
    let mut ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).with(&["--node-managed-nic", "allow"]).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    let journal = || std::fs::read_to_string(agent.state_dir().join("nic/nic0.json")).unwrap_or_default();
    let wait_shape = |shape_then: &[String], when: &str| {
        eventually_long(&format!("all is there {when}"), || {
            let now = shape(&host, "nic0");
            if now == shape_then { Ok(()) } else { Err(now) }
        });
        wait_attached(&etcd, &["nic0"]);
    };
    let is_noted = |change: &str| {
        let noted = journal();
        host.run(change);
        eventually("the journal says so", || journal() != noted);
    };
    let left = || -> u64 {
        let links: Vec<Value> = serde_json::from_str(&host.run("ip -4 -j address show dev nic0")).expect("JSON");
        links[0]["addr_info"][0]["valid_life_time"].as_u64().expect("a lifetime")
    };
    ovs.vsctl("del-port br-int nic0");
    wait_shape(&before, "after the port was deleted");
    is_noted("ip address change 10.199.0.2/24 dev nic0 valid_lft 7200 preferred_lft 7200");
    ovs.kill_switch();
    ovs.start_switch();
    wait_shape(&before, "after the switch was started anew");
    assert!(left() > 3600, "{}", left());
    let repaired = repairs(&agent);
    // Into another network, where nothing of the former one can be used.
    is_noted("ip -4 address flush dev nic0");
    host.run("ip address add 10.198.0.8/24 dev nic0 valid_lft 3600 preferred_lft 1800");
    host.run("ip route add default via 10.198.0.1 dev nic0 proto dhcp metric 100");
    let renumbered = shape(&host, "nic0");
    assert!(!renumbered.join("\n").contains("10.199.0."), "{renumbered:#?}");
    host.run("ip address del fd99:199::2/64 dev nic0");
    eventually_long("what lasts is repaired", || if repairs(&agent) == repaired + 1 { Ok(()) } else { Err(repairs(&agent)) });
    wait_shape(&renumbered, "after it was given another address");
    ovs.vsctl("del-port br-int nic0");
    wait_shape(&renumbered, "after the port was deleted again");
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &renumbered);
}

/// The same agent is asked for an interface of the NIC's name: whoever has the name keeps it, and the host is reachable all the time.
#[test]
fn an_interface_of_the_same_name() {
    let host = Host::with_netns(&["red"]);
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    let [one, other] = [
        json!({"name": "one", "type": "VETH", "enabled": true, "host_if_name": "nic0", "veth": {"peer_if_name": "other"}}),
        json!({"name": "other", "type": "VETH", "enabled": true, "namespace": {"type": "NAMED_NS", "name": "red"}, "veth": {"peer_if_name": "one"}}),
    ];
    etcd.put_all([&one, &other]);
    agent.wait_for("one", "FAILED", "FOREIGN_LINK");
    wish(&etcd, &json!([{"name": "nic0"}]));
    eventually_long("it is attached, or the name is taken", || {
        let status = status(&etcd);
        if status["state"] == "CONFIGURED" || status["reason"] == "FOREIGN_LINK" { Ok(()) } else { Err(status) }
    });
    wait_reachable(&host, &nic, "whoever has the name");
    etcd.delete_all(&["one", "other"]);
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}
