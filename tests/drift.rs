//! What somebody changes by hand is put right, and said; what is not ours is left alone.

mod support;

use serde_json::json;
use support::wish::with;
use support::{Agent, Canaries, Host, eventually, eventually_eq, eventually_ok, the_pair};

fn the_pair_on(host: &Host) -> Agent<'_> {
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    let settings = json!({"mtu": 1400, "phys_address": "02:00:00:00:00:01", "ip_addresses": ["10.11.1.1/24", "fd00::1/64"]});
    agent.apply(&[with(&veth1, settings), veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    agent
}

/// C24: the pair is back, with all its settings, whichever end was deleted.
#[test]
fn a_deleted_link_comes_back() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let agent = the_pair_on(&host);
    let before = without_random_mac(host.digest(&["", "red", "blue"]));
    for (netns, name) in [("blue", "veth2"), ("red", "veth1")] {
        host.run(&format!("ip -n {netns} link del {name}"));
        eventually_eq("all is as before", &before, || without_random_mac(host.digest(&["", "red", "blue"])));
        agent.wait_configured(&["veth1", "veth2"]);
        assert!(host.pings("red", "10.11.1.2"));
    }
    canaries.assert_untouched();
}

/// The digest without the hardware address of veth2, which nobody wished.
fn without_random_mac(mut digest: serde_json::Value) -> serde_json::Value {
    for link in digest["blue"].as_array_mut().expect("a list") {
        if link["ifname"] == "veth2" {
            link["address"] = json!(null);
        }
    }
    digest
}

/// C25: each setting that is changed by hand is repaired, and the history has the old and the new value.
#[test]
fn each_setting_is_repaired_and_told() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let before = host.digest(&["red", "blue"]);
    for (change, told) in [
        ("address del 10.11.1.1/24 dev veth1", ["10.11.1.1/24", ""]),
        ("address del fd00::1/64 dev veth1", ["fd00::1/64", ""]),
        ("address flush dev veth1", ["10.11.1.1/24", "fd00::1/64"]),
        ("link set veth1 mtu 1300", ["1400", "1300"]),
        ("link set veth1 address 02:00:00:00:00:99", ["02:00:00:00:00:01", "02:00:00:00:00:99"]),
        ("link set veth1 down", ["up", "down"]),
        ("link set veth1 name other0", ["veth1", "other0"]),
        ("link set veth1 alias nobody", ["alias", "nobody"]),
        ("link set veth1 group 7", ["group", "7"]),
    ] {
        let passes = drift(&agent).len();
        host.run(&format!("ip -n red {change}"));
        eventually_eq(change, &before, || host.digest(&["red", "blue"]));
        let said = eventually_ok("it is told", || {
            let new = drift(&agent).split_off(passes);
            if told.iter().all(|word| new.iter().any(|line| line.contains(word))) { Ok(new) } else { Err((change, new)) }
        });
        assert!(said.iter().all(|line| line.starts_with("veth1")), "{said:?}");
        agent.wait_configured(&["veth1", "veth2"]);
    }
}

/// All that the history says of drift, oldest first.
fn drift(agent: &Agent<'_>) -> Vec<String> {
    agent
        .history()
        .iter()
        .rev()
        .flat_map(|pass| pass["drift"].as_array().cloned().unwrap_or_default())
        .map(|line| line.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// C25: a link that was moved away is put right, and not left behind.
#[test]
fn a_moved_link_comes_back() {
    let host = Host::with_netns(&["red", "blue", "green"]);
    let agent = the_pair_on(&host);
    let before = without_random_mac(host.digest(&["", "red", "blue", "green"]));
    for target in ["green", "blue"] {
        host.run(&format!("ip -n red link set veth1 netns {target}"));
        eventually_eq("it is back", &before, || without_random_mac(host.digest(&["", "red", "blue", "green"])));
        agent.wait_configured(&["veth1", "veth2"]);
    }
    assert!(host.pings("red", "10.11.1.2"));
}

/// Drift is counted.
#[test]
fn drift_is_counted() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let count = || agent.metric("drift");
    let before = count();
    host.run("ip -n red link set veth1 mtu 1300");
    eventually_ok("it is counted", || if count() > before { Ok(()) } else { Err((before, count())) });
}

/// C26: a stranger under a wished name is said, never touched; when it goes, the wish is fulfilled.
#[test]
fn a_foreign_link_is_left_alone() {
    let host = Host::with_netns(&["red", "blue"]);
    host.run("ip -n red link add veth1 type bridge");
    host.run("ip -n red address add 10.77.0.1/24 dev veth1");
    let before = host.links("red");
    let agent = host.start_agent();
    agent.put_all(&the_pair());
    let status = agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("bridge")), "says what it is: {status}");
    agent.ask(&["resync"]);
    agent.apply(&support::pair(0, "red", "blue"));
    agent.wait_configured(&["a0", "b0"]);
    assert_eq!(host.link("red", "veth1").as_ref(), before.first(), "untouched");
    assert_eq!(host.link_names("blue"), ["b0"], "no half of a pair");

    agent.del("a0");
    host.run("ip -n red link del veth1");
    agent.wait_configured(&["veth1", "veth2"]);
    assert!(host.pings("red", "10.11.1.2"));
}

/// A stranger that takes the name while our link is away.
#[test]
fn a_foreign_link_that_comes_later() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    agent.signal(nix::sys::signal::Signal::SIGSTOP);
    host.run("ip -n red link del veth1");
    host.run("ip -n red link add veth1 type bridge");
    let stranger = host.link("red", "veth1");
    agent.signal(nix::sys::signal::Signal::SIGCONT);
    agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
    assert_eq!(host.link("red", "veth1"), stranger);
    host.run("ip -n red link del veth1");
    agent.wait_configured(&["veth1", "veth2"]);
}

/// The mark decides: an altered link that still has one of its marks is ours, one that lost all is a stranger.
#[test]
fn a_link_that_lost_all_its_marks_is_a_stranger() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = the_pair_on(&host);
    agent.kill();
    for (netns, name) in [("red", "veth1"), ("blue", "veth2")] {
        // An empty alias removes it.
        host.command("", "ip").args(["-n", netns, "link", "set", name, "group", "0", "alias", ""]).status().expect("ip");
    }
    let before = host.digest(&["red", "blue"]);
    agent.start();
    agent.wait_for("veth1", "FAILED", "FOREIGN_LINK");
    assert_eq!(host.digest(&["red", "blue"]), before);
}

/// A storm of changes ends in the wished state.
#[test]
fn a_storm_passes() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["red", "blue"]);
    let agent = the_pair_on(&host);
    let before = without_random_mac(host.digest(&["red", "blue"]));
    for n in 0..60 {
        // Some fail, because the agent was quicker: that is the storm.
        let change =
            ["link set veth1 mtu 1280", "link del veth1", "link set veth1 down", "address flush dev veth1", "link set veth1 name x"][n % 5];
        let _ = host.try_run(&format!("ip -n red {change}"));
    }
    eventually_eq("calm again", &before, || without_random_mac(host.digest(&["red", "blue"])));
    agent.wait_configured(&["veth1", "veth2"]);
    eventually("traffic flows", || host.pings("red", "10.11.1.2"));
    canaries.assert_untouched();
}
