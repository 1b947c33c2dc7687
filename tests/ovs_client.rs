//! The client of Open vSwitch's database, on a real one: what it makes and removes, what it leaves alone, and what it says when an answer is lost.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::sys::signal::Signal;
use support::{Host, Ovs, OvsEvents, OvsdbProxy, eventually, eventually_eq, eventually_ok};
use vnf_agent::model::{AgentLabel, Datapath, HostIfName, MacAddr, OvsdbTarget};
use vnf_agent::ovs::{Failing, NewPair, Notes, OfPort, OvsClient, OvsError, OvsEvent, OvsOptions, PortState, Switch, SwitchView};

/// Generous: what is waited for comes within milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
const MAC: &str = "02:00:00:00:00:01";

fn options(target: OvsdbTarget) -> OvsOptions {
    let usual = OvsOptions::new(target, AgentLabel::new("vpp1").unwrap(), "br-int".to_owned());
    // A busy machine is no fault of the server.
    OvsOptions { call_limit: LIMIT, probe_interval: LIMIT, ..usual }
}

fn client(target: OvsdbTarget) -> (OvsClient, Arc<OvsEvents>) {
    start(options(target))
}

fn start(options: OvsOptions) -> (OvsClient, Arc<OvsEvents>) {
    let events = Arc::new(OvsEvents::default());
    (OvsClient::start(options, events.clone()).unwrap(), events)
}

fn mac() -> MacAddr {
    MacAddr::parse(MAC).unwrap()
}

fn pair(host: &str) -> NewPair {
    let name = |text: &str| HostIfName::new(text).unwrap();
    let notes = Notes { phase: Some("RENAMED".to_owned()), orig_name: Some(host.to_owned()), ..Notes::default() };
    NewPair { host: name(host), uplink: name(&format!("{host}~")), mac: mac(), mtu: 1400, notes }
}

/// A device that plays the NIC, already renamed.
fn nic(host: &Host, name: &str) {
    host.run(&format!("ip link add {name} type veth peer name p-{name}"));
    host.run(&format!("ip link set {name} up"));
    host.run(&format!("ip link set p-{name} up"));
}

/// Ports, external ids and bridges of others; they must look the same at the end.
struct Canaries<'o> {
    ovs: &'o Ovs<'o>,
    before: Vec<String>,
}

impl<'o> Canaries<'o> {
    fn plant(ovs: &'o Ovs<'o>) -> Self {
        let ours = "external_ids:vnf-agent-owner=vpp10 external_ids:vnf-agent-role=host external_ids:vnf-agent-peer=eth0~";
        ovs.add_bridge("br-int");
        ovs.add_bridge("br-other");
        for (bridge, port) in [("br-int", "eth00"), ("br-int", "eth0_"), ("br-other", "eth0x")] {
            ovs.vsctl(&format!("add-port {bridge} {port} -- set interface {port} type=internal -- set port {port} {ours}"));
        }
        ovs.vsctl("set port eth0x external_ids:vnf-agent-owner=vpp1");
        ovs.vsctl("set bridge br-int external_ids:a=b other_config:c=d");
        let mut canaries = Self { ovs, before: Vec::new() };
        canaries.before = canaries.read();
        canaries
    }

    fn read(&self) -> Vec<String> {
        let ports = ["eth00", "eth0_", "eth0x"].map(|port| {
            let [id, ids] = ["_uuid", "external_ids"].map(|column| self.ovs.column("port", port, column));
            format!("{port} {id} {ids} {}", self.ovs.column("interface", port, "ofport"))
        });
        let bridge = ["external_ids", "other_config", "datapath_type"].map(|column| self.ovs.column("bridge", "br-int", column));
        ports.into_iter().chain(bridge).collect()
    }

    fn assert_untouched(&self) {
        assert_eq!(self.read(), self.before, "something of somebody else was touched");
    }
}

