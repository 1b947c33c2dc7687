//! From what came in to what must be looked at, and the look itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::desired::Key;
use super::inbox::Batch;
use super::observed::Changed;
use super::plan::LEFTOVERS;
use super::{Configurator, Now, VERIFY_EVERY};
use crate::linux::{KernelError, LinkEvent};
use crate::model::owner::Mark;
use crate::model::{HostIfName, IfIndex, LinkId, NetnsId, ObservedLink};
use crate::namespace::{NetnsEvent, NetnsHandle};

/// Shortest time between two full readings that lost events cause.
const REREAD_PAUSE: Duration = Duration::from_millis(500);
/// So many links of one namespace are read one by one; more, and a listing is cheaper.
const READ_SINGLY: usize = 4;
/// A link costs so many times as much when it is read singly as in a listing.
const CHEAPER_SINGLY: usize = 3;

impl Configurator {
    /// Takes everything that came in.
    pub(super) fn take_in(&mut self, batch: Batch, now: Now) {
        let triggers = &mut self.todo.triggers;
        triggers.extend((!batch.store.is_empty()).then_some("store"));
        triggers.extend((!batch.netns.is_empty()).then_some("namespace"));
        triggers.extend((!batch.links.is_empty()).then_some("kernel"));
        for arrival in batch.store {
            self.take_store_event(arrival, now);
        }
        for event in batch.netns {
            self.take_netns_event(event, now);
        }
        for event in batch.links {
            self.take_link_event(event, now);
        }
        if let Some(accept) = batch.resync {
            self.todo.triggers.insert("request");
            self.reread_all = Some(now.instant);
            self.parts.tracker.recheck();
            self.touch_all();
            if accept {
                self.accept_removals();
            }
        }
        self.todo.triggers.extend(batch.reserved.then_some("request"));
        for name in batch.adopt {
            self.todo.triggers.insert("request");
            self.allow_adoption(&name);
        }
        for key in self.retries.due(now.instant) {
            self.todo.triggers.insert("retry");
            self.doubt_removals(&key);
            self.todo.dirty.insert(key);
        }
        self.take_due_readings(now);
    }

    /// Links that should be gone by now are looked at; what is still there is handed over once more.
    fn doubt_removals(&mut self, key: &Key) {
        let leaving: Vec<LinkId> = self.observed.leaving(key).collect();
        for id in leaving {
            self.observed.note_reap_failed(id);
            self.todo.settings.insert(id);
            self.todo.dirty.insert(Key::from(LEFTOVERS));
        }
    }

    fn take_due_readings(&mut self, now: Now) {
        if self.reread_all.is_some_and(|at| at <= now.instant) {
            self.reread_all = None;
            self.last_reread = Some(now.instant);
            self.todo.netns.extend(self.attached.iter().copied());
        }
        // One namespace at a time, so that a periodic look never holds up a change for long.
        if let Some((_, id)) = self.verify.first().copied().filter(|(at, _)| *at <= now.instant) {
            self.unschedule(id);
            self.todo.triggers.insert("verify");
            self.todo.netns.insert(id);
        }
    }

    fn allow_adoption(&mut self, name: &str) {
        let peer = self.desired.get(name).and_then(|wish| wish.peer()).map(str::to_owned);
        for key in [Some(name.to_owned()), peer].into_iter().flatten() {
            if let Some(wish) = self.desired.get_mut(&key) {
                wish.adoptable = true;
                let key = wish.key.clone();
                self.todo.dirty.insert(key);
            }
        }
    }

