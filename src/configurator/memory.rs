//! What must survive a restart of the agent besides the kernel's and the store's own truth.

use crate::configurator::published::Hold;
use crate::model::NetnsId;

/// The store as it was known last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownStore {
    /// Its cluster id.
    pub cluster: u64,
    /// The highest revision that was worked on.
    pub revision: i64,
    /// Why removals are held back; another store's revision soon passes the old one's, so this must be remembered by itself.
    pub hold: Option<String>,
}

/// A namespace that wishes have led to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsedNetns {
    /// Its identity; worth something within one boot only.
    pub id: NetnsId,
    /// How it was referred to.
    pub reference: crate::model::NetnsRef,
}

/// Keeps what must be remembered. A failure to write is reported by the implementation and costs caution, never correctness.
pub trait Memory: Send {
    /// The store that was known last.
    fn known_store(&self) -> Option<KnownStore>;
    /// Remembers the store.
    fn remember_store(&mut self, store: &KnownStore);
    /// Remembers the namespaces in use.
    fn remember_netns(&mut self, used: &[UsedNetns]);
    /// Whether no run before this one ever applied a listing.
    fn first_start(&self) -> bool;
    /// A listing has been applied.
    fn listing_applied(&mut self);
}

/// The hold as the configurator keeps it.
pub(super) type HoldState = Option<Hold>;
