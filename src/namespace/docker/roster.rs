//! The microservices of this host: the book, the namespaces that were pinned for it, and the words for those who wait. Lives on the tracker's thread.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::book::{Book, Effects, Facts, Holder, Named, Run};
use super::memory::{Memory, Record};
use super::pin::{Pin, pin};
use super::port::{Desk, News};
use super::short;
use crate::model::netns::MICROSERVICE_VARIABLE;
use crate::model::{Reason, Timestamp};
use crate::namespace::Container;
use crate::namespace::process::{Found, Process};
use crate::namespace::resolve::{Answer, Resolver};

/// How the runtime stands, for the words.
enum Link {
    /// Nobody follows one.
    Off,
    /// Not heard of yet.
    Starting,
    Connected,
    Away {
        since: Timestamp,
        why: String,
    },
}

/// All microservices.
pub struct Roster {
    book: Book,
    pins: HashMap<String, (Run, Pin)>,
    desk: Arc<Desk>,
    link: Link,
    /// Where the runtime is: `unix:///var/run/docker.sock`.
    endpoint: String,
    memory: Memory,
    /// The runtime's processes have the same numbers here: once seen, that does not change.
    same_numbers: bool,
    /// Labels of which a warning about several containers was logged, with those.
    warned: HashMap<String, BTreeSet<String>>,
    /// Labels whose container ended while no agent ran, as the kernel shows.
    ended: BTreeSet<String>,
}

impl Roster {
    /// What an earlier run of the agent knew and the kernel still shows; `endpoint` names the runtime, `None`: none is followed.
    pub fn new(endpoint: Option<String>, state_dir: Option<&Path>, desk: Arc<Desk>, resolver: &Resolver) -> Self {
        let followed = endpoint.is_some();
        let mut roster = Self::empty(endpoint, Memory::new(state_dir.filter(|_| followed)), desk);
        for record in roster.memory.load() {
            roster.recall(record, resolver);
        }
        roster.desk.set_clock(roster.book.clock());
        roster
    }

