//! Executes plans. Decides nothing: it sorts steps into waves by what they wait for, hands each wave to the kernel as one batch, and maps the
//! answers back.

use std::collections::{BTreeSet, HashMap};

use crate::configurator::plan::{Action, End, Plan, Step, StepId, Target};
use crate::linux::{Done, Kernel, KernelError, KernelOp};
use crate::model::interface::MTU_MIN_IPV6;
use crate::model::{LinkChange, LinkId};

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; or it was so already.
    Done(Done),
    /// Not tried, since this step before it had failed.
    Skipped(StepId),
    /// Refused.
    Failed(KernelError),
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// Per step.
    pub outcomes: Vec<Outcome>,
    /// Links that were worked on, also in vain: to be read back.
    pub touched: Touched,
}

/// Links to be read back, by how much of them may have changed.
#[derive(Debug, Default)]
pub struct Touched {
    /// Their addresses as well.
    pub whole: BTreeSet<LinkId>,
    /// Their settings alone.
    pub settings: BTreeSet<LinkId>,
    /// Those that went up or down, which the other end's carrier follows.
    pub swayed: BTreeSet<LinkId>,
}

impl Touched {
    fn note(&mut self, op: &KernelOp) {
        match op {
            KernelOp::CreateVeth { .. } | KernelOp::CreateTap(_) => {}
            KernelOp::SetLink { link, change } => {
                if change.up.is_some() {
                    self.swayed.insert(*link);
                }
                let read = if keeps_addresses(change) { &mut self.settings } else { &mut self.whole };
                read.insert(*link);
            }
            KernelOp::MoveLink { link, .. }
            | KernelOp::EnableIpv6 { link, .. }
            | KernelOp::AddAddress { link, .. }
            | KernelOp::RemoveAddress { link, .. } => {
                self.whole.insert(*link);
            }
            // What was handed over for removal is told of when it is gone.
            KernelOp::DeleteLink { .. } => {}
        }
    }

    fn made(&mut self, link: LinkId) {
        self.whole.insert(link);
    }
}

/// Whether a change of settings leaves the addresses alone: their labels follow the name, IPv6's go with the state and below its smallest MTU.
fn keeps_addresses(change: &LinkChange) -> bool {
    change.up.is_none() && change.name.is_none() && change.mtu.is_none_or(|mtu| mtu >= MTU_MIN_IPV6)
}

/// Executes a plan.
pub fn apply(kernel: &mut dyn Kernel, plan: &Plan) -> Applied {
    let mut run = Run { plan, outcomes: vec![None; plan.steps.len()], made: HashMap::new(), touched: Touched::default() };
    for wave in waves(plan) {
        run.execute(kernel, &wave);
    }
    // A step that waits for itself or a later one is in no wave; `check` refuses such a plan.
    let outcomes = run.outcomes.into_iter().enumerate().map(|(id, o)| o.unwrap_or(Outcome::Skipped(id))).collect();
    Applied { outcomes, touched: run.touched }
}

/// Steps by how many others must have ended before: all of one wave go in one batch, in the order of the plan.
fn waves(plan: &Plan) -> Vec<Vec<StepId>> {
    let mut levels: Vec<usize> = Vec::with_capacity(plan.steps.len());
    let mut waves: Vec<Vec<StepId>> = Vec::new();
    for (id, step) in plan.steps.iter().enumerate() {
        let level = step.after.iter().filter_map(|earlier| levels.get(*earlier)).max().map_or(0, |level| level + 1);
        levels.push(level);
        if waves.len() <= level {
            waves.resize_with(level + 1, Vec::new);
        }
        waves[level].push(id);
    }
    waves
}

struct Run<'a> {
    plan: &'a Plan,
    outcomes: Vec<Option<Outcome>>,
    /// Ends of the pairs made so far, by the step that made them; of a TAP, made or moved, both are the same.
    made: HashMap<StepId, (LinkId, LinkId)>,
    touched: Touched,
}

