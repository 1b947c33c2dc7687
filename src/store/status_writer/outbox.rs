//! What is to be published and what of it is still to be written. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One key.
#[derive(Debug, Default)]
struct Entry {
    /// The value; none for a key that is to go.
    value: Option<Box<[u8]>>,
    /// The store may hold something under this key.
    tried: bool,
}

/// Values to store, by key.
pub(super) type Values = Vec<(String, Vec<u8>)>;

/// Bytes per transaction, well below the 1.5 MiB that etcd takes.
const BYTES: usize = 512 << 10;

/// The latest value per key, and which keys the store has not confirmed.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    entries: BTreeMap<Arc<str>, Entry>,
    /// Keys whose value is due.
    dirty: BTreeSet<Arc<str>>,
    /// Keys whose removal is due.
    leaving: BTreeSet<Arc<str>>,
}

impl Outbox {
    /// Notes a value; true when there is something to write.
    pub(super) fn set(&mut self, key: &str, value: Option<Vec<u8>>) -> bool {
        let known = self.entries.get(key);
        if value.is_none() && known.is_none_or(|entry| !entry.tried) {
            // Never written: there is nothing to remove, and nothing to remember.
            self.forget(key);
            return false;
        }
        if known.is_some_and(|entry| entry.value.as_deref() == value.as_deref() && entry.tried) {
            return false;
        }
        let key: Arc<str> = self.entries.get_key_value(key).map_or_else(|| key.into(), |(known, _)| known.clone());
        self.is_due(&key, value.is_some());
        // Boxed, since what was serialized has up to twice the room that it needs.
        self.entries.entry(key).or_default().value = value.map(Vec::into_boxed_slice);
        true
    }

    /// Notes that a key of an earlier life is to go, unless it is ours by now.
    pub(super) fn remove_stranger(&mut self, key: &str) {
        if !self.entries.contains_key(key) {
            let key: Arc<str> = key.into();
            self.is_due(&key, false);
            self.entries.insert(key, Entry { value: None, tried: true });
        }
    }

    fn is_due(&mut self, key: &Arc<str>, has_value: bool) {
        let (now, no_more) = if has_value { (&mut self.dirty, &mut self.leaving) } else { (&mut self.leaving, &mut self.dirty) };
        now.insert(key.clone());
        no_more.remove(key);
    }

    /// At most `limit` keys whose removal is due.
    pub(super) fn removals(&self, limit: usize) -> Vec<String> {
        self.leaving.iter().take(limit).map(ToString::to_string).collect()
    }

    /// At most `limit` values that are due, and not many bytes in all.
    pub(super) fn values(&mut self, limit: usize) -> Values {
        let mut values = Values::new();
        let mut bytes = 0;
        for key in &self.dirty {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let Some(value) = &entry.value else { continue };
            bytes += key.len() + value.len();
            if values.len() == limit || (bytes > BYTES && !values.is_empty()) {
                break;
            }
            entry.tried = true;
            values.push((key.to_string(), value.to_vec()));
        }
        values
    }

    /// These keys are gone from the store. One that was set meanwhile stays due.
    pub(super) fn removed(&mut self, keys: &[String]) {
        for key in keys {
            if self.entries.get(&**key).is_some_and(|entry| entry.value.is_none()) {
                self.forget(key);
            }
        }
    }

    /// These values are stored. One that was set anew meanwhile stays due.
    pub(super) fn published(&mut self, values: &Values) {
        for (key, value) in values {
            if self.entries.get(&**key).is_some_and(|entry| entry.value.as_deref() == Some(value)) {
                self.dirty.remove(&**key);
            }
        }
    }

    /// The lease is gone, and all values with it: everything is due again.
    pub(super) fn everything_is_due(&mut self) {
        let valued = self.entries.iter().filter(|(_, entry)| entry.value.is_some());
        self.dirty.extend(valued.map(|(key, _)| key.clone()));
    }

    /// Only these keys are still as we wrote them: the others are due again. How many those are.
    pub(super) fn still_there(&mut self, keys: &BTreeSet<String>) -> usize {
        let spoiled = |(key, entry): &(&Arc<str>, &Entry)| entry.value.is_some() && entry.tried && !keys.contains(&***key);
        let spoiled: Vec<Arc<str>> = self.entries.iter().filter(spoiled).map(|(key, _)| key.clone()).collect();
        let count = spoiled.len();
        self.dirty.extend(spoiled);
        count
    }

    /// Whether there is a value that needs a lease.
    pub(super) fn has_values(&self) -> bool {
        self.entries.values().any(|entry| entry.value.is_some())
    }

