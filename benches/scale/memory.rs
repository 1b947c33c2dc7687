//! Resident memory, and what the agent does while nothing happens.

use std::time::Duration;

use crate::bed::{self, note};
use crate::report::Report;
use crate::support::Agent;

/// How long an idle agent is looked at: it looks at each namespace every 30 s by itself.
const IDLE: Duration = Duration::from_secs(35);

/// What was found.
#[derive(Default)]
pub struct Memory(Vec<(String, f64, &'static str)>);

impl Memory {
    /// Notes the memory now.
    pub fn note(&mut self, agent: &Agent<'_>, what: &str) {
        // The last statuses are on their way to the store.
        std::thread::sleep(Duration::from_secs(2));
        self.0.push((what.to_owned(), bed::memory(agent.pid(), "VmRSS") as f64 / f64::from(1 << 20), "MiB"));
    }

    /// Looks on while nothing happens.
    pub fn idle(&mut self, agent: &Agent<'_>, interfaces: usize) {
        note(&format!("idle with {interfaces} interfaces"));
        let before = bed::processor_time(agent.pid());
        std::thread::sleep(IDLE);
        let used = bed::processor_time(agent.pid()).saturating_sub(before);
        self.0.push((format!("idle, {interfaces} interfaces"), used.as_secs_f64() / IDLE.as_secs_f64() * 100.0, "%"));
    }

    /// Tells it.
    pub fn tell(self, report: &mut Report) {
        self.0.into_iter().for_each(|(what, value, unit)| report.fact(what, value, unit));
    }
}
