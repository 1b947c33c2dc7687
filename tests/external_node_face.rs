//! What users and programs see of an external node: plans, waiting writes, tables, history, metrics, entities.

mod node_support;
mod support;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use node_support::{NODE, STATUS, is_behind};
use serde_json::{Value, json};
use support::etcd::PREFIX;
use support::{Agent, Etcd, Host, Ovs, eventually, eventually_eq};
use tonic::transport::Endpoint;
use vnf_agent::proto::agent as pb;
use vnf_agent::proto::agent::entity_event::Kind;
use vnf_agent::proto::agent::node_service_client::NodeServiceClient;

const ENTITIES: &str = "external/status/v1/entity/";
/// As Antrea derives them: `printf nic0 | sha1sum` begins with ac6cf, that of nic1 with f21f6.
const ENTITY_0: &str = "vpp1-ac6cf";
const ENTITY_1: &str = "vpp1-f21f6";

fn node(interfaces: &Value, labels: &Value) -> String {
    json!({"name": "vpp1", "interfaces": interfaces, "labels": labels}).to_string()
}

fn nic0() -> Value {
    json!([{"name": "nic0", "ips": ["10.199.0.2"]}])
}

fn agent(host: &Host) -> Agent<'_> {
    host.agent().with(&["--ovs-datapath", "netdev"])
}

fn put_waiting(agent: &Agent<'_>, value: &str) -> support::agent::Answer {
    agent.vnfctl_with(&["put", NODE, "-", "--wait", "--timeout", "120s"], value.as_bytes())
}

/// The words of all steps and of all drift that the history tells of NICs.
fn told(agent: &Agent<'_>) -> (Vec<String>, Vec<String>) {
    let passes = agent.history();
    let of_nodes = || passes.iter().rev().filter(|pass| pass["sequence"] == 0);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = of_nodes().flat_map(|pass| pass["steps"].as_array().cloned().unwrap_or_default());
    let drift = of_nodes().flat_map(|pass| pass["drift"].as_array().cloned().unwrap_or_default());
    (steps.map(|step| format!("{}: {}", text(&step["step"]), text(&step["outcome"]))).collect(), drift.map(|what| text(&what)).collect())
}

#[test]
fn a_user_plans_writes_waits_and_reads_what_was_done() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let _ovs = host.start_ovs();
    let agent = agent(&host).started();
    let unknown = agent.vnfctl(&["node", "plan", "vpp1"]);
    assert_eq!((unknown.code, unknown.stderr.contains("no node `vpp1` is configured")), (1, true), "{}", unknown.stderr);
    // What would it do?
    let plan = |value: &str| agent.vnfctl_with(&["node", "plan", "vpp1", "-f", "-"], value.as_bytes());
    let would = plan(&node(&nic0(), &json!({}))).expect_done(&["plan"]);
    assert!(would.contains("nic0 behind the bridge: rename nic0 to nic0~ and free the name nic0 (interruption: none from"), "{would}");
    assert!(would.trim_end().ends_with("nic0 behind the bridge: done"), "{would}");
    let missing = plan(&node(&json!([{"name": "nic9"}]), &json!({}))).expect_done(&["plan"]);
    assert!(missing.contains("nothing would be done: ") && missing.contains("no link called nic9"), "{missing}");
    let foreign = plan(&json!({"name": "vpp1", "namespace": "else", "interfaces": nic0()}).to_string()).expect_done(&["plan"]);
    assert!(foreign.contains("another host's"), "{foreign}");
    let wrong = plan(&node(&json!([{"ips": ["10.0.0"]}]), &json!({})));
    assert_eq!((wrong.code, wrong.stderr.contains("10.0.0")), (1, true), "{}", wrong.stderr);
    assert!(!is_behind(&host, "nic0") && agent.vnfctl(&["get", NODE]).code == 1, "a plan touches nothing");
    // Do it, and wait.
    let written = put_waiting(&agent, &node(&nic0(), &json!({}))).expect_done(&["put"]);
    assert_eq!(written, format!("{NODE}: CONFIGURED nic0 ATTACHED\n"));
    nic.passes_all_but(5001, &[]);
    let shown = agent.ask(&["nodes"]);
    for word in ["vpp1", "CONFIGURED", "nic0", "ATTACHED", "nic0~", "br-int", ENTITY_0, "10.199.0.2/24"] {
        assert!(shown.contains(word), "{word} is not in {shown}");
    }
    let plan = agent.ask(&["node", "plan", "vpp1"]);
    assert!(
        plan.contains("nic0 behind the bridge: nothing to do") && plan.contains("nic0 back: rename nic0~ to nic0 (interruption:"),
        "{plan}"
    );
    let (steps, _) = told(&agent);
    assert_eq!(steps.first().map(String::as_str), Some("nic0: write the configuration of nic0 into the journal: done"), "{steps:#?}");
    assert!(steps.iter().any(|step| step == "nic0: rename nic0 to nic0~ and free the name nic0: done"), "{steps:#?}");
    assert!(agent.ask(&["history"]).contains("node  "), "the table tells it too");
    let count = |word: &str| agent.metric(word);
    assert!((count("node_attached_total") - 1.0).abs() < 0.1 && (count("node_nics") - 1.0).abs() < 0.1);
    // The embedded store has the statuses too.
    assert_eq!(serde_json::from_str::<Value>(&agent.ask(&["get", STATUS])).expect("JSON")["state"], "CONFIGURED");
    assert!(agent.ask(&["ls", ENTITIES]).contains(&format!("{ENTITIES}default/{ENTITY_0}")));
    // Take it back, and wait.
    let removed = agent.ask(&["del", NODE, "--wait", "--timeout", "120s"]);
    assert_eq!(removed, format!("{NODE}: removed\n"));
    assert!(!is_behind(&host, "nic0"), "it is not removed before the NIC is back");
    let (steps, drift) = told(&agent);
    assert_eq!(
        (steps.last().map(String::as_str), drift),
        (Some("nic0: drop the journal of nic0: done"), Vec::<String>::new()),
        "{steps:#?}"
    );
    assert!((count("node_detached_total") - 1.0).abs() < 0.1 && count("node_nics") < 0.1);
    nic.passes_all_but(5002, &[]);
}

