//! What the controller tells the outside: statuses and references, read by the API and by the writer of statuses.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::model::{ExternalEntityReference, NodeStatus};

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesView {
    /// Statuses by the last part of the node's key.
    pub nodes: BTreeMap<String, Arc<NodeStatus>>,
    /// References by `<namespace>/<name>`; those of interfaces that are attached.
    pub entities: BTreeMap<String, Arc<ExternalEntityReference>>,
    /// The way that each interface would go now, as lines for people, by node.
    pub plans: BTreeMap<String, Vec<String>>,
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
    /// Repairs of what others had changed.
    pub drift: AtomicU64,
}

/// The controller's public face.
#[derive(Debug)]
pub struct PublishedNodes {
    view: watch::Sender<Arc<NodesView>>,
    swept: Mutex<bool>,
    /// Counters.
    pub counters: NodeCounters,
}

impl Default for PublishedNodes {
    fn default() -> Self {
        Self { view: watch::channel(Arc::default()).0, swept: Mutex::new(false), counters: NodeCounters::default() }
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

    /// Whether the wishes are known, so that what nobody answers for can be removed.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.swept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes; who waits is woken only when something has changed.
    pub fn publish(&self, view: NodesView, listed: bool) {
        let newly = listed && !std::mem::replace(&mut *self.swept.lock().unwrap_or_else(PoisonError::into_inner), listed);
        self.view.send_if_modified(|last| {
            let changed = **last != view;
            if changed {
                *last = Arc::new(view);
            }
            changed || newly
        });
    }
}
