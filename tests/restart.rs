//! Stopped, killed, interrupted, started again: nothing that is right changes, nothing is left half done.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::wish::with;
use support::{Agent, Canaries, Host, eventually, eventually_eq, pair, the_pair};

/// What it sent to the kernel that modifies something: requests other than readings, as strace decodes them.
fn writes(agent: &Agent<'_>) -> Vec<String> {
    let trace = agent.trace();
    // Of links in the agent's own namespace, and of those in others.
    assert!(
        ["nlmsg_type=RTM_GETLINK", "nlmsg_type=0x12 "].iter().any(|word| trace.contains(word)),
        "the trace shows what is asked: {trace}"
    );
    trace.lines().filter(|line| support::wire::modifies(line)).map(String::from).collect()
}

/// A restart adopts what stands and writes nothing (also C03, C70: "no change to healthy links").
#[test]
fn a_restart_writes_nothing() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    let mut wishes: Vec<_> = (0..50).flat_map(|n| pair(n, "red", "blue")).collect();
    let [veth1, veth2] = the_pair();
    wishes.push(with(&veth1, json!({"mtu": 1400, "phys_address": "02:00:00:00:00:01", "ip_addresses": ["10.11.1.1/24", "fd00::1/64"]})));
    wishes.push(with(&veth2, json!({"enabled": false})));
    agent.apply(&wishes);
    agent.wait_configured(&["veth1", "veth2", "a49", "b49"]);
    let before = [host.links("red"), host.links("blue")];

    for kill in [false, true] {
        if kill {
            agent.kill();
        } else {
            agent.stop();
        }
        assert_eq!([host.links("red"), host.links("blue")], before, "a stop leaves everything");
        agent.trace_messages();
        agent.start();
        agent.wait_ready();
        agent.wait_configured(&["veth1", "veth2", "a0", "b0", "a49", "b49"]);
        assert_eq!(writes(&agent), [""; 0]);
        assert_eq!([host.links("red"), host.links("blue")], before, "the same links, indexes included");
    }
}

/// Traffic goes on over a restart.
#[test]
fn a_restart_loses_no_packet() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let ping =
        host.command("red", "ping").args(["-i", "0.02", "-c", "150", "-q", "10.11.1.2"]).stdout(std::process::Stdio::piped()).spawn();
    agent.restart();
    agent.wait_configured(&["veth1", "veth2"]);
    agent.kill();
    agent.start();
    agent.wait_configured(&["veth1", "veth2"]);
    let said = String::from_utf8_lossy(&ping.expect("ping starts").wait_with_output().expect("a child").stdout).into_owned();
    assert!(said.contains(" 0% packet loss"), "{said}");
}

/// What changed while it was away is applied; what was deleted goes; the rest stays.
#[test]
fn what_happened_meanwhile() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let mut agent = host.start_agent();
    agent.apply(&[the_pair().as_slice(), pair(1, "red", "blue").as_slice(), pair(2, "red", "blue").as_slice()].concat());
    agent.wait_configured(&["veth1", "veth2", "a1", "b1", "a2", "b2"]);
    let kept = host.link("red", "a1");
    agent.kill();
    host.run("ip -n red link del a2");
    host.run("ip -n blue link set veth2 mtu 1300 down");
    host.run("ip -n red address del 10.11.1.1/24 dev veth1");
    agent.start();
    agent.wait_configured(&["veth1", "veth2", "a1", "b1", "a2", "b2"]);
    assert_eq!(host.link("red", "a1"), kept);
    assert_eq!(host.addresses("red", "veth1"), ["10.11.1.1/24"]);
    assert_eq!(host.link("blue", "veth2").map(|link| (link.mtu, link.up)), Some((1500, true)));
    canaries.assert_untouched();
}

