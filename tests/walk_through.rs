//! The walk-through of a NIC behind Open vSwitch works as it is written.

mod support;

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use support::Host;

const PAGE: &str = include_str!("../docs/external-node.md");

/// The commands of the page, in order.
fn commands() -> Vec<&'static str> {
    PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(block, _)| block)).collect()
}

#[test]
fn every_command_of_the_walk_through_works_as_written() {
    let commands = commands();
    let (namespaces, rest) = commands.split_first().expect("the page has commands");
    assert!(namespaces.starts_with("unshare "), "the first one makes the host, which this test has already: {namespaces}");
    // What the commands start in the background ends with the host.
    let host = Host::contained();
    let binaries = Path::new(env!("CARGO_BIN_EXE_vnf-agent")).parent().expect("a folder");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let script = format!("cd '{}'\nset -eux -o pipefail\n{}wait\n", env!("CARGO_MANIFEST_DIR"), rest.concat());
    let mut command = host.command("", "timeout");
    command.args(["600", "bash", "-c", &script]).env("PATH", path).stdin(Stdio::null());
    for name in ["VNF_AGENT", "ETCD_ENDPOINTS", "ETCDV3_ENDPOINTS", "OVS_RUNDIR"] {
        command.env_remove(name);
    }
    let said = host.path("said");
    let file = || File::options().append(true).create(true).open(&said).expect("a file");
    let status = command.stdout(file()).stderr(file()).status().expect("nsenter starts");
    let text = std::fs::read_to_string(&said).expect("a file");
    let log = std::fs::read_to_string(host.outside("/run/agent.log")).unwrap_or_default();
    assert!(status.success(), "{text}\n---- log ----\n{log}");
    let words = [
        "rename nic0 to nic0~ and free the name nic0 (interruption",
        "external/config/v1/node/host1: CONFIGURED nic0 ATTACHED",
        "\"labels\":{\"app\":\"web\"}",
        "found  nic0: ",
        "given back on request",
        "external/config/v1/node/host1: removed",
    ];
    for word in words {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
    assert_eq!(text.matches(" 0% packet loss").count(), 2, "{text}");
    assert!(host.link_names("").iter().all(|name| name != "nic0~"), "{text}");
}
