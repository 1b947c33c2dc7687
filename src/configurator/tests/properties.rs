//! Whatever is wished, in whatever order it arrives, whatever others do and whenever the agent dies: in the end the kernel is as wished.
//!
//! `PROPTEST_CASES` sets how many lives are tried.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::time::Duration;

use super::bench::{Bench, killer};
use super::oracle::{Bad, Make, Want, Wants, faults};
use crate::linux::fake::OpKind;
use crate::model::{InterfaceAddress, LinkId, LinkKind, ObservedLink, TunInfo};
use crate::store::StoreEvent;

const KEYS: [&str; 6] = ["a1", "a2", "b1", "b2", "c1", "c2"];
const PLACES: [&str; 4] = ["own", "red", "blue", "green"];
const NAMES: [&str; 4] = ["x", "y", "a1", "b2"];
/// Names under which someone else makes TAPs.
const TAPS: [&str; 3] = ["tap1", "tap2", "x"];
const KINDS: [OpKind; 9] = [
    OpKind::MoveLink,
    OpKind::CreateVeth,
    OpKind::CreateTap,
    OpKind::SetLink,
    OpKind::AddAddress,
    OpKind::RemoveAddress,
    OpKind::DeleteLink,
    OpKind::ReadNetns,
    OpKind::ReadLink,
];

/// What happens.
#[derive(Clone, Debug)]
enum Act {
    Put(usize, Want),
    /// Both ends of a pair at one revision.
    Pair(usize, Want, Want),
    Del(usize),
    /// Events reach the agent in some order across keys, in two parts, perhaps twice.
    Flush {
        order: u8,
        twice: bool,
    },
    Pass,
    Run,
    Relist,
    Restart,
    /// The agent dies right before a kernel call.
    KillAt(OpKind, u64),
    /// A namespace ends, or is there again.
    Netns(usize),
    Foreign {
        place: usize,
        name: usize,
        veth: bool,
    },
    ForeignGone {
        place: usize,
        name: usize,
    },
    /// Someone changes one of our links; perhaps without anybody being told.
    Outsider {
        pick: usize,
        what: u8,
        unseen: bool,
    },
    /// Someone makes a TAP, or takes one away wherever it is.
    Vpp {
        name: usize,
        gone: bool,
    },
    Lost,
    Resync,
    Wait(u64),
}

fn want(key: usize) -> impl Strategy<Value = Want> {
    let partner = KEYS[key ^ 1];
    let addresses = subsequence(vec!["10.0.0.1/24", "10.0.0.2/24", "10.0.0.1/32", "10.0.1.1/24", "fd00::1/64", "fd00::2/64"], 0..4);
    let bad = prop_oneof![
        9 => Just(None),
        1 => select(vec![Bad::Encoding, Bad::OtherName, Bad::HostName, Bad::Itself, Bad::Address, Bad::Mac, Bad::Mtu]).prop_map(Some)
    ];
    (
        prop_oneof![8 => Just(partner), 1 => select(KEYS.to_vec())],
        prop_oneof![1 => Just(None), 6 => select(PLACES.to_vec()).prop_map(Some)],
        prop_oneof![2 => Just(None), 2 => select(NAMES.to_vec()).prop_map(Some)],
        select(vec![0, 0, 0, 68, 1000, 1280, 1400, 9000]),
        addresses,
        prop::bool::weighted(0.8),
        prop_oneof![3 => Just(None), 1 => select(vec![Some("02:00:00:00:00:01"), Some("02:00:00:00:00:02")])],
        prop_oneof![4 => Just((None, None)), 1 => make().prop_map(|make| (Some(make), None)), 2 => select(TAPS.to_vec()).prop_map(|name| (None, Some(name)))],
        bad,
    )
        .prop_map(move |(peer, netns, host, mtu, addresses, enabled, mac, (tap, auto), bad)| {
            // Only an end of a pair has a peer.
            let bad = if peer == KEYS[key] || bad == Some(Bad::Itself) { (tap.is_none() && auto.is_none()).then_some(Bad::Itself) } else { bad };
            let mac = if bad.is_some() { None } else { mac };
            // One error at a time, so that it is clear which one is told.
            let mtu = if bad.is_some() { 0 } else { mtu };
            Want { peer, netns, host, mtu, addresses, enabled, mac, tap, auto, bad }
        })
}

