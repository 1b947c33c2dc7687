//! A host without the program `nft`: the uplink is kept from the host's own stack all the same, as the kernel is asked directly.

mod node_support;
mod support;

use std::os::unix::fs::symlink;

use node_support::*;
use serde_json::json;
use support::{Host, eventually};

/// All that the agent may find by name: what starts it in its host, and the tools of Open vSwitch.
const PROGRAMS: [&str; 4] = ["nsenter", "setpriv", "ovs-ofctl", "ovs-dpctl"];

/// The folder with these programs, for `PATH`.
fn programs(host: &Host) -> String {
    let folder = host.path("bin");
    std::fs::create_dir(&folder).expect("a folder");
    for program in PROGRAMS {
        let there = host.run(&format!("which {program}"));
        symlink(there.trim(), folder.join(program)).expect("a link");
    }
    folder.display().to_string()
}

#[test]
fn the_guard_needs_no_program() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let mut agent = agent(&host);
    agent.set_environment(vec![("PATH".to_owned(), programs(&host))]);
    agent.start();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    let guard = || host.run("nft list tables").lines().find(|line| line.contains("vnf_agent_nic_")).map(str::to_owned);
    let table = guard().expect("the guard of what is attached");
    assert!(table.ends_with(&format!("vnf_agent_nic_{}", index(&host, "nic0~"))), "{table}");
    nic.passes_all_but(5001, &[]);
    // Somebody else removes it.
    host.run(&format!("nft delete {table}"));
    eventually_long("the guard is back", || guard().filter(|now| *now == table).ok_or("not yet"));
    nic.passes_all_but(5002, &[]);
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &before);
    eventually("the guard is gone", || guard().is_none());
}
