//! The same states on many ways: keys in another order, states in another order, flushed seldom or often, told twice. The same end is the same
//! kernel and the same statuses.
//!
//! The lists are written by hand and none reads the same backwards, so that "one goes while the other still needs it" comes up in both directions.
//! Where the contract lets history decide (who has a name keeps it, what stands when its key becomes invalid stays), the oracle alone is the judge.

use std::collections::BTreeMap;

use super::bench::Bench;
use super::oracle::{Bad, Want, Wants, faults};
use crate::linux::fake::{Baseline, NetnsSettings};
use crate::model::LinkKind;
use crate::store::StoreEvent;

type State = Vec<(&'static str, Want)>;

/// When the agent gets to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    EachKey,
    EachKeyTwice,
    EachState,
    AtTheEnd,
}

fn pair(a: &'static str, place_a: &'static str, b: &'static str, place_b: &'static str) -> State {
    vec![(a, Want::new(b, place_a)), (b, Want::new(a, place_b))]
}

fn changed(mut state: State, key: &str, change: impl FnOnce(&mut Want)) -> State {
    let want = state.iter_mut().find(|(k, _)| *k == key).map(|(_, want)| want);
    change(want.unwrap());
    state
}

fn hosts(state: State, names: &[(&str, &'static str)]) -> State {
    names.iter().fold(state, |state, (key, name)| changed(state, key, |want| want.host = Some(name)))
}

fn joined(states: &[State]) -> State {
    states.concat()
}

/// A dozen lists of states.
fn lists() -> Vec<(&'static str, Vec<State>)> {
    let ab = || pair("a1", "red", "a2", "blue");
    let cd = || pair("b1", "red", "b2", "own");
    let with = |list: &[&'static str]| changed(ab(), "a1", |want| want.addresses = list.to_vec());
    let swap = |x, y| hosts(joined(&[ab(), cd()]), &[("a1", x), ("b1", y)]);
    let circle = |x, y, z| hosts(joined(&[ab(), cd(), pair("c1", "red", "c2", "blue")]), &[("a1", x), ("b1", y), ("c1", z)]);
    let turned = vec![
        ("a1", Want::new("b1", "red")),
        ("a2", Want::new("b2", "blue")),
        ("b1", Want::new("a1", "red")),
        ("b2", Want::new("a2", "own")),
    ];
    let invalid = |bad| changed(ab(), "a1", |want| want.bad = Some(bad));
    let ipv6 = |mtu, list: &[&'static str]| changed(with(list), "a1", |want| want.mtu = mtu);
    vec![
        ("grow", vec![ab()[..1].to_vec(), ab(), joined(&[ab(), cd()])]),
        ("shrink", vec![joined(&[ab(), cd()]), joined(&[ab(), cd()[1..].to_vec()]), ab()[1..].to_vec()]),
        (
            "addresses",
            vec![with(&["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"]), with(&["10.0.0.2/24", "10.0.0.3/24"]), with(&["10.0.0.3/16"])],
        ),
        (
            "families",
            vec![ipv6(0, &["10.0.0.1/24", "fd00::1/64"]), ipv6(1000, &["10.0.0.1/24"]), ipv6(1400, &["fd00::1/48", "fd00::2/64"])],
        ),
        ("swap", vec![swap("x", "y"), swap("y", "x"), swap("y", "z")]),
        ("circle", vec![circle("x", "y", "z"), circle("z", "x", "y"), circle("y", "w", "x")]),
        ("move", vec![ab(), pair("a1", "own", "a2", "blue"), pair("a1", "own", "a2", "red"), pair("a1", "green", "a2", "red")]),
        ("change partners", vec![joined(&[ab(), cd()]), turned, joined(&[cd(), pair("a1", "blue", "a2", "red")])]),
        (
            "half turned",
            vec![
                joined(&[ab(), cd()]),
                vec![("a1", Want::new("b1", "red")), ("a2", Want::new("a1", "blue")), ("b1", Want::new("b2", "own"))],
            ],
        ),
        ("invalid between", vec![ab(), invalid(Bad::Encoding), invalid(Bad::Address), changed(ab(), "a2", |want| want.mtu = 1300)]),
        (
            "pass a name on",
            vec![hosts(ab(), &[("a1", "x")]), hosts(joined(&[ab(), cd()]), &[("b1", "x"), ("a1", "x")]), hosts(cd(), &[("b1", "x")])],
        ),
        ("missing namespace", vec![pair("a1", "nowhere", "a2", "red"), ab(), joined(&[pair("a1", "red", "a2", "nowhere"), cd()])]),
        (
            "foreign name",
            vec![hosts(ab(), &[("a1", "taken")]), joined(&[cd(), ab()]), joined(&[cd(), hosts(ab(), &[("a2", "x"), ("a1", "taken")])])],
        ),
        (
            "down",
            vec![
                changed(with(&["fd00::1/64"]), "a1", |want| want.enabled = false),
                with(&["fd00::1/64", "10.0.0.1/32"]),
                changed(changed(with(&["fd00::1/64"]), "a1", |want| want.mac = Some("02:00:00:00:00:01")), "a2", |want| {
                    want.enabled = false
                }),
            ],
        ),
    ]
}

/// The ways of a list. What comes last differs for some of them; each is judged by its own end.
fn ways(list: &[State]) -> Vec<(String, Vec<State>)> {
    let keys_reversed = |states: &[State]| states.iter().map(|state| state.iter().rev().cloned().collect()).collect::<Vec<State>>();
    let reversed: Vec<State> = list.iter().rev().cloned().collect();
    let between: Vec<State> = list.iter().flat_map(|state| [State::new(), state.clone()]).collect();
    let mut ways = vec![
        ("as is".to_owned(), list.to_vec()),
        ("keys reversed".to_owned(), keys_reversed(list)),
        ("states reversed".to_owned(), reversed.clone()),
        ("both reversed".to_owned(), keys_reversed(&reversed)),
        ("nothing between".to_owned(), between),
        ("and back again".to_owned(), [list, &reversed[1..]].concat()),
        ("and back and forth".to_owned(), [list, &reversed[1..], &list[1..]].concat()),
    ];
    ways.extend(list.iter().enumerate().map(|(n, state)| (format!("only state {n}"), vec![state.clone()])));
    ways
}

struct Run {
    bench: Bench,
    wants: Wants,
    foreign: Baseline,
    passes: Flush,
    waiting: Vec<StoreEvent>,
}

impl Run {
    fn new(passes: Flush) -> Self {
        let mut bench = Bench::new();
        bench.add_netns("green");
        // `promote_secondaries` is off everywhere but here.
        let kind = NetnsSettings { promote_secondaries: true, ..NetnsSettings::default() };
        bench.world.set_settings(bench.ns("own"), kind).unwrap();
        bench.world.add_link(bench.ns("red"), LinkKind::Other("bridge".into()), "taken").unwrap();
        let foreign = bench.world.baseline(&bench.owner);
        Self { bench, wants: Wants::new(), foreign, passes, waiting: Vec::new() }
    }

    fn key(&mut self, event: StoreEvent) {
        match self.passes {
            Flush::EachKey => self.waiting.push(event),
            Flush::EachKeyTwice => self.waiting.extend([event.clone(), event]),
            Flush::EachState | Flush::AtTheEnd => return self.waiting.push(event),
        }
        for event in std::mem::take(&mut self.waiting) {
            self.bench.deliver(vec![event]);
            self.bench.run();
        }
    }

    fn state(&mut self, state: &State) {
        let gone: Vec<&'static str> = self.wants.keys().filter(|key| !state.iter().any(|(k, _)| k == *key)).copied().collect();
        for key in gone {
            self.wants.remove(key);
            let event = self.bench.erase(key);
            self.key(event);
        }
        for (key, want) in state {
            if self.wants.get(key) != Some(want) {
                self.wants.insert(key, want.clone());
                for event in self.bench.write(&[(key, &want.json(key))]) {
                    self.key(event);
                }
            }
        }
        if self.passes == Flush::EachState {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.bench.deliver(std::mem::take(&mut self.waiting));
        self.bench.run();
    }

    /// The kernel and the statuses at the end, after everything else has been judged.
    fn end(mut self, name: &str) -> (String, Vec<String>) {
        self.flush();
        let found = faults(&self.bench, &self.wants);
        assert!(found.is_empty(), "{name}: {found:#?}\nstates {:?}\n{}", self.bench.states(), self.bench.digest());
        self.bench.world.foreign_untouched(&self.foreign).unwrap();
        let writes = self.bench.writes();
        self.bench.restart();
        assert_eq!(self.bench.writes(), writes, "{name}: a restart writes nothing: {:?}", self.bench.world.take_log().last());
        self.bench.assert_sound();
        (self.bench.digest(), self.bench.states())
    }
}

#[test]
fn the_same_end_on_every_way() {
    let mut runs = 0;
    for (list, states) in lists() {
        let mut ends: BTreeMap<String, (String, (String, Vec<String>))> = BTreeMap::new();
        for (way, states) in ways(&states) {
            for flush in [Flush::EachKey, Flush::EachKeyTwice, Flush::EachState, Flush::AtTheEnd] {
                let name = format!("{list}, {way}, {flush:?}");
                let mut run = Run::new(flush);
                for state in &states {
                    run.state(state);
                }
                let mut last = states.last().unwrap().clone();
                last.sort_by_key(|(key, _)| *key);
                // What stood before its value became invalid, or its new name was taken, stays: there the oracle alone is the judge.
                let stays = |want: &Want| want.bad.is_some() || want.host == Some("taken");
                let judged_alone = last.iter().any(|(_, want)| stays(want)) || shares_a_name(&last);
                let (digest, said) = run.end(&name);
                // A link keeps its hardware address when the wish for it goes.
                let mac_wished = last.iter().any(|(_, want)| want.mac.is_some());
                let digest = digest.split_inclusive([' ', '\n']).filter(|word| mac_wished || !word.starts_with("mac=")).collect::<String>();
                let end = (digest, said);
                runs += 1;
                if judged_alone {
                    continue;
                }
                let (first, wanted) = ends.entry(format!("{last:?}")).or_insert_with(|| (name.clone(), end.clone()));
                assert_eq!(*wanted, end, "{name} differs from {first}");
            }
        }
    }
    assert!(runs > 500, "only {runs} runs");
}

/// Whether two wishes want one name: who comes first is then a matter of history.
fn shares_a_name(state: &State) -> bool {
    let places: std::collections::BTreeSet<_> = state.iter().map(|(key, want)| (want.netns, want.host.unwrap_or(key))).collect();
    places.len() < state.len()
}
