//! TAPs that the agent makes: inside their namespace, for whom they are wished, and kept for the programs that open them.

mod support;

use serde_json::{Value, json};
use support::tun::{MULTI_QUEUE, NO_PI, TAP, TUN, VNET_HDR, passes};
use support::wish::{tap, with};
use support::{Canaries, Host, eventually, eventually_eq, eventually_ok, veth};

/// What the kernel shows of a TAP (`linkinfo` of `ip -d -j`).
fn info(host: &Host, netns: &str, name: &str) -> Value {
    let text = host.run(&format!("ip -n {netns} -d -j link show {name}"));
    let links: Value = serde_json::from_str(&text).expect("ip prints JSON");
    links[0]["linkinfo"]["info_data"].clone()
}

/// Ids of users and groups as the kernel has them: `ip` shows names where it knows one.
fn owners(host: &Host, netns: &str, name: &str) -> [i64; 2] {
    let folder = format!("/sys/class/net/{name}");
    // A mount of its own, since /sys shows the namespace in which it was mounted.
    let script = format!("mount -t sysfs sysfs /sys && cat {folder}/owner {folder}/group");
    let output = host.command(netns, "unshare").args(["--mount", "sh", "-c", &script]).output().expect("nsenter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ids: Vec<i64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    ids.try_into().unwrap_or_else(|ids| panic!("{ids:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// C50.
#[test]
fn a_tap_is_made_for_its_owner_made_anew_for_another_and_removed() {
    let host = Host::with_netns(&["red"]);
    let canaries = Canaries::plant(&host, &["", "red"]);
    let agent = host.start_agent();
    let settings = json!({"owner": 1000, "group": 4711, "multi_queue": true});
    let more = json!({"mtu": 1400, "phys_address": "02:00:00:00:00:07", "ip_addresses": ["10.0.0.1/24", "fd00::1/64"]});
    let wish = tap("tap1", "red", settings, more);
    agent.apply([&wish]);
    agent.wait_configured(&["tap1"]);
    let link = host.link("red", "tap1").expect("the TAP is there");
    assert_eq!((link.kind.as_str(), link.up, link.mtu, link.mac.as_str()), ("tun", true, 1400, "02:00:00:00:00:07"));
    assert_eq!(link.alias, "vnf-agent:vpp1:tap:tap1");
    assert_eq!(link.addresses, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!(owners(&host, "red", "tap1"), [1000, 4711]);
    let shown = info(&host, "red", "tap1");
    assert_eq!(
        (&shown["type"], &shown["multi_queue"], &shown["persist"], &shown["pi"]),
        (&json!("tap"), &json!(true), &json!(true), &json!(false))
    );
    let status = agent.status("tap1").expect("a status");
    assert_eq!((&status["peer"], &status["if_index"], &status["mtu"]), (&json!(""), &json!(link.index), &json!(1400)));

    agent.apply(&[with(&wish, json!({"tap": {"owner": 1001, "group": 4711, "multi_queue": true}}))]);
    eventually_eq("another owner", &[1001, 4711], || host.link("red", "tap1").map_or([0, 0], |_| owners(&host, "red", "tap1")));
    agent.wait_configured(&["tap1"]);
    assert_ne!(host.link("red", "tap1").expect("the TAP is there").index, link.index);
    assert_eq!(host.addresses("red", "tap1"), link.addresses);
    let history = serde_json::to_string(&agent.history()).expect("JSON");
    assert!(history.contains("owner is 1000, wished 1001"), "{history}");

    agent.del("tap1");
    agent.wait_forgotten("tap1");
    eventually("the TAP is gone", || host.link("red", "tap1").is_none());
    canaries.assert_untouched();
}

#[test]
fn a_tun_has_no_hardware_address() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    let wish = tap("tun1", "red", json!({"mode": "TUN"}), json!({"ip_addresses": ["10.0.0.1/24"], "mtu": 65535}));
    agent.apply([&wish]);
    agent.wait_configured(&["tun1"]);
    assert_eq!((&info(&host, "red", "tun1")["type"], host.addresses("red", "tun1")), (&json!("tun"), vec!["10.0.0.1/24".to_owned()]));
    assert_eq!(agent.status("tun1").expect("a status")["phys_address"], "");
    let program = host.open_tap("red", "tun1", TUN | NO_PI);
    agent.put(&with(&wish, json!({"phys_address": "02:00:00:00:00:01"})));
    agent.wait_for("tun1", "INVALID", "BAD_MAC");
    drop(program);
}

/// What a program that has the TAP open sees of changes: packets, and never the end of its link.
#[test]
fn a_program_that_has_it_open_keeps_it() {
    let host = Host::with_netns(&["red"]);
    let mut agent = host.start_agent();
    let wish = |more: Value| tap("tap1", "red", json!({}), with(&json!({"host_if_name": "eth1"}), more));
    agent.apply(&[wish(json!({"ip_addresses": ["10.0.0.1/24"]}))]);
    agent.wait_configured(&["tap1"]);
    let index = host.link("red", "eth1").expect("the TAP is there").index;
    // With headers that nobody wished: these are the program's own business.
    let mut program = host.open_tap("red", "eth1", TAP | VNET_HDR);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
    let steps = [
        json!({"ip_addresses": ["10.0.1.1/24"]}),
        json!({"ip_addresses": ["10.0.2.1/24"], "mtu": 1300}),
        json!({"ip_addresses": ["10.0.3.1/24"], "phys_address": "02:00:00:00:00:09"}),
        json!({"ip_addresses": ["10.0.4.1/24"], "enabled": false}),
        json!({"ip_addresses": ["10.0.5.1/24"], "host_if_name": "eth2"}),
        json!({"ip_addresses": ["10.0.6.1/24"], "host_if_name": "eth2"}),
    ];
    for (n, more) in steps.iter().enumerate() {
        agent.apply(&[wish(more.clone())]);
        agent.wait_configured(&["tap1"]);
        let name = more["host_if_name"].as_str().unwrap_or("eth1");
        let wished = more["ip_addresses"][0].as_str().expect("an address").to_owned();
        eventually_eq("the address", &vec![wished], || host.addresses("red", name));
        assert_eq!(host.link("red", name).map(|link| link.index), Some(index), "{more}");
        if more["enabled"] != false {
            assert!(passes(&host, "red", name, &format!("10.0.{}.9", n + 1), &mut program), "{more}");
        }
    }
    agent.restart();
    agent.wait_ready();
    agent.wait_configured(&["tap1"]);
    let status = agent.status("tap1").expect("a status");
    assert!(status["warnings"].to_string().contains("vnet_hdr"), "{status}");
    assert!(passes(&host, "red", "eth2", "10.0.6.9", &mut program));
    drop(program);
    // It may be opened again at any time.
    eventually_ok("it is seen that it was closed", || match agent.status("tap1") {
        Some(status) if status["oper"] == "DOWN" => Ok(()),
        other => Err(other),
    });
    let mut program = host.open_tap("red", "eth2", TAP | NO_PI);
    assert!(passes(&host, "red", "eth2", "10.0.6.9", &mut program));
    assert_eq!(host.link("red", "eth2").map(|link| link.index), Some(index));
}

#[test]
fn queues_are_as_wished() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    agent.apply(&[tap("one", "red", json!({}), json!({})), tap("many", "red", json!({"multi_queue": true}), json!({}))]);
    agent.wait_configured(&["one", "many"]);
    assert!(host.try_open_tap("red", "one", TAP | NO_PI | MULTI_QUEUE).is_err());
    let queues = [host.open_tap("red", "many", TAP | NO_PI | MULTI_QUEUE), host.open_tap("red", "many", TAP | NO_PI | MULTI_QUEUE)];
    agent.wait_configured(&["many"]);
    drop(queues);
}

/// Rows "a link of that name is there without our mark" and "two wishes for one name".
#[test]
fn a_name_that_is_taken_is_said() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let foreign = host.open_tap("red", "tap1", TAP | NO_PI);
    host.run("ip -n red link add br0 type bridge");
    host.run("ip -n red link property add dev br0 altname tap2");
    agent.put_all(&[tap("tap1", "red", json!({}), json!({})), tap("tap2", "red", json!({}), json!({}))]);
    agent.wait_for("tap1", "FAILED", "FOREIGN_LINK");
    let status = agent.wait_for("tap2", "FAILED", "FOREIGN_LINK");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("br0")), "{status}");
    drop(foreign);
    host.run("ip -n red link del br0");
    agent.wait_configured(&["tap1", "tap2"]);

    agent.put(&tap("tap3", "red", json!({}), json!({"host_if_name": "tap1"})));
    agent.wait_for("tap3", "FAILED", "NAME_CONFLICT");
    agent.del("tap1");
    agent.wait_configured(&["tap3"]);
    assert_eq!(host.link("red", "tap1").expect("the TAP is there").alias, "vnf-agent:vpp1:tap:tap3");
}

