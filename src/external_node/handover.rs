//! Takes the steps of a way: looks, asks [`phase`](super::phase) what is next, does it, looks again.
//!
//! It decides nothing and remembers nothing, so an agent that was just started and the process that stands by for a dead one use it alike. Every call
//! blocks; it belongs on a thread of its own.

mod datapath;
mod given;
mod gone;
mod hops;
mod news;
mod ports;
mod refusals;
mod shares;
mod survey;
mod way;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use crate::external_node::flows::{FlowsError, PairFlows};
use crate::external_node::handover::given::port_of;
use crate::external_node::handover::ports::with_rows;
use crate::external_node::handover::shares::Shares;
use crate::external_node::identify::{claimed, find_nic, guarded, is_deaf, is_made_anew, is_port, links_fit};
use crate::external_node::journal::{Intent, Journal, JournalError, JournalFolder};
use crate::external_node::phase::{JournalState, NameHolder, NicPlace, Observation, Rows, Share, Step, Wait};
use crate::external_node::suitability::{standing_on, uplink_name};
use crate::linux::KernelError;
use crate::linux::nic::NicKernel;
use crate::model::Datapath;
use crate::model::nic::{Given, NicConfig, NicLink, difference};
use crate::ovs::{Claim, Dpctl, Notes, OvsError, PairView, Switch, SwitchView};
use survey::foreign_bridge;

/// How long another process may have the NIC.
const LOCK_WITHIN: Duration = Duration::from_secs(20);

/// Why a step could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Open vSwitch did not do it.
    #[error(transparent)]
    Switch(#[from] OvsError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The flows.
    #[error("flows of {nic}: {cause}")]
    Flows {
        /// Of which NIC.
        nic: String,
        /// Why.
        cause: FlowsError,
    },
    /// It was done, and what is read back is something else.
    #[error("{0}")]
    NotAsWished(String),
}

/// What does not change while the agent runs.
#[derive(Clone, Debug)]
pub struct HandoverSettings {
    /// The bridge.
    pub bridge: String,
    /// Its datapath, where it must be made.
    pub datapath: Datapath,
    /// This boot.
    pub boot_id: String,
    /// How long an attach may stay unconfirmed.
    pub confirm_within: Duration,
    /// Frees devices of a kernel's datapath whose switch is dead.
    pub dpctl: Dpctl,
}

/// For whom a NIC is attached; it goes into the journal and beside the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    /// The external node.
    pub node: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// What an attachment that begins now is called.
    pub attachment: String,
    /// What is remembered beside the ports.
    pub notes: Notes,
}

/// Everything that was seen of one NIC at one moment.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What decides about the next step.
    pub observation: Observation,
    /// The NIC.
    pub nic: Option<NicLink>,
    /// The link that has its own name, if that is another one.
    pub holder: Option<NicLink>,
    /// Its ports.
    pub pair: Option<PairView>,
    /// The journal, of this boot or while the NIC is not plain.
    pub journal: Option<Journal>,
    /// The mark of another label on its ports.
    pub claim: Option<Claim>,
    /// Names of links that others made on its port (VLANs, macvlans): they go with the port, and nobody makes them again.
    pub on_the_port: Vec<String>,
    /// The journal's configuration with the routes that others put into the places of its own, where they did.
    pub rerouted: Option<NicConfig>,
    /// What others gave to the port, where that is not what the journal says.
    pub given: Option<Given>,
    /// The journal's configuration with what was found out about addresses since, and of leases, where that is something else.
    pub followed: Option<NicConfig>,
    /// Why the step before this look was not done, where the way went on without it.
    pub undone: Option<String>,
}

/// How a way ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// At its goal.
    Done(Box<Seen>),
    /// Something must change first.
    Wait(Wait, Box<Seen>),
}

impl Outcome {
    /// The last look.
    #[must_use]
    pub fn seen(&self) -> &Seen {
        let (Self::Done(seen) | Self::Wait(_, seen)) = self;
        seen
    }
}

/// Takes steps.
pub struct Handover {
    kernel: NicKernel,
    switch: Arc<dyn Switch>,
    flows: Arc<dyn PairFlows>,
    journals: JournalFolder,
    settings: HandoverSettings,
    /// Whether the switch's own process answers; told by whoever listens to it.
    switch_alive: Arc<AtomicBool>,
}

