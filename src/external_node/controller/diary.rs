//! What was done to a NIC, step by step, for the history and the counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::published::NodeCounters;
use super::status::wall_now;
use crate::external_node::phase::{Goal, JournalState, Observation, Step, lacks};
use crate::external_node::plan::{Names, words};
use crate::model::Timestamp;

/// The steps that one look at a NIC took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// When it began.
    pub started: Timestamp,
    /// How long it took, microseconds.
    pub elapsed_us: u64,
    /// What woke the controller: `store`, `kernel`, `switch`, `request`, `retry`, `verify`.
    pub triggers: Vec<&'static str>,
    /// What was found different from an attachment that had been read back.
    pub drift: Vec<String>,
    /// The steps in words, each with its outcome.
    pub steps: Vec<(String, String)>,
}

/// Remembers what was done.
pub trait Diary: Send {
    /// Takes note. Returns at once.
    fn record(&self, record: NodeRecord);
}

/// The steps that are being taken.
pub(super) struct Way {
    goal: Goal,
    started: Timestamp,
    clock: Instant,
    first: Option<Observation>,
    /// With why they were not done, where they were not.
    steps: Vec<(Step, Option<String>)>,
}

impl Way {
    pub(super) fn to(goal: Goal) -> Self {
        Self { goal, started: wall_now(), clock: Instant::now(), first: None, steps: Vec::new() }
    }

    /// A step is about to be taken.
    pub(super) fn take(&mut self, step: Step, seen: &Observation) {
        self.first.get_or_insert(*seen);
        self.steps.push((step, None));
    }

    /// The look after a step tells why it was not done, if it was not.
    pub(super) fn hear(&mut self, undone: Option<&str>) {
        if let Some((_, outcome)) = self.steps.last_mut() {
            *outcome = undone.map(str::to_owned);
        }
    }

    /// Whether it began at an attachment that had been read back, and leads there again.
    pub(super) fn is_repair(&self) -> bool {
        self.goal == Goal::Attached && self.first.is_some_and(|seen| seen.journal == JournalState::Attached)
    }

    /// What the repair found missing; nothing where it is none.
    pub(super) fn drift(&self) -> Vec<&'static str> {
        self.first.filter(|_| self.is_repair()).map(|seen| lacks(&seen)).unwrap_or_default()
    }

    /// Counts, and tells what is to be remembered; `None` when nothing was done.
    pub(super) fn end(
        self,
        names: &Names,
        failure: Option<&str>,
        triggers: Vec<&'static str>,
        counters: &NodeCounters,
    ) -> Option<NodeRecord> {
        let last = self.steps.len().checked_sub(1)?;
        let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        let done = |step: Step| {
            self.steps
                .iter()
                .enumerate()
                .any(|(at, (taken, undone))| *taken == step && undone.is_none() && (failure.is_none() || at < last))
        };
        if self.is_repair() {
            count(&counters.drift);
        }
        if done(Step::Confirm) {
            count(&counters.attached);
        }
        if done(Step::DropJournal) {
            count(&counters.detached);
        }
        let host = &names.host;
        let drift = self.drift().into_iter().map(|what| format!("{host}: {what}")).collect();
        let steps = self.steps.iter().enumerate().map(|(at, (step, undone))| {
            let outcome = failure.filter(|_| at == last).or(undone.as_deref()).unwrap_or("done");
            (format!("{host}: {}", words(*step, names)), outcome.to_owned())
        });
        let elapsed_us = u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX);
        Some(NodeRecord { started: self.started, elapsed_us, triggers, drift, steps: steps.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external_node::phase::{Claimed, NameHolder, NicPlace, Rows, Share};

    const ATTACHED: Observation = Observation {
        claimed: Claimed::ByNobodyElse,
        nic: NicPlace::UplinkName,
        holder: NameHolder::Port,
        on_nic: Share::None,
        on_port: Share::All,
        more_on_nic: false,
        more_on_port: false,
        rows: Rows::Ready,
        links_fit: true,
        flows: true,
        guard: false,
        guard_needed: false,
        journal: JournalState::Attached,
    };

    fn told(way: Way, failure: Option<&str>) -> (Option<NodeRecord>, [u64; 3]) {
        let names = Names { host: "eth0".into(), uplink: "eth0~".into(), bridge: "br-int".into() };
        let counters = NodeCounters::default();
        let record = way.end(&names, failure, vec!["kernel"], &counters);
        (record, [&counters.attached, &counters.detached, &counters.drift].map(|counter| counter.load(Ordering::Relaxed)))
    }

    #[test]
    fn a_repair_is_drift_and_no_second_attachment() {
        let mut way = Way::to(Goal::Attached);
        way.take(Step::InstallFlows, &Observation { flows: false, ..ATTACHED });
        let (record, counts) = told(way, None);
        let record = record.unwrap();
        assert_eq!(record.drift, ["eth0: its flows are not there, or its ports are closed"]);
        assert_eq!(record.steps, [("eth0: install the flows between eth0~ and eth0".to_owned(), "done".to_owned())]);
        assert_eq!(counts, [0, 0, 1]);
    }

    #[test]
    fn a_step_that_failed_counts_for_nothing() {
        let mut way = Way::to(Goal::Attached);
        way.take(Step::Confirm, &Observation { journal: JournalState::Attaching, ..ATTACHED });
        let (record, counts) = told(way, Some("no"));
        assert_eq!((record.unwrap().steps[0].1.as_str(), counts), ("no", [0, 0, 0]));
        let mut way = Way::to(Goal::Plain);
        way.take(Step::DropJournal, &ATTACHED);
        way.hear(None);
        assert_eq!(told(way, None).1, [0, 1, 0]);
        let mut way = Way::to(Goal::Plain);
        way.take(Step::DropJournal, &ATTACHED);
        way.hear(Some("its link went"));
        way.take(Step::DropGuard, &ATTACHED);
        let (record, counts) = told(way, None);
        let outcomes: Vec<String> = record.unwrap().steps.into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!((outcomes, counts), (vec!["its link went".to_owned(), "done".to_owned()], [0, 0, 0]));
        assert_eq!(told(Way::to(Goal::Plain), None), (None, [0, 0, 0]));
    }
}
