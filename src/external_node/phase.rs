//! The way of a NIC behind the bridge and back: what is seen decides what is done next.
//!
//! Nothing here remembers anything. An [`Observation`] is read anew before every step, so it does not matter whether the last step was finished,
//! was cut off by a crash, or was undone by somebody else. Three rules order everything:
//!
//! 1. The configuration is whole on the NIC or on the host's port before anything is taken from the other one.
//! 2. The journal is written before the NIC is touched and dropped after it is plain again.
//! 3. What somebody gave to a link meanwhile is in the journal and on the other link before it is taken from there.

use crate::model::Phase;

/// Where the NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NicPlace {
    /// Under its own name.
    OwnName,
    /// Under the uplink's name.
    UplinkName,
    /// Under a name that is neither.
    OtherName,
    /// Not in this namespace.
    Gone,
}

/// Which link has the NIC's own name, if not the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameHolder {
    /// The NIC has it, or no link.
    NobodyElse,
    /// The bridge's port, or what is left of it.
    Port,
    /// A link that is none of ours.
    Foreign,
}

/// How much of the journal's configuration a link has. Without a journal: all, if it has addresses or is the plain NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Share {
    /// Nothing of it.
    None,
    /// Something.
    Part,
    /// Everything.
    All,
}

/// The two ports in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// The database cannot be read; as far as is known the ports that stand are served.
    Unknown,
    /// The database cannot be read, and nobody serves the ports.
    Dead,
    /// None of the two is there.
    None,
    /// One of the two is there.
    One,
    /// Both are there, but not usable: an error, no OpenFlow number, another hardware address, or nobody serves them.
    Broken,
    /// Both are there and usable.
    Ready,
}

/// What the journal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalState {
    /// There is none, or one of an earlier boot while the NIC stands plain under its own name.
    None,
    /// The NIC is on its way behind the bridge.
    Attaching,
    /// It is there, and that was read back.
    Attached,
    /// It is on its way back.
    Detaching,
}

/// Whose the ports are that stand for a NIC, as far as that is somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claimed {
    /// Nobody else's.
    ByNobodyElse,
    /// Those of another agent's attachment. The NIC is none of ours, whatever our journal says.
    ByAnother,
    /// Those of the attachment in our journal, under a label that this agent does not have any more.
    UnderAnotherLabel,
}

/// Everything that decides about the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// Whether it is somebody else's.
    pub claimed: Claimed,
    /// Where the NIC is.
    pub nic: NicPlace,
    /// Who has its own name.
    pub holder: NameHolder,
    /// What the NIC has of the configuration.
    pub on_nic: Share,
    /// What the host's port has of it.
    pub on_port: Share,
    /// Whether the NIC was given addresses or routes that the journal does not know.
    pub more_on_nic: bool,
    /// Whether the host's port was.
    pub more_on_port: bool,
    /// The ports.
    pub rows: Rows,
    /// Whether the uplink is up with the NIC's hardware address, both links have the MTU that they shall have, and neither is in a bridge or bond of others;
    /// only looked at behind the bridge.
    pub links_fit: bool,
    /// Whether the flows are there.
    pub flows: bool,
    /// Whether the guard is there, which keeps frames of the uplink from the host's own stack.
    pub guard: bool,
    /// Whether this datapath needs the guard.
    pub guard_needed: bool,
    /// The journal.
    pub journal: JournalState,
}

/// One step. Each can be taken again when it was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Write the NIC's configuration into the journal, read from where it is whole.
    WriteJournal,
    /// Note in the journal that the way leads behind the bridge.
    MarkAttaching,
    /// Note in the journal that the way leads back, with the configuration as it is now.
    MarkDetaching,
    /// Give the NIC the uplink's name, and free its own one.
    Rename,
    /// Make both ports in one transaction, and wait until they are usable.
    CreatePorts,
    /// Set the uplink up, its hardware address, and both MTUs, and take both out of bridges of others.
    MendLinks,
    /// Install the flows.
    InstallFlows,
    /// Note in the journal what the NIC was given since, and give it to the port.
    KeepOfNic,
    /// Note in the journal what the port was given since, and give it to the NIC.
    KeepOfPort,
    /// Put the configuration onto the port, beside what the NIC has of it.
    CopyToPort,
    /// Take it from the NIC.
    StripNic,
    /// Keep frames of the uplink from the host's own stack.
    Guard,
    /// Read everything back and note in the journal that it is right.
    Confirm,
    /// Put the configuration onto the NIC, beside what the port has of it.
    CopyToNic,
    /// Let the host's own stack see the NIC's frames again.
    DropGuard,
    /// Take the configuration from the port and hold it down.
    StripPort,
    /// Remove both ports in one transaction, and wait until the port's link is gone.
    DeletePorts,
    /// Remove the port's link that its owner left behind.
    RemoveLeftover,
    /// Give the NIC its own name.
    RenameBack,
    /// Remove the flows.
    RemoveFlows,
    /// Drop the journal.
    DropJournal,
    /// Put the journal aside: the NIC is another agent's.
    SetJournalAside,
}

