//! A request to give everything back, from when it is made until the wish changes.

use std::io;
use std::time::Instant;

use super::NodeController;
use crate::external_node::phase::Goal;
use crate::external_node::rollback::{Review, Rollback};

impl NodeController {
    /// Somebody asks for it. It is on disk before anything is done, and before it is answered.
    ///
    /// # Errors
    /// When it is not on disk; it holds all the same, as long as this agent runs.
    pub(super) fn take_rollback(&mut self, now: Instant) -> Result<(), String> {
        self.changed = true;
        self.nics.values_mut().for_each(|nic| nic.pace.begin_anew(now));
        let kept = self.keep(Rollback { wished: self.wishes.wished() });
        kept.map_err(|error| {
            format!("the NICs are given back, but an agent that is started anew would attach them again: keep the request: {error}")
        })
    }

    /// Whether it still holds.
    pub(super) fn review_rollback(&mut self) {
        let Some(rollback) = self.rollback.as_ref().filter(|_| self.wishes.are_listed()) else { return };
        let wished = self.wishes.wished();
        // What the store has lost is not taken back by anybody.
        if wished.is_none() && !self.parts.store.removals_allowed(self.listings) {
            return;
        }
        match rollback.review(wished.as_ref()) {
            Review::Holds => {}
            // It was told.
            Review::Binds => drop(self.keep(Rollback { wished })),
            Review::Ended => {
                if let Err(error) = self.parts.rollbacks.drop() {
                    tracing::error!(%error, "that the node is not given back any more could not be written");
                }
                self.rollback = None;
                self.nics.values_mut().for_each(|nic| nic.rolled_back = false);
            }
        }
    }

    /// Whatever is wished, the way is back.
    pub(super) fn apply_rollback(&mut self) {
        if self.rollback.is_some() {
            self.nics.values_mut().for_each(|nic| (nic.rolled_back, nic.goal) = (true, Goal::Plain));
        }
    }

    fn keep(&mut self, rollback: Rollback) -> io::Result<()> {
        let written = self.parts.rollbacks.write(&rollback);
        if let Err(error) = &written {
            tracing::error!(%error, "that the node is given back could not be written; it holds as long as this agent runs");
        }
        self.rollback = Some(rollback);
        written
    }
}
