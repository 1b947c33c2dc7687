//! From what was seen and tried to what is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::published::{NodesView, OwnNode};
use super::wish::{Chosen, Wish, Wishes};
use super::{Nic, NodeParts};
use crate::external_node::handover::{FlowsError, HandoverError, Seen};
use crate::external_node::journal::Intent;
use crate::external_node::phase::{Goal, NameHolder, Share, Step, Wait, phase};
use crate::external_node::plan::{Names, plan};
use crate::external_node::suitability::uplink_name;
use crate::model::nic::NicAddress;
use crate::model::{ExternalEntityReference, FieldError, NodeInterfaceStatus, NodeSpec, NodeStatus, Phase, Reason, State, Timestamp};
use crate::ovs::{Claim, OvsError, PairView, PortState};

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

pub(super) fn is_plain(seen: &Seen) -> bool {
    phase(&seen.observation) == Phase::Plain
}

pub(super) fn reason_of_wait(wait: Wait) -> Reason {
    match wait {
        Wait::NicGone => Reason::LinkMissing,
        Wait::Claimed | Wait::OtherLabel => Reason::Contended,
        Wait::NameTaken => Reason::ForeignLink,
        Wait::Database => Reason::OvsUnreachable,
        Wait::NothingKnown => Reason::NicUnsuitable,
    }
}

/// What is waited for, as far as it can be told from what was seen.
pub(super) fn words_of_wait(name: &str, wait: Wait, seen: &Seen) -> String {
    let on_port = seen.observation.holder == NameHolder::Port && seen.observation.on_port != Share::None;
    match (wait, &seen.claim) {
        (Wait::NicGone, _) if on_port => format!(
            "{name}: {wait}; its port keeps name, addresses and routes, and the host cannot be reached by it until the NIC is back, or its wish is gone"
        ),
        (Wait::Claimed, Some(claim)) => format!("{name}: {}", words_of_claim(claim)),
        (Wait::OtherLabel, Some(claim)) => format!("{name}: {wait} (the label `{}`)", claim.label),
        _ => format!("{name}: {wait}"),
    }
}

/// Who has a NIC that is left alone.
pub(super) fn words_of_claim(claim: &Claim) -> String {
    let Claim { label, bridge, .. } = claim;
    format!("the agent with label `{label}` has put it behind the bridge {bridge}; it is left alone until that agent has given it back")
}

pub(super) fn reason_of(error: &HandoverError) -> Reason {
    match error {
        HandoverError::Kernel(_) => Reason::KernelRefused,
        HandoverError::Switch(OvsError::NotYet { .. }) => Reason::Timeout,
        HandoverError::Switch(OvsError::Taken { .. })
        | HandoverError::Flows { cause: FlowsError::InTheWay(_), .. }
        | HandoverError::NotAsWished(_) => Reason::Contended,
        HandoverError::Switch(_) | HandoverError::Flows { .. } => Reason::OvsUnreachable,
        HandoverError::Journal(_) => Reason::KernelRefused,
    }
}

/// The names that a NIC's plan speaks of.
pub(super) fn names(name: &str, seen: Option<&Seen>, bridge: &str) -> Names {
    let journal = seen.and_then(|seen| seen.journal.as_ref());
    let uplink = journal.map_or_else(|| uplink_name(name), |journal| journal.uplink.clone());
    Names { host: name.to_owned(), uplink, bridge: bridge.to_owned() }
}

/// Everything that is told, anew.
pub(super) fn view(parts: &NodeParts, wishes: &Wishes, nics: &BTreeMap<String, Nic>, moments: &mut Moments) -> NodesView {
    let mut view = NodesView { applied: wishes.revision(), ..NodesView::default() };
    let mut statuses: BTreeMap<&str, NodeStatus> = BTreeMap::new();
    for (key, wish) in wishes.iter() {
        let status = match &wish.decoded.spec {
            Err(errors) => invalid(key, wish, errors),
            Ok(spec) if !wishes.is_for_us(spec) => foreign(key, wish, spec, wishes),
            Ok(spec) => ours(parts, wishes, spec, wish, nics),
        };
        statuses.insert(key, status);
    }
    if wishes.are_listed() && !nics.is_empty() {
        match statuses.get_mut(parts.name.as_str()) {
            // What stands though the value cannot be used.
            Some(status) => {
                status.interfaces = interfaces(parts, nics);
                status.warnings.extend(warnings(nics));
            }
            None => drop(statuses.insert(parts.name.as_str(), left_over(parts, nics))),
        }
    }
    moments.0.retain(|key, _| statuses.contains_key(&**key));
    for (key, status) in statuses {
        let since = moments.since(key, status.state);
        view.nodes.insert(key.to_owned(), Arc::new(NodeStatus { since, ..status }));
    }
    view.entities = nics.iter().filter_map(|(name, nic)| entity(parts, name, nic)).collect();
    if wishes.spec().is_some() || !nics.is_empty() {
        let unconfirmed = nics.iter().filter(|(_, nic)| nic.unproved.is_some()).map(|(name, _)| name.clone()).collect();
        let plan = plans(parts, wishes, nics);
        view.own = Some(OwnNode { name: parts.name.to_string(), nics: nics.keys().cloned().collect(), unconfirmed, plan });
    }
    view
}

