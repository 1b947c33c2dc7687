//! A NIC that leaves the namespace while it is behind the bridge, and comes back: with it went what the kernel and the switch had bound to it.

use crate::external_node::handover::{Handover, Seen};
use crate::external_node::identify::{guarded, is_made_anew};
use crate::external_node::journal::{Intent, Journal};
use crate::linux::KernelError;
use crate::model::nic::NicLink;

impl Handover {
    /// Notes that the NIC is gone. It may come back with the index that it had, and a switch in user space would not listen to it ever again.
    pub(super) fn note_gone(&self, name: &str, seen: &Seen) {
        let noted = seen.journal.clone().filter(|journal| !journal.gone && journal.boot_id == self.settings.boot_id);
        if let Some(journal) = noted
            && let Err(error) = self.journals.write(&Journal { gone: true, ..journal })
        {
            tracing::warn!(nic = name, %error, "that it is gone could not be noted");
        }
    }

    /// Whether the guard is there: whole where the NIC shall be behind the bridge, else any of it, which is to be removed.
    pub(super) fn guard_stands(&mut self, nic: Option<&NicLink>, journal: Option<&Journal>) -> Result<bool, KernelError> {
        let boot_id = &self.settings.boot_id;
        let Some(link) = guarded(nic, journal, boot_id) else { return Ok(false) };
        let needed =
            nic.zip(journal).is_some_and(|(nic, journal)| journal.intent != Intent::Detaching && !is_made_anew(nic, journal, boot_id));
        if needed { self.kernel.is_guarded(&link) } else { self.kernel.has_guard(&link) }
    }
}
