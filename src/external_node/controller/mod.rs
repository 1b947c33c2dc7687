//! Joins wishes, kernel and Open vSwitch: one thread that brings this host's NICs where its node's wish says, and keeps them there.
//!
//! Interface to the others, all of it without waiting:
//! - in: [`NodeInbox`] takes events of the store (keys below `external/config/v1/node/`), of Open vSwitch and of the kernel, and requests
//!   ([`NodeInbox::confirm`], [`NodeInbox::roll_back`]);
//! - out: [`PublishedNodes`] holds statuses, references and plans; whoever publishes or serves them subscribes;
//! - [`Guardian`] starts the process that stands by for a dead agent.
//!
//! A NIC's record holds only what is for people and for the pace (since when, how often in a row it failed, when it is due); where the NIC is and what
//! comes next is read anew each time. Before the store's first listing, what the journals say goes on. A wish that is invalid, or a store in HOLD,
//! leaves everything as it is.

pub mod diary;
mod dry_run;
pub mod inbox;
pub mod published;
mod status;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::external_node::attachment::{is_overdue, resumed};
use crate::external_node::handover::{Handover, HandoverError, Outcome, Purpose, Seen};
use crate::external_node::journal::Journal;
use crate::external_node::phase::{Goal, JournalState, Step};
use crate::linux::nic::{NicKernel, RouteWatch};
use crate::model::{InterfaceName, Timestamp};
use diary::{Diary, Way};
use inbox::{Batch, NodeInbox};
use published::{NodesView, PublishedNodes};
use wish::{Chosen, Wishes};

/// Delays after failures in a row: the first, doubled each time, and the longest (as Antrea has them).
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LONGEST: Duration = Duration::from_secs(300);
/// How often everything is looked at although nobody told of a change.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Shortest time between two looks that the kernel's news cause.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How long an attached NIC may be in trouble before it is given back for the time being.
const RESCUE_AFTER: Duration = Duration::from_secs(30);

/// Starts the process that stands by.
pub trait Guardian: Send {
    /// Sees to it that one stands by for this attachment of a NIC: the first call comes before the journal speaks of it, and each one starts another
    /// process where that one has ended.
    ///
    /// # Errors
    /// A sentence; the NIC is not touched then.
    fn stand_by(&mut self, nic: &str, attachment: &str) -> Result<(), String>;
}

/// What the controller asks about the store.
pub trait StoreState: Send {
    /// When the store was last heard of; `None` when it cannot be out of reach.
    fn last_heard(&self) -> Option<Timestamp>;
    /// Whether what is missing in the store may be removed (no HOLD).
    fn removals_allowed(&self) -> bool;
}

/// What the controller is made of.
pub struct NodeParts {
    /// Takes the steps.
    pub handover: Handover,
    /// Stands by.
    pub guardian: Box<dyn Guardian>,
    /// The store.
    pub store: Box<dyn StoreState>,
    /// Tells the inbox when routes of NICs that are attached are gone.
    pub routes: RouteWatch,
    /// The public face.
    pub published: Arc<PublishedNodes>,
    /// Remembers what was done.
    pub diary: Box<dyn Diary>,
    /// Our node's name.
    pub name: InterfaceName,
    /// Its Kubernetes namespace.
    pub namespace: InterfaceName,
    /// The bridge, for statuses.
    pub bridge: String,
    /// Whether NICs may be taken from DHCP clients and network managers.
    pub allow_managed: bool,
}

/// One NIC that is, or is to be, behind the bridge.
struct Nic {
    goal: Goal,
    chosen: Option<Chosen>,
    /// Failures in a row.
    attempt: u32,
    due: Instant,
    trouble: Option<Trouble>,
    /// Since when it stands attached and waits for the store.
    attached_at: Option<Timestamp>,
    rolled_back: bool,
    /// Whether what is remembered beside its ports is that of the wish.
    noted: bool,
    seen: Option<Seen>,
}

/// Why a NIC is not where it shall be.
#[derive(Clone, Debug)]
struct Trouble {
    reason: crate::model::Reason,
    message: String,
    since: Instant,
}

/// The controller.
pub struct NodeController {
    parts: NodeParts,
    wishes: Wishes,
    nics: BTreeMap<String, Nic>,
    last_look: Option<Instant>,
    changed: bool,
    /// What woke it since the last look.
    triggers: BTreeSet<&'static str>,
    /// Whether the wishes were looked at since they are known.
    looked: bool,
    statuses: status::Moments,
}

