//! What Antrea's own tests prove of its external nodes, as cases against the real agent and a real Open vSwitch: the unit tests of its agent and of
//! its central controller as far as they speak of something that can be seen from outside, and its end-to-end test.

mod node_support;
mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};

use node_support::{NODE, agent, is_behind};
use serde_json::{Value, json};
use support::agent::Answer;
use support::etcd::PREFIX;
use support::{Agent, Etcd, Host, NETWORK, Nic, Ovs, eventually, eventually_eq, eventually_ok};

const ENTITIES: &str = "external/status/v1/entity/default/";

fn node(interfaces: &Value) -> String {
    json!({"name": "vpp1", "interfaces": interfaces}).to_string()
}

fn put(agent: &Agent<'_>, interfaces: &Value) -> Answer {
    agent.vnfctl_with(&["put", NODE, "-", "--wait", "--timeout", "120s"], node(interfaces).as_bytes())
}

fn configured(agent: &Agent<'_>, interfaces: &Value) {
    let answer = put(agent, interfaces);
    assert!(answer.code == 0 && answer.stdout.contains("CONFIGURED"), "{}{}", answer.stdout, answer.stderr);
}

fn entities(etcd: &Etcd<'_>) -> Vec<String> {
    etcd.keys(&format!("{PREFIX}{ENTITIES}")).iter().map(|key| key.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

fn steps(agent: &Agent<'_>) -> usize {
    let of_nodes = |pass: &&Value| pass["sequence"] == 0;
    agent.history().iter().filter(of_nodes).map(|pass| pass["steps"].as_array().map_or(0, Vec::len)).sum()
}

/// Default routes, each with its device; and the addresses of a device.
fn default_routes(host: &Host) -> Vec<String> {
    let routes: Vec<Value> = serde_json::from_str(&host.run("ip -j route show default")).expect("JSON");
    routes.iter().map(|route| route["dev"].as_str().unwrap_or_default().to_owned()).collect()
}

fn addresses(host: &Host, device: &str) -> Vec<String> {
    let links: Vec<Value> = serde_json::from_str(&host.run(&format!("ip -4 -j address show dev {device}"))).expect("JSON");
    let all = links.iter().flat_map(|link| link["addr_info"].as_array().cloned().unwrap_or_default());
    all.map(|address| address["local"].as_str().unwrap_or_default().to_owned()).collect()
}

/// End to end, `testExternalNode` and its teardown.
#[test]
fn the_node_appears_with_one_default_route_on_the_same_name_and_goes_without_a_trace() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip route add default via 10.199.0.1 dev nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    configured(&agent, &json!([{"name": "nic0", "ips": ["10.199.0.2"]}]));
    eventually_eq("the entity", &vec!["vpp1-ac6cf".to_owned()], || entities(&etcd));
    let port = ovs.vsctl("list port nic0");
    for id in ["default/vpp1-ac6cf", "10.199.0.2", "nic0~"] {
        assert!(port.contains(id), "{id} is not in {port}");
    }
    assert_eq!((default_routes(&host), addresses(&host, "nic0")), (vec!["nic0".to_owned()], vec!["10.199.0.2".to_owned()]));
    nic.passes_all_but(5001, &[]);
    agent.ask(&["del", NODE, "--wait", "--timeout", "120s"]);
    eventually_eq("no entity is left", &Vec::<String>::new(), || entities(&etcd));
    assert_eq!((default_routes(&host), addresses(&host, "nic0")), (vec!["nic0".to_owned()], vec!["10.199.0.2".to_owned()]));
    assert!(!is_behind(&host, "nic0") && !ovs.vsctl("list-ports br-int").contains("nic0"));
    nic.passes_all_but(5002, &[]);
}

/// Whether one of the ways that a [`Nic`] names passes now. Each attempt has a port of its own: the server of one that is stopped holds its port for a while.
fn passes(host: &Host, way: &str) -> bool {
    static PORT: AtomicU16 = AtomicU16::new(6000);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let address = way.rsplit(' ').next().and_then(|address| address.parse().ok()).expect("an address");
    let (from, to) = if way.contains(" in ") { (NETWORK, "") } else { ("", NETWORK) };
    if way.starts_with("tcp") { host.tcp(from, to, SocketAddr::new(address, port)) } else { host.pings(from, &address.to_string()) }
}

/// Waits until these are stopped: the switch may take a moment to look at what it has cached. Then everything else passes, and they do not.
fn stops_only(host: &Host, nic: &Nic<'_>, port: u16, ways: &[String]) {
    for way in ways {
        eventually(&format!("{way} is stopped"), || !passes(host, way));
    }
    nic.passes_all_but(port, ways);
}

fn blocked(nic: &Nic<'_>, words: &[&str]) -> Vec<String> {
    nic.ways().into_iter().filter(|way| words.iter().all(|word| way.contains(word)) && way.contains("10.199.")).collect()
}

/// End to end, `testANPOnLinuxVM`: a drop of TCP and of ICMP that comes in, and of TCP that goes out, in the place that is meant for policies.
#[test]
fn a_policy_in_its_table_stops_what_it_names_and_nothing_else() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let _etcd = host.start_etcd();
    let agent = agent(&host).started();
    configured(&agent, &json!([{"name": "nic0"}]));
    let port = |name: &str| ovs.column("Interface", name, "ofport");
    let (inside, outside) = (port("nic0"), port("nic0~"));
    let cases = [
        (format!("in_port={outside},tcp"), blocked(&nic, &["tcp in "])),
        (format!("in_port={outside},icmp"), blocked(&nic, &["ping in "])),
        (format!("in_port={inside},tcp,nw_dst=10.199.0.1"), blocked(&nic, &["tcp out "])),
    ];
    for (number, (policy, ways)) in (0u16..).zip(cases) {
        assert_eq!(ways.len(), 1, "{policy}");
        nic.passes_all_but(5000 + 10 * number, &[]);
        ovs.ofctl(&format!("add-flow br-int table=203,priority=100,{policy},actions=drop"));
        stops_only(&host, &nic, 5001 + 10 * number, &ways);
        ovs.ofctl("del-flows br-int table=203,ip");
        nic.passes_all_but(5002 + 10 * number, &[]);
    }
}

