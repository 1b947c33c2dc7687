//! The one task that writes: one call at a time, retried with back-off for as long as it takes.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{KEEP_EVERY, LEASE_SECONDS, LOOK_EVERY, LeasedStore, Shared};
use crate::backoff::Backoff;
use crate::store::StoreError;

/// Keys per transaction; etcd takes 128.
const BATCH: usize = 100;

/// A lease that was alive at this moment.
#[derive(Clone, Copy)]
struct Lease {
    id: i64,
    kept: Instant,
    /// When it was last looked which keys it has.
    looked: Instant,
}

pub(super) struct Task {
    store: Arc<dyn LeasedStore>,
    shared: Arc<Shared>,
    problem: watch::Sender<Option<String>>,
    lease: Option<Lease>,
    backoff: Backoff,
}

impl Task {
    pub(super) fn new(store: Arc<dyn LeasedStore>, shared: Arc<Shared>, problem: watch::Sender<Option<String>>) -> Self {
        Self { store, shared, problem, lease: None, backoff: Backoff::new() }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.publish_for_ever() => {}
        }
        if let Some(lease) = self.lease
            && let Err(error) = self.store.revoke(lease.id).await
        {
            warn!(%error, "the published statuses remain until their lease ends");
        }
    }

    async fn publish_for_ever(&mut self) {
        loop {
            match self.step().await {
                Ok(true) => self.works(),
                Ok(false) => {
                    self.works();
                    self.rest().await;
                }
                Err(error) => {
                    self.fails(&error);
                    tokio::time::sleep(self.backoff.wait()).await;
                }
            }
        }
    }

    /// Waits for something to write or for the lease to need care.
    async fn rest(&self) {
        let care = self.lease.filter(|_| self.shared.outbox().has_values()).map(|lease| lease.kept + KEEP_EVERY);
        match care {
            Some(due) => {
                tokio::select! {
                    () = self.shared.wake.notified() => {}
                    () = tokio::time::sleep_until(due.into()) => {}
                }
            }
            None => self.shared.wake.notified().await,
        }
    }

    /// Does one thing; false when there is nothing to do.
    async fn step(&mut self) -> Result<bool, StoreError> {
        self.find_strangers().await?;
        // Removals go alone and first: they need no lease, and a store without space still takes them.
        let removals = self.shared.outbox().removals(BATCH);
        if !removals.is_empty() {
            self.store.remove(removals.clone()).await?;
            self.shared.outbox().removed(&removals);
            return Ok(true);
        }
        if !self.shared.outbox().has_values() {
            return Ok(false);
        }
        let Some(lease) = self.living_lease().await? else { return Ok(true) };
        let values = self.shared.outbox().values(BATCH);
        if values.is_empty() {
            return Ok(self.look(lease).await);
        }
        if self.store.publish(lease, values.clone()).await? {
            self.shared.outbox().published(&values);
        } else {
            self.lease_is_gone();
        }
        Ok(true)
    }

    /// The lease, granted or kept as need be; none when it turned out to be gone.
    async fn living_lease(&mut self) -> Result<Option<i64>, StoreError> {
        // Before the question: the store counts from when it heard it.
        let now = Instant::now();
        match self.lease {
            None => {
                let id = self.store.grant(LEASE_SECONDS).await?;
                self.lease = Some(Lease { id, kept: now, looked: now });
                Ok(Some(id))
            }
            Some(lease) if lease.kept + KEEP_EVERY > now => Ok(Some(lease.id)),
            Some(lease) if self.store.keep_alive(lease.id).await? => {
                self.lease = Some(Lease { kept: now, ..lease });
                Ok(Some(lease.id))
            }
            Some(_) => {
                self.lease_is_gone();
                Ok(None)
            }
        }
    }

    /// Looks from time to time whether others have removed or overwritten what is published; true when something is to be written again.
    async fn look(&mut self, id: i64) -> bool {
        let now = Instant::now();
        let Some(lease) = self.lease.as_mut().filter(|lease| lease.looked + LOOK_EVERY <= now) else { return false };
        lease.looked = now;
        // A look that fails holds up nothing: there is another one soon, and a store that is away is noticed by the care of the lease.
        let Ok(keys) = self.store.attached(id).await else { return false };
        let spoiled = self.shared.outbox().still_there(&keys.into_iter().collect());
        if spoiled > 0 {
            warn!(keys = spoiled, "others have removed or overwritten published statuses; publishing these again");
        }
        spoiled > 0
    }

    fn lease_is_gone(&mut self) {
        info!("the lease of the statuses has ended; publishing all of them again");
        self.lease = None;
        self.shared.outbox().everything_is_due();
    }

    async fn find_strangers(&mut self) -> Result<(), StoreError> {
        let Some((prefix, live)) = self.shared.stale().pop() else { return Ok(()) };
        match self.store.keys(&prefix).await {
            Ok(keys) => {
                // Whoever answers may hold locks of its own, so ours is taken only afterwards.
                let strangers: Vec<String> = keys.into_iter().filter(|key| !live(key)).collect();
                let mut outbox = self.shared.outbox();
                strangers.iter().for_each(|key| outbox.remove_stranger(key));
                Ok(())
            }
            Err(error) => {
                self.shared.stale().push((prefix, live));
                Err(error)
            }
        }
    }

    fn works(&mut self) {
        self.backoff.reset();
        if self.problem.send_replace(None).is_some() {
            info!("publishing statuses works again");
        }
    }

    fn fails(&mut self, error: &StoreError) {
        let before = self.problem.send_replace(Some(error.to_string()));
        if before.is_none() {
            warn!(%error, "statuses cannot be published; trying again");
        }
    }
}
