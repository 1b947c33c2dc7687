//! Veth pairs: made, changed and removed as wished, each named in its own namespace.

mod support;

use serde_json::json;
use support::wish::with;
use support::{Canaries, Host, eventually, eventually_eq, pair, the_pair, veth};

#[test]
fn a_pair_connects_two_namespaces() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);

    let veth1 = host.link("red", "veth1").expect("veth1 is there");
    assert_eq!((veth1.kind.as_str(), veth1.up, veth1.mtu, veth1.alias.as_str()), ("veth", true, 1500, "vnf-agent:vpp1:veth:veth1"));
    assert_eq!(veth1.addresses, ["10.11.1.1/24"]);
    assert_eq!(host.addresses("blue", "veth2"), ["10.11.1.2/24"]);
    assert!(host.pings("red", "10.11.1.2") && host.pings("blue", "10.11.1.1"));
    assert_eq!(host.link_names(""), [""; 0], "nothing in the agent's own namespace");
}

/// C23, and the row "only one end of a pair written".
#[test]
fn one_end_waits_for_the_other() {
    for order in [[0, 1], [1, 0]] {
        let host = Host::with_netns(&["red", "blue"]);
        let agent = host.start_agent();
        let wishes = the_pair();
        let names = ["veth1", "veth2"];
        let [first, second] = order;
        let before = host.digest(&["", "red", "blue"]);

        agent.put(&wishes[first]);
        let status = agent.wait_for(names[first], "PENDING", "PEER_MISSING");
        assert_eq!(status["waits_for"].as_array().map(Vec::len), Some(1), "{status}");
        assert!(status["waits_for"][0].as_str().is_some_and(|what| what.contains(names[second])), "{status}");
        assert_eq!(host.digest(&["", "red", "blue"]), before, "the kernel is untouched");

        agent.put(&wishes[second]);
        agent.wait_configured(&names);

        agent.del(names[first]);
        agent.wait_for(names[second], "PENDING", "PEER_MISSING");
        agent.wait_forgotten(names[first]);
        eventually_eq("the pair is gone", &before, || host.digest(&["", "red", "blue"]));
    }
}

/// The row "peer exists but names another peer".
#[test]
fn a_peer_that_names_another_is_a_mismatch() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let before = host.digest(&["red", "blue"]);

    agent.put(&veth("veth3", "veth1", "red", json!({})));
    let status = agent.wait_for("veth3", "PENDING", "PEER_MISMATCH");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("veth1") && message.contains("veth2"), "says who names whom: {message}");
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.digest(&["red", "blue"]), before, "the pair that agrees stays");
}

/// The same row: a peer of another type, or one that is invalid itself.
#[test]
fn a_peer_that_cannot_be_one_is_a_mismatch() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    let before = host.digest(&["red", "blue"]);
    agent.put(&veth1);
    agent.put(&with(&veth2, json!({"mtu": 10})));
    agent.wait_for("veth2", "INVALID", "BAD_MTU");
    agent.wait_for("veth1", "PENDING", "PEER_MISMATCH");
    agent.put(&with(&veth2, json!({"type": "TAP", "veth": null})));
    let status = agent.wait_for("veth1", "PENDING", "PEER_MISMATCH");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("veth2")), "{status}");
    assert_eq!(host.link_names("red"), [""; 0]);
    assert_eq!(host.digest(&["red"])["red"], before["red"]);
    agent.put(&veth2);
    agent.wait_configured(&["veth1", "veth2"]);
}

/// The pair follows when its ends agree on others.
#[test]
fn a_changed_peer_makes_another_pair() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let [veth1, _] = the_pair();
    agent.apply(&[with(&veth1, json!({"veth": {"peer_if_name": "veth3"}})), veth("veth3", "veth1", "blue", json!({}))]);
    agent.wait_configured(&["veth1", "veth3"]);
    agent.wait_for("veth2", "PENDING", "PEER_MISMATCH");
    eventually_eq("only the new pair", &vec!["veth3".to_owned()], || host.link_names("blue"));
    assert_eq!(host.link_names("red"), ["veth1"]);
}

