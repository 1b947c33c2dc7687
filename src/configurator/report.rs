//! After the work: statuses, index, history, retries, log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::desired::Key;
use super::memory::UsedNetns;
use super::places::{Place, Resolution};
use super::plan::{LEFTOVERS, Verdict};
use super::published::{IndexEntry, NamespaceEntry, PassRecord};
use super::status::{Failure, removing, status};
use super::work::{Work, contended};
use super::{Configurator, Now};
use crate::model::{InterfaceStatus, LinkId, NetnsSlot, Reason, State};

/// So many steps are many.
const LARGE: usize = 1_000;
/// A namespace that went away in the middle of the work is expected to be told of by its tracker within this time.
const ADRIFT_TRIES: u32 = 3;
/// What the kernel has not finished after so many looks (about three seconds) is told.
const UNFINISHED_TRIES: u32 = 3;

impl Configurator {
    pub(super) fn report(&mut self, mut work: Work, now: Now, clock: Instant) {
        let mut statuses: Vec<(Arc<str>, Option<InterfaceStatus>)> = Vec::new();
        let mut index: Vec<(Arc<str>, Option<IndexEntry>)> = Vec::new();
        let verdicts = std::mem::take(&mut work.verdicts);
        self.share_failures(&verdicts, &mut work);
        for (key, verdict) in verdicts {
            if self.desired.get(&key).is_none() {
                continue;
            }
            let failure = self.judge(&key, &verdict, &work, now);
            // What does not come to its end is in trouble, not on its way.
            let stuck = matches!(verdict, Verdict::Finishing(_)) && failure.is_some();
            let verdict = if stuck { Verdict::InWork(None) } else { verdict };
            self.tell_index(&key, &verdict, &mut index);
            statuses.extend(self.tell_status(&key, &verdict, failure.as_ref(), now));
        }
        for key in &work.wishless {
            self.tell_wishless(key, &work, now, &mut statuses, &mut index);
        }
        self.parts.published.index.publish(index);
        self.parts.published.statuses.publish(statuses);
        self.record(work, now, clock);
    }

