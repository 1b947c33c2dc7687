//! How long to wait before the next attempt: jittered, so that a fleet does not return in step.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// First delay; up to as much again is added by chance.
const FIRST: Duration = Duration::from_millis(100);
/// Largest delay before chance is added: no wait is longer than 5 s.
const LARGEST: Duration = Duration::from_millis(2500);

/// Delays that grow from 100 ms to 5 s, until there is progress again.
#[derive(Debug)]
pub(crate) struct Backoff(ExponentialBackoff);

impl Backoff {
    /// Begins with the shortest delay.
    pub(crate) fn new() -> Self {
        Self(ExponentialBuilder::new().with_jitter().with_min_delay(FIRST).with_max_delay(LARGEST).without_max_times().build())
    }

    /// The next delay.
    pub(crate) fn wait(&mut self) -> Duration {
        self.0.next().unwrap_or(LARGEST)
    }

    /// There was progress: the next failure is a new one.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }
}

/// A number below `end` by chance; good enough to spread a fleet, and for nothing secret.
pub(crate) fn chance(end: usize) -> usize {
    let random = RandomState::new().build_hasher().finish();
    usize::try_from(random >> 32).unwrap_or(0) % end.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_below_its_end_and_spreads() {
        let drawn: std::collections::BTreeSet<usize> = (0..200).map(|_| chance(3)).collect();
        assert_eq!(drawn, [0, 1, 2].into());
        assert_eq!(chance(0), 0);
    }

    #[test]
    fn grows_from_100_ms_to_5_s_and_begins_anew() {
        let mut backoff = Backoff::new();
        let first = backoff.wait();
        assert!((FIRST..=2 * FIRST).contains(&first), "{first:?}");
        let later: Vec<Duration> = (0..100).map(|_| backoff.wait()).skip(20).collect();
        assert!(later.iter().all(|wait| (LARGEST..=2 * LARGEST).contains(wait)), "{later:?}");
        assert!(later.iter().collect::<std::collections::BTreeSet<_>>().len() > 10, "no chance in {later:?}");
        backoff.reset();
        assert!(backoff.wait() <= 2 * FIRST);
    }
}
