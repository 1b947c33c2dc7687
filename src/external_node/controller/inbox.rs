//! Everything that wakes the controller, in one place: taken as a whole, handed over without waiting.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::ovs::{OvsEvent, OvsSink};
use crate::store::StoreEvent;

/// What has come in.
#[derive(Debug, Default)]
pub struct Batch {
    /// Events of the store about nodes, in order.
    pub store: Vec<StoreEvent>,
    /// How many complete listings came in, those included that later ones took the place of.
    pub listings: u64,
    /// The kernel told of a change of links, addresses or routes.
    pub kernel: bool,
    /// Open vSwitch told of a change.
    pub switch: bool,
    /// Its database or its process was lost or is back. What else it tells may be the echo of what was done to it here.
    pub switch_turned: bool,
    /// The store was heard of, or removals are held back or not any more.
    pub store_health: bool,
    /// Nodes whose attachment is confirmed by hand.
    pub confirm: BTreeSet<String>,
    /// Requests to give nodes back until their wish changes.
    pub roll_back: Vec<RollBack>,
    /// Wishes of which somebody wants to know what they would do.
    pub dry_runs: Vec<DryRun>,
    /// The bridge on which ports of ours stand of which no journal tells.
    pub left_on: Option<String>,
    /// The agent stops.
    pub stop: bool,
}

/// A request to give back what a node has attached, until its wish changes.
#[derive(Debug)]
pub struct RollBack {
    /// The node.
    pub node: String,
    /// Takes the answer, when the request is on disk; or why it is not, with what that means.
    pub answer: oneshot::Sender<Result<(), String>>,
}

/// A wish of which somebody wants to know what it would do, without writing it.
#[derive(Debug)]
pub struct DryRun {
    /// Last part of the key that it would stand under.
    pub key: String,
    /// The value, as it would stand in the store.
    pub value: Vec<u8>,
    /// Takes the answer: lines for people, or why the value cannot be used.
    pub answer: oneshot::Sender<Result<Vec<String>, String>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        let told = self.kernel || self.switch || self.store_health || self.left_on.is_some() || self.stop;
        !told && self.store.is_empty() && self.confirm.is_empty() && self.roll_back.is_empty() && self.dry_runs.is_empty()
    }
}

/// The shared end.
#[derive(Debug, Default)]
pub struct NodeInbox {
    waiting: Mutex<Batch>,
    filled: Condvar,
}

impl NodeInbox {
    /// An empty inbox.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Batch> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Batch)) {
        change(&mut self.lock());
        self.filled.notify_one();
    }

    /// Hands over events of the store. Few keys are nodes, so this never waits.
    ///
    /// A listing says everything that was said before it: what nobody has taken yet is dropped, so that an agent without nodes does not hoard listings.
    pub fn store_events(&self, mut events: Vec<StoreEvent>) {
        let listings = events.iter().filter(|event| matches!(event, StoreEvent::InitDone(_))).count() as u64;
        self.change(|batch| {
            batch.listings += listings;
            if let Some(listing) = events.iter().rposition(|event| *event == StoreEvent::Init) {
                events.drain(..listing);
                batch.store.clear();
            }
            batch.store.extend(events);
        });
    }

    /// The kernel told of a change in the agent's own namespace.
    pub fn kernel_changed(&self) {
        self.change(|batch| batch.kernel = true);
    }

    /// The store was heard of, or what it may remove has changed.
    pub fn store_heard(&self) {
        self.change(|batch| batch.store_health = true);
    }

    /// Confirms by hand what a node has attached.
    pub fn confirm(&self, node: &str) {
        self.change(|batch| {
            batch.confirm.insert(node.to_owned());
        });
    }

    /// Gives back what a node has attached, until its wish changes.
    pub fn roll_back(&self, asked: RollBack) {
        self.change(|batch| batch.roll_back.push(asked));
    }

    /// Asks what a wish would do.
    pub fn dry_run(&self, asked: DryRun) {
        self.change(|batch| batch.dry_runs.push(asked));
    }

    /// Ports of ours stand on this bridge, and no journal tells of them.
    pub fn left_on(&self, bridge: String) {
        self.change(|batch| batch.left_on = Some(bridge));
    }

    /// Ends the controller's loop, after the step in hand.
    pub fn stop(&self) {
        self.change(|batch| batch.stop = true);
    }

    /// Waits until a reason is found in what has come in, and leaves all of it there: a listing may still be on its way. `None` when the agent stops
    /// first.
    #[must_use]
    pub fn wait_for<T>(&self, reason: impl Fn(&Batch) -> Option<T>) -> Option<T> {
        let mut waiting = self.lock();
        while !waiting.stop {
            let found = reason(&waiting);
            if found.is_some() {
                return found;
            }
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Takes everything; waits for something to come in, or until the deadline.
    #[must_use]
    pub fn take(&self, deadline: Instant) -> Batch {
        let mut waiting = self.lock();
        while waiting.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            waiting = self.filled.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut *waiting)
    }

    /// Whether the agent is to stop; looked at between steps.
    #[must_use]
    pub fn stopping(&self) -> bool {
        self.lock().stop
    }
}

impl OvsSink for NodeInbox {
    fn tell(&self, event: OvsEvent) {
        tracing::debug!(?event, "Open vSwitch");
        let turned = match event {
            OvsEvent::DatabaseBack | OvsEvent::DatabaseLost(_) | OvsEvent::SwitchBack | OvsEvent::SwitchLost(_) => true,
            OvsEvent::BridgeRemoved
            | OvsEvent::PortRemoved(_)
            | OvsEvent::InternalPorts(_)
            | OvsEvent::PortChanged(..)
            | OvsEvent::FlowsChanged => false,
        };
        self.change(|batch| {
            batch.switch = true;
            batch.switch_turned |= turned;
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{StoreIdentity, Versioned};

    fn key(name: &str) -> StoreEvent {
        StoreEvent::InitApply(name.to_owned(), Versioned { value: Vec::new(), create_revision: 1, mod_revision: 1 })
    }

    const DONE: StoreEvent = StoreEvent::InitDone(StoreIdentity { cluster: 1, revision: 1 });

    #[test]
    fn who_wakes_in_the_middle_of_a_listing_finds_it_whole_and_in_order() {
        let inbox = NodeInbox::new();
        inbox.store_events(vec![StoreEvent::Init, key("a")]);
        assert!(inbox.wait_for(|batch| batch.store.contains(&key("a")).then_some(())).is_some());
        inbox.store_events(vec![DONE]);
        assert_eq!(inbox.take(Instant::now()).store, [StoreEvent::Init, key("a"), DONE]);
    }

    #[test]
    fn a_listing_takes_the_place_of_what_nobody_has_taken() {
        let inbox = NodeInbox::new();
        inbox.store_events(vec![StoreEvent::Init, key("a"), DONE, StoreEvent::Delete("a".to_owned(), 2)]);
        inbox.store_events(vec![StoreEvent::Init, key("b"), DONE, StoreEvent::Init, key("c")]);
        let taken = inbox.take(Instant::now());
        assert_eq!((taken.store, taken.listings), (vec![StoreEvent::Init, key("c")], 2));
    }

    #[test]
    fn who_waits_hears_of_the_end() {
        let inbox = NodeInbox::new();
        let stops = inbox.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            stops.kernel_changed();
            stops.stop();
        });
        assert_eq!(inbox.wait_for(|_| None::<()>), None);
        thread.join().expect("it ends");
    }
}
