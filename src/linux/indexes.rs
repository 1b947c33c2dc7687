//! Indexes that we give to the first ends of pairs.
//!
//! The kernel's link watch brings a veth's carrier at once only where the two ends have different indexes; else it takes up to a second. Left to the
//! kernel, both ends of a pair often get the same one, since each namespace counts for itself. So the first end gets one from a range that the kernel
//! does not reach by counting, and the second end's is left to the kernel.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use crate::model::IfIndex;

/// The kernel counts from 1 in every namespace and would have to make a million links in one to get here.
const LOWEST: u32 = 1 << 20;
/// Indexes are positive `int`s.
const HIGHEST: u32 = i32::MAX as u32;

/// Gives out indexes, each once; begins at a random place, so that an index of an earlier life, or of another agent in the same namespace, is
/// most likely not met again. One that is taken all the same is refused by the kernel.
#[derive(Debug)]
pub(super) struct Indexes {
    last: u32,
}

impl Indexes {
    pub(super) fn new() -> Self {
        Self::after(u32::try_from(RandomState::new().build_hasher().finish() % u64::from(HIGHEST)).unwrap_or(LOWEST))
    }

    fn after(last: u32) -> Self {
        Self { last: last.max(LOWEST) }
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Option<IfIndex> {
        self.last = if self.last >= HIGHEST { LOWEST } else { self.last + 1 };
        IfIndex::new(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_index_is_given_twice_and_all_are_high() {
        let mut indexes = Indexes::after(HIGHEST - 2);
        let given: Vec<u32> = std::iter::from_fn(|| indexes.next().map(IfIndex::get)).take(4).collect();
        assert_eq!(given, [HIGHEST - 1, HIGHEST, LOWEST, LOWEST + 1]);
        assert!(Indexes::after(0).next().unwrap().get() > LOWEST);
    }

    #[test]
    fn every_life_begins_elsewhere() {
        let starts: std::collections::HashSet<_> = (0..8).map(|_| Indexes::new().next()).collect();
        assert!(starts.len() > 1);
    }
}
