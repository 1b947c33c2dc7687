//! One veth pair: ONE kernel object that TWO keys want.

use super::names::Blocked;
use super::verdict::{Ready, Standing};
use super::{Action, End, Planner, StepId, Target, Verdict, Waiting};
use crate::configurator::desired::Key;
use crate::configurator::observed::Seen;
use crate::model::owner::{ADDRESS_PROTO, Mark, is_marked};
use crate::model::{LinkChange, NewAddress};
use crate::model::{LinkId, LinkKind, MarkKind, Reason};

/// Which kernel object stands for a pair.
enum Found {
    /// This one; `adopted` when it was nobody's.
    Pair { a: LinkId, b: LinkId, adopted: bool },
    /// None.
    Absent,
}

impl<'a> Planner<'a> {
    /// Decides about one wish; about its other end as well, where both make a pair.
    pub(super) fn plan_wish(&mut self, key: &Key) {
        if self.plan.verdicts.contains_key(key) {
            return;
        }
        let Some(wish) = self.world.desired.get(key) else { return };
        if let Some(verdict) = self.frozen(wish) {
            return self.say(key, verdict);
        }
        match self.standing(wish) {
            Standing::Pair(a, b) if a.wish.key <= b.wish.key => self.plan_pair(a, b),
            Standing::Pair(a, b) => self.plan_pair(b, a),
            Standing::Tap(end, tap) => self.plan_tap(end, tap),
            Standing::AutoTap(end, temporary) => self.plan_auto_tap(end, temporary),
            Standing::HeldByPeer(end, peer) => self.plan_held(end, &peer.clone()),
            Standing::Said(verdict) => {
                if matches!(verdict, Verdict::Pending(Waiting { keep: false, .. })) {
                    self.remove_links_of(key);
                }
                self.say(key, verdict);
            }
        }
    }

    fn plan_pair(&mut self, a: Ready<'a>, b: Ready<'a>) {
        if let Found::Pair { a: link_a, b: link_b, adopted } = self.find_pair(a, b) {
            self.remove_strays(&a.wish.key, link_a);
            self.remove_strays(&b.wish.key, link_b);
            self.settle_end(a, b, link_a, adopted);
            self.settle_end(b, a, link_b, adopted);
            return;
        }
        for end in [a, b] {
            let what = if self.world.observed.named(&end.wish.key).next().is_some() { "its other end is" } else { "the link is" };
            self.differs(&end.wish.key, format!("{what} not there"));
        }
        // What is left of an earlier form of this pair must go before its names are free, and also where the pair cannot be made: nobody wishes it.
        self.remove_links_of(&a.wish.key);
        self.remove_links_of(&b.wish.key);
        match (self.may_have_name(a, b), self.may_have_name(b, a)) {
            (Ok(after_a), Ok(after_b)) => self.create(a, b, after_a.into_iter().chain(after_b).collect()),
            (one, other) => self.say_both(a, b, one.err(), other.err()),
        }
    }

    /// Whether an end of a new pair, or a new TAP, may have its name, by right and in fact, and after which steps.
    pub(super) fn may_have_name(&self, end: Ready<'a>, other: Ready<'a>) -> Result<Vec<StepId>, Verdict> {
        self.name_is_its(end, other)?;
        self.occupied(end, None).map_err(Blocked::verdict)
    }

    /// Says why a pair cannot be: an end without a trouble of its own shares the other one's.
    fn say_both(&mut self, a: Ready<'a>, b: Ready<'a>, verdict_a: Option<Verdict>, verdict_b: Option<Verdict>) {
        let share = |verdict: &Verdict, other: &Key| match verdict {
            Verdict::Failed(reason, message) => Verdict::Failed(*reason, format!("its other end `{other}` cannot be made: {message}")),
            verdict => verdict.clone(),
        };
        let (for_a, for_b) = match (verdict_a, verdict_b) {
            (Some(one), Some(other)) => (one, other),
            (Some(one), None) => (one.clone(), share(&one, &a.wish.key)),
            (None, Some(other)) => (share(&other, &b.wish.key), other),
            (None, None) => return,
        };
        self.say(&a.wish.key, for_a);
        self.say(&b.wish.key, for_b);
    }

