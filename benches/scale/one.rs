//! One pair at a time, with few and with many interfaces configured, by turns: what one change costs, and whether it depends on the rest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use etcd_client::{Client, Txn, TxnOp};
use nix::sys::signal::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Streaming;
use vnf_agent::proto::agent::interface_event::Kind;
use vnf_agent::proto::agent::{InterfaceEvent, State};

use crate::Scale;
use crate::bed::config_key;
use crate::bed::{self, note};
use crate::floor::{Floor, Pair, timed};
use crate::follow::{Follower, watch};
use crate::listen::listen;
use crate::memory::Memory;
use crate::stats::{median, ms, percentile, ratio};
use crate::support::{Agent, Etcd, Host, veth, wish};

/// What is looked at of a sample.
type Part = fn(&Sample) -> Duration;

/// Pairs of the small bed.
const FEW: usize = 5;

/// What one change took, from right before its transaction is sent.
#[derive(Clone, Copy)]
struct Sample {
    /// The store has confirmed it.
    stored: Duration,
    /// Both statuses say CONFIGURED.
    configured: Duration,
    /// Both ends have carrier and their address.
    usable: Duration,
}

/// Measures memory and, if wanted, single changes.
pub fn measure(scale: &Scale, changes: bool) {
    let (few_spaces, many_spaces) = (bed::spaces(2), bed::spaces(scale.large_spaces));
    let (few, many) = (bed::host(&few_spaces), bed::host(&many_spaces));
    let (few_etcd, many_etcd) = (few.start_etcd(), many.start_etcd());
    let (mut few_agent, mut many_agent) = (bed::agent(&few).on_etcd(), bed::agent(&many).on_etcd());
    few_agent.start();
    many_agent.start();
    let mut memory = Memory::default();
    bed::put_all(&few_etcd, &bed::wishes(&few_spaces, 0..FEW));
    bed::configured(&mut Follower::start(few_agent.socket()), 2 * FEW);
    memory.grow(&many_agent, &many_etcd, &many_spaces, scale.large_pairs);
    memory.idle(&few_agent, 2 * FEW);
    memory.idle(&many_agent, 2 * scale.large_pairs);
    if changes {
        let beds = [(&few_agent, &few_etcd, &few), (&many_agent, &many_etcd, &many)];
        let samples = by_turns(&beds, scale.changes);
        for agent in [&few_agent, &many_agent] {
            agent.signal(Signal::SIGSTOP);
        }
        note("the floor of single changes");
        let floor = floor_by_turns([(&few, &few_spaces), (&many, &many_spaces)], scale.changes);
        for agent in [&few_agent, &many_agent] {
            agent.signal(Signal::SIGCONT);
        }
        print([2 * FEW, 2 * scale.large_pairs], &samples, &floor);
        memory.after(&many_agent, "after the single changes");
    }
    many_agent.stop();
    bed::spawn(&mut many_agent);
    bed::ready(&many_agent);
    memory.after(&many_agent, "after a restart");
    memory.print();
}

/// Changes on both beds, one after the other, so that both see the same machine.
fn by_turns(beds: &[(&Agent<'_>, &Etcd<'_>, &Host); 2], count: usize) -> [Vec<Sample>; 2] {
    std::thread::scope(|scope| {
        let probes = beds.map(|(agent, etcd, host)| {
            let (go, turns) = unbounded_channel();
            let (results, answers) = mpsc::channel();
            let socket = agent.socket();
            scope.spawn(move || probe(etcd, host, socket, turns, &results));
            (go, answers)
        });
        let mut samples = [Vec::new(), Vec::new()];
        for n in 0..count + 3 {
            for ((go, answers), samples) in probes.iter().zip(&mut samples) {
                go.send(n).unwrap();
                let sample = answers.recv().unwrap();
                // The first ones open connections and sockets.
                if n >= 3 {
                    samples.push(sample);
                }
            }
        }
        samples
    })
}

