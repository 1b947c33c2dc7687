//! Live migration from the old agent: its links carry no mark, and are taken over while they carry traffic.

mod support;

use serde_json::json;
use support::wish::with;
use support::{Agent, Canaries, Host, eventually, the_pair};

/// What the old agent leaves behind: the pair under the wished names, with one setting wrong.
fn old_pair(host: &Host) {
    host.run("ip -n red link add veth1 type veth peer name veth2 netns blue");
    host.run("ip -n red address add 10.11.1.1/24 dev veth1");
    host.run("ip -n blue address add 10.11.1.2/24 dev veth2");
    host.run("ip -n red link set veth1 mtu 1300 up");
    host.run("ip -n blue link set veth2 up");
    // The kernel passes packets once its link watch has run, up to a second later.
    for (netns, name) in [("red", "veth1"), ("blue", "veth2")] {
        eventually("the pair has carrier", || host.run(&format!("ip -n {netns} link show {name}")).contains("state UP"));
    }
}

fn index(host: &Host) -> u64 {
    host.link("red", "veth1").expect("veth1 is there").index
}

fn adopted(agent: &Agent<'_>, host: &Host, index_before: u64) {
    agent.wait_configured(&["veth1", "veth2"]);
    let link = host.link("red", "veth1").expect("veth1 is there");
    assert_eq!((link.index, link.mtu, link.alias.as_str()), (index_before, 1500, "vnf-agent:vpp1:veth:veth1"), "kept, corrected, marked");
    assert_eq!(host.link("blue", "veth2").expect("veth2 is there").alias, "vnf-agent:vpp1:veth:veth2");
}

#[test]
fn an_unmarked_pair_is_taken_over_on_the_first_start() {
    let host = Host::with_netns(&["red", "blue"]);
    old_pair(&host);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let etcd = host.start_etcd();
    etcd.put_all(&the_pair());
    let before = index(&host);
    let ping =
        host.command("red", "ping").args(["-i", "0.02", "-c", "100", "-q", "10.11.1.2"]).stdout(std::process::Stdio::piped()).spawn();
    let mut agent = host.agent().on_etcd().started();
    adopted(&agent, &host, before);
    let said = String::from_utf8_lossy(&ping.expect("ping starts").wait_with_output().expect("a child").stdout).into_owned();
    assert!(said.contains(" 0% packet loss"), "{said}");
    canaries.assert_untouched();

    // The wished addresses count as ours now, and what else is there as somebody's.
    host.run("ip -n red address add 10.9.9.9/32 dev veth1");
    agent.apply(&[with(&the_pair()[0], json!({"ip_addresses": ["10.11.1.5/24"]}))]);
    agent.restart();
    eventually("the old wish goes, the stranger stays", || host.addresses("red", "veth1") == ["10.11.1.5/24", "10.9.9.9/32"]);
    agent.del("veth1");
    eventually("from now on it is ours to remove", || host.link("red", "veth1").is_none());
}

#[test]
fn not_when_switched_off() {
    let host = Host::with_netns(&["red", "blue"]);
    old_pair(&host);
    let before = host.digest(&["red", "blue"]);
    let etcd = host.start_etcd();
    etcd.put_all(&the_pair());
    let agent = host.agent().on_etcd().with(&["--adopt", "never"]).started();
    for name in ["veth1", "veth2"] {
        agent.wait_for(name, "FAILED", "FOREIGN_LINK");
    }
    assert_eq!(host.digest(&["red", "blue"]), before);
}

#[test]
fn later_only_on_request() {
    let host = Host::with_netns(&["red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    agent.wait_ready();
    agent.stop();
    old_pair(&host);
    let before = index(&host);
    etcd.put_all(&the_pair());
    agent.start();
    agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
    assert_eq!(host.link("red", "veth1").expect("there").alias, "");
    agent.ask(&["adopt", "veth1"]);
    adopted(&agent, &host, before);
}

/// Only what fits as a whole: both names, both namespaces, a veth, one pair.
#[test]
fn what_does_not_fit_is_a_stranger() {
    for make in [
        // The other end has another name.
        "ip -n red link add veth1 type veth peer name other netns blue",
        // The other end is somewhere else.
        "ip -n red link add veth1 type veth peer name veth2",
        // No veth.
        "ip -n red link add veth1 type bridge",
    ] {
        let host = Host::with_netns(&["red", "blue"]);
        host.run(make);
        let before = host.digest(&["red", "blue"]);
        let etcd = host.start_etcd();
        etcd.put_all(&the_pair());
        let agent = host.agent().on_etcd().started();
        agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
        let refused = agent.vnfctl(&["adopt", "veth1"]);
        agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
        assert_eq!(host.digest(&["red", "blue"]), before, "{make}: {}{}", refused.stdout, refused.stderr);
    }
}

/// Two halves that belong to two different pairs.
#[test]
fn two_halves_are_no_pair() {
    let host = Host::with_netns(&["red", "blue"]);
    host.run("ip -n red link add veth1 type veth peer name x");
    host.run("ip -n blue link add veth2 type veth peer name y");
    let before = host.digest(&["red", "blue"]);
    let etcd = host.start_etcd();
    etcd.put_all(&the_pair());
    let agent = host.agent().on_etcd().started();
    for name in ["veth1", "veth2"] {
        agent.wait_for(name, "FAILED", "FOREIGN_LINK");
    }
    assert_eq!(host.digest(&["red", "blue"]), before);
}