impl Run<'_> {
    fn execute(&mut self, kernel: &mut dyn Kernel, wave: &[StepId]) {
        let (mut ops, mut ids) = (Vec::with_capacity(wave.len()), Vec::with_capacity(wave.len()));
        for id in wave {
            match self.request(&self.plan.steps[*id]) {
                Ok(op) => {
                    self.touched.note(&op);
                    ops.push(op);
                    ids.push(*id);
                }
                Err(because) => self.outcomes[*id] = Some(Outcome::Skipped(because)),
            }
        }
        if ops.is_empty() {
            return;
        }
        for (id, answer) in ids.into_iter().zip(kernel.execute(&ops)) {
            if let (Ok(Done::CreatedTap(index)), Action::CreateTap(new)) = (&answer, &self.plan.steps[id].action) {
                let link = LinkId { netns: new.link.netns, ifindex: *index };
                self.touched.made(link);
                self.made.insert(id, (link, link));
            }
            if let (Ok(Done::Moved(index)), Action::MoveLink { to, .. }) = (&answer, &self.plan.steps[id].action) {
                let link = LinkId { netns: *to, ifindex: *index };
                self.touched.made(link);
                self.made.insert(id, (link, link));
            }
            if let (Ok(Done::Created { a: index_a, b: index_b }), Action::CreateVeth { a, b, .. }) = (&answer, &self.plan.steps[id].action)
            {
                let ends = (LinkId { netns: a.netns, ifindex: *index_a }, LinkId { netns: b.netns, ifindex: *index_b });
                self.touched.made(ends.0);
                self.touched.made(ends.1);
                self.made.insert(id, ends);
            }
            if let (Ok(Done::AlreadySo) | Err(_), Action::DeleteLink { link, .. }) = (&answer, &self.plan.steps[id].action) {
                // It is not there, or not ours, any more.
                self.touched.settings.insert(*link);
                self.touched.swayed.insert(*link);
            }
            self.outcomes[id] = Some(answer.map_or_else(Outcome::Failed, Outcome::Done));
        }
    }

    /// The request of a step whose predecessors are all decided; `Err` names the one that failed.
    fn request(&self, step: &Step) -> Result<KernelOp, StepId> {
        let failed = |id: &&StepId| !matches!(self.outcomes[**id], Some(Outcome::Done(_)));
        if let Some(because) = step.after.iter().find(failed) {
            return Err(*because);
        }
        Ok(match &step.action {
            Action::CreateVeth { a, b, group, a_up, .. } => KernelOp::CreateVeth { a: a.clone(), b: b.clone(), group: *group, a_up: *a_up },
            Action::CreateTap(new) => KernelOp::CreateTap(new.clone()),
            Action::SetLink(target, change) => KernelOp::SetLink { link: self.link(*target)?, change: change.clone() },
            Action::MoveLink { link, to, change, alias } => {
                KernelOp::MoveLink { link: *link, to: *to, change: change.clone(), alias: alias.clone() }
            }
            Action::EnableIpv6(target, name) => KernelOp::EnableIpv6 { link: self.link(*target)?, name: name.clone() },
            Action::AddAddress(target, address) => KernelOp::AddAddress { link: self.link(*target)?, address: address.clone() },
            Action::RemoveAddress(target, address) => KernelOp::RemoveAddress { link: self.link(*target)?, address: *address },
            Action::DeleteLink { link, mark, doomed_group, .. } => {
                KernelOp::DeleteLink { link: *link, doomed_group: *doomed_group, expected: mark.clone() }
            }
        })
    }

    fn link(&self, target: Target) -> Result<LinkId, StepId> {
        match target {
            Target::Existing(link) => Ok(link),
            Target::Created(step, end) => self.made.get(&step).map(|(a, b)| if end == End::A { *a } else { *b }).ok_or(step),
        }
    }
}
