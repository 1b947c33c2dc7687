//! Medians, percentiles, and the facts of the machine that the numbers belong to.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// The value below which this share (percent) of the samples lies.
pub fn percentile(samples: &[Duration], percent: usize) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

pub fn median(samples: &[Duration]) -> Duration {
    percentile(samples, 50)
}

/// The middle one; of an even number the mean of the two in the middle.
pub fn median_of(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// Milliseconds, for a table.
pub fn ms(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 20.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

/// Median and worst, for a table.
pub fn spread(samples: &[Duration]) -> String {
    format!("{} (worst {})", ms(median(samples)), ms(percentile(samples, 100)))
}

/// The time that something takes, and the processor time of those who have run so far for `who`.
pub fn timed(who: UsageWho, work: impl FnOnce()) -> (Duration, Duration) {
    let used = || {
        let usage = getrusage(who).unwrap();
        Duration::from_micros((usage.user_time() + usage.system_time()).num_microseconds().cast_unsigned())
    };
    let (start, before) = (std::time::Instant::now(), used());
    work();
    (start.elapsed(), used().saturating_sub(before))
}

fn first_of(path: &str, field: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim_start_matches([' ', '\t', ':']).to_owned()
}

/// Load averages.
pub fn load() -> String {
    first_of("/proc/loadavg", "")
}

/// Processor, memory, kernel and load.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let (cpu, memory) = (first_of("/proc/cpuinfo", "model name"), first_of("/proc/meminfo", "MemTotal"));
    format!("{cores} cores ({cpu}), {memory}, Linux {}, load at the start {}", first_of("/proc/sys/kernel/osrelease", ""), load())
}
