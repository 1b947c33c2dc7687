//! Resident memory as interfaces are added, and what the agent does while nothing happens.

use std::time::Duration;

use crate::bed::{self, note};
use crate::follow::Follower;
use crate::support::{Agent, Etcd};

/// How long an idle agent is looked at.
const IDLE: Duration = Duration::from_secs(20);

/// What was found.
#[derive(Default)]
pub struct Memory {
    rows: Vec<(String, u64)>,
    idle: Vec<(usize, Duration)>,
}

impl Memory {
    /// Adds pairs in steps and notes the memory after each.
    pub fn grow(&mut self, agent: &Agent<'_>, etcd: &Etcd<'_>, spaces: &[String], pairs: usize) {
        let mut follower = Follower::start(agent.socket());
        let mut there = 0;
        for step in [5, 500, pairs].into_iter().filter(|step| *step <= pairs) {
            bed::put_all(etcd, &bed::wishes(spaces, there..step));
            bed::configured(&mut follower, 2 * step);
            there = step;
            note(&format!("{} interfaces are configured", 2 * step));
            // The last statuses are on their way to the store.
            std::thread::sleep(Duration::from_secs(2));
            self.rows.push((format!("{} interfaces", 2 * step), bed::resident(agent.pid())));
        }
        self.rows.dedup();
    }

    /// Notes the memory now.
    pub fn after(&mut self, agent: &Agent<'_>, what: &str) {
        std::thread::sleep(Duration::from_secs(2));
        self.rows.push((what.to_owned(), bed::resident(agent.pid())));
    }

    /// Looks on while nothing happens.
    pub fn idle(&mut self, agent: &Agent<'_>, interfaces: usize) {
        let before = bed::processor_time(agent.pid());
        std::thread::sleep(IDLE);
        self.idle.push((interfaces, bed::processor_time(agent.pid()).saturating_sub(before)));
    }

    /// Prints the tables.
    pub fn print(&self) {
        println!("\n| resident memory | MiB |\n|---|---|");
        for (what, bytes) in &self.rows {
            println!("| {what} | {:.1} |", *bytes as f64 / f64::from(1 << 20));
        }
        println!("\n| idle for {} s with | processor time | of one core |\n|---|---|---|", IDLE.as_secs());
        for (interfaces, time) in &self.idle {
            let share = time.as_secs_f64() / IDLE.as_secs_f64() * 100.0;
            println!("| {interfaces} interfaces | {:.1} ms | {share:.2} % |", time.as_secs_f64() * 1e3);
        }
    }
}
