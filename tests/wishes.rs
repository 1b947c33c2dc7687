//! Values as users write them: every spelling that is taken, every value that is not, and that a bad one harms nobody else.

mod support;

use prost::Message;
use serde_json::{Value, json};
use support::wish::with;
use support::{Agent, Host, eventually, eventually_eq, pair, the_pair, veth};
use vnf_agent::proto::ligato;

/// A host with two namespaces; an agent has connected `good` pairs in them.
fn good_pairs<'h>(host: &'h Host, good: usize) -> Agent<'h> {
    let agent = host.start_agent();
    agent.apply(&(0..good).flat_map(|n| pair(n, "red", "blue")).collect::<Vec<_>>());
    assert_up(&agent, good);
    agent
}

fn assert_up(agent: &Agent<'_>, good: usize) {
    let names: Vec<String> = (0..good).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    agent.wait_configured(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Writes the value for `x`, expects it to be refused for this reason, and that nothing of it reached the kernel. Returns the status.
fn refused(host: &Host, agent: &Agent<'_>, value: &Value, reason: &str) -> Value {
    let before = host.digest(&["", "red", "blue"]);
    agent.put_raw("x", value.to_string().as_bytes());
    let status = agent.wait_for("x", "INVALID", reason);
    assert!(!status["message"].as_str().unwrap_or_default().is_empty(), "{status}");
    assert_eq!(host.digest(&["", "red", "blue"]), before, "{value}");
    agent.del("x");
    agent.wait_forgotten("x");
    status
}

fn errors(status: &Value) -> Vec<Value> {
    status["errors"].as_array().cloned().unwrap_or_default()
}

/// C02: names that no link may have.
#[test]
fn bad_names() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = good_pairs(&host, 1);
    let bad = [".", "..", "a/b", "a:b", "a b", "a\tb", "a\u{202e}b", "a%d", "sixteen-bytes-xx", "äöüäöüäö"];
    for name in bad {
        let status = refused(&host, &agent, &veth("x", "y", "red", json!({"host_if_name": name})), "BAD_NAME");
        assert_eq!(errors(&status)[0]["field"], "host_if_name", "{status}");
        assert!(!errors(&status)[0]["rule"].as_str().unwrap_or_default().is_empty(), "{status}");
    }
    refused(&host, &agent, &with(&veth("x", "y", "red", json!({})), json!({"name": ""})), "BAD_NAME");
    assert_up(&agent, 1);
}

/// C02: a key with more segments than one is answered under that key.
#[test]
fn a_slash_in_a_logical_name() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.put_raw("a/b", veth("a/b", "y", "red", json!({})).to_string().as_bytes());
    agent.wait_for("a/b", "INVALID", "BAD_NAME");
    agent.del("a/b");
    agent.wait_forgotten("a/b");
}

/// The row on logical names: 253 bytes are the most.
#[test]
fn a_logical_name_that_is_too_long() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let (longest, longer) = ("l".repeat(253), "l".repeat(254));
    agent.put(&veth(&longer, "y", "red", json!({"host_if_name": "x"})));
    let status = agent.wait_for(&longer, "INVALID", "BAD_NAME");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("254") && message.contains("253")), "{status}");
    agent.apply(&[veth(&longest, "y", "red", json!({"host_if_name": "x"})), veth("y", &longest, "blue", json!({}))]);
    agent.wait_configured(&[&longest, "y"]);
}

/// C03: a value under another's key, with good pairs beside it, also after a restart.
#[test]
fn key_and_name_must_agree() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = good_pairs(&host, 20);
    agent.put_raw("veth1", veth("veth9", "y", "red", json!({})).to_string().as_bytes());
    for round in 0..2 {
        let status = agent.wait_for("veth1", "INVALID", "KEY_MISMATCH");
        let message = status["message"].to_string();
        assert!(message.contains("veth1") && message.contains("veth9"), "names both: {message}");
        assert_up(&agent, 20);
        if round == 0 {
            agent.restart();
        }
    }
    assert!(agent.status("veth9").is_none());
}

