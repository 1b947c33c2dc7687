//! The real `vnfctl` against the real services: every command, its forms, its exit status.
#![allow(clippy::unwrap_used, reason = "a test may end here")]

mod api_support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use api_support::{Host, PREFIX, configured, eventually, index_entry, pending, run};
use serde_json::{Value, json};
use vnf_agent::configurator::published::{NamespaceEntry, PassRecord, StepRecord};
use vnf_agent::model::{FieldError, InterfaceStatus, Reason, State, Timestamp};

fn age_of(moment: i64) -> String {
    let days = (vnf_agent::api::context::now().seconds() - moment / 1000) / 86_400;
    format!("{days}d")
}

#[tokio::test]
async fn interfaces_as_a_table() {
    let host = Host::start().await;
    // Shown as 5m for the next minute.
    let since = Timestamp(vnf_agent::api::context::now().0 - 300_000);
    host.publish([InterfaceStatus { since, ..configured("veth1") }, InterfaceStatus { since, ..pending("veth10") }]);
    let seen = host.vnfctl(&["interfaces"]).await;
    let expected = "\
NAME    STATE       AGE  HOST-IF  NAMESPACE         ADMIN/OPER  MTU   MAC                ADDRESSES    PEER   MESSAGE
veth1   CONFIGURED  5m   eth1     microservice:ms1  UP/UP       1500  02:00:00:00:00:01  10.0.0.1/24  veth2  -
veth10  PENDING     5m   eth1     named:red         -           -     -                  -            veth2  PEER_MISSING: peer `veth2` is not configured
";
    assert_eq!((seen.out.as_str(), seen.code, seen.err.as_str()), (expected, Some(0), ""));
}

#[tokio::test]
async fn interfaces_as_json_and_yaml_have_the_contracts_fields() {
    let host = Host::start().await;
    host.publish([configured("a"), pending("b")]);
    let expected = json!([configured("a"), pending("b")].map(|s| serde_json::to_value(s).unwrap()));
    assert_eq!(host.vnfctl(&["interfaces", "-o", "json"]).await.json(), expected);
    let yaml: Value = serde_saphyr::from_str(&host.vnfctl(&["-o", "yaml", "interfaces"]).await.out).unwrap();
    assert_eq!(yaml, expected);
    let names = async |arguments: &[&str]| {
        let all = host.vnfctl(&[&["interfaces", "-o", "json"], arguments].concat()).await.json();
        all.as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["--state", "pending"]).await, ["b"]);
    assert_eq!(names(&["--namespace", "ms1"]).await, ["a"]);
    assert_eq!(names(&["b"]).await, ["b"]);
    let usage = host.vnfctl(&["interfaces", "--state", "GREAT"]).await;
    assert_eq!((usage.code, usage.err.contains("`GREAT` is no state")), (Some(2), true), "{usage:?}");
}

#[tokio::test]
async fn many_interfaces_are_all_listed() {
    let host = Host::start().await;
    host.publish((0..2500).map(|n| configured(&format!("v{n}"))));
    assert_eq!(host.vnfctl(&["interfaces"]).await.out.lines().count(), 2501);
}

#[tokio::test]
async fn status_of_the_agent_and_of_names() {
    let host = Host::start().await;
    host.publish([configured("veth1"), pending("veth2")]);
    let overview = host.vnfctl(&["status"]).await;
    for part in ["agent           vpp1 OK, version", "store           etcd live, revision 7", "interfaces      1 CONFIGURED, 1 PENDING"] {
        assert!(overview.out.contains(part), "{}", overview.out);
    }
    assert!(overview.out.contains("veth1  CONFIGURED"), "{}", overview.out);
    let all = host.vnfctl(&["status", "-o", "json"]).await.json();
    assert_eq!(
        (all["agent"]["label"].as_str(), all["interfaces"][0].clone()),
        (Some("vpp1"), serde_json::to_value(configured("veth1")).unwrap())
    );

    let one = host.vnfctl(&["status", "veth1", "-o", "json"]).await;
    assert_eq!(one.out.trim_end(), serde_json::to_string_pretty(&configured("veth1")).unwrap());
    let detail = host.vnfctl(&["status", "veth2"]).await.out;
    for part in [
        "reason            PEER_MISSING: peer `veth2` is not configured",
        "waits for         interface `veth2`",
        "namespace         named:red",
    ] {
        assert!(detail.contains(part), "{detail}");
    }
    let some = host.vnfctl(&["status", "veth1", "nobody", "-o", "json"]).await;
    assert_eq!((some.code, some.json().as_array().unwrap().len()), (Some(1), 1));
    let none = host.vnfctl(&["status", "nobody"]).await;
    let expected = (Some(1), "", "vnfctl: no interface `nobody` is configured\n");
    assert_eq!((none.code, none.out.as_str(), none.err.as_str()), expected);
}

