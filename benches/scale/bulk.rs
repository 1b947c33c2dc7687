//! All pairs at once, by every method in turn on the same work: made from nothing, changed, looked at, deleted, and made again from a stream of transactions.

use std::time::{Duration, Instant};

use nix::sys::resource::UsageWho;

use crate::bed::{self, note};
use crate::classical;
use crate::floor::{self, Floor};
use crate::hear::{ADDRESSES, Counted, LINKS, News};
use crate::netlink::Sent;
use crate::report::{Report, Sample, Size};
use crate::run::{Run, resync};
use crate::stats::timed;
use crate::support::{Etcd, Host};
use crate::tool::{self, Script};
use crate::verify::{Eyes, Wanted};
use crate::work::{MTU, ORIGIN, Pair, wishes};

/// The MTU to which all are changed.
const OTHER_MTU: u32 = 1300;
/// Keys in one transaction of the stream.
const KEYS: usize = 100;
/// Pairs of methods that take some 20 ms for each.
const FEW: usize = 40;

/// A host on which all methods take their turns.
struct Station<'h> {
    host: &'h Host,
    etcd: &'h Etcd<'h>,
    size: Size,
    pairs: Vec<Pair>,
    floor: Floor,
    eyes: Eyes,
}

type Method<'h> = fn(&mut Station<'h>, &mut Report);