/// `TestReconcile`, with two interfaces, two rules, and a third whose direction is misspelt (which Antrea takes for `egress`).
#[test]
fn rules_that_bypass_policies_are_in_force_for_all_interfaces_and_a_misspelt_one_is_named() {
    let host = Host::new();
    let nics = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
    let ovs = host.start_ovs();
    let _etcd = host.start_etcd();
    let rule = |direction: &str, protocol: &str, port: u16| {
        format!(
            "[[external_node.policy_bypass_rules]]\ndirection = \"{direction}\"\nprotocol = \"{protocol}\"\ncidr = \"10.199.0.0/16\"\nport = {port}\n"
        )
    };
    let file = host.path("agent.toml");
    std::fs::write(&file, rule("ingress", "tcp", 5007) + &rule("egress", "tcp", 5008) + &rule("engress", "tcp", 5009)).expect("a file");
    let agent = agent(&host).with(&["--config", &file.display().to_string()]).started();
    assert!(agent.log().contains("engress"), "the rule is named in the log");
    configured(&agent, &json!([{"name": "nic0"}, {"name": "nic1"}]));
    ovs.ofctl("add-flow br-int table=203,priority=100,ip,actions=drop");
    for nic in &nics {
        let all = blocked(nic, &[]);
        let but = |way: &[&str]| all.iter().filter(|other| !blocked(nic, way).contains(other)).cloned().collect::<Vec<_>>();
        stops_only(&host, nic, 5009, &all);
        stops_only(&host, nic, 5007, &but(&["tcp in "]));
        stops_only(&host, nic, 5008, &but(&["tcp out "]));
    }
}

/// `TestCreateOVSPortsAndFlowsFailure`.
#[test]
fn ports_that_cannot_be_made_leave_the_nic_as_it_was_and_others_ports_alone() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    // Somebody else's row has the uplink's name.
    ovs.add_bridge("br-int");
    ovs.vsctl("--no-wait add-port br-int nic0~");
    let before = addresses(&host, "nic0");
    let agent = agent(&host).started();
    let answer = put(&agent, &json!([{"name": "nic0"}]));
    assert_eq!((answer.code, answer.stdout.contains("FAILED NIC_UNSUITABLE")), (1, true), "{}{}", answer.stdout, answer.stderr);
    assert!(answer.stdout.contains("the bridge br-int of Open vSwitch has a port nic0~"), "{}", answer.stdout);
    eventually_eq("its name and addresses are as before", &(before, false), || (addresses(&host, "nic0"), is_behind(&host, "nic0")));
    assert!(ovs.vsctl("list-ports br-int").contains("nic0~"), "the row of somebody else stands");
    assert_eq!(entities(&etcd), Vec::<String>::new());
    nic.passes_all_but(5001, &[]);
    ovs.vsctl("--no-wait del-port br-int nic0~");
    eventually("it is attached when nothing stands against it", || agent.ask(&["nodes"]).contains("CONFIGURED"));
    nic.passes_all_but(5002, &[]);
}