/// What the client says about names and our ports becomes what `ovs-vsctl` says; returns it.
fn as_vsctl_says(ovs: &Ovs<'_>, client: &OvsClient) -> SwitchView {
    eventually_ok("the client says what ovs-vsctl says", || {
        let view = client.read().map_err(|error| error.to_string())?;
        let mut seen: Vec<String> = view.names.keys().cloned().collect();
        for port in view.pairs.values().flat_map(|pair| [&pair.host, &pair.uplink]).flatten() {
            let number = match &port.state {
                PortState::Ready(number) => number.to_string(),
                PortState::Pending => "[]".to_owned(),
                PortState::Failed(_) => "-1".to_owned(),
            };
            let mac = port.mac_in_use.map_or("[]".to_owned(), |mac| format!("\"{mac}\""));
            seen.push(format!("{} {} {number} {mac}", port.name, port.id));
        }
        let said = said_by_vsctl(ovs, &view);
        if seen == said { Ok(view) } else { Err(format!("{seen:?} is not {said:?}")) }
    })
}

fn said_by_vsctl(ovs: &Ovs<'_>, view: &SwitchView) -> Vec<String> {
    let bridges = ovs.vsctl("list-br");
    let lists =
        bridges.lines().flat_map(|bridge| [ovs.vsctl(&format!("list-ports {bridge}")), ovs.vsctl(&format!("list-ifaces {bridge}"))]);
    let lists: Vec<String> = lists.chain([bridges.clone()]).collect();
    let names: BTreeSet<String> = lists.iter().flat_map(|list| list.lines().map(str::to_owned)).collect();
    let ports = view.pairs.values().flat_map(|pair| [&pair.host, &pair.uplink]).flatten().map(|port| {
        let name = &port.name;
        let [ofport, mac] = ["ofport", "mac_in_use"].map(|column| ovs.column("interface", name, column));
        format!("{name} {} {ofport} {mac}", ovs.column("port", name, "_uuid"))
    });
    names.into_iter().chain(ports).collect()
}

/// Bridge, ports, notes: made, found again by another client, removed; strangers untouched.
#[test]
fn a_pair_comes_and_goes() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let canaries = Canaries::plant(&ovs);
    nic(&host, "eth0~");
    let (client, events) = client(ovs.target());
    assert_eq!(client.ensure_bridge(Datapath::System).unwrap().datapath, "netdev", "what is there is kept");
    let rows = client.create_pair(&pair("eth0")).unwrap();
    let named = [rows.host, rows.uplink].map(|row| row.to_string());
    assert_eq!(named, ["eth0", "eth0~"].map(|port| ovs.column("port", port, "_uuid")));
    let numbers = client.wait_ready("eth0", mac(), Failing::Ends, LIMIT).unwrap();
    assert_eq!(ovs.column("interface", "eth0", "ofport"), numbers.0.to_string());
    assert_eq!(ovs.column("interface", "eth0~", "ofport"), numbers.1.to_string());
    assert_eq!(ovs.column("interface", "eth0", "type"), "internal");
    let link = host.link("", "eth0").expect("the internal port is a device");
    assert_eq!((link.mac.as_str(), link.mtu), (MAC, 1400));
    events.wait_for(&OvsEvent::PortChanged("eth0".to_owned(), PortState::Ready(numbers.0)));

    // Ids of others on our ports are kept as well.
    ovs.vsctl("set port eth0 external_ids:iface-id=mine external_ids:vnf-agent-other=x");
    let notes = Notes {
        phase: Some("ATTACHED".to_owned()),
        orig_name: None,
        entity: Some("default/host1-9bf2c".to_owned()),
        attachment: Some("a1".to_owned()),
        ips: vec!["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
    };
    client.write_notes("eth0", &notes).unwrap();
    assert_eq!(
        ovs.column("port", "eth0", "external_ids"),
        "{iface-id=mine, vnf-agent-attachment=a1, vnf-agent-entity=\"default/host1-9bf2c\", vnf-agent-ips=\"192.0.2.5,2001:db8::5\", vnf-agent-other=x, \
         vnf-agent-owner=vpp1, vnf-agent-peer=\"eth0~\", vnf-agent-phase=ATTACHED, vnf-agent-role=host}"
    );
    let view = as_vsctl_says(&ovs, &client);
    drop(client);

    let (again, _) = crate::client(ovs.target());
    let found = again.read().unwrap();
    assert_eq!(found.pairs["eth0"].notes, notes);
    assert_eq!(found, SwitchView { followed: found.followed, ..view });
    again.delete_pair("eth0").unwrap();
    again.wait_gone("eth0", LIMIT).unwrap();
    eventually("the device is gone", || host.link("", "eth0").is_none());
    assert!(host.link("", "eth0~").is_some(), "the NIC is not ours to remove");
    as_vsctl_says(&ovs, &again);
    again.delete_pair("eth0").unwrap();
    assert_eq!(
        again.write_notes("eth0", &notes).unwrap_err().to_string(),
        "write down what belongs to the ports of `eth0`: there is no port `eth0` of ours"
    );
    canaries.assert_untouched();
}