/// Why nothing can be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The NIC is not in this namespace.
    NicGone,
    /// A link that is none of ours has the NIC's own name.
    NameTaken,
    /// The database cannot be read.
    Database,
    /// The configuration is nowhere and in no journal.
    NothingKnown,
    /// Another agent has put it behind a bridge.
    Claimed,
    /// Its ports were made under another label.
    OtherLabel,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// This step.
    Do(Step),
    /// Nothing: it is as wished.
    Done,
    /// Nothing, until this changes.
    Wait(Wait),
}

/// Where the NIC shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Behind the bridge.
    Attached,
    /// As it was found.
    Plain,
}

/// The next step towards the goal.
#[must_use]
pub fn next(seen: &Observation, goal: Goal) -> Next {
    let next = match (seen.claimed, goal) {
        (Claimed::ByNobodyElse, Goal::Attached) => attach(seen),
        (Claimed::ByNobodyElse, Goal::Plain) => undo(seen),
        (Claimed::ByAnother, goal) => return leave(seen, goal),
        (Claimed::UnderAnotherLabel, _) => return Next::Wait(Wait::OtherLabel),
    };
    let Next::Do(step) = next else { return next };
    if seen.journal == JournalState::None {
        return next;
    }
    // Nothing is taken from a link that only that link has.
    let port_has_more = seen.more_on_port && seen.holder == NameHolder::Port && seen.nic != NicPlace::Gone;
    Next::Do(match step {
        Step::StripNic if seen.more_on_nic => Step::KeepOfNic,
        Step::StripPort | Step::DeletePorts | Step::RemoveLeftover | Step::CreatePorts if port_has_more => Step::KeepOfPort,
        step => step,
    })
}

/// What another agent has is not touched, whatever it lacks. A journal of ours speaks of a time before, and must not be brought to bear on what comes after.
fn leave(seen: &Observation, goal: Goal) -> Next {
    match (seen.journal, goal) {
        (JournalState::None, Goal::Attached) => Next::Wait(Wait::Claimed),
        (JournalState::None, Goal::Plain) => Next::Done,
        _ => Next::Do(Step::SetJournalAside),
    }
}

fn attach(seen: &Observation) -> Next {
    if seen.nic == NicPlace::Gone {
        return Next::Wait(Wait::NicGone);
    }
    match seen.journal {
        JournalState::None => return begin(seen),
        JournalState::Detaching => return Next::Do(Step::MarkAttaching),
        JournalState::Attaching | JournalState::Attached => {}
    }
    let port_usable = is_usable(seen);
    // A port that is broken, or that is not the bridge's any more, must not be the only one that has it while it is mended.
    let port_is_bad = !port_usable && seen.rows != Rows::Unknown;
    // Nobody else takes the NIC's frames: it hears them from the first address on, which may be a second before the last one is tried.
    if seen.guard && port_is_bad {
        return Next::Do(Step::DropGuard);
    }
    if seen.on_nic != Share::All && seen.on_port != Share::All {
        return Next::Do(if port_usable { Step::CopyToPort } else { Step::CopyToNic });
    }
    if seen.on_nic != Share::All && port_is_bad {
        return Next::Do(Step::CopyToNic);
    }
    if seen.guard && seen.on_nic == Share::All && !port_usable {
        return Next::Do(Step::DropGuard);
    }
    // Nor may it claim the host's routes meanwhile: the kernel would go on sending by it. A datapath that takes the NIC's frames, as the kernel's does,
    // goes on by itself with the connections that it knows; there the NIC hears nothing, and the port is the better place.
    if port_is_bad && seen.guard_needed && seen.on_port != Share::None && seen.holder == NameHolder::Port {
        return Next::Do(Step::StripPort);
    }
    if seen.nic != NicPlace::UplinkName {
        return touch(seen, Step::Rename);
    }
    match seen.holder {
        NameHolder::Foreign => return Next::Wait(Wait::NameTaken),
        NameHolder::Port if seen.rows == Rows::None => return Next::Do(Step::RemoveLeftover),
        NameHolder::Port | NameHolder::NobodyElse => {}
    }
    if is_unreadable(seen.rows) {
        return Next::Wait(Wait::Database);
    }
    if !port_usable {
        return Next::Do(Step::CreatePorts);
    }
    if !seen.links_fit {
        return Next::Do(Step::MendLinks);
    }
    if !seen.flows {
        return Next::Do(Step::InstallFlows);
    }
    if seen.on_port != Share::All {
        return Next::Do(Step::CopyToPort);
    }
    let was_given_more = seen.more_on_nic && seen.journal == JournalState::Attaching;
    if seen.on_nic != Share::None || was_given_more {
        return Next::Do(Step::StripNic);
    }
    if seen.guard != seen.guard_needed {
        return Next::Do(if seen.guard_needed { Step::Guard } else { Step::DropGuard });
    }
    if seen.journal != JournalState::Attached {
        return Next::Do(Step::Confirm);
    }
    Next::Done
}

