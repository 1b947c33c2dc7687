//! From the store's events to wishes: complete listings are taken as a difference, and a store that is not the one we knew removes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::desired::{Key, Wish};
use super::inbox::Arrival;
use super::memory::KnownStore;
use super::places::Resolution;
use super::published::Hold;
use super::{Configurator, Now};
use crate::model::decode::{Decoded, decode_interface};
use crate::model::key::NODE_CONFIG_PREFIX;
use crate::model::vpp::{VppKey, report, wanted_tap};
use crate::model::{ConfigKey, NetnsId, NetnsRef, NetnsSlot};
use crate::store::{StoreEvent, StoreIdentity, Versioned};

/// A listing that comes in: the values, and what they say where that was read already.
pub(super) type Listing = BTreeMap<String, (Versioned, Option<Box<Decoded>>)>;

impl Configurator {
    pub(super) fn take_store_event(&mut self, Arrival { event, decoded }: Arrival, now: Now) {
        match event {
            StoreEvent::Init => {
                if self.listed.is_none() {
                    self.forget_unfinished_listing();
                }
                self.staging = Some(BTreeMap::new());
                self.node_staged = false;
                self.vpp_staging.clear();
            }
            StoreEvent::InitApply(key, value) => {
                self.node_staged |= key == self.parts.node_key;
                if let Some(key) = VppKey::parse(&key) {
                    self.vpp_staging.insert(key, value);
                } else if let (Some(staging), Some(ConfigKey::Interface(last))) = (&mut self.staging, ConfigKey::parse(&key)) {
                    if self.listed.is_none() {
                        self.note_first(&last, &value, decoded);
                    } else {
                        staging.insert(last, (value, decoded));
                    }
                }
            }
            StoreEvent::InitDone(identity) => {
                self.listings += 1;
                self.node_listed = self.node_staged;
                if let Some(listing) = self.staging.take() {
                    self.take_vpp_listing();
                    self.take_listing(listing, identity, now);
                }
            }
            StoreEvent::Apply(key, value) => {
                self.heard_of(value.mod_revision);
                self.node_listed |= key == self.parts.node_key;
                self.take_vpp(&key, Some(&value));
                if let Some(ConfigKey::Interface(last)) = ConfigKey::parse(&key) {
                    self.put(&last, value, decoded, now);
                }
            }
            StoreEvent::Delete(key, revision) => {
                self.heard_of(revision);
                self.node_listed &= key != self.parts.node_key;
                self.take_vpp(&key, None);
                if let Some(ConfigKey::Interface(last)) = ConfigKey::parse(&key) {
                    self.delete(&last);
                }
            }
        }
    }

    fn take_vpp(&mut self, key: &str, value: Option<&Versioned>) {
        if let Some(key) = VppKey::parse(key) {
            self.take_vpp_key(&key, value);
        }
    }

    fn take_vpp_key(&mut self, key: &VppKey, value: Option<&Versioned>) {
        let links = match key {
            VppKey::Config(name) => self.vpp.want(name, value.and_then(|value| wanted_tap(name, &value.value))),
            VppKey::Status(name) => self.vpp.report(name, value.and_then(|value| report(&value.value))),
        };
        for link in links {
            self.todo.dirty.extend(self.desired.expecting(&link).cloned());
        }
    }

    fn take_vpp_listing(&mut self) {
        let listing = std::mem::take(&mut self.vpp_staging);
        let known: Vec<String> = self.vpp.names().map(str::to_owned).collect();
        let keys = known.into_iter().flat_map(|name| [VppKey::Config(name.clone()), VppKey::Status(name)]);
        let gone: Vec<VppKey> = keys.filter(|key| !listing.contains_key(key)).collect();
        for key in gone {
            self.take_vpp_key(&key, None);
        }
        // What VPP was told comes before what it told: only the former names the links.
        for (key, value) in &listing {
            self.take_vpp_key(key, Some(value));
        }
    }

    fn heard_of(&mut self, revision: i64) {
        if let Some(listed) = &mut self.listed {
            listed.revision = listed.revision.max(revision);
        }
    }

    fn take_listing(&mut self, listing: Listing, identity: StoreIdentity, now: Now) {
        let first = self.listed.is_none();
        let known = match self.listed {
            Some(listed) => Some(KnownStore { cluster: listed.cluster, revision: listed.revision, hold: None }),
            None => self.parts.memory.known_store(),
        };
        self.listed = Some(identity);
        if let Some(why) = known.and_then(|known| known.hold.clone().or_else(|| another_store(&known, identity))) {
            let since = now.wall;
            self.hold.get_or_insert_with(|| Hold { why, since, kept: Vec::new() });
        }
        if first {
            self.ask_for_all(now);
            return;
        }
        let gone: Vec<Key> = self.desired.iter().filter(|wish| !listing.contains_key(&*wish.key)).map(|wish| wish.key.clone()).collect();
        for key in gone {
            self.delete(&key);
        }
        for (last, (value, decoded)) in listing {
            let known = self.desired.get(&last).is_some_and(|wish| !wish.kept && wish.mod_revision == value.mod_revision);
            // Same revision of another history may well be another value.
            if !known || self.hold.is_some() {
                self.put(&last, value, decoded, now);
            }
        }
        if self.in_sync.is_some() {
            self.review_hold();
        }
    }