/// C01: bytes count for the link's name, not for the logical one.
#[test]
fn long_logical_names_need_a_short_link_name() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let long = "l".repeat(40);
    agent.apply(&[
        veth(&long, "other", "red", json!({"host_if_name": "short"})),
        veth("other", &long, "blue", json!({"host_if_name": "fifteen-bytes-x"})),
    ]);
    agent.wait_configured(&[&long, "other"]);
    assert_eq!(host.link_names("red"), ["short"]);
    assert_eq!(host.link_names("blue"), ["fifteen-bytes-x"]);

    for (name, host_if_name) in [("a", json!("sixteen-bytes-xx")), (long.replace('l', "m").as_str(), json!(""))] {
        agent.put(&veth(name, "b", "red", json!({"host_if_name": host_if_name})));
        let status = agent.wait_for(name, "INVALID", "BAD_NAME");
        let message = status["message"].to_string();
        let length = if name == "a" { "16" } else { "40" };
        assert!(message.contains("15") && message.contains(length), "names length and limit: {message}");
    }
}

/// C04: one name in two namespaces is no conflict, in one namespace it is.
#[test]
fn both_ends_under_one_name() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let listener = host.listen();
    let same = json!({"host_if_name": "eth1"});
    agent.apply(&[veth("a", "b", "red", same.clone()), veth("b", "a", "blue", same.clone())]);
    agent.wait_configured(&["a", "b"]);
    assert_eq!((host.link_names("red"), host.link_names("blue")), (vec!["eth1".to_owned()], vec!["eth1".to_owned()]));

    // Both in one namespace: nobody gets it, and each says with whom it clashes.
    host.add_netns("green");
    agent.put_all(&[veth("c", "d", "green", same.clone()), veth("d", "c", "green", same)]);
    for (name, other) in [("c", "d"), ("d", "c")] {
        let status = agent.wait_for(name, "FAILED", "NAME_CONFLICT");
        assert!(status["message"].as_str().is_some_and(|message| message.contains(&format!("`{other}`"))), "{status}");
    }
    assert_eq!(host.link_names("green"), [""; 0]);

    let heard = listener.heard(&host);
    assert!(!heard.contains("eth1"), "eth1 showed up in the agent's own namespace");
}

/// C04, many at once.
#[test]
fn sixteen_pairs_under_one_name() {
    let names: Vec<String> = (0..32).map(|n| format!("ns{n}")).collect();
    let host = Host::with_netns(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let agent = host.start_agent();
    let same = json!({"host_if_name": "eth1"});
    let wishes: Vec<_> = (0..16)
        .flat_map(|n| {
            let (a, b) = (format!("a{n}"), format!("b{n}"));
            [veth(&a, &b, &names[2 * n], same.clone()), veth(&b, &a, &names[2 * n + 1], same.clone())]
        })
        .collect();
    agent.apply(&wishes);
    let logical: Vec<String> = (0..16).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    agent.wait_configured(&logical.iter().map(String::as_str).collect::<Vec<_>>());
    for netns in &names {
        assert_eq!(host.link_names(netns), ["eth1"]);
    }
    assert_eq!(host.link_names(""), [""; 0]);
}

/// The row "two wishes for one name in one namespace".
#[test]
fn a_name_belongs_to_its_holder_until_it_goes() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&[veth("a", "b", "red", json!({"host_if_name": "eth1", "mtu": 1400})), veth("b", "a", "blue", json!({}))]);
    agent.wait_configured(&["a", "b"]);
    agent.put_all(&[veth("c", "d", "red", json!({"host_if_name": "eth1", "mtu": 1300})), veth("d", "c", "blue", json!({}))]);
    let status = agent.wait_for("c", "FAILED", "NAME_CONFLICT");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("`a`")), "names the holder: {status}");
    assert_eq!(host.link("red", "eth1").map(|link| link.mtu), Some(1400), "the holder keeps it");

    agent.del("a");
    agent.wait_configured(&["c", "d"]);
    assert_eq!(host.link("red", "eth1").map(|link| link.mtu), Some(1300), "it moves over");
}

