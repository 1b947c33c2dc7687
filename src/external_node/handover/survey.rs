//! What there is on the host and in the database, before anything is decided.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::external_node::handover::{Handover, HandoverError};
use crate::external_node::identify::find_nic;
use crate::external_node::selection::Candidate;
use crate::linux::nic::Caretakers;
use crate::model::Datapath;
use crate::model::nic::NicLink;
use crate::ovs::{Claim, Notes, OvsError, Role, SwitchView};

/// How long the database may take to answer while the switch is known to be away: the host is cut off meanwhile, and goes on by its NIC without an answer too.
const WHILE_AWAY: Duration = Duration::from_secs(1);

impl Handover {
    /// What the database shows.
    pub(super) fn view(&self) -> Result<SwitchView, OvsError> {
        if self.switch_alive.load(Ordering::Relaxed) { self.switch.read() } else { self.switch.read_within(WHILE_AWAY) }
    }

    /// What the database shows; nothing while it cannot be read.
    #[must_use]
    pub fn ports(&self) -> Option<SwitchView> {
        self.view().ok()
    }

    /// Whether the bridge only listens to its uplinks: that of a bridge that is there counts, not what one would be made with.
    pub(super) fn only_listens(&self) -> bool {
        // The journal holds the answer as long as the attachment stands, so it is worth waiting for.
        let bridge = self.switch.read().ok().and_then(|view| view.bridge);
        bridge.map_or(self.settings.datapath == Datapath::Netdev, |bridge| bridge.datapath == Datapath::Netdev.as_str())
    }

    /// Own names of the NICs of which the database has ports of ours; none while it cannot be read.
    #[must_use]
    pub fn known_pairs(&self) -> Vec<String> {
        self.view().map(|view| view.pairs.into_keys().collect()).unwrap_or_default()
    }

    /// The bridge that has a port or an interface of this name which is not ours; none while the database cannot be read.
    #[must_use]
    pub fn foreign_bridge(&self, name: &str) -> Option<String> {
        foreign_bridge(&self.view().ok()?, name)
    }

    /// The agent of another label that has put the NIC of this name behind a bridge; none while the database cannot be read.
    #[must_use]
    pub fn claim(&self, nic: &str) -> Option<Claim> {
        self.view().ok()?.others.remove(nic)
    }

    /// Replaces what is remembered beside a NIC's ports.
    ///
    /// # Errors
    /// What Open vSwitch says.
    pub fn write_notes(&mut self, nic: &str, notes: &Notes) -> Result<(), HandoverError> {
        Ok(self.switch.write_notes(nic, notes)?)
    }

    /// Who looks after a NIC, and which of its routes DHCP clients made.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn caretakers(&mut self, link: &NicLink, run: &Path) -> Result<(Caretakers, Vec<String>), HandoverError> {
        let found = self.kernel.caretakers(link, run)?;
        let routes = self.kernel.read(link)?.routes;
        Ok((found, routes.iter().filter(|route| route.is_dhcp()).map(ToString::to_string).collect()))
    }

    /// All NICs that a wish can mean. One behind the bridge is shown under its own name, with the host's addresses.
    ///
    /// # Errors
    /// When the kernel or the journals' folder cannot be read.
    pub fn candidates(&mut self) -> Result<(Vec<Candidate>, Vec<NicLink>), HandoverError> {
        let links = self.kernel.links()?;
        let mut behind: BTreeMap<u32, String> = BTreeMap::new();
        let mut ports = Vec::new();
        // What another agent has is told under its own name too, so that who wishes it hears whose it is.
        for (uplink, claim) in self.view().map(|view| view.others).unwrap_or_default() {
            let nic = links.iter().find(|link| link.name == uplink).filter(|_| claim.role == Role::Uplink);
            if let Some(nic) = nic.filter(|_| links.iter().any(|link| link.name == claim.peer)) {
                behind.insert(nic.ifindex, claim.peer.clone());
                ports.push(claim.peer);
            }
        }
        for journal in self.journals.all()?.into_iter().flatten() {
            let nic = find_nic(&links, journal.name(), &journal.uplink, Some(&journal), &self.settings.boot_id);
            if let Some(nic) = nic.filter(|nic| nic.name != journal.name()) {
                behind.insert(nic.ifindex, journal.name().to_owned());
                ports.push(journal.name().to_owned());
            }
        }
        let mut all = self.kernel.addresses()?;
        let mut candidates = Vec::new();
        for link in links.iter().filter(|link| !ports.contains(&link.name)) {
            let mut addresses = all.remove(&link.ifindex).unwrap_or_default();
            let mut link = link.clone();
            if let Some(own) = behind.get(&link.ifindex) {
                if let Some(port) = links.iter().find(|port| port.name == *own) {
                    addresses.extend(all.remove(&port.ifindex).unwrap_or_default());
                }
                link.name.clone_from(own);
            }
            candidates.push(Candidate { link, addresses });
        }
        Ok((candidates, links))
    }
}

/// The bridge that has a port or an interface of this name which is not ours.
pub(super) fn foreign_bridge(view: &SwitchView, name: &str) -> Option<String> {
    let ours = view.pairs.values().flat_map(|pair| [&pair.host, &pair.uplink]).flatten().any(|port| port.name == name);
    view.names.get(name).filter(|_| !ours).cloned()
}
