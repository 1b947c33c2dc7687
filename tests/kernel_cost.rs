//! What the kernel is asked for, counted: these numbers do not depend on the machine. How long it takes is measured by `make bench`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;
mod support;

use kernel_support::{Bed, add, create, ends, set};
use serde_json::json;
use support::tun::{NO_PI, TAP};
use support::wish::{auto_tap, tap};
use support::{Agent, Host, eventually, eventually_eq, pair};
use vnf_agent::linux::{Kernel, LinkChange};

const SPACES: [&str; 4] = ["ns0", "ns1", "ns2", "ns3"];
const PAIRS: usize = 40;

/// An agent that has made the pairs, and its host.
fn many_pairs(host: &Host) -> Agent<'_> {
    let agent = host.agent().with_http().started();
    let wishes: Vec<_> = (0..PAIRS).flat_map(|n| pair(n, SPACES[n % 4], SPACES[(n + 1) % 4])).collect();
    agent.apply(&wishes);
    let names: Vec<String> = (0..PAIRS).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    agent.wait_configured(&names.iter().map(String::as_str).collect::<Vec<_>>());
    agent
}

/// Lets the agent read the store and the kernel again, and waits until it has.
fn resync(agent: &Agent<'_>) {
    let reads = agent.metric("namespace_reads");
    agent.ask(&["resync"]);
    let all = SPACES.len() as f64;
    eventually("all namespaces are read again", || agent.metric("namespace_reads") >= reads + all);
}

/// One request makes a pair; each end gets its alias (the second one is put up by the same request) and its address. Nothing is moved.
#[test]
fn a_pair_costs_five_messages_and_no_move() {
    let host = Host::with_netns(&SPACES);
    let agent = many_pairs(&host);
    let expected = (5 * PAIRS) as f64;
    eventually_eq("five writes a pair", &expected, || agent.metric("kernel_writes"));
    resync(&agent);
    assert_eq!(agent.metric("kernel_writes"), expected, "and none came later");
    assert_eq!(agent.metric("link_moves"), 0.0);
}

/// Made by one visit of its namespace, with one request for all settings, and one for each address. Nothing is moved.
#[test]
fn a_tap_costs_two_messages_and_one_for_each_address() {
    let host = Host::with_netns(&SPACES);
    let agent = host.agent().with_http().started();
    let more = |n: usize| json!({"mtu": 1400, "phys_address": "02:00:00:00:00:01", "ip_addresses": [format!("10.1.{n}.1/24")]});
    let wishes: Vec<_> = (0..PAIRS).map(|n| tap(&format!("t{n}"), SPACES[n % 4], json!({"owner": 1000}), more(n))).collect();
    agent.apply(&wishes);
    let expected = (3 * PAIRS) as f64;
    eventually_eq("three writes a TAP", &expected, || agent.metric("kernel_writes"));
    resync(&agent);
    assert_eq!((agent.metric("kernel_writes"), agent.metric("link_moves")), (expected, 0.0));
}

/// One mark, one move with all settings, one request for each address; and one to give it back.
#[test]
fn a_tap_of_someone_else_costs_one_move_each_way() {
    let host = Host::with_netns(&SPACES);
    let agent = host.agent().with_http().started();
    let _programs: Vec<_> = (0..PAIRS).map(|n| host.open_tap("", &format!("x{n}"), TAP | NO_PI)).collect();
    let more = |n: usize| json!({"mtu": 1400, "phys_address": "02:00:00:00:00:01", "ip_addresses": [format!("10.1.{n}.1/24")]});
    let wishes: Vec<_> = (0..PAIRS).map(|n| auto_tap(&format!("t{n}"), SPACES[n % 4], &format!("x{n}"), more(n))).collect();
    agent.apply(&wishes);
    let cost = || (agent.metric("kernel_writes"), agent.metric("link_moves"));
    eventually_eq("three writes a TAP, one of them a move", &((3 * PAIRS) as f64, PAIRS as f64), cost);
    (0..PAIRS).for_each(|n| agent.del(&format!("t{n}")));
    eventually_eq("one move back", &((4 * PAIRS) as f64, (2 * PAIRS) as f64), cost);
}

/// Where everything is as wished, looking at everything again modifies nothing.
#[test]
fn a_resync_of_what_is_right_writes_nothing() {
    let host = Host::with_netns(&SPACES);
    let agent = many_pairs(&host);
    resync(&agent);
    let (writes, steps) = (agent.metric("kernel_writes"), agent.metric("steps"));
    for _ in 0..3 {
        resync(&agent);
    }
    assert_eq!((agent.metric("kernel_writes"), agent.metric("steps")), (writes, steps));
}

/// Many requests share a send: the links of a wave, then per namespace the rest.
#[test]
fn a_wave_takes_few_sends() {
    const MOST_IN_A_SEND: u64 = 64;
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    for netns in [&red, &blue] {
        bed.kernel.read_netns(netns.id).unwrap();
    }
    let count = 2 * MOST_IN_A_SEND;
    let creations: Vec<_> = (0..count).map(|i| create((&red, &format!("a{i}")), (&blue, &format!("b{i}")))).collect();
    let before = bed.kernel.counters();
    let made: Vec<_> = bed.kernel.execute(&creations).into_iter().map(|done| ends(&red, &blue, done.unwrap())).collect();
    let links = bed.kernel.counters();
    assert_eq!((links.writes - before.writes, links.sends - before.sends, links.reads - before.reads), (count, count / MOST_IN_A_SEND, 0));

    let alias = |end: char, i: usize| LinkChange { alias: Some(format!("vnf-agent:vpp1:veth:{end}{i}")), ..LinkChange::default() };
    let rest: Vec<_> = made
        .iter()
        .enumerate()
        .flat_map(|(i, (a, b))| {
            let up = LinkChange { up: Some(true), ..alias('b', i) };
            [set(*a, alias('a', i)), add(*a, &format!("10.1.{i}.1/30")), set(*b, up), add(*b, &format!("10.1.{i}.2/30"))]
        })
        .collect();
    assert!(bed.kernel.execute(&rest).iter().all(Result::is_ok));
    let all = bed.kernel.counters();
    let (writes, sends) = (all.writes - links.writes, all.sends - links.sends);
    assert_eq!((writes, sends, all.reads - links.reads, all.moves), (4 * count, 4 * count / MOST_IN_A_SEND, 0, 0));
}