fn make() -> impl Strategy<Value = Make> {
    (any::<bool>(), select(vec![None, Some(0), Some(1000)]), any::<bool>()).prop_map(|(tun, owner, multi_queue)| Make {
        tun,
        owner,
        multi_queue,
    })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..KEYS.len()).prop_flat_map(|key| want(key).prop_map(move |want| Act::Put(key, want))),
        4 => (0..KEYS.len() / 2).prop_flat_map(|pair| {
            (want(2 * pair), want(2 * pair + 1)).prop_map(move |(a, b)| Act::Pair(2 * pair, a, b))
        }),
        2 => (0..KEYS.len()).prop_map(Act::Del),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(order, twice)| Act::Flush { order, twice }),
        1 => Just(Act::Pass),
        4 => Just(Act::Run),
        1 => Just(Act::Relist),
        1 => Just(Act::Restart),
        2 => (select(KINDS.to_vec()), 1..5_u64).prop_map(|(kind, n)| Act::KillAt(kind, n)),
        2 => (1..PLACES.len()).prop_map(Act::Netns),
        1 => (0..PLACES.len(), 0..NAMES.len(), any::<bool>()).prop_map(|(place, name, veth)| Act::Foreign { place, name, veth }),
        1 => (0..PLACES.len(), 0..NAMES.len()).prop_map(|(place, name)| Act::ForeignGone { place, name }),
        4 => (0..12_usize, 0..13_u8, prop::bool::weighted(0.2)).prop_map(|(pick, what, unseen)| Act::Outsider { pick, what, unseen }),
        5 => (0..TAPS.len(), prop::bool::weighted(0.3)).prop_map(|(name, gone)| Act::Vpp { name, gone }),
        1 => Just(Act::Lost),
        1 => Just(Act::Resync),
        1 => (1..90_u64).prop_map(Act::Wait),
    ]
}

fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

struct Life {
    bench: Bench,
    wants: Wants,
    waiting: Vec<StoreEvent>,
    baselines: Vec<crate::linux::fake::Baseline>,
    /// Hardware addresses of foreign links: no two links have the same, so they tell whether one was made ours.
    foreign: Vec<crate::model::MacAddr>,
}

impl Life {
    fn new() -> Self {
        Self { bench: Bench::new(), wants: Wants::new(), waiting: Vec::new(), baselines: Vec::new(), foreign: Vec::new() }
    }

    fn act(&mut self, act: &Act) {
        let bench = &mut self.bench;
        match act {
            Act::Put(key, want) => self.write(&[(*key, want)]),
            Act::Pair(key, a, b) => self.write(&[(*key, a), (key + 1, b)]),
            Act::Del(key) => {
                if self.wants.remove(KEYS[*key]).is_some() {
                    self.waiting.push(bench.erase(KEYS[*key]));
                }
            }
            Act::Flush { order, twice } => self.flush(*order, *twice),
            Act::Pass => drop(bench.step()),
            Act::Run => bench.run(),
            Act::Relist => {
                self.waiting.clear();
                bench.list();
            }
            Act::Restart => {
                self.waiting.clear();
                bench.restart();
            }
            Act::KillAt(kind, n) => bench.world.before_nth(*kind, *n, killer),
            Act::Netns(place) if bench.names.contains_key(PLACES[*place]) => bench.kill_netns(PLACES[*place]),
            Act::Netns(place) => bench.add_netns(PLACES[*place]),
            Act::Foreign { place, name, veth } => self.foreign(PLACES[*place], NAMES[*name], *veth),
            Act::ForeignGone { place, name } => {
                let Some(netns) = bench.names.get(PLACES[*place]) else { return };
                let Some(link) = bench.world.link(*netns, NAMES[*name]) else { return };
                if bench.owner.mark(&link) == crate::model::owner::Mark::Foreign {
                    bench.world.delete_link(LinkId { netns: *netns, ifindex: link.ifindex }).unwrap();
                }
            }
            Act::Outsider { pick, what, unseen } => self.outsider(*pick, *what, *unseen),
            Act::Vpp { name, gone } => self.vpp(TAPS[*name], *gone),
            Act::Lost => bench.world.tell_lost(None),
            Act::Resync => bench.resync(false),
            Act::Wait(seconds) => bench.wait(Duration::from_secs(*seconds)),
        }
    }

    fn write(&mut self, wants: &[(usize, &Want)]) {
        let values: Vec<(&str, String)> = wants.iter().map(|(key, want)| (KEYS[*key], want.json(KEYS[*key]))).collect();
        let values: Vec<(&str, &str)> = values.iter().map(|(key, value)| (*key, value.as_str())).collect();
        self.waiting.extend(self.bench.write(&values));
        self.wants.extend(wants.iter().map(|(key, want)| (KEYS[*key], (*want).clone())));
    }

