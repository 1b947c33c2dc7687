//! The book of containers: what the runtime and the kernel told, and who holds each label. Pure: no I/O, no clock, no namespaces.
//!
//! An event only says that a container is to be looked at; the inspection tells the truth. Every answer says how much of the book was written when
//! its question was asked, so an answer that something overtook is asked for again instead of believed. What comes twice, late or in another order
//! therefore leads to the same end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// One run of a container, from its start to the end of its first process: the same container started again is another run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// When it was started, in nanoseconds since 1970 by the runtime's clock; `None` where the runtime's text cannot be read.
    pub started: Option<i64>,
    /// Its first process, by the runtime's numbers.
    pub pid: i32,
}

/// What an inspection tells of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// The microservice's label in its environment.
    pub label: Option<String>,
    /// Its run, if it runs (a paused one does).
    pub run: Option<Run>,
    /// The runtime's file of its namespace.
    pub sandbox: Option<PathBuf>,
}

/// Why a run's namespace was not pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPin {
    /// The run is over.
    Over,
    /// Its namespace cannot be opened from here, in one phrase.
    Unreachable(String),
}

/// A namespace that was opened for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// It is the agent's own.
    pub own: bool,
    /// When the run's process was started, by the kernel's clock, which nobody sets back; `None` where the kernel does not tell when it ends.
    pub born: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// To be pinned.
    Wanted,
    /// Pinned, or not to be pinned. Numbers of processes are used again, so it counts only when an inspection that was begun afterwards tells of the
    /// same run.
    Tried { pin: Result<Pinned, String>, confirmed: bool },
}

#[derive(Clone, Debug)]
struct Container {
    name: String,
    label: Option<String>,
    sandbox: Option<PathBuf>,
    run: Option<(Run, Stage)>,
    /// A run that the kernel saw end, whatever the runtime still says of it.
    dead: Option<Run>,
    /// When the question was asked whose answer is written here.
    known_at: u64,
    /// When an end was written here: answers to older questions do not count.
    ended_at: u64,
    /// A failed pin is to be tried again.
    retry: bool,
}

/// What is to be done after an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Containers to be inspected.
    pub ask: BTreeSet<String>,
    /// Containers whose run is to be pinned.
    pub pin: BTreeSet<String>,
    /// Containers whose earlier run is over.
    pub over: BTreeSet<String>,
    /// Labels that may be held by another container, or differently.
    pub labels: BTreeSet<String>,
}

/// Who holds a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No container that runs.
    Nobody,
    /// This one; the others run with the same label, too.
    Held(Named, Vec<Named>),
    /// Only containers that are in the agent's own namespace; this is the first.
    InOwn(Named),
    /// Only containers whose namespaces cannot be opened; this is the first, with the reason.
    Unreachable(Named, String),
    /// Several, and it cannot be told which of them was there first.
    Tie(Vec<Named>),
}

/// A container as people know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// When its run began; see [`Run::started`].
    pub started: Option<i64>,
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// All containers that run, and what is known of them.
#[derive(Debug, Default)]
pub struct Book {
    clock: u64,
    containers: BTreeMap<String, Container>,
    by_label: BTreeMap<String, BTreeSet<String>>,
    /// When the latest complete listing was asked for.
    listed: Option<u64>,
    /// Containers of the first listing of which nothing final is known yet.
    waiting: BTreeSet<String>,
    settled: bool,
    /// Containers of the first listing that could not be inspected: each may have any label, until it is inspected or gone.
    doubts: BTreeSet<String>,
}

impl Book {
    /// How much has been written: a question carries this number, its answer brings it back.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether a label that is missing here is missing: a complete listing and all its inspections are there.
    pub fn settled(&self) -> bool {
        self.settled
    }

    /// Whether a container that ran before the first listing was never inspected, so that a label that is missing here may be its label.
    pub fn doubtful(&self) -> bool {
        !self.doubts.is_empty()
    }

    /// The run that this container is in.
    pub fn run(&self, id: &str) -> Option<Run> {
        self.containers.get(id)?.run.as_ref().map(|(run, _)| *run)
    }

    /// The run that is to be pinned, and the runtime's file of its namespace.
    pub fn to_pin(&self, id: &str) -> Option<(Run, Option<PathBuf>)> {
        let container = self.containers.get(id)?;
        match &container.run {
            Some((run, Stage::Wanted)) => Some((*run, container.sandbox.clone())),
            _ => None,
        }
    }

    /// Name, label and run of this container, once its namespace counts.
    pub fn confirmed(&self, id: &str) -> Option<(&str, &str, Run)> {
        let container = self.containers.get(id)?;
        match &container.run {
            Some((run, Stage::Tried { pin: Ok(_), confirmed: true })) => Some((&container.name, container.label.as_deref()?, *run)),
            _ => None,
        }
    }