    fn take_netns_event(&mut self, event: NetnsEvent, now: Now) {
        match &event {
            NetnsEvent::SearchDone => self.search_done = true,
            NetnsEvent::Found { netns, .. } => {
                self.attach(netns);
                self.todo.release.insert(netns.id);
            }
            NetnsEvent::Bound { slot, .. }
            | NetnsEvent::Unbound { slot, .. }
            | NetnsEvent::Unknown { slot, .. }
            | NetnsEvent::Refused { slot, .. } => {
                let slot = slot.clone();
                let before = self.places.bound(&slot).map(|netns| netns.id);
                let moved = self.places.resolve(&event, now.wall);
                if !moved.changed {
                    return;
                }
                if let (NetnsEvent::Bound { netns, .. }, Some(_)) = (&event, moved.entered) {
                    self.attach(netns);
                }
                // Nobody leads there any more: its owner took it away. A descriptor of ours must not keep it alive.
                if let Some(left) = moved.left {
                    self.forget(left);
                }
                if let Some(before) = before {
                    self.reach_by_another(before);
                }
                // What leads to a namespace that is still to be read for the first time is looked at after that; until then it is as good as not resolved.
                let unread = self.places.bound(&slot).is_some_and(|netns| !self.observed.knows(netns.id));
                if before.is_some() || !unread {
                    let keys: Vec<Key> = self.desired.at_slot(&slot).cloned().collect();
                    for key in keys {
                        self.touch_relations(&key);
                    }
                }
                self.todo.slots.insert(slot);
                self.todo.bindings = true;
            }
        }
    }

    /// A reference does not lead to this namespace any more, and the way by it may have ended; where others lead there, one of theirs is used.
    pub(super) fn reach_by_another(&mut self, id: NetnsId) {
        if let Some(netns) = self.places.leading_to(id).find_map(|slot| self.places.bound(slot)) {
            self.parts.kernel.attach(netns);
        }
    }

    fn attach(&mut self, netns: &NetnsHandle) {
        self.parts.kernel.attach(netns);
        if netns.own {
            self.own = Some(netns.id);
        }
        if self.attached.insert(netns.id) {
            self.todo.netns.insert(netns.id);
        }
    }

    /// Drops all knowledge of a namespace, and whatever is open in it.
    pub(super) fn forget(&mut self, id: NetnsId) {
        self.parts.kernel.detach(id);
        self.attached.remove(&id);
        self.unschedule(id);
        self.todo.netns.remove(&id);
        for links in [&mut self.todo.links, &mut self.todo.settings, &mut self.todo.carriers] {
            links.retain(|link| link.netns != id);
        }
        let changes = self.observed.forget(id);
        self.touch_changed(changes);
    }

    fn take_link_event(&mut self, event: LinkEvent, now: Now) {
        match event {
            LinkEvent::Link(netns, link) => self.take_link_note(LinkId { netns, ifindex: link.ifindex }, *link),
            LinkEvent::LinkGone(id) => self.take_gone_note(id),
            LinkEvent::Address(id, address) => self.take_address_note(id, address.address, Some(address)),
            LinkEvent::AddressGone(id, address) => self.take_address_note(id, address, None),
            LinkEvent::NetnsGone(id) => {
                if self.attached.contains(&id) {
                    self.forget(id);
                    self.parts.tracker.recheck();
                }
            }
            LinkEvent::Lost(Some(id)) => {
                if self.attached.contains(&id) {
                    self.todo.netns.insert(id);
                }
            }
            LinkEvent::Lost(None) => {
                self.parts.published.counters.overruns.fetch_add(1, Ordering::Relaxed);
                let earliest = self.last_reread.map_or(now.instant, |last| last + REREAD_PAUSE);
                self.reread_all.get_or_insert(earliest.max(now.instant));
                self.take_due_readings(now);
            }
            LinkEvent::ReapFailed(id, error) => {
                self.observed.note_reap_failed(id);
                self.todo.settings.insert(id);
                let logical = self.observed.get(id).and_then(|seen| seen.logical()).map(|(_, name)| Key::from(name.as_str()));
                if let Some(key) = logical {
                    self.retries.failed(&key, now.instant);
                }
                let (attempt, _) = self.retries.failed(&Key::from(LEFTOVERS), now.instant);
                if attempt == 1 {
                    tracing::warn!(error = %error, "a link could not be removed; trying again");
                }
            }
        }
    }

    /// Reads what must be read again, and finds out whose concern the differences are.
    pub(super) fn look(&mut self, now: Now) {
        if self.look_once(now) {
            // Other ends that could not be placed before may be in a namespace that is known now.
            self.todo.links.extend(self.observed.with_unknown_peer());
            self.look_once(now);
        }
    }

