//! What somebody gives to a link while its NIC is on its way: taken along before anything is taken from there.

use crate::external_node::handover::given::port_of as port;
use crate::external_node::handover::{Handover, HandoverError, Seen};
use crate::external_node::journal::{Intent, Journal};
use crate::external_node::phase::{NicPlace, Observation, Step};
use crate::model::nic::{Given, NicConfig, difference};

/// So often on one way something new is waited for. Who gives a link something without end must not keep a NIC from being given back.
const MOST: usize = 8;

/// How much of that there was on one way.
#[derive(Default)]
pub(super) struct News(usize);

impl News {
    /// Lets the way go on though there is more.
    pub(super) fn allow_for(&self, seen: &mut Observation) {
        if self.0 >= MOST {
            (seen.more_on_nic, seen.more_on_port) = (false, false);
        }
    }

    /// Counts a step that it costs.
    pub(super) fn count(&mut self) {
        self.0 += 1;
    }

    /// Whether there was not too much of it yet.
    pub(super) fn are_heard(&self) -> bool {
        self.0 < MOST
    }
}

impl Handover {
    /// Whether a link from which a step takes everything was given more since it was looked at, or routes were replaced that a step puts back or looks for: some
    /// programs were run in between.
    pub(super) fn is_outdated(&mut self, step: Step, seen: &Seen, news: &News) -> Result<bool, HandoverError> {
        let Some(journal) = seen.journal.as_ref().filter(|_| news.are_heard()) else { return Ok(false) };
        let (nic, port) = (seen.nic.as_ref(), port(seen).filter(|_| seen.observation.nic != NicPlace::Gone));
        if matches!(step, Step::CopyToNic | Step::CopyToPort | Step::Confirm) {
            let links: Vec<NicConfig> = [port, nic].into_iter().flatten().map(|link| self.kernel.read(link)).collect::<Result<_, _>>()?;
            let links: Vec<&NicConfig> = links.iter().collect();
            return Ok(journal.config.with_replaced_routes(&links).is_some());
        }
        let link = match step {
            Step::StripNic => nic,
            Step::StripPort | Step::DeletePorts | Step::RemoveLeftover | Step::CreatePorts => port,
            _ => None,
        };
        let Some(link) = link else { return Ok(false) };
        Ok(self.kernel.compare(&journal.everything(), link, false)?.has_more())
    }

    /// Writes into the journal what one link was given beyond it, and gives it to the other one. What is returned could not be written.
    pub(super) fn keep(&mut self, step: Step, name: &str, seen: &Seen) -> Result<Option<Journal>, HandoverError> {
        let missing = || HandoverError::NotAsWished(format!("{step:?} of {name}: a link is gone"));
        let (nic, port) = (seen.nic.as_ref().ok_or_else(missing)?, port(seen).ok_or_else(missing)?);
        let (from, to) = if step == Step::KeepOfNic { (nic, port) } else { (port, nic) };
        let mut journal = seen.journal.clone().ok_or_else(missing)?;
        let there = self.kernel.read(from)?;
        tracing::info!(nic = name, link = from.name, found = %difference(&journal.config, &there, false), "it was given more meanwhile");
        if journal.intent == Intent::Attached {
            // Theirs, as all that comes while it is attached.
            let more = Given::seen(&journal.config, &there, name, true);
            let known = step == Step::KeepOfPort && !journal.owes(from.ifindex);
            journal.given = if known { more } else { std::mem::take(&mut journal.given).joined(more) };
            let unwritten = self.write_or_keep(name, journal.clone());
            self.give(name, &journal, to)?;
            return Ok(unwritten);
        }
        let superseded = journal.config.take_in(&there, name);
        journal.config = self.for_journal(name, journal.config)?;
        // Beside what took their places they would be as good as that.
        let superseded = self.for_kernel(name, NicConfig { routes: superseded, ..journal.config.clone() })?;
        self.kernel.remove_routes(&superseded, to)?;
        let unwritten = self.write_or_keep(name, journal.clone());
        let wish = self.for_kernel(name, journal.config)?;
        self.kernel.put(&wish, to, to.name == name)?;
        Ok(unwritten)
    }

    /// Writes into the journal which routes others put into the places of its own. What is returned could not be written.
    pub(super) fn reroute(&mut self, name: &str, seen: &Seen, config: NicConfig) -> Result<Option<Journal>, HandoverError> {
        let missing = || HandoverError::NotAsWished(format!("note other routes of {name}: the journal is gone"));
        let journal = seen.journal.clone().ok_or_else(missing)?;
        tracing::info!(nic = name, found = %difference(&journal.config, &config, false), "others have replaced routes: theirs are kept");
        let config = self.for_journal(name, config)?;
        Ok(self.write_or_keep(name, Journal { config, ..journal }))
    }

    /// Writes a journal; one that could not be written is returned, to go on with it all the same.
    pub(super) fn write_or_keep(&self, name: &str, journal: Journal) -> Option<Journal> {
        self.journals.write(&journal).err().map(|error| {
            tracing::error!(nic = name, %error, "the way is gone without a note of it");
            journal
        })
    }
}
