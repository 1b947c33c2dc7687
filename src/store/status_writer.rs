//! Publishes values that live no longer than the agent: bound to a lease, the latest value per key, never in anybody's way.
//!
//! Whoever sets a value only notes it; one task writes. While the store is away the notes are bounded by one value per key. After
//! silence nobody knows what was written, so it is written again; after the loss of the lease, everything. What others remove or overwrite is
//! written again too.

mod outbox;
mod task;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::StoreFuture;
use outbox::Outbox;
use task::Task;

/// How long published values outlive the agent, seconds.
const LEASE_SECONDS: i64 = 15;
/// Pace at which the lease is kept.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// Pace at which it is looked whether the keys are still ours: a status that others spoiled lives no longer than one of a dead agent.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long a shutdown may take.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Largest value that is published, bytes: a store takes 1.5 MiB, and one that it never takes would hold up all others.
const LARGEST: usize = 1 << 20;

/// A store with leases. Keys are relative to the agent's prefix. Every call ends within its own deadline.
pub trait LeasedStore: Send + Sync + 'static {
    /// Makes a lease that ends when it is not kept for this many seconds.
    fn grant(&self, seconds: i64) -> StoreFuture<'_, i64>;
    /// Keeps a lease; false when there is no such lease any more.
    fn keep_alive(&self, lease: i64) -> StoreFuture<'_, bool>;
    /// Stores values that end with the lease; false, and nothing is stored, when there is no such lease any more.
    fn publish(&self, lease: i64, values: Vec<(String, Vec<u8>)>) -> StoreFuture<'_, bool>;
    /// Removes keys, whether they are there or not.
    fn remove(&self, keys: Vec<String>) -> StoreFuture<'_, ()>;
    /// The keys that end with a lease: those that were published with it and that nobody removed or overwrote since.
    fn attached(&self, lease: i64) -> StoreFuture<'_, Vec<String>>;
    /// The keys below a prefix.
    fn keys(&self, prefix: &str) -> StoreFuture<'_, Vec<String>>;
    /// Ends a lease and removes all its keys.
    fn revoke(&self, lease: i64) -> StoreFuture<'_, ()>;
}

/// Says of a key whether somebody answers for it.
type Live = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// What the task and its handle share.
#[derive(Default)]
struct Shared {
    outbox: Mutex<Outbox>,
    /// Prefixes whose keys are to be looked through, once.
    stale: Mutex<Vec<(String, Live)>>,
    wake: Notify,
}

impl Shared {
    fn outbox(&self) -> std::sync::MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stale(&self) -> std::sync::MutexGuard<'_, Vec<(String, Live)>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to publish; calls return at once.
pub struct StatusHandle {
    shared: Arc<Shared>,
    problem: watch::Receiver<Option<String>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Starts to publish into a store, in a task of the current runtime.
#[must_use]
pub fn spawn(store: Arc<dyn LeasedStore>) -> StatusHandle {
    let shared = Arc::<Shared>::default();
    let stop = CancellationToken::new();
    let (sender, problem) = watch::channel(None);
    let task = tokio::spawn(Task::new(store, Arc::clone(&shared), sender).run(stop.clone()));
    StatusHandle { shared, problem, stop, task }
}

impl StatusHandle {
    /// Publishes a value under a relative key, or removes the key. The latest value wins; an equal one is not written again. A value
    /// over 1 MiB is logged and not published.
    pub fn set(&self, key: &str, value: Option<Vec<u8>>) {
        if let Some(bytes) = value.as_ref().map(Vec::len).filter(|bytes| *bytes > LARGEST) {
            warn!(key, bytes, "the status is too large to be published");
            return;
        }
        if self.shared.outbox().set(key, value) {
            self.shared.wake.notify_one();
        }
    }

    /// Removes the keys below a relative prefix that an earlier life left: those that `live` does not know and that were not set by
    /// now. Done as soon as the store can be read; `live` is asked then.
    pub fn remove_stale(&self, prefix: &str, live: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.shared.stale().push((prefix.to_owned(), Box::new(live)));
        self.shared.wake.notify_one();
    }

    /// Why publishing fails at present, in one sentence; `None` while it works.
    #[must_use]
    pub fn problem(&self) -> watch::Receiver<Option<String>> {
        self.problem.clone()
    }

    /// Ends the lease, and all published keys with it. Takes at most 2 s; without the store, the lease ends by itself.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(SHUTDOWN_LIMIT, self.task).await.is_err() {
            abort.abort();
        }
    }
}