    /// A pair is removed for one of its keys; that this was refused concerns the other end just as much.
    fn share_failures(&self, verdicts: &BTreeMap<Key, Verdict>, work: &mut Work) {
        for (key, _) in verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Finishing(_))) {
            let peer = self.desired.get(key).and_then(|wish| wish.peer());
            let failure = peer.and_then(|peer| work.failures.get(peer)).cloned();
            if let Some(failure) = failure {
                work.failures.entry(key.clone()).or_insert(failure);
            }
        }
    }

    /// Keeps the books on failures and fights; returns what to say of an object that is not as wished.
    fn judge(&mut self, key: &Key, verdict: &Verdict, work: &Work, now: Now) -> Option<Failure> {
        let revision = self.desired.get(key).map_or(0, |wish| wish.mod_revision);
        match verdict {
            Verdict::Settled(_) => {
                if let Some(wish) = self.desired.get_mut(key) {
                    wish.adoptable = false;
                    wish.new_header = false;
                }
                self.fulfilled.insert(key.clone(), revision);
                let repaired = work.drift.contains_key(key);
                if repaired {
                    self.parts.published.counters.drift_repaired.fetch_add(1, Ordering::Relaxed);
                }
                if repaired && self.retries.repaired(key, now.instant) {
                    // The next repair waits for its turn.
                    self.retries.failed(key, now.instant);
                } else if !self.retries.fighting(key, now.instant) {
                    self.retries.well(key);
                }
                None
            }
            Verdict::InWork(_) => self.judge_failure(key, work, now),
            Verdict::Finishing(_) if work.failures.contains_key(key) || work.adrift.contains(key) => self.judge_failure(key, work, now),
            Verdict::Finishing(what) => {
                let (attempt, delay) = self.retries.unfinished(key, now.instant);
                let message = format!("the kernel does not finish: {what}");
                let failure = Failure { reason: Reason::Timeout, message, attempt, next_retry: Some(now.wall.after(delay)) };
                (attempt >= UNFINISHED_TRIES).then_some(failure)
            }
            Verdict::Resolving => None,
            Verdict::Invalid(_) | Verdict::Pending(_) | Verdict::Failed(..) => {
                self.fulfilled.remove(key);
                self.miss_tap(key);
                // A removal that was refused is tried again, whatever the wish waits for.
                if work.failures.contains_key(key) || work.adrift.contains(key) {
                    self.retries.failed(key, now.instant);
                } else {
                    self.retries.well(key);
                }
                None
            }
        }
    }

    /// No link stands for a wish that waits for one: what VPP said to have deleted is.
    fn miss_tap(&mut self, key: &Key) {
        let Some(temporary) = self.desired.get(key).and_then(|wish| wish.temporary()) else { return };
        let at_home = self.own.is_some_and(|own| self.observed.at(own, temporary.as_str()).is_some());
        if !at_home && self.observed.named(key).next().is_none() {
            self.vpp.gone(temporary);
        }
    }

    fn judge_failure(&mut self, key: &Key, work: &Work, now: Now) -> Option<Failure> {
        if work.contended.contains(key) {
            // A pair is left alone for either end's sake.
            let peer = self.desired.get(key).and_then(|wish| wish.peer());
            let waits = [Some(&**key), peer].into_iter().flatten().filter_map(|key| self.retries.waits(key, now.instant));
            let (attempt, delay) = waits.max_by_key(|(_, delay)| *delay).unzip();
            return Some(Failure {
                attempt: attempt.unwrap_or_default(),
                next_retry: delay.map(|delay| now.wall.after(delay)),
                ..contended()
            });
        }
        let known = work.failures.get(key).cloned();
        let (attempt, delay) = self.retries.failed(key, now.instant);
        if known.is_none() && work.adrift.contains(key) {
            self.parts.tracker.recheck();
            if attempt <= ADRIFT_TRIES {
                return None;
            }
        }
        let failure = known.unwrap_or_else(contended);
        Some(Failure { attempt, next_retry: Some(now.wall.after(delay)), ..failure })
    }

    fn tell_status(
        &self,
        key: &Key,
        verdict: &Verdict,
        failure: Option<&Failure>,
        now: Now,
    ) -> Option<(Arc<str>, Option<InterfaceStatus>)> {
        let wish = self.desired.get(key)?;
        let mut new = status(self.world(), wish, verdict, failure, now.wall)?;
        let before = self.parts.published.statuses.get(key);
        if let Some(before) = &before {
            if before.state == new.state && before.reason == new.reason {
                new.since = before.since;
            }
            if before.says_the_same(&new) {
                return None;
            }
        }
        log_transition(before.as_deref(), &new);
        Some((key.clone(), Some(new)))
    }

    fn tell_index(&self, key: &Key, verdict: &Verdict, index: &mut Vec<(Arc<str>, Option<IndexEntry>)>) {
        let before = self.parts.published.index.get(key);
        let entry = match verdict {
            Verdict::Settled(id) => self.index_entry(key, *id),
            // Not as wished (any more), but it may stand all the same.
            _ => before.as_deref().and_then(|before| self.still_stands(key, before)),
        };
        if before.as_deref() != entry.as_ref() {
            index.push((key.clone(), entry));
        }
    }

    fn still_stands(&self, key: &Key, before: &IndexEntry) -> Option<IndexEntry> {
        let (_, seen) = self.observed.named(key).find(|(id, _)| *id == before.link)?;
        Some(IndexEntry { host_if_name: seen.link.name.clone(), ..before.clone() })
    }

    fn index_entry(&self, key: &Key, link: LinkId) -> Option<IndexEntry> {
        let wish = self.desired.get(key)?;
        let spec = wish.spec.as_ref().ok()?;
        let inode = wish.slot().and_then(|slot| self.places.bound(&slot)).map_or(0, |netns| netns.inode);
        let host_if_name = self.observed.get(link)?.link.name.clone();
        Some(IndexEntry { link, inode, host_if_name, spec: spec.clone() })
    }

    fn tell_wishless(
        &mut self,
        key: &Key,
        work: &Work,
        now: Now,
        statuses: &mut Vec<(Arc<str>, Option<InterfaceStatus>)>,
        index: &mut Vec<(Arc<str>, Option<IndexEntry>)>,
    ) {
        self.fulfilled.remove(key);
        let failed = work.failures.contains_key(key) || work.adrift.contains(key);
        if failed {
            self.retries.failed(key, now.instant);
        } else if self.observed.stands(key) {
            // An event will tell when it is gone; should it be lost, this looks again.
            self.retries.unfinished(key, now.instant);
        } else {
            self.retries.well(key);
        }
        if **key == *LEFTOVERS {
            return;
        }
        let before = self.parts.published.statuses.get(key);
        match before {
            Some(before) if self.observed.stands(key) => {
                if before.state != State::Removed {
                    statuses.push((key.clone(), Some(removing(&before, now.wall))));
                }
            }
            _ => {
                if !self.observed.stands(key) {
                    self.observed.unlearn(key);
                }
                index.push((key.clone(), None));
                statuses.push((key.clone(), None));
            }
        }
    }

    fn record(&mut self, work: Work, now: Now, clock: Instant) {
        let triggers: Vec<&'static str> = std::mem::take(&mut self.todo.triggers).into_iter().collect();
        if work.steps.all == 0 {
            return;
        }
        self.large |= work.steps.all >= LARGE;
        let drift: Vec<String> = work.drift.iter().flat_map(|(key, what)| what.iter().map(move |what| format!("{key}: {what}"))).collect();
        let elapsed_us = u64::try_from(clock.elapsed().as_micros()).unwrap_or(u64::MAX);
        let failed = work.failures.len();
        tracing::info!(
            triggers = triggers.join(","),
            steps = work.steps.all,
            done = work.steps.done,
            failed,
            drift = drift.len(),
            elapsed_us,
            "pass"
        );
        let sequence = self.parts.published.counters.passes.load(Ordering::Relaxed) + 1;
        self.parts.published.record(PassRecord { sequence, started: now.wall, elapsed_us, triggers, drift, steps: work.steps.records() });
    }

    /// Says how far the configurator is.
    pub(super) fn tell_progress(&mut self, now: Now) {
        let published = self.parts.published.clone();
        published.heartbeat.store(now.wall.0, Ordering::Relaxed);
        if let Ok(mut counters) = published.kernel.lock() {
            *counters = self.parts.kernel.counters();
        }
        published.hold.send_if_modified(|hold| {
            let changed = *hold != self.hold;
            hold.clone_from(&self.hold);
            changed
        });
        self.tell_namespaces();
        if self.in_sync.is_none() {
            return;
        }
        published.judged_listings.send_if_modified(|count| std::mem::replace(count, self.listings) != self.listings);
        if !*published.first_listing_applied.borrow() && !self.places.resolving() && self.todo.dirty.is_empty() {
            published.first_listing_applied.send_replace(true);
            self.parts.memory.listing_applied();
            tracing::info!(interfaces = self.desired.len(), "the first listing is applied");
        }
        if let Some(listed) = self.listed {
            published.applied_revision.send_if_modified(|revision| std::mem::replace(revision, listed.revision) != listed.revision);
            self.remember_store();
        }
    }

    /// Tells of the slots that were touched, not of all: a change costs the same however many there are.
    fn tell_namespaces(&mut self) {
        let book = &self.parts.published.namespaces;
        let mut changes: Vec<(Arc<str>, Option<NamespaceEntry>)> = Vec::new();
        for slot in std::mem::take(&mut self.todo.slots) {
            let key: Arc<str> = format!("{}:{}:{}", slot.reference.kind(), slot.reference.reference(), slot.written_at).into();
            let entry = self.places.get(&slot).map(|place| namespace_entry(&slot, place, self.desired.slot_users(&slot)));
            if book.get(&key).as_deref() != entry.as_ref() {
                changes.push((key, entry));
            }
        }
        book.publish(changes);
        if std::mem::take(&mut self.todo.bindings) {
            let bound = self.places.iter().filter_map(|(slot, _)| Some((slot, self.places.bound(slot)?.id)));
            let mut used: Vec<UsedNetns> = bound.map(|(slot, id)| UsedNetns { id, reference: slot.reference.clone() }).collect();
            used.sort();
            self.parts.memory.remember_netns(&used);
        }
    }
}

