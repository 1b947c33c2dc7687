//! TAPs of others while others are at work on them: they come, go and change their names as wishes do; two agents want one; their namespaces end.

mod support;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use support::tun::{NO_PI, TAP, Tap, passes};
use support::wish::{auto_tap, tap};
use support::{Agent, Canaries, Dice, Host, eventually, eventually_ok};

const MANY: usize = 100;

fn mark(label: &str, name: &str, temporary: &str) -> String {
    format!("vnf-agent:{label}:autotap:{name}:{temporary}")
}

/// The n-th of many wishes, in one of three places under one of two names.
fn one_of_many(n: usize, dice: &mut Dice) -> Value {
    let place = ["red", "blue", ""][dice.below(3)];
    let name = [format!("wan{n}"), format!("lan{n}")][dice.below(2)].clone();
    let more = json!({"host_if_name": name, "mtu": 1300 + dice.below(3) * 100, "ip_addresses": [format!("10.1.{n}.1/24")]});
    auto_tap(&format!("t{n}"), place, &format!("tap{n}"), more)
}

/// Each status says what there is of its TAP, and nothing else is in any namespace.
fn compare(host: &Host, agent: &Agent<'_>, wishes: &[Value], programs: &BTreeMap<usize, Tap>) -> Result<(), String> {
    let statuses: BTreeMap<String, Value> =
        agent.statuses().into_iter().map(|status| (status["name"].as_str().unwrap_or_default().to_owned(), status)).collect();
    let links: BTreeMap<&str, _> = ["", "red", "blue"].into_iter().map(|netns| (netns, host.links(netns))).collect();
    for (n, wish) in wishes.iter().enumerate() {
        let status = statuses.get(&format!("t{n}")).ok_or_else(|| format!("t{n} has no status"))?;
        let (state, reason) = (status["state"].as_str().unwrap_or_default(), status["reason"].as_str().unwrap_or_default());
        let place = wish["namespace"]["name"].as_str().unwrap_or_default();
        let there = links[place].iter().find(|link| wish["host_if_name"] == link.name.as_str());
        if !programs.contains_key(&n) {
            if (state, reason, there.is_none()) != ("PENDING", "LINK_MISSING", true) {
                return Err(format!("t{n} has no TAP and is {state} {reason}: {there:?}"));
            }
            continue;
        }
        let right = there.is_some_and(|link| {
            link.alias == mark("vpp1", &format!("t{n}"), &format!("tap{n}"))
                && link.up
                && wish["mtu"] == link.mtu
                && status["if_index"] == link.index
                && wish["ip_addresses"] == json!(link.addresses)
        });
        if state != "CONFIGURED" || !right {
            return Err(format!("t{n} is {state} {reason} in `{place}`: {there:?}"));
        }
    }
    let taps = links.values().flatten().filter(|link| link.kind == "tun").count();
    if taps == programs.len() { Ok(()) } else { Err(format!("{taps} TAPs, {} programs", programs.len())) }
}

/// A hundred TAPs come, go and come again while their wishes change, the agent is killed in the middle, and none of them is opened.
#[test]
fn a_hundred_come_and_go_while_their_wishes_change() {
    let host = Host::with_netns(&["red", "blue"]);
    let canaries = Canaries::plant(&host, &["", "red", "blue"]);
    let mut agent = host.agent();
    agent.trace_calls("openat,ioctl");
    agent.start();
    let mut dice = Dice::new(0x7a9);
    let mut programs: BTreeMap<usize, Tap> = BTreeMap::new();
    let mut wishes: Vec<Value> = Vec::new();
    let mut trace = String::new();
    for round in 0..4 {
        wishes = (0..MANY).map(|n| one_of_many(n, &mut dice)).collect();
        agent.apply(&wishes);
        for n in 0..MANY {
            if dice.below(2) == 0 {
                programs.remove(&n);
            } else {
                programs.entry(n).or_insert_with(|| host.open_tap("", &format!("tap{n}"), TAP | NO_PI));
            }
        }
        if round == 2 {
            agent.kill();
            trace = agent.trace();
            agent.start();
        }
        eventually_ok("every status is true", || compare(&host, &agent, &wishes, &programs));
    }
    let place = |wish: &Value| wish["namespace"]["name"].as_str().unwrap_or_default().to_owned();
    let (n, program) = programs.iter_mut().next().expect("some are there");
    let name = wishes[*n]["host_if_name"].as_str().expect("a name");
    assert!(passes(&host, &place(&wishes[*n]), name, &format!("10.1.{n}.9"), program));
    let keys: Vec<String> = (0..MANY).map(|n| format!("t{n}")).collect();
    keys.iter().for_each(|key| agent.del(key));
    eventually("all are forgotten", || agent.statuses().is_empty());
    let home: Vec<String> = host.links("").into_iter().filter(|link| link.kind == "tun").map(|link| link.name).collect();
    let mut owned: Vec<String> = programs.keys().map(|n| format!("tap{n}")).collect();
    owned.sort();
    assert_eq!(home, owned, "each is given back under its name");
    for netns in ["", "red", "blue"] {
        let marked: Vec<_> = host.links(netns).into_iter().filter(|link| link.alias.starts_with("vnf-agent:vpp1:")).collect();
        assert_eq!(marked, [], "in `{netns}`");
    }
    canaries.assert_untouched();
    trace += &agent.trace();
    assert!(!trace.contains("/dev/net/tun") && !trace.contains("TUNSET"), "it opened a TAP");
}