#[test]
fn a_bridge_is_made_once() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let (client, _) = client(ovs.target());
    assert!(matches!(client.create_pair(&pair("eth0")), Err(OvsError::NoBridge { .. })));
    assert!(ovs.rows("Port").is_empty() && ovs.rows("Interface").is_empty());
    let made = client.ensure_bridge(Datapath::Netdev).unwrap();
    assert_eq!(made.datapath, "netdev");
    let id = ovs.column("bridge", "br-int", "_uuid");
    assert_eq!(client.ensure_bridge(Datapath::System).unwrap(), made);
    assert_eq!(ovs.column("bridge", "br-int", "_uuid"), id);
    client.wait_followed(LIMIT).unwrap();
    assert!(host.link("", "br-int").is_some());
    // A bridge of others that does not speak our version learns it, and forgets none.
    ovs.vsctl("set bridge br-int protocols=OpenFlow10");
    let protocols = client.ensure_bridge(Datapath::Netdev).unwrap().protocols;
    assert_eq!(protocols.iter().map(String::as_str).collect::<Vec<_>>(), ["OpenFlow10", "OpenFlow15"]);
    // A port of another bridge has the name.
    ovs.vsctl("del-br br-int -- add-br br-x -- set bridge br-x datapath_type=netdev -- add-port br-x br-int -- set interface br-int type=internal");
    assert!(matches!(client.ensure_bridge(Datapath::Netdev), Err(OvsError::Taken { .. })));
}

/// Names that are taken, devices that are missing.
/// Whoever must not take their devices hears of them before there are any.
#[test]
fn internal_ports_of_all_bridges_are_told() {
    let host = Host::new();
    let mut ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let (_client, events) = client(ovs.target());
    let ports = |names: &[(&str, &str)]| {
        OvsEvent::InternalPorts(names.iter().map(|(port, bridge)| ((*port).to_owned(), (*bridge).to_owned())).collect())
    };
    events.wait_for(&ports(&[("br-int", "br-int")]));
    ovs.kill_switch();
    ovs.vsctl("--no-wait add-br br-other -- set bridge br-other datapath_type=netdev");
    events.wait_for(&ports(&[("br-int", "br-int"), ("br-other", "br-other")]));
    ovs.vsctl("--no-wait add-port br-other vport0 -- set interface vport0 type=internal");
    events.wait_for(&ports(&[("br-int", "br-int"), ("br-other", "br-other"), ("vport0", "br-other")]));
    assert!(host.link("", "vport0").is_none());
    events.clear();
    ovs.vsctl("--no-wait add-port br-other none0");
    ovs.vsctl("--no-wait del-br br-other");
    events.wait_for(&ports(&[("br-int", "br-int")]));
    let told = events.count(|event| matches!(event, OvsEvent::InternalPorts(_)));
    assert_eq!(told, 1, "only what has changed is told");
}