#[test]
fn a_waiting_write_tells_what_is_in_the_way_and_exits_so() {
    let host = Host::new();
    let _nic = host.add_nic("nic0", 0);
    let _ovs = host.start_ovs();
    let agent = agent(&host).started();
    // What is waited for may be the next thing that the user does: no failure.
    let pending = put_waiting(&agent, &node(&json!([{"name": "nic9"}]), &json!({})));
    assert_eq!(pending.code, 0, "{}{}", pending.stdout, pending.stderr);
    assert!(pending.stdout.contains("PENDING LINK_MISSING: ") && pending.stdout.contains("nic9"), "{}", pending.stdout);
    let shown = agent.ask(&["node", "plan", "vpp1"]);
    assert!(shown.contains("nothing is done: ") && shown.contains("nic9"), "{shown}");
    let loopback = put_waiting(&agent, &node(&json!([{"name": "lo"}]), &json!({})));
    assert_eq!((loopback.code, loopback.stdout.contains("FAILED NIC_UNSUITABLE: ")), (1, true), "{}", loopback.stdout);
    let invalid = put_waiting(&agent, &node(&json!([{}]), &json!({})));
    assert_eq!((invalid.code, invalid.stdout.contains("INVALID BAD_SELECTION: ")), (1, true), "{}", invalid.stdout);
    // Who asks for what cannot be done is told so.
    let refused = |arguments: &[&str], words: &str| {
        let answer = agent.vnfctl(arguments);
        assert_eq!((answer.code, answer.stderr.contains(words)), (1, true), "{arguments:?}: {}{}", answer.stdout, answer.stderr);
    };
    for what in ["confirm", "rollback"] {
        refused(&["node", what, "nobody"], "no node `nobody` is configured");
    }
    let foreign = json!({"name": "vpp1", "namespace": "else", "interfaces": nic0()}).to_string();
    let foreign = put_waiting(&agent, &foreign);
    assert_eq!((foreign.code, foreign.stdout.contains("UNIMPLEMENTED")), (1, true), "{}", foreign.stdout);
    for what in ["confirm", "rollback"] {
        refused(&["node", what, "vpp1"], "another host's");
    }
    assert!(agent.ask(&["node", "plan", "vpp1"]).contains("another host's"));
    let pending = put_waiting(&agent, &node(&json!([{"name": "nic9"}]), &json!({})));
    assert_eq!(pending.code, 0);
    refused(&["node", "confirm", "vpp1"], "nothing is to be confirmed");
    refused(&["node", "rollback", "vpp1"], "nothing is to be given back");
    // Several keys at once, by a file.
    let file = host.path("wishes.yaml");
    let value: Value = serde_json::from_str(&node(&nic0(), &json!({}))).expect("JSON");
    std::fs::write(&file, value.to_string()).expect("a file");
    let applied = agent.ask(&["apply", "-f", &file.display().to_string(), "--wait", "--timeout", "120s"]);
    assert_eq!(applied, format!("{NODE}: CONFIGURED nic0 ATTACHED\n"));
    assert!(agent.ask(&["node", "confirm", "vpp1"]).contains("confirmed already"));
    agent.ask(&["node", "rollback", "vpp1"]);
    eventually("it is given back", || !is_behind(&host, "nic0"));
    eventually("and told so", || agent.ask(&["nodes"]).contains("given back on request"));
    // A value that says the same is a new wish.
    assert_eq!(put_waiting(&agent, &node(&nic0(), &json!({}))).code, 0);
    assert!(is_behind(&host, "nic0"));
}

