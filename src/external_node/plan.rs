//! The steps of a way as they can be shown to people before anything is touched.

use std::fmt;

use crate::external_node::phase::{Goal, Next, Observation, Step, Wait, after, next};

/// More steps than the longest way has; a way that is longer would go in circles.
const STEPS_MAX: usize = 64;

/// What a step does to the host's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// Nothing.
    None,
    /// Nothing where the kernel renames links that are up (Linux 6.2); else the link is down for some milliseconds, and everything is put back.
    UnlessLive,
    /// Frames under way may be lost or arrive twice.
    Moment,
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::UnlessLive => "none from Linux 6.2 on, before that some milliseconds",
            Self::Moment => "none expected; single frames may be lost or arrive twice",
        })
    }
}

/// The names that a plan speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The NIC's own name, which the host's port gets.
    pub host: String,
    /// The uplink's name.
    pub uplink: String,
    /// The bridge.
    pub bridge: String,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// Which.
    pub step: Step,
    /// In words.
    pub text: String,
    /// What the host's traffic notices.
    pub interruption: Interruption,
}

/// A whole way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its steps in order; none when it is as wished.
    pub steps: Vec<PlannedStep>,
    /// What the way waits for at its end; `None` when it reaches its goal.
    pub waits_for: Option<Wait>,
}

/// The way from what is seen to the goal, if every step goes well.
#[must_use]
pub fn plan(seen: &Observation, goal: Goal, names: &Names) -> Plan {
    let mut now = *seen;
    let mut steps = Vec::new();
    while steps.len() < STEPS_MAX {
        match next(&now, goal) {
            Next::Do(step) => {
                steps.push(PlannedStep { step, text: words(step, names), interruption: interruption(step) });
                now = after(&now, step);
            }
            Next::Done => return Plan { steps, waits_for: None },
            Next::Wait(wait) => return Plan { steps, waits_for: Some(wait) },
        }
    }
    Plan { steps, waits_for: None }
}

/// A step in words.
#[must_use]
pub fn words(step: Step, names: &Names) -> String {
    let Names { host, uplink, bridge } = names;
    match step {
        Step::WriteJournal => format!("write the configuration of {host} into the journal"),
        Step::MarkAttaching => "note in the journal that the way leads behind the bridge".to_owned(),
        Step::MarkDetaching => format!("write the present configuration of {host} into the journal, with the way leading back"),
        Step::Rename => format!("rename {host} to {uplink} and free the name {host}"),
        Step::CreatePorts => format!("make the ports {uplink} and {host} (internal) on bridge {bridge} and wait until both can be used"),
        Step::MendLinks => format!(
            "take {uplink} and {host} out of bridges of others, set {uplink} up, and its hardware address and the MTU of both to those in the journal"
        ),
        Step::InstallFlows => format!("install the flows between {uplink} and {host}"),
        Step::KeepOfNic => format!("write what the NIC was given since into the journal, and give it to the port {host}"),
        Step::KeepOfPort => format!("write what the port {host} was given since into the journal, and give it to the NIC"),
        Step::CopyToPort => format!("bring the port {host} up and give it the settings, addresses and routes"),
        Step::StripNic => format!("remove the addresses and routes from {uplink}"),
        Step::Guard => format!("keep frames that arrive on {uplink} from the host's own stack (nftables)"),
        Step::Confirm => "read everything back, compare it with the journal, and note that it is right".to_owned(),
        Step::CopyToNic => format!("give the NIC ({uplink} or {host}) its settings, addresses and routes"),
        Step::DropGuard => format!("let the host's own stack see the frames of {uplink} again"),
        Step::StripPort => format!("remove addresses and routes from the port {host} and hold it down"),
        Step::DeletePorts => format!("remove the ports {uplink} and {host} from bridge {bridge} and wait until the port's link is gone"),
        Step::RemoveLeftover => format!("remove the link {host} that the bridge left behind"),
        Step::RenameBack => format!("rename {uplink} to {host}"),
        Step::RemoveFlows => format!("remove the flows of {host}"),
        Step::DropJournal => format!("drop the journal of {host}"),
        Step::SetJournalAside => format!("put the journal of {host} aside: another agent has the NIC"),
    }
}

/// What a step does to the host's traffic.
#[must_use]
pub fn interruption(step: Step) -> Interruption {
    match step {
        Step::Rename | Step::RenameBack => Interruption::UnlessLive,
        Step::StripNic | Step::StripPort | Step::CopyToNic | Step::CopyToPort | Step::DeletePorts | Step::Guard | Step::DropGuard => {
            Interruption::Moment
        }
        Step::WriteJournal
        | Step::MarkAttaching
        | Step::MarkDetaching
        | Step::KeepOfNic
        | Step::KeepOfPort
        | Step::CreatePorts
        | Step::MendLinks
        | Step::InstallFlows
        | Step::Confirm
        | Step::RemoveLeftover
        | Step::RemoveFlows
        | Step::DropJournal
        | Step::SetJournalAside => Interruption::None,
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NicGone => "the NIC is not in this network namespace",
            Self::NameTaken => "a link that the agent did not make has the NIC's name",
            Self::Database => "the Open vSwitch database does not answer",
            Self::Claimed => "another agent has put it behind a bridge, and it is left alone",
            Self::OtherLabel => {
                "its ports were made under another label: give it back by an agent of that label, with this state directory"
            }
            Self::NothingKnown => "the NIC has the uplink's name, no configuration, and no journal tells the one it had",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::external_node::phase::Rows;
    use crate::external_node::phase::tests::plain;

    #[test]
    fn a_plan_reads_from_top_to_bottom() {
        let plain = Observation { guard_needed: false, ..plain() };
        let names = Names { host: "eth0".into(), uplink: "eth0~".into(), bridge: "br-int".into() };
        let plan_there = plan(&plain, Goal::Attached, &names);
        assert_eq!(plan_there.waits_for, None);
        let texts: Vec<&str> = plan_there.steps.iter().map(|step| &*step.text).collect();
        assert_eq!(
            texts,
            [
                "write the configuration of eth0 into the journal",
                "rename eth0 to eth0~ and free the name eth0",
                "make the ports eth0~ and eth0 (internal) on bridge br-int and wait until both can be used",
                "install the flows between eth0~ and eth0",
                "bring the port eth0 up and give it the settings, addresses and routes",
                "remove the addresses and routes from eth0~",
                "read everything back, compare it with the journal, and note that it is right",
            ]
        );
        assert_eq!(plan_there.steps[1].interruption, Interruption::UnlessLive);
        assert_eq!(plan(&plain, Goal::Plain, &names), Plan { steps: Vec::new(), waits_for: None });
        let blind = Observation { rows: Rows::Unknown, ..plain };
        let blocked = plan(&blind, Goal::Attached, &names);
        assert_eq!((blocked.steps.len(), blocked.waits_for), (0, Some(Wait::Database)));
    }
}
