//! Where references lead at the moment: the namespaces that wishes ask for.
//!
//! Pure bookkeeping of what the trackers told. A slot that was asked for and not answered yet is *resolving*: nothing is said about its wishes
//! until the answer is there, so that a status never shows a state that lasts a millisecond.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::{HostIfName, NetnsId, NetnsSlot, Reason, Timestamp};
use crate::namespace::{Container, NetnsEvent, NetnsHandle};

/// Where a slot leads.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// Asked for, not answered.
    Resolving,
    /// To this namespace.
    Bound {
        /// The namespace.
        netns: NetnsHandle,
        /// We made it ourselves, since it was missing.
        created: bool,
        /// The container that it belongs to, where a label was asked for.
        container: Option<Arc<Container>>,
    },
    /// Nowhere at the moment.
    Missing(Reason, String),
    /// That cannot be told; see [`NetnsEvent::Unknown`].
    Unknown(Reason, String),
    /// To something that can never be used.
    Refused(Reason, String),
}

/// One slot.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where it leads.
    pub resolution: Resolution,
    /// Since when.
    pub since: Timestamp,
    /// How often one namespace took the place of another.
    pub replaced: u64,
    /// The namespace that it led to last.
    last: Option<NetnsId>,
}

/// All slots that are asked for.
#[derive(Debug, Default)]
pub struct Places {
    slots: HashMap<NetnsSlot, Place>,
    by_id: HashMap<NetnsId, BTreeSet<NetnsSlot>>,
}

/// What an event changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The slot's wishes must be looked at again.
    pub changed: bool,
    /// A namespace that a slot leads to now and none led to before.
    pub entered: Option<NetnsId>,
    /// A namespace that no slot leads to any more.
    pub left: Option<NetnsId>,
}

impl Places {
    /// Begins to need a slot; true when it was not known.
    pub fn ask(&mut self, slot: &NetnsSlot, now: Timestamp) -> bool {
        if self.slots.contains_key(slot) {
            return false;
        }
        self.slots.insert(slot.clone(), Place { resolution: Resolution::Resolving, since: now, replaced: 0, last: None });
        true
    }

    /// Stops needing a slot; returns the namespace that no slot leads to any more.
    pub fn drop_slot(&mut self, slot: &NetnsSlot) -> Option<NetnsId> {
        let place = self.slots.remove(slot)?;
        let Resolution::Bound { netns, .. } = place.resolution else { return None };
        self.unlink(slot, netns.id)
    }

    fn unlink(&mut self, slot: &NetnsSlot, id: NetnsId) -> Option<NetnsId> {
        let slots = self.by_id.get_mut(&id)?;
        slots.remove(slot);
        if !slots.is_empty() {
            return None;
        }
        self.by_id.remove(&id);
        Some(id)
    }

    /// Takes a tracker's word on a slot. Events of slots that nobody needs are ignored.
    pub fn resolve(&mut self, event: &NetnsEvent, now: Timestamp) -> Moved {
        let (slot, resolution) = match event {
            NetnsEvent::Bound { slot, netns, created, container } => {
                (slot, Resolution::Bound { netns: netns.clone(), created: *created, container: container.clone() })
            }
            NetnsEvent::Unbound { slot, reason, message } => (slot, Resolution::Missing(*reason, message.clone())),
            NetnsEvent::Unknown { slot, reason, message } => (slot, Resolution::Unknown(*reason, message.clone())),
            NetnsEvent::Refused { slot, reason, message } => (slot, Resolution::Refused(*reason, message.clone())),
            NetnsEvent::Found { .. } | NetnsEvent::SearchDone => return Moved::default(),
        };
        let Some(place) = self.slots.get_mut(slot) else { return Moved::default() };
        if same(&place.resolution, &resolution) {
            return Moved::default();
        }
        let old = bound_id(&place.resolution);
        let new = bound_id(&resolution);
        if let (Some(new), Some(last)) = (new, place.last)
            && new != last
        {
            place.replaced += 1;
        }
        place.last = new.or(place.last);
        place.resolution = resolution;
        // Another container with the same label does not make the namespace another one.
        if new.is_none() || new != old {
            place.since = now;
        }
        let slot = slot.clone();
        let mut moved = Moved { changed: true, ..Moved::default() };
        if old != new {
            moved.left = old.and_then(|id| self.unlink(&slot, id));
            if let Some(id) = new {
                let slots = self.by_id.entry(id).or_default();
                moved.entered = slots.is_empty().then_some(id);
                slots.insert(slot);
            }
        }
        moved
    }

    /// One slot.
    #[must_use]
    pub fn get(&self, slot: &NetnsSlot) -> Option<&Place> {
        self.slots.get(slot)
    }

    /// The namespace that a slot leads to.
    #[must_use]
    pub fn bound(&self, slot: &NetnsSlot) -> Option<&NetnsHandle> {
        match self.slots.get(slot).map(|place| &place.resolution) {
            Some(Resolution::Bound { netns, .. }) => Some(netns),
            _ => None,
        }
    }

    /// All slots.
    pub fn iter(&self) -> impl Iterator<Item = (&NetnsSlot, &Place)> {
        self.slots.iter()
    }

    /// The slots that lead to a namespace.
    pub fn leading_to(&self, id: NetnsId) -> impl Iterator<Item = &NetnsSlot> {
        self.by_id.get(&id).into_iter().flatten()
    }

    /// Whether any slot leads to this namespace.
    #[must_use]
    pub fn in_use(&self, id: NetnsId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Whether a question is open.
    #[must_use]
    pub fn resolving(&self) -> bool {
        self.slots.values().any(|place| matches!(place.resolution, Resolution::Resolving))
    }

    /// Keys of all wishes for a link name in a namespace, through whatever slots they refer to it.
    pub fn claims<'a>(
        &'a self,
        desired: &'a super::desired::Desired,
        id: NetnsId,
        name: &'a HostIfName,
    ) -> impl Iterator<Item = &'a super::desired::Key> {
        self.leading_to(id).flat_map(move |slot| desired.claims(slot, name))
    }
}

fn bound_id(resolution: &Resolution) -> Option<NetnsId> {
    match resolution {
        Resolution::Bound { netns, .. } => Some(netns.id),
        Resolution::Resolving | Resolution::Missing(..) | Resolution::Unknown(..) | Resolution::Refused(..) => None,
    }
}

fn same(a: &Resolution, b: &Resolution) -> bool {
    match (a, b) {
        (Resolution::Bound { netns: a, container: in_a, .. }, Resolution::Bound { netns: b, container: in_b, .. }) => {
            a.id == b.id && in_a == in_b
        }
        (Resolution::Missing(r, m), Resolution::Missing(s, n))
        | (Resolution::Unknown(r, m), Resolution::Unknown(s, n))
        | (Resolution::Refused(r, m), Resolution::Refused(s, n)) => r == s && m == n,
        _ => false,
    }
}
