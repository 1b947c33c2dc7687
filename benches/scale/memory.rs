//! Resident memory, and what the agent does while nothing happens.

use std::time::Duration;

use crate::bed::{self, note};
use crate::report::Report;
use crate::support::Agent;

/// How long idle agents are looked at: they look at each namespace once a minute.
const IDLE: Duration = Duration::from_secs(65);

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

    /// Looks on while nothing happens; agents with the numbers of their interfaces.
    pub fn idle(&mut self, agents: &[(&Agent<'_>, usize)]) {
        note(&format!("idle for {} s", IDLE.as_secs()));
        let used = || -> Vec<Duration> { agents.iter().map(|(agent, _)| bed::processor_time(agent.pid())).collect() };
        let before = used();
        std::thread::sleep(IDLE);
        for (((_, interfaces), before), now) in agents.iter().zip(before).zip(used()) {
            let share = now.saturating_sub(before).as_secs_f64() / IDLE.as_secs_f64();
            self.0.push((format!("idle, {interfaces} interfaces"), share * 100.0, "%"));
        }
    }

    /// Tells it.
    pub fn tell(self, report: &mut Report) {
        self.0.into_iter().for_each(|(what, value, unit)| report.fact(what, value, unit));
    }
}
