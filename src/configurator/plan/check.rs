//! Invariants of every plan, checked in tests and before each execution: a plan that breaks one is not executed.

use std::collections::BTreeSet;
use std::fmt;

use super::{Action, End, Plan, StepId, Target};
use crate::configurator::observed::Observed;
use crate::model::owner::{Mark, is_marked};
use crate::model::{LinkId, LinkKind, MarkKind, NetnsId};

/// A broken invariant. It is a defect of the planner, never of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A step comes before one that it needs.
    OutOfOrder(StepId),
    /// A step works on the new link of a step that makes none, or does not wait for it.
    NotCreated(StepId),
    /// A link would be deleted that does not carry our mark, or was made by someone else.
    Unmarked(StepId, LinkId),
    /// A setting of a link would be changed that is not there.
    Unknown(StepId, LinkId),
    /// A link would be moved that carries no mark by then, or was made by us.
    NotTaken(StepId, LinkId),
    /// Two steps would make one name in one namespace.
    SameName(StepId, NetnsId),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfOrder(step) => write!(f, "step {} comes before one that it needs", step + 1),
            Self::NotCreated(step) => write!(f, "step {} works on a link that is not made before", step + 1),
            Self::Unmarked(step, id) => write!(f, "step {} would delete link {} without our mark", step + 1, id.ifindex),
            Self::Unknown(step, id) => write!(f, "step {} would change unknown link {}", step + 1, id.ifindex),
            Self::NotTaken(step, id) => write!(f, "step {} would move link {} that is no TAP taken before", step + 1, id.ifindex),
            Self::SameName(step, id) => write!(f, "step {} makes a name twice in namespace {id}", step + 1),
        }
    }
}

/// All broken invariants of a plan made for this observed state.
#[must_use]
pub fn check(plan: &Plan, observed: &Observed) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for (id, step) in plan.steps.iter().enumerate() {
        if step.after.iter().any(|earlier| *earlier >= id) {
            found.push(Violation::OutOfOrder(id));
        }
        match &step.action {
            Action::CreateVeth { a, b, .. } => {
                for new in [a, b] {
                    if !names.insert((new.netns, new.name.clone())) {
                        found.push(Violation::SameName(id, new.netns));
                    }
                }
            }
            Action::CreateTap(new) => {
                if !names.insert((new.link.netns, new.link.name.clone())) {
                    found.push(Violation::SameName(id, new.link.netns));
                }
            }
            Action::MoveLink { link, to, change, .. } => {
                let marked = |step: &StepId| match &plan.steps[*step].action {
                    Action::SetLink(Target::Existing(id), change) => id == link && change.alias.is_some(),
                    _ => false,
                };
                let taken = observed.get(*link).is_some_and(|seen| match &seen.mark {
                    Mark::Named(kind, _) => *kind == MarkKind::AutoTap,
                    Mark::Foreign => {
                        matches!(seen.link.kind, LinkKind::Tun(_))
                            && !is_marked(&seen.link)
                            && step.after.iter().filter(|s| **s < id).any(marked)
                    }
                    Mark::Unnamed | Mark::Doomed(_) => false,
                });
                if !taken {
                    found.push(Violation::NotTaken(id, *link));
                }
                let name = change.name.as_ref();
                if name.is_none_or(|name| !names.insert((*to, name.clone()))) {
                    found.push(Violation::SameName(id, *to));
                }
            }
            Action::DeleteLink { link, .. } => {
                let ours = observed.get(*link).is_some_and(|seen| match &seen.mark {
                    Mark::Foreign => false,
                    Mark::Named(kind, _) | Mark::Doomed(Some((kind, _))) => *kind != MarkKind::AutoTap,
                    Mark::Unnamed | Mark::Doomed(None) => true,
                });
                if !ours {
                    found.push(Violation::Unmarked(id, *link));
                }
            }
            Action::SetLink(target, _)
            | Action::EnableIpv6(target, _)
            | Action::AddAddress(target, _)
            | Action::RemoveAddress(target, _) => {
                found.extend(check_target(plan, observed, id, *target));
            }
        }
    }
    found
}

fn check_target(plan: &Plan, observed: &Observed, id: StepId, target: Target) -> Option<Violation> {
    match target {
        Target::Existing(link) => observed.get(link).is_none().then_some(Violation::Unknown(id, link)),
        Target::Created(step, end) => {
            let makes = |action: &Action| match action {
                Action::CreateVeth { .. } => true,
                Action::CreateTap(_) | Action::MoveLink { .. } => end == End::A,
                _ => false,
            };
            let made = plan.steps.get(step).is_some_and(|s| makes(&s.action));
            let waits = plan.steps[id].after.contains(&step);
            (!made || !waits).then_some(Violation::NotCreated(id))
        }
    }
}
