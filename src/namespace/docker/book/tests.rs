//! A runtime with a history of containers tells it in any order, twice, late or not at all: the book ends with the truth.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{Book, Effects, Facts, Holder, Named, NoPin, Pinned, Run};

fn facts(label: &str, run: Option<(i64, i32)>) -> Facts {
    let label = (!label.is_empty()).then(|| label.to_owned());
    Facts { name: "n".to_owned(), label, run: run.map(|(started, pid)| Run { started: Some(started), pid }), sandbox: None }
}

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(ToString::to_string).collect()
}

const GOOD: Pinned = Pinned { own: false, born: Some(1) };

/// Brings a container into the book, all the way.
fn run(book: &mut Book, id: &str, label: &str, started: i64) {
    let told = facts(label, Some((started, 7)));
    book.inspected(book.clock(), id, Some(told.clone()));
    book.pinned(id, told.run.unwrap(), Ok(GOOD));
    book.inspected(book.clock(), id, Some(told));
}

fn holder(book: &Book, label: &str) -> Option<String> {
    match book.holder(label) {
        Holder::Held(first, _) => Some(first.id),
        _ => None,
    }
}

#[test]
fn a_namespace_counts_only_when_the_run_is_the_same_after_it_was_opened() {
    let mut book = Book::default();
    let first = facts("ms1", Some((10, 7)));
    let effects = book.inspected(book.clock(), "a", Some(first.clone()));
    assert_eq!(effects.pin, ids(&["a"]));
    let effects = book.pinned("a", first.run.unwrap(), Ok(GOOD));
    assert_eq!((effects.ask, holder(&book, "ms1")), (ids(&["a"]), None));
    // Restarted in between: what was opened under the number 7 may be anybody's.
    let second = facts("ms1", Some((20, 7)));
    let effects = book.inspected(book.clock(), "a", Some(second.clone()));
    assert_eq!((effects.pin, effects.over, holder(&book, "ms1")), (ids(&["a"]), ids(&["a"]), None));
    book.pinned("a", second.run.unwrap(), Ok(GOOD));
    let effects = book.inspected(book.clock(), "a", Some(second));
    assert_eq!((effects.labels, holder(&book, "ms1")), (ids(&["ms1"]), Some("a".to_owned())));
}

#[test]
fn an_answer_to_a_question_from_before_the_end_is_asked_for_again() {
    let mut book = Book::default();
    run(&mut book, "a", "ms1", 10);
    let asked = book.clock();
    book.ended("a", 15);
    let effects = book.inspected(asked, "a", Some(facts("ms1", Some((10, 7)))));
    assert_eq!((effects.ask, effects.pin, holder(&book, "ms1")), (ids(&["a"]), ids(&[]), None));
}

#[test]
fn a_listing_from_before_a_start_ends_nothing() {
    let mut book = Book::default();
    let asked = book.clock();
    run(&mut book, "a", "ms1", 10);
    let effects = book.listed(asked, &ids(&[]));
    assert_eq!((effects.ask, effects.over), (ids(&["a"]), ids(&[])));
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
    assert_eq!(book.listed(book.clock(), &ids(&[])).over, ids(&["a"]));
}

#[test]
fn a_late_end_of_an_earlier_run_ends_nothing() {
    let mut book = Book::default();
    run(&mut book, "a", "ms1", 20);
    assert_eq!(book.ended("a", 15).over, ids(&[]));
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
    assert_eq!(book.ended("a", 25).over, ids(&["a"]));
}

#[test]
fn one_of_the_first_listing_that_cannot_be_inspected_leaves_doubt_until_it_is_or_is_gone() {
    for gone in [false, true] {
        let mut book = Book::default();
        book.listed(book.clock(), &ids(&["a", "b"]));
        run(&mut book, "a", "ms1", 10);
        assert!(!book.settled());
        book.unanswered("b");
        assert!(book.settled() && book.doubtful());
        book.listed(book.clock(), &ids(&["a", "b"]));
        assert!(book.doubtful(), "it may still have any label");
        if gone {
            book.listed(book.clock(), &ids(&["a"]));
        } else {
            book.inspected(book.clock(), "b", Some(facts("", Some((5, 8)))));
        }
        assert!(!book.doubtful());
        // Later ones are missed by their events alone: what they would have had was nobody's before.
        book.unanswered("c");
        assert!(!book.doubtful());
    }
}

