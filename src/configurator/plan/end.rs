//! One end of a pair, or one TAP, that stands: which of its settings differ from the wish, and the steps that correct them in place.

use std::collections::{HashMap, HashSet};

use super::verdict::{Ready, one_name_each};
use super::{Action, Planner, StepId, Target, Verdict, Waiting};
use crate::model::interface::MTU_MIN_IPV6;
use crate::model::owner::ADDRESS_PROTO;
use crate::model::{InterfaceAddress, InterfaceKind, LinkId, MarkKind, ObservedAddress, ObservedLink, Reason};
use crate::model::{LinkChange, NewAddress, RestoredAddress};

impl<'a> Planner<'a> {
    /// Plans what makes this link equal to the wish, and says how it stands. `other` is the other end, for conflicts of names between the two.
    pub(super) fn settle_end(&mut self, end: Ready<'a>, other: Ready<'a>, id: LinkId, adopted: bool) {
        let Some(seen) = self.world.observed.get(id) else { return };
        let link = &seen.link;
        let key = &end.wish.key;
        let (mut change, mut after, mut refused) = (self.changes(end, link), Vec::new(), None);
        if let Err(verdict) = one_name_each(end, other) {
            refused = Some(verdict);
        } else if *link.name != *end.spec.host_if_name.as_str() {
            match self.rename(end, other, id) {
                Ok(steps) => {
                    change.name = Some(end.spec.host_if_name.clone());
                    after = steps;
                }
                Err(verdict) => refused = Some(verdict),
            }
        }
        for what in describe(&change, link) {
            self.differs(key, what);
        }
        let before = self.plan.steps.len();
        let subject = self.subject(key, end.netns);
        // What is refused of a TAP that somebody else made may be done in part: it is ours before anything of it is changed.
        if let Some(alias) = change.alias.take_if(|_| adopted && matches!(end.spec.kind, InterfaceKind::AutoTap { .. })) {
            let mark = LinkChange { alias: Some(alias), ..LinkChange::default() };
            after.push(self.push(key, &subject, Action::SetLink(Target::Existing(id), mark), after.clone()));
        }
        if change != LinkChange::default() {
            let step = self.push(key, &subject, Action::SetLink(Target::Existing(id), change.clone()), after.clone());
            if change.name.is_some() {
                self.vacated.entry(id).or_insert(step);
            }
        }
        if end.spec.has_ipv6() && link.ipv6_disabled {
            self.differs(key, "IPv6 is switched off".to_owned());
            let name = change.name.as_ref().map_or(&*link.name, |name| name.as_str());
            self.push(key, &subject, Action::EnableIpv6(Target::Existing(id), name.into()), after.clone());
        }
        self.settle_addresses(end, id, &change, adopted, &after);
        let verdict = match refused {
            Some(verdict) => verdict,
            None if self.plan.steps.len() > before => Verdict::InWork(Some(id)),
            None => unfinished(end, link).or_else(|| self.wait_for_carrier(end, other, id)).unwrap_or(Verdict::Settled(id)),
        };
        self.say(key, verdict);
    }

    fn rename(&mut self, end: Ready<'a>, other: Ready<'a>, id: LinkId) -> Result<Vec<StepId>, Verdict> {
        self.name_is_its(end, other)?;
        self.free_name(end, id).map_err(super::names::Blocked::verdict)
    }

    fn changes(&self, end: Ready<'a>, link: &ObservedLink) -> LinkChange {
        let owner = self.world.owner;
        let alias = match &end.spec.kind {
            InterfaceKind::Veth { .. } => owner.alias(MarkKind::Veth, &end.spec.name),
            InterfaceKind::Tap(_) => owner.alias(MarkKind::Tap, &end.spec.name),
            InterfaceKind::AutoTap { temporary } => owner.auto_tap_alias(&end.spec.name, temporary),
        };
        // What someone else made keeps its group: only what we made is ever deleted.
        let made_by_us = !matches!(end.spec.kind, InterfaceKind::AutoTap { .. });
        LinkChange {
            name: None,
            mac: end.new_mac(link),
            mtu: (link.mtu != end.spec.mtu).then_some(end.spec.mtu),
            up: (link.admin_up != end.spec.enabled).then_some(end.spec.enabled),
            group: (made_by_us && link.group != owner.group()).then_some(owner.group()),
            alias: (link.alias.as_deref() != Some(&alias)).then_some(alias),
        }
    }

    /// `after` is what the change itself waits for: an address must not come before the MTU or the name that it needs.
    fn settle_addresses(&mut self, end: Ready<'a>, id: LinkId, change: &LinkChange, adopted: bool, after: &[StepId]) {
        let Some(seen) = self.world.observed.get(id) else { return };
        let (link, key) = (&seen.link, &end.wish.key);
        let (subject, target) = (self.subject(key, end.netns), Target::Existing(id));
        // Sets, because a link may have thousands of addresses.
        let wished: HashSet<InterfaceAddress> = end.spec.addresses.iter().copied().collect();
        let present: HashMap<InterfaceAddress, &ObservedAddress> = link.addresses.iter().map(|have| (have.address, have)).collect();
        let removed: Vec<&ObservedAddress> =
            link.addresses.iter().filter(|have| !wished.contains(&have.address) && self.is_surplus(end, have)).collect();
        for have in &removed {
            self.differs(key, format!("address {} is not wished any more", have.address));
            self.push(key, &subject, Action::RemoveAddress(target, have.address), after.to_vec());
        }
        // Taking the link down or its MTU below IPv6's minimum drops IPv6 addresses; what was there must be put back.
        let drops_ipv6 = change.up == Some(false) || (change.mtu.is_some() && link.mtu < MTU_MIN_IPV6);
        for address in &end.spec.addresses {
            let have = present.get(address).copied();
            let unclaimed = adopted && have.is_some_and(|have| have.proto != ADDRESS_PROTO);
            if have.is_none() {
                self.differs(key, format!("address {address} is missing"));
            }
            let dragged = have.is_some_and(|have| goes_with(have, &removed));
            if have.is_none() || unclaimed || dragged || (drops_ipv6 && address.is_ipv6()) {
                let nodad = address.is_ipv6() && !self.world.settings.ipv6_dad;
                let new = NewAddress { address: *address, proto: ADDRESS_PROTO, nodad, restore: None };
                self.push(key, &subject, Action::AddAddress(target, new), after.to_vec());
            }
        }
        if !removed.is_empty() {
            self.restore_others(end, link, &wished, &removed, &subject, after);
        }
    }

