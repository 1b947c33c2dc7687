//! Making, mending and removing the two ports of one NIC.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::external_node::handover::{Handover, HandoverError, Purpose, Seen, notes_of};
use crate::external_node::identify::{is_enslaved, is_made_anew};
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::{Rows, Share};
use crate::model::nic::NicLink;
use crate::model::{HostIfName, MacAddr};
use crate::ovs::{Failing, NewPair, OvsError, PairRows, PairView};

/// How long new ports may take until they can be used.
const PORTS_WITHIN: Duration = Duration::from_secs(10);
/// The same, of a switch that is away.
const LOST_WITHIN: Duration = Duration::from_secs(5);
/// How long the switch may have the NIC open by the name that its port has now, and how often it is made to try again.
const LET_GO_WITHIN: Duration = Duration::from_secs(20);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long ports that stand already may take until they are mended; after that they are made anew.
const MENDED_WITHIN: Duration = Duration::from_secs(3);
/// How long the switch may take to let go of its ports.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The journal with the rows of both ports, as far as they say whose they are.
pub(super) fn with_rows(journal: Journal, seen: &Seen) -> Journal {
    let rows = seen.pair.as_ref().and_then(PairView::rows);
    Journal { ports: rows.or(journal.ports), ..journal }
}

impl Handover {
    /// What the host sent and heard by its NIC did not come past the switch, which would take what follows for invalid. Once before the host turns to the port, so that
    /// no kill in between leaves it undone, and once after. A switch that cannot do it is told of, and no reason to stay.
    pub(super) fn take_up_connections(&self, name: &str, seen: &Seen) {
        if seen.observation.on_nic == Share::None {
            return;
        }
        if let Err(problem) = self.flows.forget_connections() {
            tracing::warn!(nic = name, %problem, "connections that went on without the switch may be cut");
        }
    }

    pub(super) fn create_ports(&mut self, name: &str, seen: &Seen, journal: &Journal, purpose: &Purpose) -> Result<(), HandoverError> {
        let unfit = |what: &str| HandoverError::NotAsWished(format!("make the ports of {name}: {what}"));
        let mac = journal.nic.mac().ok_or_else(|| unfit("the NIC has no hardware address"))?;
        self.switch.ensure_bridge(self.settings.datapath)?;
        let nic = seen.nic.as_ref().filter(|nic| is_made_anew(nic, journal, &self.settings.boot_id));
        if nic.is_some() {
            tracing::warn!(nic = name, "it was gone meanwhile: its ports are made anew");
        }
        if seen.observation.rows == Rows::Broken && nic.is_none() {
            // They may only have to notice that their devices are back.
            match self.switch.wait_ready(name, mac, Failing::MayPass, MENDED_WITHIN) {
                Ok(_) => match self.port_is_up_to_date(name, mac, journal) {
                    // Its link has another name or address now, which its owner does not look after.
                    Err(HandoverError::NotAsWished(_)) => {}
                    outcome => return outcome,
                },
                Err(OvsError::NotYet { .. } | OvsError::PortFailed { .. } | OvsError::NoPort { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if seen.observation.rows != Rows::None {
            self.delete_ports(name, seen)?;
        }
        let host = HostIfName::new(name).map_err(|why| unfit(&why.to_string()))?;
        let uplink = HostIfName::new(&journal.uplink).map_err(|why| unfit(&why.to_string()))?;
        let notes = notes_of(journal, purpose);
        let rows = self.switch.create_pair(&NewPair { host, uplink, mac, mtu: journal.config.link.mtu, notes })?;
        let journal = self.note_rows(name, rows, journal);
        self.wait_made(name, mac, &journal)?;
        self.port_is_up_to_date(name, mac, &journal)?;
        if let Some(nic) = nic {
            // These ports are the new link's: from here on it is the NIC.
            let known = NicLink { ifindex: nic.ifindex, ..journal.nic.clone() };
            self.journals.write(&Journal { nic: known, gone: false, ..journal })?;
        }
        Ok(())
    }

    /// From here on they are known as ours, whatever becomes of what stands beside them. A disk that fails is no reason to stay without ports.
    fn note_rows(&self, name: &str, rows: PairRows, journal: &Journal) -> Journal {
        self.switch.know(name, Some(&rows));
        let journal = Journal { ports: Some(rows), ..journal.clone() };
        if let Err(error) = self.journals.write(&journal) {
            tracing::warn!(nic = name, %error, "the rows of its ports could not be noted");
        }
        journal
    }

    /// How long a switch is waited for. One that had the ports and is known to be away tells when it is back.
    fn patience(&self, journal: &Journal) -> Duration {
        let is_lost = journal.intent == Intent::Attached && !self.switch_answers();
        if is_lost { LOST_WITHIN } else { PORTS_WITHIN }
    }

    /// Waits for ports that were made just now. The switch may still have the NIC open by the name that is the port's now, as it has the one by which it
    /// reaches a controller in the band of the bridge; it looks every 10 s by which one that is. The host is reachable by its NIC meanwhile.
    fn wait_made(&self, name: &str, mac: MacAddr, journal: &Journal) -> Result<(), HandoverError> {
        let until = Instant::now() + LET_GO_WITHIN;
        loop {
            match self.switch.wait_ready(name, mac, Failing::Ends, self.patience(journal)) {
                Err(error) if error.is_name_in_use() && Instant::now() < until => tracing::debug!(nic = name, %error, "waiting"),
                outcome => return Ok(outcome.map(drop)?),
            }
            std::thread::sleep(ASK_AGAIN_AFTER);
            // Any change has it try again.
            self.switch.wait_followed(self.patience(journal))?;
        }
    }

    pub(super) fn mend_links(&mut self, nic: &NicLink, port: &NicLink, journal: &Journal) -> Result<(), HandoverError> {
        for link in [nic, port].into_iter().filter(|link| is_enslaved(journal, link)) {
            self.kernel.release(link)?;
        }
        self.kernel.set_up(nic, true)?;
        if let Some(mac) = journal.nic.mac().filter(|_| nic.mac != journal.nic.mac) {
            self.kernel.set_mac(nic, mac)?;
        }
        for link in [nic, port].into_iter().filter(|link| link.mtu != journal.config.link.mtu) {
            self.kernel.set_mtu(link, &journal.config)?;
        }
        Ok(())
    }

    /// The database may be ahead of the kernel, or speak of a time before the switch died.
    fn port_is_up_to_date(&mut self, name: &str, mac: MacAddr, journal: &Journal) -> Result<(), HandoverError> {
        self.switch.wait_followed(self.patience(journal))?;
        // It has just answered.
        self.switch_alive.store(true, Ordering::Relaxed);
        let links = self.kernel.links()?;
        match links.iter().find(|link| link.name == name) {
            Some(port) if port.mac() == Some(mac) => Ok(()),
            Some(port) => Err(HandoverError::NotAsWished(format!("the port {name} has the hardware address {}, not {mac}", port.mac))),
            None => Err(HandoverError::NotAsWished(format!("Open vSwitch says that the port {name} is there, and the kernel has none"))),
        }
    }

    pub(super) fn delete_ports(&mut self, name: &str, seen: &Seen) -> Result<(), HandoverError> {
        self.switch.delete_pair(name)?;
        match self.switch.wait_gone(name, GONE_WITHIN) {
            Ok(()) => Ok(()),
            // A switch that is dead leaves its link behind, which is seen and removed then.
            Err(OvsError::NotYet { .. }) => {
                seen.nic.iter().for_each(|nic| self.leave_datapath(seen, nic));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