/// C05: what happens to an `eth0` elsewhere never happens to the host's.
#[test]
fn the_hosts_own_eth0_is_safe() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &[""]);
    let agent = host.start_agent();
    let wishes =
        [veth("a", "b", "red", json!({"host_if_name": "eth0", "ip_addresses": ["10.9.0.1/24"]})), veth("b", "a", "blue", json!({}))];
    let listener = host.listen();

    agent.apply(&wishes);
    agent.wait_configured(&["a", "b"]);
    agent.del("a");
    eventually("the pair is gone", || host.link_names("red").is_empty());

    // The namespace goes first, then the key.
    agent.put(&wishes[0]);
    agent.wait_configured(&["a", "b"]);
    host.del_netns("red");
    agent.wait_for("a", "PENDING", "NAMESPACE_MISSING");
    agent.del("a");
    agent.wait_forgotten("a");

    // The key goes right after the namespace.
    host.add_netns("red");
    agent.put(&wishes[0]);
    agent.wait_configured(&["a", "b"]);
    host.del_netns("red");
    agent.del("a");
    agent.wait_forgotten("a");
    agent.wait_for("b", "PENDING", "PEER_MISSING");
    eventually("the other end is gone too", || host.link_names("blue").is_empty());

    canaries.assert_untouched();
    let heard = listener.heard(&host);
    assert!(!heard.contains("eth0"), "the kernel told of a change of the host's eth0");
}

/// The rows on the agent's own namespace and on `enabled`.
#[test]
fn an_end_in_the_agents_own_namespace_is_down_when_not_enabled() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    agent.apply(&[veth("veth1", "veth2", "", json!({"enabled": false})), veth("veth2", "veth1", "red", json!({}))]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link("", "veth1").map(|link| link.up), Some(false));
    assert_eq!(host.link("red", "veth2").map(|link| link.up), Some(true));

    // Held down.
    host.run("ip link set veth1 up");
    eventually("it is down again", || host.link("", "veth1").is_some_and(|link| !link.up));
    agent.apply(&[veth("veth1", "veth2", "", json!({}))]);
    assert_eq!(host.link("", "veth1").map(|link| link.up), Some(true));
}

/// C17: each end has the MTU of its own key; a value that is cleared is the kernel's default again.
#[test]
fn each_end_has_its_own_mtu() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    for (one, other) in [(9000, 0), (9000, 9000), (0, 9000), (0, 0), (68, 65535)] {
        let [veth1, veth2] = the_pair();
        agent.apply(&[with(&veth1, json!({"mtu": one})), with(&veth2, json!({"mtu": other}))]);
        agent.wait_configured(&["veth1", "veth2"]);
        let or_default = |mtu: u64| if mtu == 0 { 1500 } else { mtu };
        assert_eq!(host.link("red", "veth1").map(|link| link.mtu), Some(or_default(one)));
        assert_eq!(host.link("blue", "veth2").map(|link| link.mtu), Some(or_default(other)));
        for name in ["veth1", "veth2"] {
            let status = agent.status(name).expect("known");
            let warned = status["warnings"].to_string().to_lowercase().contains("mtu");
            assert_eq!(warned, one != other, "{status}");
        }
    }
}