#[test]
fn what_the_kernel_saw_end_stays_ended_whatever_the_runtime_says() {
    let mut book = Book::default();
    run(&mut book, "a", "ms1", 10);
    book.died("a", Run { started: Some(10), pid: 7 });
    book.inspected(book.clock(), "a", Some(facts("ms1", Some((10, 7)))));
    book.listed(book.clock(), &ids(&["a"]));
    assert_eq!(book.run("a"), None);
    run(&mut book, "a", "ms1", 11);
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
}

#[test]
fn who_was_there_first_has_the_label_and_the_next_one_takes_over() {
    let mut book = Book::default();
    run(&mut book, "b", "ms1", 20);
    run(&mut book, "a", "ms1", 30);
    assert_eq!(holder(&book, "ms1"), Some("b".to_owned()));
    let told = facts("ms1", Some((10, 9)));
    book.inspected(book.clock(), "host", Some(told.clone()));
    book.pinned("host", told.run.unwrap(), Ok(Pinned { own: true, born: Some(1) }));
    book.inspected(book.clock(), "host", Some(told));
    let named = |id: &str, started| Named { started: Some(started), id: id.to_owned(), name: "n".to_owned() };
    assert_eq!(book.holder("ms1"), Holder::Held(named("b", 20), vec![named("a", 30), named("host", 10)]), "one that can be used");
    book.ended("b", 40);
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
    run(&mut book, "b", "ms1", 50);
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
    book.listed(book.clock(), &ids(&["b", "host"]));
    assert_eq!(holder(&book, "ms1"), Some("b".to_owned()));
    run(&mut book, "c", "ms1", 50);
    assert_eq!(book.holder("ms1"), Holder::Tie(vec![named("b", 50), named("c", 50)]));
    book.listed(book.clock(), &ids(&["host"]));
    assert_eq!(book.holder("ms1"), Holder::InOwn(named("host", 10)));
}

/// A clock that is set back makes no later one the first.
#[test]
fn who_was_there_first_is_told_by_the_kernel_where_it_can() {
    let mut book = Book::default();
    for (id, started, born) in [("a", 100, Some(5)), ("b", 10, Some(6))] {
        let told = facts("ms1", Some((started, 7)));
        book.inspected(book.clock(), id, Some(told.clone()));
        book.pinned(id, told.run.unwrap(), Ok(Pinned { own: false, born }));
        book.inspected(book.clock(), id, Some(told));
    }
    assert_eq!(holder(&book, "ms1"), Some("a".to_owned()));
    let told = facts("ms1", Some((50, 8)));
    book.inspected(book.clock(), "c", Some(told.clone()));
    book.pinned("c", told.run.unwrap(), Ok(Pinned { own: false, born: None }));
    book.inspected(book.clock(), "c", Some(told));
    assert_eq!(holder(&book, "ms1"), Some("b".to_owned()), "one of which the kernel does not tell: by the runtime's clock");
}

/// Neither are they after an outage in the middle of it.
#[test]
fn a_listing_that_an_outage_cut_off_proves_nothing() {
    let mut book = Book::default();
    book.listed(book.clock(), &ids(&["a", "b"]));
    book.inspected(book.clock(), "a", Some(facts("", None)));
    book.away();
    run(&mut book, "c", "ms2", 10);
    assert!(!book.settled());
    let effects = book.listed(book.clock(), &ids(&["a", "b", "c"]));
    assert!(effects.ask.contains("b") && !book.settled());
    book.inspected(book.clock(), "b", None);
    book.inspected(book.clock(), "c", Some(facts("ms2", Some((10, 7)))));
    assert!(book.settled());
    book.away();
    assert!(book.settled(), "what was complete once is kept up by events and the kernel");
}

/// Podman can change the environment of a container that is there.
#[test]
fn a_container_with_another_label_does_not_hold_the_one_before() {
    let mut book = Book::default();
    run(&mut book, "a", "ms1", 10);
    let effects = book.inspected(book.clock(), "a", Some(facts("ms2", Some((10, 7)))));
    assert_eq!(effects.labels, ids(&["ms1", "ms2"]));
    assert_eq!((holder(&book, "ms1"), holder(&book, "ms2")), (None, Some("a".to_owned())));
    run(&mut book, "b", "ms1", 20);
    assert_eq!(holder(&book, "ms1"), Some("b".to_owned()));
}

#[test]
fn nothing_is_missing_before_the_first_listing_is_complete() {
    let mut book = Book::default();
    let effects = book.listed(book.clock(), &ids(&["a", "b", "c"]));
    assert_eq!(effects.ask, ids(&["a", "b", "c"]));
    book.inspected(book.clock(), "a", Some(facts("", None)));
    book.unanswered("b");
    assert!(!book.settled());
    let told = facts("ms1", Some((10, 7)));
    book.inspected(book.clock(), "c", Some(told.clone()));
    book.pinned("c", told.run.unwrap(), Err(NoPin::Unreachable("no".to_owned())));
    assert!(!book.settled());
    book.inspected(book.clock(), "c", Some(told));
    assert!(book.settled() && matches!(book.holder("ms1"), Holder::Unreachable(..)));
}

