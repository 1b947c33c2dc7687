//! A store on the local disk with the contract of etcd, for hosts without one.
//!
//! One process uses it at a time. A write is acknowledged when it is on the disk, and comes back through the source only then.

mod file;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::health::Reporter;
use super::{ConfigStore, StoreError, StoreEvent, StoreFuture, StoreHealth, StoreIdentity, StoreSink, Versioned, WATCHED_PREFIXES, Write};
use crate::backoff::Backoff;
use file::{Change, StoreFile};

/// Writes that the source may lag behind before it lists again instead.
const BACKLOG: usize = 256;
/// Events of a listing that are handed over at a time.
const PAGE: usize = 500;
/// Pace at which the source makes sure that the disk answers.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The store of one state directory.
#[derive(Clone)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

struct Inner {
    file: Mutex<StoreFile>,
    /// Committed writes, in order.
    feed: broadcast::Sender<Arc<Change>>,
}

impl EmbeddedStore {
    /// Opens, or creates, `<state_dir>/store.redb`. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when another process uses it or the file is no store; [`StoreError::Unreachable`] when the disk fails.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let file = Mutex::new(StoreFile::open(state_dir)?);
        Ok(Self { inner: Arc::new(Inner { file, feed: broadcast::channel(BACKLOG).0 }) })
    }

    /// Reads wishes until `shutdown`. `resync` makes it list everything again. Start `health` with
    /// [`StoreHealth::starting`]`("embedded")`.
    pub async fn run_source(
        self: Arc<Self>,
        sink: Arc<dyn StoreSink>,
        health: watch::Sender<StoreHealth>,
        resync: Arc<Notify>,
        shutdown: CancellationToken,
    ) {
        let health = Reporter(health);
        let mut backoff = Backoff::new();
        loop {
            let ended = tokio::select! {
                () = shutdown.cancelled() => return,
                ended = self.read(&*sink, &health, &resync, &mut backoff) => ended,
            };
            if let Err(error) = ended {
                if health.down(error.to_string()) {
                    warn!(%error, "the store is not readable; going on with what is known");
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(backoff.wait()) => {}
                }
            }
        }
    }

    /// Lists and follows until the listing must be repeated (`Ok`) or the disk fails (`Err`).
    async fn read(&self, sink: &dyn StoreSink, health: &Reporter, resync: &Notify, backoff: &mut Backoff) -> Result<(), StoreError> {
        // Before the listing, so that no write falls between the two.
        let mut feed = self.inner.feed.subscribe();
        let (identity, listing) = self.blocking(StoreFile::wishes).await?;
        sink.deliver(vec![StoreEvent::Init]).await;
        let mut listing = listing.into_iter().map(|(key, value)| StoreEvent::InitApply(key, value)).peekable();
        while listing.peek().is_some() {
            sink.deliver(listing.by_ref().take(PAGE).collect()).await;
        }
        sink.deliver(vec![StoreEvent::InitDone(identity)]).await;
        health.read_up_to(identity.revision);
        if health.live("reading the local store".to_owned()) {
            info!(revision = identity.revision, "reading wishes from the local store");
        }
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                change = feed.recv() => match change {
                    Ok(change) if change.revision <= identity.revision => {}
                    Ok(change) => {
                        let events: Vec<StoreEvent> = change.events.iter().filter(|event| watched(event)).cloned().collect();
                        if !events.is_empty() {
                            sink.deliver(events).await;
                        }
                        health.read_up_to(change.revision);
                    }
                    // Too far behind: the listing says it in fewer words.
                    Err(_) => return Ok(()),
                },
                _ = look.tick() => {
                    self.blocking(StoreFile::identity).await?;
                    health.heard();
                    backoff.reset();
                }
                () = resync.notified() => return Ok(()),
            }
        }
    }

    /// Works on the file where blocking is allowed. It is completed also when nobody waits for it any more.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StoreFile) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.with_inner(move |inner| work(&mut inner.file.lock().unwrap_or_else(PoisonError::into_inner))).await
    }

    async fn with_inner<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .unwrap_or_else(|lost| Err(StoreError::Unreachable { attempted: "use the local store".to_owned(), cause: lost.to_string() }))
    }
}

impl ConfigStore for EmbeddedStore {
    fn write(&self, writes: Vec<Write>) -> StoreFuture<'_, i64> {
        Box::pin(self.with_inner(move |inner| {
            // The lock is held until the change is in the feed: changes are told in the order of their revisions.
            let mut file = inner.file.lock().unwrap_or_else(PoisonError::into_inner);
            let change = file.write(writes)?;
            let revision = change.revision;
            if change.events.is_empty() {
                return Ok(0);
            }
            // Nobody listens: fine, the next listing tells it.
            let _ = inner.feed.send(Arc::new(change));
            Ok(revision)
        }))
    }

    fn get(&self, key: &str) -> StoreFuture<'_, Option<Versioned>> {
        let key = key.to_owned();
        Box::pin(self.blocking(move |file| file.get(&key)))
    }

    fn list(&self, prefix: &str) -> StoreFuture<'_, Vec<(String, Versioned)>> {
        let prefix = prefix.to_owned();
        Box::pin(self.blocking(move |file| file.list(&prefix)))
    }
}

fn watched(event: &StoreEvent) -> bool {
    match event {
        StoreEvent::Apply(key, _) | StoreEvent::Delete(key, _) => WATCHED_PREFIXES.iter().any(|prefix| key.starts_with(prefix)),
        StoreEvent::Init | StoreEvent::InitApply(..) | StoreEvent::InitDone(_) => true,
    }
}

/// The identity and everything below the watched prefixes.
type Wishes = (StoreIdentity, Vec<(String, Versioned)>);
