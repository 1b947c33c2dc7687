//! Names are a resource: at most one link of a namespace answers to each. Who stands in the way, and what can be done about it.

use super::verdict::{Ready, Standing};
use super::{Action, Planner, StepId, Target, Verdict};
use crate::configurator::desired::Key;
use crate::model::LinkChange;
use crate::model::owner::Mark;
use crate::model::{HostIfName, LinkId, LinkKind, Reason};

/// Why a name cannot be had now.
pub(super) enum Blocked {
    /// Someone else's link has it.
    Foreign(String),
    /// A link of ours has it, for another wish.
    Held(String),
    /// A link of ours that is on its way out, or away, has it.
    Leaving(String),
}

impl Blocked {
    pub(super) fn verdict(self) -> Verdict {
        match self {
            Self::Foreign(message) => Verdict::Failed(Reason::ForeignLink, message),
            Self::Held(message) => Verdict::Failed(Reason::NameConflict, message),
            Self::Leaving(message) => Verdict::Finishing(message),
        }
    }
}

impl<'a> Planner<'a> {
    /// Notes which of our links get another name in this plan, so that chains and swaps of names can be planned.
    pub(super) fn find_renames(&mut self, key: &Key) {
        let Some((wish, Ok(spec))) = self.world.desired.get(key).map(|wish| (wish, &wish.spec)) else { return };
        let wanted = &spec.host_if_name;
        let misnamed: Vec<LinkId> =
            self.world.observed.named(key).filter(|(_, seen)| *seen.link.name != *wanted.as_str()).map(|(id, _)| id).collect();
        if misnamed.is_empty() {
            return;
        }
        let (end, other) = match self.standing(wish) {
            Standing::Pair(end, other) => (end, other),
            Standing::Tap(end, _) | Standing::AutoTap(end, _) => (end, end),
            Standing::HeldByPeer(..) | Standing::Said(_) => return,
        };
        // One that appeared under another name than is wished now is given back.
        let another = |id: &LinkId| {
            let temporary = self.world.observed.get(*id).and_then(|seen| self.world.owner.temporary(&seen.link));
            temporary.is_some() && temporary.as_ref() != wish.temporary()
        };
        if self.name_is_its(end, other).is_ok() {
            let here: Vec<LinkId> = misnamed.into_iter().filter(|id| id.netns == end.netns && !another(id)).collect();
            self.renames.extend(here.into_iter().map(|id| (id, wanted.clone())));
        }
    }

    /// Whether the name that this end wants is free for `for_link` (`None`: for a new link). `Ok` holds the steps that free it.
    pub(super) fn occupied(&self, end: Ready<'a>, for_link: Option<LinkId>) -> Result<Vec<StepId>, Blocked> {
        let name = &end.spec.host_if_name;
        if let Some(message) = self.name_is_reserved(end) {
            return Err(Blocked::Held(message));
        }
        let Some((id, seen)) = self.world.observed.at(end.netns, name.as_str()) else {
            let reserved = self.world.own == Some(end.netns) && self.reserved.contains(name);
            let message = || format!("a TAP that is given back to the program which made it has the name `{name}` in {}", end.spec.netns);
            return if reserved { Err(Blocked::Foreign(message())) } else { Ok(Vec::new()) };
        };
        if Some(id) == for_link {
            return Ok(Vec::new());
        }
        if let Some(step) = self.vacated(id) {
            return Ok(vec![step]);
        }
        let what = format!("{} `{}` (index {})", seen.link.kind.word(), seen.link.name.escape_debug(), id.ifindex);
        let place = &end.spec.netns;
        match &seen.mark {
            Mark::Foreign => {
                let altname = if *seen.link.name == *name.as_str() { "" } else { " as an alternative name" };
                let adopt = if seen.link.kind == LinkKind::Veth { ", or adopt it (`vnfctl adopt`)" } else { "" };
                Err(Blocked::Foreign(format!(
                    "a {what} that is not ours has the name `{name}`{altname} in {place}; rename or remove it{adopt}"
                )))
            }
            Mark::Doomed(_) => Err(Blocked::Leaving(format!("our former {what} in {place} is being removed"))),
            _ if self.leaves(id) => Err(Blocked::Leaving(format!("our former {what} in {place} is being removed"))),
            Mark::Unnamed => Err(Blocked::Leaving(format!("our half-made {what} in {place} is in the way"))),
            Mark::Named(_, logical) => Err(Blocked::Held(format!("the name `{name}` in {place} is still on our link of `{logical}`"))),
        }
    }

    /// Whether a link goes in this plan, by itself or with its other end.
    pub(super) fn leaves(&self, id: LinkId) -> bool {
        self.doomed.contains(&id)
            || self.given_back.contains(&id)
            || self.world.observed.partner(id).is_some_and(|partner| self.doomed.contains(&partner))
    }

    /// The steps after which a link of ours can get the wished name.
    ///
    /// A link in the way that has not got its own new name before in this plan, but will, steps aside under a temporary name first; that breaks
    /// every chain and cycle at the price of one request.
    pub(super) fn free_name(&mut self, end: Ready<'a>, link: LinkId) -> Result<Vec<StepId>, Blocked> {
        let name = end.spec.host_if_name.clone();
        if let Some((id, _)) = self.world.observed.at(end.netns, name.as_str())
            && id != link
            && self.renames.contains_key(&id)
            && self.vacated(id).is_none()
            && let Some(change) = self.aside(id)
        {
            let subject = self.subject(name.as_str(), id.netns);
            let step = self.push(&end.wish.key, &subject, Action::SetLink(Target::Existing(id), change), Vec::new());
            self.vacated.insert(id, step);
        }
        let mut after = self.occupied(end, Some(link))?;
        // One that stepped aside itself must not do so after it has got its name.
        after.extend(self.vacated(link));
        Ok(after)
    }

    /// The step after which a link does not have its old name any more.
    fn vacated(&self, id: LinkId) -> Option<StepId> {
        self.vacated.get(&id).copied()
    }

    /// A free name of our own making.
    fn aside(&self, id: LinkId) -> Option<LinkChange> {
        let name = HostIfName::new(&format!("vnf~{:x}", id.ifindex.get())).ok()?;
        self.world.observed.at(id.netns, name.as_str()).is_none().then(|| LinkChange { name: Some(name), ..LinkChange::default() })
    }
}