/// Row "type changed".
#[test]
fn another_type_takes_the_old_link_away() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let (one, two) = (veth("x", "y", "red", json!({})), veth("y", "x", "blue", json!({})));
    for round in 0..2 {
        agent.apply(&[one.clone(), two.clone()]);
        agent.wait_configured(&["x", "y"]);
        eventually_eq("a veth", &Some("veth".to_owned()), || host.link("red", "x").map(|link| link.kind));
        agent.put(&tap("x", "red", json!({}), json!({})));
        agent.wait_for("y", "PENDING", "PEER_MISMATCH");
        // Its status still tells of the veth until that is gone.
        eventually_eq(&format!("a TAP, round {round}"), &Some("tun".to_owned()), || host.link("red", "x").map(|link| link.kind));
        agent.wait_configured(&["x"]);
        eventually_eq("the other end is gone", &Vec::<String>::new(), || host.link_names("blue"));
    }
}

/// Drift: what others do to it is repaired and told.
#[test]
fn what_others_did_is_repaired() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    let wish = tap("tap1", "red", json!({"owner": 1000}), json!({"mtu": 1400, "ip_addresses": ["10.0.0.1/24", "fd00::1/64"]}));
    agent.apply([&wish]);
    agent.wait_configured(&["tap1"]);
    let before = host.digest(&["red"]);
    let mac = host.link("red", "tap1").expect("the TAP is there").mac;
    for hand in [
        "addr del 10.0.0.1/24 dev tap1",
        "link set tap1 mtu 1000",
        "link set tap1 down",
        "link set tap1 name other",
        "link set tap1 alias mine",
        "link set tap1 group 0",
    ] {
        host.run(&format!("ip -n red {hand}"));
        eventually_eq(hand, &before, || host.digest(&["red"]));
        agent.wait_configured(&["tap1"]);
    }
    let own = host.process_in("");
    let mut mac = mac;
    for hand in ["link del tap1".to_owned(), format!("link set tap1 netns {}", own.pid())] {
        host.run(&format!("ip -n red {hand}"));
        mac = eventually_ok(&hand, || {
            let link = host.link("red", "tap1").ok_or("not there")?;
            if link.addresses.len() == 2 && link.mtu == 1400 && link.mac != mac { Ok(link.mac) } else { Err("not complete") }
        });
        agent.wait_configured(&["tap1"]);
        eventually("nothing of it is left elsewhere", || host.link("", "tap1").is_none());
    }
    assert!(agent.metric("drift") >= 7.0);
}

