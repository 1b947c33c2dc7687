//! Open vSwitch that hangs, dies, restarts or forgets everything under a NIC that is behind it: the host is reachable, and all is as wished afterwards.

mod node_support;
mod support;

use std::time::Duration;

use nix::sys::signal::Signal;
use node_support::*;
use serde_json::{Value, json};
use support::etcd::PREFIX;
use support::{Host, eventually_eq};

const INTERFACES: &str = r#"[{"name": "nic0", "ips": ["10.199.0.2"]}]"#;

fn interfaces() -> Value {
    serde_json::from_str(INTERFACES).expect("JSON")
}

/// Waits until the agent's flows stand; there may be no bridge yet.
fn wait_flows(host: &Host) {
    eventually_long("the flows are back", || {
        let flows = host.try_run("ovs-ofctl --timeout=10 -O OpenFlow15 dump-flows br-int");
        if flows.as_ref().is_ok_and(|flows| flows.contains("table=205")) { Ok(()) } else { Err(flows) }
    });
}

/// Waits until both addresses answer by the NIC itself.
fn wait_rescued(host: &Host, nic: &support::Nic<'_>, when: &str) {
    for address in nic.addresses() {
        eventually_long(&format!("{address} answers {when}"), || {
            if host.pings(support::NETWORK, &address.to_string()) {
                Ok(())
            } else {
                Err(host.run("ip address") + &host.run("ip route show table all"))
            }
        });
    }
    assert!(host.run("ip address show").contains("10.199.0.2"));
}

/// C84: frozen for 30 s, under a NIC that is attached.
#[test]
fn a_switch_that_hangs() {
    let host = Host::new();
    let Moved { nic, before, ovs, etcd, agent: _agent } = Moved::start(&host, &interfaces());
    let talk = Talk::start(&host, "", support::NETWORK, "10.199.0.1:5000".parse().expect("an address"));
    talk.wait_for_some();
    ovs.signal_switch(Signal::SIGSTOP);
    let frozen = std::time::Instant::now();
    wait_rescued(&host, &nic, "while the switch hangs");
    std::thread::sleep(Duration::from_secs(30).saturating_sub(frozen.elapsed()));
    wait_rescued(&host, &nic, "while the switch still hangs");
    ovs.signal_switch(Signal::SIGCONT);
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    eventually_eq("it is as it was", &before, || shape(&host, "nic0"));
    talk.end();
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// Nor does the port keep the host's routes when somebody changed the NIC's hardware address meanwhile.
#[test]
fn a_hardware_address_that_changes_while_all_hangs() {
    let host = Host::new();
    let Moved { nic, before, ovs, etcd, agent: _agent } = Moved::start(&host, &interfaces());
    let mac = link(&host, "nic0~")["address"].clone();
    ovs.signal_switch(Signal::SIGSTOP);
    ovs.signal_database(Signal::SIGSTOP);
    host.run("ip link set nic0~ address 02:00:00:00:00:99");
    wait_rescued(&host, &nic, "by the NIC, with another hardware address");
    ovs.signal_database(Signal::SIGCONT);
    ovs.signal_switch(Signal::SIGCONT);
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &before);
    assert_eq!(link(&host, "nic0")["address"], mac);
}

/// Frozen when the way behind the bridge begins: the host stays where it is until the switch goes on.
#[test]
fn a_switch_that_hangs_from_the_beginning() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    ovs.signal_switch(Signal::SIGSTOP);
    wish(&etcd, &interfaces());
    wait_for(&etcd, "RETRYING", "TIMEOUT", "undone");
    wait_rescued(&host, &nic, "with a switch that hangs");
    ovs.signal_switch(Signal::SIGCONT);
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    eventually_eq("it is as it was", &before, || shape(&host, "nic0"));
}

