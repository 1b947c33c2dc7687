//! Removals: only what carries our mark, and only what nobody wishes. What someone else made is given back instead.

use std::collections::BTreeSet;

use super::auto_tap::is_auto_tap;
use super::{Action, LEFTOVERS, Planner};
use crate::configurator::desired::Key;
use crate::configurator::observed::Seen;
use crate::model::ExpectedMark;
use crate::model::owner::Mark;
use crate::model::{HostIfName, LinkId, LinkKind, MarkKind};

impl Planner<'_> {
    /// Removes all links of ours with this logical name.
    pub(super) fn remove_links_of(&mut self, key: &Key) {
        let links: Vec<LinkId> = self.world.observed.named(key).map(|(id, _)| id).collect();
        for id in links {
            self.let_go(key, id, "");
        }
    }

    /// Removes links of ours with this logical name that are of another kind.
    pub(super) fn remove_other_kinds(&mut self, key: &Key, kind: MarkKind) {
        let other = |seen: &Seen| seen.logical().is_some_and(|(marked, _)| marked != kind);
        let links: Vec<LinkId> = self.world.observed.named(key).filter(|(_, seen)| other(seen)).map(|(id, _)| id).collect();
        for id in links {
            self.let_go(key, id, "");
        }
    }

    /// Removes links of ours with this logical name other than the one that stands for it.
    pub(super) fn remove_strays(&mut self, key: &Key, keep: LinkId) {
        let links: Vec<LinkId> = self.world.observed.named(key).map(|(id, _)| id).filter(|id| *id != keep).collect();
        for id in links {
            self.let_go(key, id, "");
        }
    }

    /// Removes what has no key (any more), half-made links that no wish takes, and what an earlier run had begun to remove.
    pub(super) fn remove_leftovers(&mut self, looked_at: &BTreeSet<Key>) {
        if !self.world.settings.hold {
            for key in looked_at {
                if self.world.desired.get(key).is_none() {
                    self.remove_links_of(key);
                }
            }
            // Looked for every time: there are none but for a moment after a crash.
            let half_made: Vec<LinkId> =
                self.world.observed.unnamed().filter(|(id, seen)| !self.is_wanted(*id, seen)).map(|(id, _)| id).collect();
            for id in half_made {
                self.let_go(&Key::from(LEFTOVERS), id, "");
            }
        }
        if looked_at.contains(LEFTOVERS) {
            let begun: Vec<LinkId> = self.world.observed.doomed().map(|(id, _)| id).collect();
            for id in begun {
                self.let_go(&Key::from(LEFTOVERS), id, "");
            }
        }
    }

    /// Whether a half-made link is used by this plan, or stands where a wish that was not looked at, or is invalid, may want it.
    fn is_wanted(&self, id: LinkId, seen: &Seen) -> bool {
        let used = |step: &super::Step| matches!(&step.action, Action::SetLink(super::Target::Existing(link), _) if *link == id);
        if self.plan.steps.iter().any(used) {
            return true;
        }
        let Ok(name) = HostIfName::new(&seen.link.name) else { return false };
        self.world.places.claims(self.world.desired, id.netns, &name).any(|key| {
            let looked_at = self.plan.verdicts.contains_key(key);
            !looked_at || matches!(self.plan.verdicts.get(key), Some(super::Verdict::Invalid(_) | super::Verdict::Resolving))
        })
    }

    /// Removes a link that we made, gives one back that we did not make; `because` says why, if it is to be made anew.
    pub(super) fn let_go(&mut self, key: &Key, link: LinkId, because: &str) {
        let Some(seen) = self.world.observed.get(link) else { return };
        if seen.mark == Mark::Foreign || self.is_reserved(link) {
            return;
        }
        if is_auto_tap(seen) {
            return self.give_back(key, link);
        }
        // One request removes both ends.
        let other_end =
            self.world.observed.partner(link).is_some_and(|partner| self.doomed.contains(&partner) || self.is_reserved(partner));
        if other_end || !self.doomed.insert(link) {
            return;
        }
        let subject = self.subject(seen.logical().map_or(&*seen.link.name, |(_, name)| name.as_str()), link.netns);
        let mark = ExpectedMark { group: seen.link.group, alias: seen.link.alias.clone() };
        let (doomed_group, because) = (self.world.owner.doomed_group(), because.to_owned());
        let open = matches!(&seen.link.kind, LinkKind::Tun(info) if info.open);
        let action = Action::DeleteLink { link, mark, doomed_group, because, open };
        self.push(key, &subject, action, Vec::new());
    }
}
