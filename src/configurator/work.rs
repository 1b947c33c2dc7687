//! The rounds of a pass: plan, apply, read back, and again until a plan is empty or makes no progress.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use super::apply::{Applied, Outcome, apply};
use super::desired::Key;
use super::plan::{Action, InSync, Plan, Step, Target, Verdict, check, plan};
use super::published::StepLog;
use super::status::Failure;
use super::{Configurator, Now};
use crate::linux::{Done, KernelError};
use crate::model::{LinkId, Reason};

/// More rounds than any sound plan needs: creation, what creation revealed, and their corrections.
const ROUNDS: usize = 5;

/// A message of so many bytes is not made longer.
const MESSAGE_ENOUGH: usize = 200;

/// What the rounds of one pass came to.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The last verdict on each object that was looked at.
    pub verdicts: BTreeMap<Key, Verdict>,
    /// What the kernel last refused to each object, as long as nothing better is known.
    pub failures: BTreeMap<Key, Failure>,
    /// Objects whose namespace went away in the middle: nothing is known, look again soon.
    pub adrift: BTreeSet<Key>,
    /// Objects that were left alone because they are fought over.
    pub contended: BTreeSet<Key>,
    /// Differences that nobody of ours made, per object.
    pub drift: BTreeMap<Key, Vec<String>>,
    /// What was done.
    pub steps: StepLog,
    /// Links that are up at both ends and lacked carrier when they were looked at.
    pub without_carrier: BTreeSet<LinkId>,
    /// Objects that were looked at and have no wish (any more).
    pub wishless: BTreeSet<Key>,
}

impl Configurator {
    pub(super) fn work(&mut self, proof: InSync, now: Now) -> Work {
        let mut work = Work::default();
        self.take_reserved();
        let mut dirty = std::mem::take(&mut self.todo.dirty);
        let by_wish = std::mem::take(&mut self.todo.by_wish);
        self.leave_contended_alone(proof, &mut dirty, &mut work, now);
        let mut last: Vec<Step> = Vec::new();
        for round in 0..=ROUNDS {
            // What can be seen of a host's link was reserved before: looked at after the kernel, it is never missed.
            self.take_reserved();
            let plan = plan(self.world(), proof, &dirty);
            self.todo.dirty.extend(plan.queued.iter().cloned());
            if round == 0 {
                work.drift = self.drift(&plan, &by_wish);
            }
            work.wishless.extend(dirty.iter().filter(|key| self.desired.get(key).is_none()).cloned());
            // What a later round does not look at keeps the verdict of the one before.
            work.verdicts.extend(plan.verdicts.iter().map(|(key, verdict)| (key.clone(), verdict.clone())));
            work.without_carrier.extend(plan.without_carrier.iter().copied());
            // The last look only says how things stand: what the last steps changed must not go unseen.
            if round == ROUNDS || plan.steps.is_empty() || plan.steps == last || !self.is_sound(&plan) {
                break;
            }
            let applied = self.execute(&plan, &mut work);
            dirty = plan.steps.iter().map(|step| step.key.clone()).chain(plan.verdicts.keys().cloned()).collect();
            self.read_back(&applied, now);
            // A removal that has been handed over is told of by an event: nothing to look for until then.
            dirty.extend(std::mem::take(&mut self.todo.dirty));
            last = plan.steps;
        }
        // Once for each change, and for each time that it is waited for anew: nothing is asked in a circle.
        if work.steps.all > 0 || self.todo.triggers.contains("retry") {
            self.todo.carriers.append(&mut work.without_carrier);
        }
        work
    }

    /// Objects fought over wait for their turn; what they look like meanwhile is still found out.
    fn leave_contended_alone(&mut self, proof: InSync, dirty: &mut BTreeSet<Key>, work: &mut Work, now: Now) {
        let fought = |key: &&Key| {
            let peer = self.desired.get(key).and_then(|wish| wish.peer());
            std::iter::once(&***key).chain(peer).any(|key| self.retries.fighting(key, now.instant))
        };
        let contended: BTreeSet<Key> = dirty.iter().filter(fought).cloned().collect();
        if contended.is_empty() {
            return;
        }
        let look = plan(self.world(), proof, &contended);
        dirty.retain(|key| !contended.contains(key));
        for (key, verdict) in look.verdicts {
            if matches!(verdict, Verdict::InWork(_)) {
                work.contended.insert(key.clone());
            }
            work.verdicts.insert(key, verdict);
        }
    }

    /// A plan that breaks an invariant is a defect of ours: it is said loudly and not executed.
    fn is_sound(&self, plan: &Plan) -> bool {
        let violations = check(plan, &self.observed);
        for violation in &violations {
            tracing::error!(%violation, %plan, "the plan is unsound and is not executed");
        }
        if !violations.is_empty() {
            self.parts.published.counters.unsound_plans.fetch_add(1, Ordering::Relaxed);
        }
        violations.is_empty()
    }

