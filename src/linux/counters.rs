//! What the kernel was asked for, counted by whoever sends: the executor and the reaper's threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::linux::KernelCounters;

/// Shared counters.
#[derive(Debug, Default)]
pub(super) struct Counters {
    writes: AtomicU64,
    reads: AtomicU64,
    sends: AtomicU64,
    moves: AtomicU64,
}

impl Counters {
    pub(super) fn count_writes(&self, n: u64) {
        self.writes.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn count_reads(&self, n: u64) {
        self.reads.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn count_send(&self) {
        self.sends.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> KernelCounters {
        KernelCounters {
            writes: self.writes.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            sends: self.sends.load(Ordering::Relaxed),
            moves: self.moves.load(Ordering::Relaxed),
        }
    }
}
