//! How the connection to the container runtime stands, for the agent's status and the metrics. Times are for people.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::model::Timestamp;

/// How the container runtime stands.
#[derive(Clone, Debug)]
pub struct RuntimeHealth {
    /// Where it is reached: `unix:///var/run/docker.sock`; empty when no runtime is watched.
    pub endpoint: String,
    /// It was listed and is followed.
    pub connected: bool,
    /// One sentence.
    pub message: String,
    /// Since when it is connected, or not.
    pub since: Timestamp,
    /// Counters; they only grow.
    pub counters: Arc<RuntimeCounters>,
}

/// What was exchanged with the runtime.
#[derive(Debug, Default)]
pub struct RuntimeCounters {
    /// Complete listings.
    pub listings: AtomicU64,
    /// Events about containers.
    pub events: AtomicU64,
    /// Inspections.
    pub inspections: AtomicU64,
    /// Connections that were lost, and attempts that failed.
    pub failures: AtomicU64,
}

impl RuntimeHealth {
    /// Nobody was asked yet.
    #[must_use]
    pub fn starting(endpoint: String) -> Self {
        let message = "not connected yet".to_owned();
        Self { endpoint, connected: false, message, since: now(), counters: Arc::default() }
    }

    /// No runtime is watched.
    #[must_use]
    pub fn off() -> Self {
        Self { message: "no container runtime is watched".to_owned(), ..Self::starting(String::new()) }
    }

    /// Whether a runtime is watched.
    #[must_use]
    pub fn watched(&self) -> bool {
        !self.endpoint.is_empty()
    }
}

/// The one writer of [`RuntimeHealth`].
#[derive(Debug)]
pub(super) struct Reporter(pub(super) watch::Sender<RuntimeHealth>);

impl Reporter {
    /// Counts something.
    pub(super) fn count(&self, which: impl Fn(&RuntimeCounters) -> &AtomicU64) {
        which(&self.0.borrow().counters).fetch_add(1, Ordering::Relaxed);
    }

    /// Says how it stands; true when that has turned.
    pub(super) fn turn(&self, connected: bool, message: &str) -> bool {
        let mut turned = false;
        self.0.send_if_modified(|health| {
            turned = health.connected != connected;
            if turned {
                health.since = now();
            }
            let changed = turned || health.message != message;
            health.connected = connected;
            message.clone_into(&mut health.message);
            changed
        });
        turned
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}
