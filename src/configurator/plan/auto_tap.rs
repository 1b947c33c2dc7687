//! One TAP that someone else makes: found in the agent's own namespace, marked, moved in one request, and given back when nobody wishes it any more.
//!
//! The alias comes before the move: whenever we are killed, the next run finds by it what this one began. It is never deleted.

use super::names::Blocked;
use super::verdict::Ready;
use super::{Action, End, Planner, Target, Verdict, Waiting};
use crate::configurator::desired::Key;
use crate::configurator::observed::Seen;
use crate::configurator::vpp::VppSays;
use crate::model::name::HOST_IF_NAME_MAX;
use crate::model::owner::{ADDRESS_PROTO, Mark, is_marked};
use crate::model::{HostIfName, LinkChange, LinkId, LinkKind, MarkKind, NetnsId, Reason};

/// Most moves of one pass, a sixth of a second: what else is wished does not wait longer for its turn.
pub const MOST_MOVES: usize = 8;

impl<'a> Planner<'a> {
    /// Plans what brings the TAP to its place, and says how it stands.
    pub(super) fn plan_auto_tap(&mut self, end: Ready<'a>, temporary: &HostIfName) {
        let key = &end.wish.key;
        let Some(own) = self.world.own.filter(|own| self.world.observed.knows(*own)) else { return self.say(key, Verdict::Resolving) };
        let mine = self.mine(end, temporary, own).or_else(|| self.stripped(end));
        self.let_go_of_others(key, mine);
        if let Err(verdict) = self.may_use(end, temporary) {
            self.remove_links_of(key);
            return self.say(key, verdict);
        }
        let found = match mine {
            Some(id) => Ok(id),
            None => self.find_auto_tap(temporary, own),
        };
        match found {
            Err(verdict) => self.say(key, verdict),
            Ok(id) if id.netns == end.netns => self.settle_auto_tap(end, id),
            Ok(id) => self.take(end, temporary, id),
        }
    }

    /// The TAP that serves this wish already: in its place, still at home, or where an earlier form of the wish had it.
    fn mine(&self, end: Ready<'a>, temporary: &HostIfName, own: NetnsId) -> Option<LinkId> {
        let owner = self.world.owner;
        let right = |seen: &Seen| owner.temporary(&seen.link).as_ref() == Some(temporary);
        let marked = self.world.observed.named(&end.wish.key).filter(|(_, seen)| is_auto_tap(seen) && right(seen)).map(|(id, _)| id);
        marked.min_by_key(|id| (id.netns != end.netns, id.netns != own, *id))
    }

    /// The TAP in its place whose alias somebody took away: an address of ours on it still tells that it was brought there.
    fn stripped(&self, end: Ready<'a>) -> Option<LinkId> {
        let name = end.spec.host_if_name.as_str();
        let (id, seen) = self.world.observed.at(end.netns, name)?;
        if self.is_reserved(id) {
            return None;
        }
        let link = &seen.link;
        let nobodys = seen.mark == Mark::Foreign && !is_marked(link);
        let tap = matches!(link.kind, LinkKind::Tun(_)) && *link.name == *name;
        (nobodys && tap && link.addresses.iter().any(|have| have.proto == ADDRESS_PROTO)).then_some(id)
    }

    /// What else stands for this key: TAPs of another name, links of another kind.
    fn let_go_of_others(&mut self, key: &Key, mine: Option<LinkId>) {
        let others: Vec<LinkId> = self.world.observed.named(key).map(|(id, _)| id).filter(|id| Some(*id) != mine).collect();
        for id in others {
            self.let_go(key, id, "");
        }
    }