/// Two agents want one TAP whenever it comes: one of them has it, marked by it, and the other says that it has none.
#[test]
fn two_agents_want_one() {
    let host = Host::with_netns(&["red", "blue"]);
    let agents = [host.start_agent(), host.agent().label("vpp2").started()];
    let labels = ["vpp1", "vpp2"];
    for (agent, netns) in agents.iter().zip(["red", "blue"]) {
        agent.put(&auto_tap("t", netns, "tap7", json!({"host_if_name": "eth1", "ip_addresses": ["10.0.0.1/24"]})));
        agent.wait_for("t", "PENDING", "LINK_MISSING");
    }
    let state = |agent: &Agent<'_>| agent.status("t").map(|status| status["state"].as_str().unwrap_or_default().to_owned());
    for round in 0..10 {
        let mut program = host.open_tap("", "tap7", TAP | NO_PI);
        let who = eventually_ok("one of them has it", || {
            let states = agents.each_ref().map(state);
            let has = |n: usize| states[n].as_deref() == Some("CONFIGURED") && states[1 - n].as_deref() == Some("PENDING");
            (0..2).find(|n| has(*n)).ok_or(states)
        });
        let netns = ["red", "blue"][who];
        let link = host.link(netns, "eth1").expect("it is there");
        assert_eq!(link.alias, mark(labels[who], "t", "tap7"), "round {round}");
        assert!(passes(&host, netns, "eth1", "10.0.0.9", &mut program), "round {round}");
        drop(program);
        for agent in &agents {
            agent.wait_for("t", "PENDING", "LINK_MISSING");
        }
    }
}

/// What another agent has at home is left to it, and passes on when that one lets go.
#[test]
fn what_another_agent_has_is_left_to_it() {
    let host = Host::with_netns(&["red"]);
    let (first, second) = (host.start_agent(), host.agent().label("vpp2").started());
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    first.put(&auto_tap("t", "", "tap7", json!({"host_if_name": "tap7", "ip_addresses": ["10.0.0.1/24"]})));
    first.wait_configured(&["t"]);
    let before = host.link("", "tap7").expect("it is there");
    second.put(&auto_tap("u", "red", "tap7", json!({"host_if_name": "eth1", "ip_addresses": ["10.0.2.1/24"]})));
    let status = second.wait_for("u", "FAILED", "FOREIGN_LINK");
    assert!(status["message"].as_str().is_some_and(|message| message.contains("vnf-agent:vpp1:autotap:t:tap7")), "{status}");
    assert_eq!(host.link("", "tap7"), Some(before));
    assert!(passes(&host, "", "tap7", "10.0.0.9", &mut program));
    first.del("t");
    second.wait_configured(&["u"]);
    assert_eq!(host.link("red", "eth1").map(|link| link.alias), Some(mark("vpp2", "u", "tap7")));
    assert!(passes(&host, "red", "eth1", "10.0.2.9", &mut program));
    // And no TAP that another agent made.
    first.put(&tap("made", "", json!({}), json!({})));
    first.wait_configured(&["made"]);
    second.put(&auto_tap("v", "red", "made", json!({})));
    second.wait_for("v", "FAILED", "FOREIGN_LINK");
    assert!(host.link("", "made").is_some());
}

/// A TAP that was only marked when its namespace ended is as its owner had it: up, with its address.
#[test]
fn its_namespace_ends_again_and_again() {
    let host = Host::with_netns(&["red"]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    agent.put(&auto_tap("t", "red", "tap7", json!({"host_if_name": "eth1", "ip_addresses": ["10.0.0.1/24"]})));
    let mut dice = Dice::new(0xdead);
    for round in 0..20 {
        // A namespace takes its TAPs along, or leaves them where they are not there yet; their program does not notice.
        let program = host.open_tap("", "tap7", TAP | NO_PI);
        std::thread::sleep(std::time::Duration::from_millis(u64::try_from(dice.below(40)).expect("small")));
        host.del_netns("red");
        let status = eventually_ok("it waits for its namespace", || {
            let status = agent.status("t").unwrap_or_default();
            if status["reason"] == "NAMESPACE_MISSING" { Ok(status) } else { Err(status) }
        });
        assert_eq!((&status["state"], &status["if_index"]), (&json!("PENDING"), &json!(0)), "round {round}");
        eventually("no mark is left at home", || host.links("").iter().all(|link| link.alias.is_empty()));
        drop(program);
        host.add_netns("red");
        agent.wait_for("t", "PENDING", "LINK_MISSING");
    }
    let mut program = host.open_tap("", "tap7", TAP | NO_PI);
    agent.wait_configured(&["t"]);
    assert!(passes(&host, "red", "eth1", "10.0.0.9", &mut program));
}
