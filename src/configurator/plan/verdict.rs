//! What the wishes alone decide, before the kernel is looked at: peers, namespaces, names that two wishes want.

use super::{Planner, Verdict, Waiting, World};
use crate::configurator::desired::{Key, Wish};
use crate::configurator::places::Resolution;
use crate::model::{
    FieldError, HostIfName, InterfaceKind, InterfaceSpec, LinkKind, MacAddr, NetnsId, NewLink, ObservedLink, Reason, TapSpec, TunInfo,
};

/// A link that may be made, an end of a pair or a TAP: the wish and where it leads.
#[derive(Clone, Copy)]
pub(super) struct Ready<'a> {
    pub wish: &'a Wish,
    pub spec: &'a InterfaceSpec,
    pub netns: NetnsId,
}

impl Ready<'_> {
    /// The link as it is to be made.
    pub(super) fn new_link(&self) -> NewLink {
        NewLink { netns: self.netns, name: self.spec.host_if_name.clone(), mac: self.spec.mac, mtu: self.spec.mtu }
    }

    /// The hardware address that this link is to get. One that someone else made may be a TUN, which has none; that is warned of.
    pub(super) fn new_mac(&self, link: &ObservedLink) -> Option<MacAddr> {
        let bare = matches!(link.kind, LinkKind::Tun(TunInfo { tap: false, .. }));
        self.spec.mac.filter(|mac| !bare && link.mac != Some(*mac))
    }
}

/// What the wishes say of one key.
pub(super) enum Standing<'a> {
    /// Nothing can be done; this is to be said.
    Said(Verdict),
    /// Both ends are wished and have a place.
    Pair(Ready<'a>, Ready<'a>),
    /// A TAP is wished and has a place.
    Tap(Ready<'a>, &'a TapSpec),
    /// A TAP that appears under this name is wished and has a place.
    AutoTap(Ready<'a>, &'a HostIfName),
    /// This end is fine; the other one's key is invalid, so what stands is held as it is.
    HeldByPeer(Ready<'a>, &'a Key),
}

