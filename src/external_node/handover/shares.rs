//! How much of the journal's configuration each link has, and what it has beyond it.

use crate::external_node::handover::given::is_owed;
use crate::external_node::handover::{Handover, HandoverError};
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::{NicPlace, Share};
use crate::model::nic::{Given, NicConfig, NicLink, NicRoute, difference};

/// Of both links.
pub(super) struct Shares {
    pub(super) on_nic: Share,
    pub(super) on_port: Share,
    pub(super) more_on_nic: bool,
    pub(super) more_on_port: bool,
    /// The journal's configuration with the routes that others put into the places of its own.
    pub(super) rerouted: Option<NicConfig>,
    /// What others gave to the port, where that is not what the journal says.
    pub(super) given: Option<Given>,
    /// The journal's configuration with what the port shows to have been found out about addresses, and of leases, where that is something else.
    pub(super) followed: Option<NicConfig>,
}

impl Handover {
    pub(super) fn shares(
        &mut self,
        journal: Option<&Journal>,
        nic: Option<&NicLink>,
        port: Option<&NicLink>,
        place: NicPlace,
        port_serves: bool,
    ) -> Result<Shares, HandoverError> {
        let there = nic.map(|nic| self.kernel.read(nic)).transpose()?;
        let there_port = port.map(|port| self.kernel.read(port)).transpose()?;
        let plain = place == NicPlace::OwnName;
        let Some(journal) = journal else {
            let given = |config: &Option<NicConfig>| config.as_ref().is_some_and(|config| !config.given_addresses().is_empty());
            let share = |all: bool| if all { Share::All } else { Share::None };
            let (on_nic, on_port) = (share(plain || given(&there)), share(given(&there_port)));
            return Ok(Shares { on_nic, on_port, more_on_nic: false, more_on_port: false, rerouted: None, given: None, followed: None });
        };
        let wish = &journal.config;
        let on_its_way_back = journal.intent == Intent::Detaching;
        let empty = wish.given_addresses().is_empty() && wish.routes.iter().all(NicRoute::is_kernel_made);
        let share = |wish: &NicConfig, there: &NicConfig, labels: bool| {
            let found = difference(wish, there, labels);
            match (found.is_whole(), found.has_some) {
                (true, _) => Share::All,
                (false, true) => Share::Part,
                (false, false) => Share::None,
            }
        };
        let on_nic = match &there {
            None => Share::None,
            // A NIC that had nothing has nothing to be taken from while the port serves; else it has all of it as soon as it is up.
            Some(_) if empty && !plain && port_serves && !on_its_way_back => Share::None,
            Some(there) => share(wish, there, plain),
        };
        let on_port = match there_port.as_ref().map(|there| (share(&journal.wished_on(there), there, true), there)) {
            None => Share::None,
            Some((Share::All, there)) if is_owed(journal, there) => Share::Part,
            Some((share, _)) => share,
        };
        let everything = journal.everything();
        let has_more = |there: &Option<NicConfig>| there.as_ref().is_some_and(|there| difference(&everything, there, false).has_more());
        let attached = there_port.as_ref().filter(|_| journal.intent == Intent::Attached);
        let given = attached.map(|there| Given::seen(wish, there, journal.name(), false)).filter(|given| !given.is_as(&journal.given));
        let followed = attached.and_then(|there| wish.followed(there));
        let links: Vec<&NicConfig> = [&there_port, &there].into_iter().flatten().collect();
        let rerouted = wish.with_replaced_routes(&links);
        Ok(Shares { on_nic, on_port, more_on_nic: has_more(&there), more_on_port: has_more(&there_port), rerouted, given, followed })
    }
}