    /// Notes a wish of the first listing as it comes in, beside the reading of the next ones: nothing was known that it could differ from. Nothing is
    /// asked for or done before the listing is complete, and then everything is looked at.
    fn note_first(&mut self, last: &str, value: &Versioned, decoded: Option<Box<Decoded>>) {
        let decoded = decoded.map_or_else(|| decode_interface(last, &value.value), |decoded| *decoded);
        let mut wish = Wish::new(Key::from(last), decoded, value.create_revision, value.mod_revision);
        wish.adoptable = self.parts.adopt_on_first_start && self.parts.memory.first_start();
        if let Ok(spec) = &wish.spec {
            self.observed.learn(&spec.name);
        }
        self.desired.put(wish);
    }

    /// The first listing was broken off: the next one may hold other keys.
    fn forget_unfinished_listing(&mut self) {
        let unfinished = std::mem::take(&mut self.desired);
        for wish in unfinished.iter() {
            if !self.observed.stands(&wish.key) {
                self.observed.unlearn(&wish.key);
            }
        }
    }

    /// The first listing is complete: asks for every namespace that is referred to.
    fn ask_for_all(&mut self, now: Now) {
        let slots: Vec<NetnsSlot> = self.desired.slots().cloned().collect();
        for slot in slots {
            self.need(&slot, now);
        }
    }

    /// The first listing and the search of the host are there: everything is looked at.
    pub(super) fn judge_first_listing(&mut self) {
        self.review_hold();
        let slots: Vec<NetnsSlot> = self.places.iter().map(|(slot, _)| slot.clone()).collect();
        self.parts.tracker.retain(&slots);
        self.touch_all();
    }

    /// Marks every wish and every link of ours as to be looked at.
    pub(super) fn touch_all(&mut self) {
        let ours: Vec<Key> = self.observed.names().map(|name| Key::from(name.as_str())).collect();
        let wished: Vec<Key> = self.desired.iter().map(|wish| wish.key.clone()).collect();
        self.todo.dirty.extend(ours.into_iter().chain(wished).chain([Key::from(super::plan::LEFTOVERS)]));
    }

    /// HOLD ends when the listing holds every key that we manage.
    pub(super) fn review_hold(&mut self) {
        let node = self.kept_node();
        let Some(hold) = &mut self.hold else { return self.remember_store() };
        let kept = self.desired.iter().filter(|wish| wish.kept).map(|wish| wish.key.to_string());
        let without_key = self.observed.names().map(|name| name.as_str()).filter(|name| self.desired.get(name).is_none());
        let missing: BTreeSet<String> = kept.chain(without_key.map(str::to_owned)).chain(node).collect();
        if missing.is_empty() {
            self.hold = None;
            tracing::info!("removals are not held back any more: the store holds every key that is managed here");
            self.remember_store();
        } else if hold.kept.is_empty() {
            tracing::warn!(why = %hold.why, kept = missing.len(), "HOLD: nothing is removed until the store holds every managed key or removals are accepted");
            hold.kept = missing.into_iter().collect();
        } else {
            hold.kept = missing.into_iter().collect();
        }
    }

    /// This host's node, if its NICs are behind a bridge or on their way and the store does not have it.
    fn kept_node(&self) -> Option<String> {
        let kept = !self.node_listed && self.parts.reservations.get().has_nics();
        kept.then(|| format!("node {}", self.parts.node_key.strip_prefix(NODE_CONFIG_PREFIX).unwrap_or(&self.parts.node_key)))
    }

    /// The operator says that what is missing in the store shall go.
    pub(super) fn accept_removals(&mut self) {
        if self.hold.take().is_none() {
            return;
        }
        tracing::info!("removals are accepted; HOLD ends");
        let kept: Vec<Key> = self.desired.iter().filter(|wish| wish.kept).map(|wish| wish.key.clone()).collect();
        for key in kept {
            self.delete(&key);
        }
        self.judge_first_listing();
    }

    /// During HOLD the store that was known before stays the known one.
    pub(super) fn remember_store(&mut self) {
        let Some(listed) = self.listed else { return };
        let known = match (&self.hold, self.parts.memory.known_store()) {
            (Some(hold), Some(known)) => KnownStore { hold: Some(hold.why.clone()), ..known },
            (hold, _) => KnownStore { cluster: listed.cluster, revision: listed.revision, hold: hold.as_ref().map(|h| h.why.clone()) },
        };
        self.parts.memory.remember_store(&known);
    }

