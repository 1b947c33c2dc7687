//! An attachment stays only when the host is known to reach its store with it.

use std::sync::atomic::Ordering;

use super::{NodeController, status};
use crate::external_node::attachment::is_overdue;
use crate::external_node::phase::JournalState;
use crate::linux::nic::NicKernel;
use crate::model::Reason;

impl NodeController {
    /// The host reached its store after the NIC was moved: that is the proof. Not in time: the way back.
    pub(super) fn await_confirmation(&mut self, name: &str) {
        let Some(nic) = self.nics.get(name) else { return };
        let (Some(then), Some(journal)) = (nic.unproved, nic.seen.as_ref().and_then(|seen| seen.journal.clone())) else { return };
        let proved = self.parts.store.last_heard().is_news_since(then) && self.wishes.are_listed();
        if proved {
            self.confirm(name, &journal.attachment);
        } else if is_overdue(&journal, NicKernel::uptime()) {
            self.roll_back(name, Reason::Timeout, "the store could not be reached after the NIC was moved");
        }
    }

    fn confirm(&mut self, name: &str, attachment: &str) {
        match self.parts.handover.confirm_attachment(name, attachment) {
            Ok(true) => {
                tracing::info!(nic = name, "confirmed: the host reaches its store");
                if let Some(nic) = self.nics.get_mut(name) {
                    nic.unproved = None;
                    if let Some(journal) = nic.seen.as_mut().and_then(|seen| seen.journal.as_mut()) {
                        journal.confirmed = true;
                    }
                }
            }
            // The next look tells that it was undone.
            Ok(false) => tracing::info!(nic = name, "the confirmation came too late"),
            Err(error) => tracing::warn!(nic = name, %error, "the confirmation could not be written"),
        }
    }

    pub(super) fn confirm_all(&mut self) {
        let names: Vec<String> = self.nics.iter().filter(|(_, nic)| nic.unproved.is_some()).map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(journal) = self.nics.get(&name).and_then(|nic| nic.seen.as_ref()).and_then(|seen| seen.journal.clone()) {
                self.confirm(&name, &journal.attachment);
            }
        }
    }

    /// Whether somebody else, the process that stands by, has undone an attachment that was not confirmed.
    pub(super) fn was_given_back(&mut self, name: &str) -> bool {
        let Ok(seen) = self.parts.handover.observe(name) else { return false };
        match seen.observation.journal {
            JournalState::Attaching | JournalState::Attached => return false,
            // Only the journal has gone: what is written anew is to be confirmed by itself.
            JournalState::None if !status::is_plain(&seen) => {
                if let Some(nic) = self.nics.get_mut(name) {
                    nic.unproved = None;
                }
                return false;
            }
            JournalState::None | JournalState::Detaching => {}
        }
        self.remember(name, seen);
        if let Some(nic) = self.nics.get_mut(name) {
            nic.unproved = None;
        }
        self.parts.published.counters.taken_over.fetch_add(1, Ordering::Relaxed);
        let message = format!("the attachment of {name} was not confirmed in time, and was undone");
        self.failed(name, Reason::Timeout, message);
        true
    }
}
