//! The flows of a NIC, on a real Open vSwitch: traffic of both families passes, policies stop it, bypass rules let it through, and flows of others
//! stay. Without flows nothing passes here (`fail_mode=secure`), so none of it is seen by mistake.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use support::{Host, NETWORK, Nic, Ovs, OvsEvents, Probes, eventually};
use vnf_agent::external_node::flows::{BridgeFlows, FlowsError, PairFlows};
use vnf_agent::model::{AgentLabel, BypassRule, Datapath, HostIfName, MacAddr, Owner};
use vnf_agent::ovs::{
    Failing, FlowError, FlowSet, FlowSink, NewPair, Notes, Ofctl, OvsClient, OvsEvent, OvsOptions, OvsSink, PairNumbers, Switch,
    SwitchWatch, management_socket,
};

const LIMIT: Duration = Duration::from_secs(60);

struct Nothing;

impl OvsSink for Nothing {
    fn tell(&self, _event: OvsEvent) {}
}

fn label() -> AgentLabel {
    AgentLabel::new("vpp1").unwrap()
}

fn owner() -> Owner {
    Owner::new(label())
}

fn client(ovs: &Ovs<'_>) -> OvsClient {
    let usual = OvsOptions::new(ovs.target(), label(), "br-int".to_owned());
    let options = OvsOptions { call_limit: LIMIT, probe_interval: LIMIT, ..usual };
    OvsClient::start(options, Arc::new(Nothing)).unwrap()
}

fn socket(ovs: &Ovs<'_>) -> std::path::PathBuf {
    management_socket(&ovs.run_dir(), "br-int")
}

fn sink(ovs: &Ovs<'_>) -> Ofctl {
    Ofctl::new(&socket(ovs), &owner(), LIMIT)
}

/// The bridge, without the flow that it has by itself.
fn bridge(ovs: &Ovs<'_>, client: &OvsClient) {
    client.ensure_bridge(Datapath::Netdev).unwrap();
    ovs.vsctl("set-fail-mode br-int secure");
    eventually("the bridge is empty", || ovs.ofctl("--no-stats dump-flows br-int").trim().is_empty());
}

/// Puts a NIC behind the bridge, by hand; no flows yet.
fn put_behind(host: &Host, client: &OvsClient, nic: &Nic<'_>) -> PairNumbers {
    let pair = make_pair(host, client, nic);
    host.deafen(&nic.uplink());
    nic.move_addresses(&nic.uplink(), &nic.name);
    pair
}

/// Makes the ports of a NIC, by hand; its addresses stay where they are.
fn make_pair(host: &Host, client: &dyn Switch, nic: &Nic<'_>) -> PairNumbers {
    let (name, uplink) = (nic.name.as_str(), nic.uplink());
    let mac = MacAddr::parse(&host.link("", name).unwrap().mac).unwrap();
    host.run(&format!("ip link set {name} name {uplink}"));
    let names = [name, &uplink].map(|name| HostIfName::new(name).unwrap());
    let [host_name, uplink_name] = names;
    client.create_pair(&NewPair { host: host_name, uplink: uplink_name, mac, mtu: support::nic::MTU, notes: Notes::default() }).unwrap();
    let (host_port, uplink_port) = client.wait_ready(name, mac, Failing::Ends, LIMIT).unwrap();
    PairNumbers { host: host_port, uplink: uplink_port }
}

fn rules(rules: &[[&str; 4]]) -> Vec<BypassRule> {
    rules.iter().map(|[direction, protocol, cidr, port]| BypassRule::parse(direction, protocol, cidr, port).unwrap()).collect()
}

/// Drops new connections that enter by this port, as a policy of somebody else would.
fn deny(ovs: &Ovs<'_>, port: impl std::fmt::Display) {
    for family in ["ip", "ipv6"] {
        ovs.ofctl(&format!("add-flow br-int cookie=0xabc,table=203,priority=100,{family},in_port={port},actions=drop"));
    }
}

/// Ping and TCP, both families, both ways: only with our flows, and through them.
#[test]
fn traffic_passes() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nic = host.add_nic("eth0", 0);
    nic.passes_all_but(5001, &[]);
    let numbers = put_behind(&host, &client, &nic);
    // Nothing passes without flows.
    nic.passes_all_but(5001, &nic.ways());
    let sink = sink(&ovs);
    let flows = FlowSet::new(&owner(), &[numbers], &[]);
    sink.replace(&flows).unwrap();
    nic.passes_all_but(5001, &[]);
    for port in [numbers.host, numbers.uplink] {
        let flow = ovs.ofctl(&format!("dump-flows br-int table=205,in_port={port}"));
        assert!(flow.contains("n_packets=") && !flow.contains("n_packets=0,"), "it went another way: {flow}");
    }
    // Large packets as well.
    for address in nic.far_addresses() {
        host.run(&format!("ping -c 1 -W 5 -s 5000 {address}"));
    }
    sink.replace(&FlowSet::new(&owner(), &[], &[])).unwrap();
    // With the flows it ends.
    nic.passes_all_but(5001, &nic.ways());
}

