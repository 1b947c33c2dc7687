//! Joins wishes, kernel and Open vSwitch: one thread that brings this host's NICs where its node's wish says, and keeps them there.
//!
//! Interface to the others, all of it without waiting:
//! - in: [`NodeInbox`] takes events of the store (keys below `external/config/v1/node/`), of Open vSwitch and of the kernel, and requests
//!   ([`NodeInbox::confirm`], [`NodeInbox::roll_back`]);
//! - out: [`PublishedNodes`](published::PublishedNodes) holds statuses, references and plans; whoever publishes or serves them subscribes;
//! - [`Guardian`] starts the process that stands by for a dead agent.
//!
//! A NIC's record holds only what is for people and for the pace (since when, how often in a row it failed, when it is due); where the NIC is and what
//! comes next is read anew each time. Before the store's first listing, what the journals say goes on. A wish that is invalid, or a store in HOLD,
//! leaves everything as it is.

mod confirmation;
pub mod diary;
mod drive;
mod dry_run;
pub mod inbox;
pub mod names;
mod pace;
mod parts;
pub mod published;
mod rollback;
mod status;
mod strife;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::external_node::attachment::{Heard, resumed};
use crate::external_node::handover::Seen;
use crate::external_node::phase::Goal;
use crate::external_node::rollback::Rollback;
use crate::linux::nic::NicKernel;
use crate::model::Reason;
use drive::Task;
use inbox::{Batch, NodeInbox};
use pace::Pace;
pub use parts::{Guardian, NameKeeper, NodeParts, StoreState};
use published::NodesView;
use strife::Strife;
use wish::{Chosen, Wishes};

/// How often everything is looked at although nobody told of a change.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long after one NIC was found in trouble the others are looked at again, before anything is waited for.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a look may take until what it has found so far is told.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Shortest time between two looks that the kernel's news cause.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// One NIC that is, or is to be, behind the bridge.
struct Nic {
    goal: Goal,
    chosen: Option<Chosen>,
    pace: Pace,
    strife: Strife,
    /// When it was looked at last.
    begun: Instant,
    trouble: Option<Trouble>,
    /// It stands attached and waits for the store, of which this had been heard by then.
    unproved: Option<Heard>,
    rolled_back: bool,
    /// Whether what is remembered beside its ports is that of the wish.
    noted: bool,
    /// Alternative names that it has, or had before it was touched.
    altnames: BTreeSet<String>,
    seen: Option<Seen>,
}

/// Why a NIC is not where it shall be.
#[derive(Clone, Debug)]
struct Trouble {
    reason: Reason,
    message: String,
    since: Instant,
}

/// The controller.
pub struct NodeController {
    parts: NodeParts,
    wishes: Wishes,
    /// How many listings of the store have come in.
    listings: u64,
    nics: BTreeMap<String, Nic>,
    /// A request to give everything back that holds.
    rollback: Option<Rollback>,
    last_look: Option<Instant>,
    changed: bool,
    /// What woke it since the last look.
    triggers: BTreeSet<&'static str>,
    /// What this look has found missing of those that are attached, and put right.
    found: BTreeMap<String, Vec<&'static str>>,
    /// Whether the wishes were looked at since they are known.
    looked: bool,
    statuses: status::Moments,
}

impl NodeController {
    /// Takes up what the journals tell.
    #[must_use]
    pub fn new(parts: NodeParts) -> Self {
        let wishes = Wishes::new(parts.name.clone(), parts.namespace.clone());
        let rollback = parts.rollbacks.read();
        let mut controller = Self {
            parts,
            wishes,
            listings: 0,
            nics: BTreeMap::new(),
            rollback,
            last_look: None,
            changed: true,
            triggers: BTreeSet::new(),
            found: BTreeMap::new(),
            looked: false,
            statuses: status::Moments::default(),
        };
        controller.resume();
        controller
    }

