//! What the agent says: statuses, readiness, the client's commands and exit statuses.

mod support;

use serde_json::{Value, json};
use support::{Agent, Host, eventually, the_pair, veth};

fn the_pair_on(host: &Host) -> Agent<'_> {
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    agent
}

/// Every field is always there, with what was read back.
#[test]
fn a_complete_status() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let mut status = agent.status("veth1").expect("known");
    let link = host.link("red", "veth1").expect("there");
    let revision = status["revision"].take();
    assert!(revision.as_i64().is_some_and(|revision| revision > 0));
    let since = status["since"].take();
    assert!(since.as_str().is_some_and(|since| since.starts_with("20") && since.ends_with('Z')), "{since}");
    let wanted = json!({
        "name": "veth1", "state": "CONFIGURED", "reason": "", "message": "",
        "host_if_name": "veth1", "if_index": link.index,
        "namespace": {"kind": "NAMED", "reference": "red", "inode": support::host::inode(&host.netns_file("red"))},
        "admin": "UP", "oper": "UP", "mtu": 1500, "phys_address": link.mac,
        "ip_addresses": ["10.11.1.1/24"], "peer": "veth2",
        "extra_addresses": [], "waits_for": [], "warnings": [], "errors": [],
        "attempt": 0, "next_retry": null, "revision": null, "since": null,
    });
    assert_eq!(status, wanted);
}

/// The fields of a status that has no link are there too.
#[test]
fn a_status_without_a_link() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    agent.put(&veth("x", "y", "red", json!({"mtu": 10})));
    let status = agent.wait_for("x", "INVALID", "BAD_MTU");
    let complete = status_fields(&status);
    for field in [
        "name",
        "state",
        "reason",
        "message",
        "host_if_name",
        "if_index",
        "namespace",
        "admin",
        "oper",
        "mtu",
        "phys_address",
        "ip_addresses",
        "peer",
        "extra_addresses",
        "waits_for",
        "warnings",
        "errors",
        "attempt",
        "next_retry",
        "revision",
        "since",
    ] {
        assert!(complete.contains(&field.to_owned()), "{field} is missing in {status}");
    }
    let error = &status["errors"][0];
    assert_eq!((&error["field"], &error["value"]), (&json!("mtu"), &json!("10")));
    assert!(error["rule"].as_str().is_some_and(|rule| rule.contains("68") && rule.contains("65535")), "{error}");
}

fn status_fields(status: &Value) -> Vec<String> {
    status.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
}

/// `revision` tells which write a status speaks about.
#[test]
fn a_status_answers_a_revision() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let before = agent.status("veth1").expect("known")["revision"].as_i64();
    agent.apply(&[support::wish::with(&the_pair()[0], json!({"mtu": 1400}))]);
    let status = agent.status("veth1").expect("known");
    assert!(status["revision"].as_i64() > before, "{status}");
    assert_eq!((&status["state"], &status["mtu"]), (&json!("CONFIGURED"), &json!(1400)), "waited for");
}

/// HTTP says the same as gRPC.
#[test]
fn http_says_the_same() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    agent.wait_ready();
    assert_eq!(agent.http("/liveness").0, 200);
    let (code, body) = agent.http("/status");
    assert_eq!(code, 200);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let interfaces = body["interfaces"].as_array().cloned().unwrap_or_default();
    assert_eq!(interfaces, agent.statuses(), "{body}");
    assert_eq!(agent.http("/nothing").0, 404);
    let (code, metrics) = agent.http("/metrics");
    assert_eq!(code, 200);
    assert!(metrics.lines().any(|line| line.starts_with("# TYPE ")) && metrics.trim_end().ends_with("# EOF"), "OpenMetrics: {metrics}");
}

/// A single bad interface does not make the agent unready.
#[test]
fn readiness_is_not_about_single_interfaces() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    agent.put(&veth("x", "x", "red", json!({})));
    agent.wait_for("x", "INVALID", "BAD_PEER");
    agent.wait_ready();
}