/// The rows on MAC spellings, and on a MAC that is cleared; C16.
#[test]
fn hardware_addresses() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    for spelling in ["02:00:00:00:00:AB", "02-00-00-00-00-ab", "0200.0000.00ab"] {
        agent.apply(&[with(&veth1, json!({"phys_address": spelling})), veth2.clone()]);
        agent.wait_configured(&["veth1", "veth2"]);
        assert_eq!(host.link("red", "veth1").map(|link| link.mac).as_deref(), Some("02:00:00:00:00:ab"));
        assert_eq!(agent.status("veth1").expect("known")["phys_address"], "02:00:00:00:00:ab");
    }

    // The same on both ends works, oddly, and both say so.
    agent.apply(&[with(&veth2, json!({"phys_address": "02:00:00:00:00:ab"}))]);
    for (name, other) in [("veth1", "veth2"), ("veth2", "veth1")] {
        let status = agent.wait_for(name, "CONFIGURED", "");
        assert!(status["warnings"].to_string().contains(other), "{status}");
    }

    // Cleared: a locally administered unicast one stays, and nothing goes on changing.
    agent.apply(&[veth1, veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    let mac = host.link("red", "veth1").expect("there").mac;
    let first = u8::from_str_radix(&mac[..2], 16).expect("hexadecimal");
    assert_eq!(first & 3, 2, "locally administered, unicast: {mac}");
    agent.ask(&["resync"]);
    agent.apply(&pair(1, "red", "blue"));
    assert_eq!(host.link("red", "veth1").expect("there").mac, mac);
}

/// Every setting changes in place: the link stays the same link.
#[test]
fn changes_keep_the_link() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    agent.apply(&[veth1.clone(), veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    let index = host.link("red", "veth1").expect("there").index;
    let changed = json!({"mtu": 1300, "phys_address": "02:00:00:00:00:01", "host_if_name": "eth7", "enabled": false, "ip_addresses": ["10.11.1.9/25"]});
    agent.apply(&[with(&veth1, changed)]);
    let link = eventually_link(&host, "eth7");
    assert_eq!((link.index, link.mtu, link.up, link.mac.as_str()), (index, 1300, false, "02:00:00:00:00:01"));
    assert_eq!(link.addresses, ["10.11.1.9/25"]);
    assert_eq!(host.link_names("red"), ["eth7"]);
}

fn eventually_link(host: &Host, name: &str) -> support::kernel::Link {
    support::eventually_ok(name, || host.link("red", name).ok_or("not there"))
}

/// An end that is wished in another namespace goes there.
#[test]
fn a_changed_namespace_takes_the_end_along() {
    let host = Host::with_netns(&["red", "blue", "green"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    agent.apply(&[veth1.clone(), veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    agent.apply(&[with(&veth1, json!({"namespace": {"type": "NAMED_NS", "name": "green"}}))]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link_names("red"), [""; 0]);
    assert_eq!(host.addresses("green", "veth1"), ["10.11.1.1/24"]);
    assert!(host.pings("green", "10.11.1.2"));
}

/// C27: what was waited for is there when the command returns.
#[test]
fn waiting_means_done() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    agent.apply(&[veth2]);
    for round in 0..1000_u32 {
        let address = format!("10.11.1.{}/24", 10 + round % 200);
        agent.apply(&[with(&veth1, json!({"ip_addresses": [address], "mtu": 1400 + round}))]);
        let link = host.link("red", "veth1").unwrap_or_else(|| panic!("round {round}: not there"));
        assert_eq!((link.addresses, link.mtu), (vec![address], u64::from(1400 + round)), "round {round}");
        if round % 10 == 9 {
            agent.del("veth1");
            agent.wait_forgotten("veth1");
        }
    }
}

/// 200 pairs at once, changed at once, removed at once (C70, small), with strangers beside them.
#[test]
fn two_hundred_pairs() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let before = host.digest(&["", "red", "blue"]);
    let agent = host.start_agent();
    let wishes: Vec<_> = (0..200).flat_map(|n| pair(n, "red", "blue")).collect();
    let names: Vec<String> = (0..200).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    agent.apply(&wishes);
    agent.wait_configured(&names);
    assert_eq!(host.links("red").iter().filter(|link| link.kind == "veth" && link.up && link.addresses.len() == 1).count(), 200);

    let smaller: Vec<_> = wishes.iter().map(|wish| with(wish, json!({"mtu": 1400}))).collect();
    agent.apply(&smaller);
    agent.wait_configured(&names);
    assert!(host.links("blue").iter().filter(|link| link.kind == "veth").all(|link| link.mtu == 1400));

    for name in &names {
        agent.del(name);
    }
    eventually_eq("all are gone", &before, || host.digest(&["", "red", "blue"]));
    eventually("all are forgotten", || agent.statuses().is_empty());
    canaries.assert_untouched();
}
