//! References to namespaces: by name, process and file; what is none; what goes away and comes back.

mod support;

use serde_json::{Value, json};
use support::wish::{tap, with};
use support::{Agent, Canaries, Host, eventually, eventually_eq, the_pair, veth};

/// veth1 somewhere, its peer veth2 in `blue`.
fn somewhere(namespace: Value) -> [Value; 2] {
    let [veth1, veth2] = the_pair();
    [with(&veth1, json!({"namespace": namespace})), veth2]
}

fn named(name: &str) -> Value {
    json!({"type": "NAMED_NS", "name": name})
}

fn file(path: impl ToString) -> Value {
    json!({"type": "FILE_REF_NS", "filepath": path.to_string()})
}

fn pid(pid: u32) -> Value {
    json!({"type": "PID_REF_NS", "pid": pid})
}

fn refused(agent: &Agent<'_>, namespace: Value, reason: &str) -> Value {
    agent.put(&somewhere(namespace)[0]);
    let status = agent.wait_for("veth1", "INVALID", reason);
    agent.del("veth1");
    agent.wait_forgotten("veth1");
    status
}

/// C43: what means the agent's own namespace, and what may not.
#[test]
fn the_agents_own_namespace() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.start_agent();
    agent.apply(&somewhere(json!({})));
    let status = agent.wait_for("veth1", "CONFIGURED", "");
    assert!(status["warnings"].to_string().contains("namespace"), "{status}");
    assert_eq!(status["namespace"]["kind"], "DEFAULT");
    assert_eq!(host.addresses("", "veth1"), ["10.11.1.1/24"]);
    agent.del("veth1");
    agent.wait_forgotten("veth1");
    eventually("it is gone", || host.link_names("").is_empty());

    refused(&agent, pid(agent.pid()), "OWN_NAMESPACE");
    refused(&agent, file(format!("/proc/{}/ns/net", agent.pid())), "OWN_NAMESPACE");
    host.run("touch /run/netns/own");
    host.run("mount --bind /proc/self/ns/net /run/netns/own");
    refused(&agent, named("own"), "OWN_NAMESPACE");
    refused(&agent, file("/run/netns/own"), "OWN_NAMESPACE");
    assert_eq!(host.link_names(""), [""; 0]);
}

/// C43: processes.
#[test]
fn process_references() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.start_agent();
    refused(&agent, pid(0), "BAD_NAMESPACE");
    agent.put(&somewhere(pid(999_999))[0]);
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");

    let process = host.process_in_new_netns();
    agent.apply(&somewhere(pid(process.pid())));
    agent.wait_configured(&["veth1", "veth2"]);
    let status = agent.status("veth1").expect("known");
    assert_eq!(status["namespace"]["kind"], "PID");
    assert_eq!(status["namespace"]["inode"], support::host::inode(&process.netns_path()));

    // Its end takes the pair along; the number alone never brings it back.
    drop(process);
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
    agent.wait_for("veth2", "PENDING", "");
    eventually("the other end is gone", || host.link_names("blue").is_empty());
    let next = host.process_in_new_netns();
    agent.apply(&somewhere(pid(next.pid())));
    agent.wait_configured(&["veth1", "veth2"]);
}

/// C43: a thread is no process.
#[test]
fn a_thread_is_no_process() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.start_agent();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).expect("the agent runs");
    let thread = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok()).find(|task| *task != agent.pid());
    refused(&agent, pid(thread.expect("the agent has threads")), "BAD_NAMESPACE");
}

/// The row "PID reference": bound to that process, also over a restart of the agent.
#[test]
fn a_process_is_bound_over_a_restart() {
    let host = Host::with_netns(&["blue"]);
    let mut agent = host.start_agent();
    let process = host.process_in_new_netns();
    agent.apply(&somewhere(pid(process.pid())));
    agent.wait_configured(&["veth1", "veth2"]);
    agent.restart();
    agent.wait_configured(&["veth1", "veth2"]);
    agent.stop();
    drop(process);
    agent.start();
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
}