impl NodeController {
    /// Takes up what the journals tell.
    #[must_use]
    pub fn new(parts: NodeParts) -> Self {
        let wishes = Wishes::new(parts.name.clone(), parts.namespace.clone());
        let mut controller = Self {
            parts,
            wishes,
            nics: BTreeMap::new(),
            last_look: None,
            changed: true,
            triggers: BTreeSet::new(),
            looked: false,
            statuses: status::Moments::default(),
        };
        controller.resume();
        controller
    }

    /// Runs until the inbox is stopped. What is attached stays attached.
    pub fn run(mut self, inbox: &NodeInbox) {
        let mut due = Instant::now();
        loop {
            let batch = inbox.take(due);
            if batch.stop {
                return;
            }
            due = self.pass(batch, inbox);
        }
    }

    /// One look at everything that is due; returns when it is due again.
    pub fn pass(&mut self, batch: Batch, inbox: &NodeInbox) -> Instant {
        let now = Instant::now();
        self.take_in(batch, now);
        let rested = self.last_look.is_none_or(|last| now >= last + LOOK_PAUSE);
        let overdue = self.last_look.is_none_or(|last| now >= last + LOOK_EVERY);
        let due = self.nics.values().any(|nic| nic.due <= now && (nic.attempt > 0 || nic.attached_at.is_some()));
        if (self.changed && rested) || overdue || due {
            self.changed = false;
            self.last_look = Some(now);
            self.look(inbox);
        }
        self.next_due()
    }

    /// Only what was looked at is told: a status that answers a wish speaks of what came of it.
    fn look(&mut self, inbox: &NodeInbox) {
        self.choose();
        // What begins now may take seconds.
        self.publish();
        let names: Vec<String> = self.nics.keys().cloned().collect();
        for name in names {
            if inbox.stopping() {
                break;
            }
            self.work_on(&name, inbox);
        }
        self.triggers.clear();
        self.looked |= self.wishes.are_listed();
        self.publish();
    }

    fn next_due(&self) -> Instant {
        let now = Instant::now();
        let regular = self.last_look.map_or(now, |last| if self.changed { last + LOOK_PAUSE } else { last + LOOK_EVERY });
        let retries =
            self.nics.values().filter(|nic| nic.attempt > 0 || nic.attached_at.is_some()).map(|nic| nic.due.max(now + LOOK_PAUSE));
        retries.chain([regular]).min().unwrap_or(regular)
    }

    /// From the journals alone, before the store can be reached.
    fn resume(&mut self) {
        let journals = match self.parts.handover.journals().all() {
            Ok(journals) => journals,
            Err(error) => {
                tracing::error!(%error, "the journals cannot be listed");
                return;
            }
        };
        for journal in journals {
            match journal {
                Ok(journal) => {
                    let goal = resumed(&journal, self.parts.handover.boot_id(), NicKernel::uptime());
                    tracing::info!(nic = journal.name(), ?goal, "taking up what the journal tells");
                    self.nics.insert(journal.name().to_owned(), Nic::new(goal));
                }
                Err(error) => tracing::error!(%error, "a NIC cannot be taken up"),
            }
        }
    }

    fn take_in(&mut self, batch: Batch, now: Instant) {
        self.changed |= batch.kernel || batch.switch || !batch.store.is_empty() || batch.store_health;
        let asked = !batch.confirm.is_empty() || !batch.roll_back.is_empty();
        let woke = [(batch.kernel, "kernel"), (batch.switch, "switch"), (!batch.store.is_empty(), "store"), (asked, "request")];
        self.triggers.extend(woke.into_iter().filter_map(|(is, word)| is.then_some(word)));
        if self.wishes.take(batch.store) {
            // What was wrong may be right now.
            self.nics.values_mut().for_each(|nic| (nic.due, nic.rolled_back) = (now, false));
        }
        if batch.switch {
            self.nics.values_mut().filter(|nic| nic.trouble.is_some()).for_each(|nic| nic.due = now);
        }
        let ours = self.wishes.is_ours();
        if batch.confirm.iter().any(|node| ours(node)) {
            self.confirm_all();
            self.changed = true;
        }
        if batch.roll_back.iter().any(|node| ours(node)) {
            self.changed = true;
            self.nics.values_mut().for_each(|nic| (nic.rolled_back, nic.due) = (true, now));
        }
        for asked in batch.dry_runs {
            let told = dry_run::run(&mut self.parts, &self.wishes, &asked.key, &asked.value);
            let _who_asked_has_gone = asked.answer.send(told);
        }
    }