    /// Runs until the inbox is stopped. What is attached stays attached. `turn` makes the parts anew when another bridge is to be worked with.
    pub fn run(mut self, inbox: &NodeInbox, mut turn: impl FnMut() -> Option<NodeParts>) {
        let mut due = Instant::now();
        loop {
            let batch = inbox.take(due);
            if batch.stop {
                return;
            }
            due = self.pass(batch, inbox);
            if self.parts.is_old_bridge && self.is_done_with_bridge() {
                self.parts.is_old_bridge = false;
                tracing::info!("no NIC stands behind the old bridge any more: the configured one is used from now on");
                if let Some(parts) = turn() {
                    self.parts = parts;
                    (self.changed, due) = (true, Instant::now());
                }
            }
        }
    }

    /// Whether nothing of ours is behind the bridge, nor left on it by a journal that was lost. A NIC that is wished, or was given back on request, may be plain.
    fn is_done_with_bridge(&self) -> bool {
        let plain = |nic: &Nic| nic.seen.as_ref().is_some_and(status::is_plain) && (nic.goal == Goal::Attached || nic.trouble.is_none());
        let no_journal = || self.parts.handover.journals().all().is_ok_and(|all| all.is_empty());
        let no_port = || self.parts.handover.ports().is_some_and(|view| view.pairs.is_empty());
        self.looked && self.nics.values().all(plain) && no_journal() && no_port()
    }

    /// One look at everything that is due; returns when it is due again.
    pub fn pass(&mut self, batch: Batch, inbox: &NodeInbox) -> Instant {
        let now = Instant::now();
        self.take_in(batch, now);
        let rested = self.last_look.is_none_or(|last| now >= last + LOOK_PAUSE);
        let overdue = self.last_look.is_none_or(|last| now >= last + LOOK_EVERY);
        let due = self.nics.values().any(|nic| nic.pace.due() <= now && (nic.pace.failures() > 0 || nic.unproved.is_some()));
        if (self.changed && rested) || overdue || due {
            self.changed = false;
            self.last_look = Some(now);
            self.look(inbox);
        }
        self.next_due()
    }

    /// Only what was looked at is told: a status that answers a wish speaks of what came of it.
    fn look(&mut self, inbox: &NodeInbox) {
        self.take_up_returned();
        self.review_rollback();
        self.choose();
        self.apply_rollback();
        self.hurry();
        self.reserve_names();
        // What begins now may take seconds.
        self.publish();
        let names = self.in_order();
        let mut put_off = self.begin_all(&names, inbox);
        if !put_off.is_empty() {
            self.publish();
            let left: Vec<String> = names.into_iter().filter(|name| put_off.iter().all(|task| task.name() != name)).collect();
            if !left.is_empty() {
                // A switch that dies lets go of its ports one after the other.
                std::thread::sleep(SETTLE);
                put_off.extend(self.begin_all(&left, inbox));
            }
            self.go_on(put_off, inbox);
        }
        self.bear_with_all();
        self.parts.guardian.reap();
        self.triggers.clear();
        self.looked |= self.wishes.are_listed();
        self.reserve_names();
        self.publish();
    }

    fn begin_all(&mut self, names: &[String], inbox: &NodeInbox) -> Vec<Task> {
        let (mut put_off, mut told) = (Vec::new(), Instant::now());
        for name in names {
            if inbox.stopping() {
                break;
            }
            put_off.extend(self.begin(name, inbox));
            // Ports of the first attachment may have been waited for.
            if told.elapsed() > TELL_AFTER {
                self.publish();
                told = Instant::now();
            }
        }
        put_off
    }