#[test]
fn containers_without_a_label_are_inspected_once() {
    let mut book = Book::default();
    book.inspected(book.clock(), "a", Some(facts("", Some((1, 2)))));
    assert_eq!(book.touched("a"), Effects::default());
    assert_eq!(book.ended("a", 5), Effects::default());
    assert_eq!(book.listed(book.clock(), &ids(&["a"])), Effects::default());
    book.listed(book.clock(), &ids(&[]));
    assert!(book.containers.is_empty(), "and forgotten with the container");
}

/// What happens at the runtime.
#[derive(Clone, Debug)]
enum Act {
    Start(u8),
    Die(u8),
    Remove(u8),
    /// The runtime's clock is set back.
    ClockBack,
}

/// How it comes to the book.
#[derive(Clone, Debug)]
enum Delivery {
    Act(Act),
    /// The event at this place of those not delivered yet.
    Event(usize),
    /// An event once more.
    Again(usize),
    /// Events are lost.
    Lose,
    Ask(u8),
    /// The answer at this place of those under way.
    Answer(usize),
    BeginListing,
    EndListing,
    /// The kernel tells of an end.
    Kernel(u8),
}

#[derive(Clone, Debug)]
enum Event {
    Touched(String),
    Ended(String, i64),
}

/// The runtime, the kernel, and the way from them to the book.
#[derive(Default)]
struct World {
    now: i64,
    pids: i32,
    /// Containers that exist, each with its run.
    containers: BTreeMap<String, Option<Run>>,
    events: Vec<Event>,
    told: Vec<Event>,
    answers: VecDeque<(u64, String, Option<Facts>)>,
    listing: Option<(u64, BTreeSet<String>)>,
    /// Runs that ended and whose end the kernel has to tell.
    ends: Vec<(String, Run)>,
    pinned: BTreeMap<String, Run>,
    book: Book,
}

fn name(n: u8) -> String {
    format!("c{n}")
}

/// Containers 0 to 3 share one label, 4 has another, 5 has none.
fn label(id: &str) -> &'static str {
    match id {
        "c4" => "other",
        "c5" => "",
        _ => "ms1",
    }
}

impl World {
    fn act(&mut self, act: &Act) {
        self.now += 10;
        match act {
            Act::Start(n) => {
                let run = self.containers.entry(name(*n)).or_default();
                if run.is_none() {
                    self.pids += 1;
                    // Numbers of processes are used again.
                    *run = Some(Run { started: Some(self.now), pid: self.pids % 3 });
                    self.events.push(Event::Touched(name(*n)));
                }
            }
            Act::Die(n) => {
                if let Some(run) = self.containers.get_mut(&name(*n)).and_then(Option::take) {
                    self.ends.push((name(*n), run));
                    self.events.push(Event::Ended(name(*n), self.now));
                }
            }
            Act::Remove(n) => {
                self.act(&Act::Die(*n));
                if self.containers.remove(&name(*n)).is_some() {
                    self.events.push(Event::Ended(name(*n), self.now));
                }
            }
            Act::ClockBack => self.now -= 200,
        }
    }

    fn deliver(&mut self, delivery: &Delivery) {
        match delivery {
            Delivery::Act(act) => self.act(act),
            Delivery::Event(at) if !self.events.is_empty() => {
                let event = self.events.remove(at % self.events.len());
                self.told.push(event.clone());
                self.tell(event);
            }
            Delivery::Again(at) if !self.told.is_empty() => self.tell(self.told[at % self.told.len()].clone()),
            Delivery::Lose => self.events.clear(),
            Delivery::Ask(n) => self.ask(&name(*n)),
            Delivery::Answer(at) if !self.answers.is_empty() => {
                let at = at % self.answers.len();
                // Questions about one container are asked one after the other.
                let id = self.answers[at].1.clone();
                let first = self.answers.iter().position(|(_, other, _)| *other == id).unwrap();
                let (begun, id, facts) = self.answers.remove(first).unwrap();
                let effects = self.book.inspected(begun, &id, facts);
                self.carry_out(effects);
            }
            Delivery::BeginListing => self.listing = Some((self.book.clock(), self.running())),
            Delivery::EndListing => {
                if let Some((begun, running)) = self.listing.take() {
                    let effects = self.book.listed(begun, &running);
                    self.carry_out(effects);
                }
            }
            Delivery::Kernel(at) if !self.ends.is_empty() => {
                let (id, run) = self.ends.remove(usize::from(*at) % self.ends.len());
                if self.pinned.get(&id) == Some(&run) {
                    self.pinned.remove(&id);
                    let effects = self.book.died(&id, run);
                    self.carry_out(effects);
                }
            }
            _ => {}
        }
    }