/// C86: what a policy stops, and what the rules let through all the same.
#[test]
fn bypass_rules_pass_where_a_policy_stops() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nic = host.add_nic("eth0", 0);
    let numbers = put_behind(&host, &client, &nic);
    let sink = sink(&ovs);
    sink.replace(&FlowSet::new(&owner(), &[numbers], &[])).unwrap();
    deny(&ovs, numbers.uplink);
    let inbound: Vec<String> = nic.ways().into_iter().filter(|what| what.contains(" in ")).collect();
    // What the host begins still passes, its answers too.
    nic.passes_all_but(5001, &inbound);
    let dropped = ovs.ofctl("dump-flows br-int table=203,ip");
    assert!(!dropped.lines().any(|line| line.contains("priority=100,ip") && line.contains("n_packets=0,")), "{dropped}");

    let ingress = rules(&[
        ["ingress", "tcp", "10.199.0.0/30", "5002"],
        ["ingress", "tcp", "fd99:199::/64", "5004"],
        ["ingress", "icmp", "fd99:199::1/128", ""],
        ["ingress", "icmp", "192.0.2.0/24", ""],
    ]);
    sink.replace(&FlowSet::new(&owner(), &[numbers], &ingress)).unwrap();
    let [v4, v6] = nic.addresses();
    let into = |address, port, passes| tcp(&host, NETWORK, "", SocketAddr::new(address, port), passes);
    for (port, v4_passes, v6_passes) in [(5002, true, false), (5003, false, false), (5004, false, true)] {
        into(v4, port, v4_passes);
        into(v6, port, v6_passes);
    }
    ping(&host, NETWORK, v4, false);
    ping(&host, NETWORK, v6, true);

    // The policy is somebody else's: it outlived the change. Now it stops what the host begins.
    ovs.ofctl("del-flows br-int cookie=0xabc/-1");
    deny(&ovs, numbers.host);
    let egress = rules(&[["egress", "tcp", "10.199.0.1/32", "5002"], ["egress", "ip", "::/0", ""]]);
    sink.replace(&FlowSet::new(&owner(), &[numbers], &egress)).unwrap();
    let [far_v4, far_v6] = nic.far_addresses();
    let out = |address, port, passes| tcp(&host, "", NETWORK, SocketAddr::new(address, port), passes);
    out(far_v4, 5002, true);
    out(far_v4, 5003, false);
    out(far_v6, 5003, true);
    into(v4, 5003, true);
    ping(&host, "", far_v4, false);
    ping(&host, "", far_v6, true);
    // A rule that is gone is gone.
    sink.replace(&FlowSet::new(&owner(), &[numbers], &[])).unwrap();
    out(far_v4, 5002, false);
    out(far_v6, 5003, false);
}

/// What is to pass may take its time; what is not is tried once.
fn tcp(host: &Host, from: &str, to: &str, address: SocketAddr, passes: bool) {
    let attempt = || host.tcp(from, to, address);
    if passes { eventually(&format!("TCP to {address}"), attempt) } else { assert!(!attempt(), "TCP to {address} passes") }
}

fn ping(host: &Host, from: &str, address: IpAddr, passes: bool) {
    let attempt = || host.pings(from, &address.to_string());
    if passes { eventually(&format!("ping {address}"), attempt) } else { assert!(!attempt(), "{address} answers") }
}

