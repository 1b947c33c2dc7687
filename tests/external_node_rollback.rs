//! What was given back on request stays so until the wish changes, whatever becomes of the agent meanwhile.

mod nic_support;
mod node_support;
mod support;

use nic_support::rig::{Rest, Rig};
use node_support::*;
use serde_json::json;
use support::{Agent, Etcd, Host, Ovs, eventually, eventually_ok};

fn wait_told(agent: &Agent<'_>) {
    eventually_ok("it is told that it was given back on request", || {
        let told = agent.ask(&["nodes"]);
        if told.contains("was given back on request") { Ok(()) } else { Err(told) }
    });
}

#[test]
fn it_outlives_the_agent_and_ends_with_the_wish() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let mut etcd = host.start_etcd();
    let mut agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    agent.ask(&["node", "rollback", "vpp1"]);
    wait_told(&agent);
    wait_plain(&host, "nic0", &before);
    for killed in [false, true] {
        if killed {
            agent.kill();
            agent.start();
        } else {
            agent.restart();
        }
        wait_told(&agent);
        assert!(!is_behind(&host, "nic0"), "killed: {killed}");
    }
    // Another listing of the same is no other wish.
    etcd.kill();
    etcd.start();
    agent.ask(&["resync"]);
    wait_told(&agent);
    assert!(!is_behind(&host, "nic0"));
    // Written again while the agent is away, it is another one.
    agent.stop();
    wish(&etcd, &json!([{"name": "nic0"}]));
    agent.start();
    wait_attached(&etcd, &["nic0"]);
    // So is one that was away.
    agent.ask(&["node", "rollback", "vpp1"]);
    wait_told(&agent);
    wait_plain(&host, "nic0", &before);
    unwish(&etcd);
    eventually("nothing more is told", || status(&etcd).is_null());
    agent.restart();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
}

/// The agent is killed instead of writes on the way back. From when the request is on disk on, whoever starts again goes on, and stays there.
#[test]
fn it_is_finished_by_the_next_agent() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    let request = host.outside(&rig.agent.state_dir().join("rollback.json").display().to_string());
    let mut finished = 0;
    for n in (1..).step_by(3) {
        assert!(!rig.go(Rest::Attached, 0));
        rig.agent.set_environment(rig.last_write.of_agent(n));
        rig.agent.spawn();
        let asked = eventually_ok("it is asked for, or killed before", || {
            let ended = rig.agent.has_ended();
            let answer = (!ended).then(|| rig.agent.vnfctl(&["node", "rollback", "vpp1"]));
            if ended || answer.as_ref().is_some_and(|answer| answer.code == 0) {
                Ok(!ended)
            } else {
                Err(answer.map(|answer| answer.stderr))
            }
        });
        eventually_ok("killed, or given back", || {
            let plain = asked && rig.rest() == Some(Rest::Plain);
            if rig.agent.has_ended() || plain { Ok(()) } else { Err((rig.last_write.last(), rig.journal())) }
        });
        let killed = rig.agent.has_ended();
        if killed {
            _ = rig.agent.wait()
        } else {
            rig.agent.kill()
        }
        rig.agent.set_environment(Vec::new());
        let holds = request.exists();
        assert!(holds || killed, "what is given back is kept");
        assert!(holds || !asked, "what was answered is kept");
        rig.agent.start();
        if holds {
            finished += 1;
            rig.wait_rest(&[Rest::Plain], &format!("killed instead of write {n}, {}", rig.last_write.last()));
            wait_told(&rig.agent);
            assert_eq!(rig.rest(), Some(Rest::Plain));
            rig.assert_as_before(&format!("killed instead of write {n}"));
        } else {
            rig.wait_rest(&[Rest::Attached], "what was not taken down was not asked for");
        }
        rig.agent.kill();
        if !killed {
            break;
        }
    }
    assert!(finished >= 4, "{finished}");
    assert!(!rig.go(Rest::Attached, 0), "a new wish ends it");
    assert!(!request.exists());
}

/// A NIC that is attached, and then an agent with another bridge in its configuration.
fn behind_the_former_bridge(host: &Host) -> (Ovs<'_>, Etcd<'_>, Agent<'_>) {
    let (ovs, etcd) = (host.start_ovs(), host.start_etcd());
    let mut first = agent(host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    first.stop();
    drop(first);
    let second = agent(host).with(&["--ovs-bridge", "br-other"]).started();
    (ovs, etcd, second)
}

/// Another bridge in the configuration is for what comes: what stands behind the old one is kept there, and given back from there.
#[test]
fn another_bridge_in_the_configuration_leaves_nothing_on_the_old_one() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let (ovs, etcd, second) = behind_the_former_bridge(&host);
    eventually("it is said", || second.log().contains("NICs stand behind another bridge"));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    unwish(&etcd);
    // The old bridge is the agent's until the journal is gone, which is the last of its steps.
    wait_given_back(&host, &etcd, "nic0", &before);
    assert_eq!(ovs.vsctl("list-ports br-int").trim(), "");
    // Before that another wish would be for what is still there.
    eventually("it turns to the other one", || second.log().contains("the configured one is used from now on"));
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    assert!(ovs.vsctl("list-ports br-other").contains("nic0~"));
    nic.passes_all_but(5002, &[]);
}

/// Nothing keeps the old bridge in use once no NIC stands behind it, although the wish for one is still there.
#[test]
fn another_bridge_is_used_after_a_rollback() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let (ovs, etcd, second) = behind_the_former_bridge(&host);
    wait_attached(&etcd, &["nic0"]);
    second.ask(&["node", "rollback", "vpp1"]);
    wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", "given back on request");
    wait_plain(&host, "nic0", &before);
    eventually("it turns to the other one", || second.log().contains("the configured one is used from now on"));
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    assert!(ovs.vsctl("list-ports br-other").contains("nic0~") && !ovs.vsctl("list-ports br-int").contains("nic0"));
    nic.passes_all_but(5001, &[]);
}