#[test]
fn what_cannot_be_made_is_said() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let canaries = Canaries::plant(&ovs);
    let (client, events) = client(ovs.target());
    for taken in ["eth00", "eth0x"] {
        let error = client.create_pair(&pair(taken)).unwrap_err();
        assert!(matches!(&error, OvsError::Taken { name, .. } if name == taken), "{error}");
    }
    // Half of a bond: a name of an interface, of no port.
    ovs.vsctl("add-bond br-other bond0 eth1~ eth2 -- set interface eth1~ type=internal -- set interface eth2 type=internal");
    let error = client.create_pair(&pair("eth1")).unwrap_err();
    assert!(matches!(&error, OvsError::Taken { name, .. } if name == "eth1~"), "{error}");

    // The NIC is missing: the rows stand, with the reason; they come alive with the device.
    client.create_pair(&pair("eth9")).unwrap();
    let error = client.wait_ready("eth9", mac(), Failing::Ends, LIMIT).unwrap_err();
    assert!(matches!(&error, OvsError::PortFailed { port, cause, .. } if port == "eth9~" && cause.contains("No such device")), "{error}");
    events.wait("the failure is told", |event| matches!(event, OvsEvent::PortChanged(name, PortState::Failed(_)) if name == "eth9~"));
    let error = client.wait_ready("eth9", mac(), Failing::MayPass, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(&error, OvsError::NotYet { last, .. } if last.contains("No such device")), "{error}");
    nic(&host, "eth9~");
    client.wait_ready("eth9", mac(), Failing::MayPass, LIMIT).unwrap();
    as_vsctl_says(&ovs, &client);
    client.delete_pair("eth9").unwrap();
    canaries.assert_untouched();
}

/// Two write at once: one gets the names, and both know.
#[test]
fn concurrent_writers() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let other = AgentLabel::new("vpp2").unwrap();
    let clients = [client(ovs.target()).0, start(OvsOptions { label: other, ..options(ovs.target()) }).0];
    for round in 0..10 {
        let name = format!("nic{round}");
        let outcomes: Vec<Result<(), OvsError>> = std::thread::scope(|scope| {
            let threads = clients.each_ref().map(|client| scope.spawn(|| client.create_pair(&pair(&name)).map(drop)));
            // Meanwhile somebody else works on the same rows.
            ovs.vsctl(&format!("set bridge br-int external_ids:round={round}"));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let taken = outcomes.iter().filter(|outcome| matches!(outcome, Err(OvsError::Taken { .. }))).count();
        assert_eq!((made, taken), (1, 1), "{outcomes:?}");
        let has = clients.each_ref().map(|client| client.read().unwrap().pairs.contains_key(&name));
        assert_eq!(has, [outcomes[0].is_ok(), outcomes[1].is_ok()]);
        // Nobody removes what belongs to the other.
        let [first, second] = &clients;
        let (owner, stranger) = if has[0] { (first, second) } else { (second, first) };
        stranger.delete_pair(&name).unwrap();
        assert!(owner.read().unwrap().pairs.contains_key(&name));
    }
    ovs.vsctl("del-br br-int");
    assert_eq!(clients[0].read().unwrap(), SwitchView { followed: true, ..SwitchView::default() });
}

/// A client whose connection goes through a proxy; a lost answer costs it 10 s.
fn proxied(host: &Host, ovs: &Ovs<'_>) -> (OvsdbProxy, OvsClient, Arc<OvsEvents>) {
    let proxy = OvsdbProxy::start(host.path("proxy.sock"), ovs.socket());
    let (client, events) = start(OvsOptions { call_limit: Duration::from_secs(10), ..options(proxy.target()) });
    (proxy, client, events)
}

/// The answer is lost, the deed is done: the outcome is unknown until it is read.
#[test]
fn a_lost_answer_is_no_refusal() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let (proxy, client, _) = proxied(&host, &ovs);
    client.read().unwrap();
    *proxy.faults.lose_answer.lock().unwrap() = Some("vnf-agent-owner".to_owned());
    let error = client.create_pair(&pair("eth0")).unwrap_err();
    assert!(matches!(error, OvsError::Unknown { .. }), "{error}");
    assert_eq!(proxy.faults.lost.load(Ordering::SeqCst), 1);
    assert!(client.read().unwrap().pairs.contains_key("eth0"));
    as_vsctl_says(&ovs, &client);

    *proxy.faults.lose_answer.lock().unwrap() = Some("\"delete\"".to_owned());
    assert!(matches!(client.delete_pair("eth0"), Err(OvsError::Unknown { .. })));
    assert!(client.read().unwrap().pairs.is_empty());
}