    /// Whether this wish is the one that may use the TAP of this name, and the TAP may be used.
    fn may_use(&self, end: Ready<'a>, temporary: &HostIfName) -> Result<(), Verdict> {
        let world = self.world;
        let has = |key: &str| world.observed.named(key).any(|(_, seen)| world.owner.temporary(&seen.link).as_ref() == Some(temporary));
        let wishes = world.desired.expecting(temporary).filter_map(|key| world.desired.get(key));
        let holder = wishes.min_by_key(|wish| (!has(&wish.key), wish.create_revision, wish.key.clone()));
        if let Some(holder) = holder.filter(|holder| holder.key != end.wish.key) {
            let how = if has(&holder.key) { "serves" } else { "is for the older key" };
            let message = format!("the TAP `{temporary}` {how} `{}`; it passes on when that key goes", holder.key);
            return Err(Verdict::Failed(Reason::NameConflict, message));
        }
        if world.vpp.says(temporary).deleted { Err(self.waits(temporary)) } else { Ok(()) }
    }

    fn waits(&self, temporary: &HostIfName) -> Verdict {
        let why = match self.world.vpp.says(temporary) {
            VppSays { deleted: true, .. } => {
                "; VPP says that it has deleted it (vpp/status/v1/interface/), and what may still stand there is not used"
            }
            VppSays { made: true, .. } => "; VPP says that it has made it (vpp/status/v1/interface/), but it is not there",
            VppSays { wanted: true, .. } => "; VPP has been told to make it (vpp/config/v1/interface/), but it is not there yet",
            VppSays { .. } => ", which some other program is to make",
        };
        let message = format!("waits for the TAP `{temporary}` in the agent's own namespace{why}");
        Verdict::Pending(Waiting { reason: Some(Reason::LinkMissing), message, waits_for: vec![temporary.to_string()], keep: false })
    }

    /// A TAP that is nobody's, under its temporary name.
    fn find_auto_tap(&self, temporary: &HostIfName, own: NetnsId) -> Result<LinkId, Verdict> {
        if let Some(whose) = self.reserved_in(own, temporary.as_str()) {
            let message = format!("the name `{temporary}` belongs to {whose}; the TAP is looked for when that has ended");
            return Err(Verdict::Failed(Reason::NameConflict, message));
        }
        let Some((id, seen)) = self.world.observed.at(own, temporary.as_str()) else { return Err(self.waits(temporary)) };
        let what = format!("{} `{}` (index {})", seen.link.kind.word(), seen.link.name.escape_debug(), id.ifindex);
        match (&seen.mark, &seen.link.kind) {
            (Mark::Foreign, LinkKind::Tun(_)) if is_marked(&seen.link) => {
                let message = format!(
                    "waits for the TAP `{temporary}`, but the {what} carries the mark of another vnf-agent (alias `{}`); take the mark away if \
                     that agent is gone",
                    seen.link.alias.as_deref().unwrap_or_default().escape_debug()
                );
                Err(Verdict::Failed(Reason::ForeignLink, message))
            }
            (Mark::Foreign, LinkKind::Tun(_)) if *seen.link.name == *temporary.as_str() => Ok(id),
            (Mark::Foreign, _) => {
                let message =
                    format!("waits for the TAP `{temporary}`, but a {what} that is no such TAP has that name; rename or remove it");
                Err(Verdict::Failed(Reason::ForeignLink, message))
            }
            _ if self.leaves(id) => Err(Verdict::Finishing(format!("our former {what} has the name of the TAP"))),
            (Mark::Named(_, logical), _) => {
                let message = format!("waits for the TAP `{temporary}`, but the {what} of `{logical}` has that name");
                Err(Verdict::Failed(Reason::NameConflict, message))
            }
            (Mark::Unnamed | Mark::Doomed(_), _) => Err(Verdict::Finishing(format!("our former {what} has the name of the TAP"))),
        }
    }

    /// It is in its place; where that is the agent's own namespace, it may not be marked yet.
    fn settle_auto_tap(&mut self, end: Ready<'a>, id: LinkId) {
        let Some(seen) = self.world.observed.get(id) else { return };
        let new = seen.mark == Mark::Foreign;
        // One that was brought here keeps its name, as one whose alias nobody took keeps it from an older key.
        let was_brought = self.stripped(end) == Some(id);
        if new
            && !was_brought
            && let Err(verdict) = self.may_be_called(end, id)
        {
            return self.say(&end.wish.key, verdict);
        }
        self.settle_end(end, end, id, new);
    }

