//! Microservices: containers of a real Docker, found by the label in their environment, through everything that happens to containers in daily life.

mod docker_support;
mod support;

use docker_support::{Bed, half_named_pair, host, in_microservice, the_pair};
use serde_json::json;
use support::host::inode;
use support::tun::{NO_PI, TAP, passes};
use support::wish::{auto_tap, tap, with};
use support::{eventually, eventually_eq, eventually_ok};

#[test]
fn wishes_first_then_containers_and_back() {
    let host = host();
    let bed = Bed::new(&host);
    bed.agent.put_all(&the_pair());
    let status = bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    assert!(status["message"].as_str().is_some_and(|text| text.contains("ms1")), "{status}");
    bed.agent.wait_for("veth2", "PENDING", "MICROSERVICE_MISSING");
    bed.docker.run("ms1", "ms1");
    bed.agent.wait_for("veth2", "PENDING", "MICROSERVICE_MISSING");
    bed.assert_links(&[]);
    bed.docker.run("ms2", "ms2");
    bed.assert_pair_in("ms1", "ms2");
    let status = bed.agent.status("veth1").unwrap();
    assert_eq!((&status["namespace"]["kind"], &status["namespace"]["reference"]), (&json!("MICROSERVICE"), &json!("ms1")));
    assert_eq!(status["namespace"]["inode"], inode(&host.netns_file(&bed.docker.netns("ms1"))));
    bed.docker.ask(&["stop", "ms1"]);
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "");
    bed.assert_links(&[]);
    bed.end(&["ms1", "ms2"]);
}

#[test]
fn containers_first_then_wishes() {
    let host = host();
    let bed = Bed::new(&host);
    bed.run_both();
    let [first, second] = the_pair();
    bed.agent.put(&second);
    bed.agent.wait_for("veth2", "PENDING", "PEER_MISSING");
    bed.agent.put(&first);
    bed.assert_pair_in("ms1", "ms2");
    bed.agent.put(&with(&first, json!({"mtu": 1400, "ip_addresses": ["10.11.1.1/24", "fd00::1/64"]})));
    let netns = bed.docker.netns("ms1");
    let changed = (1400, vec!["10.11.1.1/24".to_owned(), "fd00::1/64".to_owned()]);
    eventually_eq("the change is there", &changed, || host.link(&netns, "eth1").map(|link| (link.mtu, link.addresses)).unwrap_or_default());
    bed.end(&["ms1", "ms2"]);
}

