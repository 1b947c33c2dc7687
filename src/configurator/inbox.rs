//! The way in: everything that happens outside is put here and taken by the next pass, all at once.
//!
//! Level-triggered: entries only say what to look at. Memory stays bounded when the configurator is far behind: the kernel's events are replaced by
//! "look at everything", and store events wait for room.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::configurator::published::Requests;
use crate::linux::{LinkEvent, LinkSink};
use crate::model::decode::{Decoded, decode_interface};
use crate::model::{ConfigKey, InterfaceAddress, LinkId};
use crate::namespace::{NetnsEvent, NetnsSink};
use crate::store::{StoreEvent, StoreSink};

/// Store events that may wait before a source is held up.
const STORE_LIMIT: usize = 16_384;
/// Kernel events that may wait before they are replaced by "look at everything".
const LINK_LIMIT: usize = 65_536;

/// Events of namespaces that may wait before only the latest of each slot is kept.
const NETNS_LIMIT: usize = 4_096;

/// An event of the store. What its value says was read beside the passes, where it was worth it.
#[derive(Debug)]
pub struct Arrival {
    /// The event.
    pub event: StoreEvent,
    /// The value of an interface's key.
    pub decoded: Option<Box<Decoded>>,
}

/// What has come in since the last pass.
#[derive(Debug, Default)]
pub struct Batch {
    /// Events of the store, in order.
    pub store: Vec<Arrival>,
    /// Events of the namespace trackers, in order.
    pub netns: Vec<NetnsEvent>,
    /// Events of the kernel; of several about one link's settings, or about one address, only the last, in the first one's place.
    pub links: VecDeque<LinkEvent>,
    /// Somebody wants everything read again; with true, also that removals are accepted.
    pub resync: Option<bool>,
    /// Interfaces that may adopt.
    pub adopt: BTreeSet<String>,
    /// Other names are reserved than before.
    pub reserved: bool,
    /// The agent stops.
    pub stop: bool,
}

impl Batch {
    /// Whether nothing came in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
            && self.netns.is_empty()
            && self.links.is_empty()
            && self.resync.is_none()
            && self.adopt.is_empty()
            && !self.reserved
            && !self.stop
    }
}

/// The shared end of the inbox.
#[derive(Debug, Default)]
pub struct Inbox {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    room: Notify,
    /// A listing has come in: the next one is mostly known already, and is not read ahead.
    listed: AtomicBool,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    /// Where the last event about something stands among the batch's.
    latest: HashMap<Subject, usize>,
}

/// What a later event tells anew.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Subject {
    Link(LinkId),
    Address(LinkId, InterfaceAddress),
}

impl Subject {
    /// That a link is gone is never replaced: another one may have got its index since.
    fn of(event: &LinkEvent) -> Option<Self> {
        match event {
            LinkEvent::Link(netns, link) => Some(Self::Link(LinkId { netns: *netns, ifindex: link.ifindex })),
            LinkEvent::Address(link, address) => Some(Self::Address(*link, address.address)),
            LinkEvent::AddressGone(link, address) => Some(Self::Address(*link, *address)),
            LinkEvent::LinkGone(_) | LinkEvent::NetnsGone(_) | LinkEvent::Lost(_) | LinkEvent::ReapFailed(..) => None,
        }
    }
}

impl Waiting {
    fn add(&mut self, event: LinkEvent) {
        let links = &mut self.batch.links;
        let subject = Subject::of(&event);
        // A link that is made tells of itself ten times until it is complete; only how it stands in the end is worth a look.
        if let Some(known) = subject.as_ref().and_then(|subject| self.latest.get(subject)).and_then(|at| links.get_mut(*at)) {
            *known = event;
            return;
        }
        if links.len() >= LINK_LIMIT {
            // What must not be lost is kept: ends of namespaces and failed removals. The rest is found by looking.
            links.retain(|e| matches!(e, LinkEvent::NetnsGone(_) | LinkEvent::ReapFailed(..)));
            links.push_back(LinkEvent::Lost(None));
            self.latest.clear();
        }
        if let Some(subject) = subject {
            self.latest.insert(subject, links.len());
        }
        links.push_back(event);
    }
}

