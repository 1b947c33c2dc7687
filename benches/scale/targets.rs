//! What is aimed at. Each is said to be met or not; none fails anything.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::report::{Report, Size};

/// A target and how it came out.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub target: &'static str,
    pub measured: f64,
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
        write!(f, "| {target} | {measured:.2}{unit} | {sign} {limit}{unit} | {met} |")
    }
}

/// Judges whatever was measured.
pub fn judge(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut say = |target, measured: Option<f64>, at_least: bool, limit: f64, unit| {
        if let Some(measured) = measured {
            let met = if at_least { measured >= limit } else { measured <= limit };
            verdicts.push(Verdict { target, measured, limit, at_least, unit, met });
        }
    };
    let sizes = report.sizes();
    let find = |pairs, link_locals| sizes.iter().copied().find(|s| s.pairs == pairs && s.spaces == 10 && s.link_locals == link_locals);
    let over_floor = |size: Option<Size>, phase: &str| report.over_floor(size?, phase).map(|[ratio, ..]| ratio);
    let faster = |size: Option<Size>, phase: &str, than: &str| report.ratio(size?, phase, than, "agent").map(|[ratio, ..]| ratio);
    let main = find(1000, true).or_else(|| find(100, true));
    let large = find(5000, false);
    say("cold start over the floor", over_floor(main, "cold start"), false, 1.35, "x");
    say("cold start faster than classical", faster(main, "cold start", "classical"), true, 60.0, "x");
    say("stream of transactions of 100 keys over the floor", over_floor(main, "stream"), false, 1.5, "x");
    say("5000 pairs without link-locals over the floor", over_floor(large, "cold start"), false, 1.35, "x");
    let slowest = sizes.iter().filter_map(|size| faster(Some(*size), "cold start", "ip -batch")).reduce(f64::min);
    say("faster than ip -batch, at all sizes", slowest, true, 1.0, "x");
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let single = report.find_latency(crate::single::USABLE, 50).zip(report.find_latency(crate::single::WATCH, 50));
    say("single pair p50, less the store's own watch delay", single.map(|(usable, watch)| ms(usable) - ms(watch)), false, 1.5, " ms");
    let (few, many) = (report.find_latency(crate::one::FEW, 50), report.find_latency(crate::one::MANY, 50));
    say("one change at 10000 beside 10 interfaces", few.zip(many).map(|(few, many)| ms(many) / ms(few)), false, 1.2, "x");
    say("delete all over the group floor", over_floor(main, "delete all"), false, 1.6, "x");
    say("delete all faster than one by one", faster(main, "delete all", "one by one"), true, 30.0, "x");
    say("create while 100 pairs are being deleted, p99", report.find_latency(crate::churn::CREATED, 99).map(ms), false, 10.0, " ms");
    let resync = main.and_then(|size| report.ratio(size, "no-op resync", "agent", "floor")).map(|[ratio, ..]| ratio);
    say("no-op resync over bare listings and range read", resync, false, 3.0, "x");
    let writes = main.map(|size| report.samples(size, "no-op resync", "agent")).filter(|all| !all.is_empty());
    say("writes of a no-op resync", writes.map(|all| all.iter().filter_map(|s| s.messages).sum::<u64>() as f64), false, 0.0, "");
    say("TAP over the floor", over_floor(main, "TAPs"), false, 1.35, "x");
    say("TAP faster than the move", faster(main, "TAPs", "classical"), true, 55.0, "x");
    let cold = main.map(|size| report.samples(size, "cold start", "agent")).filter(|all| !all.is_empty());
    let most = |value: &dyn Fn(&crate::report::Sample) -> f64| cold.as_ref().map(|all| all.iter().map(|s| value(s)).fold(0.0, f64::max));
    say("messages that modify, per pair", most(&|s| s.messages.unwrap_or(0) as f64 / s.units as f64), false, 5.0, "");
    say("moves", most(&|s| s.moves as f64), false, 0.0, "");
    say("messages that read, per pair", most(&|s| s.reads.unwrap_or(0) as f64 / s.units as f64), false, 0.1, "");
    say("memory with 10000 interfaces", report.find_fact("resident memory, 10000 interfaces"), false, 64.0, " MiB");
    say("idle with 10000 interfaces", report.find_fact("idle, 10000 interfaces"), false, 0.5, " %");
    verdicts
}