/// Whether frames come to the port and go from it.
fn is_usable(seen: &Observation) -> bool {
    seen.rows == Rows::Ready && seen.holder == NameHolder::Port
}

/// A NIC that nobody has touched yet is not touched as long as nobody could take it over.
fn touch(seen: &Observation, step: Step) -> Next {
    let for_nothing = seen.nic == NicPlace::OwnName && is_unreadable(seen.rows);
    if for_nothing { Next::Wait(Wait::Database) } else { Next::Do(step) }
}

/// Without a journal nothing is touched; it is written from where the configuration is whole.
fn begin(seen: &Observation) -> Next {
    match seen.nic {
        NicPlace::OwnName => touch(seen, Step::WriteJournal),
        _ if seen.on_nic == Share::All || seen.on_port == Share::All => Next::Do(Step::WriteJournal),
        _ => Next::Wait(Wait::NothingKnown),
    }
}

fn undo(seen: &Observation) -> Next {
    match (seen.journal, seen.nic) {
        (JournalState::None, NicPlace::OwnName | NicPlace::Gone) => return tidy(seen),
        // Read from where it is whole; where that is nowhere, what there is stays as it is.
        (JournalState::None, _) => return begin(seen),
        (JournalState::Attaching | JournalState::Attached, _) => return Next::Do(Step::MarkDetaching),
        (JournalState::Detaching, _) => {}
    }
    if seen.nic == NicPlace::Gone {
        return tidy(seen);
    }
    let is_unheard = seen.guard && !is_usable(seen) && seen.rows != Rows::Unknown;
    if seen.on_nic != Share::All && !is_unheard {
        return Next::Do(Step::CopyToNic);
    }
    if seen.guard {
        return Next::Do(Step::DropGuard);
    }
    if is_unreadable(seen.rows) {
        // The bridge cannot be asked to let go. The host is reachable through the NIC, as soon as the port does not claim its routes.
        let claimed = seen.on_port != Share::None && seen.holder == NameHolder::Port;
        return if claimed { Next::Do(Step::StripPort) } else { Next::Wait(Wait::Database) };
    }
    if seen.rows != Rows::None {
        return Next::Do(Step::DeletePorts);
    }
    if seen.nic != NicPlace::OwnName {
        return match seen.holder {
            NameHolder::Port => Next::Do(Step::RemoveLeftover),
            NameHolder::Foreign => Next::Wait(Wait::NameTaken),
            NameHolder::NobodyElse => Next::Do(Step::RenameBack),
        };
    }
    tidy(seen)
}

fn is_unreadable(rows: Rows) -> bool {
    matches!(rows, Rows::Unknown | Rows::Dead)
}

/// What is left when the NIC is plain, or gone.
fn tidy(seen: &Observation) -> Next {
    match seen.rows {
        Rows::Unknown | Rows::Dead if seen.journal != JournalState::None => return Next::Wait(Wait::Database),
        // Nothing of ours is known to be left.
        Rows::Unknown | Rows::Dead | Rows::None => {}
        Rows::One | Rows::Broken | Rows::Ready => return Next::Do(Step::DeletePorts),
    }
    if seen.guard {
        Next::Do(Step::DropGuard)
    } else if seen.flows {
        Next::Do(Step::RemoveFlows)
    } else if seen.journal != JournalState::None {
        Next::Do(Step::DropJournal)
    } else {
        Next::Done
    }
}