    fn forget(&mut self, key: &str) {
        self.entries.remove(key);
        self.dirty.remove(key);
        self.leaving.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Vec<u8>> {
        Some(text.as_bytes().to_vec())
    }

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn the_latest_value_is_written_once() {
        let mut outbox = Outbox::default();
        assert!(outbox.set("a", value("1")));
        assert!(outbox.set("a", value("2")));
        let batch = outbox.values(100);
        assert_eq!(batch, values(&[("a", "2")]));
        outbox.published(&batch);
        assert!(outbox.values(100).is_empty());
        assert!(!outbox.set("a", value("2")));
        assert!(outbox.values(100).is_empty());
    }

    #[test]
    fn what_is_set_during_a_write_stays_due() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        let batch = outbox.values(100);
        outbox.set("a", value("2"));
        outbox.published(&batch);
        assert_eq!(outbox.values(100), values(&[("a", "2")]));
    }

    #[test]
    fn an_old_value_that_returns_while_another_is_on_its_way_is_written() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        let first = outbox.values(100);
        outbox.published(&first);
        outbox.set("a", value("2"));
        let second = outbox.values(100);
        outbox.set("a", value("1"));
        outbox.published(&second);
        assert_eq!(outbox.values(100), values(&[("a", "1")]));
    }

    #[test]
    fn removals_leave_nothing_behind() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        let batch = outbox.values(100);
        outbox.published(&batch);
        outbox.set("b", value("1"));
        outbox.set("a", None);
        assert_eq!(outbox.removals(100), ["a"]);
        assert_eq!(outbox.values(100), values(&[("b", "1")]));
        outbox.removed(&["a".to_owned()]);
        assert!(outbox.removals(100).is_empty());
        assert_eq!(outbox.entries.len(), 1);
    }

    #[test]
    fn a_key_that_was_never_tried_needs_no_removal() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        assert!(!outbox.set("a", None));
        assert!(outbox.entries.is_empty() && outbox.dirty.is_empty());
    }

    #[test]
    fn a_removal_after_a_write_of_unknown_outcome_is_kept() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        outbox.values(100);
        assert!(outbox.set("a", None));
        assert_eq!(outbox.removals(100), ["a"]);
    }

    #[test]
    fn a_key_that_is_set_during_its_removal_stays_due() {
        let mut outbox = Outbox::default();
        outbox.set("a", value("1"));
        let batch = outbox.values(100);
        outbox.published(&batch);
        outbox.set("a", None);
        let removal = outbox.removals(100);
        assert!(outbox.set("a", value("1")));
        outbox.removed(&removal);
        assert_eq!(outbox.values(100), values(&[("a", "1")]));
    }

    #[test]
    fn batches_are_limited_and_everything_is_due_after_a_lost_lease() {
        let mut outbox = Outbox::default();
        for n in 0..250 {
            outbox.set(&format!("{n:03}"), value("x"));
        }
        for expected in [100, 100, 50, 0] {
            let batch = outbox.values(100);
            assert_eq!(batch.len(), expected);
            outbox.published(&batch);
        }
        outbox.everything_is_due();
        assert_eq!(outbox.dirty.len(), 250);
    }

    #[test]
    fn batches_are_limited_in_bytes_too() {
        let mut outbox = Outbox::default();
        for key in ["a", "b", "c"] {
            outbox.set(key, Some(vec![0; BYTES / 2]));
        }
        outbox.set("d", Some(vec![0; 2 * BYTES]));
        for expected in [1, 1, 1, 1, 0] {
            let batch = outbox.values(100);
            assert_eq!(batch.len(), expected);
            outbox.published(&batch);
        }
    }

    #[test]
    fn what_others_spoil_is_due_again() {
        let mut outbox = Outbox::default();
        for key in ["a", "b", "c"] {
            outbox.set(key, value("1"));
        }
        let batch = outbox.values(100);
        outbox.published(&batch);
        outbox.set("c", None);
        assert_eq!(outbox.still_there(&BTreeSet::from(["a".to_owned()])), 1);
        assert_eq!(outbox.values(100), values(&[("b", "1")]));
        assert_eq!(outbox.removals(100), ["c"]);
    }

    #[test]
    fn strangers_go_unless_they_are_ours_by_now() {
        let mut outbox = Outbox::default();
        outbox.set("mine", value("1"));
        outbox.remove_stranger("mine");
        outbox.remove_stranger("old");
        assert_eq!(outbox.removals(100), ["old"]);
        outbox.set("old", value("new"));
        assert!(outbox.removals(100).is_empty());
        assert_eq!(outbox.values(100), values(&[("mine", "1"), ("old", "new")]));
    }
}