impl Inbox {
    /// An empty inbox.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Batch)) {
        change(&mut self.lock().batch);
        self.filled.notify_one();
    }

    /// Ends the loop that takes from this inbox, after the step in hand.
    pub fn stop(&self) {
        self.change(|batch| batch.stop = true);
    }

    /// Other names are reserved than before: wakes the next pass.
    pub fn reserved(&self) {
        self.change(|batch| batch.reserved = true);
    }

    /// Takes everything; waits for something to come in, or until `deadline`.
    #[must_use]
    pub fn take(&self, deadline: Instant) -> Batch {
        let mut waiting = self.lock();
        while waiting.batch.is_empty() {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            waiting = self.filled.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let Waiting { batch, .. } = std::mem::take(&mut *waiting);
        drop(waiting);
        self.room.notify_waiters();
        batch
    }

    /// Decodes a value that is most likely new, on the thread of the one who brings it: beside the kernel's work.
    fn read_ahead(&self, event: StoreEvent) -> Arrival {
        let decoded = match &event {
            StoreEvent::Apply(key, value) => Some((key, value)),
            StoreEvent::InitApply(key, value) if !self.listed.load(Ordering::Relaxed) => Some((key, value)),
            _ => None,
        };
        let decoded = decoded.and_then(|(key, value)| match ConfigKey::parse(key) {
            Some(ConfigKey::Interface(last)) => Some(Box::new(decode_interface(&last, &value.value))),
            _ => None,
        });
        if matches!(event, StoreEvent::InitDone(_)) {
            self.listed.store(true, Ordering::Relaxed);
        }
        Arrival { event, decoded }
    }
}

impl StoreSink for Inbox {
    fn deliver(&self, events: Vec<StoreEvent>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let mut arrivals: Vec<Arrival> = events.into_iter().map(|event| self.read_ahead(event)).collect();
            loop {
                // Registered before the look, so that room made in between is not missed.
                let room = self.room.notified();
                {
                    let mut waiting = self.lock();
                    if waiting.batch.store.len() < STORE_LIMIT {
                        waiting.batch.store.append(&mut arrivals);
                        break;
                    }
                }
                room.await;
            }
            self.filled.notify_one();
        })
    }
}

impl NetnsSink for Inbox {
    fn netns_event(&self, event: NetnsEvent) {
        self.change(|batch| {
            if batch.netns.len() >= NETNS_LIMIT && batch.netns.len().is_power_of_two() {
                keep_latest(&mut batch.netns);
            }
            batch.netns.push(event);
        });
    }
}

/// Where a slot led in between does not matter. What is left is bounded by the number of slots and of namespaces on this host.
fn keep_latest(events: &mut Vec<NetnsEvent>) {
    let mut seen = HashSet::new();
    let mut latest: Vec<NetnsEvent> =
        events.drain(..).rev().filter(|event| event.slot().is_none_or(|slot| seen.insert(slot.clone()))).collect();
    latest.reverse();
    *events = latest;
}

impl LinkSink for Inbox {
    fn link_event(&self, event: LinkEvent) {
        self.lock().add(event);
        self.filled.notify_one();
    }
}

impl Requests for Inbox {
    fn resync(&self, accept_removals: bool) {
        self.change(|batch| batch.resync = Some(batch.resync.unwrap_or(false) || accept_removals));
    }

