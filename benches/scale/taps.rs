//! TAPs: made in place by the agent, made in place by the barest program, and made elsewhere and moved, as the classical way is.

use std::time::{Duration, Instant};

use nix::sys::resource::UsageWho;

use crate::bed::{self, note};
use crate::classical;
use crate::floor::{self, Floor};
use crate::hear::{ADDRESSES, Counted, News};
use crate::report::{Report, Sample, Size};
use crate::run::Run;
use crate::stats::timed;
use crate::support::Host;
use crate::verify::{Eyes, Wanted};
use crate::work::{End, MTU, ORIGIN, tap_wish, taps};

/// The phase.
pub const PHASE: &str = "TAPs";
const SPACES: usize = 10;
/// TAPs that are moved, some 17 ms for each.
const FEW: usize = 20;

/// Measures so many TAPs. `size` is what they are told under.
pub fn measure(report: &mut Report, size: Size, count: usize, rounds: usize) {
    let host = bed::host(SPACES, size.link_locals);
    let etcd = host.start_etcd();
    let (mut floor, mut eyes) = (Floor::new(&host, SPACES), Eyes::new(&host, SPACES));
    let taps = taps(count, SPACES);
    let mut run = Run::new(&host, &etcd);
    run.agent.start();
    for round in 0..rounds {
        note(&format!("{count} TAPs, round {} of {rounds}", round + 1));
        bare(report, size, &host, &mut floor, &mut eyes, &taps);
        settle(&mut floor);
        by_agent(report, size, &host, &mut run, &mut eyes, &taps);
        settle(&mut floor);
        moved(report, size, &host, &mut eyes, &taps[..FEW.min(count)]);
        settle(&mut floor);
    }
}

fn settle(floor: &mut Floor) {
    floor.clear();
    std::thread::sleep(Duration::from_millis(500));
}

fn bare(report: &mut Report, size: Size, host: &Host, floor: &mut Floor, eyes: &mut Eyes, taps: &[End]) {
    let (wall, cpu) = timed(UsageWho::RUSAGE_SELF, || floor.create_taps(host, taps));
    eyes.until(Wanted { taps, mtu: MTU, label: Some(floor::LABEL), origin: ORIGIN, ..Wanted::NOTHING }, Instant::now());
    report.samples.push(Sample { cpu: Some(cpu), ..Sample::new(size, PHASE, "floor", taps.len(), wall) });
}

fn by_agent(report: &mut Report, size: Size, host: &Host, run: &mut Run<'_>, eyes: &mut Eyes, taps: &[End]) {
    let wishes: Vec<_> = taps.iter().map(tap_wish).collect();
    let ears = Counted::open(host, SPACES, ADDRESSES);
    let revision = run.revision();
    run.begin();
    let start = Instant::now();
    bed::put_by(run.etcd, &run.label, &wishes, 100);
    let last = ears.until("TAPs have addresses", taps.len(), |news| *news == News::Address);
    let done = eyes.until(Wanted { taps, mtu: MTU, label: Some(&run.label), origin: ORIGIN, ..Wanted::NOTHING }, last);
    run.told(revision, taps.len(), MTU);
    report.samples.push(run.account(Sample::new(size, PHASE, "agent", taps.len(), done.duration_since(start))));
    bed::delete_all(run.etcd, &run.label);
    run.forgotten();
    eyes.until(Wanted::NOTHING, Instant::now());
}

fn moved(report: &mut Report, size: Size, host: &Host, eyes: &mut Eyes, taps: &[End]) {
    for tap in taps {
        host.run(&format!("ip tuntap add name x{} mode tap", tap.name));
    }
    let start = Instant::now();
    let steps = classical::take_taps(host, taps, SPACES);
    let wall = start.elapsed();
    eyes.until(Wanted { taps, mtu: MTU, origin: ORIGIN, ..Wanted::NOTHING }, Instant::now());
    let (messages, sends) = (Some(steps.sent.messages), Some(steps.sent.sends));
    report.samples.push(Sample { messages, sends, moves: steps.moves, ..Sample::new(size, PHASE, "classical", taps.len(), wall) });
}