    /// Both ends are up, but the kernel does not pass packets yet: it does so when its link watch has run, at the latest a second later.
    fn wait_for_carrier(&mut self, end: Ready<'a>, other: Ready<'a>, id: LinkId) -> Option<Verdict> {
        let observed = self.world.observed;
        let mine = &observed.get(id)?.link;
        let (_, theirs) = observed.named(&other.wish.key).find(|(peer, _)| observed.are_pair(id, *peer))?;
        let waits = mine.lacks_carrier() && mine.admin_up && theirs.link.admin_up && end.wish.key != other.wish.key;
        if waits {
            self.plan.without_carrier.insert(id);
        }
        waits.then(|| Verdict::Finishing("both ends are up, but the link has no carrier yet".to_owned()))
    }

    /// Puts back what others added, where the removal of a first address drags it along.
    fn restore_others(
        &mut self,
        end: Ready<'a>,
        link: &ObservedLink,
        wished: &HashSet<InterfaceAddress>,
        removed: &[&ObservedAddress],
        subject: &str,
        after: &[StepId],
    ) {
        let target = Target::Existing(LinkId { netns: end.netns, ifindex: link.ifindex });
        for have in &link.addresses {
            if wished.contains(&have.address) || !goes_with(have, removed) || removed.iter().any(|gone| gone.address == have.address) {
                continue;
            }
            let restore = RestoredAddress { scope: have.scope, broadcast: have.broadcast, label: have.label.clone() };
            let new = NewAddress { address: have.address, proto: have.proto, nodad: false, restore: Some(restore) };
            self.push(&end.wish.key, subject, Action::AddAddress(target, new), after.to_vec());
        }
    }

    /// Whether an address that is not wished is ours to remove: ours by its protocol, or in the way of a wished one, or a stranger's where the setting says so.
    fn is_surplus(&self, end: Ready<'a>, have: &ObservedAddress) -> bool {
        if have.kernel_made {
            return false;
        }
        have.proto == ADDRESS_PROTO || self.world.settings.remove_extra_addresses || blocks_ipv6(end.spec.addresses.as_slice(), have)
    }
}

/// An IPv6 address may stand on a link only once, whatever its prefix length: the wish's length replaces the other.
fn blocks_ipv6(wished: &[InterfaceAddress], have: &ObservedAddress) -> bool {
    have.address.is_ipv6() && wished.iter().any(|wish| wish.ip() == have.address.ip())
}

/// Whether the kernel drops this address together with one of `removed` (`promote_secondaries` off): secondaries go with their primary.
fn goes_with(have: &ObservedAddress, removed: &[&ObservedAddress]) -> bool {
    have.secondary && removed.iter().any(|gone| !gone.secondary && !gone.address.is_ipv6() && gone.address.same_subnet(have.address))
}

/// What the kernel has not finished, or what went wrong by itself, although every setting is as wished.
fn unfinished(end: Ready<'_>, link: &ObservedLink) -> Option<Verdict> {
    let wished = |have: &&ObservedAddress| end.spec.addresses.contains(&have.address);
    if let Some(failed) = link.addresses.iter().filter(wished).find(|have| have.dad_failed) {
        let message = format!("duplicate address detection found another owner of {} on the link's network", failed.address.ip());
        return Some(Verdict::Failed(Reason::KernelRefused, message));
    }
    let tentative = link.addresses.iter().filter(wished).find(|have| have.tentative && link.admin_up)?;
    let message = format!("duplicate address detection for {} has not ended", tentative.address.ip());
    Some(Verdict::Pending(Waiting { reason: None, message, waits_for: vec![tentative.address.ip().to_string()], keep: false }))
}

fn describe(change: &LinkChange, link: &ObservedLink) -> Vec<String> {
    let word = |up: bool| if up { "up" } else { "down" };
    let texts = [
        change.name.as_ref().map(|name| format!("name {}, wished {name}", link.name.escape_debug())),
        change.mac.map(|mac| format!("hardware address {}, wished {mac}", link.mac.map_or_else(|| "none".to_owned(), |m| m.to_string()))),
        change.mtu.map(|mtu| format!("mtu {}, wished {mtu}", link.mtu)),
        change.up.map(|up| format!("{}, wished {}", word(link.admin_up), word(up))),
        change.group.map(|group| format!("group {:#x}, ours is {group:#x}", link.group)),
        change
            .alias
            .as_ref()
            .map(|alias| format!("alias `{}`, ours is `{alias}`", link.alias.as_deref().unwrap_or_default().escape_debug())),
    ];
    texts.into_iter().flatten().collect()
}