fn identities(ovs: &Ovs<'_>) -> Vec<String> {
    let of = |name: &str| format!("{} {}", ovs.column("Port", name, "_uuid"), ovs.column("Interface", name, "ofport"));
    ["nic0", "nic0~"].map(of).to_vec()
}

/// `TestParseHostInterfaceConfig` (restored), `TestAddInterface` (skip unchanged) and `TestEnqueueExternalNodeUpdate` (same spec not enqueued).
#[test]
fn a_restart_or_the_same_wish_again_takes_no_step() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let mut agent = agent(&host).started();
    let wish = json!([{"name": "nic0", "ips": ["10.199.0.2"]}]);
    configured(&agent, &wish);
    let before = (identities(&ovs), ovs.ofctl("--no-stats --no-names dump-flows br-int"));
    let taken = steps(&agent);
    configured(&agent, &wish);
    assert_eq!(steps(&agent), taken, "{:#?}", agent.history());
    agent.restart();
    eventually("it is taken up again", || agent.ask(&["nodes"]).contains("CONFIGURED"));
    assert_eq!(steps(&agent), 0, "{:#?}", agent.history());
    assert_eq!((identities(&ovs), ovs.ofctl("--no-stats --no-names dump-flows br-int")), before);
    eventually_eq("the entity is told", &vec!["vpp1-ac6cf".to_owned()], || entities(&etcd));
    nic.passes_all_but(5001, &[]);
}

/// `TestUpdateExternalNode`: a different interface is added, then the old one is given back. `TestDeleteExternalNode`: two are.
#[test]
fn another_interface_takes_over_and_two_are_removed_together() {
    let host = Host::new();
    let (first, second) = (host.add_nic("nic0", 0), host.add_nic("nic1", 1));
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    configured(&agent, &json!([{"name": "nic0"}]));
    configured(&agent, &json!([{"name": "nic1"}]));
    eventually("the old one is given back", || !is_behind(&host, "nic0") && is_behind(&host, "nic1"));
    eventually_eq("its entity too", &vec!["vpp1-f21f6".to_owned()], || entities(&etcd));
    first.passes_all_but(5001, &[]);
    second.passes_all_but(5002, &[]);
    configured(&agent, &json!([{"name": "nic0"}, {"name": "nic1"}]));
    agent.ask(&["del", NODE, "--wait", "--timeout", "120s"]);
    assert!(!is_behind(&host, "nic0") && !is_behind(&host, "nic1"));
    assert_eq!(ovs.vsctl("list-ports br-int"), "");
    assert!(!ovs.ofctl("--no-stats dump-flows br-int").contains("table=201"), "no flow is left");
    eventually_eq("no entity is left", &Vec::<String>::new(), || entities(&etcd));
    first.passes_all_but(5003, &[]);
    second.passes_all_but(5004, &[]);
}

/// Of the central controller: `TestAddExternalNode` (without name, with name, several addresses), `TestUpdateExternalNode` (address, interface name).
#[test]
fn entities_are_called_and_changed_as_the_central_controller_does() {
    let host = Host::new();
    let _nic = host.add_nic("nic0", 0);
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    let cases = [
        (json!([{"ips": ["10.199.0.2"]}]), "vpp1", json!(["10.199.0.2"])),
        (json!([{"ips": ["10.199.0.2", "fd99:199::2"]}]), "vpp1", json!(["10.199.0.2", "fd99:199::2"])),
        (json!([{"name": "nic0", "ips": ["10.199.0.2"]}]), "vpp1-ac6cf", json!(["10.199.0.2"])),
        (json!([{"name": "nic0", "ips": ["fd99:199::2"]}]), "vpp1-ac6cf", json!(["fd99:199::2"])),
    ];
    for (wish, name, ips) in cases {
        configured(&agent, &wish);
        eventually_ok(&format!("the entity of {wish}"), || {
            let value = etcd.get(&format!("{PREFIX}{ENTITIES}{name}"));
            let as_wished = entities(&etcd) == [name] && value.as_ref().is_some_and(|value| value["ips"] == ips);
            if as_wished { Ok(()) } else { Err((entities(&etcd), value)) }
        });
    }
    assert!((agent.metric("node_attached_total") - 1.0).abs() < 0.1, "all with one handover");
}
