//! Every decision: what is to be done for a set of wishes, in which order, and what to say about each of them.
//!
//! Pure: no I/O, no clock, no async. The same inputs give the same plan. A plan is a value: the log, the history, the golden tests and the dry
//! run all show it. A settled system plans nothing.

mod auto_tap;
mod check;
mod end;
mod names;
mod pair;
mod remove;
mod render;
mod reserved;
mod tap;
mod verdict;

pub use auto_tap::MOST_MOVES;
pub use check::{Violation, check};

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::configurator::desired::{Desired, Key};
use crate::configurator::observed::Observed;
use crate::configurator::places::Places;
use crate::configurator::vpp::VppTaps;
use crate::model::{ExpectedMark, LinkChange, NewAddress, NewLink, NewTap};
use crate::model::{FieldError, HostIfName, InterfaceAddress, LinkId, NetnsId, Owner, Reason, ReservedNames};

/// Stands among the dirty keys for links of ours that carry no logical name or whose removal was begun. No key of the store is called so.
pub const LEFTOVERS: &str = "\0leftovers";

/// Proof that a complete listing of the store and a complete search of the host's namespaces have been taken in: without it nothing is planned at
/// all. It can only be had from the pass, between those moments and the end of the process.
#[derive(Clone, Copy, Debug)]
pub struct InSync(());

impl InSync {
    /// Given by the pass once both are there.
    pub(in crate::configurator) fn after_first_listing_and_search() -> Self {
        Self(())
    }
}

/// Settings that decide how wishes are fulfilled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Let the kernel detect duplicate IPv6 addresses; the address can be used only when that has ended.
    pub ipv6_dad: bool,
    /// Remove addresses that nobody wished from our links.
    pub remove_extra_addresses: bool,
    /// Removals of what has no key are held back (HOLD).
    pub hold: bool,
}

/// Everything that a plan may look at.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// Whose marks count.
    pub owner: &'a Owner,
    /// What is wished.
    pub desired: &'a Desired,
    /// Where references lead.
    pub places: &'a Places,
    /// What the kernel showed.
    pub observed: &'a Observed,
    /// The agent's own namespace, once it is known.
    pub own: Option<NetnsId>,
    /// What VPP was told and told of its TAPs.
    pub vpp: &'a VppTaps,
    /// Names of the agent's own namespace that are not to be taken, nor the links that bear them to be touched.
    pub reserved: &'a ReservedNames,
    /// How many moves this pass may still make.
    pub moves_left: usize,
    /// Settings.
    pub settings: Settings,
}

/// Number of a step within its plan.
pub type StepId = usize;

/// Which end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first.
    A,
    /// The second.
    B,
}

/// The link that a step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One that is there.
    Existing(LinkId),
    /// An end of the pair, or the TAP (then [`End::A`]), that another step of the same plan makes or moves.
    Created(StepId, End),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a pair in place.
    CreateVeth {
        /// First end.
        a: NewLink,
        /// Second end.
        b: NewLink,
        /// Its logical name.
        b_key: Key,
        /// Our group.
        group: u32,
        /// First end up at once.
        a_up: bool,
    },
    /// Make a TAP in place, complete but for its addresses.
    CreateTap(NewTap),
    /// Change a link's settings in one request.
    SetLink(Target, LinkChange),
    /// Move someone else's TAP to another namespace and change it there.
    MoveLink {
        /// Which.
        link: LinkId,
        /// Where to.
        to: NetnsId,
        /// What it gets there.
        change: LinkChange,
        /// The alias that it has then.
        alias: Option<Box<str>>,
    },
    /// Switch IPv6 on for a link of this name.
    EnableIpv6(Target, Box<str>),
    /// Add an address, or renew its attributes.
    AddAddress(Target, NewAddress),
    /// Remove an address.
    RemoveAddress(Target, InterfaceAddress),
    /// Delete a link that carries our mark.
    DeleteLink {
        /// Which.
        link: LinkId,
        /// The mark that it was seen with.
        mark: ExpectedMark,
        /// Group of links on their way out.
        doomed_group: u32,
        /// Why a link goes that is still wished: what it was made with is not what is wished now. Empty for what nobody wishes.
        because: String,
        /// A program has it open, and loses it.
        open: bool,
    },
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For whom it is done; who is told when it fails. For a pair's creation the first end, the other one is in the action.
    pub key: Key,
    /// `name@namespace` for people.
    pub subject: String,
    /// What it does.
    pub action: Action,
    /// Steps without whose success it makes no sense.
    pub after: Vec<StepId>,
}