    fn adopt(&self, name: &str) {
        self.change(|batch| {
            batch.adopt.insert(name.to_owned());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{IfIndex, LinkKind, NetnsId, NetnsRef, NetnsSlot, ObservedLink, Reason};
    use crate::store::{StoreIdentity, Versioned};
    use std::time::Duration;

    fn gone(n: u32) -> LinkEvent {
        LinkEvent::LinkGone(LinkId { netns: NetnsId::new(1).unwrap(), ifindex: IfIndex::new(n).unwrap() })
    }

    #[test]
    fn everything_comes_out_in_order_and_once() {
        let inbox = Inbox::new();
        inbox.link_event(gone(1));
        inbox.link_event(gone(2));
        inbox.resync(true);
        inbox.resync(false);
        let batch = inbox.take(Instant::now());
        assert_eq!(batch.links, [gone(1), gone(2)]);
        assert_eq!(batch.resync, Some(true));
        assert!(inbox.take(Instant::now()).is_empty());
    }

    fn link(n: u32, mtu: u32) -> LinkEvent {
        let bare = ObservedLink::bare(IfIndex::new(n).unwrap(), "x", LinkKind::Veth);
        LinkEvent::Link(NetnsId::new(1).unwrap(), Box::new(ObservedLink { mtu, ..bare }))
    }

    #[test]
    fn of_several_notes_about_one_thing_the_last_counts() {
        let inbox = Inbox::new();
        let id = |n| LinkId { netns: NetnsId::new(1).unwrap(), ifindex: IfIndex::new(n).unwrap() };
        let address = |last: u8| InterfaceAddress::new([10, 0, 0, last].into(), 24).unwrap();
        for event in [link(1, 1400), link(2, 1400), LinkEvent::AddressGone(id(1), address(1)), gone(1), link(1, 1500), gone(2)] {
            inbox.link_event(event);
        }
        inbox.link_event(LinkEvent::AddressGone(id(1), address(2)));
        inbox.link_event(LinkEvent::AddressGone(id(1), address(1)));
        let expected = [
            link(1, 1500),
            link(2, 1400),
            LinkEvent::AddressGone(id(1), address(1)),
            gone(1),
            gone(2),
            LinkEvent::AddressGone(id(1), address(2)),
        ];
        assert_eq!(inbox.take(Instant::now()).links, expected);
        inbox.link_event(link(1, 1400));
        assert_eq!(inbox.take(Instant::now()).links, [link(1, 1400)], "what was taken is not touched any more");
    }

    #[tokio::test]
    async fn values_are_read_before_they_are_taken() {
        let inbox = Inbox::new();
        let value = || Versioned { value: b"{}".to_vec(), create_revision: 1, mod_revision: 1 };
        let key = || "linux/config/v1/interface/a".to_owned();
        let listing = || vec![StoreEvent::InitApply(key(), value()), StoreEvent::InitDone(StoreIdentity { cluster: 1, revision: 1 })];
        inbox.deliver(listing()).await;
        inbox.deliver(listing()).await;
        inbox.deliver(vec![StoreEvent::Apply(key(), value()), StoreEvent::Apply("other".into(), value())]).await;
        let read: Vec<bool> = inbox.take(Instant::now()).store.iter().map(|arrival| arrival.decoded.is_some()).collect();
        assert_eq!(read, [true, false, false, false, true, false]);
    }

    #[test]
    fn a_flood_becomes_look_at_everything_and_loses_no_end() {
        let inbox = Inbox::new();
        let end = LinkEvent::NetnsGone(NetnsId::new(9).unwrap());
        inbox.link_event(end.clone());
        for n in 0..=u32::try_from(LINK_LIMIT).unwrap() {
            inbox.link_event(gone(n + 1));
        }
        let batch = inbox.take(Instant::now());
        assert!(batch.links.len() < 10);
        assert!(batch.links.contains(&end) && batch.links.contains(&LinkEvent::Lost(None)));
    }

    #[test]
    fn of_a_flood_about_namespaces_the_latest_of_each_slot_is_kept() {
        let inbox = Inbox::new();
        let slot = |n: usize| NetnsSlot::new(NetnsRef::Microservice(format!("ms{}", n % 3)), 0);
        let event = |n: usize| NetnsEvent::Unbound { slot: slot(n), reason: Reason::MicroserviceMissing, message: n.to_string() };
        inbox.netns_event(NetnsEvent::SearchDone);
        let last = 10 * NETNS_LIMIT;
        (0..=last).for_each(|n| inbox.netns_event(event(n)));
        let batch = inbox.take(Instant::now()).netns;
        assert!(batch.len() <= 2 * NETNS_LIMIT, "{}", batch.len());
        assert!(matches!(batch[0], NetnsEvent::SearchDone));
        for slot in (0..3).map(slot) {
            let told = batch.iter().rev().find(|event| event.slot() == Some(&slot));
            let Some(NetnsEvent::Unbound { message, .. }) = told else { panic!("{slot:?} is lost") };
            assert!(message.parse::<usize>().unwrap() > last - 3, "{message}");
        }
    }

    #[tokio::test]
    async fn a_source_waits_for_room() {
        let inbox = Inbox::new();
        inbox.deliver(vec![StoreEvent::Init; STORE_LIMIT]).await;
        let second = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.deliver(vec![StoreEvent::Delete("x".into(), 1)]).await }
        });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        assert_eq!(inbox.take(Instant::now()).store.len(), STORE_LIMIT);
        second.await.unwrap();
        assert_eq!(inbox.take(Instant::now() + Duration::from_secs(5)).store.len(), 1);
    }
}
