//! HOLD: a store that lost its memory removes nothing.

mod support;

use serde_json::json;
use support::{Agent, Etcd, Host, eventually, pair, the_pair, veth};

/// An agent whose two pairs stand, on an etcd that was then wiped.
fn wiped(host: &Host) -> (Etcd<'_>, Agent<'_>) {
    let mut etcd = host.start_etcd();
    let agent = host.agent().on_etcd().started();
    etcd.pass_revisions(50);
    etcd.put_all(&[the_pair(), pair(1, "red", "blue")].concat());
    agent.wait_configured(&["veth1", "veth2", "a1", "b1"]);
    agent.wait_ready();
    etcd.wipe();
    etcd.start();
    (etcd, agent)
}

/// Waits for HOLD and returns what readiness says.
fn wait_held(agent: &Agent<'_>) -> String {
    let mut said = String::new();
    eventually("readiness speaks of HOLD", || {
        said = agent.http("/readiness").1;
        said.contains("HOLD")
    });
    said
}

#[test]
fn nothing_is_removed_and_additions_are_applied() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = wiped(&host);
    let before = host.digest(&["red", "blue"]);
    wait_held(&agent);
    assert_eq!(host.digest(&["red", "blue"]), before);

    etcd.put_all(&pair(2, "red", "blue"));
    agent.wait_configured(&["a2", "b2"]);
    assert_eq!(host.link_names("red"), ["a1", "a2", "veth1"]);
    wait_held(&agent);

    // What is kept is also kept in order.
    host.run("ip -n red link set veth1 down");
    host.run("ip -n red link set veth1 up");
    assert!(host.link("red", "veth1").is_some());
}

#[test]
fn it_ends_when_everything_is_listed_again() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = wiped(&host);
    wait_held(&agent);
    let before = [host.links("red"), host.links("blue")];
    etcd.put_all(&[the_pair(), pair(1, "red", "blue")].concat());
    agent.ask(&["resync"]);
    agent.wait_ready();
    assert_eq!([host.links("red"), host.links("blue")], before, "the same links");
    agent.wait_configured(&["veth1", "veth2", "a1", "b1"]);
    etcd.delete("a1");
    eventually("removals work again", || host.link("red", "a1").is_none());
}

#[test]
fn it_ends_when_removals_are_accepted() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = wiped(&host);
    wait_held(&agent);
    etcd.put_all(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    agent.ask(&["resync", "--accept-removals"]);
    eventually("what has no key goes", || host.link_names("red") == ["veth1"] && host.link_names("blue") == ["veth2"]);
    agent.wait_ready();
}

/// The memory of the store is in the state directory: a restart in between changes nothing.
#[test]
fn a_restart_does_not_forget() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    etcd.pass_revisions(50);
    etcd.put_all(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    agent.stop();
    etcd.wipe();
    etcd.start();
    agent.start();
    wait_held(&agent);
    agent.restart();
    wait_held(&agent);
    assert_eq!(host.link_names("red"), ["veth1"]);
}

/// A deletion of all keys in the same store is a deletion, not a loss of memory.
#[test]
fn an_honest_deletion_of_everything_is_obeyed() {
    let host = Host::with_netns(&["red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    etcd.put_all(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    agent.stop();
    etcd.delete_everything();
    agent.start();
    agent.wait_ready();
    eventually("all are gone", || host.link_names("red").is_empty() && host.link_names("blue").is_empty());
}

/// An invalid value is no removal either, in HOLD or not.
#[test]
fn an_invalid_key_in_hold() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = wiped(&host);
    wait_held(&agent);
    let before = host.links("red");
    etcd.put(&veth("veth1", "veth1", "red", json!({})));
    agent.wait_for("veth1", "INVALID", "BAD_PEER");
    assert_eq!(host.links("red"), before);
}
