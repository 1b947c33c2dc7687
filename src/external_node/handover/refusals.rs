//! What the kernel does not take back, on one way: a route whose gateway is gone, or one that uses something that others removed meanwhile.
//!
//! One such thing must not keep the whole host waiting behind a port that nobody serves: the way is gone with what the NIC could be given, but its
//! journal is not dropped, and each way tries anew.

use crate::external_node::handover::{Handover, HandoverError, Seen};
use crate::external_node::phase::{NameHolder, NicPlace, Observation, Rows, Share, Step};
use crate::linux::KernelError;

/// So often something is tried before the way is gone without it: what failed may have waited for what came after it.
const TRIES: usize = 3;

/// The refusals of one way.
#[derive(Default)]
pub(super) struct Refusals {
    tries: usize,
    standing: Option<KernelError>,
}

impl Refusals {
    /// Takes note of one. `worth_it`: whether the host is better off with what it has been given than where it was.
    ///
    /// # Errors
    /// The refusal, where the way ends there.
    pub(super) fn take(&mut self, error: KernelError, worth_it: bool) -> Result<(), HandoverError> {
        self.tries += 1;
        if self.standing.is_some() || (self.tries >= TRIES && !worth_it) {
            return Err(error.into());
        }
        if self.tries >= TRIES {
            tracing::error!(%error, "the way is gone without it");
            self.standing = Some(error);
        }
        Ok(())
    }

    /// Lets the way go on: what the NIC was given is all that it can have now.
    pub(super) fn allow_for(&self, seen: &mut Observation) {
        if self.standing.is_some() && seen.on_nic == Share::Part {
            seen.on_nic = Share::All;
        }
    }

    /// What ends a way instead of this step: what is refused is not forgotten, and a NIC that stands plain is not taken away with less than it had.
    pub(super) fn instead_of(&mut self, step: Step, seen: &Observation) -> Option<HandoverError> {
        let ends = step == Step::DropJournal || (step == Step::Rename && seen.nic == NicPlace::OwnName);
        if ends { self.standing.take().map(Into::into) } else { None }
    }
}

impl Handover {
    /// Whether the host is better off with what a NIC could be given than with its port: when that does not serve, or only routes are missing.
    pub(super) fn is_worth_it(&mut self, seen: &Seen) -> Result<bool, HandoverError> {
        let (Some(nic), Some(journal)) = (&seen.nic, &seen.journal) else { return Ok(false) };
        let port_serves = seen.observation.rows == Rows::Ready && seen.observation.holder == NameHolder::Port;
        Ok(!port_serves || self.kernel.compare(&journal.config, nic, false)?.has_all_addresses())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> KernelError {
        KernelError { errno: 22, text: "Nexthop id does not exist".into(), attempted: "put routes onto eth0~".into() }
    }

    #[test]
    fn a_way_is_gone_without_what_is_refused_again_and_again() {
        for worth_it in [false, true] {
            let mut refusals = Refusals::default();
            for _ in 1..TRIES {
                assert!(refusals.take(refused(), worth_it).is_ok() && refusals.standing.is_none());
            }
            assert_eq!(refusals.take(refused(), worth_it).is_ok(), worth_it);
            assert_eq!(refusals.standing.is_some(), worth_it);
            assert!(refusals.take(refused(), worth_it).is_err() == worth_it || !worth_it, "nothing is tried for ever");
        }
    }
}