    fn empty(endpoint: Option<String>, memory: Memory, desk: Arc<Desk>) -> Self {
        let link = if endpoint.is_some() { Link::Starting } else { Link::Off };
        let endpoint = endpoint.unwrap_or_default();
        Self {
            book: Book::default(),
            pins: HashMap::new(),
            desk,
            link,
            endpoint,
            memory,
            same_numbers: false,
            warned: HashMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// A run counts as what it was when the same process is still in the same namespace.
    fn recall(&mut self, record: Record, resolver: &Resolver) {
        let ended = match Process::find(record.pid) {
            Ok(Found::Process(process)) => resolver.mark(&process) != record.mark(),
            Ok(Found::Nobody | Found::Thread) => true,
            Err(_) => false,
        };
        if ended {
            self.ended.insert(record.label);
            return;
        }
        let run = Run { started: record.started, pid: record.pid };
        let Ok(pin) = pin(resolver, &record.id, run, record.sandbox.as_deref(), false) else { return };
        let same = pin.process.as_ref().is_some_and(|process| resolver.mark(process) == record.mark());
        if !same || pin.handle.id.0.get() != record.cookie {
            return;
        }
        let facts = Facts { name: record.name, label: Some(record.label), run: Some(run), sandbox: record.sandbox };
        self.book.recalled(&record.id, facts, pin.outline());
        self.pins.insert(record.id, (run, pin));
    }

    /// Remembers what has changed, if that is due.
    pub fn save(&mut self, resolver: &Resolver) {
        let (book, pins) = (&self.book, &self.pins);
        self.memory.save(|| {
            let record = |(id, (_, pin)): (&String, &(Run, Pin))| {
                let (name, label, run) = book.confirmed(id)?;
                let process = Record::process(resolver.mark(pin.process.as_ref()?));
                let sandbox = pin.sandbox.as_ref().map(|(place, _)| place.path().to_owned());
                let (label, id, name) = (label.to_owned(), id.clone(), name.to_owned());
                Some(Record { label, id, name, started: run.started, pid: run.pid, sandbox, cookie: pin.handle.id.0.get(), process })
            };
            pins.iter().filter_map(record).collect()
        });
    }

    /// When there is something to be remembered.
    pub fn save_due(&self) -> Option<Instant> {
        self.memory.due()
    }

    /// Takes what the runtime told; returns the labels whose answer may be another one now, `None` for all.
    pub fn take(&mut self, news: News, resolver: &Resolver) -> Option<BTreeSet<String>> {
        let before = (self.book.settled(), self.book.doubtful());
        let effects = match news {
            News::Listed(begun, ids) => self.book.listed(begun, &ids),
            News::Inspected(begun, id, facts) => self.book.inspected(begun, &id, facts),
            News::Unanswered(id) => self.book.unanswered(&id),
            News::Touched(id) => self.book.touched(&id),
            News::Ended(id, at) => self.book.ended(&id, at),
            News::Connected => return self.turn(Link::Connected),
            News::Away(why) => {
                let effects = self.book.away();
                self.carry_out(effects, resolver);
                // The first reason of an outage is told; the attempts to reconnect may fail in other ways.
                let already = matches!(self.link, Link::Away { .. });
                return if already { Some(BTreeSet::new()) } else { self.turn(Link::Away { since: SystemTime::now().into(), why }) };
            }
        };
        let labels = self.carry_out(effects, resolver);
        if (self.book.settled(), self.book.doubtful()) == before { Some(labels) } else { None }
    }

    fn turn(&mut self, link: Link) -> Option<BTreeSet<String>> {
        let same = matches!((&self.link, &link), (Link::Connected, Link::Connected));
        self.link = link;
        if same { Some(BTreeSet::new()) } else { None }
    }

    /// Does what the book asks for; returns the labels that were touched.
    fn carry_out(&mut self, mut effects: Effects, resolver: &Resolver) -> BTreeSet<String> {
        for id in &effects.over {
            if self.pins.get(id).is_some_and(|(run, _)| self.book.run(id) != Some(*run)) {
                self.pins.remove(id);
            }
        }
        for id in std::mem::take(&mut effects.pin) {
            let Some((run, sandbox)) = self.book.to_pin(&id) else { continue };
            let outcome = pin(resolver, &id, run, sandbox.as_deref(), self.same_numbers).map(|pin| {
                let outline = pin.outline();
                // In the agent's own namespace there are many: one that has the number by chance proves nothing.
                self.same_numbers |= pin.process.is_some() && pin.sandbox.is_some() && !pin.handle.own;
                self.pins.insert(id.clone(), (run, pin));
                outline
            });
            let more = self.book.pinned(&id, run, outcome);
            effects.ask.extend(more.ask);
            effects.labels.extend(more.labels);
        }
        if !effects.labels.is_empty() {
            self.memory.touch();
        }
        self.desk.set_clock(self.book.clock());
        self.desk.ask(effects.ask);
        self.warn(&effects.labels);
        effects.labels
    }

    /// Processes whose end is a run's end.
    pub fn watched(&self) -> impl Iterator<Item = (&String, &Arc<Process>)> {
        self.pins.iter().filter_map(|(id, (_, pin))| Some((id, pin.process.as_ref()?)))
    }

    /// The process of this container's run has ended.
    pub fn died(&mut self, id: &str, resolver: &Resolver) -> BTreeSet<String> {
        let Some((run, _)) = self.pins.remove(id) else { return BTreeSet::new() };
        let effects = self.book.died(id, run);
        self.carry_out(effects, resolver)
    }

    /// Looks whether sandbox files went away, where no process tells of the end.
    pub fn look_at_files(&mut self, resolver: &Resolver) -> BTreeSet<String> {
        let over: Vec<String> =
            self.pins.iter().filter(|(_, (_, pin))| pin.process.is_none() && pin.is_over()).map(|(id, _)| id.clone()).collect();
        over.iter().flat_map(|id| self.died(id, resolver)).collect()
    }

    /// Where a label leads; `None`: that is not known yet.
    pub fn answer(&self, label: &str) -> Option<Answer> {
        let holder = self.book.holder(label);
        let settled = self.book.settled();
        let known = matches!(self.link, Link::Off) || settled && !self.book.doubtful();
        // What an earlier run knew is true until the runtime says otherwise.
        if !known && !matches!(holder, Holder::Held(..)) {
            if !settled && !matches!(self.link, Link::Away { .. }) {
                return None;
            }
            if !self.ended.contains(label) {
                let unless = if settled { ", unless it is one that could not be inspected yet" } else { "" };
                let message = format!("{}{unless}; what stands is kept until it answers", self.nobody(label));
                return Some(Answer::Unknown(Reason::MicroserviceMissing, message));
            }
        }
        let shown = label.escape_debug();
        let missing = |message: String| Answer::Unbound(Reason::MicroserviceMissing, message);
        Some(match holder {
            Holder::Nobody => missing(self.nobody(label)),
            Holder::Held(first, others) => match self.pins.get(&first.id) {
                Some((_, pin)) => Answer::Bound(pin.handle.clone(), Some(Arc::new(container(&first, &others)))),
                None => missing(self.nobody(label)),
            },
            Holder::InOwn(first) => {
                let message = format!(
                    "microservice `{shown}` is container {}, which is in the agent's own namespace (`--network host`); leave `namespace` out to mean the agent's own",
                    short(&first)
                );
                Answer::Refused(Reason::OwnNamespace, message)
            }
            Holder::Unreachable(first, why) => missing(format!(
                "container {} runs with {MICROSERVICE_VARIABLE}={shown}, but its namespace cannot be opened: {why}; the agent needs the host's \
                 process numbers or the runtime's sandbox files",
                short(&first)
            )),
            Holder::Tie(all) => {
                let all: Vec<String> = all.iter().map(short).collect();
                let message = format!(
                    "containers {} run with {MICROSERVICE_VARIABLE}={shown} and were started at the same moment: it cannot be told which was first; \
                     stop all but one",
                    all.join(" and ")
                );
                Answer::Unbound(Reason::DuplicateLabel, message)
            }
        })
    }

    fn nobody(&self, label: &str) -> String {
        let shown = label.escape_debug();
        let mut message = format!("no running container has {MICROSERVICE_VARIABLE}={shown}");
        // Writing to a string cannot fail.
        let _ = match &self.link {
            Link::Connected | Link::Starting => Ok(()),
            Link::Off => write!(message, ": no container runtime is watched (`--docker-host` is off)"),
            Link::Away { since, why } => {
                write!(
                    message,
                    " as far as is known: the container runtime has not been reachable at {} since {since}: {why}",
                    self.endpoint
                )
            }
        };
        message
    }

    /// One line in the log when several containers run with one label, and when others do.
    fn warn(&mut self, labels: &BTreeSet<String>) {
        for label in labels {
            let (holder, others) = match self.book.holder(label) {
                Holder::Held(first, others) if !others.is_empty() => (Some(first), others),
                Holder::Tie(all) => (None, all),
                _ => {
                    self.warned.remove(label);
                    continue;
                }
            };
            let all: BTreeSet<String> = holder.iter().chain(&others).map(|named| named.id.clone()).collect();
            if self.warned.get(label) == Some(&all) {
                continue;
            }
            self.warned.insert(label.clone(), all);
            let others: Vec<String> = others.iter().map(|named| format!("{} ({})", named.id, named.name.escape_debug())).collect();
            let label = label.escape_debug();
            match holder {
                Some(holder) => tracing::warn!(
                    %label, holder = %holder.id, name = %holder.name.escape_debug(), others = others.join(", "),
                    "several containers run with one MICROSERVICE_LABEL; the one that was there first has it until it ends"
                ),
                None => {
                    tracing::warn!(%label, containers = others.join(", "), "containers with one MICROSERVICE_LABEL were started at the same moment")
                }
            }
        }
    }
}

fn container(first: &Named, others: &[Named]) -> Container {
    Container {
        id: first.id.clone(),
        name: first.name.clone(),
        started: first.started.map(|nanos| Timestamp(nanos / 1_000_000)),
        others: others.iter().map(|other| (other.id.clone(), other.name.clone())).collect(),
    }
}
