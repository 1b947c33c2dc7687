//! Addresses: taken, refused, compared by value, kept over everything that makes the kernel drop them.

mod support;

use std::net::{Ipv6Addr, TcpListener};

use serde_json::json;
use support::wish::with;
use support::{Agent, Host, eventually, eventually_eq, the_pair, veth};

fn addresses_of(agent: &Agent<'_>, host: &Host, list: &[&str]) -> Vec<String> {
    agent.apply(&[with(&the_pair()[0], json!({"ip_addresses": list}))]);
    agent.wait_configured(&["veth1", "veth2"]);
    host.addresses("red", "veth1")
}

fn the_pair_on(host: &Host) -> Agent<'_> {
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    agent
}

fn warnings(agent: &Agent<'_>, name: &str) -> String {
    agent.status(name).expect("known")["warnings"].to_string()
}

/// C06: without a prefix length a host address is meant.
#[test]
fn an_address_without_prefix() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    assert_eq!(addresses_of(&agent, &host, &["10.0.0.1", "fd00::1", "10.0.1.1/24"]), ["10.0.0.1/32", "10.0.1.1/24", "fd00::1/128"]);
    let warned = warnings(&agent, "veth1");
    assert!(warned.contains("10.0.0.1") && warned.contains("fd00::1") && !warned.contains("10.0.1.1"), "{warned}");
}

/// C07: what no link can have is refused by name, and nothing of that key is applied.
#[test]
fn bad_addresses() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let before = host.digest(&["red", "blue"]);
    let bad = [
        "10.0.0.1/33",
        "1.1.1.1/50000000",
        "10.0.0.1/-1",
        "224.0.0.1/24",
        "ff02::1/64",
        "0.0.0.0/0",
        "::/64",
        "100.000.000.001/024",
        " 10.0.0.1/24 ",
        "10.0.0.1/",
        "10.0.0/24",
        "",
        "fd00::1/129",
        "hello",
    ];
    for entry in bad {
        agent.put(&with(&the_pair()[0], json!({"ip_addresses": ["10.5.5.5/24", entry], "mtu": 1300})));
        let status = agent.wait_for("veth1", "INVALID", "BAD_ADDRESS");
        assert_eq!(status["errors"][0]["field"], "ip_addresses[1]", "{status}");
        assert_eq!(status["errors"][0]["value"], entry, "{status}");
        assert_eq!(host.digest(&["red", "blue"]), before, "{entry}");
        agent.apply(&[the_pair()[0].clone()]);
        agent.wait_configured(&["veth1", "veth2"]);
    }
}

/// C08: once each, whatever the spelling; but two prefix lengths are two addresses.
#[test]
fn doubles() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/24", "10.0.0.1/24", "fd00::1/64", "FD00::1/64"]), ["10.0.0.1/24", "fd00::1/64"]);
    let warned = warnings(&agent, "veth1").to_lowercase();
    assert!(warned.contains("10.0.0.1/24") && warned.contains("fd00::1/64"), "{warned}");
    assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/24", "10.0.0.1/25"]), ["10.0.0.1/24", "10.0.0.1/25"]);
}

/// C09: another prefix length replaces.
#[test]
fn another_prefix_length() {
    for restart in [false, true] {
        let host = Host::with_netns(&["red", "blue"]);
        let mut agent = the_pair_on(&host);
        assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/32"]), ["10.0.0.1/32"]);
        if restart {
            agent.restart();
        }
        assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/24"]), ["10.0.0.1/24"]);
    }
}

/// C10: the kernel drops the secondaries together with the first of a subnet; they are put back.
#[test]
fn removing_the_first_of_a_subnet() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    host.run("ip netns exec red sysctl -qw net.ipv4.conf.all.promote_secondaries=0 net.ipv4.conf.veth1.promote_secondaries=0");
    let three = ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"];
    assert_eq!(addresses_of(&agent, &host, &three), three);
    assert_eq!(addresses_of(&agent, &host, &three[1..]), &three[1..]);

    // The same by hand.
    host.run("ip -n red address del 10.0.0.2/24 dev veth1");
    eventually_eq("both are back", &three[1..].iter().map(ToString::to_string).collect(), || host.addresses("red", "veth1"));
}

/// An address of somebody else that goes along with ours is put back too.
#[test]
fn a_strangers_secondary_survives() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    host.run("ip netns exec red sysctl -qw net.ipv4.conf.all.promote_secondaries=0 net.ipv4.conf.veth1.promote_secondaries=0");
    host.run("ip -n red address add 10.11.1.77/24 dev veth1 label veth1:x");
    assert_eq!(addresses_of(&agent, &host, &["10.5.0.1/24"]), ["10.11.1.77/24", "10.5.0.1/24"]);
    assert!(host.run("ip -n red address show dev veth1").contains("veth1:x"), "as it was, label included");
}

/// C11: both families are there after down and up, by wish and by hand.
#[test]
fn down_and_up() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let both = ["10.0.0.1/24", "fd00::1/64"];
    assert_eq!(addresses_of(&agent, &host, &both), both);
    let wish = with(&the_pair()[0], json!({"ip_addresses": both}));
    agent.apply(&[with(&wish, json!({"enabled": false}))]);
    assert_eq!(host.link("red", "veth1").map(|link| link.up), Some(false));
    agent.apply(&[wish]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link("red", "veth1").map(|link| (link.up, link.addresses)), Some((true, both.map(String::from).to_vec())));

    host.run("ip -n red link set veth1 down");
    host.run("ip -n red link set veth1 up");
    eventually_eq("both families are back", &both.map(String::from).to_vec(), || host.addresses("red", "veth1"));
    agent.wait_configured(&["veth1", "veth2"]);
}