/// The phase that an observation shows.
#[must_use]
pub fn phase(seen: &Observation) -> Phase {
    match seen.journal {
        // One whose journal was lost stands where it stands.
        JournalState::None if seen.nic != NicPlace::UplinkName || seen.claimed == Claimed::ByAnother => return Phase::Plain,
        JournalState::Detaching => return Phase::Detaching,
        JournalState::None | JournalState::Attaching | JournalState::Attached => {}
    }
    // Ports and flows of another label are not looked into: its links tell whether it serves.
    let is_hidden = seen.claimed == Claimed::UnderAnotherLabel;
    if seen.nic != NicPlace::UplinkName {
        Phase::Prepared
    } else if (seen.rows != Rows::Ready && !is_hidden) || seen.holder != NameHolder::Port {
        Phase::Renamed
    } else if !seen.flows && !is_hidden {
        Phase::PortsCreated
    } else if seen.on_port != Share::All || seen.on_nic != Share::None {
        Phase::FlowsInstalled
    } else if !is_hidden && seen.journal == JournalState::Attached && seen.guard == seen.guard_needed && seen.links_fit {
        Phase::Attached
    } else {
        Phase::Moved
    }
}

/// What [`lacks`] says of flows, which all NICs have in common: they are put up for all at once.
pub const FLOWS_LACK: &str = "its flows are not there, or its ports are closed";

/// What is missing of an attachment, in words.
#[must_use]
pub fn lacks(seen: &Observation) -> Vec<&'static str> {
    let missing = [
        (seen.nic != NicPlace::UplinkName, "the NIC has not the uplink's name"),
        (seen.holder == NameHolder::Foreign, "another link has its name"),
        (seen.holder == NameHolder::NobodyElse, "its port is not there"),
        (seen.rows != Rows::Ready, "its ports in the database are missing or cannot be used"),
        (!seen.links_fit, "its uplink is down or has another hardware address, or a link has another MTU or is in another bridge"),
        (!seen.flows, FLOWS_LACK),
        (seen.on_port != Share::All, "settings, addresses or routes are missing on its port"),
        (seen.on_nic != Share::None, "addresses or routes are on the uplink"),
        (seen.guard != seen.guard_needed, "the guard of its uplink is not as it must be"),
    ];
    missing.into_iter().filter_map(|(is, what)| is.then_some(what)).collect()
}

/// What is seen after a step that went well; for plans.
#[must_use]
pub fn after(seen: &Observation, step: Step) -> Observation {
    let mut then = *seen;
    match step {
        Step::WriteJournal | Step::MarkAttaching => then.journal = JournalState::Attaching,
        Step::MarkDetaching => then.journal = JournalState::Detaching,
        Step::Rename => then.nic = NicPlace::UplinkName,
        Step::CreatePorts => (then.rows, then.holder) = (Rows::Ready, NameHolder::Port),
        Step::MendLinks => then.links_fit = true,
        Step::KeepOfNic => then.more_on_nic = false,
        Step::KeepOfPort => then.more_on_port = false,
        Step::InstallFlows => then.flows = true,
        Step::CopyToPort => then.on_port = Share::All,
        Step::StripNic => (then.on_nic, then.more_on_nic) = (Share::None, false),
        Step::Guard => then.guard = true,
        Step::Confirm => then.journal = JournalState::Attached,
        Step::CopyToNic => then.on_nic = Share::All,
        Step::DropGuard => then.guard = false,
        Step::StripPort => (then.on_port, then.more_on_port) = (Share::None, false),
        Step::DeletePorts => {
            then.rows = Rows::None;
            if then.holder == NameHolder::Port {
                (then.holder, then.on_port, then.more_on_port) = (NameHolder::NobodyElse, Share::None, false);
            }
        }
        Step::RemoveLeftover => (then.holder, then.on_port, then.more_on_port) = (NameHolder::NobodyElse, Share::None, false),
        Step::RenameBack => then.nic = NicPlace::OwnName,
        Step::RemoveFlows => then.flows = false,
        Step::DropJournal | Step::SetJournalAside => then.journal = JournalState::None,
    }
    then
}

#[cfg(test)]
pub(super) mod tests;
