//! One look at one NIC: goes its way as far as it gets, and takes note of what came of it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::diary::{NodeRecord, Way};
use super::inbox::NodeInbox;
use super::parts::Guardian;
use super::{Nic, NodeController, Trouble, status};
use crate::external_node::attachment::is_overdue;
use crate::external_node::handover::{HandoverError, Outcome, Purpose, Seen, notes_of};
use crate::external_node::journal::Journal;
use crate::external_node::phase::{Claimed, FLOWS_LACK, Goal, JournalState, NicPlace, Observation, Step};
use crate::linux::nic::NicKernel;
use crate::model::Reason;

/// How long an attached NIC may be in trouble before it is given back for the time being.
const RESCUE_AFTER: Duration = Duration::from_secs(30);
const REPAIRED: &str = "what others had changed is repaired";

impl NodeController {
    /// Brings one NIC where it shall be, as far as that needs no switch that may not answer; what is left to do then.
    pub(super) fn begin(&mut self, name: &str, inbox: &NodeInbox) -> Option<Task> {
        let now = Instant::now();
        let nic = self.nics.get_mut(name)?;
        if nic.pace.waits(now) {
            return None;
        }
        nic.begun = now;
        let (goal, waiting) = (nic.goal, nic.unproved.is_some());
        if waiting && self.was_given_back(name) {
            return None;
        }
        let was_attached = self.nics.get(name).and_then(|nic| nic.seen.as_ref()).is_some_and(status::is_attached);
        self.go(Task { name: name.to_owned(), goal, way: Way::to(goal), was_attached }, inbox, false)
    }

    /// Goes one way. Where it is not to wait, it is put off before a step that a switch may keep waiting, and the status tells where the NIC is by then.
    pub(super) fn go(&mut self, mut task: Task, inbox: &NodeInbox, may_wait: bool) -> Option<Task> {
        let Task { name, goal, way, .. } = &mut task;
        let (purpose, answers) = (self.purpose(name), self.parts.handover.switch_answers());
        let (mut stopped, mut put_off, guardian) = (None, None, &mut self.parts.guardian);
        let outcome = self.parts.handover.drive(name, *goal, &purpose, |step, seen| {
            way.hear(seen.undone.as_deref());
            if *goal == Goal::Attached {
                stopped = admit(name, step, seen.journal.as_ref(), &purpose, guardian.as_mut()).err();
            }
            put_off = (stopped.is_none() && !may_wait && may_hang(step, &seen.observation, answers)).then(|| seen.clone());
            let goes_on = stopped.is_none() && put_off.is_none() && !inbox.stopping();
            if goes_on {
                way.take(step, &seen.observation);
            }
            goes_on
        });
        if let Some(seen) = put_off {
            self.remember(&task.name, seen);
            return Some(task);
        }
        self.end(task, outcome, stopped, &purpose);
        None
    }

    /// Takes note of how a way ended.
    fn end(&mut self, task: Task, outcome: Went, stopped: Option<Stopped>, purpose: &Purpose) {
        let Task { name, goal, mut way, was_attached } = task;
        let name = name.as_str();
        if let Ok(Some(end)) = &outcome {
            way.hear(end.seen().undone.as_deref());
        }
        let drift = way.drift();
        let (was_attached, repaired) = (was_attached || way.is_repair(), way.is_repair());
        self.record(name, way, outcome.as_ref().err());
        if repaired && matches!(outcome, Ok(Some(Outcome::Done(_)))) {
            tracing::warn!(nic = name, "{REPAIRED}");
        }
        match (outcome, stopped) {
            (_, Some(Stopped::Unguarded(why))) => {
                self.failed(name, Reason::Timeout, format!("nobody can stand by for {name}: {why}"));
            }
            (_, Some(Stopped::Overdue)) => self.roll_back(name, Reason::Timeout, "it was not attached and confirmed in time"),
            (Ok(Some(Outcome::Done(seen))), None) => {
                self.done(name, goal, *seen, purpose);
                if goal == Goal::Attached {
                    self.found.insert(name.to_owned(), drift);
                }
            }
            (Ok(Some(Outcome::Wait(wait, seen))), None) => {
                let message = status::words_of_wait(name, wait, &seen);
                self.remember(name, *seen);
                self.failed(name, status::reason_of_wait(wait), message);
            }
            (Err(error), None) => self.step_failed(name, goal, was_attached, &error),
            (Ok(None), None) => {}
        }
    }