    /// True when a namespace was read for the first time.
    fn look_once(&mut self, now: Now) -> bool {
        let whole = std::mem::take(&mut self.todo.links);
        let mut settings = std::mem::take(&mut self.todo.settings);
        settings.retain(|link| !whole.contains(link));
        let mut singly: BTreeMap<NetnsId, [Vec<IfIndex>; 2]> = BTreeMap::new();
        for (place, links) in [whole, settings].into_iter().enumerate() {
            links.into_iter().for_each(|link| singly.entry(link.netns).or_default()[place].push(link.ifindex));
        }
        for (netns, [whole, settings]) in singly {
            let count = whole.len() + settings.len();
            if count > READ_SINGLY && count > self.observed.link_count(netns) / CHEAPER_SINGLY {
                self.todo.netns.insert(netns);
            } else if !self.todo.netns.contains(&netns) {
                self.read_links(netns, &whole, now);
                self.read_settings(netns, &settings, now);
            }
        }
        let mut acquainted = false;
        for netns in std::mem::take(&mut self.todo.netns) {
            let new = !self.observed.knows(netns);
            self.read_netns(netns, now);
            acquainted |= new && self.observed.knows(netns);
        }
        acquainted
    }

    fn read_links(&mut self, netns: NetnsId, links: &[IfIndex], now: Now) {
        if links.is_empty() {
            return;
        }
        for (ifindex, reading) in links.iter().zip(self.parts.kernel.read_links(netns, links)) {
            match reading {
                Ok(link) => {
                    let changed = self.observed.take_link(LinkId { netns, ifindex: *ifindex }, link);
                    self.touch_changed(changed);
                }
                Err(error) => self.reading_failed(netns, &error, now),
            }
        }
    }

    /// Reads links whose addresses cannot have changed, or are told of on their own.
    fn read_settings(&mut self, netns: NetnsId, links: &[IfIndex], now: Now) {
        if links.is_empty() {
            return;
        }
        for (ifindex, reading) in links.iter().zip(self.parts.kernel.read_settings(netns, links)) {
            let id = LinkId { netns, ifindex: *ifindex };
            match reading {
                Ok(Some(link)) => {
                    let Some(seen) = self.observed.get(id) else { continue };
                    let link = ObservedLink { addresses: seen.link.addresses.clone(), ..link };
                    let changed = self.observed.take_link(id, Some(link));
                    self.touch_changed(changed);
                }
                Ok(None) => {
                    let changed = self.observed.take_link(id, None);
                    self.touch_changed(changed);
                }
                Err(error) => self.reading_failed(netns, &error, now),
            }
        }
    }

    /// Links that still lack carrier, although all that the kernel has told was taken in: its link watch looks after a hundred links at a time and rests
    /// a second after that, so it is behind when it was in want of time while thousands were made. Whoever asks for one link is served at once.
    pub(super) fn ask_for_carriers(&mut self, now: Now) {
        let lacking = |id: &LinkId| self.observed.get(*id).is_some_and(|seen| seen.link.lacks_carrier());
        let mut links: BTreeMap<NetnsId, Vec<IfIndex>> = BTreeMap::new();
        for link in std::mem::take(&mut self.todo.carriers).into_iter().filter(lacking) {
            links.entry(link.netns).or_default().push(link.ifindex);
        }
        links.into_iter().for_each(|(netns, links)| self.read_settings(netns, &links, now));
    }

    fn read_netns(&mut self, id: NetnsId, now: Now) {
        if !self.attached.contains(&id) {
            return;
        }
        self.parts.published.counters.namespace_reads.fetch_add(1, Ordering::Relaxed);
        match self.parts.kernel.read_netns(id) {
            Ok(reading) => {
                let first = !self.observed.knows(id);
                let delay = if reading.complete { jittered(VERIFY_EVERY) } else { REREAD_PAUSE };
                if !reading.complete {
                    self.parts.published.counters.interrupted_dumps.fetch_add(1, Ordering::Relaxed);
                }
                let changes = self.observed.take_reading(id, reading);
                self.touch_changed(changes);
                self.schedule_reading(id, now, delay);
                if first && self.own == Some(id) {
                    // Nothing could be said before of what is to be found here, or to be brought back.
                    self.touch_all();
                }
                if first {
                    self.touch_place(id);
                }
            }
            Err(error) => self.reading_failed(id, &error, now),
        }
    }

