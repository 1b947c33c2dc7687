//! Everything that was measured, as tables for people and as a file for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::stats::{self, median_of, percentile};

/// How much work, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    pub pairs: usize,
    pub spaces: usize,
    /// Whether the kernel makes IPv6 link-locals in the namespaces, as it does by default.
    pub link_locals: bool,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let without = if self.link_locals { "" } else { ", no IPv6 link-locals" };
        write!(f, "{} pairs, {} namespaces{without}", self.pairs, self.spaces)
    }
}

/// What one method took in one round of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub size: Size,
    pub phase: &'static str,
    pub method: &'static str,
    /// How many pairs (or TAPs) this is about.
    pub units: usize,
    pub wall: Duration,
    /// Own processor time.
    pub cpu: Option<Duration>,
    /// Netlink requests that modify something (where nobody tells them apart: all), those that only read, and calls of `send`.
    pub messages: Option<u64>,
    pub reads: Option<u64>,
    pub sends: Option<u64>,
    /// Links moved between namespaces.
    pub moves: u64,
    /// Most resident memory of the agent so far, bytes.
    pub peak: Option<u64>,
}

impl Sample {
    pub fn new(size: Size, phase: &'static str, method: &'static str, units: usize, wall: Duration) -> Self {
        Self { size, phase, method, units, wall, cpu: None, messages: None, reads: None, sends: None, moves: 0, peak: None }
    }

    fn each(&self) -> f64 {
        self.wall.as_secs_f64() * 1e6 / self.units as f64
    }
}

/// Many single durations of one sort.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    pub what: String,
    pub samples: Vec<Duration>,
}

/// A single number.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub machine: String,
    pub samples: Vec<Sample>,
    pub latencies: Vec<Latency>,
    pub facts: Vec<Fact>,
    pub targets: Vec<crate::targets::Verdict>,
}

impl Report {
    pub fn fact(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.facts.push(Fact { what: what.into(), value, unit });
    }

    pub fn latency(&mut self, what: impl Into<String>, samples: Vec<Duration>) {
        self.latencies.push(Latency { what: what.into(), samples });
    }

    pub fn find_fact(&self, what: &str) -> Option<f64> {
        self.facts.iter().find(|fact| fact.what == what).map(|fact| fact.value)
    }

    pub fn find_latency(&self, what: &str, percent: usize) -> Option<Duration> {
        self.latencies.iter().find(|latency| latency.what == what).map(|latency| percentile(&latency.samples, percent))
    }

    /// Sizes in the order in which they were measured.
    pub fn sizes(&self) -> Vec<Size> {
        distinct(self.samples.iter().map(|sample| sample.size))
    }

    pub fn samples(&self, size: Size, phase: &str, method: &str) -> Vec<&Sample> {
        let wanted = |sample: &&Sample| sample.size == size && sample.phase == phase && sample.method == method;
        self.samples.iter().filter(wanted).collect()
    }

    /// Microseconds per unit in each round.
    pub fn each(&self, size: Size, phase: &str, method: &str) -> Vec<f64> {
        self.samples(size, phase, method).into_iter().map(Sample::each).collect()
    }

    /// The fastest of the methods that are a floor for this phase.
    pub fn floor(&self, size: Size, phase: &str) -> Option<&'static str> {
        let floors =
            distinct(self.samples.iter().filter(|s| s.size == size && s.phase == phase && s.method.starts_with("floor")).map(|s| s.method));
        let time = |method: &&'static str| median_of(&self.each(size, phase, method)).unwrap_or(f64::INFINITY);
        floors.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// How much longer `method` takes than `other`: the median of the rounds' ratios, with the least and the greatest.
    pub fn ratio(&self, size: Size, phase: &str, method: &str, other: &str) -> Option<[f64; 3]> {
        let (a, b) = (self.each(size, phase, method), self.each(size, phase, other));
        let ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a / b).collect();
        Some([median_of(&ratios)?, ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max)])
    }

    /// The same, of the best round of each: what others do on the machine at the same time only makes slower.
    pub fn ratio_of_best(&self, size: Size, phase: &str, method: &str, other: &str) -> Option<f64> {
        let best = |method| self.each(size, phase, method).into_iter().reduce(f64::min);
        Some(best(method)? / best(other)?)
    }

    /// All tables.
    pub fn print(&self) {
        for size in self.sizes() {
            println!("\n### {size}\n\n{}", self.table(size));
        }
        if !self.latencies.is_empty() {
            println!("\n### Single changes\n\n| from, to | p50 | p99 | worst | samples |\n|---|---|---|---|---|");
        }
        for Latency { what, samples } in &self.latencies {
            let [half, most, worst] = [50, 99, 100].map(|percent| stats::ms(percentile(samples, percent)));
            println!("| {what} | {half} | {most} | {worst} | {} |", samples.len());
        }
        if !self.facts.is_empty() {
            println!("\n| also | |\n|---|---|");
        }
        for Fact { what, value, unit } in &self.facts {
            println!("| {what} | {value:.2} {unit} |");
        }
        println!("\n### Targets\n\n| target | measured | of the best rounds | limit | |\n|---|---|---|---|---|");
        for target in &self.targets {
            println!("{target}");
        }
    }

    fn table(&self, size: Size) -> String {
        let mut table = "| phase | method | us per unit, median (least..most) | x floor | best x floor | x faster than classical | own CPU us | messages | reads | sends | moves | peak MiB |\n\
            |---|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        let here = || self.samples.iter().filter(|sample| sample.size == size);
        for (phase, method) in distinct(here().map(|sample| (sample.phase, sample.method))) {
            let rounds = self.samples(size, phase, method);
            let each = self.each(size, phase, method);
            let (least, most) = (each.iter().copied().fold(f64::INFINITY, f64::min), each.iter().copied().fold(0.0, f64::max));
            let floor = self.floor(size, phase);
            let best = floor.and_then(|floor| self.ratio_of_best(size, phase, method, floor));
            let floor = floor.and_then(|floor| self.ratio(size, phase, method, floor));
            let classical = self.ratio(size, phase, "classical", method);
            let number = |value: &dyn Fn(&Sample) -> Option<f64>, digits: usize| {
                let values: Option<Vec<f64>> = rounds.iter().map(|sample| value(sample)).collect();
                values.and_then(|values| median_of(&values)).map_or_else(String::new, |value| format!("{value:.digits$}"))
            };
            let per_unit = |value: Option<u64>, sample: &Sample| Some(value? as f64 / sample.units as f64);
            let _ = writeln!(
                table,
                "| {phase} | {method} | {:.0} ({least:.0}..{most:.0}) | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                median_of(&each).unwrap_or_default(),
                floor.map_or_else(String::new, |[r, least, most]| format!("{r:.2} ({least:.2}..{most:.2})")),
                best.map_or_else(String::new, |best| format!("{best:.2}")),
                classical.map_or_else(String::new, |[r, ..]| format!("{r:.1}")),
                number(&|s| Some(s.cpu?.as_secs_f64() * 1e6 / s.units as f64), 0),
                number(&|s| per_unit(s.messages, s), 2),
                number(&|s| per_unit(s.reads, s), 2),
                number(&|s| per_unit(s.sends, s), 2),
                number(&|s| per_unit(Some(s.moves), s), 0),
                number(&|s| Some(s.peak? as f64 / f64::from(1 << 20)), 1),
            );
        }
        table
    }
}

/// Each value once, in the order of their first appearance.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}