    /// A complete listing of the containers that run, asked for at `begun`.
    pub fn listed(&mut self, begun: u64, ids: &BTreeSet<String>) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        let absent: Vec<String> = self.containers.keys().filter(|id| !ids.contains(*id)).cloned().collect();
        for id in absent {
            if self.containers.get(&id).is_some_and(|container| container.known_at >= begun) {
                effects.ask.insert(id);
            } else {
                self.end(&id, &mut effects);
                self.remove(&id);
            }
        }
        self.doubts.retain(|id| ids.contains(id));
        for id in ids {
            match self.containers.get_mut(id) {
                Some(container) if container.label.is_none() => {}
                Some(Container { run: Some((_, Stage::Tried { pin: Ok(Pinned { born: Some(_), .. }), confirmed: true })), .. }) => {}
                known => {
                    if let Some(container) = known {
                        container.retry = true;
                    }
                    effects.ask.insert(id.clone());
                }
            }
        }
        if !self.settled {
            self.waiting.clone_from(&effects.ask);
        }
        self.listed = Some(begun);
        self.settle();
        effects
    }

    /// An event says that something about this container has changed.
    pub fn touched(&mut self, id: &str) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        self.ask(id, &mut effects);
        effects
    }

    /// An event says that a run of this container ended at `at` (as [`Run::started`]). It may be late, and mean an earlier run.
    pub fn ended(&mut self, id: &str, at: i64) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        let current = self.run(id).is_some_and(|run| run.started.is_none_or(|started| started < at));
        if current {
            self.end(id, &mut effects);
        }
        self.ask(id, &mut effects);
        effects
    }

    /// The kernel saw a run's end.
    pub fn died(&mut self, id: &str, run: Run) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        if self.run(id) == Some(run) {
            self.end(id, &mut effects);
            if let Some(container) = self.containers.get_mut(id) {
                container.dead = Some(run);
            }
        }
        self.settle();
        effects
    }

    /// An inspection that was asked for at `begun`; `None`: there is no such container.
    pub fn inspected(&mut self, begun: u64, id: &str, facts: Option<Facts>) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        let stale = match self.containers.get(id) {
            Some(container) => begun < container.ended_at,
            None => self.listed.is_some_and(|listed| begun < listed),
        };
        if !stale {
            self.doubts.remove(id);
        }
        match facts {
            _ if stale => self.ask(id, &mut effects),
            None => {
                self.end(id, &mut effects);
                self.remove(id);
            }
            Some(facts) => self.write(begun, id, facts, &mut effects),
        }
        self.settle();
        effects
    }

    /// An inspection brought no answer; the next listing asks again.
    pub fn unanswered(&mut self, id: &str) -> Effects {
        self.clock += 1;
        if self.waiting.remove(id) {
            self.doubts.insert(id.to_owned());
        }
        self.settle();
        Effects::default()
    }

    /// A run was pinned, or not.
    pub fn pinned(&mut self, id: &str, run: Run, outcome: Result<Pinned, NoPin>) -> Effects {
        self.clock += 1;
        let mut effects = Effects::default();
        let Some(container) = self.containers.get_mut(id) else { return effects };
        let Some((current, stage @ Stage::Wanted)) = &mut container.run else { return effects };
        if *current != run {
            return effects;
        }
        match outcome {
            Err(NoPin::Over) => {
                container.dead = Some(run);
                self.end(id, &mut effects);
            }
            Err(NoPin::Unreachable(why)) => *stage = Stage::Tried { pin: Err(why), confirmed: false },
            Ok(pinned) => *stage = Stage::Tried { pin: Ok(pinned), confirmed: false },
        }
        effects.ask.insert(id.to_owned());
        self.settle();
        effects
    }

    /// A run that an earlier life of the agent knew, and that the kernel still shows.
    pub fn recalled(&mut self, id: &str, facts: Facts, pinned: Pinned) {
        self.clock += 1;
        let mut effects = Effects::default();
        let run = facts.run;
        self.write(0, id, facts, &mut effects);
        if let (Some(run), Some(container)) = (run, self.containers.get_mut(id)) {
            container.run = Some((run, Stage::Tried { pin: Ok(pinned), confirmed: true }));
        }
    }

    /// The runtime cannot be asked. What is known stays true until somebody says otherwise.
    pub fn away(&mut self) -> Effects {
        self.clock += 1;
        if !self.settled {
            // What was told so far is not complete, and its inspections will not come.
            self.waiting.clear();
            self.listed = None;
        }
        Effects::default()
    }

    /// Who holds a label: the container that was there first. One whose namespace cannot be used does not keep it from one that can.
    pub fn holder(&self, label: &str) -> Holder {
        let (mut usable, mut own, mut unreachable) = (Vec::new(), Vec::new(), Vec::new());
        for id in self.by_label.get(label).into_iter().flatten() {
            let Some(container) = self.containers.get(id) else { continue };
            let Some((run, Stage::Tried { pin, confirmed: true })) = &container.run else { continue };
            let named = Named { started: run.started, id: id.clone(), name: container.name.clone() };
            match pin {
                Ok(Pinned { own: false, born }) => usable.push((*born, named)),
                Ok(Pinned { own: true, .. }) => own.push(named),
                Err(why) => unreachable.push((named, why.clone())),
            }
        }
        if usable.iter().any(|(born, _)| born.is_none()) {
            // Then only the runtime's clock is left.
            usable.iter_mut().for_each(|(born, _)| *born = None);
        }
        // Without a time first, then by time; which of equal ones comes first is decided by nobody.
        usable.sort();
        own.sort();
        unreachable.sort();
        match usable.as_slice() {
            [] => match (own.into_iter().next(), unreachable.into_iter().next()) {
                (Some(first), _) => Holder::InOwn(first),
                (None, Some((first, why))) => Holder::Unreachable(first, why),
                (None, None) => Holder::Nobody,
            },
            [(born, first), (next, second), ..] if born == next && (first.started.is_none() || first.started == second.started) => {
                Holder::Tie(usable.into_iter().map(|(_, named)| named).collect())
            }
            [(_, first), others @ ..] => Holder::Held(first.clone(), others.iter().map(|(_, named)| named).chain(&own).cloned().collect()),
        }
    }

    fn ask(&self, id: &str, effects: &mut Effects) {
        if self.containers.get(id).is_none_or(|container| container.label.is_some()) {
            effects.ask.insert(id.to_owned());
        }
    }

    fn write(&mut self, begun: u64, id: &str, facts: Facts, effects: &mut Effects) {
        let container = self.containers.entry(id.to_owned()).or_insert_with(|| Container {
            name: String::new(),
            label: None,
            sandbox: None,
            run: None,
            dead: None,
            known_at: begun,
            ended_at: 0,
            retry: false,
        });
        container.known_at = container.known_at.max(begun);
        if container.name != facts.name || container.label != facts.label {
            effects.labels.extend(container.label.clone());
            effects.labels.extend(facts.label.clone());
        }
        if container.label != facts.label
            && let Some(before) = container.label.take()
        {
            forget(&mut self.by_label, &before, id);
        }
        if let Some(label) = &facts.label {
            self.by_label.entry(label.clone()).or_default().insert(id.to_owned());
        }
        (container.name, container.label) = (facts.name, facts.label);
        let run = facts.run.filter(|run| container.label.is_some() && container.dead != Some(*run));
        let retry = std::mem::take(&mut container.retry);
        match (run, &mut container.run) {
            (None, _) => self.end(id, effects),
            (Some(run), Some((current, stage))) if *current == run => match stage {
                Stage::Tried { pin: Err(_), confirmed: true } if retry => {
                    *stage = Stage::Wanted;
                    container.sandbox = facts.sandbox;
                    effects.pin.insert(id.to_owned());
                }
                Stage::Tried { confirmed, .. } => {
                    if !std::mem::replace(confirmed, true) {
                        effects.labels.extend(container.label.clone());
                    }
                }
                Stage::Wanted => {
                    effects.pin.insert(id.to_owned());
                }
            },
            (Some(run), _) => {
                self.end(id, effects);
                if let Some(container) = self.containers.get_mut(id) {
                    // Nothing ended for this answer: it tells of what followed.
                    (container.run, container.sandbox) = (Some((run, Stage::Wanted)), facts.sandbox);
                }
                effects.pin.insert(id.to_owned());
            }
        }
    }

    /// The run that is written here is over.
    fn end(&mut self, id: &str, effects: &mut Effects) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.run.take().is_some() {
            container.ended_at = self.clock;
            effects.over.insert(id.to_owned());
            effects.labels.extend(container.label.clone());
        }
    }

    fn remove(&mut self, id: &str) {
        self.waiting.remove(id);
        let Some(container) = self.containers.remove(id) else { return };
        if let Some(label) = container.label {
            forget(&mut self.by_label, &label, id);
        }
    }

    /// The first listing counts when nothing is open about any container of it.
    fn settle(&mut self) {
        if self.settled || self.listed.is_none() {
            return;
        }
        let (containers, waiting) = (&self.containers, &mut self.waiting);
        waiting.retain(|id| match containers.get(id) {
            None => true,
            Some(container) => matches!(&container.run, Some((_, Stage::Wanted | Stage::Tried { confirmed: false, .. }))),
        });
        self.settled = self.waiting.is_empty();
    }
}

/// This container does not have the label any more.
fn forget(by_label: &mut BTreeMap<String, BTreeSet<String>>, label: &str, id: &str) {
    if let Some(ids) = by_label.get_mut(label) {
        ids.remove(id);
        if ids.is_empty() {
            by_label.remove(label);
        }
    }
}

#[cfg(test)]
mod tests;