    /// Looks for the pair by our marks, wherever its ends are called what; else under the wished names.
    fn find_pair(&self, a: Ready<'a>, b: Ready<'a>) -> Found {
        let observed = self.world.observed;
        let ours = |end: Ready<'a>| {
            let marked =
                observed.named(&end.wish.key).filter(move |(id, seen)| id.netns == end.netns && is_veth_end(&seen.mark, &seen.link.kind));
            marked.map(|(id, _)| id)
        };
        for link_a in ours(a) {
            if let Some(link_b) = ours(b).find(|link_b| observed.are_pair(link_a, *link_b)) {
                return Found::Pair { a: link_a, b: link_b, adopted: false };
            }
        }
        // Half made, or stripped of a mark by hand: one end tells that the pair is ours.
        let at = |end: Ready<'a>| observed.at(end.netns, end.spec.host_if_name.as_str());
        let candidates_a = ours(a).chain(at(a).map(|(id, _)| id));
        for link_a in candidates_a {
            let candidates_b = ours(b).chain(at(b).map(|(id, _)| id));
            for link_b in candidates_b {
                if let Some(adopted) = self.may_take(a, b, link_a, link_b) {
                    return Found::Pair { a: link_a, b: link_b, adopted };
                }
            }
        }
        Found::Absent
    }

    /// Whether a kernel pair may stand for the wished one: `Some(false)` when one of its ends is ours, `Some(true)` when it is nobody's and may be adopted.
    fn may_take(&self, a: Ready<'a>, b: Ready<'a>, link_a: LinkId, link_b: LinkId) -> Option<bool> {
        let observed = self.world.observed;
        // The NIC of an external node may be a veth itself.
        if !observed.are_pair(link_a, link_b) || self.is_reserved(link_a) || self.is_reserved(link_b) {
            return None;
        }
        let (seen_a, seen_b) = (observed.get(link_a)?, observed.get(link_b)?);
        if seen_a.link.kind != LinkKind::Veth || seen_b.link.kind != LinkKind::Veth {
            return None;
        }
        let judge = |mark: &Mark, key: &str| match mark {
            Mark::Named(MarkKind::Veth, name) if name.as_str() == key => Some(true),
            Mark::Unnamed => Some(true),
            Mark::Foreign => Some(false),
            Mark::Named(..) | Mark::Doomed(_) => None,
        };
        let (ours_a, ours_b) = (judge(&seen_a.mark, &a.wish.key)?, judge(&seen_b.mark, &b.wish.key)?);
        // Another agent's mark makes an end foreign whatever the other one says; it is told apart from no mark at all.
        let anothers = |seen: &Seen| seen.mark == Mark::Foreign && is_marked(&seen.link);
        if anothers(seen_a) || anothers(seen_b) {
            return None;
        }
        match (ours_a || ours_b, a.wish.adoptable && b.wish.adoptable) {
            // A pair is one object: an end that was stripped of its marks by hand is still ours by the other one.
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    /// The other end's key is invalid: what stands of a pair is held as it is; this end is still kept as wished.
    fn plan_held(&mut self, end: Ready<'a>, peer: &Key) {
        self.remove_other_kinds(&end.wish.key, MarkKind::Veth);
        let observed = self.world.observed;
        let standing = observed.named(&end.wish.key).find(|(id, seen)| id.netns == end.netns && is_veth_end(&seen.mark, &seen.link.kind));
        let Some((link, _)) = standing else {
            let message = format!("its other end `{peer}` is invalid; correct that key");
            let waiting = Waiting { reason: Some(Reason::PeerMismatch), message, waits_for: vec![peer.to_string()], keep: false };
            return self.say(&end.wish.key, Verdict::Pending(waiting));
        };
        self.settle_end(end, end, link, false);
    }

    fn create(&mut self, a: Ready<'a>, b: Ready<'a>, after: Vec<StepId>) {
        let owner = self.world.owner;
        let action =
            Action::CreateVeth { a: a.new_link(), b: b.new_link(), b_key: b.wish.key.clone(), group: owner.group(), a_up: a.spec.enabled };
        let subject = format!("{} {}", self.subject(&a.wish.key, a.netns), self.subject(&b.wish.key, b.netns));
        let made = self.push(&a.wish.key, &subject, action, after);
        for (end, which, up) in [(a, End::A, None), (b, End::B, b.spec.enabled.then_some(true))] {
            let target = Target::Created(made, which);
            let subject = self.subject(&end.wish.key, end.netns);
            let change = LinkChange { alias: Some(owner.alias(MarkKind::Veth, &end.spec.name)), up, ..LinkChange::default() };
            self.push(&end.wish.key, &subject, Action::SetLink(target, change), vec![made]);
            self.add_addresses(end, &subject, made, which);
            self.say(&end.wish.key, Verdict::InWork(None));
        }
    }

    /// The addresses of a link that a step makes.
    pub(super) fn add_addresses(&mut self, end: Ready<'a>, subject: &str, made: StepId, which: End) {
        for address in &end.spec.addresses {
            let nodad = address.is_ipv6() && !self.world.settings.ipv6_dad;
            let new = NewAddress { address: *address, proto: ADDRESS_PROTO, nodad, restore: None };
            self.push(&end.wish.key, subject, Action::AddAddress(Target::Created(made, which), new), vec![made]);
        }
    }
}

fn is_veth_end(mark: &Mark, kind: &LinkKind) -> bool {
    matches!(mark, Mark::Named(MarkKind::Veth, _)) && *kind == LinkKind::Veth
}