/// Every shape that a flow can have stands in Open vSwitch as it was written, down to the spelling.
#[test]
fn every_shape_stands_as_written() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let sink = sink(&ovs);
    let mut all = Vec::new();
    for direction in ["ingress", "egress"] {
        for network in ["0.0.0.0/0", "10.0.0.0/8", "192.0.2.5/32", "::/0", "2001:db8::/32", "2001:db8::5/128", "::ffff:0:0/96"] {
            for (protocol, port) in [("tcp", "22"), ("tcp", ""), ("udp", "65535"), ("udp", ""), ("icmp", ""), ("ip", "")] {
                all.push([direction, protocol, network, port]);
            }
        }
    }
    let number = |number| vnf_agent::ovs::OfPort::new(number).unwrap();
    let pairs = [PairNumbers { host: number(2), uplink: number(1) }, PairNumbers { host: number(65279), uplink: number(300) }];
    let flows = FlowSet::new(&owner(), &pairs, &rules(&all));
    sink.replace(&flows).unwrap();
    let standing = sink.standing().unwrap();
    assert!(flows.compare(&standing).is_empty(), "{:#?}", flows.compare(&standing));
    let printed = ovs.ofctl("--no-stats --no-names dump-flows br-int");
    let mut printed: Vec<String> = printed
        .lines()
        .map(|line| {
            let line = line.trim().split_once(", ").expect("a cookie").1.replacen(", priority", ",priority", 1);
            if line.starts_with("table=") { line } else { format!("table=0,{line}") }
        })
        .collect();
    let mut written: Vec<String> = flows.iter().map(|(_, flow)| flow.to_string()).collect();
    printed.sort();
    written.sort();
    assert_eq!(printed, written);
    // Once more changes nothing.
    sink.replace(&flows).unwrap();
    assert_eq!(sink.standing().unwrap(), standing);
}

/// Flows of others stay, also those that look like ours; one that ours would replace keeps ours away.
#[test]
fn flows_of_others_stay() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let sink = sink(&ovs);
    let number = |number| vnf_agent::ovs::OfPort::new(number).unwrap();
    let wanted = |uplink| {
        FlowSet::new(&owner(), &[PairNumbers { host: number(2), uplink: number(uplink) }], &rules(&[["ingress", "tcp", "::/0", "22"]]))
    };
    let neighbour = Ofctl::new(&socket(&ovs), &Owner::new(AgentLabel::new("vpp2").unwrap()), LIMIT);
    for flow in [
        "cookie=0x1000000000000,table=0,priority=200,in_port=9,actions=NORMAL",
        "table=0,priority=0,actions=NORMAL",
        "cookie=0xabc,table=203,priority=7,ip,actions=drop",
    ] {
        ovs.ofctl(&format!("add-flow br-int {flow}"));
    }
    let foreign = || {
        ovs.ofctl("--no-stats dump-flows br-int")
            .lines()
            .filter(|line| !line.contains("cookie=0x56"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = foreign();
    assert_eq!(before.len(), 3);
    sink.replace(&wanted(1)).unwrap();
    sink.replace(&wanted(3)).unwrap();
    assert!(wanted(3).compare(&sink.standing().unwrap()).is_empty());
    assert_eq!(foreign(), before);
    // Another agent on the same bridge: its shared flows are the same as ours, so it keeps away.
    let theirs = FlowSet::new(&Owner::new(AgentLabel::new("vpp2").unwrap()), &[PairNumbers { host: number(5), uplink: number(6) }], &[]);
    assert!(matches!(neighbour.replace(&theirs), Err(FlowError::InTheWay { .. })));
    assert!(neighbour.standing().unwrap().is_empty());
    assert!(wanted(3).compare(&sink.standing().unwrap()).is_empty());

    ovs.ofctl("add-flow br-int table=0,priority=190,in_port=4,actions=drop");
    let error = sink.replace(&wanted(4)).unwrap_err();
    assert!(error.to_string().contains("table=0,priority=190,in_port=4 actions=drop"), "{error}");
    assert!(wanted(3).compare(&sink.standing().unwrap()).is_empty(), "nothing was done");

    // What others remove is noticed, and put back.
    ovs.ofctl("del-flows br-int table=201");
    let difference = wanted(3).compare(&sink.standing().unwrap());
    assert!(!difference.missing.is_empty() && difference.missing.iter().all(|flow| flow.table == 201), "{difference:?}");
    sink.replace(&wanted(3)).unwrap();
    assert!(wanted(3).compare(&sink.standing().unwrap()).is_empty());
    sink.replace(&FlowSet::default()).unwrap();
    assert!(sink.standing().unwrap().is_empty());
    assert_eq!(foreign().len(), 4);
}

/// A flow of somebody else in the way of one NIC keeps nobody from removing those of another one.
#[test]
fn one_is_in_the_way_and_others_are_removed() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let switch: Arc<dyn Switch> = Arc::new(client(&ovs));
    let sink = Arc::new(sink(&ovs));
    switch.ensure_bridge(Datapath::Netdev).unwrap();
    let nics = ["nic0", "nic1"].map(|name| host.add_nic(name, u8::from(name == "nic1")));
    let [gone, stays] = [&nics[0], &nics[1]].map(|nic| make_pair(&host, &*switch, nic));
    let flows = BridgeFlows::new(Arc::clone(&switch), sink.clone(), owner(), Vec::new());
    flows.install("nic0", (gone.host, gone.uplink)).unwrap();
    assert!(flows.stand("nic1", Some((stays.host, stays.uplink))).unwrap());
    // It takes the place of one of ours.
    ovs.ofctl(&format!("add-flow br-int cookie=7,table=205,priority=200,in_port={},actions=drop", stays.uplink));
    assert!(matches!(flows.install("nic1", (stays.host, stays.uplink)), Err(FlowsError::InTheWay(_))));
    switch.delete_pair("nic0").unwrap();
    switch.wait_gone("nic0", LIMIT).unwrap();
    assert!(flows.stand("nic0", None).unwrap(), "they are left over");
    flows.remove("nic0").unwrap();
    assert!(!flows.stand("nic0", None).unwrap());
    let wanted = FlowSet::new(&owner(), &[stays], &[]).compare(&sink.standing().unwrap());
    assert_eq!((wanted.missing.len(), wanted.surplus.len()), (1, 0), "those of the other one stay, but for what was replaced: {wanted:?}");
    assert!(ovs.ofctl("--no-stats dump-flows br-int cookie=7/-1").contains("actions=drop"));
}

/// What is said when it does not work.
#[test]
fn failures_say_why() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    let number = |number| vnf_agent::ovs::OfPort::new(number).unwrap();
    let flows = FlowSet::new(&owner(), &[PairNumbers { host: number(2), uplink: number(1) }], &[]);
    let error = sink(&ovs).replace(&flows).unwrap_err();
    assert!(matches!(&error, FlowError::Refused { cause, .. } if cause.contains("No such file or directory")), "{error}");
    bridge(&ovs, &client);
    let error = sink(&ovs).with_program("/nowhere/ovs-ofctl".into()).standing().unwrap_err();
    assert!(matches!(error, FlowError::NotRun { .. }), "{error}");
    let error = sink(&ovs).with_program("/bin/false".into()).standing().unwrap_err();
    assert!(matches!(&error, FlowError::Refused { cause, .. } if cause.contains("exit status")), "{error}");
    ovs.vsctl("set bridge br-int protocols=OpenFlow10");
    eventually("it does not speak our version any more", || sink(&ovs).standing().is_err());
    client.ensure_bridge(Datapath::Netdev).unwrap();
    eventually("it does again", || sink(&ovs).replace(&flows).is_ok());

    ovs.signal_switch(Signal::SIGSTOP);
    let hasty = Ofctl::new(&socket(&ovs), &owner(), Duration::from_millis(500));
    let error = hasty.replace(&FlowSet::default()).unwrap_err();
    assert!(matches!(error, FlowError::NoAnswer { .. }), "{error}");
    // One that would wait long does not while it is known that nobody answers.
    let alive = Arc::new(AtomicBool::new(true));
    let patient = Ofctl::new(&socket(&ovs), &owner(), Duration::from_secs(3600)).as_long_as(alive.clone());
    let asks = std::thread::spawn(move || patient.standing());
    alive.store(false, Ordering::Relaxed);
    let error = asks.join().unwrap().unwrap_err();
    assert!(matches!(error, FlowError::NoAnswer { .. }), "{error}");
    ovs.signal_switch(Signal::SIGCONT);
    eventually("it answers again", || sink(&ovs).standing().is_ok_and(|standing| flows.compare(&standing).is_empty()));
}