    fn reading_failed(&mut self, id: NetnsId, error: &KernelError, now: Now) {
        // Unknown is not gone: whether the namespace still is what it was, its tracker knows.
        tracing::debug!(%error, "a namespace could not be read");
        self.parts.tracker.recheck();
        self.schedule_reading(id, now, Duration::from_secs(1));
    }

    fn schedule_reading(&mut self, id: NetnsId, now: Now, delay: Duration) {
        self.unschedule(id);
        let at = now.instant + delay;
        self.verify_at.insert(id, at);
        self.verify.insert((at, id));
    }

    fn unschedule(&mut self, id: NetnsId) {
        if let Some(at) = self.verify_at.remove(&id) {
            self.verify.remove(&(at, id));
        }
    }

    /// Marks everybody who has to do with changed links.
    pub(super) fn touch_changed(&mut self, changes: impl IntoIterator<Item = Changed>) {
        for change in changes {
            let after = self.observed.get(change.id);
            for seen in change.before.iter().chain(after) {
                if let Some((_, name)) = seen.logical() {
                    self.todo.dirty.insert(Key::from(name.as_str()));
                }
                // Its TAP is for the next key that expects one of this name, as soon as it is gone from where it served.
                if let Some(temporary) = self.parts.owner.temporary(&seen.link) {
                    self.todo.dirty.extend(self.desired.expecting(&temporary).cloned());
                }
                if matches!(seen.mark, Mark::Unnamed | Mark::Doomed(_)) {
                    self.todo.dirty.insert(Key::from(LEFTOVERS));
                }
                for name in std::iter::once(&seen.link.name).chain(&seen.link.altnames) {
                    let Ok(name) = HostIfName::new(name) else { continue };
                    self.todo.dirty.extend(self.places.claims(&self.desired, change.id.netns, &name).cloned());
                    if self.own == Some(change.id.netns) {
                        self.todo.dirty.extend(self.desired.expecting(&name).cloned());
                    }
                }
            }
        }
    }

    /// Takes what is reserved now, and marks everybody who wants a name about which something else holds than before.
    pub(super) fn take_reserved(&mut self) {
        let now = self.parts.reservations.get();
        if Arc::ptr_eq(&now, &self.reserved) {
            return;
        }
        let before = std::mem::replace(&mut self.reserved, now);
        for name in before.differences(&self.reserved).filter_map(|name| HostIfName::new(name).ok()) {
            self.todo.dirty.extend(self.desired.expecting(&name).cloned());
            let Some(own) = self.own else { continue };
            self.todo.dirty.extend(self.places.claims(&self.desired, own, &name).cloned());
            // One of ours that bears it was left alone.
            let logical = self.observed.at(own, name.as_str()).and_then(|(_, seen)| seen.logical());
            self.todo.dirty.extend(logical.map(|(_, logical)| Key::from(logical.as_str())));
        }
    }

    /// Lets go of namespaces that no wish leads to and in which nothing of ours is left; of the agent's own one never.
    pub(super) fn release(&mut self) {
        for id in std::mem::take(&mut self.todo.release) {
            if self.places.in_use(id) || self.own == Some(id) {
                continue;
            }
            if self.in_sync.is_none() || self.observed.has_ours(id) {
                self.todo.release.insert(id);
            } else {
                self.forget(id);
            }
        }
        self.parts.kernel.rest();
    }
}

/// A duration give or take a fifth, so that periodic work of many objects and hosts spreads.
fn jittered(duration: Duration) -> Duration {
    let random = {
        use std::hash::{BuildHasher, Hasher};
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    };
    let permille = 800 + u32::try_from(random % 401).unwrap_or(200);
    duration * permille / 1000
}
