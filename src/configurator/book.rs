//! A published table: readers see the whole, follow its changes in order, and may resume where they left off.
//!
//! The configurator writes while it works; readers never wait for it and never hold it up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// How many changes a book remembers for those who resume: more than one pass over ten thousand interfaces makes. Each may hold a value that has been
/// replaced since, so this bounds the memory that many changes cost.
const LOG_LIMIT: usize = 16_384;

/// One change of a book.
#[derive(Debug)]
pub struct Change<V> {
    /// Its number; the first is 1, each later one is one more.
    pub sequence: u64,
    /// The key.
    pub key: Arc<str>,
    /// The new value; `None` when the entry went.
    pub value: Option<Arc<V>>,
    /// Whether the key had a value before.
    pub known_before: bool,
}

impl<V> Clone for Change<V> {
    fn clone(&self) -> Self {
        Self { sequence: self.sequence, key: self.key.clone(), value: self.value.clone(), known_before: self.known_before }
    }
}

/// What a follower gets next.
#[derive(Debug)]
pub enum Next<V> {
    /// Changes since the given number, in order (none: nothing new).
    Changes(Vec<Change<V>>),
    /// The number is too old or from another run: begin with a snapshot.
    TooOld,
}

/// Entries in the order of their keys.
pub type Entries<V> = Vec<(Arc<str>, Arc<V>)>;

#[derive(Debug)]
struct Inner<V> {
    entries: BTreeMap<Arc<str>, Arc<V>>,
    log: VecDeque<Change<V>>,
    sequence: u64,
}

/// A table with a change log.
#[derive(Debug)]
pub struct Book<V> {
    inner: Mutex<Inner<V>>,
    latest: watch::Sender<u64>,
}

impl<V> Default for Book<V> {
    fn default() -> Self {
        let inner = Inner { entries: BTreeMap::new(), log: VecDeque::new(), sequence: 0 };
        Self { inner: Mutex::new(inner), latest: watch::Sender::new(0) }
    }
}

impl<V> Book<V> {
    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        // Every change below is complete when it unlocks, so a panic elsewhere leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets (`Some`) or removes (`None`) entries; each counts as one change, in order. Removing what is not there is none.
    pub fn publish(&self, changes: impl IntoIterator<Item = (Arc<str>, Option<V>)>) {
        let mut inner = self.lock();
        for (key, value) in changes {
            let value = value.map(Arc::new);
            let known_before = match &value {
                Some(v) => inner.entries.insert(key.clone(), v.clone()).is_some(),
                None if inner.entries.remove(&key).is_none() => continue,
                None => true,
            };
            inner.sequence += 1;
            let sequence = inner.sequence;
            inner.log.push_back(Change { sequence, key, value, known_before });
            if inner.log.len() > LOG_LIMIT {
                inner.log.pop_front();
            }
        }
        let sequence = inner.sequence;
        drop(inner);
        self.latest.send_if_modified(|seen| std::mem::replace(seen, sequence) != sequence);
    }

    /// One entry.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<V>> {
        self.lock().entries.get(key).cloned()
    }

    /// All entries in the order of their keys, and the number of the last change that they contain.
    #[must_use]
    pub fn snapshot(&self) -> (u64, Entries<V>) {
        let inner = self.lock();
        (inner.sequence, inner.entries.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }

    /// At most `limit` entries whose keys begin with `prefix` and come after `after`, in order.
    #[must_use]
    pub fn page(&self, prefix: &str, after: Option<&str>, limit: usize, keep: impl Fn(&V) -> bool) -> Entries<V> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match after {
            Some(after) if after >= prefix => Excluded(after),
            _ => Included(prefix),
        };
        let inner = self.lock();
        let range = inner.entries.range::<str, _>((from, Unbounded)).take_while(|(key, _)| key.starts_with(prefix));
        range.filter(|(_, v)| keep(v)).take(limit).map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The changes after number `sequence`, at most `limit` of them.
    #[must_use]
    pub fn since(&self, sequence: u64, limit: usize) -> Next<V> {
        let inner = self.lock();
        let oldest = inner.sequence - inner.log.len() as u64;
        if sequence < oldest || sequence > inner.sequence {
            return Next::TooOld;
        }
        let skip = usize::try_from(sequence - oldest).unwrap_or(usize::MAX);
        Next::Changes(inner.log.iter().skip(skip).take(limit).cloned().collect())
    }

    /// Tells the number of the last change, and wakes when it grows.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(k: &str) -> Arc<str> {
        k.into()
    }

    #[test]
    fn changes_are_numbered_and_resumable() {
        let book = Book::default();
        book.publish([(key("a"), Some(1)), (key("b"), Some(2))]);
        book.publish([(key("a"), None), (key("nobody"), None)]);
        let (sequence, all) = book.snapshot();
        assert_eq!(sequence, 3);
        assert_eq!(all.len(), 1);
        let Next::Changes(changes) = book.since(1, 10) else { panic!("resumable") };
        let seen: Vec<_> = changes.iter().map(|c| (c.sequence, &*c.key, c.value.as_deref().copied(), c.known_before)).collect();
        assert_eq!(seen, [(2, "b", Some(2), false), (3, "a", None, true)]);
        assert!(matches!(book.since(4, 10), Next::TooOld));
        assert!(matches!(book.since(3, 10), Next::Changes(c) if c.is_empty()));
    }

    #[test]
    fn old_changes_are_forgotten_and_said_so() {
        let book = Book::default();
        for n in 0..=LOG_LIMIT {
            book.publish([(key("a"), Some(n))]);
        }
        assert!(matches!(book.since(0, 1), Next::TooOld));
        assert!(matches!(book.since(1, 1), Next::Changes(c) if c[0].sequence == 2));
    }

    #[test]
    fn pages() {
        let book = Book::default();
        book.publish(["a", "b1", "b2", "b3", "c"].map(|k| (key(k), Some(()))));
        let page = |after, limit| -> Vec<String> { book.page("b", after, limit, |()| true).iter().map(|(k, _)| k.to_string()).collect() };
        assert_eq!(page(None, 2), ["b1", "b2"]);
        assert_eq!(page(Some("b2"), 2), ["b3"]);
        assert_eq!(page(Some("a"), 9), ["b1", "b2", "b3"]);
    }

    #[tokio::test]
    async fn followers_wake() {
        let book = Book::default();
        let mut latest = book.subscribe();
        book.publish([(key("a"), Some(1))]);
        latest.changed().await.unwrap();
        assert_eq!(*latest.borrow(), 1);
    }
}