/// C84: a restarted switch has none of our flows; that is noticed, and putting them back is all that is needed.
#[test]
fn a_restarted_switch_is_noticed() {
    let host = Host::new();
    let mut ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nic = host.add_nic("eth0", 0);
    let numbers = put_behind(&host, &client, &nic);
    let sink = sink(&ovs);
    let flows = FlowSet::new(&owner(), &[numbers], &[]);
    sink.replace(&flows).unwrap();
    let events = Arc::new(OvsEvents::default());
    let watch = SwitchWatch::start(&socket(&ovs), &owner(), Duration::from_secs(1), events.clone()).unwrap();
    events.wait_and_forget("it is there", |event| *event == OvsEvent::SwitchBack);
    ovs.kill_switch();
    events.wait_and_forget("it is missed", |event| matches!(event, OvsEvent::SwitchLost(_)));
    ovs.start_switch();
    events.wait_and_forget("it is back", |event| *event == OvsEvent::SwitchBack);
    eventually("the ports are back", || {
        client.read().is_ok_and(|view| view.pairs["eth0"].numbers() == Some((numbers.host, numbers.uplink)))
    });
    let difference = flows.compare(&sink.standing().unwrap());
    assert_eq!(difference.missing.len(), flows.iter().count(), "{difference:?}");
    sink.replace(&flows).unwrap();
    nic.passes_all_but(5001, &[]);

    ovs.signal_switch(Signal::SIGSTOP);
    events.wait_and_forget("one that hangs is missed", |event| matches!(event, OvsEvent::SwitchLost(_)));
    ovs.signal_switch(Signal::SIGCONT);
    events.wait_and_forget("it is back", |event| *event == OvsEvent::SwitchBack);
    drop(watch);

    // With clean-up, the devices are gone and made anew, without addresses: those are for the external node.
    ovs.exit_switch_with_cleanup();
    assert!(host.link("", "eth0").is_none());
    ovs.start_switch();
    eventually("the device is back", || host.link("", "eth0").is_some());
    assert!(host.addresses("", "eth0").is_empty());
}

