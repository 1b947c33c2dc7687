//! Lives in which something fails: every single request in every way, two at once, and what others do in the middle of the work.

use std::time::Duration;

use nix::errno::Errno;

use super::bench::{Bench, killer, the_pair, veth};
use crate::linux::fake::{FakeWorld, OpKind, SingleFault};
use crate::model::{InterfaceAddress, LinkKind};

const ERRNOS: [Errno; 2] = [Errno::EPERM, Errno::ENODEV];

type Life = (&'static str, fn(&mut Bench));

fn host(name: &str) -> String {
    format!(r#","host_if_name":"{name}""#)
}

fn two_pairs(bench: &mut Bench, x: &str, y: &str) {
    bench.put(&[
        ("a1", &veth("a1", "a2", "red", &host(x))),
        ("a2", &veth("a2", "a1", "blue", "")),
        ("b1", &veth("b1", "b2", "red", &host(y))),
        ("b2", &veth("b2", "b1", "own", "")),
    ]);
}

fn swap(bench: &mut Bench) {
    two_pairs(bench, "x", "y");
    two_pairs(bench, "y", "x");
}

fn pass_on(bench: &mut Bench) {
    two_pairs(bench, "x", "y");
    bench.del("b1");
    two_pairs(bench, "y", "z");
}

fn come_and_go(bench: &mut Bench) {
    the_pair(bench);
    bench.del("veth1");
    the_pair(bench);
    bench.kill_netns("blue");
    bench.add_netns("blue");
    two_pairs(bench, "x", "y");
    bench.del("b2");
    bench.del("b1");
}

fn addresses(bench: &mut Bench) {
    let with = |list: &str| veth("veth1", "veth2", "red", &format!(r#","ip_addresses":[{list}]"#));
    let all = with(r#""10.0.0.1/24","10.0.0.2/24","10.0.0.3/24","fd00::1/64""#);
    bench.put(&[("veth1", &all), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    bench.put(&[("veth1", &with(r#""10.0.0.2/24","10.0.0.3/24","fd00::1/48""#))]);
    bench.put(&[("veth1", &all.replace("true", "false"))]);
}

const LIVES: [Life; 4] = [("swap", swap), ("pass a name on", pass_on), ("come and go", come_and_go), ("addresses", addresses)];

/// What the kernel and the statuses come to, without the numbers of namespaces that were made anew.
fn end(bench: &mut Bench, name: &str) -> (Vec<String>, Vec<String>) {
    for _ in 0..4 {
        bench.wait(Duration::from_secs(61));
    }
    let writes = bench.writes();
    bench.resync(false);
    bench.restart();
    assert_eq!(bench.writes(), writes, "{name}: a settled system plans nothing: {:?}", bench.world.take_log().last());
    assert!(bench.world.foreign_writes(&bench.owner).is_empty(), "{name}");
    assert_eq!(bench.world.misuses(), Vec::<String>::new(), "{name}");
    bench.assert_sound();
    (bench.digest().lines().map(str::to_owned).collect(), bench.states())
}

fn faults_of(life: fn(&mut Bench)) -> (Vec<SingleFault>, (Vec<String>, Vec<String>)) {
    let mut calm = Bench::new();
    let before = calm.world.calls();
    life(&mut calm);
    let faults = calm.world.calls().since(&before).single_faults(&ERRNOS);
    (faults, end(&mut calm, "calm"))
}

#[test]
fn every_single_fault_of_more_lives_converges() {
    let mut tried = 0;
    for (name, life) in LIVES {
        let (faults, wanted) = faults_of(life);
        for fault in faults {
            let mut bench = Bench::new();
            bench.world.inject(fault);
            life(&mut bench);
            assert_eq!(end(&mut bench, name), wanted, "{name}, after {fault:?}");
            tried += 1;
        }
    }
    assert!(tried > 200, "only {tried} faults");
}

#[test]
fn two_faults_at_once_converge() {
    // A linear congruential generator (Knuth's MMIX constants): the same pairs every time.
    let mut seed = 1_u64;
    let mut below = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    for (name, life) in LIVES {
        let (faults, wanted) = faults_of(life);
        for _ in 0..40 {
            let two = [faults[below(faults.len())], faults[below(faults.len())]];
            let mut bench = Bench::new();
            two.iter().for_each(|fault| bench.world.inject(*fault));
            life(&mut bench);
            assert_eq!(end(&mut bench, name), wanted, "{name}, after {two:?}");
        }
    }
}

#[test]
fn killed_before_any_request_it_converges() {
    for (name, life) in LIVES {
        let mut calm = Bench::new();
        let before = calm.world.calls();
        life(&mut calm);
        let calls = calm.world.calls().since(&before);
        let wanted = end(&mut calm, name);
        for kind in [OpKind::CreateVeth, OpKind::SetLink, OpKind::AddAddress, OpKind::RemoveAddress, OpKind::DeleteLink, OpKind::ReadLink] {
            for n in 1..=calls.of(kind) {
                let mut bench = Bench::new();
                bench.world.before_nth(kind, n, killer);
                life(&mut bench);
                assert_eq!(bench.kills, 1, "{name}, {kind:?} {n}");
                assert_eq!(end(&mut bench, name), wanted, "{name}, killed before {kind:?} {n}");
            }
        }
    }
}

/// What someone else does, told by a bench whose namespaces are numbered alike.
type Act = (&'static str, fn(&FakeWorld, &Bench));

/// Someone acts right before a request of ours: what the plan saw is not true any more.
#[test]
fn others_in_the_middle_of_the_work() {
    let acts: [Act; 5] = [
        ("deletes the link", |world, bench| drop(world.link_id(bench.ns("red"), "veth1").map(|id| world.delete_link(id)))),
        ("deletes the other end", |world, bench| drop(world.link_id(bench.ns("blue"), "veth2").map(|id| world.delete_link(id)))),
        ("renames it", |world, bench| drop(world.link_id(bench.ns("red"), "veth1").map(|id| world.rename(id, "stolen")))),
        ("takes the address away", |world, bench| {
            let address = InterfaceAddress::new("10.11.1.1".parse().unwrap(), 24).unwrap();
            drop(world.link_id(bench.ns("red"), "veth1").map(|id| world.remove_address(id, address)));
        }),
        ("adds a link of a wished name", |world, bench| drop(world.add_link(bench.ns("red"), LinkKind::Other("bridge".into()), "eth7"))),
    ];
    let life = |bench: &mut Bench| {
        the_pair(bench);
        bench.put(&[("veth1", &veth("veth1", "veth2", "red", &format!(r#"{},"mtu":1400"#, host("eth7"))))]);
    };
    for (what, act) in acts {
        for kind in [OpKind::CreateVeth, OpKind::SetLink, OpKind::AddAddress, OpKind::RemoveAddress, OpKind::ReadLink] {
            for n in 1..=3 {
                let mut bench = Bench::new();
                let (world, elsewhere) = (bench.world.clone(), Bench::new());
                // Namespaces are numbered alike in every world.
                bench.world.before_nth(kind, n, move |_| act(&world, &elsewhere));
                life(&mut bench);
                let name = format!("someone {what} before {kind:?} {n}");
                let _settled = end(&mut bench, &name);
                let foreign = bench.world.link(bench.ns("red"), "eth7").filter(|link| link.kind != LinkKind::Veth);
                let wanted = if foreign.is_some() { "FAILED FOREIGN_LINK" } else { "CONFIGURED" };
                assert_eq!(bench.state("veth1"), wanted, "{name}: {}", bench.status("veth1").message);
            }
        }
    }
}

#[test]
fn a_namespace_ends_in_the_middle_of_the_work() {
    for kind in [OpKind::CreateVeth, OpKind::SetLink, OpKind::AddAddress, OpKind::ReadLink] {
        for n in 1..=2 {
            let mut bench = Bench::new();
            let blue = bench.ns("blue");
            bench.world.before_nth(kind, n, move |world| world.kill_netns(blue).unwrap());
            the_pair(&mut bench);
            // Its tracker hears of it a little later.
            bench.names.remove("blue");
            bench.sync_names();
            assert_eq!(bench.state("veth1"), "PENDING NAMESPACE_MISSING", "before {kind:?} {n}");
            assert_eq!(bench.digest(), "", "before {kind:?} {n}");
            bench.add_netns("blue");
            bench.wait(Duration::from_secs(61));
            assert_eq!(bench.state("veth1"), "CONFIGURED", "before {kind:?} {n}: {}", bench.status("veth1").message);
        }
    }
}

#[test]
fn an_incomplete_reading_never_removes_or_repairs() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let red = bench.ns("red");
    let hidden = bench.world.link(red, "veth1").unwrap().ifindex;
    let (writes, digest) = (bench.writes(), bench.digest());
    bench.world.interrupt_readings(red, &[hidden], 3);
    for _ in 0..4 {
        bench.resync(false);
        bench.world.tell_lost(None);
        bench.wait(Duration::from_secs(5));
        assert_eq!((bench.writes(), bench.state("veth1")), (writes, "CONFIGURED".to_owned()));
    }
    assert_eq!(bench.digest(), digest);
}

#[test]
fn lost_events_are_made_good_by_looking() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    for netns in [None, Some(bench.ns("red"))] {
        bench.world.mute(true);
        bench.world.delete_link(bench.world.link_id(bench.ns("red"), "veth1").unwrap()).unwrap();
        bench.world.mute(false);
        bench.world.tell_lost(netns);
        bench.wait(Duration::from_secs(1));
        assert_eq!(bench.digest(), digest, "{netns:?}");
        bench.wait(Duration::from_secs(61));
    }
}

#[test]
fn what_the_reaper_could_not_remove_goes_later() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.world.fail_always(OpKind::Reap, Errno::EBUSY);
    bench.del("veth1");
    bench.del("veth2");
    bench.wait(Duration::from_secs(5));
    assert_ne!(bench.digest(), "");
    // It is not said to be gone while it stands.
    assert_eq!(bench.states(), ["veth1: REMOVED", "veth2: REMOVED"]);
    bench.restart();
    bench.world.heal();
    bench.settle();
    assert_eq!(bench.digest(), "");
    assert_eq!(bench.states(), Vec::<String>::new());
}
