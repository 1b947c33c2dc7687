//! TAPs that others make: found whoever made them and whenever, moved with their packets, given back, and never lost or deleted.

mod support;

use serde_json::{Value, json};
use support::tun::{MULTI_QUEUE, NO_PI, TAP, TUN, Tap, VNET_HDR, passes};
use support::wish::{auto_tap, tap, with};
use support::{Canaries, Host, eventually, eventually_eq, eventually_ok};

/// The wish of the cases: `tap7` becomes `eth1` in red.
fn wish() -> Value {
    auto_tap("t", "red", "tap7", json!({"host_if_name": "eth1", "mtu": 1400, "ip_addresses": ["10.0.0.1/24", "fd00::1/64"]}))
}

fn assert_in_place(host: &Host) {
    let link = host.link("red", "eth1").expect("the TAP is there");
    assert_eq!((link.kind.as_str(), link.up, link.mtu, link.alias.as_str()), ("tun", true, 1400, "vnf-agent:vpp1:autotap:t:tap7"));
    assert_eq!(link.addresses, ["10.0.0.1/24", "fd00::1/64"]);
    assert_eq!((link.group.as_str(), link.tentative), ("default", false));
    assert_eq!(host.link("", "tap7"), None);
}

/// The TAP at home as its owner knows it.
fn assert_given_back(host: &Host, name: &str) {
    let link = eventually_ok("it is given back", || host.link("", name).filter(|link| link.alias.is_empty()).ok_or("not yet"));
    assert_eq!((link.kind.as_str(), link.up, link.addresses.len()), ("tun", false, 0));
}

/// C48.
#[test]
fn in_every_order() {
    for order in ["key first", "TAP first", "restart between", "TAP while the agent is away", "key while the agent is away"] {
        let host = Host::with_netns(&["red"]);
        let etcd = host.start_etcd();
        let mut agent = host.agent().on_etcd().started();
        let make = || host.open_tap("", "tap7", TAP | NO_PI);
        let mut program: Tap = match order {
            "TAP first" => {
                let program = make();
                agent.put(&wish());
                program
            }
            "key while the agent is away" => {
                let program = make();
                agent.stop();
                etcd.put_all(&[wish()]);
                agent.start();
                program
            }
            _ => {
                agent.put(&wish());
                let status = agent.wait_for("t", "PENDING", "LINK_MISSING");
                assert_eq!(status["waits_for"], json!(["tap7"]), "{status}");
                assert!(status["message"].as_str().is_some_and(|message| message.contains("`tap7`")), "{status}");
                match order {
                    "restart between" => agent.restart(),
                    "TAP while the agent is away" => drop(agent.stop()),
                    _ => {}
                }
                let program = make();
                if order == "TAP while the agent is away" {
                    agent.start();
                }
                program
            }
        };
        agent.wait_configured(&["t"]);
        assert_in_place(&host);
        let status = agent.status("t").expect("a status");
        assert_eq!((&status["peer"], &status["host_if_name"]), (&json!(""), &json!("eth1")), "{order}");
        assert_eq!(status["if_index"], json!(host.link("red", "eth1").expect("the TAP is there").index));
        assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program), "{order}");
        agent.del("t");
        assert_given_back(&host, "tap7");
        agent.wait_forgotten("t");
        host.run("ip link set tap7 up");
        host.run("ip address add 10.0.1.1/24 dev tap7");
        assert!(passes(&host, "", "tap7", "10.0.1.9", &mut program), "{order}: its program has never lost it");
    }
}

