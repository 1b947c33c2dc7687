//! What the host's traffic notices of a move: next to nothing.

mod node_support;
mod support;

use std::net::SocketAddr;

use node_support::*;
use serde_json::{Value, json};
use support::etcd::PREFIX;
use support::nic::Loss;
use support::{Host, NETWORK, Nic, Probes, eventually_eq};

/// UDP probes of both families, every 2 ms.
fn probes(host: &Host, nic: &Nic<'_>) -> Vec<Probes> {
    let [v4, v6] = nic.addresses();
    let probes: Vec<Probes> = [(v4, 7007), (v6, 7008)].map(|(to, port)| Probes::start(host, NETWORK, "", SocketAddr::new(to, port))).into();
    probes.iter().for_each(Probes::wait_for_some);
    probes
}

#[allow(clippy::print_stderr, reason = "a measurement, shown with the test's output")]
fn end(probes: Vec<Probes>, what: &str) -> Vec<Loss> {
    probes.iter().for_each(Probes::wait_for_some);
    let losses: Vec<Loss> = probes.into_iter().map(Probes::end).collect();
    eprintln!("{what}: UDP {losses:?}");
    losses
}

/// None is lost on a quiet machine; the switch forwards in user space here, and may wait for a processor. A NIC that is taken down, or flows that come
/// after the addresses, would cost most of them and a connection's patience.
fn is_bearable(ping: &Lost, udp: &[Loss]) {
    assert!(ping.sent > 20 && ping.lost * 2 <= ping.sent, "{ping:?}");
    for loss in udp {
        assert!(loss.sent > 20 && loss.lost * 2 <= loss.sent, "{loss:?}");
    }
}

#[test]
fn connections_outlive_the_move_there_and_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    let (traffic, udp) = (Traffic::start(&host, &nic, 5000), probes(&host, &nic));
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    let (ping, udp) = (traffic.end("behind the bridge"), end(udp, "behind the bridge"));
    is_bearable(&ping, &udp);
    let (traffic, udp) = (Traffic::start(&host, &nic, 5001), probes(&host, &nic));
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
    let (ping, udp) = (traffic.end("and back"), end(udp, "and back"));
    is_bearable(&ping, &udp);
}

/// What goes on past the switch for a while is not invalid when it comes back to it.
#[test]
fn a_connection_outlives_another_move() {
    let host = Host::new();
    let _nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    let talk = Talk::start(&host, "", NETWORK, "10.199.0.1:5002".parse().expect("an address"));
    for _ in 0..2 {
        wish(&etcd, &json!([{"name": "nic0"}]));
        wait_attached(&etcd, &["nic0"]);
        talk.wait_for_some();
        unwish(&etcd);
        wait_plain(&host, "nic0", &before);
        // More than a window of TCP.
        (0..10).for_each(|_| talk.wait_for_some());
    }
    talk.end();
}

/// Labels and the addresses of the selector are only notes: they change in the database, in statuses and references, and nowhere else.
#[test]
fn other_notes_move_nothing() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    let wished = |ips: Value, labels: Value| {
        wish_node(&etcd, &json!({"name": "vpp1", "labels": labels, "interfaces": [{"name": "nic0", "ips": ips}]}));
    };
    wished(json!(["10.199.0.2"]), json!({"app": "db"}));
    let attached = wait_attached(&etcd, &["nic0"]);
    let (stands, log) = (identity(&host, &attached, "nic0"), agent.log());
    ovs.vsctl("set port nic0 external_ids:somebody=else");
    let noted = || ovs.column("port", "nic0", "external_ids:vnf-agent-ips");
    assert_eq!(noted(), "\"10.199.0.2\"");
    let (traffic, udp) = (Traffic::start(&host, &nic, 5000), probes(&host, &nic));
    wished(json!(["10.199.0.2", "fd99:199::2"]), json!({"app": "web"}));
    eventually_eq("the addresses are noted", &"\"10.199.0.2,fd99:199::2\"".to_owned(), noted);
    let entity = attached["entities"][0].as_str().expect("an entity").to_owned();
    eventually_eq("the reference tells both", &json!([["10.199.0.2", "fd99:199::2"], {"app": "web"}]), || {
        let reference = etcd.get(&format!("{PREFIX}external/status/v1/entity/default/{entity}")).unwrap_or_default();
        json!([reference["ips"], reference["labels"]])
    });
    let (ping, udp) = (traffic.end("other notes"), end(udp, "other notes"));
    is_bearable(&ping, &udp);
    assert_eq!(identity(&host, &wait_attached(&etcd, &["nic0"]), "nic0"), stands);
    assert_eq!(ovs.column("port", "nic0", "external_ids:somebody"), "else");
    assert_eq!(repairs(&agent), 0);
    let steps = |log: String| log.matches("taking a step").count();
    assert_eq!(steps(agent.log()), steps(log), "no step was taken");
}
