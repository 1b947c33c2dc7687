//! What the external node's part comes to life for: a journal, a wish, a question about one, or ports of ours in Open vSwitch of which no journal tells.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::NodeSetup;
use crate::external_node::attachment::is_left_here;
use crate::external_node::controller::inbox::{Batch, NodeInbox};
use crate::external_node::controller::published::{NodesView, PublishedNodes};
use crate::external_node::journal::JournalFolder;
use crate::linux::nic::NicKernel;
use crate::model::{AgentLabel, OvsdbTarget};
use crate::namespace::NetnsHandle;
use crate::ovs::pairs_of;
use crate::store::StoreEvent;

/// How often a database that could not be asked yet is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long the answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A reason to come to life.
pub(super) enum Reason {
    /// Somebody wishes or asks something, or a journal tells.
    Told,
    /// Ports of ours stand on this bridge, and no journal tells of them.
    LeftOn(String),
}

/// Waits for a reason. `None` when the agent stops first.
pub(super) fn reason_to_live(setup: &NodeSetup, inbox: &Arc<NodeInbox>) -> Option<Reason> {
    let journals = JournalFolder::open(&setup.config.state_dir).and_then(|folder| folder.has_some()).unwrap_or_default();
    if journals {
        return Some(Reason::Told);
    }
    // It ends with this function.
    let (_wanted, ended) = channel::<()>();
    let (target, label, own, told) = (setup.config.ovs.db.clone(), setup.config.label.clone(), setup.own.clone(), inbox.clone());
    let look = move || {
        if let Some(bridge) = look_for_leftovers(&target, &label, own, &ended) {
            told.left_on(bridge);
        }
    };
    if let Err(error) = thread::Builder::new().name("ovs-leftovers".to_owned()).spawn(look) {
        tracing::warn!(%error, "what a lost journal may have left in Open vSwitch is not looked for");
    }
    inbox.wait_for(|batch| reason(batch, &setup.published))
}

fn reason(batch: &Batch, published: &PublishedNodes) -> Option<Reason> {
    let wished = |event: &StoreEvent| matches!(event, StoreEvent::InitApply(..) | StoreEvent::Apply(..));
    let listed = batch.store.iter().rev().find_map(|event| match event {
        StoreEvent::InitDone(identity) => Some(identity.revision),
        _ => None,
    });
    let told = !batch.dry_runs.is_empty() || batch.store.iter().any(wished);
    let left = batch.left_on.clone().map(Reason::LeftOn);
    let reason = left.or(told.then_some(Reason::Told));
    if let Some(applied) = listed.filter(|_| reason.is_none()) {
        // Nobody wishes anything: that is known too.
        published.publish(NodesView { listed: true, applied, ..NodesView::default() });
    }
    reason
}

/// The bridge on which ports of this host's NICs stand; `None` when none does, or nobody wants to know any more. A host without Open vSwitch has no
/// socket, which is all that is looked at then.
fn look_for_leftovers(target: &OvsdbTarget, label: &AgentLabel, own: NetnsHandle, ended: &Receiver<()>) -> Option<String> {
    let mut kernel = NicKernel::new(own);
    let is_there = || match target {
        OvsdbTarget::Unix(socket) => socket.exists(),
        OvsdbTarget::Tcp { .. } => true,
    };
    loop {
        if is_there() {
            match left(&mut kernel, target, label) {
                Ok(found) => return found,
                Err(problem) => tracing::debug!(%problem, "what a lost journal may have left in Open vSwitch is not known yet"),
            }
        }
        if !matches!(ended.recv_timeout(LOOK_AGAIN), Err(RecvTimeoutError::Timeout)) {
            return None;
        }
    }
}

fn left(kernel: &mut NicKernel, target: &OvsdbTarget, label: &AgentLabel) -> Result<Option<String>, String> {
    let bridges = pairs_of(target, label, ANSWER_WITHIN).map_err(|error| error.to_string())?;
    if bridges.is_empty() {
        return Ok(None);
    }
    let links = kernel.links().map_err(|error| error.to_string())?;
    let found = bridges.into_iter().find_map(|(bridge, pairs)| {
        let nic = pairs.iter().find(|(host, pair)| is_left_here(host, pair, &links)).map(|(host, _)| host.clone());
        nic.map(|nic| (bridge, nic))
    });
    Ok(found.map(|(bridge, nic)| {
        tracing::warn!(nic, bridge, "ports of this agent stand in Open vSwitch, and no journal tells of them: they are taken up");
        bridge
    }))
}