/// C48: many at once.
#[test]
fn a_hundred_at_once() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    let programs: Vec<Tap> = (0..100).map(|n| host.open_tap("", &format!("tap{n}"), TAP | NO_PI)).collect();
    let wishes: Vec<Value> = (0..100)
        .map(|n| {
            let more = json!({"host_if_name": format!("eth{n}"), "ip_addresses": [format!("10.1.{n}.1/24")]});
            auto_tap(&format!("t{n}"), ["red", "blue"][n % 2], &format!("tap{n}"), more)
        })
        .collect();
    agent.apply(&wishes);
    let names: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    agent.wait_configured(&names);
    assert_eq!((host.link_names("red").len(), host.link_names("blue").len(), host.link_names("").len()), (50, 50, 0));
    let before = host.digest(&["", "red", "blue"]);
    agent.trace_messages();
    agent.restart();
    agent.wait_ready();
    agent.wait_configured(&names);
    assert_eq!(host.digest(&["", "red", "blue"]), before);
    let trace = agent.trace();
    let writes: Vec<&str> = trace.lines().filter(|line| support::wire::modifies(line)).collect();
    assert_eq!(writes, [""; 0], "a restart writes nothing");
    drop(programs);
    eventually_ok("all are missed", || {
        let missed = agent.statuses().iter().filter(|status| status["reason"] == "LINK_MISSING").count();
        if missed == 100 { Ok(()) } else { Err(missed) }
    });
}

/// C49: opened by netlink only. A TAP with one queue that is open cannot be opened a second time; one with several would show another queue.
#[test]
fn what_a_program_holds_open_is_never_opened() {
    let host = Host::with_netns(&["red"]);
    let mut agent = host.agent();
    agent.trace_calls("openat,ioctl");
    agent.start();
    let mut program = host.open_tap("", "tap7", TAP | NO_PI | MULTI_QUEUE | VNET_HDR);
    agent.put(&wish());
    agent.wait_configured(&["t"]);
    assert_in_place(&host);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
    agent.put(&with(&wish(), json!({"mtu": 1300, "ip_addresses": ["10.0.2.1/24"]})));
    eventually_eq("another address", &vec!["10.0.2.1/24".to_owned()], || host.addresses("red", "eth1"));
    agent.wait_configured(&["t"]);
    assert!(passes(&host, "red", "eth1", "10.0.2.9", &mut program));
    agent.del("t");
    assert_given_back(&host, "tap7");
    let trace = agent.trace();
    assert!(!trace.contains("/dev/net/tun") && !trace.contains("TUNSET"), "it opened a TAP");
}

/// C51.
#[test]
fn its_owner_ends_and_starts_again() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    agent.put(&wish());
    for _ in 0..3 {
        let program = host.open_tap("", "tap7", TAP | NO_PI);
        agent.wait_configured(&["t"]);
        assert_in_place(&host);
        drop(program);
        let status = agent.wait_for("t", "PENDING", "LINK_MISSING");
        assert_eq!((&status["waits_for"], &status["if_index"]), (&json!(["tap7"]), &json!(0)), "{status}");
    }
}

/// C52.
#[test]
fn a_name_that_is_taken_is_said_before_any_change() {
    let host = Host::with_netns(&["red"]);
    let canaries = Canaries::plant(&host, &["", "red"]);
    let mut agent = host.agent();
    agent.trace_messages();
    agent.start();
    let _program = host.open_tap("", "tap7", TAP | NO_PI);
    host.run("ip link set tap7 up");
    host.run("ip address add 10.9.9.9/24 dev tap7");
    for (make, unmake) in [
        (&["ip -n red link add br1 type bridge", "ip -n red link property add dev br1 altname eth1"][..], "ip -n red link del br1"),
        (&["ip -n red link add eth1 type bridge"], "ip -n red link del eth1"),
        (&["ip link property add dev tap7 altname eth1"], "ip link property del dev tap7 altname eth1"),
    ] {
        make.iter().for_each(|line| drop(host.run(line)));
        let before = host.link("", "tap7").expect("the TAP is there");
        agent.put(&wish());
        agent.wait_for("t", "FAILED", "FOREIGN_LINK");
        assert_eq!(host.link("", "tap7").as_ref(), Some(&before), "{make:?}");
        agent.del("t");
        agent.wait_forgotten("t");
        assert_eq!(host.link("", "tap7").as_ref(), Some(&before), "{make:?}");
        host.run(unmake);
    }
    let trace = agent.trace();
    let writes: Vec<&str> = trace.lines().filter(|line| support::wire::modifies(line)).collect();
    assert_eq!(writes, [""; 0], "nothing was written");
    agent.put(&wish());
    agent.wait_configured(&["t"]);
    canaries.assert_untouched();
}

