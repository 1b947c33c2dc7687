//! Everything that the configurator tells the outside: read by the API, the status writer and the metrics, written by passes only.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::configurator::book::Book;
use crate::linux::KernelCounters;
use crate::model::{InterfaceSpec, InterfaceStatus, LinkId, Timestamp};

/// How many passes the history remembers.
const HISTORY_LIMIT: usize = 1000;
/// How many steps they may have together; each takes some 150 bytes.
const HISTORY_STEPS: usize = 4_000;
/// So many steps of a pass are remembered one by one, and beyond them those that were not simply done: a cold start has tens of thousands.
const PASS_STEPS: usize = 1_000;

/// An interface that stands in the kernel, as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its identity in the kernel.
    pub link: LinkId,
    /// Inode of its namespace, for people.
    pub inode: u64,
    /// Name of the link.
    pub host_if_name: Box<str>,
    /// The wish that it fulfils.
    pub spec: Arc<InterfaceSpec>,
}

/// A namespace that wishes refer to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NamespaceEntry {
    /// DEFAULT, NAMED, PID, FILE or MICROSERVICE.
    pub kind: &'static str,
    /// Name, number, path or label.
    pub reference: String,
    /// BOUND, MISSING, REFUSED or RESOLVING.
    pub state: &'static str,
    /// Why it is not bound, in one sentence.
    pub message: String,
    /// Its cookie; 0 when not bound.
    pub cookie: u64,
    /// Its inode; 0 when not bound.
    pub inode: u64,
    /// Since when it leads where it leads.
    pub since: Timestamp,
    /// How many wishes refer to it.
    pub interfaces: usize,
    /// How often another namespace took its place.
    pub replaced: u64,
    /// Id of the container that holds the label; empty where there is none.
    pub container_id: String,
    /// Its name.
    pub container_name: String,
    /// When it was started.
    pub container_started: Option<Timestamp>,
    /// Ids of others that run with the same label.
    pub other_containers: Vec<String>,
}

/// One pass that changed something or failed to.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PassRecord {
    /// Its number; 0 for steps of an external node, which are no pass of the configurator.
    pub sequence: u64,
    /// When it began.
    pub started: Timestamp,
    /// How long it took, microseconds.
    pub elapsed_us: u64,
    /// What woke it, as words: `store`, `namespace`, `kernel`, `switch`, `retry`, `verify`, `request`.
    pub triggers: Vec<&'static str>,
    /// What was found different from what had been configured: `veth1: mtu 1500 -> 1400`.
    pub drift: Vec<String>,
    /// Its steps as the plan prints them, each with its outcome.
    pub steps: Vec<StepRecord>,
}

/// One executed step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct StepRecord {
    /// The step as the plan prints it.
    pub step: Box<str>,
    /// `done`, `already so`, `skipped: …` or the error.
    pub outcome: Cow<'static, str>,
}

/// Whether removals are held back, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// In one sentence.
    pub why: String,
    /// Since when.
    pub since: Timestamp,
    /// Names of what is kept though the listing does not hold it.
    pub kept: Vec<String>,
}

/// Counters of passes; they only grow.
#[derive(Debug, Default)]
pub struct PassCounters {
    /// Passes.
    pub passes: AtomicU64,
    /// Time spent in passes, microseconds.
    pub pass_micros: AtomicU64,
    /// Steps that were done.
    pub steps_done: AtomicU64,
    /// Steps that failed.
    pub steps_failed: AtomicU64,
    /// Plans that broke an invariant and were not executed. Each one is a defect of the planner.
    pub unsound_plans: AtomicU64,
    /// Objects found different from what had been configured, and repaired.
    pub drift_repaired: AtomicU64,
    /// Complete readings of a namespace.
    pub namespace_reads: AtomicU64,
    /// Overruns of the kernel's event queue.
    pub overruns: AtomicU64,
    /// Interrupted listings.
    pub interrupted_dumps: AtomicU64,
}

/// The configurator's public face.
#[derive(Debug, Default)]
pub struct Published {
    /// Statuses by the last part of the config key.
    pub statuses: Book<InterfaceStatus>,
    /// What stands in the kernel, by logical name.
    pub index: Book<IndexEntry>,
    /// Namespaces in use, by a text that is unique.
    pub namespaces: Book<NamespaceEntry>,
    /// Counters.
    pub counters: PassCounters,
    /// The kernel's counters, as of the last pass.
    pub kernel: Mutex<KernelCounters>,
    /// Whether the first listing has been applied. It never becomes false again.
    pub first_listing_applied: watch::Sender<bool>,
    /// Revision up to which store events have been worked on by a pass.
    pub applied_revision: watch::Sender<i64>,
    /// HOLD, while it lasts.
    pub hold: watch::Sender<Option<Hold>>,
    /// How many complete listings of the store it is known of whether they are a reason for HOLD, which was told before.
    pub judged_listings: watch::Sender<u64>,
    /// Unix milliseconds of the last sign of life of the configurator's thread (for the watchdog).
    pub heartbeat: AtomicI64,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    passes: VecDeque<PassRecord>,
    steps: usize,
}

