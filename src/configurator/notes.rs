//! What the kernel tells of links: what of it is taken as told, and what is a reason to look.
//!
//! A note may be older than the last look, so what it says is not merged: the link is looked at again. But a cold start alone brings thousands of notes
//! that nobody's wish depends on, and a look at each would cost as much as the work itself. So three sorts are taken as told: the carrier, what the kernel does with its own
//! link-locals, and that a link is gone which we have handed over for removal. Should such a note be an old one, then the one that
//! corrects it is on its way already; nothing is written to the kernel because of them.

use super::Configurator;
use crate::model::{InterfaceAddress, LinkId, ObservedAddress, ObservedLink};

/// What a note about a link says beside what is known of it.
enum News {
    Nothing,
    /// This, and nothing else than its carrier is different.
    Carrier(ObservedLink),
    Other,
}

impl Configurator {
    pub(super) fn take_link_note(&mut self, id: LinkId, told: ObservedLink) {
        let Some(seen) = self.observed.get(id) else {
            if self.observed.knows(id.netns) {
                self.todo.links.insert(id);
            }
            return;
        };
        match news(&seen.link, told) {
            News::Nothing => {}
            News::Carrier(link) => self.take_as_told(id, Some(link)),
            // Whatever becomes of it, the end is told.
            News::Other if self.observed.is_leaving(id) => {}
            // Addresses are told of on their own.
            News::Other => {
                self.todo.settings.insert(id);
            }
        }
    }

    pub(super) fn take_gone_note(&mut self, id: LinkId) {
        if self.observed.is_leaving(id) {
            self.take_as_told(id, None);
        } else if self.observed.get(id).is_some() {
            self.todo.settings.insert(id);
        }
    }

    /// An address is as told, or gone.
    pub(super) fn take_address_note(&mut self, id: LinkId, address: InterfaceAddress, told: Option<ObservedAddress>) {
        let Some(seen) = self.observed.get(id) else { return };
        // A reading leaves out the label that every IPv4 address has by itself, its link's name.
        let told = told.map(|told| ObservedAddress { label: told.label.filter(|label| *label != seen.link.name), ..told });
        let known = seen.link.addresses.iter().find(|have| have.address == address);
        if known == told.as_ref() {
            return;
        }
        if known.into_iter().chain(&told).all(|address| address.kernel_made) {
            let mut link = seen.link.clone();
            match (link.addresses.iter_mut().find(|have| have.address == address), told) {
                (Some(have), Some(told)) => *have = told,
                (None, Some(told)) => link.addresses.push(told),
                (_, None) => link.addresses.retain(|have| have.address != address),
            }
            self.take_as_told(id, Some(link));
        } else if !self.observed.is_leaving(id) {
            self.todo.links.insert(id);
        }
    }

    fn take_as_told(&mut self, id: LinkId, link: Option<ObservedLink>) {
        let changed = self.observed.take_link(id, link);
        self.touch_changed(changed);
    }
}

/// A note carries neither addresses nor the other end's identity: those are taken as known.
fn news(known: &ObservedLink, told: ObservedLink) -> News {
    let peer = match (known.peer, told.peer) {
        (Some(known), Some(told)) if known.ifindex == told.ifindex && known.nsid == told.nsid => Some(known),
        (_, told) => told,
    };
    let told = ObservedLink { addresses: known.addresses.clone(), peer, ..told };
    if told == *known {
        return News::Nothing;
    }
    let oper = known.oper;
    if (ObservedLink { oper, ..told.clone() }) == *known { News::Carrier(told) } else { News::Other }
}