/// C15, and the rows on MAC, MTU and peer.
#[test]
fn values_that_no_link_can_have() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = good_pairs(&host, 1);
    let wish = |more| veth("x", "y", "red", more);
    for mac in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "02:00:00:00:00", "02:00:00:00:00:00:00", "nonsense"] {
        let status = refused(&host, &agent, &wish(json!({"phys_address": mac})), "BAD_MAC");
        assert_eq!(errors(&status)[0]["value"], mac, "{status}");
    }
    for mtu in [json!(1), json!(67), json!(65536), json!(4_294_967_295_u32)] {
        refused(&host, &agent, &wish(json!({"mtu": mtu})), "BAD_MTU");
    }
    refused(&host, &agent, &wish(json!({"mtu": 1279, "ip_addresses": ["fd00::1/64"]})), "BAD_MTU");
    refused(&host, &agent, &veth("x", "x", "red", json!({})), "BAD_PEER");
    refused(&host, &agent, &veth("x", "", "red", json!({})), "BAD_PEER");
    refused(&host, &agent, &wish(json!({"veth": null})), "BAD_PEER");
    assert_up(&agent, 1);
}

/// All that is wrong is said at once.
#[test]
fn every_error_is_listed() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let value =
        veth("x", "x", "red", json!({"mtu": 10, "phys_address": "no", "ip_addresses": ["10.0.0.1/24", "10.0.0.1/33", "224.0.0.1/24"]}));
    agent.put_raw("x", value.to_string().as_bytes());
    let status = agent.wait_for("x", "INVALID", "");
    let mut fields: Vec<String> = errors(&status).iter().map(|error| error["field"].as_str().unwrap_or_default().to_owned()).collect();
    fields.sort();
    assert_eq!(fields, ["ip_addresses[1]", "ip_addresses[2]", "mtu", "phys_address", "veth.peer_if_name"], "{status}");
}

/// The row "update that does not validate".
#[test]
fn a_bad_update_leaves_what_stands() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    agent.apply(&[veth1.clone(), veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    let before = host.digest(&["red", "blue"]);
    let index = host.link("red", "veth1").expect("there").index;

    agent.put(&with(&veth1, json!({"mtu": 10})));
    agent.wait_for("veth1", "INVALID", "BAD_MTU");
    agent.restart();
    agent.wait_ready();
    agent.wait_for("veth1", "INVALID", "BAD_MTU");
    assert_eq!(host.digest(&["red", "blue"]), before);
    assert_eq!(host.link("red", "veth1").map(|link| link.index), Some(index), "not even made again");

    agent.put_raw("veth1", b"{");
    agent.wait_for("veth1", "INVALID", "BAD_ENCODING");
    assert_eq!(host.digest(&["red", "blue"]), before);

    agent.apply(&[with(&veth1, json!({"mtu": 1400}))]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link("red", "veth1").map(|link| (link.index, link.mtu)), Some((index, 1400)));

    agent.put_raw("veth1", b"{");
    agent.wait_for("veth1", "INVALID", "BAD_ENCODING");
    agent.del("veth1");
    eventually("deleted while invalid, it goes", || host.link_names("red").is_empty());
}

/// C18: a field that nobody knows is taken, and said.
#[test]
fn unknown_fields_are_warned_of() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    agent.apply(&[with(&veth1, json!({"ip_adresses": ["10.0.0.1/24"]})), veth2]);
    let status = agent.wait_for("veth1", "CONFIGURED", "");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("ip_adresses") && warnings.contains("ip_addresses"), "names it and the nearest known one: {warnings}");
    assert_eq!(status["ip_addresses"], json!(["10.11.1.1/24"]));
}

/// C19: types by number, by name, and left out; never a veth by accident.
#[test]
fn types() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    for kind in [json!(0), json!("VETH"), json!("veth"), Value::Null] {
        let [veth1, veth2] = the_pair();
        agent.apply(&[with(&veth1, json!({"type": kind})), veth2]);
        agent.wait_configured(&["veth1", "veth2"]);
        agent.del("veth1");
        eventually("it is gone", || host.link_names("red").is_empty());
    }
    let mut untyped = the_pair()[0].clone();
    untyped.as_object_mut().expect("an object").remove("type");
    agent.apply(&[untyped]);
    agent.wait_configured(&["veth1", "veth2"]);

    for kind in [json!(99), json!("BRIDGE")] {
        let status = refused(&host, &agent, &veth("x", "y", "red", json!({"type": kind})), "BAD_ENCODING");
        let said = status.to_string();
        for known in ["VETH", "AUTO_TAP", "TAP"] {
            assert!(said.contains(known), "lists the allowed ones: {said}");
        }
    }
}