impl Published {
    /// Remembers a pass.
    pub fn record(&self, pass: PassRecord) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.steps += pass.steps.len();
        history.passes.push_back(pass);
        while history.passes.len() > HISTORY_LIMIT || (history.steps > HISTORY_STEPS && history.passes.len() > 1) {
            let forgotten = history.passes.pop_front().map_or(0, |pass| pass.steps.len());
            history.steps -= forgotten;
        }
    }

    /// The latest passes, the newest first.
    #[must_use]
    pub fn history(&self, limit: usize) -> Vec<PassRecord> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).passes.iter().rev().take(limit).cloned().collect()
    }

    /// Adds to a counter the time a pass took.
    pub fn count_pass(&self, elapsed: Duration) {
        self.counters.passes.fetch_add(1, Ordering::Relaxed);
        self.counters.pass_micros.fetch_add(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The steps of a pass as they come.
#[derive(Debug, Default)]
pub struct StepLog {
    records: Vec<StepRecord>,
    /// How many steps there were.
    pub all: usize,
    /// How many of them were done.
    pub done: usize,
}

impl StepLog {
    /// Notes a step and what became of it.
    pub fn note(&mut self, step: &impl fmt::Display, outcome: Cow<'static, str>) {
        let done = outcome.starts_with("done");
        (self.all, self.done) = (self.all + 1, self.done + usize::from(done));
        if self.all <= PASS_STEPS || (!done && self.records.len() < 2 * PASS_STEPS) {
            self.records.push(StepRecord { step: step.to_string().into(), outcome });
        }
    }

    /// What is remembered of them.
    #[must_use]
    pub fn records(mut self) -> Vec<StepRecord> {
        let left_out = self.all - self.records.len();
        if left_out > 0 {
            self.records
                .push(StepRecord { step: format!("and {left_out} more steps").into(), outcome: "not remembered one by one".into() });
        }
        self.records.shrink_to_fit();
        self.records
    }
}

/// What outsiders may ask of the configurator. Calls return at once.
pub trait Requests: Send + Sync + 'static {
    /// Reads the kernel and the store again; with `accept_removals` also leaves HOLD.
    fn resync(&self, accept_removals: bool);
    /// Lets the named interface take over an unmarked pair that stands under the wished names.
    fn adopt(&self, name: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(sequence: u64, steps: usize) -> PassRecord {
        let step = StepRecord { step: "create".into(), outcome: "done".into() };
        let (triggers, drift) = (Vec::new(), Vec::new());
        PassRecord { sequence, started: Timestamp(0), elapsed_us: 1, triggers, drift, steps: vec![step; steps] }
    }

    #[test]
    fn the_history_is_bounded_in_passes_and_in_steps() {
        let published = Published::default();
        let known = |published: &Published| published.history(usize::MAX).iter().map(|pass| pass.sequence).collect::<Vec<_>>();
        (0..=HISTORY_LIMIT as u64).for_each(|n| published.record(pass(n, 1)));
        assert_eq!((known(&published).len(), known(&published).last()), (HISTORY_LIMIT, Some(&1)));
        let passes = 5000..5000 + (HISTORY_STEPS / PASS_STEPS) as u64;
        passes.clone().for_each(|n| published.record(pass(n, PASS_STEPS)));
        assert_eq!(known(&published), passes.rev().collect::<Vec<_>>());
    }

    #[test]
    fn of_very_many_steps_those_that_failed_are_remembered() {
        let mut log = StepLog::default();
        for n in 0..2 * PASS_STEPS {
            log.note(&"create", if n == 2 * PASS_STEPS - 2 { "EPERM" } else { "done" }.into());
        }
        assert_eq!((log.all, log.done), (2 * PASS_STEPS, 2 * PASS_STEPS - 1));
        let steps = log.records();
        assert_eq!(steps.len(), PASS_STEPS + 2);
        let last: Vec<_> = steps[PASS_STEPS..].iter().map(|step| (&*step.step, &*step.outcome)).collect();
        let left_out = format!("and {} more steps", PASS_STEPS - 1);
        assert_eq!(last, [("create", "EPERM"), (&*left_out, "not remembered one by one")]);
    }
}
