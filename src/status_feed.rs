//! Carries statuses from the configurator's book to the store, and publishes how the agent itself stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::api::Context;
use crate::configurator::book::Next;
use crate::external_node::controller::published::{NodesView, PublishedNodes};
use crate::model::InterfaceStatus;
use crate::model::key::{AGENT_STATUS_KEY, ENTITY_STATUS_PREFIX, INTERFACE_STATUS_PREFIX, NODE_STATUS_PREFIX};
use crate::proto::json::to_value;
use crate::store::status_writer::StatusHandle;

/// How often the agent's own status is published, changed or not.
const AGENT_EVERY: Duration = Duration::from_secs(10);
/// How many changes are taken at once.
const TAKE: usize = 1024;

/// Runs until the agent stops; then hands the writer back, to be shut down.
pub async fn run(statuses: StatusHandle, context: Arc<Context>, nodes: Arc<PublishedNodes>) -> StatusHandle {
    let mut node_feed = NodeFeed::new(nodes);
    let mut latest = context.published.statuses.subscribe();
    let mut agent = tokio::time::interval(AGENT_EVERY);
    let mut hold = context.published.hold.subscribe();
    let mut listed = context.published.first_listing_applied.subscribe();
    let (mut seen, mut swept) = (0, false);
    loop {
        seen = follow(&statuses, &context, seen);
        node_feed.follow(&statuses);
        if !swept && *listed.borrow_and_update() {
            swept = true;
            sweep(&statuses, &context);
            publish_agent(&statuses, &context);
        }
        // All of these may be dropped half way: they only say that something is to be done.
        tokio::select! {
            () = context.stop.cancelled() => return statuses,
            changed = node_feed.latest.changed() => if changed.is_err() { return statuses },
            changed = latest.changed() => if changed.is_err() { return statuses },
            // A listing without a wish changes no status.
            _ = listed.changed() => {}
            _ = hold.changed() => publish_agent(&statuses, &context),
            _ = agent.tick() => publish_agent(&statuses, &context),
        }
    }
}

/// Hands over what changed since number `seen`; returns the number of the last change.
fn follow(statuses: &StatusHandle, context: &Context, seen: u64) -> u64 {
    let mut seen = seen;
    loop {
        match context.published.statuses.since(seen, TAKE) {
            Next::Changes(changes) => {
                let Some(last) = changes.last() else { return seen };
                seen = last.sequence;
                for change in changes {
                    set(statuses, &change.key, change.value.as_deref());
                }
            }
            Next::TooOld => {
                // Too far behind for single changes; what is gone was removed or is swept as stale.
                let (sequence, all) = context.published.statuses.snapshot();
                all.iter().for_each(|(key, status)| set(statuses, key, Some(status)));
                sweep(statuses, context);
                seen = sequence;
            }
        }
    }
}

fn set(statuses: &StatusHandle, name: &str, status: Option<&InterfaceStatus>) {
    let value = status.map(|status| serde_json::to_vec(status).unwrap_or_default());
    statuses.set(&format!("{INTERFACE_STATUS_PREFIX}{name}"), value);
}

/// Status keys that no interface of ours answers for come from an earlier life.
fn sweep(statuses: &StatusHandle, context: &Context) {
    let published = context.published.clone();
    statuses.remove_stale(INTERFACE_STATUS_PREFIX, move |key| {
        key.strip_prefix(INTERFACE_STATUS_PREFIX).is_some_and(|name| published.statuses.get(name).is_some())
    });
}

fn publish_agent(statuses: &StatusHandle, context: &Context) {
    let status = context.agent_status(SystemTime::now().into());
    statuses.set(AGENT_STATUS_KEY, Some(to_value(&status).to_string().into_bytes()));
}

/// Carries what is told of external nodes.
struct NodeFeed {
    nodes: Arc<PublishedNodes>,
    latest: watch::Receiver<Arc<NodesView>>,
    /// The keys that stand.
    set: BTreeSet<String>,
    swept: bool,
}

impl NodeFeed {
    fn new(nodes: Arc<PublishedNodes>) -> Self {
        Self { latest: nodes.subscribe(), nodes, set: BTreeSet::new(), swept: false }
    }

    fn follow(&mut self, statuses: &StatusHandle) {
        let view = self.latest.borrow_and_update().clone();
        let values = values(&view);
        for (key, value) in &values {
            statuses.set(key, Some(value.clone()));
        }
        for gone in self.set.iter().filter(|key| !values.contains_key(*key)) {
            statuses.set(gone, None);
        }
        self.set = values.into_keys().collect();
        if !self.swept && view.listed {
            self.swept = true;
            for prefix in [NODE_STATUS_PREFIX, ENTITY_STATUS_PREFIX] {
                let nodes = self.nodes.clone();
                statuses.remove_stale(prefix, move |key| values_hold(&nodes.view(), key));
            }
        }
    }
}

fn values(view: &NodesView) -> BTreeMap<String, Vec<u8>> {
    let nodes = view.nodes.iter().map(|(name, status)| (format!("{NODE_STATUS_PREFIX}{name}"), serde_json::to_vec(&**status)));
    let entities = view.entities.iter().map(|(name, entity)| (format!("{ENTITY_STATUS_PREFIX}{name}"), serde_json::to_vec(&**entity)));
    nodes.chain(entities).filter_map(|(key, value)| Some((key, value.ok()?))).collect()
}

fn values_hold(view: &NodesView, key: &str) -> bool {
    let node = key.strip_prefix(NODE_STATUS_PREFIX).is_some_and(|name| view.nodes.contains_key(name));
    node || key.strip_prefix(ENTITY_STATUS_PREFIX).is_some_and(|name| view.entities.contains_key(name))
}