/// A request that is still on its way when its connection ends never takes effect once another connection has read.
#[test]
fn what_was_read_is_final() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let (proxy, client, _) = proxied(&host, &ovs);
    client.read().unwrap();
    *proxy.faults.hold_request.lock().unwrap() = Some("vnf-agent-owner".to_owned());
    let error = client.create_pair(&pair("eth0")).unwrap_err();
    assert!(matches!(error, OvsError::Unknown { .. }), "{error}");
    assert_eq!(proxy.faults.held.load(Ordering::SeqCst), 1);
    assert!(client.read().unwrap().pairs.is_empty());
    proxy.faults.release();
    eventually("the late request is answered", || !proxy.faults.late_answers.lock().unwrap().is_empty());
    let answer = proxy.faults.late_answers.lock().unwrap()[0].clone();
    assert_eq!(answer["result"][0]["error"], "not owner", "{answer}");
    assert!(client.read().unwrap().pairs.is_empty());
    assert_eq!(ovs.vsctl("list-ports br-int"), "");
    client.create_pair(&pair("eth0")).unwrap();
}

#[test]
fn cut_stalled_and_split() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let (proxy, client, events) = proxied(&host, &ovs);
    proxy.faults.split.store(true, Ordering::SeqCst);
    client.ensure_bridge(Datapath::Netdev).unwrap();
    client.create_pair(&pair("eth0")).unwrap();
    as_vsctl_says(&ovs, &client);
    proxy.faults.split.store(false, Ordering::SeqCst);

    events.clear();
    proxy.faults.cut();
    events.wait("the cut is told", |event| matches!(event, OvsEvent::DatabaseLost(_)));
    // What happened meanwhile is told after the return.
    proxy.faults.refuse.store(true, Ordering::SeqCst);
    ovs.vsctl("del-port eth0");
    proxy.faults.refuse.store(false, Ordering::SeqCst);
    events.wait_for(&OvsEvent::PortRemoved("eth0".to_owned()));
    events.wait_for(&OvsEvent::DatabaseBack);
    eventually("it answers again", || client.read().is_ok());

    proxy.faults.stall.store(true, Ordering::SeqCst);
    let error = client.read().unwrap_err();
    assert!(matches!(error, OvsError::Unreachable { .. }), "{error}");
    let error = client.delete_pair("eth0").unwrap_err();
    assert!(matches!(error, OvsError::Unreachable { .. }), "it did not come to the deletion: {error}");
    proxy.faults.stall.store(false, Ordering::SeqCst);
    eventually("it answers again", || client.read().is_ok());
    client.delete_pair("eth0").unwrap();
    as_vsctl_says(&ovs, &client);
}

/// A server that hangs is noticed, and so is its return; nothing of the reading waits for ever.
#[test]
fn a_frozen_server_is_lost_and_found() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let short = Duration::from_millis(300);
    let (client, events) = start(OvsOptions { probe_interval: short, call_limit: short, ..options(ovs.target()) });
    eventually("it answers", || client.read().is_ok());
    ovs.signal_database(Signal::SIGSTOP);
    events.wait("it is missed", |event| matches!(event, OvsEvent::DatabaseLost(_)));
    ovs.signal_database(Signal::SIGCONT);
    // With so little patience it may be missed again on a busy machine, so nothing more is asked of it.
    eventually("it answers again", || client.read().is_ok());
}

#[test]
fn a_killed_server_comes_back() {
    let host = Host::new();
    let mut ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    nic(&host, "eth0~");
    let (client, events) = client(ovs.target());
    client.create_pair(&pair("eth0")).unwrap();
    client.wait_ready("eth0", mac(), Failing::Ends, LIMIT).unwrap();
    let before = client.read().unwrap();
    ovs.kill_database();
    events.wait("it is missed", |event| matches!(event, OvsEvent::DatabaseLost(_)));
    events.clear();
    // Waiting goes on over the outage.
    let ready = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.wait_ready("eth0", mac(), Failing::Ends, LIMIT));
        ovs.start_database();
        waiting.join().unwrap()
    });
    assert_eq!(ready.unwrap(), before.pairs["eth0"].numbers().unwrap());
    events.wait_for(&OvsEvent::DatabaseBack);
    assert_eq!(client.read().unwrap().pairs, before.pairs);
    as_vsctl_says(&ovs, &client);
}

