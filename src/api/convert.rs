//! The model's values as messages. One direction only: nobody configures anything through a status.

use crate::configurator::published::{Hold, IndexEntry, NamespaceEntry, PassRecord};
use crate::model::{ExternalEntityReference, InterfaceStatus, NetnsRef, NodeInterfaceStatus, NodeStatus, State, Timestamp};
use crate::namespace::docker::RuntimeHealth;
use crate::proto::agent as pb;
use crate::store::StoreHealth;

/// A state.
#[must_use]
pub fn state(state: State) -> pb::State {
    match state {
        State::Nonexistent => pb::State::Nonexistent,
        State::Missing => pb::State::Missing,
        State::Unimplemented => pb::State::Unimplemented,
        State::Removed => pb::State::Removed,
        State::Configured => pb::State::Configured,
        State::Obtained => pb::State::Obtained,
        State::Discovered => pb::State::Discovered,
        State::Pending => pb::State::Pending,
        State::Invalid => pb::State::Invalid,
        State::Failed => pb::State::Failed,
        State::Retrying => pb::State::Retrying,
    }
}

fn moment(t: Timestamp) -> Option<prost_types::Timestamp> {
    Some(t.into())
}

fn error(e: &crate::model::FieldError) -> pb::FieldError {
    pb::FieldError { field: e.field.clone(), value: e.value.clone(), rule: e.rule.clone(), hint: e.hint.clone() }
}

/// An external node's status.
#[must_use]
pub fn node(s: &NodeStatus) -> pb::NodeStatus {
    let interface = |i: &NodeInterfaceStatus| pb::NodeInterfaceStatus {
        name: i.name.clone(),
        entity: i.entity.clone(),
        phase: i.phase.word().to_owned(),
        uplink: i.uplink.clone(),
        bridge: i.bridge.clone(),
        host_ofport: i.host_ofport,
        uplink_ofport: i.uplink_ofport,
        phys_address: i.phys_address.clone(),
        mtu: i.mtu,
        ip_addresses: i.ip_addresses.clone(),
    };
    pb::NodeStatus {
        name: s.name.clone(),
        namespace: s.namespace.clone(),
        state: state(s.state).into(),
        reason: s.reason.map_or("", crate::model::Reason::word).to_owned(),
        message: s.message.clone(),
        entities: s.entities.clone(),
        revision: s.revision,
        since: moment(s.since),
        warnings: s.warnings.clone(),
        errors: s.errors.iter().map(error).collect(),
        interfaces: s.interfaces.iter().map(interface).collect(),
    }
}

/// An external entity.
#[must_use]
pub fn entity(e: &ExternalEntityReference) -> pb::ExternalEntity {
    let label = |(key, value): (&String, &String)| pb::external_entity::Label { key: key.clone(), value: value.clone() };
    pb::ExternalEntity {
        name: e.name.clone(),
        namespace: e.namespace.clone(),
        external_node: e.external_node.clone(),
        interface: e.interface.clone(),
        ips: e.ips.clone(),
        labels: e.labels.iter().map(label).collect(),
    }
}

/// An interface's status.
#[must_use]
pub fn interface(s: &InterfaceStatus) -> pb::InterfaceStatus {
    pb::InterfaceStatus {
        name: s.name.clone(),
        state: state(s.state).into(),
        reason: s.reason.map_or("", crate::model::Reason::word).to_owned(),
        message: s.message.clone(),
        host_if_name: s.host_if_name.clone(),
        if_index: s.if_index,
        namespace: Some(pb::NamespaceStatus {
            kind: s.namespace.kind.to_owned(),
            reference: s.namespace.reference.clone(),
            inode: s.namespace.inode,
        }),
        admin: s.admin.to_owned(),
        oper: s.oper.to_owned(),
        mtu: s.mtu,
        phys_address: s.phys_address.clone(),
        ip_addresses: s.ip_addresses.iter().map(ToString::to_string).collect(),
        peer: s.peer.clone(),
        extra_addresses: s.extra_addresses.iter().map(ToString::to_string).collect(),
        waits_for: s.waits_for.clone(),
        warnings: s.warnings.clone(),
        errors: s.errors.iter().map(error).collect(),
        attempt: s.attempt,
        next_retry: s.next_retry.map(Into::into),
        revision: s.revision,
        since: moment(s.since),
    }
}

