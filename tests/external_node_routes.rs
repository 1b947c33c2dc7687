//! Routes of a NIC that hang on more than the NIC: they come along, and one that cannot be put back keeps nobody from giving the NIC back. Routes that the
//! host's owner changes behind the bridge: the change stands.

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::{Agent, Host, Nic, eventually, eventually_ok};

/// A group of nexthop objects is gone with the last of its members, and its routes with it; the switch makes the port anew, and all of it is there again.
#[test]
fn a_group_of_nexthops_outlives_the_switch() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip nexthop add id 7 via 10.199.0.1 dev nic0");
    host.run("ip nexthop add id 10 group 7");
    host.run("ip route add default nhid 10");
    host.run("ip nexthop add id 11 group 7 type resilient buckets 8 idle_timer 60");
    host.run("ip route add 10.75.0.0/16 nhid 11");
    let before = settled_shape(&host, "nic0");
    let nexthops = || host.run("ip nexthop show");
    let nexthops_before = nexthops();
    let mut ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    assert_eq!(nexthops(), nexthops_before);
    ovs.kill_switch();
    wait_reachable(&host, &nic, "while the switch is dead");
    ovs.start_switch();
    eventually_long("all of it is there again", || {
        let so = nexthops() == nexthops_before && shape(&host, "nic0") == before && repairs(&agent) > 0;
        if so { Ok(()) } else { Err((nexthops(), shape(&host, "nic0"), status(&etcd))) }
    });
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5000, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
    assert_eq!(nexthops(), nexthops_before);
}

/// What a route hangs on is gone for now, and so is the port: the host is reachable and its NIC is given back without that route. It is told of, and not
/// forgotten.
#[test]
fn a_route_that_is_refused_keeps_nobody() {
    let host = Host::new();
    let furniture = ["ip address add 192.168.7.1/32 dev lo", "ip route add 10.70.0.0/16 via 10.199.0.1 dev nic0 src 192.168.7.1"];
    let Moved { nic, before, mut ovs, etcd, mut agent } = Moved::furnished(&host, &furniture, &json!([{"name": "nic0"}]));
    // Nobody sees the route go with the address; and the port goes with the switch.
    agent.kill();
    host.run("ip address del 192.168.7.1/32 dev lo");
    ovs.kill_switch();
    agent.start();
    wait_reachable(&host, &nic, "with a route that cannot be had");
    unwish(&etcd);
    ovs.start_switch();
    eventually_ok("the NIC has its name again", || {
        if is_behind(&host, "nic0") { Err((status(&etcd), host.run("ip address"))) } else { Ok(()) }
    });
    wait_reachable(&host, &nic, "given back");
    wait_for(&etcd, "RETRYING", "KERNEL_REFUSED", "put routes onto nic0");
    // As soon as it can be had, all is as it was.
    host.run("ip address add 192.168.7.1/32 dev lo");
    wait_plain(&host, "nic0", &before);
    eventually("nothing is left of it", || !agent.state_dir().join("nic/nic0.json").exists());
}

fn gateways(host: &Host) -> Vec<String> {
    let routes = host.run("ip route show default");
    routes.lines().map(str::trim).map(str::to_owned).collect()
}