    /// Goes on with what was put off, when no NIC needs anything any more that can be had at once. Who would wait for ports in vain, as one before it did,
    /// does not.
    pub(super) fn go_on(&mut self, tasks: Vec<Task>, inbox: &NodeInbox) {
        let mut in_vain: Option<String> = None;
        for task in tasks {
            if inbox.stopping() {
                return;
            }
            let (name, goal) = (task.name.clone(), task.goal);
            match &in_vain {
                Some(why) if goal == Goal::Attached => {
                    self.record(&name, task.way, None);
                    self.fell_short(&name, Reason::Timeout, why, task.was_attached);
                }
                _ => drop(self.go(task, inbox, true)),
            }
            self.publish();
            let trouble = self.nics.get(&name).and_then(|nic| nic.trouble.as_ref());
            let timed_out = trouble.filter(|trouble| trouble.reason == Reason::Timeout && goal == Goal::Attached);
            if let Some(trouble) = timed_out.filter(|_| !self.parts.handover.switch_answers()) {
                in_vain = Some(trouble.message.clone());
            }
        }
    }

    /// Takes note of the steps that were taken, if any.
    fn record(&self, name: &str, way: Way, error: Option<&HandoverError>) {
        let nic = self.nics.get(name);
        let mut triggers: Vec<&'static str> = self.triggers.iter().copied().collect();
        if triggers.is_empty() {
            triggers.push(if nic.is_some_and(|nic| nic.pace.failures() > 0) { "retry" } else { "verify" });
        }
        let names = status::names(name, nic.and_then(|nic| nic.seen.as_ref()), &self.parts.bridge);
        let failure = error.map(ToString::to_string);
        if let Some(record) = way.end(&names, failure.as_deref(), triggers, &self.parts.published.counters) {
            self.parts.diary.record(record);
        }
    }

    fn done(&mut self, name: &str, goal: Goal, seen: Seen, purpose: &Purpose) {
        if goal == Goal::Plain {
            self.watch_routes(name, None);
            let nic = self.nics.get_mut(name);
            if let Some(nic) = nic.filter(|nic| nic.chosen.is_some()) {
                nic.pace.succeed();
                (nic.trouble, nic.unproved) = (None, None);
                self.remember(name, seen);
            } else {
                tracing::info!(nic = name, "given back");
                self.nics.remove(name);
            }
            return;
        }
        let notes = seen.journal.as_ref().map_or_else(|| purpose.notes.clone(), |journal| notes_of(journal, purpose));
        let is_unmarked = seen.pair.as_ref().is_some_and(|pair| pair.is_unmarked);
        let mut noted = !is_unmarked && seen.pair.as_ref().is_none_or(|pair| pair.notes == notes);
        if !noted {
            match self.parts.handover.write_notes(name, &notes) {
                Ok(()) => {
                    noted = true;
                    if is_unmarked {
                        self.marked_again(name);
                    }
                }
                Err(error) => tracing::warn!(nic = name, %error, "what is remembered beside the ports could not be written"),
            }
        }
        self.watch_routes(name, Some(&seen));
        let confirmed = seen.journal.as_ref().is_some_and(|journal| journal.confirmed);
        let Some(nic) = self.nics.get_mut(name) else { return };
        nic.pace.succeed();
        (nic.trouble, nic.noted) = (None, noted);
        if nic.unproved.is_none() && !nic.seen.as_ref().is_some_and(status::is_attached) {
            tracing::info!(nic = name, "attached");
        }
        nic.seen = Some(seen);
        if confirmed {
            nic.unproved = None;
        } else {
            nic.unproved.get_or_insert_with(|| self.parts.store.last_heard());
            nic.pace.look_at(Instant::now() + Duration::from_secs(1));
            let attachment = nic.seen.as_ref().and_then(|seen| seen.journal.as_ref()).map(|journal| journal.attachment.clone());
            // It may have ended with an agent before this one, or by somebody's hand.
            if let Some(Err(why)) = attachment.map(|attachment| self.parts.guardian.stand_by(name, &attachment)) {
                tracing::warn!(nic = name, %why, "nobody can stand by");
            }
            self.await_confirmation(name);
        }
    }