/// A link of the index under its logical name.
#[must_use]
pub fn index_entry(name: &str, entry: &IndexEntry) -> pb::IndexEntry {
    pb::IndexEntry {
        name: name.to_owned(),
        if_index: entry.link.ifindex.get(),
        host_if_name: entry.host_if_name.to_string(),
        namespace: Some(pb::NamespaceStatus {
            kind: entry.spec.netns.kind().to_owned(),
            reference: entry.spec.netns.reference(),
            inode: entry.inode,
        }),
        netns_cookie: entry.link.netns.0.get(),
        r#type: entry.spec.kind.word().to_owned(),
        peer: entry.spec.peer().map(ToString::to_string).unwrap_or_default(),
        enabled: entry.spec.enabled,
        mtu: entry.spec.mtu,
        phys_address: entry.spec.mac.map(|m| m.to_string()).unwrap_or_default(),
        ip_addresses: entry.spec.addresses.iter().map(ToString::to_string).collect(),
    }
}

/// A namespace.
#[must_use]
pub fn namespace(n: &NamespaceEntry) -> pb::NamespaceEntry {
    pb::NamespaceEntry {
        kind: n.kind.to_owned(),
        reference: n.reference.clone(),
        state: n.state.to_owned(),
        message: n.message.clone(),
        cookie: n.cookie,
        inode: n.inode,
        since: moment(n.since),
        interfaces: n.interfaces as u64,
        replaced: n.replaced,
        container_id: n.container_id.clone(),
        container_name: n.container_name.clone(),
        container_started: n.container_started.map(Into::into),
        other_containers: n.other_containers.clone(),
    }
}

/// A pass of the history.
#[must_use]
pub fn pass(p: PassRecord) -> pb::Pass {
    pb::Pass {
        sequence: p.sequence,
        started: moment(p.started),
        elapsed_us: p.elapsed_us,
        triggers: p.triggers.into_iter().map(str::to_owned).collect(),
        drift: p.drift,
        steps: p.steps.into_iter().map(|s| pb::Step { step: s.step.into(), outcome: s.outcome.into_owned() }).collect(),
    }
}

/// The store's health.
#[must_use]
pub fn store(health: &StoreHealth) -> pb::StoreStatus {
    pb::StoreStatus {
        kind: health.kind.to_owned(),
        live: health.live,
        message: health.message.clone(),
        last_heard: health.last_heard.map(Into::into),
        since: moment(health.since),
        revision: health.revision,
    }
}

/// The container runtime; nothing when none is watched.
#[must_use]
pub fn docker(health: &RuntimeHealth) -> Option<pb::DockerStatus> {
    health.watched().then(|| pb::DockerStatus {
        endpoint: health.endpoint.clone(),
        connected: health.connected,
        message: health.message.clone(),
        since: moment(health.since),
    })
}

/// HOLD.
#[must_use]
pub fn hold(hold: &Hold) -> pb::HoldStatus {
    pb::HoldStatus { why: hold.why.clone(), since: moment(hold.since), kept: hold.kept.clone() }
}

/// Whether a namespace passes a filter; what the filter leaves empty does not narrow.
#[must_use]
pub fn passes(filter: &pb::NamespaceFilter, kind: &str, reference: &str, inode: u64) -> bool {
    (filter.kind.is_empty() || filter.kind.eq_ignore_ascii_case(kind))
        && (filter.reference.is_empty() || filter.reference == reference)
        && (filter.inode == 0 || filter.inode == inode)
}

/// Whether a link lies in the container with this label.
#[must_use]
pub fn in_microservice(entry: &IndexEntry, label: &str) -> bool {
    matches!(&entry.spec.netns, NetnsRef::Microservice(name) if name == label)
}