/// C44: a file reference to a process that ended blocks nothing: another path, none, and a delete are applied at once.
#[test]
fn a_dead_file_reference_blocks_nothing() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.start_agent();
    let process = host.process_in_new_netns();
    agent.apply(&somewhere(file(process.netns_path().display())));
    agent.wait_configured(&["veth1", "veth2"]);
    drop(process);
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");

    let next = host.process_in_new_netns();
    agent.apply(&somewhere(file(next.netns_path().display())));
    agent.wait_configured(&["veth1", "veth2"]);
    drop(next);
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");

    let mut without = the_pair()[0].clone();
    without.as_object_mut().expect("an object").remove("namespace");
    agent.apply(&[without]);
    agent.wait_configured(&["veth1", "veth2"]);
    assert_eq!(host.link_names(""), ["veth1"]);
    agent.del("veth1");
    agent.wait_forgotten("veth1");
    eventually("it is gone", || host.link_names("").is_empty());
}

/// The row "file reference".
#[test]
fn files_that_are_no_namespace() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    host.run("touch /run/plain");
    host.run("mkdir /run/folder");
    host.run("mkfifo /run/fifo");
    host.run("mknod /run/device c 1 3");
    host.run("ln -s /run/netns/red /run/symlink");
    host.run("touch /run/uts");
    host.run("mount --bind /proc/self/ns/uts /run/uts");
    for (path, word) in [
        ("/run/plain", "file"),
        ("/run/folder", "director"),
        ("/run/fifo", "FIFO"),
        ("/run/device", "device"),
        ("/run/uts", "uts"),
        ("/run/symlink", "link"),
        ("relative", "absolute"),
        ("/run/netns/../netns/red", ".."),
        ("", ""),
    ] {
        let status = refused(&agent, file(path), "BAD_NAMESPACE");
        let said = status["message"].as_str().expect("a message");
        assert!(path.is_empty() || said.matches(path).count() == 1, "what is meant is said once: {said}");
        let said = status.to_string().to_lowercase();
        assert!(said.contains(&word.to_lowercase()), "{path}: says which: {said}");
    }
    agent.apply(&somewhere(file("/run/netns/red")));
    agent.wait_configured(&["veth1", "veth2"]);

    // Missing now, there later.
    agent.apply(&[with(&the_pair()[0], json!({"namespace": file("/run/netns/later")}))]);
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
    host.add_netns("later");
    agent.wait_configured(&["veth1", "veth2"]);
}

/// C46: a missing named namespace is made when the wish is first seen, and stays.
#[test]
fn a_named_namespace_is_made() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.start_agent();
    agent.apply(&somewhere(named("red")));
    agent.wait_configured(&["veth1", "veth2"]);
    assert!(host.has_netns("red"));
    host.run("ip -n red link add other type bridge");
    agent.del("veth1");
    eventually_eq("only the other's link is left", &vec!["other".to_owned()], || host.link_names("red"));
    assert!(host.has_netns("red"), "never deleted by us");

    // One that disappears later is waited for, not made again.
    agent.apply(&somewhere(named("red")));
    agent.wait_configured(&["veth1", "veth2"]);
    host.del_netns("red");
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
    agent.ask(&["resync"]);
    agent.apply(&support::pair(0, "blue", "blue"));
    agent.wait_configured(&["a0", "b0"]);
    assert!(!host.has_netns("red"));
    host.add_netns("red");
    agent.wait_configured(&["veth1", "veth2"]);
    assert!(host.pings("red", "10.11.1.2"));
}

