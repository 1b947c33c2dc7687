//! Two agents with one NIC between them: it has one of them at a time, and the other one says so and touches nothing.

mod node_support;
mod support;

use std::fs;

use node_support::*;
use serde_json::{Value, json};
use support::{Agent, Etcd, Host, Ovs, eventually, eventually_ok};

const NODE_2: &str = "external/config/v1/node/vpp2";
const HAS_IT: &str = "has put it behind the bridge br-int";

/// The other agent: another label, another state directory, another store.
fn other(host: &Host) -> Agent<'_> {
    host.agent().label("vpp2").with(&["--ovs-datapath", "netdev"])
}

fn wish_of_other(agent: &Agent<'_>, wanted: bool) {
    let value = json!({"name": "vpp2", "interfaces": [{"name": "nic0"}]}).to_string();
    let answer = if wanted { agent.vnfctl_with(&["put", NODE_2, "-"], value.as_bytes()) } else { agent.vnfctl(&["del", NODE_2]) };
    assert_eq!(answer.code, 0, "{}", answer.stderr);
}

fn wait_nodes(agent: &Agent<'_>, words: &str) {
    eventually_long(&format!("the other agent tells {words}"), || {
        let told = agent.vnfctl(&["nodes"]).stdout;
        if told.contains(words) { Ok(()) } else { Err(told) }
    });
}

/// Everything that a second agent could take from the first: the port's link and both rows with their numbers, the addresses, the flows, the journal's steps.
fn stands(host: &Host, ovs: &Ovs<'_>, etcd: &Etcd<'_>, first: &Agent<'_>) -> Value {
    let rows = ["nic0", "nic0~"].map(|name| ovs.column("port", name, "_uuid") + &ovs.column("port", name, "external_ids"));
    let (of_host, of_uplink, port) = identity(host, &status(etcd), "nic0");
    json!([rows, of_host, of_uplink, port, index(host, "nic0~"), shape(host, "nic0"), repairs(first)])
}

/// A journal of its own for the NIC of another agent, in whatever state it was left: nothing is done with it.
#[test]
fn a_journal_for_the_nic_of_another_agent_moves_nothing() {
    let host = Host::new();
    let Moved { nic, before, ovs, etcd, agent: first } = Moved::start(&host, &json!([{"name": "nic0"}]));
    eventually("it is confirmed", || first.log().contains("confirmed: the host"));
    let journal: Value = serde_json::from_slice(&fs::read(first.state_dir().join("nic/nic0.json")).expect("a journal")).expect("JSON");
    let stood = stands(&host, &ovs, &etcd, &first);
    let mut second = other(&host).started();
    wish_of_other(&second, true);
    wait_nodes(&second, &format!("the agent with label `vpp1` {HAS_IT}"));
    for (intent, confirmed, wanted) in
        [("ATTACHING", false, true), ("ATTACHED", true, true), ("DETACHING", true, true), ("ATTACHED", true, false)]
    {
        wish_of_other(&second, wanted);
        second.stop();
        let mut own = journal.clone();
        own["intent"] = intent.into();
        own["confirmed"] = confirmed.into();
        own["attachment"] = "another".into();
        let path = second.state_dir().join("nic/nic0.json");
        fs::write(&path, own.to_string()).expect("a file");
        second.start();
        eventually(&format!("the journal {intent} is put aside"), || !path.exists());
        assert!(path.with_extension("aside").exists(), "{intent}");
        if wanted {
            wait_nodes(&second, HAS_IT);
        }
        nic.passes_all_but(5001, &[]);
        assert_eq!(stands(&host, &ovs, &etcd, &first), stood, "{intent} {confirmed} {wanted}");
    }
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// Whoever comes second gets it when the first one has given it back.
#[test]
fn the_second_one_waits_until_the_first_gives_it_back() {
    let host = Host::new();
    let Moved { nic, before, ovs, etcd, agent: mut first } = Moved::start(&host, &json!([{"name": "nic0"}]));
    let second = other(&host).started();
    wish_of_other(&second, true);
    wait_nodes(&second, HAS_IT);
    // Nor is it up for grabs while its agent is away.
    first.stop();
    host.run("ip address add 10.199.0.77/24 dev nic0");
    wait_nodes(&second, HAS_IT);
    nic.passes_all_but(5001, &[]);
    host.run("ip address del 10.199.0.77/24 dev nic0");
    first.start();
    wait_attached(&etcd, &["nic0"]);
    unwish(&etcd);
    wait_nodes(&second, "ATTACHED");
    assert_eq!(ovs.column("port", "nic0", "external_ids:vnf-agent-owner"), "vpp2");
    eventually("the first one has let go", || status(&etcd).is_null());
    nic.passes_all_but(5002, &[]);
    wish_of_other(&second, false);
    wait_plain(&host, "nic0", &before);
}

/// Both begin at the same time, so both may have written a journal before one of them has its ports.
#[test]
fn both_begin_at_once() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let (_first, second) = (agent(&host).started(), other(&host).started());
    for round in 0..5 {
        wish(&etcd, &json!([{"name": "nic0"}]));
        wish_of_other(&second, true);
        let owner = eventually_ok("one of them has it, and the other one knows", || {
            let (of_first, of_second) = (status(&etcd), second.vnfctl(&["nodes"]).stdout);
            let first_has = interface(&of_first, "nic0")["phase"] == "ATTACHED";
            match (first_has, of_second.contains("ATTACHED")) {
                (true, false) if of_second.contains(HAS_IT) => Ok("vpp1"),
                (false, true) if of_first.to_string().contains(HAS_IT) => Ok("vpp2"),
                _ => Err(format!("round {round}: {of_first} {of_second}")),
            }
        });
        assert_eq!(ovs.column("port", "nic0", "external_ids:vnf-agent-owner"), owner);
        nic.passes_all_but(5001 + round, &[]);
        // The one that waits goes first, so that it does not get it.
        if owner == "vpp1" {
            wish_of_other(&second, false);
            unwish(&etcd);
        } else {
            unwish(&etcd);
            wish_of_other(&second, false);
        }
        eventually_long("nobody has it", || {
            let told = [status(&etcd).to_string(), second.vnfctl(&["nodes"]).stdout];
            if told[0] == "null" && !told[1].contains("vpp2") { Ok(()) } else { Err(told) }
        });
        wait_plain(&host, "nic0", &before);
    }
}

