//! What others give to the port while its NIC is attached. It is theirs: the journal follows it as long as the port stands, and gives it back only where
//! the port was taken away from under it.

use std::borrow::Cow;

use crate::external_node::handover::ports::with_rows;
use crate::external_node::handover::{Handover, HandoverError, Seen};
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::NameHolder;
use crate::linux::nic::NicKernel;
use crate::model::nic::{Given, NicAddress, NicConfig, NicLink, difference};

impl Journal {
    /// Everything that the host has: what was found on the NIC, and what others gave to the port since.
    pub(super) fn everything(&self) -> Cow<'_, NicConfig> {
        if self.given.is_empty() {
            Cow::Borrowed(&self.config)
        } else {
            Cow::Owned(self.config.with_given(&self.given, NicKernel::uptime()))
        }
    }

    /// Whether this port has not been given what others gave to the one before it, or what that one had for a time only.
    pub(super) fn owes(&self, port: u32) -> bool {
        self.intent == Intent::Attached && self.given.port != port && self.has_something_to_owe()
    }

    fn has_something_to_owe(&self) -> bool {
        !self.given.is_empty() || self.config.has_passing()
    }

    /// What of the configuration a link shall have that stands so: what came along for a time only may go again, once it is there.
    pub(super) fn wished_on(&self, there: &NicConfig) -> Cow<'_, NicConfig> {
        if self.intent == Intent::Attached && !self.owes(there.link.ifindex) {
            Cow::Owned(self.config.lasting(there))
        } else {
            Cow::Borrowed(&self.config)
        }
    }
}

/// Whether a port lacks what it has not been given yet.
pub(super) fn is_owed(journal: &Journal, port: &NicConfig) -> bool {
    journal.owes(port.link.ifindex) && difference(&journal.everything(), port, false).lacks_some()
}

impl Handover {
    /// Gives what others gave to the port that is here now, once: what it cannot have is told of and no more. Nobody may have to wait for it.
    pub(super) fn give_to_port(
        &mut self,
        name: &str,
        mut journal: Journal,
        port: &NicLink,
        unwritten: &mut Option<Journal>,
    ) -> Result<(), HandoverError> {
        if !journal.owes(port.ifindex) {
            return Ok(());
        }
        self.give(name, &journal, port)?;
        let there = self.kernel.read(port)?;
        journal.given = Given::seen(&journal.config, &there, name, false);
        journal.given.port = port.ifindex;
        *unwritten = self.write_or_keep(name, journal);
        Ok(())
    }

    /// Gives it to a link, beside what was found; no failure of it is one of the way.
    pub(super) fn give(&mut self, name: &str, journal: &Journal, to: &NicLink) -> Result<(), HandoverError> {
        if journal.intent != Intent::Attached || journal.given.is_empty() {
            return Ok(());
        }
        let wished = journal.wished_on(&self.kernel.read(to)?).into_owned();
        let wish = self.for_kernel(name, wished.with_given(&journal.given, NicKernel::uptime()))?;
        if let Err(error) = self.kernel.put(&wish, to, to.name == name) {
            tracing::warn!(nic = name, link = to.name, %error, "not all that others had given to the port could be given again");
        }
        Ok(())
    }

    /// Gives a NIC that is plain again the addresses that another host has: they were kept from it as long as it could not hear of that host.
    pub(super) fn give_duplicates(&mut self, name: &str, seen: &Seen) -> Result<(), HandoverError> {
        let (Some(journal), Some(nic)) = (&seen.journal, seen.nic.as_ref().filter(|nic| nic.name == name)) else { return Ok(()) };
        if !journal.config.addresses.iter().any(NicAddress::is_duplicate) {
            return Ok(());
        }
        let wish = self.for_kernel(name, journal.config.clone())?;
        if let Err(error) = self.kernel.put(&wish, nic, true) {
            tracing::warn!(nic = name, %error, "addresses that another host has could not be put back");
        }
        Ok(())
    }

    /// Notes that what the port was given is to be given again, as it is about to be taken from it.
    pub(super) fn owe(
        &mut self,
        name: &str,
        mut journal: Journal,
        port: &NicLink,
        unwritten: &mut Option<Journal>,
    ) -> Result<(), HandoverError> {
        if journal.intent != Intent::Attached || journal.owes(port.ifindex) {
            return Ok(());
        }
        let there = self.kernel.read(port)?;
        journal.config.follow_passing(&there);
        journal.given = Given { port: 0, ..Given::seen(&journal.config, &there, name, true) };
        if journal.has_something_to_owe() {
            *unwritten = self.write_or_keep(name, journal);
        }
        Ok(())
    }

    /// Notes what others have given to the port, or taken from it, since it was noted last; which rows its ports have, which were made anew; which leases
    /// were renewed, or let go; and what was found out about addresses since.
    pub(super) fn follow(&mut self, name: &str, seen: &mut Seen) {
        let (given, followed) = (seen.given.take(), seen.followed.take());
        let Some(journal) = &seen.journal else { return };
        let mut now = with_rows(journal.clone(), seen);
        now.given = given.unwrap_or(now.given);
        now.config = followed.unwrap_or(now.config);
        if now == *journal {
            return;
        }
        let (addresses, routes) = (now.given.addresses.len(), now.given.routes.len());
        match self.journals.write(&now) {
            Ok(()) => tracing::info!(nic = name, addresses, routes, "what others gave to the port, and how it stands, is noted"),
            Err(error) => tracing::warn!(nic = name, %error, "what others gave to the port, or how it stands, could not be noted"),
        }
        seen.journal = Some(now);
    }
}

/// The port that stands for a NIC.
pub(super) fn port_of(seen: &Seen) -> Option<&NicLink> {
    seen.holder.as_ref().filter(|_| seen.observation.holder == NameHolder::Port)
}
