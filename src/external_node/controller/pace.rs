//! When a NIC that failed is tried again: pure.
//!
//! Failures in a row are tried ever more seldom. News that may have removed their cause bring the next attempt forward, but not without end: what comes and
//! goes again and again brings it forward ever less, until an attempt was made in its own time.

use std::time::{Duration, Instant};

/// Delays after failures in a row: the first, doubled each time, and the longest (as Antrea has them).
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// The pace of one NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Failures in a row.
    failures: u32,
    /// The last one.
    failed: Instant,
    /// When the next attempt is made in its own time.
    regular: Instant,
    /// When it is made.
    due: Instant,
    /// Attempts in a row that news brought forward.
    hurried: u32,
}

impl Pace {
    /// Nothing has failed, and the first look is due.
    pub(super) fn new(now: Instant) -> Self {
        Self { failures: 0, failed: now, regular: now, due: now, hurried: 0 }
    }

    /// Failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// When it is to be looked at again.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Whether an attempt must wait.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.failures > 0 && now < self.due
    }

    /// An attempt failed; how long the next one waits.
    pub(super) fn fail(&mut self, begun: Instant, now: Instant) -> Duration {
        let was_hurried = self.failures > 0 && begun < self.regular;
        self.hurried = if was_hurried { self.hurried + 1 } else { 0 };
        let delay = delay(self.failures);
        self.failures += 1;
        (self.failed, self.regular, self.due) = (now, now + delay, now + delay);
        delay
    }

    /// So many failures are counted at least: an attempt got to its end and came to nothing all the same.
    pub(super) fn count(&mut self, failures: u32) {
        self.failures = self.failures.max(failures);
    }

    /// An attempt got to its end.
    pub(super) fn succeed(&mut self) {
        (self.failures, self.hurried) = (0, 0);
    }

    /// It is to be looked at by then, whatever failed.
    pub(super) fn look_at(&mut self, at: Instant) {
        self.due = at;
    }

    /// Somebody wants something else: what failed says nothing of that.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        (self.due, self.regular, self.hurried) = (now, now, 0);
    }

    /// What may have been the cause has changed.
    pub(super) fn hurry(&mut self, now: Instant) {
        let pause = self.hurried.checked_sub(1).map_or(Duration::ZERO, delay);
        self.due = self.due.min(now.max(self.failed + pause));
    }
}

fn delay(times: u32) -> Duration {
    FIRST.saturating_mul(1 << times.min(6)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn failures_in_a_row_are_tried_ever_more_seldom() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        assert!(!pace.waits(now));
        let delays: Vec<u64> = (0..8)
            .map(|_| {
                let delay = pace.fail(now, now);
                assert!(pace.waits(now) && pace.waits(now + delay - SECOND) && !pace.waits(now + delay));
                now += delay;
                delay.as_secs()
            })
            .collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300]);
        pace.succeed();
        assert!(!pace.waits(now));
        assert_eq!(pace.fail(now, now), FIRST);
    }

    #[test]
    fn news_bring_an_attempt_forward_at_once_but_not_without_end() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        for _ in 0..8 {
            pace.fail(now, now);
            now = pace.due();
        }
        pace.fail(now, now);
        // Something comes and goes every second for an hour, and each attempt fails.
        let begun = now;
        let mut attempts = 0;
        while now < begun + Duration::from_secs(3600) {
            now += SECOND;
            pace.hurry(now);
            if !pace.waits(now) {
                assert!(attempts > 0 || now == begun + SECOND, "the first news count at once");
                attempts += 1;
                pace.fail(now, now);
            }
        }
        assert!((12..=12 * 8).contains(&attempts), "{attempts} attempts in an hour");
        // News after a while in which nothing happened count at once again.
        now += LONGEST;
        pace.fail(now, now);
        pace.hurry(now + SECOND);
        assert!(!pace.waits(now + SECOND));
    }

    #[test]
    fn another_wish_begins_anew_and_news_delay_nothing() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.fail(now, now);
        pace.fail(now + FIRST, now + FIRST);
        pace.begin_anew(now + FIRST);
        assert!(!pace.waits(now + FIRST));
        pace.hurry(now + FIRST + SECOND);
        assert!(!pace.waits(now + FIRST));
        assert_eq!(pace.fail(now + FIRST, now + FIRST), 4 * FIRST, "that it failed before is not forgotten");
    }
}
