//! Where wishes come from and statuses go: etcd, or an embedded store with the same contract.
//!
//! A source tells its whole truth as five events. Between `Init` and `InitDone` it lists everything; keys that do not appear were
//! deleted meanwhile. `Apply` and `Delete` follow in the order of revisions. A source may begin again with `Init` at any time: after a
//! lost connection, a compaction, or because it doubts itself. It never says that something is gone when it only could not look.

use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use crate::model::Timestamp;
use crate::model::key::{INTERFACE_CONFIG_PREFIX, NODE_CONFIG_PREFIX, VPP_INTERFACE_CONFIG_PREFIX, VPP_INTERFACE_STATUS_PREFIX};

pub mod embedded;
pub mod etcd;
mod health;
pub mod status_writer;

/// The prefixes below the agent's prefix that a source reads: wishes, and what VPP is told and tells of its TAPs. Our own statuses lie outside of them,
/// so that our own writes never wake us.
pub const WATCHED_PREFIXES: &[&str] =
    &[INTERFACE_CONFIG_PREFIX, NODE_CONFIG_PREFIX, VPP_INTERFACE_CONFIG_PREFIX, VPP_INTERFACE_STATUS_PREFIX];

/// A value with its history, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes that the user wrote.
    pub value: Vec<u8>,
    /// Revision at which the key came into being; another one means another object.
    pub create_revision: i64,
    /// Revision of the last write.
    pub mod_revision: i64,
}

/// Which history a listing belongs to. Another id or a revision that went back means: not the store that we knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// etcd's cluster id, or the embedded store's own.
    pub cluster: u64,
    /// Revision of the listing.
    pub revision: i64,
}

/// One event of a source. Keys are relative to the agent's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A listing begins.
    Init,
    /// A key of the listing.
    InitApply(String, Versioned),
    /// The listing is complete.
    InitDone(StoreIdentity),
    /// A key was written.
    Apply(String, Versioned),
    /// A key was deleted at this revision (also: its lease ended).
    Delete(String, i64),
}

/// How a source stands, for readiness and the agent's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreHealth {
    /// Connected, listed, watching.
    pub live: bool,
    /// In one sentence: what it does or why it cannot.
    pub message: String,
    /// When the store last answered anything at all.
    pub last_heard: Option<Timestamp>,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Revision up to which it has read.
    pub revision: i64,
    /// `etcd` or `embedded`.
    pub kind: &'static str,
}

impl StoreHealth {
    /// Before the first answer of a store of this kind (`etcd` or `embedded`).
    #[must_use]
    pub fn starting(kind: &'static str) -> Self {
        let since = Timestamp::from(SystemTime::now());
        Self { live: false, message: "starting".to_owned(), last_heard: None, since, revision: 0, kind }
    }
}

/// Takes the events of a source. Implemented by the configurator's inbox.
pub trait StoreSink: Send + Sync + 'static {
    /// Hands over events that belong together (one revision, or a part of a listing), in order. Waits while the receiver is far behind.
    fn deliver(&self, events: Vec<StoreEvent>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Why a call to the store failed, in one sentence.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or did not answer in time.
    #[error("{attempted}: the store is not reachable: {cause}")]
    Unreachable {
        /// What was attempted.
        attempted: String,
        /// The cause in the store's words.
        cause: String,
    },
    /// The store answered no.
    #[error("{attempted}: {cause}")]
    Refused {
        /// What was attempted.
        attempted: String,
        /// The cause in the store's words.
        cause: String,
    },
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Store this value under this key.
    Put(String, Vec<u8>),
    /// Remove this key.
    Delete(String),
}

/// An answer of the store that is still to come.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Reads and writes for `ConfigService`: what is written comes back through the source, which is the only way in. Keys are relative to
/// the agent's prefix.
pub trait ConfigStore: Send + Sync + 'static {
    /// Performs all writes at one revision and returns it; nothing happens when one is refused. Deletes of absent keys alone change nothing:
    /// then it returns 0, a revision that no source will ever tell of.
    fn write(&self, writes: Vec<Write>) -> StoreFuture<'_, i64>;
    /// The value of a key.
    fn get(&self, key: &str) -> StoreFuture<'_, Option<Versioned>>;
    /// Keys and values below a prefix, sorted by key.
    fn list(&self, prefix: &str) -> StoreFuture<'_, Vec<(String, Versioned)>>;
}
