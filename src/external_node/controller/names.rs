//! Which names the host hangs on, and nobody else in this agent may have.

use super::NodeController;
use crate::external_node::journal::JournalFolder;
use crate::external_node::suitability::uplink_name;
use crate::model::ReservedNames;

/// Those that journals tell of, also of such as cannot be read: what holds before the first look.
#[must_use]
pub fn journalled(journals: &JournalFolder) -> ReservedNames {
    let mut names = ReservedNames::default();
    let all = journals.all().unwrap_or_else(|error| {
        tracing::error!(%error, "the journals cannot be listed");
        Vec::new()
    });
    for journal in all {
        match journal {
            Ok(journal) => {
                let altnames = journal.nic.altnames.iter().map(String::as_str);
                names.add_nic(journal.name(), altnames.chain([journal.uplink.as_str()]));
                names.add_bridge(&journal.bridge);
            }
            Err(error) => {
                if let Some(nic) = error.path().file_stem().and_then(|stem| stem.to_str()) {
                    names.add_nic(nic, [uplink_name(nic).as_str()]);
                }
            }
        }
    }
    names
}

impl NodeController {
    /// Reserves them, before anything of a NIC is touched and when one is given back.
    pub(super) fn reserve_names(&self) {
        let mut names = journalled(self.parts.handover.journals());
        for (name, nic) in &self.nics {
            let uplink = uplink_name(name);
            names.add_nic(name, nic.altnames.iter().map(String::as_str).chain([uplink.as_str()]));
            names.add_bridge(&self.parts.bridge);
        }
        self.parts.names.reserve(names);
    }
}
