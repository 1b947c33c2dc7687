//! One way, from the first look to its end.

use nix::errno::Errno;

use crate::external_node::handover::news::News;
use crate::external_node::handover::refusals::Refusals;
use crate::external_node::handover::{Handover, HandoverError, LOCK_WITHIN, Outcome, Purpose, Seen};
use crate::external_node::journal::Journal;
use crate::external_node::phase::{Claimed, Goal, Next, Step, Wait, next};

/// More steps than the longest way has: each may be undone by others once or twice.
const STEPS_MAX: usize = 64;
/// So often on one way something may vanish between the look and what follows from it.
const VANISHED_MAX: usize = 8;

/// What is known on one way, and nowhere else.
#[derive(Default)]
struct Way {
    /// A journal that could not be written.
    unwritten: Option<Journal>,
    refusals: Refusals,
    news: News,
    vanished: usize,
    /// Why the step that was begun last was not done, if it was not.
    undone: Option<String>,
}

impl Way {
    /// Whether an error only says that a link has gone since it was looked at. What is seen then decides, as it would have a moment later.
    fn is_outrun(&mut self, error: &HandoverError) -> bool {
        let HandoverError::Kernel(kernel) = error else { return false };
        (kernel.is(Errno::ENODEV) || kernel.is(Errno::ENOENT)) && self.looks_again()
    }

    /// Whether another look may show why what was seen is not so any more.
    fn looks_again(&mut self) -> bool {
        self.vanished += 1;
        self.vanished <= VANISHED_MAX
    }
}

/// Why a step waits for another look.
const OUTDATED: &str = "not yet: what others changed meanwhile comes first";

impl Handover {
    /// Takes a step, unless what was seen is not so any more; why it was not done, where the way goes on without it.
    fn take(&mut self, step: Step, nic: &str, seen: &Seen, purpose: &Purpose, way: &mut Way) -> Result<Option<String>, HandoverError> {
        if self.is_outdated(step, seen, &way.news)? {
            way.news.count();
            return Ok(Some(OUTDATED.to_owned()));
        }
        tracing::info!(nic, ?step, "taking a step");
        if matches!(step, Step::KeepOfNic | Step::KeepOfPort) {
            way.news.count();
        }
        match self.perform(step, nic, seen, purpose, &mut way.unwritten) {
            Err(HandoverError::Kernel(error)) if step == Step::CopyToNic => {
                let why = error.to_string();
                way.refusals.take(error, self.is_worth_it(seen)?)?;
                Ok(Some(why))
            }
            // Everything was there a moment ago.
            Err(HandoverError::NotAsWished(why)) if step == Step::Confirm && way.looks_again() => Ok(Some(why)),
            outcome => outcome.map(|()| None),
        }
    }

    /// Goes the whole way of one NIC, named by its own name. `before` is told each step before it is taken, and may stop the way there; what it is shown of
    /// the journal cannot be changed by anybody else until the step is done.
    ///
    /// On the way back a journal that cannot be written is no reason to stay: the way is gone as if it were.
    ///
    /// # Errors
    /// The first step that failed; what stands then is as good a beginning as any.
    pub fn drive(
        &mut self,
        nic: &str,
        goal: Goal,
        purpose: &Purpose,
        mut before: impl FnMut(Step, &Seen) -> bool,
    ) -> Result<Option<Outcome>, HandoverError> {
        let _lock = self.journals.lock(nic, LOCK_WITHIN)?;
        let mut way = Way::default();
        for _ in 0..STEPS_MAX {
            match self.go_on(nic, goal, purpose, &mut before, &mut way) {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end),
                Err(error) if way.is_outrun(&error) => tracing::info!(nic, %error, "a link has gone meanwhile: looking again"),
                Err(error) => return Err(error),
            }
        }
        Err(HandoverError::NotAsWished(format!("{nic} is not as wished after {STEPS_MAX} steps: something undoes them")))
    }

    /// Looks once and takes one step; how the way ends, if it does so here.
    fn go_on(
        &mut self,
        nic: &str,
        goal: Goal,
        purpose: &Purpose,
        before: &mut impl FnMut(Step, &Seen) -> bool,
        way: &mut Way,
    ) -> Result<Option<Option<Outcome>>, HandoverError> {
        let mut seen = self.look(nic, way.unwritten.clone())?;
        seen.undone.clone_from(&way.undone);
        way.refusals.allow_for(&mut seen.observation);
        way.news.allow_for(&mut seen.observation);
        if let (Some(config), true) = (&seen.rerouted, way.news.are_heard() && seen.observation.claimed == Claimed::ByNobodyElse) {
            way.news.count();
            way.unwritten = self.reroute(nic, &seen, config.clone())?;
            return Ok(None);
        }
        match next(&seen.observation, goal) {
            Next::Do(step) if before(step, &seen) => {
                if let Some(refused) = way.refusals.instead_of(step, &seen.observation) {
                    return Err(refused);
                }
                let taken = self.take(step, nic, &seen, purpose, way);
                way.undone = match &taken {
                    Ok(undone) => undone.clone(),
                    Err(error) => Some(error.to_string()),
                };
                taken.map(|_| None)
            }
            Next::Do(_) => Ok(Some(None)),
            Next::Done => {
                if goal == Goal::Plain {
                    // One of an earlier boot says nothing of this one.
                    self.journals.drop(nic)?;
                } else {
                    self.follow(nic, &mut seen);
                }
                Ok(Some(Some(Outcome::Done(Box::new(seen)))))
            }
            Next::Wait(wait) => {
                if wait == Wait::NicGone {
                    self.note_gone(nic, &seen);
                }
                Ok(Some(Some(Outcome::Wait(wait, Box::new(seen)))))
            }
        }
    }
}