    /// Takes note that somebody had taken from a port what says whose it is, and that it says so again.
    fn marked_again(&mut self, name: &str) {
        tracing::warn!(nic = name, "{REPAIRED}");
        self.parts.published.counters.drift.fetch_add(1, Ordering::Relaxed);
        self.parts.diary.record(NodeRecord {
            started: status::wall_now(),
            elapsed_us: 0,
            triggers: self.triggers.iter().copied().collect(),
            drift: vec![format!("{name}: a port of it did not say whose it is")],
            steps: vec![(format!("{name}: write beside its ports whose they are"), "done".to_owned())],
        });
    }

    /// Until it is watched again, what nobody tells of is found by the regular look.
    fn watch_routes(&mut self, name: &str, attached: Option<&Seen>) {
        let attached = attached.and_then(|seen| Some((seen.holder.as_ref()?.ifindex, seen.journal.as_ref()?)));
        let Some((port, journal)) = attached else { return self.parts.routes.forget(name) };
        if let Err(error) = self.parts.routes.watch(name, port, journal.config.routes.iter()) {
            tracing::warn!(nic = name, %error, "routes are not watched");
        }
    }

    fn step_failed(&mut self, name: &str, goal: Goal, was_attached: bool, error: &HandoverError) {
        let (reason, text) = (status::reason_of(error), error.to_string());
        if let Ok(seen) = self.parts.handover.observe(name) {
            self.remember(name, seen);
        }
        if goal == Goal::Plain {
            return self.failed(name, reason, text);
        }
        self.fell_short(name, reason, &text, was_attached);
    }

    /// The way behind the bridge was not gone to its end. An attachment that cannot be mended is given up after a while.
    fn fell_short(&mut self, name: &str, reason: Reason, why: &str, was_attached: bool) {
        let Some(nic) = self.nics.get(name) else { return };
        let since = nic.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        let is_mended = nic.seen.as_ref().is_some_and(|seen| seen.observation.journal == JournalState::Attached);
        if (was_attached || is_mended) && since.elapsed() < RESCUE_AFTER {
            return self.failed(name, reason, why.to_owned());
        }
        self.roll_back(name, reason, why);
    }

    /// Weighs what this look has found. Flows are put up for all NICs by the first one that lacks them: the others would not seem to miss anything.
    pub(super) fn bear_with_all(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        if found.values().any(|drift| drift.contains(&FLOWS_LACK)) {
            found.values_mut().filter(|drift| !drift.contains(&FLOWS_LACK)).for_each(|drift| drift.push(FLOWS_LACK));
        }
        for (name, drift) in found {
            self.bear_with(&name, drift);
        }
    }

    /// What others undo again and again is given up for now: the host is better off with its NIC as it was found.
    fn bear_with(&mut self, name: &str, drift: Vec<&'static str>) {
        let Some(nic) = self.nics.get_mut(name) else { return };
        let (now, found) = (Instant::now(), drift.join(", "));
        if !nic.strife.is_enough(drift, now) {
            return;
        }
        nic.pace.count(nic.strife.give_up(now));
        self.roll_back(name, Reason::Contended, &format!("somebody undoes at once what is put right ({found})"));
    }

    /// Goes back as far as it gets now; the next attempt comes after the delay.
    pub(super) fn roll_back(&mut self, name: &str, reason: Reason, why: &str) {
        tracing::warn!(nic = name, why, "undoing");
        self.parts.published.counters.rolled_back.fetch_add(1, Ordering::Relaxed);
        let purpose = self.purpose(name);
        let mut way = Way::to(Goal::Plain);
        let outcome = self.parts.handover.drive(name, Goal::Plain, &purpose, |step, seen| {
            way.hear(seen.undone.as_deref());
            way.take(step, &seen.observation);
            true
        });
        if let Ok(Some(end)) = &outcome {
            way.hear(end.seen().undone.as_deref());
        }
        self.record(name, way, outcome.as_ref().err());
        let message = match outcome {
            Ok(Some(Outcome::Done(seen))) => {
                self.remember(name, *seen);
                format!("{why}; everything was undone")
            }
            Ok(Some(Outcome::Wait(wait, seen))) => {
                format!("{why}; undone as far as possible: {}", status::words_of_wait(name, wait, &seen))
            }
            Ok(None) => why.to_owned(),
            Err(error) => format!("{why}; and undoing it failed: {error}"),
        };
        if let Some(nic) = self.nics.get_mut(name) {
            nic.unproved = None;
        }
        self.failed(name, reason, message);
    }