/// C46, with the other setting.
#[test]
fn a_named_namespace_is_waited_for() {
    let host = Host::with_netns(&["blue"]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    agent.apply(&somewhere(named("red")));
    let status = agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
    assert!(status["waits_for"].to_string().contains("red"), "{status}");
    assert!(!host.has_netns("red"));

    // A stub on which nothing is mounted yet is none.
    host.run("touch /run/netns/red");
    agent.wait_for("veth1", "PENDING", "NAMESPACE_MISSING");
    host.run("rm /run/netns/red");
    host.add_netns("red");
    agent.wait_configured(&["veth1", "veth2"]);
}

/// A named namespace that is replaced while nobody looks: the links are in the new one, never in the old.
#[test]
fn a_replaced_namespace() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "blue"]);
    let mut agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    for stopped in [false, true] {
        if stopped {
            agent.kill();
        }
        host.del_netns("red");
        host.add_netns("red");
        if stopped {
            agent.start();
        }
        eventually("the pair is in the new one", || host.addresses("red", "veth1") == ["10.11.1.1/24"]);
        agent.wait_configured(&["veth1", "veth2"]);
        assert!(host.pings("red", "10.11.1.2"));
    }
    canaries.assert_untouched();
}

/// C47: the peer's namespace lost its name, a process keeps it alive. Our end goes; the rest is done or said.
#[test]
fn an_unmounted_namespace_that_lives() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let process = host.process_in("blue");
    host.del_netns("blue");
    agent.wait_for("veth2", "PENDING", "NAMESPACE_MISSING");
    agent.wait_for("veth1", "PENDING", "");
    eventually("no link of ours answers in either", || {
        let left =
            host.command("red", "nsenter").arg(format!("--net={}", process.netns_path().display())).args(["ip", "-o", "link"]).output();
        host.link_names("red").is_empty()
            && left.is_ok_and(|left| left.status.success() && !String::from_utf8_lossy(&left.stdout).contains("veth2"))
    });
    agent.del("veth1");
    agent.del("veth2");
    eventually("both are forgotten", || agent.statuses().is_empty());
}

/// One name in two ways: the same namespace, hence the same names in it.
#[test]
fn two_references_to_one_namespace_conflict() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let more = json!({"host_if_name": "veth1", "namespace": file("/run/netns/red")});
    agent.put_all(&[veth("x", "y", "", more), veth("y", "x", "blue", json!({}))]);
    agent.wait_for("x", "FAILED", "NAME_CONFLICT");
    agent.wait_configured(&["veth1", "veth2"]);
}

/// `vnfctl namespaces` tells which reference leads where.
#[test]
fn references_are_listed() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    agent.apply(&the_pair());
    agent.wait_configured(&["veth1", "veth2"]);
    let listed: Value = serde_json::from_str(&agent.ask(&["-o", "json", "namespaces"])).expect("JSON");
    let red = listed.as_array().and_then(|all| all.iter().find(|entry| entry["reference"] == "red").cloned()).expect("red is listed");
    assert_eq!((&red["kind"], &red["state"]), (&json!("NAMED"), &json!("BOUND")));
    assert_eq!(red["inode"], support::host::inode(&host.netns_file("red")));
}

/// Two ways lead to one namespace, and the one that the agent learned first ends: the other one still leads there.
#[test]
fn one_of_two_ways_ends() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    let named = tap("named", "red", json!({}), json!({"mtu": 1400}));
    let process = host.process_in("red");
    agent.apply([&tap("numbered", "", json!({}), json!({"namespace": {"type": "PID_REF_NS", "pid": process.pid()}}))]);
    agent.apply([&named]);
    agent.wait_configured(&["named", "numbered"]);
    assert_eq!(host.link_names("red"), ["named", "numbered"]);
    drop(process);
    agent.wait_for("numbered", "PENDING", "NAMESPACE_MISSING");
    eventually_eq("what nobody wishes there is gone", &vec!["named".to_owned()], || host.link_names("red"));
    agent.apply([&with(&named, json!({"mtu": 1300}))]);
    assert_eq!(host.link("red", "named").map(|link| link.mtu), Some(1300));
}
