//! TAPs of others, with their owners and others acting at the worst moments: right before each call to the kernel, on the way there and on the way back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bench::Bench;
use crate::linux::fake::{FakeWorld, OpKind};
use crate::model::{HostIfName, LinkChange, LinkId, LinkKind, MacAddr, NetnsId, ObservedLink, TunInfo};

type Places = BTreeMap<String, NetnsId>;
type Act = fn(&FakeWorld, &Places, Option<LinkId>);

const CALLS: [OpKind; 6] =
    [OpKind::SetLink, OpKind::MoveLink, OpKind::AddAddress, OpKind::RemoveAddress, OpKind::ReadLink, OpKind::ReadNetns];
const TAP: LinkKind = LinkKind::Tun(TunInfo {
    tap: true,
    owner: None,
    group: None,
    multi_queue: true,
    vnet_hdr: false,
    packet_info: false,
    persist: true,
    open: true,
});

fn auto(name: &str, temporary: &str, more: &str) -> String {
    let place = r#""namespace":{"type":"NAMED_NS","name":"red"}"#;
    format!(r#"{{"name":"{name}","type":"AUTO_TAP","enabled":true,{place},"tap":{{"temp_if_name":"{temporary}"}}{more}}}"#)
}

/// `t`: `tap7` becomes `eth1` in red.
fn wish() -> String {
    auto("t", "tap7", r#","host_if_name":"eth1","mtu":1400,"ip_addresses":["10.0.0.1/24","fd00::1/64"]"#)
}

/// A program makes `tap7`, up and with an address.
fn appear(bench: &Bench) -> MacAddr {
    let id = bench.world.add_link(bench.ns("own"), TAP, "tap7").unwrap();
    bench.world.set_up(id, true).unwrap();
    bench.world.link(bench.ns("own"), "tap7").and_then(|link| link.mac).unwrap()
}

fn find(world: &FakeWorld, places: &Places, mac: MacAddr) -> Option<(LinkId, ObservedLink)> {
    let all = places.values().flat_map(|netns| world.links(*netns).into_iter().map(|link| (*netns, link)));
    let mut found = all.filter(|(_, link)| link.mac == Some(mac)).map(|(netns, link)| (LinkId { netns, ifindex: link.ifindex }, link));
    let first = found.next();
    assert!(found.next().is_none(), "there is one of it");
    first
}

/// What others do, and whether the TAP is gone for good then.
const ACTS: [(&str, Act, bool); 11] = [
    ("it vanishes", |world, _, tap| drop(tap.map(|tap| world.delete_link(tap))), true),
    ("it is renamed", |world, _, tap| drop(tap.map(|tap| world.rename(tap, "else"))), false),
    ("it is taken home", |world, places, tap| drop(tap.map(|tap| world.move_link(tap, places["own"]))), false),
    ("it is taken elsewhere", |world, places, tap| drop(tap.map(|tap| world.move_link(tap, places["blue"]))), false),
    ("it gets an alias", |world, _, tap| drop(tap.map(|tap| world.set_alias(tap, "mine"))), false),
    ("it loses its alias", |world, _, tap| drop(tap.map(|tap| world.set_alias(tap, ""))), false),
    (
        "it goes down and has another MTU",
        |world, _, tap| {
            let change = LinkChange { mtu: Some(900), up: Some(false), ..LinkChange::default() };
            drop(tap.map(|tap| world.set_link(tap, &change)));
        },
        false,
    ),
    ("its name there is taken", |world, places, _| drop(world.add_link(places["red"], LinkKind::Other("bridge".into()), "eth1")), false),
    ("its name at home is taken", |world, places, _| drop(world.add_link(places["own"], LinkKind::Other("bridge".into()), "tap7")), false),
    ("a second one comes", |world, places, _| drop(world.add_link(places["own"], TAP, "tap7")), false),
    ("its namespace ends", |world, places, _| drop(world.kill_netns(places["red"])), false),
];

/// Whether a wish says CONFIGURED of what is there and of nothing else.
#[track_caller]
fn assert_honest(bench: &Bench, what: &str) {
    let status = bench.status("t");
    let there = bench.names.get("red").and_then(|red| bench.world.link(*red, "eth1"));
    let right = there.is_some_and(|link| {
        link.ifindex.get() == status.if_index
            && link.alias.as_deref() == Some("vnf-agent:vpp1:autotap:t:tap7")
            && link.mtu == 1400
            && link.admin_up
    });
    assert_eq!(bench.state("t") == "CONFIGURED", right, "{what}: {status:?}");
}

/// Nothing of the agent is left anywhere: no mark, none of its addresses.
#[track_caller]
fn assert_nothing_left(bench: &Bench, what: &str) {
    assert_eq!(bench.digest(), "", "{what}");
    let links = bench.names.values().flat_map(|netns| bench.world.links(*netns));
    let ours: Vec<ObservedLink> =
        links.filter(|link| link.addresses.iter().any(|a| a.proto == crate::model::owner::ADDRESS_PROTO)).collect();
    assert_eq!(ours, [], "{what}");
    assert_eq!(bench.world.misuses(), [""; 0], "{what}");
    bench.assert_sound();
}

/// One act right before one call; what stood of others before is as it was.
fn attacked(kind: OpKind, n: u64, (act_name, act, gone): (&str, Act, bool), on_the_way_back: bool) {
    let what = format!("{act_name} before {kind:?} {n}, back: {on_the_way_back}");
    let mut bench = Bench::new();
    bench.world.add_link(bench.ns("red"), LinkKind::Other("bridge".into()), "br0").unwrap();
    bench.world.add_link(bench.ns("own"), LinkKind::Other("bridge".into()), "br0").unwrap();
    let mac = appear(&bench);
    bench.run();
    let baseline = bench.world.baseline(&bench.owner);
    let places = bench.names.clone();
    let happened = Arc::new(AtomicBool::new(false));
    let plant = |bench: &Bench| {
        let (places, happened) = (places.clone(), happened.clone());
        bench.world.before_nth(kind, n, move |world| {
            let tap = find(world, &places, mac).map(|(id, _)| id);
            act(world, &places, tap);
            happened.store(true, Ordering::Relaxed);
        });
    };
    if !on_the_way_back {
        plant(&bench);
    }
    bench.put(&[("t", &wish())]);
    if on_the_way_back {
        plant(&bench);
    } else {
        follow(&mut bench, &happened);
        assert_honest(&bench, &what);
    }
    bench.del("t");
    follow(&mut bench, &happened);
    assert_eq!(bench.state("t"), "-", "{what}");
    if act_name == "it is taken elsewhere" {
        // Into a namespace that nobody refers to: found there, by its mark, at the next start.
        bench.restart();
        follow(&mut bench, &happened);
    }
    let lives = bench.names.contains_key("red") || find(&bench.world, &places, mac).is_some();
    if !gone && lives {
        assert!(find(&bench.world, &places, mac).is_some(), "{what}: it is lost");
    }
    assert_nothing_left(&bench, &what);
    bench.world.foreign_untouched(&baseline).unwrap_or_else(|difference| panic!("{what}: {difference}"));
}

/// The namespace's end becomes known, and time passes; again, as long as what was to happen happened meanwhile: a reading by the clock may have been its moment.
fn follow(bench: &mut Bench, happened: &AtomicBool) {
    loop {
        let before = happened.load(Ordering::Relaxed);
        let world = bench.world.clone();
        bench.names.retain(|_, id| !world.links(*id).is_empty());
        bench.sync_names();
        bench.settle();
        if happened.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

#[test]
fn whatever_others_do_at_any_moment_nothing_is_left_and_nothing_is_said_that_is_not_so() {
    for kind in CALLS {
        for act in ACTS {
            for n in 1..=5 {
                for back in [false, true] {
                    attacked(kind, n, act, back);
                }
            }
        }
    }
}

/// Another agent on the host has it: it is neither taken nor touched, until that one has let go of it.
#[test]
fn what_another_agent_has_is_left_to_it() {
    let marks = [
        LinkChange { alias: Some("vnf-agent:vpp2:autotap:t:tap7".into()), ..LinkChange::default() },
        LinkChange { alias: Some("vnf-agent:vpp2:tap:t".into()), group: Some(0x5612_3456), ..LinkChange::default() },
        LinkChange { group: Some(0x5612_3456), ..LinkChange::default() },
    ];
    for mark in marks {
        let mut bench = Bench::new();
        let mac = appear(&bench);
        let id = bench.world.link_id(bench.ns("own"), "tap7").unwrap();
        bench.world.set_link(id, &mark).unwrap();
        let baseline = bench.world.baseline(&bench.owner);
        bench.put(&[("t", &wish())]);
        assert_eq!(bench.state("t"), "FAILED FOREIGN_LINK", "{mark:?}");
        assert!(bench.status("t").message.contains("another vnf-agent"), "{}", bench.status("t").message);
        bench.world.foreign_untouched(&baseline).unwrap();
        let none = LinkChange { alias: Some(String::new()), group: Some(0), ..LinkChange::default() };
        bench.world.set_link(id, &none).unwrap();
        bench.run();
        assert_eq!(bench.state("t"), "CONFIGURED", "{mark:?}");
        assert_eq!(find(&bench.world, &bench.names, mac).unwrap().0.netns, bench.ns("red"));
        bench.del("t");
        assert_nothing_left(&bench, "afterwards");
    }
}

/// Two agents mark it at the same moment: who moves it has it, and gives it back.
#[test]
fn who_moves_it_is_the_one_that_it_is_marked_by() {
    let mut bench = Bench::new();
    let mac = appear(&bench);
    let own = bench.ns("own");
    bench.world.before_nth(OpKind::MoveLink, 1, move |world| {
        world.set_alias(world.link_id(own, "tap7").unwrap(), "vnf-agent:vpp2:autotap:u:tap7").unwrap();
    });
    bench.put(&[("t", &wish())]);
    bench.settle();
    assert_eq!(bench.state("t"), "CONFIGURED", "{}", bench.status("t").message);
    bench.del("t");
    assert_eq!(find(&bench.world, &bench.names, mac).map(|(id, link)| (id.netns, link.alias)), Some((own, None)));
    assert_nothing_left(&bench, "afterwards");
}

/// The older of two wishes for one TAP waits: the younger is told so, and has its turn.
#[test]
fn an_older_wish_that_waits_has_the_right() {
    let mut bench = Bench::new();
    bench.put(&[("t", &wish().replace("\"red\"", "\"green\""))]);
    bench.put(&[("u", &auto("u", "tap7", ""))]);
    appear(&bench);
    bench.run();
    assert_eq!((bench.state("t").as_str(), bench.state("u").as_str()), ("PENDING NAMESPACE_MISSING", "FAILED NAME_CONFLICT"));
    let message = bench.status("u").message;
    assert!(message.contains("is for the older key `t`") && !message.contains("serves"), "{message}");
    bench.del("t");
    assert_eq!(bench.state("u"), "CONFIGURED");
    let name = HostIfName::new("u").unwrap();
    assert!(bench.world.link(bench.ns("red"), name.as_str()).is_some());
}
