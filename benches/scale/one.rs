//! One pair at a time, with few and with many interfaces configured, by turns: whether the cost of a change depends on the rest. And what the rest costs in
//! memory and while nothing happens.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use etcd_client::TxnOp;
use nix::sys::signal::Signal;

use crate::bed::{self, note};
use crate::floor::Floor;
use crate::follow::Follower;
use crate::hear::Ears;
use crate::memory::Memory;
use crate::report::Report;
use crate::run::Run;
use crate::single::{Telling, Writer, hear_usable, until_both, usable};
use crate::support::{Etcd, Host};
use crate::work::{MTU, Pair, wishes};

/// Pairs of the small bed.
const FEW_PAIRS: usize = 5;
/// The first ones open connections and sockets.
const WARM: usize = 5;

pub const FEW: &str = "one change beside 10 interfaces: put of both keys, both ends usable";
pub const MANY: &str = "one change beside all the others: put of both keys, both ends usable";
const FEW_FLOOR: &str = "one change beside 10 interfaces: the kernel alone";
const MANY_FLOOR: &str = "one change beside all the others: the kernel alone";

/// One host, with so many pairs in so many namespaces.
struct Bed<'h> {
    host: &'h Host,
    etcd: &'h Etcd<'h>,
    run: Run<'h>,
    spaces: usize,
    pairs: usize,
}

/// Measures memory and, if there are any, single changes.
pub fn measure(report: &mut Report, pairs: usize, changes: usize) {
    let spaces = (pairs / 100).max(2);
    let (few_host, many_host) = (bed::host(2, false), bed::host(spaces, false));
    let (few_etcd, many_etcd) = (few_host.start_etcd(), many_host.start_etcd());
    let mut beds = [
        Bed { host: &few_host, etcd: &few_etcd, run: Run::new(&few_host, &few_etcd), spaces: 2, pairs: FEW_PAIRS },
        Bed { host: &many_host, etcd: &many_etcd, run: Run::new(&many_host, &many_etcd), spaces, pairs },
    ];
    beds.iter_mut().for_each(|bed| bed.run.agent.start());
    let mut memory = Memory::default();
    grow(&beds[0], None);
    grow(&beds[1], Some(&mut memory));
    let [few, many] = &beds;
    memory.idle(&[(&few.run.agent, 2 * FEW_PAIRS), (&many.run.agent, 2 * pairs)]);
    if changes > 0 {
        note("single changes, by turns");
        let [few_took, many_took] = by_turns(&beds, changes);
        report.latency(FEW, few_took);
        report.latency(MANY, many_took);
        beds.iter().for_each(|bed| bed.run.agent.signal(Signal::SIGSTOP));
        let [few_floor, many_floor] = floor_by_turns(&beds, changes);
        report.latency(FEW_FLOOR, few_floor);
        report.latency(MANY_FLOOR, many_floor);
        beds.iter().for_each(|bed| bed.run.agent.signal(Signal::SIGCONT));
    }
    let many = &mut beds[1];
    many.run.agent.stop();
    bed::spawn(&mut many.run.agent);
    bed::ready(&many.run.agent);
    memory.note(&many.run.agent, "resident memory, after a restart");
    memory.tell(report);
}

/// Adds the pairs in steps and notes the memory after each.
fn grow(bed: &Bed<'_>, mut memory: Option<&mut Memory>) {
    let mut follower = Follower::start(bed.run.agent.socket());
    let mut there = 0;
    for step in [FEW_PAIRS, 500, bed.pairs] {
        if step > bed.pairs || step == there {
            continue;
        }
        bed::put_all(bed.etcd, &bed.run.label, &wishes(&Pair::many(there, step - there, bed.spaces), MTU));
        bed::configured(&mut follower, 2 * step);
        there = step;
        note(&format!("{} interfaces are configured", 2 * step));
        if let Some(memory) = &mut memory {
            memory.note(&bed.run.agent, &format!("resident memory, {} interfaces", 2 * step));
        }
    }
}

/// Changes on both beds, one after the other, so that both see the same machine.
fn by_turns(beds: &[Bed<'_>; 2], count: usize) -> [Vec<Duration>; 2] {
    let ears: [(Ears, Receiver<Telling>); 2] = beds.each_ref().map(|bed| {
        let (tell, heard) = channel();
        (hear_usable(bed.host, 2, &tell), heard)
    });
    let mut writers = beds.each_ref().map(|bed| Writer::connect(bed.host));
    let mut samples = [Vec::new(), Vec::new()];
    for n in 0..count + WARM {
        for (((bed, writer), (_, heard)), samples) in beds.iter().zip(&mut writers).zip(&ears).zip(&mut samples) {
            // Always between the same two namespaces.
            let pair = Pair::new(10_000 + 2 * n, 2);
            let start = writer.transact(bed::puts(&bed.run.label, &pair.wishes(MTU)));
            let usable = until_both(heard, &pair, usable);
            if n >= WARM {
                samples.push(usable.duration_since(start));
            }
            // Not to be measured: what the last one left to do.
            std::thread::sleep(Duration::from_millis(20));
            writer.transact(pair.ends.iter().map(|end| TxnOp::delete(bed::config_key(&bed.run.label, &end.name), None)).collect());
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    samples
}

fn floor_by_turns(beds: &[Bed<'_>; 2], count: usize) -> [Vec<Duration>; 2] {
    let mut floors = beds.each_ref().map(|bed| Floor::new(bed.host, 2));
    let mut samples = [Vec::new(), Vec::new()];
    for n in 0..count {
        for (floor, samples) in floors.iter_mut().zip(&mut samples) {
            let pair = [Pair::new(20_000 + 2 * n, 2)];
            let start = Instant::now();
            floor.create(&pair, 1);
            samples.push(start.elapsed());
            floor.delete_each(&pair);
        }
    }
    samples
}