#[test]
fn an_agent_that_comes_in_the_middle_or_last() {
    let host = host();
    let mut bed = Bed::new(&host);
    bed.agent.put_all(&the_pair());
    bed.docker.run("ms1", "ms1");
    bed.agent.restart();
    bed.docker.run("ms2", "ms2");
    bed.assert_pair_in("ms1", "ms2");
    let before = [bed.docker.netns("ms1"), bed.docker.netns("ms2")].map(|netns| host.links(&netns));
    bed.agent.restart();
    bed.assert_pair_in("ms1", "ms2");
    assert_eq!([bed.docker.netns("ms1"), bed.docker.netns("ms2")].map(|netns| host.links(&netns)), before, "adopted as it stands");
    bed.agent.stop();
    bed.docker.ask(&["restart", "ms1"]);
    bed.agent.start();
    bed.assert_pair_in("ms1", "ms2");
    bed.agent.stop();
    bed.docker.ask(&["rm", "--force", "ms1", "ms2"]);
    bed.run_both();
    bed.agent.start();
    bed.assert_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// C40, K31: killed, later started again, and restarted at once: each time another namespace, and the same MAC.
#[test]
fn killed_started_and_restarted() {
    let host = host();
    let bed = Bed::new(&host);
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    bed.docker.ask(&["kill", "ms1"]);
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "");
    bed.assert_links(&[]);
    // Late enough for whatever was begun when it died.
    std::thread::sleep(std::time::Duration::from_secs(2));
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.docker.ask(&["start", "ms1"]);
    bed.assert_pair_in("ms1", "ms2");
    for container in ["ms1", "ms2", "ms1"] {
        let before = bed.docker.ask(&["inspect", "--format={{.Id}} {{.State.Pid}}", container]);
        bed.docker.ask(&["restart", container]);
        let after = bed.docker.ask(&["inspect", "--format={{.Id}} {{.State.Pid}}", container]);
        assert_eq!(before.split(' ').next(), after.split(' ').next(), "the same container");
        assert_ne!(before, after, "another process");
        bed.wait_pair_in("ms1", "ms2");
    }
    // Not by Docker: its process is killed under it.
    host.run(&format!("kill -9 {}", bed.docker.pid("ms2")));
    bed.agent.wait_for("veth2", "PENDING", "MICROSERVICE_MISSING");
    bed.docker.ask(&["start", "ms2"]);
    bed.assert_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// One end in a container, the other in a named namespace; the container is replaced by others with the same label, one after the other.
#[test]
fn beside_a_named_namespace_and_replaced_by_a_successor() {
    let host = host();
    let bed = Bed::new(&host);
    bed.agent.put_all(&half_named_pair());
    for name in ["first", "second", "third"] {
        bed.docker.run(name, "ms1");
        bed.agent.wait_configured(&["veth1", "veth2"]);
        bed.assert_links(&[(&bed.docker.netns(name), &["veth1"]), ("red", &["veth2"])]);
        assert!(host.pings("red", "10.11.1.1"));
        bed.docker.ask(&["rm", "--force", name]);
        if name != "second" {
            bed.agent.wait_for("veth2", "PENDING", "");
            eventually("the old address is silent", || !host.pings("red", "10.11.1.1"));
            bed.assert_links(&[]);
        }
    }
    bed.end(&[]);
}

/// F33: two containers with one label. The older keeps it, and both are named; when it ends, the label moves to the other one.
#[test]
fn two_containers_with_one_label() {
    let host = host();
    let bed = Bed::new(&host);
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    let first = bed.docker.ask(&["inspect", "--format={{.Id}}", "ms1"]);
    let second = bed.docker.run("usurper", "ms1");
    let warned = eventually_ok("the status names both", || {
        let status = bed.agent.status("veth1").unwrap_or_default();
        let text = status["warnings"].to_string();
        let both = ["usurper", &second[..12], &first[..12]].iter().all(|part| text.contains(part));
        if both { Ok(status) } else { Err(status) }
    });
    assert_eq!(warned["state"], "CONFIGURED");
    bed.assert_pair_in("ms1", "ms2");
    bed.docker.ask(&["rm", "--force", "ms1"]);
    bed.wait_pair_in("usurper", "ms2");
    assert!(!bed.agent.status("veth1").unwrap()["warnings"].to_string().contains("usurper"), "nobody disputes it any more");
    // Back: the first name again, as the younger one now.
    bed.docker.run("ms1", "ms1");
    bed.docker.ask(&["restart", "usurper"]);
    bed.wait_pair_in("ms1", "ms2");
    bed.docker.ask(&["rm", "--force", "usurper"]);
    bed.assert_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// F35, K31: pausing stops the processes, not the network.
#[test]
fn paused_containers_are_configured() {
    let host = host();
    let bed = Bed::new(&host);
    bed.run_both();
    bed.docker.ask(&["pause", "ms1"]);
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    let before = host.links(&bed.docker.netns("ms1"));
    bed.docker.ask(&["unpause", "ms1"]);
    bed.docker.ask(&["pause", "ms2"]);
    bed.agent.put(&with(&the_pair()[1], json!({"mtu": 1400})));
    eventually("a change reaches a paused container", || host.link(&bed.docker.netns("ms2"), "eth1").is_some_and(|link| link.mtu == 1400));
    bed.docker.ask(&["unpause", "ms2"]);
    bed.assert_pair_in("ms1", "ms2");
    assert_eq!(host.links(&bed.docker.netns("ms1")), before, "the same link all the time");
    bed.end(&["ms1", "ms2"]);
}

/// Two containers in one namespace: both labels lead there, and it lives as long as the one that made it.
#[test]
fn containers_that_share_a_namespace() {
    let host = host();
    let bed = Bed::new(&host);
    bed.docker.run("ms1", "ms1");
    bed.docker.run_with("ms2", "ms2", &["--network=container:ms1"], &["sleep", "infinity"]);
    let [first, second] = the_pair();
    bed.agent.put_all(&[first, with(&second, json!({"host_if_name": "eth2"}))]);
    bed.agent.wait_configured(&["veth1", "veth2"]);
    let shared = bed.docker.netns("ms1");
    assert_eq!(inode(&host.netns_file(&shared)), inode(&host.netns_file(&bed.docker.netns("ms2"))), "the test shares it");
    bed.assert_links(&[(&shared, &["veth1", "veth2"])]);
    // The namespace goes on while the second is in it; the first's label leads nowhere.
    bed.docker.ask(&["kill", "ms1"]);
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "");
    let left = bed.docker.netns("ms2");
    eventually("nothing stays in it", || host.link_names(&left).is_empty());
    // Started again, the first is in another one.
    bed.docker.ask(&["start", "ms1"]);
    bed.agent.wait_configured(&["veth1", "veth2"]);
    bed.assert_links(&[(&bed.docker.netns("ms1"), &["veth1"]), (&left, &["veth2"])]);
    bed.end(&["ms1", "ms2"]);
}

/// F37: a container in the agent's own namespace. Nothing is done there, whatever the wish says.
#[test]
fn a_container_on_the_hosts_network() {
    let host = host();
    let mut bed = Bed::new(&host);
    bed.agent.stop();
    bed.agent.trace_messages();
    bed.agent.start();
    bed.wait_connected();
    bed.docker.run_with("ms1", "ms1", &["--network=host"], &["sleep", "infinity"]);
    bed.docker.run("ms2", "ms2");
    bed.agent.put_all(&the_pair());
    bed.agent.wait_for("veth1", "INVALID", "OWN_NAMESPACE");
    bed.agent.wait_for("veth2", "PENDING", "");
    bed.docker.ask(&["restart", "ms1"]);
    bed.agent.wait_for("veth1", "INVALID", "OWN_NAMESPACE");
    bed.assert_links(&[]);
    let writes: Vec<String> = bed.agent.trace().lines().filter(|line| support::wire::modifies(line)).map(str::to_owned).collect();
    assert_eq!(writes, [""; 0]);
    // The label is free again for a container with a namespace of its own.
    bed.docker.run("proper", "ms1");
    bed.assert_pair_in("proper", "ms2");
    bed.end(&["ms1", "ms2", "proper"]);
}

/// Many containers at once, in a ring.
#[test]
fn a_ring_of_containers_that_start_together() {
    const COUNT: usize = 10;
    let host = host();
    let bed = Bed::new(&host);
    let names: Vec<String> = (0..COUNT).map(|n| format!("ms{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let wishes = (0..COUNT).flat_map(|n| {
        let (left, right, next) = (format!("l{n}"), format!("r{n}"), (n + 1) % COUNT);
        let address = |end: u8| json!({"ip_addresses": [format!("10.12.{n}.{end}/24")]});
        [in_microservice(&left, &right, names[n], address(1)), in_microservice(&right, &left, names[next], address(2))]
    });
    let wishes: Vec<_> = wishes.collect();
    for name in &names {
        bed.docker.create(name, name, &["--network=none"], &["sleep", "infinity"]);
    }
    bed.agent.put_all(&wishes);
    let all: Vec<String> = (0..COUNT).flat_map(|n| [format!("l{n}"), format!("r{n}")]).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for verb in ["start", "restart"] {
        bed.docker.ask(&[&[verb], names.as_slice()].concat());
        let ring = |n: usize| [format!("l{n}"), format!("r{}", (n + COUNT - 1) % COUNT)];
        eventually_ok("each has its two ends", || {
            let seen: Vec<Vec<String>> = names.iter().map(|name| host.link_names(&bed.docker.netns(name))).collect();
            let right = seen.iter().enumerate().all(|(n, links)| *links == ring(n));
            if right { Ok(()) } else { Err(seen) }
        });
        bed.agent.wait_configured(&all);
        (0..COUNT).for_each(|n| assert!(host.pings(&bed.docker.netns(names[n]), &format!("10.12.{n}.2"))));
    }
    bed.docker.ask(&[&["kill"], names.as_slice()].concat());
    all.iter().for_each(|name| drop(bed.agent.wait_for(name, "PENDING", "MICROSERVICE_MISSING")));
    bed.end(&names);
}

/// TAPs in a microservice that is killed and started again: ours comes back by itself, that of another program when it is made again.
#[test]
fn taps_in_a_microservice() {
    let host = host();
    let bed = Bed::new(&host);
    let place = json!({"namespace": {"type": "MICROSERVICE_REF_NS", "microservice": "ms1"}});
    let ours = with(&tap("ours", "", json!({"owner": 1000}), json!({"ip_addresses": ["10.11.2.1/24"]})), place.clone());
    let theirs = with(&auto_tap("theirs", "", "vpp0", json!({"host_if_name": "eth1", "ip_addresses": ["10.11.3.1/24"]})), place);
    bed.agent.put_all(&[ours, theirs]);
    let mut program = host.open_tap("", "vpp0", TAP | NO_PI);
    bed.agent.wait_for("ours", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("theirs", "PENDING", "MICROSERVICE_MISSING");
    for _ in 0..2 {
        bed.docker.run("ms1", "ms1");
        bed.agent.wait_configured(&["ours", "theirs"]);
        let netns = bed.docker.netns("ms1");
        assert_eq!(host.link_names(&netns), ["eth1", "ours"]);
        assert!(passes(&host, &netns, "eth1", "10.11.3.9", &mut program));
        bed.docker.ask(&["kill", "ms1"]);
        bed.agent.wait_for("ours", "PENDING", "MICROSERVICE_MISSING");
        bed.agent.wait_for("theirs", "PENDING", "MICROSERVICE_MISSING");
        bed.docker.ask(&["rm", "ms1"]);
        drop(program);
        program = host.open_tap("", "vpp0", TAP | NO_PI);
    }
    bed.agent.del("ours");
    bed.agent.del("theirs");
    drop(program);
    bed.end(&[]);
}