/// C84: killed, restarted, restarted with clean-up; the database as well; both at once.
#[test]
fn a_switch_that_dies() {
    let host = Host::new();
    let Moved { nic, before, mut ovs, etcd, agent } = Moved::start(&host, &interfaces());
    let as_before = |port: u16, what: &str| {
        wait_attached(&etcd, &["nic0"]);
        eventually_long(&format!("all is as before: {what}"), || {
            let now = shape(&host, "nic0");
            if now == before { Ok(()) } else { Err(now) }
        });
        nic.passes_all_but(port, &[]);
    };
    let revision = etcd.revision();
    ovs.kill_switch();
    wait_rescued(&host, &nic, "with a dead switch");
    // Before the switch is waited for in vain; it may have failed to install flows by then.
    eventually_long("it is told that the NIC is not attached", || {
        let told = etcd.history(&format!("{PREFIX}{STATUS}"), revision);
        let is_moved = |status: &Value| status["interfaces"][0]["phase"] != "ATTACHED";
        let has_waited = |status: &Value| status["message"].to_string().contains("wait for");
        if told.iter().any(|status| is_moved(status) && !has_waited(status)) { Ok(()) } else { Err(told) }
    });
    ovs.start_switch();
    wait_flows(&host);
    as_before(5001, "killed and started");
    ovs.exit_switch_with_cleanup();
    wait_rescued(&host, &nic, "when the switch has cleaned up");
    ovs.start_switch();
    wait_flows(&host);
    as_before(5002, "cleaned up and started");
    // Without its database the switch stops its user-space datapath, too.
    ovs.kill_database();
    wait_rescued(&host, &nic, "with a dead database");
    nic.passes_all_but(5003, &[]);
    ovs.start_database();
    as_before(5004, "the database started again");
    ovs.kill_database();
    ovs.kill_switch();
    wait_rescued(&host, &nic, "with neither switch nor database");
    nic.passes_all_but(5005, &[]);
    ovs.start_database();
    ovs.start_switch();
    as_before(5006, "both started again");
    assert!(!agent.log().contains("panicked"));
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// The database says nothing just when the switch is started anew: the host does not wait for it.
#[test]
fn a_database_that_hangs_while_the_switch_restarts() {
    let host = Host::new();
    let Moved { nic, before, mut ovs, etcd, agent: _agent } = Moved::start(&host, &interfaces());
    let traffic = Traffic::start(&host, &nic, 5000);
    ovs.signal_database(Signal::SIGSTOP);
    ovs.kill_switch();
    wait_rescued(&host, &nic, "with a dead switch, while its database hangs");
    traffic.end("until the host went on by the NIC");
    ovs.signal_database(Signal::SIGCONT);
    ovs.start_switch();
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// The database is emptied, and somebody initialises it again.
#[test]
fn a_database_that_forgets_everything() {
    let host = Host::new();
    let Moved { nic, before, mut ovs, etcd, agent: _agent } = Moved::start(&host, &interfaces());
    ovs.kill_switch();
    ovs.kill_database();
    std::fs::remove_file(host.path("ovs.db")).expect("the database");
    host.run(&format!("ovsdb-tool create {} /usr/share/openvswitch/vswitch.ovsschema", host.path("ovs.db").display()));
    ovs.start_database();
    wait_rescued(&host, &nic, "with an empty database");
    ovs.vsctl("--no-wait init");
    ovs.start_switch();
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// A wish on a host without Open vSwitch touches nothing.
#[test]
fn nothing_is_touched_for_a_switch_that_is_not_there() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &interfaces());
    wait_for(&etcd, "RETRYING", "OVS_UNREACHABLE", "");
    assert_eq!(agent.log().matches("taking a step").count(), 0);
    eventually_eq("it is as it was", &before, || shape(&host, "nic0"));
    nic.passes_all_but(5001, &[]);
    let _ovs = host.start_ovs();
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5002, &[]);
    assert_eq!(json!(shape(&host, "nic0")), json!(before));
}

/// A bridge with a controller in its band has the NIC open by which that one is reached, under its own name, and looks only every 10 s which one that is.
#[test]
fn a_controller_in_the_band() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip route add default via 10.199.0.1 dev nic0");
    let before = settled_shape(&host, "nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    ovs.vsctl("add-br br-int -- set bridge br-int datapath_type=netdev -- set-controller br-int tcp:127.0.0.1:6653");
    wish(&etcd, &interfaces());
    wait_attached(&etcd, &["nic0"]);
    let log = agent.log();
    assert!(!log.contains("File exists"), "it was waited for in vain: {log}");
    wait_rescued(&host, &nic, "beside the controller");
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
    assert_eq!(ovs.vsctl("get-controller br-int").trim(), "tcp:127.0.0.1:6653");
}

/// Somebody takes the database from a server that goes on: the switch serves nobody without it, and looks alive.
#[test]
fn a_database_that_is_taken_from_its_server() {
    let host = Host::new();
    let Moved { nic, before, ovs, etcd, agent: _agent } = Moved::start(&host, &interfaces());
    let server = "ovs-appctl --timeout=10 -t /run/openvswitch/ovsdb-server.ctl ovsdb-server";
    host.run(&format!("{server}/remove-db Open_vSwitch"));
    wait_for(&etcd, "RETRYING", "OVS_UNREACHABLE", "");
    eventually_long("the NIC has the addresses itself", || {
        let addresses = host.run("ip address show dev nic0~");
        if addresses.contains("10.199.0.2") { Ok(()) } else { Err(host.run("ip address")) }
    });
    wait_rescued(&host, &nic, "without a database");
    host.run(&format!("{server}/add-db {}", host.path("ovs.db").display()));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    assert!(ovs.vsctl("list-ports br-int").contains("nic0~"));
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &before);
}