    /// Which NICs the wish means, and which are to be given back.
    fn choose(&mut self) {
        let Some(wanted) = self.wishes.choose(&mut self.parts.handover, self.parts.allow_managed) else { return };
        for (name, chosen) in wanted {
            let nic = self.nics.entry(name).or_insert_with(|| Nic::new(Goal::Attached));
            if nic.chosen.as_ref() != Some(&chosen) {
                (nic.due, nic.noted) = (Instant::now(), false);
            }
            nic.chosen = Some(chosen);
            nic.goal = if nic.rolled_back { Goal::Plain } else { Goal::Attached };
        }
        for orphan in self.parts.handover.known_pairs() {
            self.nics.entry(orphan).or_insert_with(|| Nic::new(Goal::Attached));
        }
        let removals = self.parts.store.removals_allowed() && !self.wishes.is_unclear();
        for nic in self.nics.values_mut() {
            if removals && !nic.chosen.as_ref().is_some_and(|chosen| self.wishes.still_wants(chosen)) {
                (nic.chosen, nic.goal) = (None, Goal::Plain);
            }
        }
    }

    fn work_on(&mut self, name: &str, inbox: &NodeInbox) {
        let now = Instant::now();
        let Some(nic) = self.nics.get_mut(name) else { return };
        if nic.due > now && nic.attempt > 0 {
            return;
        }
        let (goal, waiting) = (nic.goal, nic.attached_at.is_some());
        if waiting && self.was_given_back(name) {
            return;
        }
        let purpose = self.purpose(name);
        let was_attached = self.nics.get(name).and_then(|nic| nic.seen.as_ref()).is_some_and(status::is_attached);
        let guardian = &mut self.parts.guardian;
        let mut stopped = None;
        let mut way = Way::to(goal);
        let outcome = self.parts.handover.drive(name, goal, &purpose, |step, seen| {
            if goal == Goal::Attached {
                stopped = admit(name, step, seen.journal.as_ref(), &purpose, guardian.as_mut()).err();
            }
            let goes_on = stopped.is_none() && !inbox.stopping();
            if goes_on {
                way.take(step, &seen.observation);
            }
            goes_on
        });
        let (was_attached, repaired) = (was_attached || way.is_repair(), way.is_repair());
        self.record(name, way, outcome.as_ref().err());
        if repaired && matches!(outcome, Ok(Some(Outcome::Done(_)))) {
            tracing::warn!(nic = name, "what others had changed is repaired");
        }
        match (outcome, stopped) {
            (_, Some(Stopped::Unguarded(why))) => {
                self.failed(name, crate::model::Reason::Timeout, format!("nobody can stand by for {name}: {why}"));
            }
            (_, Some(Stopped::Overdue)) => self.roll_back(name, "it was not attached and confirmed in time"),
            (Ok(Some(Outcome::Done(seen))), None) => self.done(name, goal, *seen, &purpose),
            (Ok(Some(Outcome::Wait(wait, seen))), None) => {
                self.remember(name, *seen);
                self.failed(name, status::reason_of_wait(wait), format!("{name}: {wait}"));
            }
            (Ok(None), None) => {}
            (Err(error), None) => self.step_failed(name, goal, was_attached, &error),
        }
    }

    /// Takes note of the steps that were taken, if any.
    fn record(&self, name: &str, way: Way, error: Option<&HandoverError>) {
        let nic = self.nics.get(name);
        let mut triggers: Vec<&'static str> = self.triggers.iter().copied().collect();
        if triggers.is_empty() {
            triggers.push(if nic.is_some_and(|nic| nic.attempt > 0) { "retry" } else { "verify" });
        }
        let names = status::names(name, nic.and_then(|nic| nic.seen.as_ref()), &self.parts.bridge);
        let failure = error.map(ToString::to_string);
        if let Some(record) = way.end(&names, failure.as_deref(), triggers, &self.parts.published.counters) {
            self.parts.diary.record(record);
        }
    }

