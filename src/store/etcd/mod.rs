//! etcd as source of wishes and as store for `ConfigService` and the statuses.
//!
//! Two connections: the source has its own, so that a failing write never disturbs reading. Keys outside the agent's prefix are
//! neither read nor written.

mod core;
mod error;
mod heart;
mod link;
mod options;
mod pager;
mod source;
mod versions;
mod write;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use options::EtcdOptions;

use super::health::Reporter;
use super::{StoreError, StoreHealth, StoreSink, WATCHED_PREFIXES};
use crate::backoff::chance;
use link::Link;
use source::Source;

/// How the source looks after its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Pace of the question whether etcd is there.
    pub heartbeat: Duration,
    /// Unanswered for so long, a connection is given up.
    pub silence: Duration,
    /// Everything is listed again after this time, give or take a fifth.
    pub relist: Duration,
}

impl Timing {
    /// When to list everything again: by chance, so that a fleet that lost etcd together does not list together for ever.
    fn next_listing(&self) -> Duration {
        self.relist / 1000 * u32::try_from(800 + chance(401)).unwrap_or(1000)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(5), silence: Duration::from_secs(15), relist: Duration::from_secs(300) }
    }
}

/// Where etcd is, and which part of it is ours.
#[derive(Debug)]
struct Access {
    options: EtcdOptions,
    /// The agent's prefix, ending in `/`.
    prefix: String,
}

/// One agent's part of an etcd cluster.
pub struct EtcdStore {
    access: Arc<Access>,
    prefixes: Vec<String>,
    timing: Timing,
    link: Link,
}

impl EtcdStore {
    /// For the agent's prefix, such as `/vnf-agent/vpp1/`. Connects to nothing yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when the options can never work: no or bad endpoints, half a certificate, a user without password.
    pub fn new(options: EtcdOptions, agent_prefix: String) -> Result<Self, StoreError> {
        if !agent_prefix.ends_with('/') {
            // Without it `vpp1` would read the keys of `vpp10`.
            let attempted = format!("use the prefix `{agent_prefix}`");
            return Err(StoreError::Refused { attempted, cause: "it does not end in `/`".to_owned() });
        }
        let access = Arc::new(Access { options: options.checked()?, prefix: agent_prefix });
        let prefixes = WATCHED_PREFIXES.iter().map(|&prefix| prefix.to_owned()).collect();
        Ok(Self { link: Link::new(Arc::clone(&access)), access, prefixes, timing: Timing::default() })
    }

    /// Reads these relative prefixes, each ending in `/`, instead of [`WATCHED_PREFIXES`].
    #[must_use]
    pub fn watching(mut self, prefixes: &[&str]) -> Self {
        self.prefixes = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        self
    }

    /// Looks after the connection at another pace.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Reads wishes until `shutdown`, through every outage. `resync` makes it list everything again. Events of one revision (below one
    /// prefix) are delivered together. Start `health` with [`StoreHealth::starting`]`("etcd")`.
    pub async fn run_source(
        self: Arc<Self>,
        sink: Arc<dyn StoreSink>,
        health: watch::Sender<StoreHealth>,
        resync: Arc<Notify>,
        shutdown: CancellationToken,
    ) {
        let source = Source::new(Arc::clone(&self.access), self.timing, &self.prefixes, sink, Reporter(health), resync);
        source.run(shutdown).await;
    }
}