/// What stands beside the ports of the attachment of which the journal speaks.
pub(super) fn notes_of(journal: &Journal, purpose: &Purpose) -> Notes {
    Notes { attachment: Some(journal.attachment.clone()), ..purpose.notes.clone() }
}

/// On the way back nobody needs to know of flows before the NIC is plain; a switch that hangs would keep the host waiting for its answer.
fn nobody_needs_flows(journal: Option<&Journal>, rows: Rows, place: NicPlace) -> bool {
    let is_tidying = rows == Rows::None && matches!(place, NicPlace::OwnName | NicPlace::Gone);
    !is_tidying && journal.is_some_and(|journal| journal.intent == Intent::Detaching)
}

impl Handover {
    /// Works with these. `switch_alive` is false while it is known that the switch's process does not answer.
    #[must_use]
    pub fn new(
        kernel: NicKernel,
        switch: Arc<dyn Switch>,
        flows: Arc<dyn PairFlows>,
        journals: JournalFolder,
        settings: HandoverSettings,
        switch_alive: Arc<AtomicBool>,
    ) -> Self {
        Self { kernel, switch, flows, journals, settings, switch_alive }
    }

    /// The journals.
    #[must_use]
    pub fn journals(&self) -> &JournalFolder {
        &self.journals
    }

    /// Whether the switch's own process answers, as far as is known.
    #[must_use]
    pub fn switch_answers(&self) -> bool {
        self.switch_alive.load(Ordering::Relaxed)
    }

    /// The bridge that NICs are put behind.
    #[must_use]
    pub fn bridge(&self) -> &str {
        &self.settings.bridge
    }