    /// Whether it may have its name in its namespace; asked before anything of it is changed.
    fn may_be_called(&self, end: Ready<'a>, id: LinkId) -> Result<Vec<usize>, Verdict> {
        let Some(seen) = self.world.observed.get(id) else { return Ok(Vec::new()) };
        let altnames = &seen.link.altnames;
        let own_altname = altnames.iter().find(|altname| ***altname == *end.spec.host_if_name.as_str());
        let in_the_way = altnames.iter().find(|altname| id.netns != end.netns && self.world.observed.at(end.netns, altname).is_some());
        if let Some(altname) = own_altname.or(in_the_way) {
            let message = format!(
                "the TAP `{}` has the alternative name `{}`, which cannot be in {}; take it away",
                seen.link.name.escape_debug(),
                altname.escape_debug(),
                end.spec.netns
            );
            return Err(Verdict::Failed(Reason::ForeignLink, message));
        }
        self.name_is_its(end, end)?;
        self.occupied(end, Some(id)).map_err(Blocked::verdict)
    }

    /// Marks it, then moves it with everything that the kernel takes in one request.
    fn take(&mut self, end: Ready<'a>, temporary: &HostIfName, id: LinkId) {
        let Some(link) = self.world.observed.get(id).map(|seen| &seen.link) else { return };
        let key = &end.wish.key;
        let mut after = match self.may_be_called(end, id) {
            Ok(after) => after,
            Err(verdict) => {
                // Where it cannot be, nobody wishes it anywhere else.
                if matches!(verdict, Verdict::Failed(..)) {
                    self.remove_links_of(key);
                }
                return self.say(key, verdict);
            }
        };
        if !self.may_move() {
            self.plan.queued.insert(key.clone());
            return self.say(key, Verdict::Resolving);
        }
        self.differs(key, "the link is not in its namespace".to_owned());
        let alias = self.world.owner.auto_tap_alias(&end.spec.name, temporary);
        let (here, there) = (self.subject(key, id.netns), self.subject(key, end.netns));
        if link.alias.as_deref() != Some(&*alias) {
            let mark = LinkChange { alias: Some(alias.clone()), ..LinkChange::default() };
            after.push(self.push(key, &here, Action::SetLink(Target::Existing(id), mark), Vec::new()));
        }
        let change = LinkChange {
            name: Some(end.spec.host_if_name.clone()),
            mac: end.new_mac(link),
            mtu: (link.mtu != end.spec.mtu).then_some(end.spec.mtu),
            up: end.spec.enabled.then_some(true),
            group: None,
            // Once more: should two agents want it, it is marked by the one that moved it.
            alias: Some(alias.clone()),
        };
        let action = Action::MoveLink { link: id, to: end.netns, change, alias: Some(alias.into()) };
        let moved = self.push(key, &format!("{here} {there}"), action, after);
        self.vacated.insert(id, moved);
        self.add_addresses(end, &there, moved, End::A);
        self.say(key, Verdict::InWork(None));
    }

    /// Takes one of the moves that are left in this pass.
    fn may_move(&mut self) -> bool {
        let planned = self.plan.steps.iter().filter(|step| matches!(step.action, Action::MoveLink { .. })).count();
        planned < self.world.moves_left
    }