    /// Whether somebody else, the process that stands by, has undone an attachment that was not confirmed.
    fn was_given_back(&mut self, name: &str) -> bool {
        let Ok(seen) = self.parts.handover.observe(name) else { return false };
        if matches!(seen.observation.journal, JournalState::Attaching | JournalState::Attached) {
            return false;
        }
        self.remember(name, seen);
        if let Some(nic) = self.nics.get_mut(name) {
            nic.attached_at = None;
        }
        self.parts.published.counters.taken_over.fetch_add(1, Ordering::Relaxed);
        let message = format!("the attachment of {name} was not confirmed in time, and was undone");
        self.failed(name, crate::model::Reason::Timeout, message);
        true
    }

    fn done(&mut self, name: &str, goal: Goal, seen: Seen, purpose: &Purpose) {
        if goal == Goal::Plain {
            self.watch_routes(name, None);
            let nic = self.nics.get_mut(name);
            if let Some(nic) = nic.filter(|nic| nic.chosen.is_some()) {
                (nic.attempt, nic.trouble, nic.attached_at) = (0, None, None);
                self.remember(name, seen);
            } else {
                tracing::info!(nic = name, "given back");
                self.nics.remove(name);
            }
            return;
        }
        let mut noted = seen.pair.as_ref().is_none_or(|pair| pair.notes == purpose.notes);
        if !noted {
            match self.parts.handover.write_notes(name, &purpose.notes) {
                Ok(()) => noted = true,
                Err(error) => tracing::warn!(nic = name, %error, "what is remembered beside the ports could not be written"),
            }
        }
        self.watch_routes(name, Some(&seen));
        let confirmed = seen.journal.as_ref().is_some_and(|journal| journal.confirmed);
        let Some(nic) = self.nics.get_mut(name) else { return };
        (nic.attempt, nic.trouble, nic.noted) = (0, None, noted);
        if nic.attached_at.is_none() && !nic.seen.as_ref().is_some_and(status::is_attached) {
            tracing::info!(nic = name, "attached");
        }
        nic.seen = Some(seen);
        if confirmed {
            nic.attached_at = None;
        } else {
            nic.attached_at.get_or_insert_with(status::wall_now);
            nic.due = Instant::now() + Duration::from_secs(1);
            let attachment = nic.seen.as_ref().and_then(|seen| seen.journal.as_ref()).map(|journal| journal.attachment.clone());
            // It may have ended with an agent before this one, or by somebody's hand.
            if let Some(Err(why)) = attachment.map(|attachment| self.parts.guardian.stand_by(name, &attachment)) {
                tracing::warn!(nic = name, %why, "nobody can stand by");
            }
            self.await_confirmation(name);
        }
    }

    /// Until it is watched again, what nobody tells of is found by the regular look.
    fn watch_routes(&mut self, name: &str, attached: Option<&Seen>) {
        let routes = attached.and_then(|seen| seen.journal.as_ref()).into_iter().flat_map(|journal| &journal.config.routes);
        if let Err(error) = self.parts.routes.watch(name, routes) {
            tracing::warn!(nic = name, %error, "routes are not watched");
        }
    }

    /// The host reached its store after the NIC was moved: that is the proof. Not in time: the way back.
    fn await_confirmation(&mut self, name: &str) {
        let Some(nic) = self.nics.get(name) else { return };
        let (Some(attached_at), Some(journal)) = (nic.attached_at, nic.seen.as_ref().and_then(|seen| seen.journal.clone())) else { return };
        let proved = self.parts.store.last_heard().is_none_or(|heard| heard > attached_at) && self.wishes.are_listed();
        if proved {
            self.confirm(name, &journal.attachment);
        } else if is_overdue(&journal, NicKernel::uptime()) {
            self.roll_back(name, "the store could not be reached after the NIC was moved");
        }
    }

    fn confirm(&mut self, name: &str, attachment: &str) {
        match self.parts.handover.confirm_attachment(name, attachment) {
            Ok(true) => {
                tracing::info!(nic = name, "confirmed: the host reaches its store");
                if let Some(nic) = self.nics.get_mut(name) {
                    nic.attached_at = None;
                    if let Some(journal) = nic.seen.as_mut().and_then(|seen| seen.journal.as_mut()) {
                        journal.confirmed = true;
                    }
                }
            }
            // The next look tells that it was undone.
            Ok(false) => tracing::info!(nic = name, "the confirmation came too late"),
            Err(error) => tracing::warn!(nic = name, %error, "the confirmation could not be written"),
        }
    }