/// One route with a hop through each of two NICs: each NIC is moved by itself, and none of them takes the other one's hop for a fault.
#[test]
fn a_route_through_two_nics() {
    let host = Host::new();
    let nics: [Nic<'_>; 2] = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
    host.run("ip route add default nexthop via 10.199.0.1 dev nic0 weight 2 nexthop via 10.199.1.1 dev nic1");
    host.run("ip -6 route add default nexthop via fd99:199::1 dev nic0 nexthop via fd99:199:0:1::1 dev nic1");
    let before = gateways(&host);
    let before_6 = || host.run("ip -6 route show default").lines().count();
    let lines_6 = before_6();
    let mut ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    let both = json!([{"name": "nic0"}, {"name": "nic1"}]);
    wish(&etcd, &both);
    wait_attached(&etcd, &["nic0", "nic1"]);
    assert_eq!((gateways(&host), before_6()), (before.clone(), lines_6));
    // Both ports are made anew.
    ovs.kill_switch();
    nics.iter().for_each(|nic| wait_reachable(&host, nic, "while the switch is dead"));
    ovs.start_switch();
    eventually_long("the route is there again", || {
        let so = gateways(&host) == before && nics.iter().all(|nic| is_behind(&host, &nic.name)) && repairs(&agent) > 0;
        if so { Ok(()) } else { Err((gateways(&host), status(&etcd))) }
    });
    wait_attached(&etcd, &["nic0", "nic1"]);
    nics.iter().zip([5000, 5001]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
    wish(&etcd, &json!([{"name": "nic1"}]));
    eventually_long("one is given back", || if is_behind(&host, "nic0") { Err(status(&etcd)) } else { Ok(()) });
    wait_attached(&etcd, &["nic1"]);
    assert_eq!(gateways(&host), before);
    unwish(&etcd);
    eventually_long("the other one, too", || if is_behind(&host, "nic1") { Err(status(&etcd)) } else { Ok(()) });
    eventually_ok("the route is as it was", || if gateways(&host) == before { Ok(()) } else { Err(gateways(&host)) });
    assert_eq!(before_6(), lines_6);
}

fn hops(host: &Host) -> Vec<String> {
    let routes = ["-4", "-6"].map(|family| host.try_run(&format!("ip {family} route show default")).unwrap_or_default()).join("");
    routes.split("via ").skip(1).filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
}

/// Waits until these are the gateways of the default routes, and the journal says so too of all that did not come beside another one.
fn wait_hops(host: &Host, agent: &Agent<'_>, wanted: [&[&str]; 2], beside: &[&str], when: &str) {
    let wanted = wanted.concat();
    eventually_long(&format!("{wanted:?} are the gateways {when}"), || {
        let journal: Value = std::fs::read(agent.state_dir().join("nic/nic0.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let routes = journal["config"]["routes"].to_string();
        let journalled = |gateway: &&str| routes.contains(&format!("via {gateway} ")) || beside.contains(gateway);
        let others = ["10.199.0.1", "10.199.0.8", "10.199.0.9", "fd99:199::1", "fd99:199::8", "fd99:199::9"];
        let mut others = others.iter().filter(|other| !wanted.contains(other));
        let so = hops(host) == wanted && wanted.iter().all(journalled) && others.all(|other| !routes.contains(&format!("via {other} ")));
        if so { Ok(()) } else { Err((hops(host), routes)) }
    });
}

/// A default route that is replaced or joined by another hop is the owner's news: it is not put back, it is looked after, and it goes back with the NIC.
#[test]
fn a_route_that_is_replaced_stays_so() {
    let host = Host::new();
    let furniture =
        ["ip route add default via 10.199.0.1 dev nic0 metric 50", "ip -6 route add default via fd99:199::1 dev nic0 metric 77"];
    let Moved { nic, before: _, ovs, etcd, agent } = Moved::furnished(&host, &furniture, &json!([{"name": "nic0"}]));
    let [first_6, second_6, third_6] = ["fd99:199::1", "fd99:199::9", "fd99:199::8"];
    for (change, gateways, gateways_6) in [
        ("ip route replace default via 10.199.0.9 dev nic0 metric 50", "10.199.0.9", &[first_6][..]),
        ("ip -6 route replace default via fd99:199::9 dev nic0 metric 77", "10.199.0.9", &[second_6]),
        ("ip route change default via 10.199.0.8 dev nic0 metric 50", "10.199.0.8", &[second_6]),
        ("ip -6 route append default via fd99:199::8 dev nic0 metric 77", "10.199.0.8", &[second_6, third_6]),
        ("ip -6 route replace default via fd99:199::8 dev nic0 metric 77", "10.199.0.8", &[third_6]),
    ] {
        host.run(change);
        let beside: &[&str] = if change.contains("append") { &[third_6] } else { &[] };
        wait_hops(&host, &agent, [&[gateways], gateways_6], beside, &format!("after {change}"));
        wait_attached(&etcd, &["nic0"]);
    }
    assert_eq!(repairs(&agent), 0, "nothing of it is a fault");
    assert!(!agent.log().contains("is not as wished after"), "{}", agent.log());
    let now = shape(&host, "nic0");
    // It is looked after as the former one was: when it is taken away, and when its port is made anew.
    host.run("ip -6 route del default dev nic0");
    eventually_long(
        "it is repaired",
        || if repairs(&agent) > 0 && shape(&host, "nic0") == now { Ok(()) } else { Err(shape(&host, "nic0")) },
    );
    ovs.vsctl("del-port br-int nic0");
    eventually_long("it is on the new port", || {
        if repairs(&agent) > 1 && shape(&host, "nic0") == now { Ok(()) } else { Err(shape(&host, "nic0")) }
    });
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5000, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &now);
}