    /// This boot.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        &self.settings.boot_id
    }

    /// Looks at one NIC, named by its own name.
    ///
    /// # Errors
    /// When kernel or journal cannot be read. A database that cannot be read is an observation.
    pub fn observe(&mut self, name: &str) -> Result<Seen, HandoverError> {
        self.look(name, None)
    }

    /// As [`Handover::observe`], with a journal that could not be written.
    fn look(&mut self, name: &str, unwritten: Option<Journal>) -> Result<Seen, HandoverError> {
        let links = self.kernel.links()?;
        let journal = unwritten.map_or_else(|| self.journals.load(name), |journal| Ok(Some(journal)))?;
        let uplink = journal.as_ref().map_or_else(|| uplink_name(name), |journal| journal.uplink.clone());
        self.switch.know(name, journal.as_ref().and_then(|journal| journal.ports.as_ref()));
        // Only after the links: a port that was seen has its rows by then, whosever they are.
        let view = self.view();
        // Behind somebody else's ports it is nothing of ours, as long as no journal says that it was.
        let foreign = || view.as_ref().is_ok_and(|view| foreign_bridge(view, &uplink).is_some());
        let is_ours = |nic: &&NicLink| journal.is_some() || nic.name == name || !foreign();
        let nic = find_nic(&links, name, &uplink, journal.as_ref(), &self.settings.boot_id).filter(is_ours).cloned();
        let place = match &nic {
            None => NicPlace::Gone,
            Some(nic) if nic.name == name => NicPlace::OwnName,
            Some(nic) if nic.name == uplink => NicPlace::UplinkName,
            Some(_) => NicPlace::OtherName,
        };
        // What an earlier boot wrote says nothing of a NIC that this boot has set up anew.
        let journal = journal.filter(|journal| journal.boot_id == self.settings.boot_id || place != NicPlace::OwnName);
        let holder = links.iter().find(|link| link.is_called(name) && nic.as_ref().is_none_or(|nic| nic.ifindex != link.ifindex)).cloned();
        let names = [Some(name), Some(uplink.as_str()), nic.as_ref().map(|nic| nic.name.as_str())];
        let others = view.as_ref().ok().map(|view| &view.others);
        let claim = others.and_then(|others| names.into_iter().flatten().find_map(|name| others.get(name))).cloned();
        let (rows, pair) = self.rows(name, &view, journal.as_ref(), nic.as_ref(), holder.as_ref());
        let (journal, rows) = self.heed_absence(nic.as_ref(), journal, rows)?;
        let held = match &holder {
            None => NameHolder::NobodyElse,
            Some(link) if is_port(link, pair.is_some(), nic.as_ref(), journal.as_ref()) => NameHolder::Port,
            Some(_) => NameHolder::Foreign,
        };
        let port = holder.as_ref().filter(|_| held == NameHolder::Port);
        let port_serves = held == NameHolder::Port && matches!(rows, Rows::Ready | Rows::Unknown);
        let Shares { on_nic, on_port, more_on_nic, more_on_port, rerouted, given, followed } =
            self.shares(journal.as_ref(), nic.as_ref(), port, place, port_serves)?;
        // A switch that does not answer would only keep us waiting.
        let answers = !matches!(rows, Rows::Unknown | Rows::Dead) && self.switch_answers();
        let numbers = pair.as_ref().and_then(PairView::numbers);
        let flows = answers && (nobody_needs_flows(journal.as_ref(), rows, place) || self.flows.stand(name, numbers).unwrap_or(false));
        let guard = self.guard_stands(nic.as_ref(), journal.as_ref())?;
        let guard_needed = journal.as_ref().map_or_else(|| self.only_listens(), |journal| journal.guard);
        // Without the port nothing can be ready, whatever the database says; nor when the switch was found away since, as it was asked for flows.
        let serves = held == NameHolder::Port && self.switch_answers();
        let rows = if rows == Rows::Ready && !serves { Rows::Broken } else { rows };
        let links_fit = journal.as_ref().is_none_or(|journal| links_fit(journal, nic.as_ref(), port));
        let observation = Observation {
            claimed: claimed(claim.as_ref(), journal.as_ref()),
            nic: place,
            holder: held,
            on_nic,
            on_port,
            more_on_nic,
            more_on_port,
            rows,
            links_fit,
            flows,
            guard,
            guard_needed,
            journal: journal.as_ref().map_or(JournalState::None, |journal| journal.intent.into()),
        };
        let on_the_port = port.map(|port| standing_on(port, &links)).unwrap_or_default();
        Ok(Seen { observation, nic, holder, pair, journal, claim, on_the_port, rerouted, given, followed, undone: None })
    }

    fn rows(
        &self,
        name: &str,
        view: &Result<SwitchView, OvsError>,
        journal: Option<&Journal>,
        nic: Option<&NicLink>,
        holder: Option<&NicLink>,
    ) -> (Rows, Option<PairView>) {
        let view = match view {
            Ok(view) => view,
            Err(error) => {
                tracing::debug!(%error, nic = name, "the database cannot be read");
                let served = self.switch_answers() && !holder.is_some_and(is_deaf);
                return (if served { Rows::Unknown } else { Rows::Dead }, None);
            }
        };
        let Some(pair) = view.pairs.get(name).cloned() else { return (Rows::None, None) };
        let mac = journal.map(|journal| &journal.nic).or(nic).and_then(NicLink::mac);
        let deaf = holder.is_some_and(is_deaf);
        // The ports are those of a link that is gone, whatever their rows say.
        let anew = nic.zip(journal).is_some_and(|(nic, journal)| is_made_anew(nic, journal, &self.settings.boot_id));
        let rows = match (&pair.host, &pair.uplink) {
            (Some(host), Some(_)) if pair.numbers().is_some() && host.mac_in_use == mac && !deaf && !anew && self.switch_answers() => {
                Rows::Ready
            }
            (Some(_), Some(_)) => Rows::Broken,
            (None, None) => return (Rows::None, None),
            _ => Rows::One,
        };
        (rows, Some(pair))
    }

    /// Takes a step. A journal that could not be written is left in `unwritten`, to go on with.
    fn perform(
        &mut self,
        step: Step,
        name: &str,
        seen: &Seen,
        purpose: &Purpose,
        unwritten: &mut Option<Journal>,
    ) -> Result<(), HandoverError> {
        let missing = |what: &str| HandoverError::NotAsWished(format!("{step:?} of {name}: {what} is gone"));
        let nic = || seen.nic.as_ref().ok_or_else(|| missing("the NIC"));
        let port = || seen.holder.as_ref().ok_or_else(|| missing("the port"));
        let journal = || seen.journal.clone().ok_or_else(|| missing("the journal"));
        let guarded = || guarded(seen.nic.as_ref(), seen.journal.as_ref(), &self.settings.boot_id).ok_or_else(|| missing("the NIC"));
        match step {
            Step::WriteJournal => self.write_journal(name, seen, purpose)?,
            Step::MarkAttaching => {
                let (attachment, confirm_until) = (purpose.attachment.clone(), self.confirm_until());
                let again = Journal { intent: Intent::Attaching, attachment, confirmed: false, confirm_until, ..journal()? };
                self.journals.write(&again)?;
            }
            Step::MarkDetaching => *unwritten = self.mark_detaching(name, seen)?,
            Step::KeepOfNic | Step::KeepOfPort => *unwritten = self.keep(step, name, seen)?,
            Step::Rename => drop(self.kernel.rename(nic()?, &journal()?.uplink, &journal()?.config)?),
            Step::RenameBack => self.rename_back(name, nic()?, &journal()?)?,
            Step::CreatePorts => self.create_ports(name, seen, &journal()?, purpose)?,
            Step::MendLinks => self.mend_links(nic()?, port()?, &journal()?)?,
            Step::InstallFlows => {
                let ports = seen.pair.as_ref().and_then(PairView::numbers).ok_or_else(|| missing("a port"))?;
                self.flows.install(name, ports).map_err(|cause| HandoverError::Flows { nic: name.to_owned(), cause })?;
            }
            Step::RemoveFlows => self.flows.remove(name).map_err(|cause| HandoverError::Flows { nic: name.to_owned(), cause })?,
            Step::CopyToPort => {
                self.take_up_connections(name, seen);
                let wish = journal()?.wished_on(&self.kernel.read(port()?)?).into_owned();
                let wish = self.for_kernel(name, wish)?;
                self.kernel.put(&wish, port()?, true)?;
                self.give_to_port(name, journal()?, port()?, unwritten)?;
            }
            Step::CopyToNic => self.copy_to_nic(name, nic()?, &journal()?)?,
            Step::StripNic => {
                self.kernel.strip(nic()?)?;
                self.take_up_connections(name, seen);
            }
            Step::StripPort => {
                self.leave_datapath(seen, nic()?);
                self.owe(name, journal()?, port()?, unwritten)?;
                self.kernel.strip(port()?)?;
                self.kernel.set_up(port()?, false)?;
            }
            Step::Guard => self.kernel.guard(&guarded()?)?,
            Step::DropGuard => self.kernel.unguard(&guarded()?)?,
            Step::Confirm => self.confirm(name, port()?, with_rows(journal()?, seen), purpose)?,
            Step::DeletePorts => self.delete_ports(name, seen)?,
            Step::RemoveLeftover => self.remove_leftover(port()?)?,
            Step::DropJournal => {
                self.give_duplicates(name, seen)?;
                self.end_journal(name, seen)?;
                *unwritten = None;
            }
            Step::SetJournalAside => self.journals.set_aside(name)?,
        }
        Ok(())
    }

    fn copy_to_nic(&mut self, name: &str, nic: &NicLink, journal: &Journal) -> Result<(), HandoverError> {
        self.restore_mac(nic, journal);
        let wish = self.for_kernel(name, journal.config.clone())?;
        let put = self.kernel.put(&wish, nic, nic.name == name);
        self.give(name, journal, nic)?;
        Ok(put?)
    }

    /// The NIC's own hardware address, before its addresses: the kernel makes one of them from it. A host with another one is better off than one that is
    /// not given back.
    fn restore_mac(&mut self, nic: &NicLink, journal: &Journal) {
        let Some(mac) = journal.nic.mac().filter(|_| nic.mac != journal.nic.mac) else { return };
        if let Err(error) = self.kernel.set_mac(nic, mac) {
            tracing::warn!(nic = journal.name(), %error, "the NIC keeps another hardware address");
        }
    }

    fn rename_back(&mut self, name: &str, nic: &NicLink, journal: &Journal) -> Result<(), HandoverError> {
        self.restore_mac(nic, journal);
        if nic.is_promiscuous()
            && !journal.nic.is_promiscuous()
            && let Err(error) = self.kernel.end_promiscuity(nic)
        {
            tracing::warn!(nic = name, %error, "the NIC goes on taking everybody's frames");
        }
        if nic.master != 0
            && let Err(error) = self.kernel.release(nic)
        {
            tracing::warn!(nic = name, %error, "the NIC stays in a bridge or bond that somebody put it into");
        }
        self.kernel.rename(nic, name, &journal.config)?;
        Ok(())
    }

    fn write_journal(&mut self, name: &str, seen: &Seen, purpose: &Purpose) -> Result<(), HandoverError> {
        let gone = || HandoverError::NotAsWished(format!("write the journal of {name}: there is no such NIC"));
        let nic = seen.nic.as_ref().ok_or_else(gone)?;
        let from_port = seen.observation.on_nic != Share::All && seen.observation.on_port == Share::All;
        let source = if from_port { seen.holder.as_ref().ok_or_else(gone)? } else { nic };
        let mut config = self.kernel.read(source)?;
        // Whoever renamed it renamed its labels; another agent may have done so since it was seen.
        for renamed in [&source.name, &uplink_name(name)] {
            config.addresses.iter_mut().for_each(|address| address.rename_label(renamed, name));
        }
        config.leading = self.kernel.leading(&config)?;
        let config = self.for_journal(name, config)?;
        // One that stands behind a bridge already takes everybody's frames because the switch asked for that.
        let (uplink, found) = if seen.observation.nic == NicPlace::OwnName {
            (uplink_name(name), nic.clone())
        } else {
            (nic.name.clone(), nic.clone().without_promiscuity())
        };
        self.journals.write(&Journal {
            intent: Intent::Attaching,
            boot_id: self.settings.boot_id.clone(),
            uplink,
            bridge: self.settings.bridge.clone(),
            node: purpose.node.clone(),
            namespace: purpose.namespace.clone(),
            attachment: purpose.attachment.clone(),
            confirmed: false,
            confirm_until: self.confirm_until(),
            guard: self.only_listens(),
            gone: false,
            ports: None,
            nic: NicLink { name: name.to_owned(), ..found },
            config,
            given: Given::default(),
        })?;
        Ok(())
    }

    fn confirm_until(&self) -> u64 {
        NicKernel::uptime().saturating_add(self.settings.confirm_within.as_secs())
    }

    /// Notes that the host reached its store with this attachment; `false` when that is not what stands any more.
    ///
    /// # Errors
    /// When that cannot be written, or somebody else has the NIC.
    pub fn confirm_attachment(&mut self, nic: &str, attachment: &str) -> Result<bool, HandoverError> {
        let _lock = self.journals.lock(nic, LOCK_WITHIN)?;
        match self.journals.load(nic)? {
            Some(journal) if journal.attachment == attachment && journal.intent != Intent::Detaching => {
                self.journals.write(&Journal { confirmed: true, ..journal })?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What was changed while it was attached goes back with it, and what was taken from the port does, too: a look would have put it back. What is returned
    /// could not be written: to give a NIC back matters more than a note of it, and without one the way back is found as well.
    fn mark_detaching(&mut self, name: &str, seen: &Seen) -> Result<Option<Journal>, HandoverError> {
        let missing = || HandoverError::NotAsWished(format!("note the way back of {name}: the journal is gone"));
        let mut journal = seen.journal.clone().ok_or_else(missing)?;
        // One that has not been given all yet does not say all.
        let says_all = |port: &&NicLink| seen.observation.on_nic == Share::None && !journal.owes(port.ifindex);
        if let Some(port) = port_of(seen).filter(says_all) {
            let mut live = self.kernel.read(port)?;
            live.leading = self.kernel.leading(&live)?;
            // The kernel makes such ones for each link by itself.
            live.addresses.retain(|address| !address.is_temporary());
            let live = self.for_journal(name, live)?;
            if difference(&journal.config, &live, true).has_some {
                journal.given = Given::default();
                journal.config = journal.config.kept_with(&live);
                journal.config.link.up = true;
            }
        }
        journal.config = journal.everything().into_owned();
        (journal.intent, journal.given) = (Intent::Detaching, Given::default());
        Ok(self.write_or_keep(name, journal))
    }

    fn confirm(&mut self, name: &str, port: &NicLink, mut journal: Journal, purpose: &Purpose) -> Result<(), HandoverError> {
        let there = self.kernel.read(port)?;
        let found = difference(&journal.config, &there, true);
        if !found.is_whole() {
            return Err(HandoverError::NotAsWished(format!("{name} was moved and is not complete: {found}")));
        }
        if !found.is_none() {
            tracing::info!(nic = name, difference = %found, "the port is complete, with differences");
        }
        // What is in use now is the host's, and is not tried on the network again when its port must be made anew.
        journal.config.decide(&there);
        journal.given.port = port.ifindex;
        self.switch.write_notes(name, &notes_of(&journal, purpose))?;
        Ok(self.journals.write(&Journal { intent: Intent::Attached, ..journal })?)
    }
}
