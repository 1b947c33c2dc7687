//! When a failed object is tried again, and when a tug-of-war is given up for a while.
//!
//! Pure but for jitter. One object's failures never delay another one's.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::configurator::desired::Key;

/// First delay.
pub const FIRST: Duration = Duration::from_secs(1);
/// Longest delay.
pub const LONGEST: Duration = Duration::from_secs(60);
/// So many repairs of one object within [`FIGHT_WINDOW`] are a tug-of-war with someone else.
pub const FIGHT_REPAIRS: usize = 5;
/// The time in which they are counted.
pub const FIGHT_WINDOW: Duration = Duration::from_secs(60);

/// Failures of one object, in a row.
#[derive(Debug)]
struct Trouble {
    attempt: u32,
    due: Instant,
    backoff: backon::ExponentialBackoff,
}

/// All objects in trouble.
#[derive(Debug, Default)]
pub struct Retries {
    troubles: HashMap<Key, Trouble>,
    queue: BTreeSet<(Instant, Key)>,
    repairs: HashMap<Key, VecDeque<Instant>>,
}

impl Retries {
    /// Notes a failure; returns how often in a row, and the delay until the next try.
    pub fn failed(&mut self, key: &Key, now: Instant) -> (u32, Duration) {
        let trouble = self.troubles.entry(key.clone()).or_insert_with(|| Trouble { attempt: 0, due: now, backoff: backoff() });
        let delay = trouble.backoff.next().unwrap_or(LONGEST).min(LONGEST);
        self.queue.remove(&(trouble.due, key.clone()));
        trouble.attempt += 1;
        trouble.due = now + delay;
        self.queue.insert((trouble.due, key.clone()));
        (trouble.attempt, delay)
    }

    /// Notes that the kernel has not finished something; counts as a failure once per delay, however often it is looked at meanwhile.
    pub fn unfinished(&mut self, key: &Key, now: Instant) -> (u32, Duration) {
        match self.troubles.get(key) {
            Some(trouble) if trouble.due > now => (trouble.attempt, trouble.due - now),
            _ => self.failed(key, now),
        }
    }

    /// The object is well, or gone.
    pub fn well(&mut self, key: &Key) {
        if let Some(trouble) = self.troubles.remove(key) {
            self.queue.remove(&(trouble.due, key.clone()));
        }
    }

    /// How often the object failed in a row.
    #[must_use]
    pub fn attempt(&self, key: &str) -> u32 {
        self.troubles.get(key).map_or(0, |trouble| trouble.attempt)
    }

    /// Takes what is due.
    pub fn due(&mut self, now: Instant) -> Vec<Key> {
        let due: Vec<(Instant, Key)> = self.queue.iter().take_while(|(at, _)| *at <= now).cloned().collect();
        for entry in &due {
            self.queue.remove(entry);
        }
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// When the next one is due.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Notes that someone's change of an object was repaired; true when it happens so often that it must slow down.
    pub fn repaired(&mut self, key: &Key, now: Instant) -> bool {
        let times = self.repairs.entry(key.clone()).or_default();
        times.push_back(now);
        while times.front().is_some_and(|first| now.duration_since(*first) > FIGHT_WINDOW) {
            times.pop_front();
        }
        times.len() > FIGHT_REPAIRS
    }

    /// Whether an object is fought over so much that the next repair must wait for its turn.
    #[must_use]
    pub fn fighting(&self, key: &str, now: Instant) -> bool {
        let recent = |times: &VecDeque<Instant>| times.iter().filter(|at| now.duration_since(**at) <= FIGHT_WINDOW).count();
        self.repairs.get(key).is_some_and(|times| recent(times) > FIGHT_REPAIRS)
            && self.troubles.get(key).is_some_and(|trouble| trouble.due > now)
    }

    /// The user has written the object's key: everything begins anew.
    pub fn forget(&mut self, key: &Key) {
        self.well(key);
        self.repairs.remove(key);
    }
}

fn backoff() -> backon::ExponentialBackoff {
    ExponentialBuilder::default().with_min_delay(FIRST).with_max_delay(LONGEST).with_factor(2.0).with_jitter().without_max_times().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_minute_and_no_further() {
        let (mut retries, key, now) = (Retries::default(), Key::from("a"), Instant::now());
        let delays: Vec<Duration> = (0..12).map(|_| retries.failed(&key, now).1).collect();
        assert!(delays[0] >= FIRST && delays[0] <= 2 * FIRST, "{delays:?}");
        assert!(delays.iter().all(|d| *d <= LONGEST), "{delays:?}");
        assert_eq!(delays[11], LONGEST);
        assert_eq!(retries.attempt("a"), 12);
        assert_eq!(retries.next(), Some(now + LONGEST));
        assert!(retries.due(now).is_empty());
        assert_eq!(retries.due(now + LONGEST), [Key::from("a")]);
        retries.well(&key);
        assert_eq!(retries.attempt("a"), 0);
    }

    #[test]
    fn one_object_does_not_delay_another() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        for _ in 0..8 {
            retries.failed(&Key::from("bad"), now);
        }
        let (_, delay) = retries.failed(&Key::from("other"), now);
        assert!(delay <= 2 * FIRST);
        assert_eq!(retries.due(now + 2 * FIRST), [Key::from("other")]);
    }

    #[test]
    fn a_tug_of_war_slows_down() {
        let (mut retries, key, now) = (Retries::default(), Key::from("a"), Instant::now());
        for n in 1..=FIGHT_REPAIRS {
            assert!(!retries.repaired(&key, now), "{n}");
        }
        assert!(retries.repaired(&key, now));
        retries.failed(&key, now);
        assert!(retries.fighting("a", now));
        assert!(!retries.fighting("a", now + FIGHT_WINDOW * 2));
    }
}