/// Who removes or changes our flows is noticed at once; what is done to others is not told.
#[test]
fn flows_that_others_remove_are_told() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nic = host.add_nic("eth0", 0);
    let numbers = put_behind(&host, &client, &nic);
    let sink = sink(&ovs);
    let flows = FlowSet::new(&owner(), &[numbers], &[]);
    let is_told = |event: &OvsEvent| *event == OvsEvent::FlowsChanged;
    for change in ["mod-flows br-int table=204,actions=drop", "del-flows br-int table=205", "del-flows br-int"] {
        sink.replace(&flows).unwrap();
        let events = Arc::new(OvsEvents::default());
        let _watch = SwitchWatch::start(&socket(&ovs), &owner(), Duration::from_secs(1), events.clone()).unwrap();
        events.wait_and_forget("it is there", |event| *event == OvsEvent::SwitchBack);
        ovs.ofctl("add-flow br-int cookie=0xabc,table=7,actions=drop");
        ovs.ofctl("mod-flows br-int table=7,actions=normal");
        ovs.ofctl("del-flows br-int table=7");
        assert_eq!(events.count(is_told), 0, "before {change}");
        ovs.ofctl(change);
        events.wait_and_forget(&format!("it is told of {change}"), is_told);
    }
}

/// Exchanging the flows interrupts nothing, however often.
#[test]
fn an_exchange_interrupts_nothing() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nic = host.add_nic("eth0", 0);
    let numbers = put_behind(&host, &client, &nic);
    let sink = sink(&ovs);
    let sets = [&[["ingress", "tcp", "::/0", "22"]], &[["egress", "udp", "0.0.0.0/0", "53"]]]
        .map(|some| FlowSet::new(&owner(), &[numbers], &rules(some)));
    sink.replace(&sets[0]).unwrap();
    let [v4, _] = nic.addresses();
    let [_, far_v6] = nic.far_addresses();
    let probes =
        [Probes::start(&host, NETWORK, "", SocketAddr::new(v4, 7001)), Probes::start(&host, "", NETWORK, SocketAddr::new(far_v6, 7002))];
    for set in sets.iter().cycle().take(12) {
        probes.iter().for_each(Probes::wait_for_some);
        sink.replace(set).unwrap();
    }
    probes.iter().for_each(Probes::wait_for_some);
    for loss in probes.map(Probes::end) {
        // None, on a quiet machine. The switch forwards in user space here and may have to wait for a processor; an exchange that removes before
        // it adds would interrupt for as long as a program takes to run, twelve times.
        assert!(loss.duplicates == 0 && loss.lost * 20 <= loss.sent, "{loss:?}");
    }
}

/// Two NICs on one bridge, each on its own way.
#[test]
fn two_nics() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let client = client(&ovs);
    bridge(&ovs, &client);
    let nics = [host.add_nic("eth0", 0), host.add_nic("eth1", 1)];
    let numbers = nics.each_ref().map(|nic| put_behind(&host, &client, nic));
    let sink = sink(&ovs);
    sink.replace(&FlowSet::new(&owner(), &numbers, &[])).unwrap();
    nics.iter().for_each(|nic| nic.passes_all_but(5001, &[]));
    deny(&ovs, numbers[1].uplink);
    let inbound: Vec<String> = nics[1].ways().into_iter().filter(|what| what.contains(" in ")).collect();
    nics[0].passes_all_but(5001, &[]);
    nics[1].passes_all_but(5001, &inbound);
    sink.replace(&FlowSet::new(&owner(), &numbers[..1], &[])).unwrap();
    nics[0].passes_all_but(5001, &[]);
    nics[1].passes_all_but(5001, &nics[1].ways());
}
