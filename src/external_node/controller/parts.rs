//! What the controller is made of, and what it asks of others.

use std::sync::Arc;

use super::diary::Diary;
use super::published::PublishedNodes;
use crate::external_node::attachment::Heard;
use crate::external_node::handover::Handover;
use crate::external_node::rollback::RollbackFile;
use crate::linux::nic::RouteWatch;
use crate::model::{InterfaceName, ReservedNames};

/// Starts the process that stands by.
pub trait Guardian: Send {
    /// Sees to it that one stands by for this attachment of a NIC: the first call comes before the journal speaks of it, and each one starts another
    /// process where that one has ended.
    ///
    /// # Errors
    /// A sentence; the NIC is not touched then.
    fn stand_by(&mut self, nic: &str, attachment: &str) -> Result<(), String>;

    /// Takes note of processes that have ended. Returns at once.
    fn reap(&mut self);
}

/// What the controller asks about the store.
pub trait StoreState: Send {
    /// When the store was last heard of.
    fn last_heard(&self) -> Heard;
    /// Whether what is missing in the store may be removed: it is known of so many listings, all that have come in, that they are no reason for HOLD.
    fn removals_allowed(&self, listings: u64) -> bool;
}

/// Keeps names from everybody else in this agent.
pub trait NameKeeper: Send {
    /// From its return on nobody takes one of these names in the agent's own namespace, nor begins to touch a link that bears one; others are free.
    fn reserve(&self, names: ReservedNames);
}

/// What the controller is made of.
pub struct NodeParts {
    /// Takes the steps.
    pub handover: Handover,
    /// Stands by.
    pub guardian: Box<dyn Guardian>,
    /// The store.
    pub store: Box<dyn StoreState>,
    /// Tells the inbox when routes of NICs that are attached are gone.
    pub routes: RouteWatch,
    /// The public face.
    pub published: Arc<PublishedNodes>,
    /// Remembers what was done.
    pub diary: Box<dyn Diary>,
    /// Keeps the names that the host hangs on.
    pub names: Box<dyn NameKeeper>,
    /// Our node's name.
    pub name: InterfaceName,
    /// Its Kubernetes namespace.
    pub namespace: InterfaceName,
    /// Keeps a request to give back.
    pub rollbacks: RollbackFile,
    /// The bridge, for statuses.
    pub bridge: String,
    /// Whether the configuration names another one, which is worked with as soon as no NIC stands behind this one.
    pub is_old_bridge: bool,
    /// Whether NICs may be taken from DHCP clients and network managers.
    pub allow_managed: bool,
}
