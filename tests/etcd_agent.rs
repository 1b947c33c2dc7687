//! The agent on a real etcd: what is written arrives, what is published is true, and nothing that happens to etcd harms the kernel.

mod support;

use serde_json::json;
use support::etcd::{PREFIX, config_key, status_key};
use support::wish::with;
use support::{Agent, Etcd, Host, eventually, eventually_eq, eventually_ok, pair, the_pair, veth};

fn connected(host: &Host) -> (Etcd<'_>, Agent<'_>) {
    let etcd = host.start_etcd();
    let agent = host.agent().on_etcd().started();
    etcd.put_all(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    (etcd, agent)
}

/// Waits until the status in etcd is in this state.
fn wait_published(etcd: &Etcd<'_>, name: &str, state: &str) -> serde_json::Value {
    eventually_ok(&format!("{name} is published as {state}"), || {
        let status = etcd.get(&status_key(name)).unwrap_or_default();
        if status["state"] == state { Ok(status) } else { Err(status) }
    })
}

/// Both ends in one transaction, or one by one; statuses come back under a lease.
#[test]
fn statuses_are_published_with_a_lease() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, mut agent) = connected(&host);
    let status = wait_published(&etcd, "veth1", "CONFIGURED");
    let same = eventually_ok("both say the same", || {
        let (published, asked) = (etcd.get(&status_key("veth1")), agent.status("veth1"));
        if published == asked { Ok(published) } else { Err(format!("{published:?}, {asked:?}")) }
    });
    assert!(same.is_some());
    assert_eq!(status["ip_addresses"], json!(["10.11.1.1/24"]));
    assert_ne!(etcd.lease_of(&status_key("veth1")), 0);
    eventually("the agent's own status is there", || etcd.get(&format!("{PREFIX}check/status/v1/agent")).is_some());
    assert_ne!(etcd.lease_of(&format!("{PREFIX}check/status/v1/agent")), 0);

    // A killed agent's statuses expire; a new one's are there again.
    agent.kill();
    eventually("they expire", || etcd.keys(&format!("{PREFIX}linux/status/")).is_empty());
    agent.start();
    wait_published(&etcd, "veth1", "CONFIGURED");
}

/// A status without a config key, left by somebody, is removed at the start.
#[test]
fn stale_statuses_are_removed() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, mut agent) = connected(&host);
    agent.stop();
    etcd.client(async |mut client| client.put(status_key("nobody"), "{}", None).await.map(drop)).expect("etcd takes it");
    agent.start();
    let wanted = vec![status_key("veth1"), status_key("veth2")];
    eventually_eq("only statuses of keys", &wanted, || etcd.keys(&status_key("")));
}

/// C29: a lease that ends is a delete.
#[test]
fn an_expired_key_is_a_deleted_key() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    etcd.put_leased(&the_pair()[0], 2);
    agent.wait_for("veth2", "PENDING", "PEER_MISSING");
    agent.wait_forgotten("veth1");
    eventually("the pair is gone", || host.link_names("red").is_empty() && host.link_names("blue").is_empty());
}

/// The keys of `vpp10` and of others mean nothing to `vpp1`.
#[test]
fn a_neighbours_keys_are_not_seen() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    let value = veth("x", "y", "red", json!({})).to_string();
    for key in [
        "/vnf-agent/vpp10/linux/config/v1/interface/x",
        "/vnf-agent/vpp/linux/config/v1/interface/x",
        "/vnf-agent/vpp1//linux/config/v1/interface/x",
        "/vnf-agent/vpp1/linux/config/v1/route/x",
    ] {
        etcd.client(async |mut client| client.put(key, value.clone(), None).await.map(drop)).expect("etcd takes it");
    }
    etcd.put_all(&pair(0, "red", "blue"));
    agent.wait_configured(&["a0", "b0"]);
    assert!(agent.status("x").is_none());
}

/// `vnfctl` writes into etcd, and what is written in etcd is what it shows.
#[test]
fn the_client_writes_through() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    agent.put(&veth("x", "y", "red", json!({})));
    eventually("the key is there", || etcd.get(&config_key("x")).is_some());
    agent.del("x");
    eventually("the key is gone", || etcd.get(&config_key("x")).is_none());
    agent.wait_forgotten("x");
}

/// C03: a key that disagrees with its value harms nobody, also after a reconnection.
#[test]
fn a_mismatched_key_over_a_reconnection() {
    let host = Host::with_netns(&["red", "blue"]);
    let (mut etcd, agent) = connected(&host);
    etcd.put_raw("x", veth("veth9", "y", "red", json!({})).to_string().as_bytes());
    agent.wait_for("x", "INVALID", "KEY_MISMATCH");
    etcd.kill();
    agent.wait_unready();
    etcd.start();
    agent.wait_ready();
    agent.wait_for("x", "INVALID", "KEY_MISMATCH");
    agent.wait_configured(&["veth1", "veth2"]);
}