    /// Gives a TAP back to whoever made it: at home, under its temporary name, down, without our addresses, and without a mark.
    ///
    /// The mark goes in the request that brings it home, so that it is never lost on the way.
    pub(super) fn give_back(&mut self, key: &Key, id: LinkId) {
        let Some(own) = self.world.own.filter(|own| self.world.observed.knows(*own)) else { return };
        let Some(seen) = self.world.observed.get(id) else { return };
        if self.given_back.contains(&id) || self.is_reserved(id) {
            return;
        }
        let (link, subject) = (&seen.link, self.subject(key, id.netns));
        if id.netns != own && !self.may_move() {
            self.plan.queued.insert(key.clone());
            return;
        }
        let Some(name) = self.home_name(own, id, seen) else { return };
        self.given_back.insert(id);
        let new_name = Some(name.clone()).filter(|name| id.netns != own || *link.name != *name.as_str());
        let addresses = || link.addresses.iter().filter(|have| have.proto == ADDRESS_PROTO);
        // One that was marked and nothing else is as its owner has it.
        let untouched = id.netns == own && new_name.is_none() && addresses().next().is_none();
        let change = LinkChange { name: new_name, up: (!untouched).then_some(false), alias: Some(String::new()), ..LinkChange::default() };
        if id.netns == own {
            for have in addresses() {
                self.push(key, &subject, Action::RemoveAddress(Target::Existing(id), have.address), Vec::new());
            }
            let step = self.push(key, &subject, Action::SetLink(Target::Existing(id), change.clone()), Vec::new());
            if change.name.is_some() {
                self.vacated.insert(id, step);
            }
        } else {
            let subject = format!("{subject} {}", self.subject(key, own));
            let step = self.push(key, &subject, Action::MoveLink { link: id, to: own, change, alias: None }, Vec::new());
            self.vacated.insert(id, step);
        }
        self.homes.insert(name);
    }

    /// Keeps the names of TAPs that are certainly given back from being taken in the same plan.
    pub(super) fn reserve_homes(&mut self, key: &Key) {
        let wish = self.world.desired.get(key);
        let wished = match wish.map(|wish| (wish.spec.is_ok(), wish.temporary())) {
            None if self.world.settings.hold => return,
            Some((false, _)) => return,
            wished => wished.and_then(|(_, temporary)| temporary),
        };
        let owner = self.world.owner;
        let marked = self.world.observed.named(key).filter(|(_, seen)| is_auto_tap(seen));
        let temporaries = marked.filter_map(|(_, seen)| owner.temporary(&seen.link));
        let given: Vec<HostIfName> = temporaries.filter(|temporary| Some(temporary) != wished).collect();
        self.reserved.extend(given);
    }

    /// Whether a step of this plan gives a link this name there.
    fn takes_name(&self, netns: NetnsId, name: &HostIfName) -> bool {
        self.plan.steps.iter().any(|step| match &step.action {
            Action::CreateVeth { a, b, .. } => [a, b].into_iter().any(|end| end.netns == netns && end.name == *name),
            Action::CreateTap(new) => new.link.netns == netns && new.link.name == *name,
            Action::MoveLink { to, change, .. } => *to == netns && change.name.as_ref() == Some(name),
            Action::SetLink(Target::Existing(link), change) => link.netns == netns && change.name.as_ref() == Some(name),
            _ => false,
        })
    }

    /// Its temporary name; where another link has that by now, one like it, and that is told.
    fn home_name(&mut self, own: NetnsId, id: LinkId, seen: &Seen) -> Option<HostIfName> {
        let wished = self.world.owner.temporary(&seen.link).or_else(|| HostIfName::new(&seen.link.name).ok())?;
        let free = |name: &HostIfName| {
            let there = self.world.observed.at(own, name.as_str()).is_none_or(|(other, _)| other == id);
            there && self.reserved_in(own, name.as_str()).is_none() && !self.homes.contains(name) && !self.takes_name(own, name)
        };
        if free(&wished) {
            return Some(wished);
        }
        let other = (1..=u16::MAX).filter_map(|n| like(&wished, n)).find(free)?;
        let notice = format!(
            "the TAP `{wished}` is given back as `{other}`: another link in the agent's own namespace has its name, or is to have it"
        );
        self.plan.notices.push(notice);
        Some(other)
    }
}

/// A name that begins like this one.
fn like(name: &HostIfName, n: u16) -> Option<HostIfName> {
    let ending = format!("~{n}");
    let mut cut = name.as_str().len().min(HOST_IF_NAME_MAX - ending.len());
    while !name.as_str().is_char_boundary(cut) {
        cut -= 1;
    }
    HostIfName::new(&format!("{}{ending}", &name.as_str()[..cut])).ok()
}

/// Whether this link is someone else's TAP that serves a wish.
pub(super) fn is_auto_tap(seen: &Seen) -> bool {
    matches!(&seen.mark, Mark::Named(MarkKind::AutoTap, _) | Mark::Doomed(Some((MarkKind::AutoTap, _))))
}