/// A NIC is an entity from the read-back on until its way back begins, whatever fails meanwhile.
fn entity(parts: &NodeParts, name: &str, nic: &Nic) -> Option<(String, Arc<ExternalEntityReference>)> {
    let Chosen { selector, entity, labels } = nic.chosen.as_ref()?;
    nic.seen.as_ref()?.journal.as_ref().filter(|journal| journal.intent == Intent::Attached)?;
    let reference = ExternalEntityReference {
        name: entity.to_string(),
        namespace: parts.namespace.to_string(),
        external_node: parts.name.to_string(),
        interface: name.to_owned(),
        ips: selector.ips.iter().map(ToString::to_string).collect(),
        labels: labels.clone(),
    };
    Some((format!("{}/{}", reference.namespace, reference.name), Arc::new(reference)))
}

fn bare(key: &str, namespace: &str, revision: i64, warnings: &[String]) -> NodeStatus {
    NodeStatus {
        name: key.to_owned(),
        namespace: namespace.to_owned(),
        state: State::Invalid,
        reason: None,
        message: String::new(),
        entities: Vec::new(),
        revision,
        since: Timestamp::default(),
        warnings: warnings.to_vec(),
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
        ..bare(key, "", wish.revision, &wish.decoded.warnings)
    }
}

fn foreign(key: &str, wish: &Wish, spec: &NodeSpec, wishes: &Wishes) -> NodeStatus {
    let message = format!("this agent is {}; the node is another host's (--node-name, --node-namespace)", wishes.identity());
    NodeStatus { state: State::Unimplemented, message, ..bare(key, spec.namespace.as_str(), wish.revision, &wish.decoded.warnings) }
}

fn ours(parts: &NodeParts, wishes: &Wishes, spec: &NodeSpec, wish: &Wish, nics: &BTreeMap<String, Nic>) -> NodeStatus {
    let mut status = bare(spec.name.as_str(), spec.namespace.as_str(), wish.revision, &wish.decoded.warnings);
    status.entities = spec.interfaces.iter().map(|interface| spec.entity(interface).to_string()).collect();
    status.interfaces = interfaces(parts, nics);
    status.warnings.extend(warnings(nics));
    (status.state, status.reason, status.message) = verdict(wishes, nics);
    status
}

/// NICs whose wish is gone, until they are given back.
fn left_over(parts: &NodeParts, nics: &BTreeMap<String, Nic>) -> NodeStatus {
    let mut status = bare(parts.name.as_str(), parts.namespace.as_str(), 0, &[]);
    status.interfaces = interfaces(parts, nics);
    status.warnings.extend(warnings(nics));
    let names = || nics.keys().cloned().collect::<Vec<_>>().join(", ");
    (status.state, status.reason, status.message) = match trouble(nics) {
        Some(trouble) => trouble,
        None if nics.values().all(|nic| nic.rolled_back && nic.seen.as_ref().is_some_and(is_plain)) => {
            (State::Removed, None, format!("the store does not hold this wish; {} was given back on request", names()))
        }
        None if nics.values().any(|nic| nic.goal == Goal::Plain) => {
            (State::Removed, None, format!("the wish is gone; {} is being given back", names()))
        }
        None => (State::Configured, None, format!("the store does not hold this wish; {} stays while removals are held back", names())),
    };
    status
}

fn interfaces(parts: &NodeParts, nics: &BTreeMap<String, Nic>) -> Vec<NodeInterfaceStatus> {
    nics.iter().filter_map(|(name, nic)| Some(interface(parts, name, nic.chosen.as_ref(), nic.seen.as_ref()?))).collect()
}

/// What will be lost with a port.
fn warnings(nics: &BTreeMap<String, Nic>) -> Vec<String> {
    nics.iter().filter_map(|(name, nic)| lost_with_port(name, nic.seen.as_ref()?)).collect()
}

fn lost_with_port(name: &str, seen: &Seen) -> Option<String> {
    let links = seen.on_the_port.join(", ");
    let warning = || {
        format!("links stand on the port {name} ({links}); they are lost when it is given back or made anew, and nobody makes them again")
    };
    (!seen.on_the_port.is_empty()).then(warning)
}