/// C60: etcd dies, comes back, much happens meanwhile and is compacted: a delete and a change are both applied.
#[test]
fn changes_behind_a_compaction() {
    let host = Host::with_netns(&["red", "blue"]);
    let (mut etcd, agent) = connected(&host);
    etcd.put_all(&pair(1, "red", "blue"));
    agent.wait_configured(&["a1", "b1"]);
    etcd.kill();
    let silent = host.links("red");
    agent.signal(nix::sys::signal::Signal::SIGSTOP);
    etcd.start();
    etcd.pass_revisions(2000);
    etcd.delete("veth1");
    etcd.put(&with(&pair(1, "red", "blue")[0], json!({"mtu": 1400})));
    etcd.pass_revisions(10);
    etcd.compact();
    assert_eq!(host.links("red"), silent, "without etcd everything stays");
    agent.signal(nix::sys::signal::Signal::SIGCONT);
    agent.wait_for("veth2", "PENDING", "PEER_MISSING");
    eventually("the change is applied", || host.link("red", "a1").is_some_and(|link| link.mtu == 1400));
    eventually("the delete is applied", || host.link("red", "veth1").is_none());
    agent.wait_configured(&["a1", "b1"]);
    agent.wait_ready();
}

/// C60: the same while only the agent sleeps; and a delete at the very revision that is compacted.
#[test]
fn a_delete_at_the_compacted_revision() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    agent.signal(nix::sys::signal::Signal::SIGSTOP);
    etcd.pass_revisions(300);
    etcd.delete("veth1");
    etcd.compact();
    agent.signal(nix::sys::signal::Signal::SIGCONT);
    agent.wait_for("veth2", "PENDING", "PEER_MISSING");
    eventually("it is applied", || host.link_names("red").is_empty());
}

/// C61, in part: a frozen etcd is noticed, said, and gets over it.
#[test]
fn a_frozen_etcd() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    agent.wait_ready();
    etcd.freeze();
    let reason = agent.wait_unready();
    assert!(!reason.trim().is_empty());
    let before = host.digest(&["red", "blue"]);
    // The kernel is looked after all the same.
    host.run("ip -n red address del 10.11.1.1/24 dev veth1");
    eventually_eq("repaired without etcd", &before, || host.digest(&["red", "blue"]));
    etcd.thaw();
    agent.wait_ready();
    etcd.put(&with(&the_pair()[0], json!({"mtu": 1400})));
    eventually("changes arrive again", || host.link("red", "veth1").is_some_and(|link| link.mtu == 1400));
}

/// C63: no etcd, a wrong port, a name that does not resolve: it stays up, keeps what stands, says why, and recovers.
#[test]
fn starting_without_etcd() {
    let host = Host::with_netns(&["red", "blue"]);
    let (mut etcd, mut agent) = connected(&host);
    let before = [host.links("red"), host.links("blue")];
    agent.stop();
    etcd.kill();
    agent.start();
    let reason = agent.wait_unready();
    assert!(!reason.trim().is_empty());
    assert_eq!([host.links("red"), host.links("blue")], before, "nothing is torn down");
    etcd.start();
    agent.wait_ready();
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!([host.links("red"), host.links("blue")], before);
}

/// C63, the other two causes.
#[test]
fn endpoints_that_lead_nowhere() {
    for endpoint in ["http://127.0.0.1:1", "http://no-such-host.invalid:2379"] {
        let host = Host::new();
        let agent = host.agent().with(&["--etcd-endpoints", endpoint]).started();
        let reason = agent.wait_unready();
        assert!(!reason.trim().is_empty());
        assert_eq!(agent.http("/liveness").0, 200, "alive all the same");
        let refused = agent.vnfctl_with(&["put", "linux/config/v1/interface/x", "-"], b"{}");
        assert_eq!(refused.code, 1, "a write is refused with a reason: {}", refused.stderr);
        assert!(!refused.stderr.trim().is_empty());
    }
}

/// C22: more keys than one page holds, a large transaction, a restart.
#[test]
fn more_keys_than_a_page() {
    let host = Host::with_netns(&["red", "blue"]);
    let etcd = host.start_etcd();
    // One end each: they cost nothing in the kernel. Each value has about 700 bytes.
    let many: Vec<_> =
        (0..9000).map(|n| veth(&format!("m{n}"), &format!("x{n}"), "red", json!({"description": "d".repeat(550)}))).collect();
    etcd.put_all(&many);
    etcd.put_all(&the_pair());
    let mut agent = host.agent().on_etcd().started();
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(agent.statuses().len(), 9002);
    let changed: Vec<_> = many[..100].iter().map(|wish| with(wish, json!({"mtu": 10}))).collect();
    etcd.put_all(&changed);
    let invalid = |agent: &Agent<'_>| agent.statuses().iter().filter(|status| status["state"] == "INVALID").count();
    eventually_eq("the transaction is applied", &100, || invalid(&agent));
    agent.restart();
    agent.wait_ready();
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!((agent.statuses().len(), invalid(&agent)), (9002, 100));
}

/// Deleted and written again within one breath: the last word counts.
#[test]
fn a_burst_on_one_key() {
    let host = Host::with_netns(&["red", "blue"]);
    let (etcd, agent) = connected(&host);
    for round in 0..30 {
        etcd.delete("veth1");
        etcd.put(&with(&the_pair()[0], json!({"mtu": 1400 + round})));
    }
    eventually("the last value is there", || host.link("red", "veth1").is_some_and(|link| link.mtu == 1429));
    agent.wait_configured(&["veth1", "veth2"]);
    assert!(host.pings("red", "10.11.1.2"));
}