    /// What others changed of objects that were as wished, and of which neither the wish nor the namespace changed now.
    fn drift(&self, plan: &Plan, by_wish: &BTreeSet<Key>) -> BTreeMap<Key, Vec<String>> {
        let fulfilled = |key: &Key| {
            let revision = self.desired.get(key).map(|wish| wish.mod_revision);
            revision.is_some() && self.fulfilled.get(key).copied() == revision
        };
        let differs = plan.differences.iter().filter(|(key, _)| !by_wish.contains(*key) && fulfilled(key));
        differs.map(|(key, what)| (key.clone(), what.clone())).collect()
    }

    fn execute(&mut self, plan: &Plan, work: &mut Work) -> Applied {
        self.unregister(plan);
        for notice in &plan.notices {
            tracing::warn!("{notice}");
        }
        let moves = plan.steps.iter().filter(|step| matches!(step.action, Action::MoveLink { .. })).count();
        self.moves_left = self.moves_left.saturating_sub(moves);
        for step in &plan.steps {
            // What failed before is tried now: only what is refused now counts.
            work.failures.remove(&step.key);
        }
        let applied = apply(self.parts.kernel.as_mut(), plan);
        let counters = &self.parts.published.counters;
        for (step, outcome) in plan.steps.iter().zip(&applied.outcomes) {
            match outcome {
                Outcome::Done(done) => {
                    counters.steps_done.fetch_add(1, Ordering::Relaxed);
                    // What was gone already is not on its way out, and its index may be another link's by the end of the plan.
                    if let (Action::DeleteLink { link, open, because, .. }, Done::Ok) = (&step.action, done) {
                        self.observed.note_reaping(*link);
                        if *open {
                            let link = step.subject.escape_debug();
                            tracing::warn!(%link, because, "a TAP is removed under the program that has it open; the program must open it again");
                        }
                    }
                }
                Outcome::Failed(error) => {
                    counters.steps_failed.fetch_add(1, Ordering::Relaxed);
                    note_failure(step, error, work);
                }
                Outcome::Skipped(_) => {}
            }
            work.steps.note(step, describe(outcome));
        }
        applied
    }

    /// What is about to be removed, moved or given back leaves the index before it leaves the kernel.
    fn unregister(&self, plan: &Plan) {
        let deleted = plan.steps.iter().filter_map(|step| match &step.action {
            Action::DeleteLink { link, .. } | Action::MoveLink { link, .. } => Some(*link),
            Action::SetLink(Target::Existing(link), change) if change.alias.as_deref() == Some("") => Some(*link),
            _ => None,
        });
        // The other end goes with it.
        let gone: Vec<Arc<str>> = deleted
            .flat_map(|link| [Some(link), self.observed.partner(link)])
            .filter_map(|link| Some(Arc::from(self.observed.get(link?)?.logical()?.1.as_str())))
            .collect();
        self.parts.published.index.publish(gone.into_iter().map(|name| (name, None)));
    }

    fn read_back(&mut self, applied: &Applied, now: Now) {
        self.todo.links.extend(applied.touched.whole.iter().copied());
        self.todo.settings.extend(applied.touched.settings.iter().copied());
        self.todo.settings.extend(applied.touched.swayed.iter().filter_map(|id| self.observed.partner(*id)));
        self.look(now);
    }
}

fn note_failure(step: &Step, error: &KernelError, work: &mut Work) {
    let mut keys = vec![step.key.clone()];
    if let Action::CreateVeth { b_key, .. } = &step.action {
        keys.push(b_key.clone());
    }
    for key in keys {
        if gone_meanwhile(step, error) {
            work.adrift.insert(key);
        } else {
            let failure = Failure::of_kernel(&step.to_string(), error);
            match work.failures.entry(key) {
                Entry::Vacant(first) => {
                    first.insert(failure);
                }
                // The first cause tells most, but what comes of it is told as well.
                Entry::Occupied(mut known) if known.get().message.len() < MESSAGE_ENOUGH => {
                    known.get_mut().message.push_str("; ");
                    known.get_mut().message.push_str(&failure.message);
                }
                Entry::Occupied(_) => {}
            }
        }
    }
}

/// The ground moved: the namespace is gone or another one, or the link is.
fn gone_meanwhile(step: &Step, error: &KernelError) -> bool {
    let moved = [Errno::ENOENT, Errno::ESRCH, Errno::ESTALE, Errno::ENODEV];
    let on_link = !matches!(step.action, Action::EnableIpv6(..));
    moved.into_iter().any(|errno| error.is(errno)) && (on_link || !error.is(Errno::ENOENT))
}

fn describe(outcome: &Outcome) -> Cow<'static, str> {
    match outcome {
        Outcome::Done(Done::AlreadySo) => "already so".into(),
        Outcome::Done(Done::Ok) => "done".into(),
        Outcome::Done(Done::Created { a, b }) => format!("done, indexes {a} and {b}").into(),
        Outcome::Done(Done::CreatedTap(index) | Done::Moved(index)) => format!("done, index {index}").into(),
        Outcome::Skipped(step) => format!("skipped, since step {} failed", step + 1).into(),
        Outcome::Failed(error) => error.to_string().into(),
    }
}

/// The failure of an object that is as it should not be although nothing was refused.
pub(super) fn contended() -> Failure {
    let message = "someone else keeps changing this link; it is set right again at growing intervals".to_owned();
    Failure { reason: Reason::Contended, message, attempt: 0, next_retry: None }
}