#[tokio::test]
async fn names_cannot_steer_the_terminal() {
    let host = Host::start().await;
    let evil = "a\x1b[2J\n\u{202e}b\u{9b}31m";
    let mut status = configured(evil);
    (status.message, status.host_if_name, status.warnings) = (evil.to_owned(), evil.to_owned(), vec![evil.to_owned()]);
    status.namespace.reference = evil.to_owned();
    host.publish([status]);
    for arguments in [
        &["interfaces"][..],
        &["status"],
        &["status", evil],
        &["interfaces", "-o", "json"],
        &["interfaces", "-o", "yaml"],
        &["status", "\x1b[2Jx"],
    ] {
        let seen = host.vnfctl(arguments).await;
        for text in [&seen.out, &seen.err] {
            assert!(!text.contains(|c: char| c != '\n' && vnf_agent::telemetry::misleads(c)), "{arguments:?}: {text:?}");
        }
    }
    assert_eq!(host.vnfctl(&["interfaces", "-o", "json"]).await.json()[0]["name"], evil);
    assert_eq!(host.vnfctl(&["interfaces"]).await.out.lines().count(), 2);
}

#[tokio::test]
async fn put_get_ls_del() {
    let host = Host::start().await;
    host.configure_everything();
    let file = host.dir.path().join("veth1.json");
    std::fs::write(&file, "{\"name\":\"veth1\"}\n").unwrap();
    let file = file.to_str().unwrap();
    let key = "linux/config/v1/interface/veth1";
    let put = host.vnfctl(&["put", key, file]).await;
    assert_eq!((put.code, put.out.as_str()), (Some(0), "linux/config/v1/interface/veth1: revision 1\n"));
    let put = run(&host.agent(), &["put", key, "-", "--wait"], b"{\"name\":\"veth1\"}").await;
    assert_eq!(put.out, "linux/config/v1/interface/veth1: CONFIGURED eth1 in microservice:ms1\n");
    let bad = run(&host.agent(), &["put", "linux/config/v1/interface/bad", "-", "--wait"], b"{").await;
    let line = "linux/config/v1/interface/bad: INVALID BAD_ENCODING: the value is no JSON (offset 1)\n";
    assert_eq!((bad.code, bad.out.as_str(), bad.err.as_str()), (Some(1), line, ""));
    // Bytes that are no text go there and back.
    let binary = run(&host.agent(), &["put", "linux/config/v1/interface/bin", "-"], b"\x0a\x03bin\x38\xdc\x0b").await;
    assert_eq!(binary.code, Some(0));
    assert_eq!(host.vnfctl(&["get", key]).await.out, "{\"name\":\"veth1\"}");
    let json = host.vnfctl(&["get", &format!("/vnf-agent/vpp1/{key}"), "-o", "json"]).await.json();
    assert_eq!(json, json!({"key": key, "value": {"name": "veth1"}, "create_revision": 1, "mod_revision": 2}));
    let ls = host.vnfctl(&["ls", "linux/config/"]).await.out;
    assert_eq!(ls.lines().collect::<Vec<_>>(), ["bad", "bin", "veth1"].map(|n| format!("{PREFIX}{n}")));
    let del = host.vnfctl(&["del", key, "--wait", "--timeout", "20s"]).await;
    assert_eq!((del.code, del.out.as_str()), (Some(0), "linux/config/v1/interface/veth1: removed\n"));
    let get = host.vnfctl(&["get", key]).await;
    assert_eq!((get.code, get.err.as_str()), (Some(1), "vnfctl: the store has no key `linux/config/v1/interface/veth1`\n"));
    let other = host.vnfctl(&["del", "/vnf-agent/other/linux/config/v1/interface/a"]).await;
    assert_eq!((other.code, other.err.contains("this agent has the label `vpp1`")), (Some(1), true), "{other:?}");
}

