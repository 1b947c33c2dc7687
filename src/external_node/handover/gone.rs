//! A NIC that leaves the namespace while it is behind the bridge, and comes back: with it went what the kernel and the switch had bound to it.

use crate::external_node::handover::{Handover, HandoverError, Seen};
use crate::external_node::identify::{guarded, is_made_anew};
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::Rows;
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

    /// A NIC that was gone so shortly that nobody saw it, or while no agent ran, is known by its listener: a switch in user space that has its port in use
    /// does not hear it. The journal says then that it was gone, and the rows that its port cannot be used.
    pub(super) fn heed_absence(
        &mut self,
        nic: Option<&NicLink>,
        journal: Option<Journal>,
        rows: Rows,
    ) -> Result<(Option<Journal>, Rows), KernelError> {
        let (Some(nic), Some(journal)) = (nic, &journal) else { return Ok((journal, rows)) };
        let listened = rows == Rows::Ready && journal.guard && journal.boot_id == self.settings.boot_id;
        if !listened || !self.kernel.is_unheard(nic)? {
            return Ok((Some(journal.clone()), rows));
        }
        tracing::debug!(nic = journal.name(), "it was gone for a while: the switch does not hear it any more");
        Ok((Some(Journal { gone: true, ..journal.clone() }), Rows::Broken))
    }

    /// Drops the journal of a NIC that is given back. One that is gone has got nothing back: what it had is kept until the end of this boot.
    pub(super) fn end_journal(&self, name: &str, seen: &Seen) -> Result<(), HandoverError> {
        if seen.nic.is_some() {
            return Ok(self.journals.drop(name)?);
        }
        self.note_gone(name, seen);
        Ok(self.journals.put_away(name)?)
    }

    /// The NICs that came back after everything else of them had been given up, with nothing on them but the uplink's name: their journals hold again. One
    /// that came back under another name is set up by whoever brought it.
    pub fn returned(&mut self) -> Vec<String> {
        let away = self.journals.away().unwrap_or_default();
        if away.is_empty() {
            return Vec::new();
        }
        let Ok(links) = self.kernel.links() else { return Vec::new() };
        let is_back = |journal: &Journal| {
            let is_it = |link: &NicLink| (&link.mac, &link.kind) == (&journal.nic.mac, &journal.nic.kind) && link.name == journal.uplink;
            links.iter().any(is_it)
        };
        let mut returned = Vec::new();
        for journal in away {
            let name = journal.name().to_owned();
            // One that cannot be read may say anything.
            let Ok(stands) = self.journals.load(&name).map(|there| there.is_some()) else { continue };
            let is_old = stands || journal.boot_id != self.settings.boot_id;
            if !is_old && !is_back(&journal) {
                continue;
            }
            let taken_up = if is_old { Ok(()) } else { self.journals.write(&journal) };
            match taken_up.and_then(|()| self.journals.forget(&name)) {
                Ok(()) if is_old => {}
                Ok(()) => returned.push(name),
                Err(error) => tracing::warn!(nic = name, %error, "a NIC that came back cannot be given what it had"),
            }
        }
        returned
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
