//! The conversation with Open vSwitch's database: a server that was never there, one that says nothing, and two that have one lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::{Host, OvsEvents, OvsdbProxy};
use vnf_agent::model::{AgentLabel, HostIfName, MacAddr, OvsdbTarget};
use vnf_agent::ovs::{NewPair, Notes, OvsClient, OvsError, OvsEvent, OvsOptions, Switch};

/// Generous: what is waited for comes within milliseconds, and who is not to wait is not done in this time some dozen times over.
const LIMIT: Duration = Duration::from_secs(60);

fn client(target: OvsdbTarget) -> (OvsClient, Arc<OvsEvents>) {
    let usual = OvsOptions::new(target, AgentLabel::new("vpp1").unwrap(), "br-int".to_owned());
    let events = Arc::new(OvsEvents::default());
    (OvsClient::start(OvsOptions { call_limit: LIMIT, probe_interval: LIMIT, ..usual }, events.clone()).unwrap(), events)
}

fn pair(host: &str) -> NewPair {
    let name = |text: &str| HostIfName::new(text).unwrap();
    let mac = MacAddr::parse("02:00:00:00:00:01").unwrap();
    NewPair { host: name(host), uplink: name(&format!("{host}~")), mac, mtu: 1400, notes: Notes::default() }
}

/// A server that was never reached is not waited for by each caller anew, and who asks is told where it was looked for.
#[test]
fn a_server_that_was_never_there() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let path = host.path("proxy.sock");
    let (client, events) = client(OvsdbTarget::Unix(path.clone()));
    for _ in 0..200 {
        let error = client.read().unwrap_err();
        assert!(matches!(error, OvsError::Unreachable { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("No such file"), "{error}");
    }
    let _proxy = OvsdbProxy::start(path, ovs.socket());
    events.wait_for(&OvsEvent::DatabaseBack);
    client.read().unwrap();
}

/// An agent and the process that stands by for it write in turn, over one connection each; who only reads takes the lock from nobody.
#[test]
fn two_of_one_label_take_the_lock_from_each_other_only_to_write() {
    let host = Host::new();
    let ovs = host.start_ovs();
    ovs.add_bridge("br-int");
    let proxy = OvsdbProxy::start(host.path("proxy.sock"), ovs.socket());
    let clients = [client(proxy.target()), client(proxy.target())];
    for (client, _) in &clients {
        client.read().unwrap();
    }
    for round in 0..10 {
        let (name, [first, second]) = (format!("nic{round}"), clients.each_ref().map(|(client, _)| client));
        first.create_pair(&pair(&name)).unwrap();
        for _ in 0..5 {
            assert!(second.read().unwrap().pairs.contains_key(&name) && first.read().unwrap().pairs.contains_key(&name));
        }
        second.delete_pair(&name).unwrap();
        assert!(first.read().unwrap().pairs.is_empty());
    }
    // The lock comes back to who has not written last when the other one ends.
    let [(first, events), (second, of_second)] = clients;
    drop(second);
    first.create_pair(&pair("nic0")).unwrap();
    assert!(first.read().unwrap().pairs.contains_key("nic0"));
    let lost = |events: &OvsEvents| events.count(|event| matches!(event, OvsEvent::DatabaseLost(_))) > 0;
    assert!(!lost(&events) && !lost(&of_second));
    assert_eq!(proxy.faults.connections.load(Ordering::SeqCst), 2);
}

/// Who got no answer does not wait as long for the next one, until the server says something again; and that is told.
#[test]
fn a_server_that_says_nothing_is_not_waited_for_again_and_again() {
    let host = Host::new();
    let ovs = host.start_ovs();
    let proxy = OvsdbProxy::start(host.path("proxy.sock"), ovs.socket());
    let (client, events) = client(proxy.target());
    client.read().unwrap();
    events.clear();
    proxy.faults.stall.store(true, Ordering::SeqCst);
    client.read_within(Duration::from_millis(100)).unwrap_err();
    for _ in 0..50 {
        assert!(matches!(client.read(), Err(OvsError::Unreachable { .. })));
    }
    proxy.faults.stall.store(false, Ordering::SeqCst);
    events.wait_for(&OvsEvent::DatabaseBack);
    client.read().unwrap();
    assert_eq!(proxy.faults.connections.load(Ordering::SeqCst), 1);
}