#[tokio::test]
async fn apply_writes_everything_at_once() {
    let host = Host::start().await;
    let dir = host.dir.path().join("conf");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("1.yaml"), "name: veth1\nveth: {peer_if_name: veth2}\n---\nname: veth2\n").unwrap();
    std::fs::write(dir.join("2.json"), r#"[{"key":"vpp/config/v1/interface/t","value":{"name":"t"}},{"name":"veth3"}]"#).unwrap();
    std::fs::write(dir.join("README"), "not for us").unwrap();
    let dir = dir.to_str().unwrap();
    let seen = host.vnfctl(&["apply", "-f", dir]).await;
    let expected = [
        "linux/config/v1/interface/veth1",
        "linux/config/v1/interface/veth2",
        "vpp/config/v1/interface/t",
        "linux/config/v1/interface/veth3",
    ];
    assert_eq!(seen.out.lines().collect::<Vec<_>>(), expected.map(|k| format!("{k}: revision 1")), "{seen:?}");
    assert_eq!(host.store.writes.lock().unwrap().len(), 1);
    assert_eq!(host.vnfctl(&["get", expected[0]]).await.out, r#"{"name":"veth1","veth":{"peer_if_name":"veth2"}}"#);
    host.configure_everything();
    let waited = host.vnfctl(&["apply", "-f", dir, "--wait", "-o", "json"]).await;
    assert_eq!(waited.json()["results"][1]["status"]["state"], "CONFIGURED", "{waited:?}");
    let stdin = run(&host.agent(), &["apply", "-f", "-"], b"- name: x\n").await;
    assert_eq!(stdin.out, "linux/config/v1/interface/x: revision 3\n");
    for input in [&b"{"[..], b"- 1", b"- {}", b"- {name: a}\n- {name: a}"] {
        let usage = run(&host.agent(), &["apply", "-f", "-"], input).await;
        assert_eq!(usage.code, Some(2), "{usage:?}");
        assert_eq!(usage.err.lines().count(), 1, "{usage:?}");
    }
    assert_eq!(run(&host.agent(), &["apply", "-f", "/nowhere"], b"").await.code, Some(2));
    let large = host.dir.path().join("large.json");
    std::fs::write(&large, format!(r#"{{"name":"a","description":"{}"}}"#, "x".repeat(5 << 20))).unwrap();
    let usage = host.vnfctl(&["apply", "-f", large.to_str().unwrap()]).await;
    assert_eq!((usage.code, usage.err.contains("in several parts")), (Some(2), true), "{usage:?}");
}

#[tokio::test]
async fn a_wait_that_ends_too_late_is_said() {
    let host = Host::start().await;
    let late = run(&host.agent(), &["put", "linux/config/v1/interface/a", "-", "--wait", "--timeout", "1s"], b"{}").await;
    assert_eq!(late.code, Some(1));
    assert!(late.err.contains("revision 1 stands in the store, but within 1s"), "{late:?}");
}

#[tokio::test]
async fn namespaces_index_history_resync_adopt() {
    let host = Host::start().await;
    let since = Timestamp(1_767_225_600_000);
    let namespace = |state, inode| NamespaceEntry {
        kind: "NAMED",
        reference: "red".to_owned(),
        state,
        message: String::new(),
        cookie: 5,
        inode,
        since,
        interfaces: 2,
        replaced: 1,
        container_id: String::new(),
        container_name: String::new(),
        container_started: None,
        other_containers: Vec::new(),
    };
    host.published.namespaces.publish([("NAMED red".into(), Some(namespace("BOUND", 42)))]);
    let table = host.vnfctl(&["namespaces"]).await.out;
    assert!(table.starts_with("KIND   REFERENCE  STATE  AGE"), "{table}");
    assert_eq!(host.vnfctl(&["namespaces", "-o", "json"]).await.json()[0], serde_json::to_value(namespace("BOUND", 42)).unwrap());

    let entry = |name: &str, ms: &str| (Arc::from(name), Some(index_entry(name, 1, 5, ms)));
    host.published.index.publish([entry("a", "ms1"), entry("b", "ms2")]);
    let expected = "\
NAME  INDEX  HOST-IF  NAMESPACE         INODE       TYPE  PEER
b     5      eth0     microservice:ms2  4026532001  veth  peer
";
    assert_eq!(host.vnfctl(&["index", "--microservice", "ms2"]).await.out, expected);
    assert_eq!(host.vnfctl(&["index", "b"]).await.out, expected);
    assert_eq!(host.vnfctl(&["index"]).await.out.lines().count(), 3);
    assert_eq!(host.vnfctl(&["index", "x"]).await.code, Some(1));

    let steps = vec![StepRecord { step: "set veth1 mtu 1500".into(), outcome: "done".into() }];
    let drift = vec!["veth1: mtu 1500 -> 1400".to_owned()];
    host.published.record(PassRecord { sequence: 3, started: since, elapsed_us: 1234, triggers: vec!["kernel"], drift, steps });
    let history = host.vnfctl(&["history"]).await.out;
    let age = age_of(since.0);
    let expected = format!("pass 3  {age} ago  1.234 ms  kernel\n  found  veth1: mtu 1500 -> 1400\n  set veth1 mtu 1500: done\n");
    assert_eq!(history, expected);
    assert_eq!(host.vnfctl(&["history", "-n", "1", "-o", "json"]).await.json()[0]["sequence"], 3);

    host.publish([configured("a")]);
    assert_eq!(host.vnfctl(&["resync"]).await.code, Some(0));
    assert_eq!(host.vnfctl(&["resync", "--accept-removals"]).await.code, Some(0));
    assert_eq!(host.vnfctl(&["adopt", "a"]).await.code, Some(0));
    assert_eq!(host.vnfctl(&["adopt", "x"]).await.code, Some(1));
    assert_eq!(*host.requests.0.lock().unwrap(), ["resync false", "resync true", "adopt a"]);
}

#[tokio::test]
async fn exit_status_when_nothing_can_be_done() {
    let nobody = run("unix:/nowhere/agent.sock", &["status"], b"").await;
    let sentence = "vnfctl: cannot reach the agent at unix:/nowhere/agent.sock: No such file or directory (os error 2); is vnf-agent running? \
                    --agent or VNF_AGENT tells where else to look\n";
    assert_eq!((nobody.code, nobody.err.as_str()), (Some(3), sentence));
    assert_eq!(run("unix:/nowhere/agent.sock", &["status", "--watch"], b"").await.code, Some(3));
    assert_eq!(run("http://127.0.0.1:1", &["status"], b"").await.code, Some(3));
    for usage in [&["frobnicate"][..], &["put", "k"], &[], &["status", "-o", "xml"], &["del", "k", "--timeout", "3s"]] {
        assert_eq!(run("unix:/x", usage, b"").await.code, Some(2), "{usage:?}");
    }
    assert_eq!(run("tcp://x", &["status"], b"").await.code, Some(2));
    assert_eq!(run("unix:/x", &["--help"], b"").await.code, Some(0));
    // The default, since an empty variable counts as unset.
    assert!(run("", &["status"], b"").await.err.contains("unix:/run/vnf-agent/agent.sock"));
}

#[tokio::test]
async fn an_agent_that_does_not_answer_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    // The kernel takes the connection, nobody else does: an agent under SIGSTOP.
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let seen = run(&format!("unix:{}", socket.display()), &["status"], b"").await;
    assert_eq!(seen.code, Some(3), "{seen:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_the_agents_no() {
    let host = Host::start().await;
    *host.store.refuse.lock().unwrap() = Some("connection refused");
    let seen = run(&host.agent(), &["put", "linux/config/v1/interface/a", "-"], b"{}").await;
    assert_eq!((seen.code, seen.err.contains("connection refused")), (Some(1), true), "{seen:?}");
}

#[tokio::test]
async fn a_reader_who_leaves_is_no_error() {
    let host = Host::start().await;
    host.publish((0..5000).map(|n| configured(&format!("v{n}"))));
    let command = format!("set -o pipefail; VNF_AGENT={} {} interfaces | head -1", host.agent(), env!("CARGO_BIN_EXE_vnfctl"));
    let output = tokio::task::spawn_blocking(move || Command::new("bash").args(["-c", &command]).output().unwrap()).await.unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[tokio::test]
async fn on_a_terminal_it_fits_and_has_colours() {
    let host = Host::start().await;
    let long = "a rather long message that never fits into the line of a small terminal".to_owned();
    let failed = InterfaceStatus { state: State::Failed, reason: Some(Reason::ForeignLink), message: long, ..configured("veth2") };
    host.publish([configured("veth1"), failed]);
    let agent = host.agent();
    let show = async |variables: &str| {
        let line = format!("stty cols 120; {variables} VNF_AGENT={agent} {} interfaces", env!("CARGO_BIN_EXE_vnfctl"));
        let script = move || Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(tokio::task::spawn_blocking(script).await.unwrap().stdout).unwrap()
    };
    let coloured = show("").await;
    assert!(coloured.contains("\x1b[32mCONFIGURED\x1b[0m") && coloured.contains("\x1b[31mFAILED\x1b[0m"), "{coloured}");
    let plain = show("NO_COLOR=1").await;
    assert!(!plain.contains('\x1b'), "{plain}");
    assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 120), "{plain}");
    assert!(plain.lines().count() > 3, "the message takes several lines: {plain}");
}

/// A running `status --watch` whose lines can be awaited.
struct Watching {
    child: std::process::Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Watching {
    fn start(agent: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vnfctl"));
        command.env_clear().env("VNF_AGENT", agent).args(["status", "--watch"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = std::sync::mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    async fn next(&self) -> String {
        for _ in 0..1000 {
            if let Ok(line) = self.lines.try_recv() {
                return line;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no line within 10 s");
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test]
async fn a_watch_survives_a_restart_of_the_agent() {
    let host = Host::start().await;
    host.publish([configured("a"), configured("b"), configured("gone")]);
    let watching = Watching::start(&host.agent(), &[]);
    let link = "CONFIGURED eth1 in microservice:ms1";
    for name in ["a", "b", "gone"] {
        assert_eq!(watching.next().await, format!("{name} {link}"));
    }
    host.publish([pending("b")]);
    assert_eq!(watching.next().await, "b PENDING PEER_MISSING: peer `veth2` is not configured");
    host.remove("b");
    assert_eq!(watching.next().await, "b removed");

    let (socket, published) = (host.socket.clone(), Arc::new(vnf_agent::configurator::published::Published::default()));
    let dir = host.stop().await;
    published.statuses.publish([("a".into(), Some(configured("a"))), ("new".into(), Some(configured("new")))]);
    let host = Host::in_dir(dir, socket, published, "etcd", |_| {}).await;
    // What was shown already is not repeated; what went in between is told.
    assert_eq!(watching.next().await, format!("new {link}"));
    assert_eq!(watching.next().await, "gone removed");
    host.remove("a");
    assert_eq!(watching.next().await, "a removed");
}

#[test]
fn the_agents_help_and_version_are_answers_and_no_errors() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_vnf-agent")).env_clear().args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run(&["--version"]), (Some(0), format!("vnf-agent {}\n", env!("CARGO_PKG_VERSION")), String::new()));
    let (code, out, err) = run(&["--help"]);
    assert_eq!((code, err.as_str(), out.contains("--etcd-endpoints <LIST>")), (Some(0), "", true), "{out}");
    let (code, out, err) = run(&["--bogus"]);
    assert_eq!((code, out.as_str(), err.starts_with("error: unexpected argument '--bogus'")), (Some(2), "", true), "{err}");
    let (code, out, err) = run(&["--label", "a b", "--ipv6-dad", "yes"]);
    assert_eq!((code, out.as_str(), err.lines().filter(|l| l.starts_with("vnf-agent: option `")).count()), (Some(2), "", 2), "{err}");
}

#[test]
fn what_keeps_the_agent_from_starting_is_told_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_vnf-agent")).env_clear().args(["--state-dir", "/proc/x"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.matches("No such file or directory").count()), (Some(1), 1), "{err}");
}

#[tokio::test]
async fn what_this_version_does_not_handle_is_no_success() {
    let host = Host::start().await;
    host.configure_everything();
    let value = br#"{"name":"a","type":"TAP"}"#;
    let seen = run(&host.agent(), &["put", "linux/config/v1/interface/a", "-", "--wait"], value).await;
    assert_eq!((seen.code, seen.out.as_str()), (Some(1), "linux/config/v1/interface/a: UNIMPLEMENTED not handled\n"), "{seen:?}");
}

#[tokio::test]
async fn everything_wrong_is_counted_in_one_line() {
    let host = Host::start().await;
    let wrong = |field: &str| FieldError {
        reason: Reason::BadMtu,
        field: field.to_owned(),
        value: "1".to_owned(),
        rule: "must be larger".to_owned(),
        hint: String::new(),
    };
    let status = InterfaceStatus {
        state: State::Invalid,
        reason: Some(Reason::BadMtu),
        message: "mtu `1` must be larger".to_owned(),
        errors: vec![wrong("mtu"), wrong("other"), wrong("third")],
        ..configured("a")
    };
    host.publish([status]);
    let seen = host.vnfctl(&["interfaces"]).await;
    assert!(seen.out.contains("BAD_MTU: mtu `1` must be larger (and 2 more)\n"), "{}", seen.out);
}

#[tokio::test]
async fn a_watch_of_one_name_as_json() {
    let host = Host::start().await;
    host.publish([configured("a"), configured("b")]);
    let watching = Watching::start(&host.agent(), &["b", "-o", "json"]);
    let event: Value = serde_json::from_str(&watching.next().await).unwrap();
    assert_eq!((event["kind"].as_str(), &event["status"]), (Some("ADDED"), &serde_json::to_value(configured("b")).unwrap()));
    host.remove("a");
    host.remove("b");
    let event: Value = serde_json::from_str(&watching.next().await).unwrap();
    assert_eq!((event["kind"].as_str(), event["name"].as_str(), &event["status"]), (Some("REMOVED"), Some("b"), &Value::Null));
    eventually("the sequence grows", async || event["sequence"] == 4).await;
}