/// What the database says of both ports, without what a change of the wish may change.
fn ports(ovs: &Ovs<'_>) -> Vec<String> {
    let identity = |name: &str| {
        let of_port = ovs.column("Port", name, "_uuid");
        format!("{name} {of_port} {} {}", ovs.column("Interface", name, "_uuid"), ovs.column("Interface", name, "ofport"))
    };
    ["nic0", "nic0~"].map(identity).to_vec()
}

#[test]
fn another_text_of_the_wish_changes_what_is_told_and_moves_nothing() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).on_etcd().started();
    assert_eq!(put_waiting(&agent, &node(&nic0(), &json!({"app": "db"}))).code, 0);
    ovs.vsctl("set Port nic0 external_ids:somebody=else");
    let before = ports(&ovs);
    let indexes = || ["nic0", "nic0~"].map(|name| host.run(&format!("ip -o link show dev {name}")).split(':').next().map(str::to_owned));
    let index = indexes();
    let steps = told(&agent).0;
    // When the write was waited for, what stands beside the ports is that of the wish.
    let beside = |words: &[&str]| {
        let ids = ovs.column("Port", "nic0", "external_ids");
        assert!(words.iter().all(|word| ids.contains(word)), "{words:?} are not in {ids}");
    };
    let entity = |name: &str, words: &Value| {
        eventually_eq(&format!("the entity {name}"), words, || {
            let value = etcd.get(&format!("{PREFIX}{ENTITIES}default/{name}")).unwrap_or_default();
            json!([value["labels"], value["ips"]])
        });
    };
    beside(&[&format!("default/{ENTITY_0}"), "10.199.0.2", "somebody=else"]);
    entity(ENTITY_0, &json!([{"app": "db"}, ["10.199.0.2"]]));
    let both = json!([{"name": "nic0", "ips": ["10.199.0.2", "fd99:199::2"]}]);
    assert_eq!(put_waiting(&agent, &node(&both, &json!({"app": "web", "tier": "1"}))).code, 0);
    beside(&[&format!("default/{ENTITY_0}"), "10.199.0.2,fd99:199::2", "somebody=else"]);
    entity(ENTITY_0, &json!([{"app": "web", "tier": "1"}, ["10.199.0.2", "fd99:199::2"]]));
    // Without its name the interface is another entity; the NIC is the same.
    assert_eq!(put_waiting(&agent, &node(&json!([{"ips": ["fd99:199::2"]}]), &json!({}))).code, 0);
    beside(&["default/vpp1", "fd99:199::2", "somebody=else"]);
    entity("vpp1", &json!([{}, ["fd99:199::2"]]));
    eventually("the old entity is gone", || etcd.get(&format!("{PREFIX}{ENTITIES}default/{ENTITY_0}")).is_none());
    // A value that cannot be used leaves all as it is, the entity too.
    let invalid = put_waiting(&agent, "{");
    assert_eq!((invalid.code, invalid.stdout.contains("INVALID BAD_ENCODING")), (1, true), "{}", invalid.stdout);
    entity("vpp1", &json!([{}, ["fd99:199::2"]]));
    assert_eq!((ports(&ovs), told(&agent).0), (before, steps));
    assert_eq!(indexes(), index);
    nic.passes_all_but(5001, &[]);
}

#[test]
fn what_others_change_is_repaired_counted_and_told() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let agent = agent(&host).started();
    assert_eq!(put_waiting(&agent, &node(&nic0(), &json!({}))).code, 0);
    ovs.vsctl("del-port br-int nic0");
    eventually("it is repaired and counted", || agent.metric("node_drift_repaired_total") > 0.5);
    nic.passes_all_but(5001, &[]);
    let (steps, drift) = told(&agent);
    // Which of them is seen first, the moment decides.
    assert!(drift.iter().any(|what| what.starts_with("nic0: ") && (what.contains("port") || what.contains("flows"))), "{drift:#?}");
    assert!(steps.iter().any(|step| step.starts_with("nic0: make the ports nic0~ and nic0")), "{steps:#?}");
    assert!((agent.metric("node_attached_total") - 1.0).abs() < 0.1, "a repair is no second attachment");
}