/// Ports of one's own label of which no journal tells any more are one's own: they are taken up by who wishes the NIC, and the NIC comes back when nobody does.
#[test]
fn what_a_lost_journal_leaves_is_cleaned() {
    let host = Host::new();
    let nics = [host.add_nic("nic0", 0), host.add_nic("nic1", 1)];
    let before = settled_shape(&host, "nic0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let mut agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    let stands = identity(&host, &wait_attached(&etcd, &["nic0"]), "nic0");
    let lose = |agent: &mut Agent<'_>| {
        agent.stop();
        fs::remove_dir_all(agent.state_dir()).expect("the folder");
    };
    lose(&mut agent);
    agent.start();
    assert_eq!(identity(&host, &wait_attached(&etcd, &["nic0"]), "nic0"), stands);
    lose(&mut agent);
    wish(&etcd, &json!([{"name": "nic1"}]));
    agent.start();
    wait_plain(&host, "nic0", &before);
    wait_attached(&etcd, &["nic1"]);
    assert!(!ovs.vsctl("list-ports br-int").contains("nic0"));
    nics.iter().zip([5001, 5002]).for_each(|(nic, port)| nic.passes_all_but(port, &[]));
}

/// Nor does anybody have to wish a node: what an agent has lost is given back, also when Open vSwitch comes later or another bridge is configured by now.
#[test]
fn what_a_lost_journal_leaves_is_cleaned_without_a_wish() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let mut ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let attach_and_lose = |agent: &mut Agent<'_>| {
        agent.start();
        wish(&etcd, &json!([{"name": "nic0"}]));
        wait_attached(&etcd, &["nic0"]);
        agent.stop();
        fs::remove_dir_all(agent.state_dir()).expect("the folder");
        unwish(&etcd);
    };
    let is_given_back = |ovs: &Ovs<'_>, when: &str| {
        wait_plain(&host, "nic0", &before);
        eventually(&format!("no port is left {when}"), || !ovs.vsctl("list-ports br-int").contains("nic0"));
        nic.passes_all_but(5001, &[]);
    };
    let mut first = agent(&host);
    attach_and_lose(&mut first);
    first.start();
    is_given_back(&ovs, "at once");
    first.stop();
    attach_and_lose(&mut first);
    ovs.kill_database();
    first.start();
    first.wait_ready();
    ovs.start_database();
    is_given_back(&ovs, "when Open vSwitch came later");
    first.stop();
    attach_and_lose(&mut first);
    drop(first);
    let _other_bridge = agent(&host).with(&["--ovs-bridge", "br-new"]).started();
    is_given_back(&ovs, "by who has another bridge");
    assert_eq!(ovs.vsctl("list-br"), "br-int", "nobody wishes another one");
}