/// The exit statuses: 0 done, 1 the agent said no, 2 usage, 3 it cannot be reached.
#[test]
fn exit_statuses() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = the_pair_on(&host);
    assert_eq!(agent.vnfctl(&["status", "veth1"]).code, 0);
    assert_eq!(agent.vnfctl(&["get", "linux/config/v1/interface/nobody"]).code, 1);
    assert_eq!(agent.vnfctl(&["status", "nobody"]).code, 1);
    assert_eq!(agent.vnfctl(&["frobnicate"]).code, 2);
    assert_eq!(agent.vnfctl(&["put", "only-a-key"]).code, 2);
    agent.stop();
    let unreachable = agent.vnfctl(&["ls"]);
    assert_eq!(unreachable.code, 3);
    assert!(!unreachable.stderr.trim().is_empty() && unreachable.stdout.is_empty());
}

/// Keys are written, listed, read back verbatim and deleted; short ones get the agent's prefix.
#[test]
fn keys_through_the_client() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let listed = agent.ask(&["ls"]);
    for key in ["linux/config/v1/interface/veth1", "linux/config/v1/interface/veth2"] {
        assert!(listed.contains(key), "{listed}");
    }
    let value = r#"{ "name":"x",   "veth": {"peer_if_name":"y"} }"#;
    agent.put_raw("x", value.as_bytes());
    assert_eq!(agent.ask(&["get", "linux/config/v1/interface/x"]).trim_end_matches('\n'), value);
    assert_eq!(agent.ask(&["get", "/vnf-agent/vpp1/linux/config/v1/interface/x"]).trim_end_matches('\n'), value);
    agent.ask(&["del", "/vnf-agent/vpp1/linux/config/v1/interface/x"]);
    assert_eq!(agent.vnfctl(&["get", "linux/config/v1/interface/x"]).code, 1);
    agent.wait_forgotten("x");
}

/// The examples are what the README says they are.
#[test]
fn the_examples_work() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.ask(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/pair"), "--wait"]);
    agent.wait_configured(&["veth1", "veth2"]);
    let table = agent.ask(&["interfaces"]);
    for word in ["veth1", "veth2", "CONFIGURED", "red", "blue", "10.11.1.1/24"] {
        assert!(table.contains(word), "{table}");
    }
    let yaml = agent.ask(&["-o", "yaml", "status", "veth1"]);
    assert!(yaml.contains("state: CONFIGURED"), "{yaml}");
}

/// The name-to-index map.
#[test]
fn the_index_follows_the_kernel() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let looked_up = |name: &str| serde_json::from_str::<Value>(&agent.vnfctl(&["-o", "json", "index", name]).stdout).unwrap_or_default();
    let index = host.link("red", "veth1").expect("there").index;
    assert_eq!(looked_up("veth1")["if_index"], index);
    host.run("ip -n red link del veth1");
    eventually("the new one is registered", || {
        let now = host.link("red", "veth1").map(|link| link.index);
        now.is_some_and(|now| looked_up("veth1")["if_index"] == now)
    });
}

/// `status --watch` begins with what is, and goes on with what becomes.
#[test]
fn watching() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = the_pair_on(&host);
    let (watcher, path) = agent.watch(&["-o", "json", "status", "--watch"]);
    let seen = || std::fs::read_to_string(&path).unwrap_or_default();
    eventually("the snapshot arrives", || seen().contains("veth1") && seen().contains("veth2"));
    agent.del("veth1");
    eventually("the change arrives", || seen().contains("PEER_MISSING"));
    drop(watcher);
}

/// SIGTERM ends it cleanly, and its socket goes with it.
#[test]
fn it_ends_when_asked() {
    let host = Host::new();
    let mut agent = host.start_agent();
    assert!(agent.stop().success());
}