#[test]
fn what_is_no_tap_is_not_touched() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    host.run("ip link add tap7 type bridge");
    let before = host.link("", "tap7");
    agent.put(&wish());
    let status = agent.wait_for("t", "FAILED", "FOREIGN_LINK");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("bridge")), "{status}");
    assert_eq!(host.link("", "tap7"), before);
    host.run("ip link del tap7");
    agent.wait_for("t", "PENDING", "LINK_MISSING");
    let _program = host.open_tap("", "tap7", TUN | NO_PI);
    agent.wait_configured(&["t"]);
}

/// In place, to other namespaces, at home, as another kind, and home again: the same TAP all the way.
#[test]
fn the_tap_follows_its_wish() {
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    let mac = host.link("", "tap7").expect("the TAP is there").mac;
    let place = |netns: &str| (!netns.is_empty()).then(|| json!({"type": "NAMED_NS", "name": netns}));
    for (n, (netns, name)) in
        [("red", "eth1"), ("red", "eth2"), ("blue", "eth2"), ("", "eth3"), ("", "tap7"), ("red", "tap7")].into_iter().enumerate()
    {
        let address = format!("10.0.{n}.1/24");
        agent.put(&with(&wish(), json!({"namespace": place(netns), "host_if_name": name, "ip_addresses": [address.clone()]})));
        eventually_eq("the address", &vec![address], || host.addresses(netns, name));
        agent.wait_configured(&["t"]);
        assert_eq!(host.link(netns, name).expect("the TAP is there").mac, mac);
        assert!(passes(&host, netns, name, &format!("10.0.{n}.9"), &mut program), "{netns} {name}");
    }
    agent.apply(&[tap("t", "red", json!({}), json!({"host_if_name": "tap7"}))]);
    assert_given_back(&host, "tap7");
    assert_ne!(host.link("red", "tap7").expect("another TAP").mac, mac);
    agent.apply([&wish()]);
    assert_in_place(&host);
    assert_eq!(host.link_names("red"), ["eth1"]);
}

/// A namespace that ends takes the TAP along; both are waited for, in either order.
#[test]
fn its_namespace_ends() {
    let host = Host::with_netns(&["red"]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    let program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.put(&wish());
    agent.wait_configured(&["t"]);
    host.del_netns("red");
    agent.wait_for("t", "PENDING", "NAMESPACE_MISSING");
    drop(program);
    host.add_netns("red");
    agent.wait_for("t", "PENDING", "LINK_MISSING");
    let program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.wait_configured(&["t"]);
    host.del_netns("red");
    agent.wait_for("t", "PENDING", "NAMESPACE_MISSING");
    drop(program);
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.wait_for("t", "PENDING", "NAMESPACE_MISSING");
    host.add_netns("red");
    agent.wait_configured(&["t"]);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
}

/// A persistent TAP whose name is taken when it is to be given back, also while the agent was away.
#[test]
fn it_is_never_lost() {
    let host = Host::with_netns(&["red"]);
    let mut agent = host.start_agent();
    let first = host.open_tap("", "tap7", TAP | NO_PI);
    first.set_persistent(true);
    agent.put(&wish());
    agent.wait_configured(&["t"]);
    let mac = host.link("red", "eth1").expect("the TAP is there").mac;
    drop(first);
    // Its program starts again and knows nothing of the first one.
    let mut second = host.open_tap("", "tap7", TAP | NO_PI);
    let status = eventually_ok("the second is told of", || {
        let status = agent.status("t").unwrap_or_default();
        if status["warnings"].to_string().contains("another TAP `tap7`") { Ok(status) } else { Err(status) }
    });
    assert_eq!(status["state"], "CONFIGURED");
    agent.restart();
    agent.wait_configured(&["t"]);
    assert_eq!(host.link("red", "eth1").expect("the first one").mac, mac);
    agent.del("t");
    assert_given_back(&host, "tap7~1");
    assert_eq!(host.link("", "tap7~1").expect("the first one").mac, mac);
    eventually("it is told where it went", || agent.log().contains("tap7~1"));
    assert!(host.link("", "tap7").is_some_and(|link| link.mac != mac));
    agent.put(&wish());
    agent.wait_configured(&["t"]);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut second));
}