    /// Order is kept per key only.
    fn flush(&mut self, order: u8, twice: bool) {
        let mut events = std::mem::take(&mut self.waiting);
        let rank = |event: &StoreEvent| match event {
            StoreEvent::Apply(key, _) | StoreEvent::Delete(key, _) => {
                key.bytes().fold(u32::from(order), |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte ^ order))) % 97
            }
            _ => 0,
        };
        events.sort_by_key(rank);
        if twice {
            events = events.into_iter().flat_map(|event| [event.clone(), event]).collect();
        }
        let second = events.split_off(events.len() / 2);
        self.bench.deliver(events);
        let kills = self.bench.kills;
        if order & 1 == 1 {
            self.bench.step();
        }
        // A new run of the agent hears of the rest by its listing.
        if self.bench.kills == kills {
            self.bench.deliver(second);
        }
    }

    fn foreign(&mut self, place: &str, name: &str, veth: bool) {
        let Some(netns) = self.bench.names.get(place).copied() else { return };
        let world = &self.bench.world;
        // A name that is taken is refused, as it should be.
        let made = if veth {
            world.add_veth((netns, name), (self.bench.ns("own"), &format!("f{netns}{name}"))).is_ok()
        } else {
            world.add_link(netns, LinkKind::Other("bridge".into()), name).is_ok()
        };
        if made {
            self.baselines.push(world.baseline(&self.bench.owner));
            self.foreign.extend(world.link(netns, name).and_then(|link| link.mac));
        }
    }

    fn outsider(&mut self, pick: usize, what: u8, unseen: bool) {
        let bench = &self.bench;
        let ids = bench.names.values().copied();
        let all = ids.flat_map(|netns| bench.world.links(netns).into_iter().map(move |link| (netns, link)));
        let ours: Vec<LinkId> = all
            .filter(|(_, link)| bench.owner.mark(link) != crate::model::owner::Mark::Foreign)
            .map(|(netns, link)| LinkId { netns, ifindex: link.ifindex })
            .collect();
        let Some(id) = ours.get(pick % ours.len().max(1)).copied() else { return };
        let world = bench.world.clone();
        world.mute(unseen);
        // What the kernel refuses someone else does not happen.
        let _refused = match what {
            0 => world.delete_link(id).is_err(),
            1 => world.set_up(id, false).is_err(),
            2 => world.set_mtu(id, 900).is_err(),
            3 => world.rename(id, "other").is_err(),
            4 => world.rename(id, NAMES[pick % NAMES.len()]).is_err(),
            5 => world.remove_address(id, address("10.0.0.1/24")).is_err(),
            6 => world.add_address(id, address("10.0.0.9/24"), 0).is_err(),
            7 => world.set_alias(id, "mine").is_err(),
            8 => world.add_address(id, address("fd00::1/128"), 0).is_err(),
            9 => world.set_tun(id, |info| info.owner = Some(7)).is_err(),
            10 => world.set_tun(id, |info| info.persist = false).is_err(),
            11 => world.set_tun(id, |info| (info.vnet_hdr, info.open) = (true, !info.open)).is_err(),
            _ => world.move_link(id, bench.ns("own")).is_err(),
        };
        world.mute(false);
    }

    fn vpp(&mut self, name: &str, gone: bool) {
        let bench = &self.bench;
        if !gone {
            // A name that is taken is refused, as it should be.
            let kind = LinkKind::Tun(TunInfo { tap: true, open: true, ..TunInfo::default() });
            return drop(bench.world.add_link(bench.ns("own"), kind, name));
        }
        let all = bench.names.values().flat_map(|netns| bench.world.links(*netns).into_iter().map(move |link| (*netns, link)));
        let serves = |link: &ObservedLink| bench.owner.temporary(link).is_some_and(|temporary| temporary.as_str() == name);
        let found = all.filter(|(_, link)| serves(link)).map(|(netns, link)| LinkId { netns, ifindex: link.ifindex }).next();
        if let Some(id) = found {
            bench.world.delete_link(id).unwrap();
        }
    }

    /// Everything has arrived and time has passed: all is well, and stays so.
    fn end(&mut self) {
        self.flush(0, false);
        let bench = &mut self.bench;
        bench.settle();
        let found = faults(bench, &self.wants);
        assert!(found.is_empty(), "{found:#?}\nstates {:?}\n{}\nlast {:#?}", bench.states(), bench.digest(), bench.published.history(4));
        let (writes, digest, states) = (bench.writes(), bench.digest(), bench.states());
        bench.resync(false);
        assert_eq!(bench.writes(), writes, "after resync: {:?}", bench.world.take_log().last());
        bench.restart();
        assert_eq!(bench.writes(), writes, "after restart: {:?}", bench.world.take_log().last());
        assert_eq!((bench.digest(), bench.states()), (digest, states));
        let found = faults(bench, &self.wants);
        assert!(found.is_empty(), "after restart: {found:#?}");
        for link in bench.names.values().flat_map(|netns| bench.world.links(*netns)) {
            let theirs = link.mac.is_some_and(|mac| self.foreign.contains(&mac));
            assert!(!theirs || bench.owner.mark(&link) == crate::model::owner::Mark::Foreign, "a foreign link was taken: {link:?}");
        }
        for baseline in &self.baselines {
            bench.world.foreign_untouched(baseline).unwrap();
        }
        bench.assert_sound();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150), max_shrink_iters: 1500, ..ProptestConfig::default() })]

    #[test]
    fn in_the_end_the_kernel_is_as_wished(acts in prop::collection::vec(act(), 1..40)) {
        let mut life = Life::new();
        for act in &acts {
            life.act(act);
        }
        life.end();
    }
}