/// Many at once, in the agent's own namespace too, and nothing is written again by a restart.
#[test]
fn a_hundred_taps_and_a_restart() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    let wishes: Vec<Value> = (0..100)
        .map(|n| {
            tap(&format!("t{n}"), ["", "red", "blue"][n % 3], json!({"owner": n}), json!({"ip_addresses": [format!("10.1.{n}.1/24")]}))
        })
        .collect();
    agent.apply(&wishes);
    let names: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    agent.wait_configured(&names);
    let before = host.digest(&["", "red", "blue"]);
    agent.trace_messages();
    agent.restart();
    agent.wait_ready();
    agent.wait_configured(&names);
    assert_eq!(host.digest(&["", "red", "blue"]), before);
    let trace = agent.trace();
    let writes: Vec<&str> = trace.lines().filter(|line| support::wire::modifies(line)).collect();
    assert_eq!(writes, [""; 0], "a restart writes nothing");
}

/// Whoever runs the agent in a container must give it the device.
#[test]
fn a_missing_device_is_said() {
    let host = Host::with_netns(&["red"]);
    host.run("mount -t tmpfs tmpfs /dev/net");
    let agent = host.start_agent();
    agent.put(&tap("tap1", "red", json!({}), json!({})));
    let status = agent.wait_for("tap1", "RETRYING", "KERNEL_REFUSED");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("/dev/net/tun") && message.contains("ENOENT"), "{message}");
    host.run("umount /dev/net");
    agent.wait_configured(&["tap1"]);
}