fn namespace_entry(slot: &NetnsSlot, place: &Place, interfaces: usize) -> NamespaceEntry {
    let (state, message, cookie, inode) = match &place.resolution {
        Resolution::Resolving => ("RESOLVING", String::new(), 0, 0),
        Resolution::Bound { netns, .. } => ("BOUND", String::new(), netns.id.0.get(), netns.inode),
        Resolution::Missing(_, message) | Resolution::Unknown(_, message) => ("MISSING", message.clone(), 0, 0),
        Resolution::Refused(_, message) => ("REFUSED", message.clone(), 0, 0),
    };
    let container = match &place.resolution {
        Resolution::Bound { container, .. } => container.as_deref(),
        _ => None,
    };
    NamespaceEntry {
        kind: slot.reference.kind(),
        reference: slot.reference.reference(),
        state,
        message,
        cookie,
        inode,
        since: place.since,
        interfaces,
        replaced: place.replaced,
        container_id: container.map(|c| c.id.clone()).unwrap_or_default(),
        container_name: container.map(|c| c.name.clone()).unwrap_or_default(),
        container_started: container.and_then(|c| c.started),
        other_containers: container.map(|c| c.others.iter().map(|(id, _)| id.clone()).collect()).unwrap_or_default(),
    }
}

/// One warning when an object turns bad, none while it stays so.
fn log_transition(before: Option<&InterfaceStatus>, now: &InterfaceStatus) {
    let bad = |state: State| matches!(state, State::Invalid | State::Failed | State::Retrying);
    let was_bad = before.is_some_and(|before| bad(before.state) && before.reason == now.reason && before.revision == now.revision);
    if bad(now.state) && !was_bad {
        let reason = now.reason.map_or("", |reason| reason.word());
        tracing::warn!(key = %now.name.escape_debug(), state = now.state.word(), reason, message = %now.message, "an interface is not as wished");
    } else if before.is_some_and(|before| bad(before.state)) && !bad(now.state) {
        tracing::info!(key = %now.name.escape_debug(), state = now.state.word(), "an interface is well again");
    }
}
