//! From what was seen and tried to what is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::published::NodesView;
use super::wish::{Wish, Wishes};
use super::{Nic, NodeParts};
use crate::external_node::handover::{HandoverError, Seen};
use crate::external_node::phase::{Goal, Wait, phase};
use crate::external_node::plan::{Names, plan};
use crate::model::nic::NicAddress;
use crate::model::{ExternalEntityReference, FieldError, NodeInterfaceStatus, NodeSpec, NodeStatus, Phase, Reason, State, Timestamp};
use crate::ovs::{OvsError, PairView, PortState};

/// Since when each node is in its state.
#[derive(Debug, Default)]
pub(super) struct Moments(BTreeMap<String, (State, Timestamp)>);

impl Moments {
    fn since(&mut self, key: &str, state: State) -> Timestamp {
        let moment = self.0.entry(key.to_owned()).or_insert_with(|| (state, wall_now()));
        if moment.0 != state {
            *moment = (state, wall_now());
        }
        moment.1
    }
}

pub(super) fn wall_now() -> Timestamp {
    SystemTime::now().into()
}

pub(super) fn is_attached(seen: &Seen) -> bool {
    phase(&seen.observation) == Phase::Attached
}

pub(super) fn reason_of_wait(wait: Wait) -> Reason {
    match wait {
        Wait::NicGone => Reason::LinkMissing,
        Wait::NameTaken => Reason::ForeignLink,
        Wait::Database => Reason::OvsUnreachable,
        Wait::NothingKnown => Reason::NicUnsuitable,
    }
}

pub(super) fn reason_of(error: &HandoverError) -> Reason {
    match error {
        HandoverError::Kernel(_) => Reason::KernelRefused,
        HandoverError::Switch(OvsError::NotYet { .. }) => Reason::Timeout,
        HandoverError::Switch(_) | HandoverError::Flows { .. } => Reason::OvsUnreachable,
        HandoverError::Journal(_) => Reason::KernelRefused,
        HandoverError::NotAsWished(_) => Reason::Contended,
    }
}

/// Everything that is told, anew.
pub(super) fn view(parts: &NodeParts, wishes: &Wishes, nics: &BTreeMap<String, Nic>, moments: &mut Moments) -> NodesView {
    let mut view = NodesView::default();
    moments.0.retain(|key, _| wishes.keys().contains(key));
    for (key, wish) in wishes.iter() {
        let status = match &wish.decoded.spec {
            Err(errors) => invalid(key, wish, errors),
            Ok(spec) if !wishes.is_for_us(spec) => foreign(key, wish, spec, wishes),
            Ok(spec) => ours(parts, wishes, spec, wish, nics),
        };
        let since = moments.since(key, status.state);
        view.nodes.insert(key.clone(), Arc::new(NodeStatus { since, ..status }));
    }
    if let Some(spec) = wishes.spec() {
        for (name, nic) in nics.iter().filter(|(_, nic)| nic.seen.as_ref().is_some_and(is_attached)) {
            let Some(chosen) = &nic.chosen else { continue };
            let reference = ExternalEntityReference {
                name: chosen.entity.to_string(),
                namespace: spec.namespace.to_string(),
                external_node: spec.name.to_string(),
                interface: name.clone(),
                ips: chosen.selector.ips.iter().map(ToString::to_string).collect(),
                labels: spec.labels.clone(),
            };
            view.entities.insert(format!("{}/{}", reference.namespace, reference.name), Arc::new(reference));
        }
        view.plans.insert(spec.name.to_string(), plans(parts, nics));
    }
    view
}

fn bare(key: &str, namespace: &str, wish: &Wish) -> NodeStatus {
    NodeStatus {
        name: key.to_owned(),
        namespace: namespace.to_owned(),
        state: State::Invalid,
        reason: None,
        message: String::new(),
        entities: Vec::new(),
        revision: wish.revision,
        since: Timestamp::default(),
        warnings: wish.decoded.warnings.clone(),
        errors: Vec::new(),
        interfaces: Vec::new(),
    }
}

fn invalid(key: &str, wish: &Wish, errors: &[FieldError]) -> NodeStatus {
    let first = errors.first();
    NodeStatus {
        reason: first.map(|error| error.reason),
        message: first.map(ToString::to_string).unwrap_or_default(),
        errors: errors.to_vec(),
        ..bare(key, "", wish)
    }
}

fn foreign(key: &str, wish: &Wish, spec: &NodeSpec, wishes: &Wishes) -> NodeStatus {
    let message = format!("this agent is {}; the node is another host's (--node-name, --node-namespace)", wishes.identity());
    NodeStatus { state: State::Unimplemented, message, ..bare(key, spec.namespace.as_str(), wish) }
}

