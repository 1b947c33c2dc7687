//! What the controller tells the outside: statuses and references, read by the API and by the writer of statuses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::watch;

use crate::model::{ExternalEntityReference, NodeStatus};

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesView {
    /// Statuses by the last part of the node's key.
    pub nodes: BTreeMap<String, Arc<NodeStatus>>,
    /// References by `<namespace>/<name>`; those of interfaces that are attached, from the read-back until they are given back.
    pub entities: BTreeMap<String, Arc<ExternalEntityReference>>,
    /// This host's node, if it is wished or not yet given back.
    pub own: Option<OwnNode>,
    /// Whether the wishes are known and were looked at, so that what nobody answers for can be removed.
    pub listed: bool,
    /// Revision of the last event of the store that was worked on.
    pub applied: i64,
}

/// What may be asked about this host's node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNode {
    /// Its name.
    pub name: String,
    /// The NICs that are, or are to be, behind the bridge.
    pub nics: Vec<String>,
    /// Those of them whose attachment is not confirmed yet.
    pub unconfirmed: Vec<String>,
    /// The ways that its NICs would go now, as lines for people.
    pub plan: Vec<String>,
}

/// Counters; they only grow.
#[derive(Debug, Default)]
pub struct NodeCounters {
    /// NICs that were put behind the bridge.
    pub attached: AtomicU64,
    /// NICs that were given back.
    pub detached: AtomicU64,
    /// Attachments that were undone because they failed or were not confirmed.
    pub rolled_back: AtomicU64,
    /// Attachments that the process that stands by has undone, as far as the agent lived to see it.
    pub taken_over: AtomicU64,
    /// Repairs of what others had changed.
    pub drift: AtomicU64,
    /// Attempts that did not get to their end; each is followed by another one.
    pub retries: AtomicU64,
}

/// The controller's public face.
#[derive(Debug)]
pub struct PublishedNodes {
    view: watch::Sender<Arc<NodesView>>,
    /// Counters.
    pub counters: NodeCounters,
}

impl Default for PublishedNodes {
    fn default() -> Self {
        Self { view: watch::channel(Arc::default()).0, counters: NodeCounters::default() }
    }
}

impl PublishedNodes {
    /// What holds now.
    #[must_use]
    pub fn view(&self) -> Arc<NodesView> {
        self.view.borrow().clone()
    }

    /// What holds now and what will.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<NodesView>> {
        self.view.subscribe()
    }

    /// Publishes; who waits is woken only when something has changed.
    pub fn publish(&self, view: NodesView) {
        self.view.send_if_modified(|last| {
            let changed = **last != view;
            if changed {
                *last = Arc::new(view);
            }
            changed
        });
    }
}