    /// All NICs, those first that are attached: what they need is needed most.
    fn in_order(&self) -> Vec<String> {
        let is_attached = |nic: &Nic| nic.seen.as_ref().is_some_and(status::is_attached);
        let mut names: Vec<(bool, String)> = self.nics.iter().map(|(name, nic)| (!is_attached(nic), name.clone())).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name).collect()
    }

    fn next_due(&self) -> Instant {
        let now = Instant::now();
        let regular = self.last_look.map_or(now, |last| if self.changed { last + LOOK_PAUSE } else { last + LOOK_EVERY });
        let waiting = self.nics.values().filter(|nic| nic.pace.failures() > 0 || nic.unproved.is_some());
        let retries = waiting.map(|nic| nic.pace.due().max(now + LOOK_PAUSE));
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
                    let altnames = journal.nic.altnames.iter().cloned().collect();
                    self.nics.insert(journal.name().to_owned(), Nic { altnames, ..Nic::new(goal) });
                }
                Err(error) => tracing::error!(%error, "a NIC cannot be taken up"),
            }
        }
    }

    /// What came back after it was given up is given back now, unless it is wished again.
    fn take_up_returned(&mut self) {
        for name in self.parts.handover.returned() {
            tracing::info!(nic = name, "it came back: it is given what it had");
            self.nics.entry(name).or_insert_with(|| Nic::new(Goal::Plain));
        }
    }

    fn take_in(&mut self, batch: Batch, now: Instant) {
        self.changed |= batch.kernel || batch.switch || !batch.store.is_empty() || batch.store_health;
        let asked = !batch.confirm.is_empty() || !batch.roll_back.is_empty();
        let woke = [(batch.kernel, "kernel"), (batch.switch, "switch"), (!batch.store.is_empty(), "store"), (asked, "request")];
        self.triggers.extend(woke.into_iter().filter_map(|(is, word)| is.then_some(word)));
        self.listings += batch.listings;
        if self.wishes.take(batch.store) {
            // What was wrong may be right now.
            self.nics.values_mut().for_each(|nic| nic.pace.begin_anew(now));
        }
        if batch.switch_turned {
            self.nics.values_mut().filter(|nic| nic.trouble.is_some()).for_each(|nic| nic.pace.hurry(now));
        }
        let ours = self.wishes.is_ours();
        if batch.confirm.iter().any(|node| ours(node)) {
            self.confirm_all();
            self.changed = true;
        }
        for asked in batch.roll_back {
            let told = if ours(&asked.node) { self.take_rollback(now) } else { Err("it is another host's node".to_owned()) };
            let _who_asked_has_gone = asked.answer.send(told);
        }
        for asked in batch.dry_runs {
            let told = dry_run::run(&mut self.parts, &self.wishes, &asked.key, &asked.value);
            let _who_asked_has_gone = asked.answer.send(told);
        }
    }

    /// Which NICs the wish means, and which are to be given back.
    fn choose(&mut self) {
        let Some(wanted) = self.wishes.choose(&mut self.parts.handover, self.parts.allow_managed) else { return };
        for (name, (chosen, altnames)) in wanted {
            let nic = self.nics.entry(name).or_insert_with(|| Nic::new(Goal::Attached));
            if nic.chosen.as_ref() != Some(&chosen) {
                nic.pace.begin_anew(Instant::now());
                nic.noted = false;
            }
            nic.altnames.extend(altnames);
            nic.chosen = Some(chosen);
            nic.goal = Goal::Attached;
        }
        if let Some(view) = self.parts.handover.ports() {
            for orphan in view.pairs.into_keys() {
                self.nics.entry(orphan).or_insert_with(|| Nic::new(Goal::Attached));
            }
        }
        let removals = self.parts.store.removals_allowed(self.listings) && !self.wishes.is_unclear();
        for nic in self.nics.values_mut() {
            if removals && !nic.chosen.as_ref().is_some_and(|chosen| self.wishes.still_wants(chosen)) {
                (nic.chosen, nic.goal) = (None, Goal::Plain);
            }
        }
    }

    fn publish(&mut self) {
        let listed = self.looked && self.wishes.are_listed();
        let view = status::view(&self.parts, &self.wishes, &self.nics, &mut self.statuses);
        self.parts.published.publish(NodesView { listed, ..view });
    }
}

impl Nic {
    fn new(goal: Goal) -> Self {
        Self {
            goal,
            chosen: None,
            pace: Pace::new(Instant::now()),
            strife: Strife::default(),
            begun: Instant::now(),
            trouble: None,
            unproved: None,
            rolled_back: false,
            noted: false,
            altnames: BTreeSet::new(),
            seen: None,
        }
    }
}
