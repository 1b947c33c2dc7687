//! What is aimed at. Each is said to be met or not; none fails anything.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::report::{Report, Sample, Size};

/// A target and how it came out.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub target: &'static str,
    /// By the median; and, of what is measured in rounds, by the best ones. The first decides.
    pub measured: f64,
    pub best: Option<f64>,
    pub limit: f64,
    /// Whether more is better.
    pub at_least: bool,
    pub unit: &'static str,
    pub met: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, measured, limit, unit, .. } = self;
        let (sign, met) = (if self.at_least { "≥" } else { "≤" }, if self.met { "met" } else { "**not met**" });
        let best = self.best.map_or_else(String::new, |best| format!("{best:.2}{unit}"));
        write!(f, "| {target} | {measured:.2}{unit} | {best} | {sign} {limit}{unit} | {met} |")
    }
}

/// How long one method takes beside another, by the median and by the best rounds.
type Ratio = Option<(f64, f64)>;

/// Verdicts as they come.
struct Judge<'r> {
    report: &'r Report,
    verdicts: Vec<Verdict>,
}

/// Judges whatever was measured.
pub fn judge(report: &Report) -> Vec<Verdict> {
    let mut judge = Judge { report, verdicts: Vec::new() };
    let sizes = report.sizes();
    let find = |pairs, link_locals| sizes.iter().copied().find(|s| s.pairs == pairs && s.spaces == 10 && s.link_locals == link_locals);
    if let Some(size) = find(1000, true).or_else(|| find(100, true)) {
        judge.times(size);
        judge.counts(size);
    }
    if let Some(size) = find(5000, false) {
        judge.most("5000 pairs without link-locals over the floor", judge.over_floor(size, "cold start"), 1.35);
    }
    let beside_tool = |size: &Size| judge.ratio(*size, "cold start", "ip -batch", "agent");
    let slowest = sizes.iter().filter_map(beside_tool).min_by(|a, b| a.0.total_cmp(&b.0));
    judge.least("faster than ip -batch, at all sizes", slowest, 1.0);
    judge.changes();
    judge.verdicts
}

impl Judge<'_> {
    fn ratio(&self, size: Size, phase: &str, method: &str, other: &str) -> Ratio {
        let [median, ..] = self.report.ratio(size, phase, method, other)?;
        Some((median, self.report.ratio_of_best(size, phase, method, other)?))
    }

    fn over_floor(&self, size: Size, phase: &str) -> Ratio {
        self.ratio(size, phase, "agent", self.report.floor(size, phase)?)
    }

    fn most(&mut self, target: &'static str, ratio: Ratio, limit: f64) {
        self.say(target, ratio.map(|(median, best)| (median, Some(best))), false, limit, "x");
    }

    fn least(&mut self, target: &'static str, ratio: Ratio, limit: f64) {
        self.say(target, ratio.map(|(median, best)| (median, Some(best))), true, limit, "x");
    }

    fn value(&mut self, target: &'static str, measured: Option<f64>, limit: f64, unit: &'static str) {
        self.say(target, measured.map(|measured| (measured, None)), false, limit, unit);
    }

    fn say(&mut self, target: &'static str, measured: Option<(f64, Option<f64>)>, at_least: bool, limit: f64, unit: &'static str) {
        let Some((measured, best)) = measured else { return };
        let met = if at_least { measured >= limit } else { measured <= limit };
        self.verdicts.push(Verdict { target, measured, best, limit, at_least, unit, met });
    }

    fn times(&mut self, size: Size) {
        self.most("cold start over the floor", self.over_floor(size, "cold start"), 1.35);
        self.least("cold start faster than classical", self.ratio(size, "cold start", "classical", "agent"), 60.0);
        self.most("stream of transactions of 100 keys over the floor", self.over_floor(size, "stream"), 1.5);
        self.most("delete all over the group floor", self.over_floor(size, "delete all"), 1.6);
        self.least("delete all faster than one by one", self.ratio(size, "delete all", "one by one", "agent"), 30.0);
        self.most("no-op resync over bare listings and range read", self.over_floor(size, "no-op resync"), 3.0);
        self.most("TAP over the floor", self.over_floor(size, crate::taps::PHASE), 1.35);
        self.least("TAP faster than the move", self.ratio(size, crate::taps::PHASE, "classical", "agent"), 55.0);
    }

    /// What must be so in every round.
    fn counts(&mut self, size: Size) {
        let worst = |phase: &str, count: fn(&Sample) -> Option<u64>, units: bool| {
            let rounds = self.report.samples(size, phase, "agent");
            let each = |sample: &&Sample| Some(count(sample)? as f64 / if units { sample.units as f64 } else { 1.0 });
            rounds.iter().filter_map(each).reduce(f64::max)
        };
        let all = [
            ("writes of a no-op resync", worst("no-op resync", |sample| sample.messages, false), 0.0),
            ("messages that modify, per pair", worst("cold start", |sample| sample.messages, true), 5.0),
            ("messages that read, per pair", worst("cold start", |sample| sample.reads, true), 0.1),
            ("moves", worst("cold start", |sample| Some(sample.moves), false), 0.0),
        ];
        all.into_iter().for_each(|(target, measured, limit)| self.value(target, measured, limit, ""));
    }

    fn changes(&mut self) {
        let ms = |what: &str, percent| self.report.find_latency(what, percent).map(|duration: Duration| duration.as_secs_f64() * 1e3);
        let single = ms(crate::single::USABLE, 50).zip(ms(crate::single::WATCH, 50)).map(|(usable, watch)| usable - watch);
        let growth = ms(crate::one::MANY, 50).zip(ms(crate::one::FEW, 50)).map(|(many, few)| many / few);
        let beside = ms(crate::churn::CREATED, 99);
        let fact = |what: &str| self.report.find_fact(what);
        let all = [
            ("single pair p50, less the store's own watch delay", single, 1.5, " ms"),
            ("one change at 10000 beside 10 interfaces", growth, 1.2, "x"),
            ("create while 100 pairs are being deleted, p99", beside, 10.0, " ms"),
            ("memory with 10000 interfaces", fact("resident memory, 10000 interfaces"), 64.0, " MiB"),
            ("idle with 10000 interfaces", fact("idle, 10000 interfaces"), 0.5, " %"),
        ];
        all.into_iter().for_each(|(target, measured, limit, unit)| self.value(target, measured, limit, unit));
    }
}