/// What to say about a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its namespace is being looked up: say nothing yet.
    Resolving,
    /// The user must change something.
    Invalid(Vec<FieldError>),
    /// It waits for something that others do.
    Pending(Waiting),
    /// It cannot be had until something changes.
    Failed(Reason, String),
    /// The kernel is finishing something (a removal, duplicate address detection): look again when it tells, say nothing new yet.
    Finishing(String),
    /// Steps are there for it.
    InWork(Option<LinkId>),
    /// The kernel shows what is wished.
    Settled(LinkId),
}

/// What a pending wish waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason for programs.
    pub reason: Option<Reason>,
    /// The sentence for people.
    pub message: String,
    /// For whom or what.
    pub waits_for: Vec<String>,
    /// It may be there already, and nobody can tell: what stands is kept.
    pub keep: bool,
}

/// What is to be done, and what is to be said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps; each one's `after` points backwards only.
    pub steps: Vec<Step>,
    /// What to say about each wish that was looked at.
    pub verdicts: BTreeMap<Key, Verdict>,
    /// Per wish, how the kernel differs from it: `mtu 1400, wished 1500`.
    pub differences: BTreeMap<Key, Vec<String>>,
    /// What must wait for the next pass, so that others get their turn.
    pub queued: BTreeSet<Key>,
    /// Links that are up at both ends and wait for their carrier.
    pub without_carrier: BTreeSet<LinkId>,
    /// What an operator should hear of, whether a wish is there to say it or not.
    pub notices: Vec<String>,
}

/// Plans for the wishes in `dirty` and for our links of these names.
#[must_use]
pub fn plan(world: World<'_>, _proof: InSync, dirty: &BTreeSet<Key>) -> Plan {
    let mut planner = Planner {
        world,
        plan: Plan::default(),
        renames: HashMap::new(),
        vacated: HashMap::new(),
        doomed: BTreeSet::new(),
        given_back: BTreeSet::new(),
        homes: BTreeSet::new(),
        reserved: BTreeSet::new(),
    };
    let looked_at: BTreeSet<Key> = dirty.iter().flat_map(|key| [Some(key.clone()), peer_key(world, key)]).flatten().collect();
    for key in &looked_at {
        planner.find_renames(key);
        planner.reserve_homes(key);
    }
    for key in &looked_at {
        planner.plan_wish(key);
    }
    planner.remove_leftovers(&looked_at);
    planner.plan
}

fn peer_key(world: World<'_>, key: &str) -> Option<Key> {
    let peer = world.desired.get(key)?.peer()?;
    world.desired.get(peer).map(|wish| wish.key.clone())
}

/// The plan in the making.
struct Planner<'a> {
    world: World<'a>,
    plan: Plan,
    /// Our links that get another name in this plan: the name.
    renames: HashMap<LinkId, HostIfName>,
    /// The step after which a link does not have its old name any more: it has got its new one, or has stepped aside under a temporary one.
    vacated: HashMap<LinkId, StepId>,
    /// Links with a deletion in this plan.
    doomed: BTreeSet<LinkId>,
    /// TAPs that this plan gives back, and the names that they get.
    given_back: BTreeSet<LinkId>,
    homes: BTreeSet<HostIfName>,
    /// Names in the agent's own namespace that TAPs have which are given back.
    reserved: BTreeSet<HostIfName>,
}

impl Planner<'_> {
    fn push(&mut self, key: &Key, subject: &str, action: Action, after: Vec<StepId>) -> StepId {
        self.plan.steps.push(Step { key: key.clone(), subject: subject.to_owned(), action, after });
        self.plan.steps.len() - 1
    }

    fn say(&mut self, key: &Key, verdict: Verdict) {
        self.plan.verdicts.insert(key.clone(), verdict);
    }

    fn differs(&mut self, key: &Key, what: String) {
        self.plan.differences.entry(key.clone()).or_default().push(what);
    }

    /// `name@namespace`, as people refer to it.
    fn subject(&self, key: &str, netns: NetnsId) -> String {
        if self.world.own == Some(netns) {
            return format!("{key}@own");
        }
        let place = self.world.places.leading_to(netns).next().map(|slot| slot.reference.reference());
        format!("{key}@{}", place.unwrap_or_else(|| format!("netns-{netns}")))
    }
}