/// Makes and removes a pair each turn.
fn probe(etcd: &Etcd<'_>, host: &Host, socket: PathBuf, mut turns: UnboundedReceiver<usize>, results: &Sender<Sample>) {
    let stop = AtomicBool::new(false);
    let (heard, mut usable): (UnboundedSender<(Instant, String)>, _) = unbounded_channel();
    std::thread::scope(|scope| {
        for netns in ["ns0", "ns1"] {
            let (heard, stop) = (&heard, &stop);
            scope.spawn(move || host.inside(netns, || listen(heard, stop)));
        }
        etcd.client(async |mut client| {
            let mut statuses = watch(&socket).await;
            while statuses.message().await.unwrap().unwrap().kind() != Kind::SnapshotEnd {}
            while let Some(n) = turns.recv().await {
                results.send(change(&mut client, &mut statuses, &mut usable, n).await).unwrap();
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
}

async fn change(
    client: &mut Client,
    statuses: &mut Streaming<InterfaceEvent>,
    usable: &mut UnboundedReceiver<(Instant, String)>,
    n: usize,
) -> Sample {
    let (x, y) = (format!("x{n}"), format!("y{n}"));
    let address = |last: u8| serde_json::json!({"ip_addresses": [format!("10.90.{n}.{last}/24")]});
    let wishes = [veth(&x, &y, "ns0", address(1)), veth(&y, &x, "ns1", address(2))];
    let puts: Vec<TxnOp> = wishes.iter().map(|wish| TxnOp::put(config_key(wish::name(wish)), wish.to_string(), None)).collect();
    let start = Instant::now();
    client.txn(Txn::new().and_then(puts)).await.unwrap();
    let stored = start.elapsed();
    let (mut configured, mut links) = (BTreeMap::new(), BTreeMap::new());
    let ours = |name: &String| [&x, &y].contains(&name);
    while configured.len() + links.len() < 4 {
        tokio::select! {
            event = statuses.message() => {
                let event = event.unwrap().unwrap();
                if ours(&event.name) && event.status.is_some_and(|status| status.state() == State::Configured) {
                    configured.entry(event.name).or_insert_with(Instant::now);
                }
            }
            link = usable.recv() => {
                let (at, name) = link.unwrap();
                if ours(&name) {
                    links.insert(name, at);
                }
            }
        }
    }
    let last = |times: &BTreeMap<String, Instant>| times.values().max().unwrap().duration_since(start);
    let sample = Sample { stored, configured: last(&configured), usable: last(&links) };
    remove(client, statuses, [&x, &y]).await;
    sample
}

async fn remove(client: &mut Client, statuses: &mut Streaming<InterfaceEvent>, names: [&String; 2]) {
    client.txn(Txn::new().and_then(names.map(|name| TxnOp::delete(config_key(name), None)).to_vec())).await.unwrap();
    let mut left = 2;
    while left > 0 {
        let event = statuses.message().await.unwrap().unwrap();
        left -= usize::from(event.kind() == Kind::Removed && names.contains(&&event.name));
    }
}

fn floor_by_turns(beds: [(&Host, &Vec<String>); 2], count: usize) -> [Vec<Duration>; 2] {
    let mut floors = beds.map(|(host, spaces)| Floor::new(host, &spaces[..2]));
    let mut samples = [Vec::new(), Vec::new()];
    for n in 0..count + 3 {
        for (floor, samples) in floors.iter_mut().zip(&mut samples) {
            let pair = Pair { n: 10_000 + n, places: ["ns0", "ns1"] };
            let (ends, took) = timed(|| {
                let ends = floor.make(&[pair]);
                floor.read_back(&ends[0]);
                ends
            });
            floor.delete(&ends);
            if n >= 3 {
                samples.push(took);
            }
        }
    }
    samples
}

fn print(counts: [usize; 2], samples: &[Vec<Sample>; 2], floor: &[Vec<Duration>; 2]) {
    println!(
        "\n| one change, {} each, by turns | {} interfaces: p50 / p99 | {} interfaces: p50 / p99 | ratio p50 |",
        samples[0].len(),
        counts[0],
        counts[1]
    );
    println!("|---|---|---|---|");
    let row = |what: &str, few: &[Duration], many: &[Duration]| {
        let cell = |samples: &[Duration]| format!("{} / {}", ms(median(samples)), ms(percentile(samples, 99)));
        println!("| {what} | {} | {} | {} |", cell(few), cell(many), ratio(median(many), median(few)));
    };
    let parts: [(&str, Part); 3] = [
        ("put both keys until etcd confirms", |s| s.stored),
        ("put both keys until both statuses are CONFIGURED", |s| s.configured),
        ("put both keys until both ends are usable", |s| s.usable),
    ];
    for (what, part) in parts {
        let [few, many] = [0, 1].map(|bed| samples[bed].iter().map(part).collect::<Vec<_>>());
        row(what, &few, &many);
    }
    row("floor: the same requests and read-back, no agent", &floor[0], &floor[1]);
}