fn trouble(nics: &BTreeMap<String, Nic>) -> Option<(State, Option<Reason>, String)> {
    let trouble = nics.values().find_map(|nic| nic.trouble.as_ref().filter(|_| nic.pace.failures() > 0))?;
    Some((State::Retrying, Some(trouble.reason), trouble.message.clone()))
}

/// The worst that is to be told, in this order: what failed, what is waited for, what still has to happen.
fn verdict(wishes: &Wishes, nics: &BTreeMap<String, Nic>) -> (State, Option<Reason>, String) {
    if let Some(trouble) = trouble(nics) {
        return trouble;
    }
    if let Some(unclear) = wishes.unclear().first() {
        return (unclear.state, Some(unclear.reason), unclear.message.clone());
    }
    let plain = |nic: &Nic| nic.seen.as_ref().is_some_and(|seen| phase(&seen.observation) == Phase::Plain);
    if let Some((name, _)) = nics.iter().find(|(_, nic)| nic.rolled_back && !plain(nic)) {
        return (State::Pending, None, format!("{name} is being given back on request"));
    }
    if let Some((name, _)) = nics.iter().find(|(_, nic)| nic.rolled_back) {
        let message = format!("{name} was given back on request and stays so until the wish changes");
        return (State::Failed, Some(Reason::NicUnsuitable), message);
    }
    let attached = |nic: &Nic| nic.goal == Goal::Attached && nic.seen.as_ref().is_some_and(is_attached);
    if let Some((name, _)) = nics.iter().find(|(_, nic)| nic.unproved.is_some() && attached(nic)) {
        return (State::Pending, None, format!("{name} is attached; it waits for the host to reach its store"));
    }
    let done = |nic: &Nic| attached(nic) && nic.noted;
    match nics.iter().find(|(_, nic)| !done(nic)) {
        Some((name, nic)) if nic.goal == Goal::Plain => (State::Pending, None, format!("{name} is being given back")),
        Some((name, nic)) if attached(nic) => (State::Pending, None, format!("what stands beside the ports of {name} is being written")),
        Some((name, _)) => (State::Pending, None, format!("{name} is being attached")),
        None => (State::Configured, None, String::new()),
    }
}

fn interface(parts: &NodeParts, name: &str, chosen: Option<&Chosen>, seen: &Seen) -> NodeInterfaceStatus {
    let number = |port: Option<&crate::ovs::PortView>| match port.map(|port| &port.state) {
        Some(PortState::Ready(number)) => number.to_string().parse().unwrap_or_default(),
        _ => 0,
    };
    let pair = seen.pair.clone().unwrap_or_default();
    let PairView { host, uplink, .. } = &pair;
    let journal = seen.journal.as_ref();
    let link = journal.map(|journal| &journal.nic).or(seen.nic.as_ref());
    let addresses = journal.map(|journal| [&*journal.config.addresses, &journal.given.addresses].concat()).unwrap_or_default();
    NodeInterfaceStatus {
        name: name.to_owned(),
        entity: chosen.map(|chosen| chosen.entity.to_string()).unwrap_or_default(),
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

fn plans(parts: &NodeParts, wishes: &Wishes, nics: &BTreeMap<String, Nic>) -> Vec<String> {
    let ways = [(Goal::Attached, "behind the bridge"), (Goal::Plain, "back")];
    let seen = nics.iter().filter_map(|(name, nic)| Some((name, nic.seen.as_ref()?)));
    let lines = seen.flat_map(|(name, seen)| ways.iter().flat_map(|(goal, title)| way(parts, name, seen, *goal, title)));
    lines.chain(wishes.unclear().iter().map(|unclear| format!("nothing is done: {}", unclear.message))).collect()
}

/// The way of one NIC to one goal, one step a line.
pub(super) fn way(parts: &NodeParts, name: &str, seen: &Seen, goal: Goal, title: &str) -> Vec<String> {
    let way = plan(&seen.observation, goal, &names(name, Some(seen), &parts.bridge));
    let end = match (way.steps.is_empty(), way.waits_for) {
        (_, Some(wait)) => format!("then it waits: {wait}"),
        (true, None) => "nothing to do".to_owned(),
        (false, None) => "done".to_owned(),
    };
    let steps = way.steps.iter().map(|step| format!("{name} {title}: {} (interruption: {})", step.text, step.interruption));
    let removes = way.steps.iter().any(|step| matches!(step.step, Step::DeletePorts | Step::RemoveLeftover | Step::CreatePorts));
    let lost = removes.then(|| lost_with_port(name, seen)).flatten().map(|lost| format!("{name} {title}: {lost}"));
    lost.into_iter().chain(steps).chain([format!("{name} {title}: {end}")]).collect()
}