    fn put(&mut self, last: &str, value: Versioned, decoded: Option<Box<Decoded>>, now: Now) {
        let key = Key::from(last);
        self.touch_relations(&key);
        let decoded = decoded.map_or_else(|| decode_interface(last, &value.value), |decoded| *decoded);
        let mut wish = Wish::new(key.clone(), decoded, value.create_revision, value.mod_revision);
        if let Some(before) = self.desired.get(&key) {
            wish.replace(before);
        }
        if let Ok(spec) = &wish.spec {
            self.observed.learn(&spec.name);
        }
        let slot = wish.slot();
        let before = self.desired.put(wish);
        self.retries.forget(&key);
        if let Some(slot) = slot {
            self.need(&slot, now);
        }
        self.give_up(before.and_then(|wish| wish.slot()));
        self.touch_relations(&key);
    }

    fn delete(&mut self, last: &str) {
        let Some(wish) = self.desired.get_mut(last) else { return };
        if self.hold.is_some() {
            wish.kept = true;
            let key = wish.key.clone();
            self.todo.dirty.insert(key);
            return;
        }
        let key = wish.key.clone();
        self.touch_relations(&key);
        let before = self.desired.remove(&key);
        self.retries.forget(&key);
        self.give_up(before.and_then(|wish| wish.slot()));
    }

    /// Asks for a slot. A named namespace that is missing is made when its key is written.
    fn need(&mut self, slot: &NetnsSlot, now: Now) {
        let named = matches!(slot.reference, NetnsRef::Named(_));
        let create = named && self.parts.create_named;
        let new = self.places.ask(slot, now.wall);
        let missing = self.places.get(slot).is_some_and(|place| matches!(place.resolution, Resolution::Missing(..)));
        if new || (create && missing) {
            self.parts.tracker.watch(slot, create);
        }
        self.todo.slots.insert(slot.clone());
    }

    /// A slot lost one of its wishes.
    fn give_up(&mut self, slot: Option<NetnsSlot>) {
        let Some(slot) = slot else { return };
        if self.desired.slot_users(&slot) == 0 {
            self.parts.tracker.unwatch(&slot);
            let before = self.places.bound(&slot).map(|netns| netns.id);
            self.todo.release.extend(self.places.drop_slot(&slot));
            if let Some(before) = before {
                self.reach_by_another(before);
            }
            self.todo.bindings = true;
        }
        self.todo.slots.insert(slot);
    }

    /// Marks all wishes that lead to a namespace as to be looked at, with all that have to do with them: among themselves they are all marked anyway.
    pub(super) fn touch_place(&mut self, id: NetnsId) {
        let slots = self.places.leading_to(id);
        let keys: Vec<&Key> = slots.flat_map(|slot| self.desired.at_slot(slot)).collect();
        let mut mark = |key: &Key| {
            self.todo.by_wish.insert(key.clone());
            self.todo.dirty.insert(key.clone());
        };
        for key in keys {
            mark(key);
            self.desired.naming(key).for_each(&mut mark);
            let Some(wish) = self.desired.get(key) else { continue };
            wish.temporary().into_iter().flat_map(|temporary| self.desired.expecting(temporary)).for_each(&mut mark);
            if let Some(peer) = wish.peer().and_then(|peer| self.desired.get(peer)) {
                mark(&peer.key);
            }
        }
    }

    /// Marks a wish as to be looked at, with all that have to do with it: its other end, who names it, who wants its name, who has its addresses.
    pub(super) fn touch_relations(&mut self, key: &Key) {
        let mut dirty: BTreeSet<Key> = self.desired.naming(key).cloned().collect();
        dirty.insert(key.clone());
        if let Some(wish) = self.desired.get(key) {
            dirty.extend(wish.temporary().into_iter().flat_map(|temporary| self.desired.expecting(temporary)).cloned());
            dirty.extend(wish.peer().and_then(|peer| self.desired.get(peer)).map(|peer| peer.key.clone()));
            if let (Some(slot), Ok(spec)) = (wish.slot(), &wish.spec) {
                let id = self.places.bound(&slot).map(|netns| netns.id);
                let slots: Vec<&NetnsSlot> = id.map_or_else(|| vec![&slot], |id| self.places.leading_to(id).collect());
                for slot in slots {
                    dirty.extend(self.desired.claims(slot, &spec.host_if_name).cloned());
                    dirty.extend(spec.addresses.iter().flat_map(|a| self.desired.with_ip(slot, a.ip())).cloned());
                }
            }
        }
        self.todo.by_wish.extend(dirty.iter().cloned());
        self.todo.dirty.extend(dirty);
    }
}

fn another_store(known: &KnownStore, identity: StoreIdentity) -> Option<String> {
    if known.cluster != identity.cluster {
        return Some(format!("the store is another one: cluster id {:x} instead of {:x}", identity.cluster, known.cluster));
    }
    (identity.revision < known.revision)
        .then(|| format!("the store's revision went back from {} to {}: it was wiped or restored", known.revision, identity.revision))
}