#[test]
fn a_nic_whose_wish_is_gone_is_told_of_until_it_is_given_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let agent = agent(&host).started();
    assert_eq!(put_waiting(&agent, &node(&nic0(), &json!({}))).code, 0);
    ovs.signal_database(Signal::SIGSTOP);
    agent.ask(&["del", NODE]);
    eventually("it says why it is not back yet", || agent.ask(&["nodes"]).contains("OVS_UNREACHABLE"));
    assert!(agent.metric("node_failures_total") > 0.5);
    eventually("the host is reachable meanwhile", || host.pings("net", "10.199.0.2"));
    ovs.signal_database(Signal::SIGCONT);
    eventually("it is back, and nothing more is told", || !is_behind(&host, "nic0") && agent.ask(&["-o", "json", "nodes"]).trim() == "[]");
    nic.passes_all_but(5001, &[]);
}

/// Hears of entities until its stream ends.
struct Watcher {
    heard: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    fn start(socket: PathBuf) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ears = heard.clone();
        let work = async move {
            let channel = Endpoint::from_shared(format!("unix:{}", socket.display())).expect("an address").connect().await;
            let mut client = NodeServiceClient::new(channel.expect("the agent serves"));
            let mut stream = client.watch_entities(pb::WatchEntitiesRequest {}).await.expect("a stream").into_inner();
            while let Ok(Some(event)) = stream.message().await {
                let entity = event.entity.clone().unwrap_or_default();
                let labels: Vec<String> = entity.labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect();
                let text = match event.kind() {
                    Kind::Set => format!("set {} {}", entity.name, labels.join(",")),
                    Kind::Removed => format!("removed {}", entity.name),
                    Kind::Synced => "synced".to_owned(),
                };
                ears.lock().expect("no panic").push(text.trim().to_owned());
            }
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { heard, thread: std::thread::spawn(move || runtime().block_on(work)) }
    }

    fn hears(&self, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        eventually_eq("what is heard of entities", &expected, || self.heard.lock().expect("no panic").clone());
    }

    fn ends(self) {
        self.thread.join().expect("the stream ends with the agent");
    }
}

fn write(etcd: &Etcd<'_>, value: &str) {
    etcd.put_key(&format!("{PREFIX}{NODE}"), value.as_bytes());
}

#[test]
fn who_watches_entities_misses_none_and_is_told_none_that_is_not() {
    let host = Host::new();
    let (_nic, _second) = (host.add_nic("nic0", 0), host.add_nic("nic1", 1));
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let mut agent = agent(&host).on_etcd().started();
    let keys = |label: &str| etcd.keys(&format!("/vnf-agent/{label}/{ENTITIES}"));
    let watcher = Watcher::start(agent.socket());
    watcher.hears(&["synced"]);
    write(&etcd, &node(&nic0(), &json!({"app": "db"})));
    watcher.hears(&["synced", "set vpp1-ac6cf app=db"]);
    write(&etcd, &node(&nic0(), &json!({"app": "web"})));
    watcher.hears(&["synced", "set vpp1-ac6cf app=db", "set vpp1-ac6cf app=web"]);
    // An agent that comes back says first what there is, and takes nothing away meanwhile.
    agent.stop();
    watcher.ends();
    etcd.put_key(&format!("{PREFIX}{ENTITIES}default/stale"), b"{}");
    etcd.put_key(&format!("/vnf-agent/vpp10/{ENTITIES}default/other"), b"{}");
    agent.start();
    let watcher = Watcher::start(agent.socket());
    watcher.hears(&["set vpp1-ac6cf app=web", "synced"]);
    eventually_eq("only what is wished is left", &vec![format!("{PREFIX}{ENTITIES}default/{ENTITY_0}")], || keys("vpp1"));
    assert_eq!(keys("vpp10").len(), 1, "another agent's are not touched");
    let two = json!([{"name": "nic0"}, {"name": "nic1"}]);
    write(&etcd, &node(&two, &json!({"app": "web"})));
    eventually("the second one is there", || keys("vpp1").contains(&format!("{PREFIX}{ENTITIES}default/{ENTITY_1}")));
    // The wish goes while the agent is dead: whoever watches again hears of nothing but the end of the list.
    agent.kill();
    watcher.ends();
    etcd.client(async |mut client| client.delete(format!("{PREFIX}{NODE}"), None).await.map(drop)).expect("etcd deletes");
    agent.start();
    let watcher = Watcher::start(agent.socket());
    watcher.hears(&["synced"]);
    eventually_eq("no reference is left", &Vec::<String>::new(), || keys("vpp1"));
    eventually("both are given back", || !is_behind(&host, "nic0") && !is_behind(&host, "nic1"));
    // And one that goes before the eyes of the watcher.
    write(&etcd, &node(&nic0(), &json!({})));
    watcher.hears(&["synced", "set vpp1-ac6cf"]);
    etcd.client(async |mut client| client.delete(format!("{PREFIX}{NODE}"), None).await.map(drop)).expect("etcd deletes");
    watcher.hears(&["synced", "set vpp1-ac6cf", "removed vpp1-ac6cf"]);
}