/// C20: both spellings are taken, both at once are not.
#[test]
fn camel_and_snake() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let camel = r#"{"name":"x","enabled":true,"ipAddresses":["10.0.0.1/24"],"hostIfName":"eth1","MTU":"1400","namespace":{"type":2,"name":"red"},"veth":{"peerIfName":"y"}}"#;
    agent.put_raw("x", camel.as_bytes());
    agent.put(&veth("y", "x", "blue", json!({})));
    agent.wait_configured(&["x", "y"]);
    let link = host.link("red", "eth1").expect("there");
    assert_eq!((link.addresses, link.mtu), (vec!["10.0.0.1/24".to_owned()], 1400));

    for twice in ["\"ip_addresses\":[],\"ipAddresses\":[]", "\"mtu\":1,\"mtu\":2", "\"host_if_name\":\"a\",\"hostIfName\":\"a\""] {
        agent.put_raw("z", format!("{{\"name\":\"z\",{twice}}}").as_bytes());
        let status = agent.wait_for("z", "INVALID", "BAD_ENCODING");
        let field = twice.split('"').nth(1).unwrap_or_default();
        assert!(status["message"].as_str().is_some_and(|message| message.contains(field)), "names the duplicate: {status}");
        agent.del("z");
        agent.wait_forgotten("z");
    }
}

/// C21: whatever bytes stand there, the others go on; a key that was good keeps running and says so.
#[test]
fn broken_values_harm_nobody() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = good_pairs(&host, 20);
    let utf16: Vec<u8> = "\u{feff}{\"name\":\"bad6\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let large = vec![b'A'; 1_000_000];
    let trailing = format!("{}}}", veth("bad8", "y", "red", json!({})));
    let bad: [&[u8]; 9] = [b"", b" ", b"{", b"null", b"[]", b"\"veth1\"", &utf16, &large, trailing.as_bytes()];
    for (n, value) in bad.iter().enumerate() {
        agent.put_raw(&format!("bad{n}"), value);
    }
    for n in 0..bad.len() {
        let status = agent.wait_for(&format!("bad{n}"), "INVALID", "");
        assert!(!status["message"].as_str().unwrap_or_default().is_empty(), "{status}");
        assert!(status.to_string().len() < 10_000, "a large value is not repeated in full");
    }
    for (n, at) in [(2, "1"), (8, &(trailing.len() - 1).to_string())] {
        let status = agent.status(&format!("bad{n}")).expect("known");
        assert!(status["message"].as_str().is_some_and(|message| message.contains(at)), "says the position: {status}");
    }
    assert_up(&agent, 20);

    agent.put_raw("a0", b"{");
    agent.wait_for("a0", "INVALID", "BAD_ENCODING");
    assert_eq!(host.addresses("red", "a0"), ["10.100.0.1/24"], "what was good keeps running");
    agent.ask(&["resync"]);
    agent.apply(&pair(20, "red", "blue"));
    let lines = agent.log().lines().filter(|line| line.contains("a0") && line.contains("BAD_ENCODING")).count();
    assert!(lines <= 1, "one line for the change, none for each retry: {lines}");
}

/// C21: the same message as binary protobuf.
#[test]
fn binary_values() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let end = |name: &str, peer: &str, netns: &str| ligato::Interface {
        name: name.to_owned(),
        enabled: true,
        ip_addresses: vec!["10.0.0.1/24".to_owned()],
        mtu: 1400,
        namespace: Some(ligato::Namespace {
            r#type: Some(ligato::namespace::Type::NamedNs.into()),
            name: netns.to_owned(),
            ..ligato::Namespace::default()
        }),
        veth: Some(ligato::Veth { peer_if_name: peer.to_owned() }),
        ..ligato::Interface::default()
    };
    agent.put_raw("x", &end("x", "y", "red").encode_to_vec());
    agent.put_raw("y", &end("y", "x", "blue").encode_to_vec());
    agent.wait_configured(&["x", "y"]);
    assert_eq!(host.link("blue", "y").map(|link| (link.mtu, link.addresses)), Some((1400, vec!["10.0.0.1/24".to_owned()])));
}

/// Writing the same again, in another spelling, changes nothing.
#[test]
fn the_same_in_other_words_is_the_same() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let [veth1, veth2] = the_pair();
    let v6 = |text: &str| with(&veth1, json!({"ip_addresses": ["10.11.1.1/24", text]}));
    agent.apply(&[v6("fd00::1/64"), veth2]);
    agent.wait_configured(&["veth1", "veth2"]);
    let before = host.link("red", "veth1");
    agent.apply(&[v6("FD00:0:0::0001/64")]);
    agent.wait_configured(&["veth1", "veth2"]);
    eventually_eq("nothing changed", &before, || host.link("red", "veth1"));
}