    fn running(&self) -> BTreeSet<String> {
        self.containers.iter().filter(|(_, run)| run.is_some()).map(|(id, _)| id.clone()).collect()
    }

    fn tell(&mut self, event: Event) {
        let effects = match event {
            Event::Touched(id) => self.book.touched(&id),
            Event::Ended(id, at) => self.book.ended(&id, at),
        };
        self.carry_out(effects);
    }

    fn ask(&mut self, id: &str) {
        let facts = self.containers.get(id).map(|run| facts(label(id), run.map(|run| (run.started.unwrap(), run.pid))));
        self.answers.push_back((self.book.clock(), id.to_owned(), facts));
    }

    fn carry_out(&mut self, effects: Effects) {
        for id in effects.over {
            if self.pinned.get(&id).is_some_and(|run| self.book.run(&id) != Some(*run)) {
                self.pinned.remove(&id);
            }
        }
        let mut ask = effects.ask;
        for id in effects.pin {
            let Some((run, _)) = self.book.to_pin(&id) else { continue };
            // The process of a run that is over is not there.
            let there = self.containers.get(&id) == Some(&Some(run));
            if there {
                self.pinned.insert(id.clone(), run);
            }
            ask.extend(self.book.pinned(&id, run, if there { Ok(GOOD) } else { Err(NoPin::Over) }).ask);
        }
        for id in ask {
            self.ask(&id);
        }
    }

    /// Everything arrives, in the end.
    fn come_to_rest(&mut self) {
        let mut rounds = 0;
        self.deliver(&Delivery::EndListing);
        while !self.events.is_empty() || !self.answers.is_empty() || !self.ends.is_empty() {
            self.deliver(&Delivery::Event(0));
            self.deliver(&Delivery::Answer(0));
            self.deliver(&Delivery::Kernel(0));
            rounds += 1;
            assert!(rounds < 10_000, "it never comes to rest");
        }
    }

    fn truth(&self, wanted: &str) -> Option<String> {
        let running =
            self.containers.iter().filter(|(id, _)| label(id) == wanted).filter_map(|(id, run)| Some((run.as_ref()?.started, id)));
        running.min().map(|(_, id)| id.clone())
    }
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![5 => (0..6_u8).prop_map(Act::Start), 4 => (0..6_u8).prop_map(Act::Die), 1 => (0..6_u8).prop_map(Act::Remove), 1 => Just(Act::ClockBack)]
}

fn deliveries() -> impl Strategy<Value = Delivery> {
    prop_oneof![
        6 => acts().prop_map(Delivery::Act),
        6 => any::<usize>().prop_map(Delivery::Event),
        2 => any::<usize>().prop_map(Delivery::Again),
        1 => Just(Delivery::Lose),
        2 => (0..6_u8).prop_map(Delivery::Ask),
        8 => any::<usize>().prop_map(Delivery::Answer),
        2 => Just(Delivery::BeginListing),
        2 => Just(Delivery::EndListing),
        4 => any::<u8>().prop_map(Delivery::Kernel),
    ]
}

proptest! {
    #[test]
    fn whatever_the_order_the_end_is_the_truth(steps in prop::collection::vec(deliveries(), 0..80)) {
        let mut world = World::default();
        for step in &steps {
            world.deliver(step);
            // Whatever is said, it is about a run that was pinned.
            for wanted in ["ms1", "other"] {
                if let Some(id) = holder(&world.book, wanted) {
                    prop_assert!(world.pinned.contains_key(&id), "{id} is told without a namespace");
                }
            }
        }
        world.come_to_rest();
        // One listing finds what was lost.
        world.deliver(&Delivery::BeginListing);
        world.come_to_rest();
        prop_assert!(world.book.settled());
        for wanted in ["ms1", "other"] {
            // Two runs with one start are nobody's; the clock that was set back makes them.
            if !matches!(world.book.holder(wanted), Holder::Tie(_)) {
                prop_assert_eq!(holder(&world.book, wanted), world.truth(wanted), "label {}", wanted);
            }
        }
        prop_assert_eq!(world.book.run("c5"), None);
        let running = world.running();
        prop_assert!(world.pinned.keys().all(|id| running.contains(id)), "a namespace is held that nobody runs in: {:?}", world.pinned);
    }
}
