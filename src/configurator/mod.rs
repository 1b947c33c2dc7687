//! The single locked configurator: desired and observed state, a pure plan, a batched apply, a read-back, statuses.
//!
//! One pass at a time: `intake` turns what came in into dirty objects, `work` plans, applies and reads back until the plan is empty, `report` says per
//! object how it stands. Nothing in here waits for the store, for a container runtime or for OVSDB; the lock is held for kernel work only.

pub mod apply;
pub mod book;
pub mod desired;
pub mod inbox;
mod intake;
mod listing;
pub mod memory;
mod notes;
pub mod observed;
pub mod places;
pub mod plan;
pub mod published;
mod report;
pub mod reservations;
pub mod retry;
pub mod status;
pub mod task;
pub mod vpp;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::configurator::desired::{Desired, Key};
use crate::configurator::inbox::Batch;
use crate::configurator::listing::Listing;
use crate::configurator::memory::{HoldState, Memory};
use crate::configurator::observed::Observed;
use crate::configurator::places::Places;
use crate::configurator::plan::{InSync, MOST_MOVES, Settings, World};
use crate::configurator::published::Published;
use crate::configurator::reservations::Reservations;
use crate::configurator::retry::Retries;
use crate::configurator::vpp::VppTaps;
use crate::linux::Kernel;
use crate::model::vpp::VppKey;
use crate::model::{LinkId, NetnsId, NetnsSlot, Owner, ReservedNames, Timestamp};
use crate::namespace::NetnsTracker;
use crate::store::{StoreIdentity, Versioned};

/// How often every namespace in use is read in full, give or take a fifth.
pub const VERIFY_EVERY: Duration = Duration::from_secs(60);

/// A moment, on both clocks: the monotonic one decides, the wall clock is for people.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic.
    pub instant: Instant,
    /// Wall clock.
    pub wall: Timestamp,
}

/// What the configurator works with.
pub struct Parts {
    /// Whose marks count.
    pub owner: Owner,
    /// How wishes are fulfilled.
    pub settings: Settings,
    /// Whether missing named namespaces are made.
    pub create_named: bool,
    /// Whether unmarked pairs may be adopted on the very first start.
    pub adopt_on_first_start: bool,
    /// The kernel.
    pub kernel: Box<dyn Kernel>,
    /// Who resolves references.
    pub tracker: Arc<dyn NetnsTracker>,
    /// What must survive a restart.
    pub memory: Box<dyn Memory>,
    /// Where everything is said.
    pub published: Arc<Published>,
    /// Which names of the agent's own namespace are not to be touched.
    pub reservations: Arc<Reservations>,
    /// Key of this host's node, which an external node's NICs are wished by. They are not this part's, but what holds back removals holds back theirs.
    pub node_key: String,
}

/// The configurator. One lock around it is the product's only lock over kernel work.
pub struct Configurator {
    parts: Parts,
    desired: Desired,
    places: Places,
    observed: Observed,
    retries: Retries,
    /// The listing that is coming in.
    staging: Option<Listing>,
    /// Whether it has this host's node.
    node_staged: bool,
    /// Whether the store has this host's node.
    node_listed: bool,
    /// How many listings were taken in.
    listings: u64,
    /// The latest complete listing, or the events after it.
    listed: Option<StoreIdentity>,
    search_done: bool,
    in_sync: Option<InSync>,
    hold: HoldState,
    /// Namespaces that the kernel part knows.
    attached: BTreeSet<NetnsId>,
    /// The agent's own namespace, once the search has told it. It is watched whether a wish leads there or not: what someone takes out of another
    /// namespace ends up there first of all.
    own: Option<NetnsId>,
    vpp: VppTaps,
    /// VPP's keys in the listing that is coming in.
    vpp_staging: BTreeMap<VppKey, Versioned>,
    /// How many moves this pass may still make.
    moves_left: usize,
    /// When each of them is read in full again.
    verify: BTreeSet<(Instant, NetnsId)>,
    verify_at: HashMap<NetnsId, Instant>,
    /// Events were lost: everything is read again at this moment.
    reread_all: Option<Instant>,
    last_reread: Option<Instant>,
    /// Wishes that the kernel fulfilled, by the revision of the value.
    fulfilled: HashMap<Key, i64>,
    /// What is reserved, as of the last plan.
    reserved: Arc<ReservedNames>,
    todo: Todo,
    /// A pass had very many steps.
    large: bool,
}