/// What VPP's agent tells wakes and explains; what it says to have deleted is given back.
#[test]
fn vpp_is_listened_to() {
    let host = Host::with_netns(&["red"]);
    let etcd = host.start_etcd();
    let agent = host.agent().on_etcd().started();
    let key = |last: &str| format!("/vnf-agent/vpp1/vpp/{last}");
    let says = |word: &str| {
        eventually_ok(word, || {
            let status = agent.status("t").unwrap_or_default();
            if status["message"].as_str().is_some_and(|message| message.contains(word)) { Ok(()) } else { Err(status) }
        });
    };
    etcd.put_key(&key("config/v1/interface/odd"), b"\xff\xfe{");
    etcd.put_key(&key("status/v1/interface/error/v"), b"{");
    agent.put(&wish());
    says("some other program");
    let config = json!({"name": "v", "type": 3, "enabled": true, "tap": {"version": 2, "host_if_name": "tap7"}});
    etcd.put_key(&key("config/v1/interface/v"), config.to_string().as_bytes());
    says("has been told to make it");
    let status = |status: u8| json!({"name": "v", "internal_name": "tap0", "type": 3, "oper_status": status, "statistics": {}}).to_string();
    etcd.put_key(&key("status/v1/interface/v"), status(2).as_bytes());
    says("says that it has made it");
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.wait_configured(&["t"]);
    etcd.put_key(&key("status/v1/interface/v"), status(3).as_bytes());
    agent.wait_for("t", "PENDING", "LINK_MISSING");
    says("has deleted it");
    assert_given_back(&host, "tap7");
    etcd.put_key(&key("status/v1/interface/v"), status(1).as_bytes());
    agent.wait_configured(&["t"]);
    assert_in_place(&host);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
}

/// The same keys in the embedded store.
#[test]
fn vpp_is_listened_to_without_etcd() {
    let host = Host::with_netns(&["red"]);
    let mut agent = host.start_agent();
    agent.put(&wish());
    let config = json!({"name": "v", "type": "TAP_INTERFACE", "tap": {"host_if_name": "tap7"}}).to_string();
    agent.vnfctl_with(&["put", "vpp/config/v1/interface/v", "-"], config.as_bytes()).expect_done(&["put"]);
    for _ in 0..2 {
        eventually("it is told", || {
            agent.status("t").is_some_and(|status| status["message"].to_string().contains("has been told to make it"))
        });
        agent.restart();
    }
}

/// Drift: what others do to it is repaired, and its program keeps it.
#[test]
fn what_others_did_is_repaired() {
    let host = Host::with_netns(&["red"]);
    let agent = host.start_agent();
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.apply([&wish()]);
    agent.wait_configured(&["t"]);
    let before = host.digest(&["", "red"]);
    let own = host.process_in("");
    for hand in [
        "addr del 10.0.0.1/24 dev eth1".to_owned(),
        "link set eth1 mtu 1000".to_owned(),
        "link set eth1 down".to_owned(),
        "link set eth1 name other".to_owned(),
        format!("link set eth1 netns {}", own.pid()),
    ] {
        host.run(&format!("ip -n red {hand}"));
        eventually_eq(&hand, &before, || host.digest(&["", "red"]));
        agent.wait_configured(&["t"]);
    }
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
}