    fn confirm_all(&mut self) {
        let names: Vec<String> = self.nics.iter().filter(|(_, nic)| nic.attached_at.is_some()).map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(journal) = self.nics.get(&name).and_then(|nic| nic.seen.as_ref()).and_then(|seen| seen.journal.clone()) {
                self.confirm(&name, &journal.attachment);
            }
        }
    }

    fn step_failed(&mut self, name: &str, goal: Goal, was_attached: bool, error: &HandoverError) {
        let (reason, text) = (status::reason_of(error), error.to_string());
        let since = self.nics.get(name).and_then(|nic| nic.trouble.as_ref()).map_or_else(Instant::now, |trouble| trouble.since);
        if let Ok(seen) = self.parts.handover.observe(name) {
            self.remember(name, seen);
        }
        if goal == Goal::Plain {
            return self.failed(name, reason, text);
        }
        if was_attached && since.elapsed() < RESCUE_AFTER {
            return self.failed(name, reason, text);
        }
        self.roll_back(name, &text);
        if let Some(trouble) = self.nics.get_mut(name).and_then(|nic| nic.trouble.as_mut()) {
            trouble.reason = reason;
        }
    }

    /// Goes back as far as it gets now; the next attempt comes after the delay.
    fn roll_back(&mut self, name: &str, why: &str) {
        tracing::warn!(nic = name, why, "undoing");
        self.parts.published.counters.rolled_back.fetch_add(1, Ordering::Relaxed);
        let purpose = self.purpose(name);
        let mut way = Way::to(Goal::Plain);
        let outcome = self.parts.handover.drive(name, Goal::Plain, &purpose, |step, seen| {
            way.take(step, &seen.observation);
            true
        });
        self.record(name, way, outcome.as_ref().err());
        let message = match outcome {
            Ok(Some(Outcome::Done(seen))) => {
                self.remember(name, *seen);
                format!("{why}; everything was undone")
            }
            Ok(Some(Outcome::Wait(wait, _))) => format!("{why}; undone as far as possible: {wait}"),
            Ok(None) => why.to_owned(),
            Err(error) => format!("{why}; and undoing it failed: {error}"),
        };
        if let Some(nic) = self.nics.get_mut(name) {
            nic.attached_at = None;
        }
        self.failed(name, crate::model::Reason::Timeout, message);
    }

    fn failed(&mut self, name: &str, reason: crate::model::Reason, message: String) {
        let Some(nic) = self.nics.get_mut(name) else { return };
        let delay = RETRY_FIRST.saturating_mul(1 << nic.attempt.min(6)).min(RETRY_LONGEST);
        nic.attempt += 1;
        self.parts.published.counters.retries.fetch_add(1, Ordering::Relaxed);
        nic.due = Instant::now() + delay;
        let since = nic.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        tracing::warn!(nic = name, %reason, attempt = nic.attempt, retry_in = ?delay, "{message}");
        nic.trouble = Some(Trouble { reason, message, since });
    }

    fn remember(&mut self, name: &str, seen: Seen) {
        if let Some(nic) = self.nics.get_mut(name) {
            nic.seen = Some(seen);
        }
    }

    fn purpose(&self, name: &str) -> Purpose {
        let chosen = self.nics.get(name).and_then(|nic| nic.chosen.as_ref());
        self.wishes.purpose(name, chosen)
    }

    fn publish(&mut self) {
        let listed = self.looked && self.wishes.are_listed();
        let view = status::view(&self.parts, &self.wishes, &self.nics, &mut self.statuses);
        self.parts.published.publish(NodesView { listed, ..view });
    }
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
    let begins = matches!(step, Step::WriteJournal | Step::MarkAttaching);
    let attachment = match journal {
        Some(journal) if !begins && is_overdue(journal, NicKernel::uptime()) => return Err(Stopped::Overdue),
        Some(journal) if !begins && journal.confirmed => return Ok(()),
        Some(journal) if !begins => &journal.attachment,
        _ => &purpose.attachment,
    };
    guardian.stand_by(nic, attachment).map_err(Stopped::Unguarded)
}

impl Nic {
    fn new(goal: Goal) -> Self {
        Self {
            goal,
            chosen: None,
            attempt: 0,
            due: Instant::now(),
            trouble: None,
            attached_at: None,
            rolled_back: false,
            noted: false,
            seen: None,
        }
    }
}
