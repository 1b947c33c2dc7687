//! What every answer is made of: the published state, the store, and a few facts of this run.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::convert;
use crate::configurator::published::{Published, Requests};
use crate::external_node::controller::inbox::NodeInbox;
use crate::external_node::controller::published::PublishedNodes;
use crate::model::{AgentLabel, State, Timestamp};
use crate::namespace::docker::RuntimeHealth;
use crate::proto::agent as pb;
use crate::store::{ConfigStore, StoreHealth};

/// Milliseconds of silence of the store after which the agent is not ready.
const STORE_SILENCE_LIMIT: i64 = 20_000;
/// Milliseconds without a sign of life of the configurator after which the process counts as dead.
const HEARTBEAT_LIMIT: i64 = 60_000;

/// The parts that the API reads from and hands requests to.
pub struct Context {
    /// The agent's label.
    pub label: AgentLabel,
    /// Tells this run of the agent from every other one: sequence numbers count within it.
    pub run_id: String,
    /// When this run began.
    pub started: Timestamp,
    /// The configurator's public face.
    pub published: Arc<Published>,
    /// Reads and writes of the configuration.
    pub config: Arc<dyn ConfigStore>,
    /// What may be asked of the configurator.
    pub requests: Arc<dyn Requests>,
    /// How the store stands.
    pub store: watch::Receiver<StoreHealth>,
    /// Why statuses cannot be published in the store at present; `None` while they can, or are not to be.
    pub publishing: watch::Receiver<Option<String>>,
    /// How the container runtime stands.
    pub docker: watch::Receiver<RuntimeHealth>,
    /// External nodes.
    pub nodes: Nodes,
    /// Cancelled when the agent stops: whoever waits or watches is told then.
    pub stop: CancellationToken,
}

/// How those stand whom the agent works with.
pub struct Surroundings {
    /// The store.
    pub store: watch::Receiver<StoreHealth>,
    /// Why statuses cannot be published in the store at present; `None` while they can, or are not to be.
    pub publishing: watch::Receiver<Option<String>>,
    /// The container runtime.
    pub docker: watch::Receiver<RuntimeHealth>,
    /// External nodes.
    pub nodes: Nodes,
}

/// What is told of external nodes, and where requests for them go.
#[derive(Clone, Default)]
pub struct Nodes {
    /// What is told.
    pub published: Arc<PublishedNodes>,
    /// Where requests go.
    pub inbox: Arc<NodeInbox>,
}

/// Why the agent is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// A stable word: NOT_LISTED, STORE_SILENT or HOLD.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

impl Context {
    /// Puts the parts together; this moment is the begin of the run.
    #[must_use]
    pub fn new(
        label: AgentLabel,
        published: Arc<Published>,
        config: Arc<dyn ConfigStore>,
        requests: Arc<dyn Requests>,
        surroundings: Surroundings,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let Surroundings { store, publishing, docker, nodes } = surroundings;
        // The standard library seeds every map at random; that is all a run id needs.
        let run_id = format!("{:016x}", RandomState::new().build_hasher().finish());
        Arc::new(Self { label, run_id, started: now(), published, config, requests, store, publishing, docker, nodes, stop })
    }

    /// Whether the configuration is in force and followed. Single objects do not count, nor does Docker.
    ///
    /// # Errors
    /// The first of the reasons that hold.
    pub fn readiness(&self, now: Timestamp) -> Result<(), NotReady> {
        let store = self.store.borrow().clone();
        if !*self.published.first_listing_applied.borrow() {
            let message = format!("the first listing of the store has not been applied yet: {}", store.message);
            return Err(NotReady { reason: "NOT_LISTED", message });
        }
        if let Some(message) = silence(&store, now) {
            return Err(NotReady { reason: "STORE_SILENT", message });
        }
        match &*self.published.hold.borrow() {
            Some(hold) => Err(NotReady {
                reason: "HOLD",
                message: format!("removals are held back: {}; `vnfctl resync --accept-removals` lets them happen", hold.why),
            }),
            None => Ok(()),
        }
    }

    /// Whether the configurator gave a sign of life lately; nothing else counts.
    ///
    /// # Errors
    /// One sentence.
    pub fn liveness(&self, now: Timestamp) -> Result<(), String> {
        let beat = self.published.heartbeat.load(Ordering::Acquire);
        // Before the first one the configurator has not been started.
        if beat == 0 || now.0 - beat <= HEARTBEAT_LIMIT {
            return Ok(());
        }
        Err(format!("the configurator has given no sign of life for {} s", (now.0 - beat) / 1000))
    }

    /// The agent's status, as gRPC, HTTP and the store's status key show it.
    #[must_use]
    pub fn agent_status(&self, now: Timestamp) -> pb::AgentStatus {
        use pb::agent_status::OperationalState;
        let store = self.store.borrow().clone();
        let hold = self.published.hold.borrow().clone();
        let readiness = self.readiness(now);
        let state = match &readiness {
            Ok(()) => OperationalState::Ok,
            Err(NotReady { reason: "NOT_LISTED", .. }) => OperationalState::Init,
            Err(_) => OperationalState::Error,
        };
        let ready = readiness.is_ok();
        let (reason, message) = readiness.err().map_or(("", String::new()), |n| (n.reason, n.message));
        let last_change = self.started.max(store.since).max(hold.as_ref().map_or(self.started, |h| h.since));
        pb::AgentStatus {
            build_version: env!("CARGO_PKG_VERSION").to_owned(),
            build_date: option_env!("VNF_AGENT_BUILD_DATE").unwrap_or_default().to_owned(),
            state: state.into(),
            start_time: self.started.seconds(),
            last_change: last_change.seconds(),
            last_update: now.seconds(),
            commit_hash: option_env!("VNF_AGENT_COMMIT").unwrap_or_default().to_owned(),
            label: self.label.to_string(),
            run_id: self.run_id.clone(),
            pid: std::process::id(),
            ready,
            reason: reason.to_owned(),
            message,
            store: Some(convert::store(&store)),
            applied_revision: *self.published.applied_revision.borrow(),
            hold: hold.as_ref().map(convert::hold),
            interfaces: self.states().into_iter().map(|(s, count)| pb::StateCount { state: convert::state(s).into(), count }).collect(),
            namespaces: self.published.namespaces.len() as u64,
            publishing_problem: self.publishing.borrow().clone().unwrap_or_default(),
            docker: convert::docker(&self.docker.borrow()),
        }
    }

    /// How many interfaces are in each state; states that none is in are left out.
    #[must_use]
    pub fn states(&self) -> BTreeMap<State, u64> {
        let mut counts = BTreeMap::new();
        for (_, status) in self.published.statuses.snapshot().1 {
            *counts.entry(status.state).or_insert(0) += 1;
        }
        counts
    }
}

/// Why the store counts as silent. An embedded store has nobody to hear from: it is judged by `live` alone.
fn silence(store: &StoreHealth, now: Timestamp) -> Option<String> {
    let heard = if store.kind == "embedded" && store.live { now } else { store.last_heard.unwrap_or(store.since) };
    let silent = now.0 - heard.0;
    (silent > STORE_SILENCE_LIMIT).then(|| format!("the store has not answered for {} s: {}", silent / 1000, store.message))
}

/// The present moment.
#[must_use]
pub fn now() -> Timestamp {
    SystemTime::now().into()
}