/// What the next rounds have to look at.
#[derive(Debug, Default)]
struct Todo {
    /// Objects to be planned.
    dirty: BTreeSet<Key>,
    /// Those of them about which a wish or a namespace changed (the rest: only the kernel did).
    by_wish: BTreeSet<Key>,
    /// Links to be read with their addresses.
    links: BTreeSet<LinkId>,
    /// Links to be read without them.
    settings: BTreeSet<LinkId>,
    /// Links that lacked carrier: if they still do when everything was taken in that the kernel has told, they are asked for it.
    carriers: BTreeSet<LinkId>,
    /// Namespaces to be read in full.
    netns: BTreeSet<NetnsId>,
    /// Namespaces that may have become useless.
    release: BTreeSet<NetnsId>,
    /// What woke the pass.
    triggers: BTreeSet<&'static str>,
    /// References whose entry in the published list of namespaces may have changed.
    slots: BTreeSet<NetnsSlot>,
    /// Where references lead has changed.
    bindings: bool,
}

impl Configurator {
    /// A configurator that knows nothing yet. It changes nothing before the first complete listing and the search of the host's namespaces.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let observed = Observed::new(parts.owner.clone());
        Self {
            parts,
            desired: Desired::default(),
            places: Places::default(),
            observed,
            retries: Retries::default(),
            staging: None,
            node_staged: false,
            node_listed: false,
            listings: 0,
            listed: None,
            search_done: false,
            in_sync: None,
            hold: None,
            attached: BTreeSet::new(),
            own: None,
            vpp: VppTaps::default(),
            vpp_staging: BTreeMap::new(),
            moves_left: MOST_MOVES,
            verify: BTreeSet::new(),
            verify_at: HashMap::new(),
            reread_all: None,
            last_reread: None,
            fulfilled: HashMap::new(),
            reserved: Arc::default(),
            todo: Todo::default(),
            large: false,
        }
    }

    /// One pass over everything that came in; returns when the next one is due by itself.
    pub fn pass(&mut self, batch: Batch, now: Now) -> Instant {
        let clock = Instant::now();
        self.moves_left = MOST_MOVES;
        self.todo.triggers.extend((!self.todo.dirty.is_empty()).then_some("queue"));
        self.take_in(batch, now);
        self.ask_for_carriers(now);
        self.look(now);
        if self.hold.is_some() && self.in_sync.is_some() && self.todo.triggers.contains("store") {
            self.review_hold();
        }
        if let Some(proof) = self.synchronised() {
            let work = self.work(proof, now);
            self.report(work, now, clock);
        }
        self.release();
        self.tell_progress(now);
        self.parts.published.count_pass(clock.elapsed());
        self.next_due(now)
    }

    /// Whether there was a pass, since this was asked last, that left much memory behind which is needed no more.
    pub(in crate::configurator) fn was_large(&mut self) -> bool {
        std::mem::take(&mut self.large)
    }

    /// The proof that planning needs, as soon as it can be had.
    fn synchronised(&mut self) -> Option<InSync> {
        if self.in_sync.is_none() && self.search_done && self.listed.is_some() {
            self.in_sync = Some(InSync::after_first_listing_and_search());
            self.judge_first_listing();
        }
        self.in_sync
    }

    fn world(&self) -> World<'_> {
        World {
            owner: &self.parts.owner,
            desired: &self.desired,
            places: &self.places,
            observed: &self.observed,
            own: self.own,
            vpp: &self.vpp,
            reserved: &self.reserved,
            moves_left: self.moves_left,
            settings: Settings { hold: self.hold.is_some(), ..self.parts.settings },
        }
    }

    fn next_due(&self, now: Now) -> Instant {
        let more = !self.todo.dirty.is_empty() || !self.todo.carriers.is_empty();
        if more && self.in_sync.is_some() {
            return now.instant;
        }
        let candidates = [self.retries.next(), self.verify.first().map(|(at, _)| *at), self.reread_all];
        candidates.into_iter().flatten().min().unwrap_or(now.instant + VERIFY_EVERY)
    }
}

#[cfg(test)]
mod tests;
