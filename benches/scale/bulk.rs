//! All pairs at once: made from nothing, changed, deleted; each beside the kernel's own time for the same requests.

use std::time::Duration;

use vnf_agent::proto::agent::State;

use crate::Scale;
use crate::bed::{self, note};
use crate::floor::{Floor, Pair, timed};
use crate::follow::Follower;
use crate::restart::per_pair;
use crate::stats::{median, ratio};
use crate::support::wish::with;

/// What is looked at of a round.
type Part = fn(&Round) -> Duration;

/// One round, with or without an agent.
struct Round {
    made: Duration,
    changed: Duration,
    deleted: Duration,
}

/// Measures, agent and floor by turns.
pub fn measure(scale: &Scale) {
    let (mut agent, mut floor) = (Vec::new(), Vec::new());
    for n in 0..scale.rounds {
        note(&format!("all {} pairs, round {}", scale.pairs, n + 1));
        agent.push(with_agent(scale));
        floor.push(without(scale));
    }
    println!("\n| {} pairs in {} namespaces, median of {} | agent on etcd | floor | ratio |", scale.pairs, scale.spaces, scale.rounds);
    println!("|---|---|---|---|");
    let parts: [(&str, Part); 3] = [
        ("cold start: process start until the last CONFIGURED", |r| r.made),
        ("another MTU for all: first put until the last CONFIGURED", |r| r.changed),
        ("delete all keys at once until nothing is left", |r| r.deleted),
    ];
    for (what, part) in parts {
        let [agent, floor] = [&agent, &floor].map(|rounds: &Vec<Round>| median(&rounds.iter().map(part).collect::<Vec<_>>()));
        println!("| {what} | {} | {} | {} |", per_pair(agent, scale.pairs), per_pair(floor, scale.pairs), ratio(agent, floor));
    }
}

fn with_agent(scale: &Scale) -> Round {
    let spaces = bed::spaces(scale.spaces);
    let host = bed::host(&spaces);
    let etcd = host.start_etcd();
    let wishes = bed::wishes(&spaces, 0..scale.pairs);
    bed::put_all(&etcd, &wishes);
    let mut agent = bed::agent(&host).on_etcd();
    let start = bed::spawn(&mut agent);
    let mut follower = Follower::start(agent.socket());
    let made = bed::configured(&mut follower, wishes.len()).duration_since(start);
    settle();

    let changed: Vec<_> = wishes.iter().map(|wish| with(wish, serde_json::json!({"mtu": 1400}))).collect();
    let start = std::time::Instant::now();
    bed::put_all(&etcd, &changed);
    let good = |status: &vnf_agent::proto::agent::InterfaceStatus| status.state() == State::Configured && status.mtu == 1400;
    let changed = follower.until_count(wishes.len(), good).duration_since(start);
    settle();

    let start = std::time::Instant::now();
    bed::delete_all(&etcd);
    let deleted = follower.until_empty().duration_since(start);
    assert!(spaces.iter().all(|netns| host.link_names(netns).is_empty()), "everything is gone");
    Round { made, changed, deleted }
}

fn without(scale: &Scale) -> Round {
    let spaces = bed::spaces(scale.spaces);
    let host = bed::host(&spaces);
    let mut floor = Floor::new(&host, &spaces);
    let pairs: Vec<Pair<'_>> = (0..scale.pairs).map(|n| Pair { n, places: bed::places(&spaces, n) }).collect();
    let (ends, made) = timed(|| {
        floor.read_all();
        let ends = floor.make(&pairs);
        assert_eq!(floor.read_all(), 2 * scale.pairs + scale.spaces, "all ends and lo");
        ends
    });
    settle();
    let ((), changed) = timed(|| {
        floor.set_mtu(&ends, 1400);
        floor.read_all();
    });
    settle();
    let ((), deleted) = timed(|| floor.delete(&ends));
    Round { made, changed, deleted }
}

/// What was caused before shall not count for what comes next.
fn settle() {
    std::thread::sleep(Duration::from_secs(1));
}