fn ours(parts: &NodeParts, wishes: &Wishes, spec: &NodeSpec, wish: &Wish, nics: &BTreeMap<String, Nic>) -> NodeStatus {
    let mut status = bare(spec.name.as_str(), spec.namespace.as_str(), wish);
    status.entities = spec.interfaces.iter().map(|interface| spec.entity(interface).to_string()).collect();
    status.interfaces = nics.iter().filter_map(|(name, nic)| Some(interface(parts, name, nic.seen.as_ref()?))).collect();
    (status.state, status.reason, status.message) = verdict(wishes, nics);
    status
}

/// The worst that is to be told, in this order: what failed, what is waited for, what still has to happen.
fn verdict(wishes: &Wishes, nics: &BTreeMap<String, Nic>) -> (State, Option<Reason>, String) {
    if let Some((_, trouble)) = nics.iter().find_map(|(name, nic)| Some((name, nic.trouble.as_ref().filter(|_| nic.attempt > 0)?))) {
        return (State::Retrying, Some(trouble.reason), trouble.message.clone());
    }
    if let Some(unclear) = wishes.unclear().first() {
        return (unclear.state, Some(unclear.reason), unclear.message.clone());
    }
    if let Some((name, _)) = nics.iter().find(|(_, nic)| nic.rolled_back) {
        let message = format!("{name} was given back on request and stays so until the wish changes");
        return (State::Failed, Some(Reason::NicUnsuitable), message);
    }
    if let Some((name, _)) = nics.iter().find(|(_, nic)| nic.attached_at.is_some()) {
        return (State::Pending, None, format!("{name} is attached; it waits for the host to reach its store"));
    }
    let done = |nic: &Nic| nic.goal == Goal::Attached && nic.seen.as_ref().is_some_and(is_attached);
    match nics.iter().find(|(_, nic)| !done(nic)) {
        Some((name, nic)) if nic.goal == Goal::Plain => (State::Pending, None, format!("{name} is being given back")),
        Some((name, _)) => (State::Pending, None, format!("{name} is being attached")),
        None => (State::Configured, None, String::new()),
    }
}

fn interface(parts: &NodeParts, name: &str, seen: &Seen) -> NodeInterfaceStatus {
    let number = |port: Option<&crate::ovs::PortView>| match port.map(|port| &port.state) {
        Some(PortState::Ready(number)) => number.to_string().parse().unwrap_or_default(),
        _ => 0,
    };
    let pair = seen.pair.clone().unwrap_or_default();
    let PairView { host, uplink, .. } = &pair;
    let journal = seen.journal.as_ref();
    let link = journal.map(|journal| &journal.nic).or(seen.nic.as_ref());
    let addresses = journal.map(|journal| journal.config.addresses.clone()).unwrap_or_default();
    NodeInterfaceStatus {
        name: name.to_owned(),
        phase: phase(&seen.observation),
        uplink: journal.map(|journal| journal.uplink.clone()).unwrap_or_default(),
        bridge: parts.bridge.clone(),
        host_ofport: number(host.as_ref()),
        uplink_ofport: number(uplink.as_ref()),
        phys_address: link.map(|link| link.mac.clone()).unwrap_or_default(),
        mtu: link.map(|link| link.mtu).unwrap_or_default(),
        ip_addresses: addresses
            .iter()
            .filter(|address| !address.is_kernel_link_local())
            .filter_map(NicAddress::address)
            .map(|address| address.to_string())
            .collect(),
    }
}

fn plans(parts: &NodeParts, nics: &BTreeMap<String, Nic>) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, nic) in nics {
        let Some(seen) = &nic.seen else { continue };
        let uplink = seen.journal.as_ref().map_or_else(|| crate::external_node::suitability::uplink_name(name), |j| j.uplink.clone());
        let names = Names { host: name.clone(), uplink, bridge: parts.bridge.clone() };
        for (goal, title) in [(Goal::Attached, "behind the bridge"), (Goal::Plain, "back")] {
            let way = plan(&seen.observation, goal, &names);
            let end = match (way.steps.is_empty(), way.waits_for) {
                (_, Some(wait)) => format!("then it waits: {wait}"),
                (true, None) => "nothing to do".to_owned(),
                (false, None) => "done".to_owned(),
            };
            let steps = way.steps.iter().map(|step| format!("{name} {title}: {} (interruption: {})", step.text, step.interruption));
            lines.extend(steps.chain([format!("{name} {title}: {end}")]));
        }
    }
    lines
}
