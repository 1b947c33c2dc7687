//! One agent per label and host; several labels side by side; options that are wrong.

mod support;

use serde_json::json;
use support::{Host, eventually, the_pair, veth};

/// A second agent with the same label exits and says who holds it.
#[test]
fn one_agent_per_label() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let state = host.path("another-state").display().to_string();
    let socket = host.path("another.sock").display().to_string();
    for arguments in [vec!["--state-dir", &state, "--socket", &socket], vec!["--label", "vpp2", "--socket", &socket]] {
        // Once the label, once the state directory is taken.
        let mut command = host.command("", env!("CARGO_BIN_EXE_vnf-agent"));
        command.args(["--grpc-listen", "off", "--http-listen", "off", "--docker-host", "off"]);
        command.args(&arguments);
        if arguments.contains(&"--label") {
            command.arg("--state-dir").arg(agent.state_dir());
        }
        let output = command.output().expect("nsenter starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{said}");
        assert!(said.contains(&agent.pid().to_string()), "says who holds it: {said}");
    }
    agent.wait_configured(&["veth1", "veth2"]);
}

/// The same label in another network namespace is another host.
#[test]
fn the_same_label_on_another_host() {
    let (one, other) = (Host::new(), Host::new());
    let agents = [one.start_agent(), other.start_agent()];
    assert_ne!(agents[0].pid(), agents[1].pid());
}

/// Two labels side by side: each has its own links and leaves the other's alone, names in one namespace included.
#[test]
fn two_labels_side_by_side() {
    let host = Host::with_netns(&["red", "blue"]);
    let first = host.start_agent();
    let mut second = host.agent().label("vpp10").started();
    first.apply(&the_pair());
    first.wait_configured(&["veth1", "veth2"]);
    second.apply(&[veth("x", "y", "red", json!({})), veth("y", "x", "blue", json!({}))]);
    second.wait_configured(&["x", "y"]);
    second.put(&veth("z", "w", "red", json!({"host_if_name": "veth1"})));
    second.put(&veth("w", "z", "blue", json!({})));
    second.wait_for("z", "FAILED", "FOREIGN_LINK");
    let links = host.links("red");
    second.restart();
    second.wait_for("z", "FAILED", "FOREIGN_LINK");
    second.del("x");
    eventually("its own link goes", || host.link("red", "x").is_none());
    first.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link("red", "veth1"), links.into_iter().find(|link| link.name == "veth1"));
    assert!(first.status("x").is_none() && second.status("veth2").is_none());
}

/// Wrong options end it at once with one clear line.
#[test]
fn wrong_options() {
    let host = Host::new();
    let config = host.path("config.toml");
    std::fs::write(&config, "label = \"vpp1\"\nlabell = \"x\"\n").expect("a file");
    let config = config.display().to_string();
    for (arguments, word) in [
        (vec!["--label", "a/b"], "label"),
        (vec!["--config", &config], "labell"),
        (vec!["--grpc-listen", "0.0.0.0:9111"], "tls"),
        (vec!["--named-netns", "sometimes"], "named-netns"),
        (vec!["--no-such-option"], "no-such-option"),
    ] {
        let output = host.command("", env!("CARGO_BIN_EXE_vnf-agent")).args(&arguments).output().expect("nsenter starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{arguments:?}: {said}");
        assert!(said.to_lowercase().contains(word), "{arguments:?}: {said}");
        if word == "labell" {
            assert!(said.contains('2'), "names the line: {said}");
        }
    }
}

/// The environment of the old agent is understood.
#[test]
fn the_old_environment() {
    let host = Host::new();
    let mut command = host.command("", env!("CARGO_BIN_EXE_vnf-agent"));
    command.args(["--grpc-listen", "off", "--http-listen", "off", "--docker-host", "off"]);
    command.arg("--state-dir").arg(host.path("state")).arg("--socket").arg(host.path("vpp7.sock"));
    command.env("MICROSERVICE_LABEL", "vpp7");
    let agent = support::host::Process(command.spawn().expect("nsenter starts"));
    eventually("it answers with its label", || {
        let mut vnfctl = host.command("", env!("CARGO_BIN_EXE_vnfctl"));
        let output = vnfctl
            .arg("--agent")
            .arg(format!("unix:{}", host.path("vpp7.sock").display()))
            .args(["put", "linux/config/v1/interface/x", "/dev/null"])
            .output();
        output.is_ok_and(|output| output.status.success())
    });
    assert!(host.outside("/run/vnf-agent/vpp7.lock").exists());
    drop(agent);
}