/// C28: a deleted key leaves no status behind, whenever it was deleted.
#[test]
fn no_status_outlives_its_key() {
    let host = Host::with_netns(&["red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let status_key = support::etcd::status_key;
    etcd.put_all(&[the_pair().as_slice(), pair(1, "red", "blue").as_slice(), pair(2, "red", "blue").as_slice()].concat());
    agent.wait_configured(&["veth1", "veth2", "a1", "b1", "a2", "b2"]);
    eventually("the statuses are written", || etcd.keys(&status_key("")).len() == 6);

    etcd.delete("veth1");
    agent.wait_forgotten("veth1");
    agent.stop();
    eventually("a stopped agent takes its statuses back", || etcd.keys(&status_key("")).is_empty());

    etcd.delete("a1");
    agent.start();
    agent.wait_ready();
    agent.wait_forgotten("a1");
    agent.wait_for("b1", "PENDING", "PEER_MISSING");
    eventually("a1 and b1 are gone", || host.link_names("red") == ["a2"]);

    host.del_netns("red");
    agent.wait_for("a2", "PENDING", "NAMESPACE_MISSING");
    etcd.delete("a2");
    etcd.delete("b2");
    agent.wait_forgotten("a2");
    let left = vec![status_key("b1"), status_key("veth2")];
    eventually_eq("only what has a key has a status", &left, || etcd.keys(&status_key("")));
    agent.restart();
    agent.wait_ready();
    eventually_eq("also after a restart", &left, || etcd.keys(&status_key("")));
    assert_ne!(agent.vnfctl(&["status", "veth1"]).code, 0, "not found");
}

/// Statuses that a killed agent left are taken away by the next start, not by their lease (15 s) or at the next beat (10 s): also when
/// there is nothing else to be told.
#[test]
fn a_start_removes_the_statuses_of_a_killed_agent() {
    let host = Host::with_netns(&["red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    // It waits for its peer, so its end changes nothing in the kernel.
    etcd.put(&the_pair()[0]);
    let statuses = || etcd.keys(&support::etcd::status_key("")).len();
    eventually_eq("the status is written", &1, statuses);
    agent.kill();
    etcd.delete("veth1");
    // The listing comes late, when all else has started.
    etcd.freeze();
    agent.spawn();
    agent.wait_unready();
    etcd.thaw();
    agent.wait_ready();
    let ready = Instant::now();
    eventually_eq("it is gone", &0, statuses);
    assert!(ready.elapsed() < Duration::from_secs(8), "it stood for {:?}", ready.elapsed());
}

/// C67, roughly: killed in the middle of many changes, it converges from wherever it was.
#[test]
fn killed_at_any_moment() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let wishes = |mtu: u32| (0..40).flat_map(|n| pair(n, "red", "blue")).map(|wish| with(&wish, json!({"mtu": mtu}))).collect::<Vec<_>>();
    let names: Vec<String> = (0..40).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for round in 0..10_u32 {
        let mtu = 1400 + round;
        if round % 2 == 1 {
            etcd.delete_all(&names)
        } else {
            etcd.put_all(&wishes(mtu))
        }
        // A different point of the work each time: so many of the links are there or gone.
        let at = (round as usize * 7) % 40;
        eventually("the work has come to this point", || {
            let links = host.links("red").iter().filter(|link| link.kind == "veth").count();
            if round % 2 == 1 { links <= 40 - at } else { links >= at }
        });
        agent.kill();
        agent.start();
        if round % 2 == 1 {
            eventually("all are gone", || host.links("red").iter().chain(&host.links("blue")).all(|link| link.kind == "bridge"));
        } else {
            agent.wait_configured(&names);
            assert!(host.links("blue").iter().filter(|link| link.kind == "veth").all(|link| link.mtu == u64::from(mtu) && link.up));
        }
        canaries.assert_untouched();
    }
}

/// C68: ended while 200 pairs are being deleted, it finishes or is resumed.
#[test]
fn ended_while_deleting() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let wishes: Vec<_> = (0..200).flat_map(|n| pair(n, "red", "blue")).collect();
    let names: Vec<String> = (0..200).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for round in 0..4 {
        etcd.put_all(&wishes);
        agent.wait_configured(&names);
        etcd.delete_all(&names);
        eventually("it has begun", || host.links("red").iter().filter(|link| link.kind == "veth").count() <= 200 - 40 * round);
        assert!(agent.stop().success());
        agent.start();
        eventually("all are gone", || host.links("red").iter().chain(&host.links("blue")).all(|link| link.kind == "bridge"));
        eventually("and forgotten", || agent.statuses().is_empty());
        canaries.assert_untouched();
    }
}

/// C70, smaller: many pairs over many namespaces; a restart; a new MTU for all; all deleted.
#[test]
fn many_namespaces() {
    let spaces: Vec<String> = (0..20).map(|n| format!("ns{n}")).collect();
    let host = Host::with_netns(&spaces.iter().map(String::as_str).collect::<Vec<_>>());
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let wishes: Vec<_> = (0..240).flat_map(|n| pair(n, &spaces[n % 20], &spaces[(n + 1 + n / 20) % 20])).collect();
    let names: Vec<String> = (0..240).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    etcd.put_all(&wishes);
    agent.wait_configured(&names);
    let all = || spaces.iter().map(|netns| host.links(netns)).collect::<Vec<_>>();
    let before = all();
    assert_eq!(before.iter().flatten().count(), 480);
    agent.restart();
    agent.wait_configured(&names);
    assert_eq!(all(), before);

    etcd.put_all(&wishes.iter().map(|wish| with(wish, json!({"mtu": 1400}))).collect::<Vec<_>>());
    eventually("all have the new MTU", || all().iter().flatten().all(|link| link.mtu == 1400));
    agent.wait_configured(&names);
    etcd.delete_everything();
    eventually("all are gone", || all().iter().flatten().count() == 0);
    eventually("all are forgotten", || agent.statuses().is_empty());
    assert_eq!(agent.metric("moves"), 0.0, "no link was moved between namespaces");
}

/// A fresh state directory: what has our mark is known all the same, and what has no key goes.
#[test]
fn a_lost_state_directory() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    etcd.put_all(&[the_pair().as_slice(), pair(1, "red", "blue").as_slice()].concat());
    agent.wait_configured(&["veth1", "veth2", "a1", "b1"]);
    let kept = host.link("red", "veth1");
    agent.stop();
    std::fs::remove_dir_all(agent.state_dir()).expect("it has a state directory");
    etcd.delete_all(&["a1", "b1"]);
    agent.start();
    agent.wait_configured(&["veth1", "veth2"]);
    eventually("what has no key goes", || host.link("red", "a1").is_none() && host.link("blue", "b1").is_none());
    assert_eq!(host.link("red", "veth1"), kept);
    canaries.assert_untouched();
}