    pub(super) fn failed(&mut self, name: &str, reason: Reason, message: String) {
        let Some(nic) = self.nics.get_mut(name) else { return };
        let delay = nic.pace.fail(nic.begun, Instant::now());
        self.parts.published.counters.retries.fetch_add(1, Ordering::Relaxed);
        let since = nic.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        tracing::warn!(nic = name, %reason, attempt = nic.pace.failures(), retry_in = ?delay, "{message}");
        nic.trouble = Some(Trouble { reason, message, since });
    }

    /// What was gone, or somebody else's, when it was tried last, and is not any more, is not kept waiting for the next attempt.
    pub(super) fn hurry(&mut self) {
        let away = |seen: &Seen| seen.observation.nic == NicPlace::Gone || seen.observation.claimed != Claimed::ByNobodyElse;
        let waits = |nic: &Nic| nic.pace.failures() > 0 && nic.goal == Goal::Attached && nic.seen.as_ref().is_some_and(away);
        let names: Vec<String> = self.nics.iter().filter(|(_, nic)| waits(nic)).map(|(name, _)| name.clone()).collect();
        for name in names {
            if self.parts.handover.observe(&name).is_ok_and(|seen| !away(&seen))
                && let Some(nic) = self.nics.get_mut(&name)
            {
                nic.pace.hurry(Instant::now());
            }
        }
    }

    pub(super) fn remember(&mut self, name: &str, seen: Seen) {
        if let Some(nic) = self.nics.get_mut(name) {
            nic.seen = Some(seen);
        }
    }

    fn purpose(&self, name: &str) -> Purpose {
        let chosen = self.nics.get(name).and_then(|nic| nic.chosen.as_ref());
        self.wishes.purpose(name, chosen)
    }
}

/// A way that is being gone.
pub(super) struct Task {
    name: String,
    goal: Goal,
    way: Way,
    was_attached: bool,
}

impl Task {
    /// The NIC.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// How a way ended, if nobody stopped it.
type Went = Result<Option<Outcome>, HandoverError>;

/// Whether a step may be kept waiting by a switch, while other NICs need what can be had at once. One that is not attached yet needs nothing.
fn may_hang(step: Step, seen: &Observation, switch_answers: bool) -> bool {
    let was_attached = seen.journal != JournalState::Attaching;
    let asks_switch = matches!(step, Step::DeletePorts | Step::InstallFlows | Step::RemoveFlows);
    was_attached && (step == Step::CreatePorts || (asks_switch && !switch_answers))
}

/// Why a way behind the bridge does not go on.
enum Stopped {
    /// Nobody stands by.
    Unguarded(String),
    /// It should have been confirmed by now.
    Overdue,
}

/// Whether a step behind the bridge may be taken: somebody stands by for what is not confirmed, and there is time left for it.
fn admit(nic: &str, step: Step, journal: Option<&Journal>, purpose: &Purpose, guardian: &mut dyn Guardian) -> Result<(), Stopped> {
    if step == Step::SetJournalAside {
        return Ok(());
    }
    let begins = matches!(step, Step::WriteJournal | Step::MarkAttaching);
    let attachment = match journal {
        Some(journal) if !begins && is_overdue(journal, NicKernel::uptime()) => return Err(Stopped::Overdue),
        Some(journal) if !begins && journal.confirmed => return Ok(()),
        Some(journal) if !begins => &journal.attachment,
        _ => &purpose.attachment,
    };
    guardian.stand_by(nic, attachment).map_err(Stopped::Unguarded)
}
