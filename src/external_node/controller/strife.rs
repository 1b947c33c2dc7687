//! When others undo what is put right, again and again: pure.
//!
//! A host whose flows are removed as often as they are installed is reachable now and then, and each look by itself ends well. So it is not enough that an
//! attachment can be mended; it must also stay so.

use std::time::{Duration, Instant};

/// How long the same may be mended in look after look.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks that are further apart say nothing of what was between them.
const DENSE: Duration = Duration::from_secs(10);
/// After so long what was before is forgotten.
const PEACE: Duration = Duration::from_secs(1800);

/// What one NIC has been through.
#[derive(Clone, Debug, Default)]
pub(super) struct Strife {
    /// What each look found since the first.
    found: Vec<&'static str>,
    /// The first and the last look of those without a break that found it.
    looks: Option<(Instant, Instant)>,
    given_up: u32,
    given_up_last: Option<Instant>,
}

impl Strife {
    /// A look found this and mended it; whether it has been enough.
    pub(super) fn is_enough(&mut self, found: Vec<&'static str>, now: Instant) -> bool {
        let still: Vec<&'static str> = self.found.iter().filter(|what| found.contains(what)).copied().collect();
        let begun = self.looks.filter(|(_, last)| !still.is_empty() && now.duration_since(*last) <= DENSE).map(|(first, _)| first);
        self.found = if begun.is_some() { still } else { found };
        let first = begun.unwrap_or(now);
        self.looks = (!self.found.is_empty()).then_some((first, now));
        now.duration_since(first) >= PATIENCE
    }

    /// It is given up for now; how often that was so already.
    pub(super) fn give_up(&mut self, now: Instant) -> u32 {
        let is_old = self.given_up_last.is_none_or(|last| now.duration_since(last) > PEACE);
        self.looks = None;
        self.given_up = if is_old { 0 } else { self.given_up + 1 };
        self.given_up_last = Some(now);
        self.given_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FLOWS: &str = "flows";

    /// Looks one second apart; which of them it was enough for.
    fn enough(found: &[&[&'static str]]) -> Vec<usize> {
        let (mut strife, begun) = (Strife::default(), Instant::now());
        let at = |second: usize| begun + SECOND * u32::try_from(second).unwrap();
        (0..found.len()).filter(|second| strife.is_enough(found[*second].to_vec(), at(*second))).collect()
    }

    #[test]
    fn the_same_in_look_after_look_is_enough_after_a_while() {
        assert_eq!(enough(&[[FLOWS].as_slice(); 33]), [30, 31, 32]);
        // One look that finds nothing, or something else, begins anew.
        let mut found = vec![[FLOWS].as_slice(); 60];
        found[29] = &[];
        assert_eq!(enough(&found), [] as [usize; 0]);
        found[29] = &["addresses"];
        assert_eq!(enough(&found), [] as [usize; 0]);
        assert_eq!(enough(&[[].as_slice(); 60]), [] as [usize; 0]);
        // Not if the same is found beside something else.
        let beside = |second: usize| if second.is_multiple_of(3) { ["addresses", FLOWS].as_slice() } else { [FLOWS].as_slice() };
        assert_eq!(enough(&(0..31).map(beside).collect::<Vec<_>>()), [30]);
    }

    #[test]
    fn looks_far_apart_are_no_strife() {
        let (mut strife, mut now) = (Strife::default(), Instant::now());
        for _ in 0..100 {
            assert!(!strife.is_enough(vec![FLOWS], now));
            now += DENSE + SECOND;
        }
    }

    #[test]
    fn who_gives_up_often_waits_longer_until_there_was_peace() {
        let (mut strife, mut now) = (Strife::default(), Instant::now());
        let mut give_up = |after: Duration| {
            now += after;
            strife.give_up(now)
        };
        let often: Vec<u32> = [SECOND, 40 * SECOND, 300 * SECOND, PEACE + SECOND, SECOND].into_iter().map(&mut give_up).collect();
        assert_eq!(often, [0, 1, 2, 0, 1]);
    }
}