/// A frozen or dead `ovs-vswitchd`: the database takes everything, and who waits is told for what.
#[test]
fn a_switch_that_does_not_follow() {
    let host = Host::new();
    let mut ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    nic(&host, "eth0~");
    let (client, _) = client(ovs.target());
    client.wait_followed(LIMIT).unwrap();
    ovs.signal_switch(Signal::SIGSTOP);
    let short = Duration::from_millis(300);
    let error = client.wait_followed(short).unwrap_err();
    assert!(matches!(error, OvsError::NotYet { .. }), "{error}");
    client.create_pair(&pair("eth0")).unwrap();
    let error = client.wait_ready("eth0", mac(), Failing::Ends, short).unwrap_err();
    assert!(matches!(&error, OvsError::NotYet { last, .. } if last.contains("ovs-vswitchd")), "{error}");
    ovs.signal_switch(Signal::SIGCONT);
    client.wait_ready("eth0", mac(), Failing::Ends, LIMIT).unwrap();
    ovs.kill_switch();
    client.delete_pair("eth0").unwrap();
    let error = client.wait_gone("eth0", short).unwrap_err();
    assert!(matches!(&error, OvsError::NotYet { last, .. } if last.contains("ovs-vswitchd")), "{error}");
    ovs.start_switch();
    client.wait_gone("eth0", LIMIT).unwrap();
    client.wait_followed(LIMIT).unwrap();
}

/// What others do to our ports is told.
#[test]
fn interference_is_told() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    nic(&host, "eth0~");
    let (client, events) = client(ovs.target());
    client.create_pair(&pair("eth0")).unwrap();
    client.wait_ready("eth0", mac(), Failing::Ends, LIMIT).unwrap();
    events.clear();
    ovs.vsctl("set interface eth0 ofport_request=77");
    events.wait_for(&OvsEvent::PortChanged("eth0".to_owned(), PortState::Ready(OfPort::new(77).unwrap())));
    host.run("ip link del eth0~");
    // It keeps its number as long as nothing else makes Open vSwitch look; its address goes.
    events.wait("the NIC is missed", |event| matches!(event, OvsEvent::PortChanged(name, _) if name == "eth0~"));
    eventually("it has no address", || client.read().unwrap().pairs["eth0"].uplink.as_ref().unwrap().mac_in_use.is_none());
    ovs.vsctl("del-port eth0~");
    events.wait_for(&OvsEvent::PortRemoved("eth0~".to_owned()));
    let half = client.read().unwrap();
    assert!(half.pairs["eth0"].uplink.is_none());
    assert!(matches!(client.wait_ready("eth0", mac(), Failing::Ends, LIMIT), Err(OvsError::NoPort { .. })));
    client.delete_pair("eth0").unwrap();
    assert!(client.read().unwrap().pairs.is_empty());
    ovs.vsctl("del-br br-int");
    events.wait_for(&OvsEvent::BridgeRemoved);
    eventually_eq("nothing is left", &0, || ovs.rows("Port").len());
}

/// The same over TCP.
#[test]
fn over_tcp() {
    let host = Host::new();
    let ovs = host.start_ovs();
    host.run("ovs-appctl --timeout=10 -t /run/openvswitch/ovsdb-server.ctl ovsdb-server/add-remote ptcp:6640:127.0.0.1");
    // A thread has the namespace of the one that starts it.
    let (client, _) = host.inside("", || client(OvsdbTarget::parse("tcp:127.0.0.1:6640").unwrap()));
    client.ensure_bridge(Datapath::Netdev).unwrap();
    client.create_pair(&pair("eth0")).unwrap();
    assert!(as_vsctl_says(&ovs, &client).pairs.contains_key("eth0"));
    client.delete_pair("eth0").unwrap();
}