/// A new hardware address keeps the IPv6 addresses.
#[test]
fn a_new_hardware_address_keeps_ipv6() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let wish = with(&the_pair()[0], json!({"ip_addresses": ["fd00::1/64"]}));
    agent.apply(std::slice::from_ref(&wish));
    agent.apply(&[with(&wish, json!({"phys_address": "02:00:00:00:00:07"}))]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(
        host.link("red", "veth1").map(|link| (link.mac, link.addresses)),
        Some(("02:00:00:00:00:07".into(), vec!["fd00::1/64".into()]))
    );
}

/// C12: IPv6 is switched on for the one link that needs it.
#[test]
fn ipv6_where_the_namespace_has_it_off() {
    let host = Host::with_netns(&["red", "blue"]);
    for scope in ["all", "default"] {
        host.run(&format!("ip netns exec red sysctl -qw net.ipv6.conf.{scope}.disable_ipv6=1"));
    }
    host.run("ip -n red link add other type bridge");
    let agent = the_pair_on(&host);
    assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/24", "fd00::1/64"]), ["10.0.0.1/24", "fd00::1/64"]);
    let disabled = |what: &str| host.run(&format!("ip netns exec red sysctl -n net.ipv6.conf.{what}.disable_ipv6")).trim().to_owned();
    assert_eq!((disabled("veth1"), disabled("other"), disabled("default")), ("0".into(), "1".into(), "1".into()));

    // Without IPv6 addresses nothing is switched on.
    agent.apply(&[veth("a", "b", "red", json!({"ip_addresses": ["10.9.0.1/24"]})), veth("b", "a", "blue", json!({}))]);
    agent.wait_configured(&["a", "b"]);
    assert_eq!(disabled("a"), "1");
}

/// C12: where it cannot be switched on, the rest is applied and the cause is named.
#[test]
fn ipv6_that_cannot_be_switched_on() {
    let host = Host::with_netns(&["red", "blue"]);
    for scope in ["all", "default"] {
        host.run(&format!("ip netns exec red sysctl -qw net.ipv6.conf.{scope}.disable_ipv6=1"));
    }
    host.run("mount --bind /proc/sys /proc/sys");
    host.run("mount -o remount,bind,ro /proc/sys");
    let agent = host.start_agent();
    agent.put(&with(&the_pair()[0], json!({"ip_addresses": ["10.0.0.1/24", "fd00::1/64"]})));
    agent.put(&the_pair()[1]);
    let status = support::eventually_ok("the refusal is said", || {
        let status = agent.status("veth1").unwrap_or_default();
        if status["reason"] == "KERNEL_REFUSED" { Ok(status) } else { Err(status) }
    });
    let said = status.to_string();
    assert!(said.contains("fd00::1") || said.contains("disable_ipv6"), "{said}");
    assert!(said.contains("EROFS"), "names the cause: {said}");
    assert_eq!(host.addresses("red", "veth1"), ["10.0.0.1/24"]);
    agent.wait_configured(&["veth2"]);
}

/// C13: CONFIGURED means that the address can be used.
#[test]
fn configured_means_usable() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    for n in 1..=20_u16 {
        let address = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
        agent.apply(&[with(&the_pair()[0], json!({"ip_addresses": [format!("{address}/64")]}))]);
        agent.wait_for("veth1", "CONFIGURED", "");
        host.inside("red", || TcpListener::bind((address, 0)).map(drop)).unwrap_or_else(|error| panic!("{address}: {error}"));
    }
}

/// `--ipv6-dad on`: the kernel looks for doubles first, and CONFIGURED waits for it.
#[test]
fn duplicate_address_detection_on_request() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.agent().with(&["--ipv6-dad", "on"]).started();
    agent.put(&with(&the_pair()[0], json!({"ip_addresses": ["fd00::1/64"]})));
    agent.put(&the_pair()[1]);
    agent.wait_for("veth1", "CONFIGURED", "");
    assert!(!host.run("ip -n red -6 address show dev veth1").contains("nodad"));
    host.inside("red", || TcpListener::bind(("fd00::1", 0)).map(drop)).expect("usable when it says CONFIGURED");
}

/// C14: what others add is kept and listed.
#[test]
fn extra_addresses_are_kept() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    host.run("ip -n red address add 10.9.9.9/32 dev veth1");
    eventually("it is listed", || agent.status("veth1").is_some_and(|status| status["extra_addresses"] == json!(["10.9.9.9/32"])));
    let status = agent.wait_for("veth1", "CONFIGURED", "");
    assert_eq!(status["ip_addresses"].as_array().map(Vec::len), Some(2), "{status}");
    assert_eq!(addresses_of(&agent, &host, &["10.0.0.1/24"]), ["10.0.0.1/24", "10.9.9.9/32"]);
    agent.del("veth1");
    eventually("the link goes all the same", || host.link_names("red").is_empty());
}

/// C14, with the other setting.
#[test]
fn extra_addresses_are_removed_on_request() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.agent().with(&["--extra-addresses", "remove"]).started();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    host.run("ip -n red address add 10.9.9.9/32 dev veth1");
    eventually_eq("only the wished one", &vec!["10.11.1.1/24".to_owned()], || host.addresses("red", "veth1"));
}

/// The row "one address on two interfaces of one namespace".
#[test]
fn one_address_twice_in_a_namespace() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    agent.apply(&[veth("a", "b", "red", json!({"ip_addresses": ["10.11.1.1/24"]})), veth("b", "a", "blue", json!({}))]);
    agent.wait_configured(&["a", "b"]);
    for (name, other) in [("veth1", "a"), ("a", "veth1")] {
        eventually("both say so", || warnings(&agent, name).contains(&format!("`{other}`")));
    }
    agent.del("a");
    eventually("the warning goes with its cause", || warnings(&agent, "veth1") == "[]");
}