/// Measures so many rounds.
pub fn measure(report: &mut Report, size: Size, rounds: usize) {
    let host = bed::host(size.spaces, size.link_locals);
    let etcd = host.start_etcd();
    let mut station = Station {
        host: &host,
        etcd: &etcd,
        size,
        pairs: Pair::many(0, size.pairs, size.spaces),
        floor: Floor::new(&host, size.spaces),
        eyes: Eyes::new(&host, size.spaces),
    };
    let mut methods: [Method<'_>; 5] = [Station::floor_at_once, Station::floor_in_waves, Station::agent, Station::tool, Station::classical];
    for round in 0..rounds {
        note(&format!("{size}, round {} of {rounds}", round + 1));
        for method in methods {
            method(&mut station, report);
            station.floor.clear();
            settle();
        }
        methods.rotate_left(1);
    }
}

/// What was caused before shall not count for what comes next.
fn settle() {
    std::thread::sleep(Duration::from_millis(500));
}

impl<'h> Station<'h> {
    fn sample(&self, phase: &'static str, method: &'static str, wall: Duration) -> Sample {
        Sample::new(self.size, phase, method, self.size.pairs, wall)
    }

    /// Addresses are checked for uniqueness in the background, for seconds.
    fn calm(&self) {
        if self.size.link_locals {
            std::thread::sleep(Duration::from_secs(2));
        }
        settle();
    }

    fn floor_at_once(&mut self, report: &mut Report) {
        self.floor_creates(report, "floor, at once", self.size.pairs);
        self.calm();

        let before = self.floor.sent();
        let (wall, cpu) = timed(UsageWho::RUSAGE_THREAD, || self.floor.set_mtu(&self.pairs, OTHER_MTU));
        self.eyes.until(Wanted::pairs(&self.pairs, OTHER_MTU, floor::LABEL), Instant::now());
        report.samples.push(with(self.sample("MTU of all", "floor", wall), cpu, since(self.floor.sent(), before)));
        settle();

        let ears = Counted::open(self.host, self.size.spaces, LINKS);
        let (before, start) = (self.floor.sent(), Instant::now());
        self.floor.delete_group();
        let gone = ears.until("links are gone", 2 * self.size.pairs, |news| *news == News::Gone).duration_since(start);
        let sent = since(self.floor.sent(), before);
        report.samples.push(Sample { messages: Some(sent.messages), sends: Some(sent.sends), ..self.sample("delete all", "floor", gone) });
    }

    fn floor_in_waves(&mut self, report: &mut Report) {
        self.floor_creates(report, "floor, waves of 256", 256);
        let few = &self.pairs[..FEW.min(self.size.pairs)];
        let (wall, cpu) = timed(UsageWho::RUSAGE_THREAD, || self.floor.delete_each(few));
        report.samples.push(Sample { cpu: Some(cpu), ..Sample::new(self.size, "delete all", "one by one", few.len(), wall) });
    }

    fn floor_creates(&mut self, report: &mut Report, method: &'static str, wave: usize) {
        let before = self.floor.sent();
        let (wall, cpu) = timed(UsageWho::RUSAGE_THREAD, || self.floor.create(&self.pairs, wave));
        self.eyes.until(Wanted::pairs(&self.pairs, MTU, floor::LABEL), Instant::now());
        let sample = with(self.sample("cold start", method, wall), cpu, since(self.floor.sent(), before));
        report.samples.push(sample.clone());
        report.samples.push(Sample { phase: "stream", ..sample });
    }

    fn tool(&mut self, report: &mut Report) {
        let script = Script::new(self.host, &self.pairs, self.size.spaces);
        let (wall, cpu) = timed(UsageWho::RUSAGE_CHILDREN, || script.run());
        self.eyes.until(Wanted { origin: 0, ..Wanted::pairs(&self.pairs, MTU, tool::LABEL) }, Instant::now());
        report.samples.push(Sample { cpu: Some(cpu), ..self.sample("cold start", "ip -batch", wall) });
    }

    fn classical(&mut self, report: &mut Report) {
        let few = &self.pairs[..FEW.min(self.size.pairs)];
        for (phase, way) in [("cold start", classical::create as fn(_, _, _) -> _), ("delete all", classical::delete)] {
            let (start, steps) = (Instant::now(), way(self.host, few, self.size.spaces));
            let wall = start.elapsed();
            let left = if phase == "cold start" { few } else { &[] };
            self.eyes.until(Wanted { pairs: left, mtu: MTU, origin: ORIGIN, ..Wanted::NOTHING }, Instant::now());
            let (messages, sends) = (Some(steps.sent.messages), Some(steps.sent.sends));
            let sample = Sample { messages, sends, moves: steps.moves, ..Sample::new(self.size, phase, "classical", few.len(), wall) };
            report.samples.push(sample);
        }
    }

    fn agent(&mut self, report: &mut Report) {
        let mut run = Run::new(self.host, self.etcd);
        bed::put_all(self.etcd, &run.label, &wishes(&self.pairs, MTU));
        self.cold_start(&mut run, report);
        self.calm();
        self.change(&mut run, report);
        settle();
        self.resync(&mut run, report);
        settle();
        self.delete(&mut run, report);
        settle();
        self.stream(&mut run, report);
        run.agent.stop();
        bed::delete_all(self.etcd, &run.label);
    }

    fn cold_start(&mut self, run: &mut Run<'h>, report: &mut Report) {
        let revision = run.revision();
        let ears = Counted::open(self.host, self.size.spaces, ADDRESSES);
        let start = bed::spawn(&mut run.agent);
        let last = ears.until("links have addresses", 2 * self.size.pairs, |news| *news == News::Address);
        let done = self.eyes.until(Wanted::pairs(&self.pairs, MTU, &run.label), last);
        let told = run.told(revision, 2 * self.size.pairs, MTU);
        report.samples.push(run.account(self.sample("cold start", "agent", done.duration_since(start))));
        report.samples.push(self.sample("cold start", "agent, until the last status is in etcd", told.duration_since(start)));
    }

    fn change(&mut self, run: &mut Run<'h>, report: &mut Report) {
        let revision = run.revision();
        let changed = wishes(&self.pairs, OTHER_MTU);
        let ears = Counted::open(self.host, self.size.spaces, LINKS);
        run.begin();
        let start = Instant::now();
        bed::put_all(self.etcd, &run.label, &changed);
        let stored = start.elapsed();
        let other = |news: &News| matches!(news, News::Link { mtu: OTHER_MTU, .. });
        let last = ears.until("links have the other MTU", 2 * self.size.pairs, other);
        let done = self.eyes.until(Wanted::pairs(&self.pairs, OTHER_MTU, &run.label), last);
        run.told(revision, 2 * self.size.pairs, OTHER_MTU);
        report.samples.push(run.account(self.sample("MTU of all", "agent", done.duration_since(start))));
        report.samples.push(self.sample("MTU of all", "the store's part", stored));
    }

    /// The bare listings and the bare range read, then the same by the agent.
    fn resync(&mut self, run: &mut Run<'h>, report: &mut Report) {
        let range = run.range_read();
        let start = Instant::now();
        self.eyes.list();
        report.samples.push(self.sample("no-op resync", "floor", start.elapsed() + range));
        run.begin();
        let took = resync(run, self.size.spaces);
        report.samples.push(run.account(self.sample("no-op resync", "agent", took)));
    }

    fn delete(&mut self, run: &mut Run<'h>, report: &mut Report) {
        let ears = Counted::open(self.host, self.size.spaces, LINKS);
        run.begin();
        let start = Instant::now();
        bed::delete_all(self.etcd, &run.label);
        let gone = ears.until("links are gone", 2 * self.size.pairs, |news| *news == News::Gone);
        self.eyes.until(Wanted::NOTHING, gone);
        run.forgotten();
        report.samples.push(run.account(self.sample("delete all", "agent", gone.duration_since(start))));
    }

    fn stream(&mut self, run: &mut Run<'h>, report: &mut Report) {
        let revision = run.revision();
        let wishes = wishes(&self.pairs, MTU);
        let ears = Counted::open(self.host, self.size.spaces, ADDRESSES);
        run.begin();
        let start = Instant::now();
        bed::put_by(self.etcd, &run.label, &wishes, KEYS);
        let stored = start.elapsed();
        let last = ears.until("links have addresses", 2 * self.size.pairs, |news| *news == News::Address);
        let done = self.eyes.until(Wanted::pairs(&self.pairs, MTU, &run.label), last);
        run.told(revision, 2 * self.size.pairs, MTU);
        report.samples.push(run.account(self.sample("stream", "agent", done.duration_since(start))));
        report.samples.push(self.sample("stream", "the store's part", stored));
    }
}

fn with(sample: Sample, cpu: Duration, sent: Sent) -> Sample {
    Sample { cpu: Some(cpu), messages: Some(sent.messages), sends: Some(sent.sends), ..sample }
}

fn since(now: Sent, before: Sent) -> Sent {
    Sent { messages: now.messages - before.messages, sends: now.sends - before.sends }
}