impl<'a> Planner<'a> {
    /// Judges one wish by the wishes alone.
    pub(super) fn standing(&self, wish: &'a Wish) -> Standing<'a> {
        let world = self.world;
        let spec = match &wish.spec {
            Ok(spec) => spec,
            Err(errors) => return Standing::Said(Verdict::Invalid(errors.to_vec())),
        };
        let own = match place(world, wish) {
            Ok(netns) => Ready { wish, spec, netns },
            Err(verdict) => return Standing::Said(verdict),
        };
        let peer = match &spec.kind {
            InterfaceKind::Veth { peer } => peer,
            InterfaceKind::Tap(tap) => return Standing::Tap(own, tap),
            InterfaceKind::AutoTap { temporary } => return Standing::AutoTap(own, temporary),
        };
        let Some(other) = world.desired.get(peer.as_str()) else {
            let message = format!("waits for its other end: no key for `{}` is there", peer.as_str().escape_debug());
            return Standing::Said(pending(Reason::PeerMissing, message, peer.as_str()));
        };
        let Ok(other_spec) = &other.spec else { return Standing::HeldByPeer(own, &other.key) };
        match other_spec.peer() {
            Some(back) if *back == spec.name => {}
            Some(back) => {
                let message = format!("its other end `{peer}` names `{back}` as its peer, not `{}`", spec.name);
                return Standing::Said(pending(Reason::PeerMismatch, message, peer.as_str()));
            }
            None => {
                let message = format!("its other end `{peer}` is of type {}, not a veth", other_spec.kind.word());
                return Standing::Said(pending(Reason::PeerMismatch, message, peer.as_str()));
            }
        }
        match place(world, other) {
            Ok(netns) => Standing::Pair(own, Ready { wish: other, spec: other_spec, netns }),
            Err(Verdict::Invalid(_)) => Standing::HeldByPeer(own, &other.key),
            Err(Verdict::Pending(waiting)) => {
                let message = format!("its other end `{peer}` waits: {}", waiting.message);
                Standing::Said(Verdict::Pending(Waiting { message, ..waiting }))
            }
            Err(verdict) => Standing::Said(verdict),
        }
    }

    /// Who may have the name that this end wants; `Err` says who has it.
    pub(super) fn name_is_its(&self, end: Ready<'a>, other: Ready<'a>) -> Result<(), Verdict> {
        one_name_each(end, other)?;
        let name = &end.spec.host_if_name;
        if let Some(message) = self.name_is_reserved(end) {
            return Err(Verdict::Failed(Reason::NameConflict, message));
        }
        let has =
            self.world.observed.at(end.netns, name.as_str()).and_then(|(_, seen)| seen.logical()).map(|(_, logical)| logical.as_str());
        let claimants = self.world.places.claims(self.world.desired, end.netns, name);
        let claimants = claimants.filter_map(|key| self.world.desired.get(key));
        // Who has the link keeps it; else the older key has the older right.
        let holder = claimants.min_by_key(|wish| (has != Some(&*wish.key), wish.create_revision, wish.key.clone()));
        match holder {
            Some(holder) if holder.key != end.wish.key => {
                let message =
                    format!("the name `{name}` in {} belongs to `{}`; it passes on when that key goes", end.spec.netns, holder.key);
                Err(Verdict::Failed(Reason::NameConflict, message))
            }
            _ => Ok(()),
        }
    }
}

/// The two ends of one pair must not want one name in one namespace.
pub(super) fn one_name_each(end: Ready<'_>, other: Ready<'_>) -> Result<(), Verdict> {
    let name = &end.spec.host_if_name;
    if end.wish.key == other.wish.key || end.netns != other.netns || *name != other.spec.host_if_name {
        return Ok(());
    }
    let message = format!("both ends of the pair, `{}` and `{}`, want the name `{name}` in one namespace", end.wish.key, other.wish.key);
    Err(Verdict::Failed(Reason::NameConflict, message))
}

/// Where a wish's reference leads.
fn place(world: World<'_>, wish: &Wish) -> Result<NetnsId, Verdict> {
    let Some(slot) = wish.slot() else { return Err(Verdict::Resolving) };
    match world.places.get(&slot).map(|place| &place.resolution) {
        None | Some(Resolution::Resolving) => Err(Verdict::Resolving),
        // A namespace that has not been read yet is as good as not resolved.
        Some(Resolution::Bound { netns, .. }) if world.observed.knows(netns.id) => Ok(netns.id),
        Some(Resolution::Bound { .. }) => Err(Verdict::Resolving),
        Some(Resolution::Missing(reason @ Reason::DuplicateLabel, message)) => Err(Verdict::Failed(*reason, message.clone())),
        Some(Resolution::Missing(reason, message)) => Err(pending(*reason, message.clone(), &slot.reference.to_string())),
        Some(Resolution::Unknown(reason, message)) => {
            let waits_for = vec![slot.reference.to_string()];
            Err(Verdict::Pending(Waiting { reason: Some(*reason), message: message.clone(), waits_for, keep: true }))
        }
        Some(Resolution::Refused(reason, message)) => {
            // The message begins with the reference, and so does an error with its field and value: once is enough.
            let rule = message.strip_prefix(&format!("{} ", slot.reference)).unwrap_or(message).to_owned();
            let (field, value) = ("namespace".to_owned(), slot.reference.reference());
            Err(Verdict::Invalid(vec![FieldError { reason: *reason, field, value, rule, hint: String::new() }]))
        }
    }
}

fn pending(reason: Reason, message: String, waits_for: &str) -> Verdict {
    Verdict::Pending(Waiting { reason: Some(reason), message, waits_for: vec![waits_for.to_owned()], keep: false })
}
