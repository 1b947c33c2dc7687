//! Namespaces as the rest sees them: slots that are asked for, and events that tell what each slot leads to.
//!
//! The configurator asks for slots; a tracker of its own resolves and watches them and answers on the channel. A bound slot comes with a
//! handle: the namespace's identity and a way to open it again. Nothing here keeps a descriptor inside a namespace open: that would keep
//! it alive, with our links answering in it, after its owner is gone.

mod bindings;
mod create;
pub mod docker;
mod place;
mod process;
mod resolve;
mod search;
mod sys;
pub mod tracker;
mod worker;

pub use process::boot_id;
pub use resolve::own_netns;
pub use search::Remembered;
pub use tracker::{StartError, Tracker, TrackerOptions};

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::model::{NetnsId, NetnsSlot, Reason, Timestamp};

/// A way to open a namespace again. It never blocks, and fails when the thing behind it is no longer the namespace it was made for as far
/// as that can be told from outside; who opens compares the cookie.
pub trait OpenNetns: Send + Sync {
    /// Opens the namespace's file.
    ///
    /// # Errors
    /// What the system says; `ENOENT` or `ESRCH` when the owner is gone.
    fn open(&self) -> io::Result<OwnedFd>;
}

/// A namespace that is known: who it is and how to get there.
#[derive(Clone)]
pub struct NetnsHandle {
    /// Its identity.
    pub id: NetnsId,
    /// Its inode, for people.
    pub inode: u64,
    /// Whether it is the agent's own.
    pub own: bool,
    /// How to open it.
    pub opener: Arc<dyn OpenNetns>,
}

impl fmt::Debug for NetnsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetnsHandle").field("id", &self.id).field("inode", &self.inode).field("own", &self.own).finish()
    }
}

/// A container that runs and holds a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was started, by the runtime's clock.
    pub started: Option<Timestamp>,
    /// Ids and names of others that run with the same label.
    pub others: Vec<(String, String)>,
}

/// What a tracker tells.
#[derive(Clone, Debug)]
pub enum NetnsEvent {
    /// The slot leads to this namespace now (also when it led to another one before).
    Bound {
        /// The slot.
        slot: NetnsSlot,
        /// Where it leads.
        netns: NetnsHandle,
        /// The agent has just created the (named) namespace.
        created: bool,
        /// The container that it belongs to, where a label was asked for.
        container: Option<Arc<Container>>,
    },
    /// The slot leads nowhere; it is watched and may be bound later.
    Unbound {
        /// The slot.
        slot: NetnsSlot,
        /// NAMESPACE_MISSING, MICROSERVICE_MISSING or DUPLICATE_LABEL.
        reason: Reason,
        /// What is missing, in one sentence.
        message: String,
    },
    /// It cannot be told where the slot leads, and could not since the agent's start: what an earlier run made there may be right, and stays.
    Unknown {
        /// The slot.
        slot: NetnsSlot,
        /// MICROSERVICE_MISSING.
        reason: Reason,
        /// Who cannot be asked, in one sentence.
        message: String,
    },
    /// What stands there can never be used: the wish is invalid as long as this stands there. It is watched all the same.
    Refused {
        /// The slot.
        slot: NetnsSlot,
        /// BAD_NAMESPACE or OWN_NAMESPACE.
        reason: Reason,
        /// What stands there, in one sentence.
        message: String,
    },
    /// A namespace that exists on this host and may hold links of ours from an earlier run, though no slot asked for it.
    Found {
        /// The namespace.
        netns: NetnsHandle,
        /// How people call it.
        reference: String,
    },
    /// Every namespace that may hold links of ours has been reported. Sent once, after the start.
    SearchDone,
}

impl NetnsEvent {
    /// The slot that it is about.
    #[must_use]
    pub fn slot(&self) -> Option<&NetnsSlot> {
        match self {
            Self::Bound { slot, .. } | Self::Unbound { slot, .. } | Self::Unknown { slot, .. } | Self::Refused { slot, .. } => Some(slot),
            Self::Found { .. } | Self::SearchDone => None,
        }
    }
}

/// What the configurator asks of a tracker. Calls return at once; answers come as [`NetnsEvent`]s.
pub trait NetnsTracker: Send + Sync {
    /// Resolves the slot and keeps watching it. Every call is answered by one event at least. With `create`, a missing *named* namespace is made
    /// (once; if it disappears later it is waited for).
    fn watch(&self, slot: &NetnsSlot, create: bool);
    /// Nobody needs the slot any more.
    fn unwatch(&self, slot: &NetnsSlot);
    /// Looks at everything that is watched, now.
    fn recheck(&self);
    /// Forgets the bindings of processes for all slots but these. Called once the first listing tells which keys there are.
    fn retain(&self, slots: &[NetnsSlot]);
}

/// Takes the events of a tracker. Implemented by the configurator's inbox.
pub trait NetnsSink: Send + Sync + 'static {
    /// Hands over one event; never waits.
    fn netns_event(&self, event: NetnsEvent);
}
