//! C67: killed with SIGKILL at every kernel call of create, change, rename, move and delete, at every write of its files, in the middle of its
//! recovery and at any other moment, then started again: the kernel and the statuses are what the wishes say, and nothing foreign was touched.
//!
//! Each sweep goes there and back between two sets of wishes, killed at the n-th call of a kind, for n = 1, 2, … until both ways were gone
//! without a kill. So the last kill point of each kind is reached, however many there are.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::wish::{auto_tap, tap, veth, with};
use support::{Dice, Host, Point, Wire, World, eventually_ok};

/// Where the requests to the kernel are sent, readings included.
const SENDS: (&str, &str) = ("configurator", "sendto");
/// More calls of a kind than any way takes.
const MOST: usize = 200;

/// Three pairs over three namespaces and the agent's own.
fn start() -> Vec<Value> {
    vec![
        end(
            1,
            "veth1",
            "veth2",
            "red",
            json!({"host_if_name": "eth1", "mtu": 1400,
            "ip_addresses": ["10.0.1.1/24", "10.0.1.2/24", "10.0.1.3/24", "fd00:1::1/64"]}),
        ),
        end(2, "veth2", "veth1", "blue", json!({"host_if_name": "eth1", "ip_addresses": ["10.0.1.9/24", "fd00:1::2/64"]})),
        end(3, "a1", "b1", "blue", json!({"mtu": 9000, "ip_addresses": ["10.0.2.1/24"]})),
        end(4, "b1", "a1", "green", json!({"enabled": false, "ip_addresses": ["10.0.2.2/24"]})),
        end(5, "a2", "b2", "green", json!({"ip_addresses": ["10.0.3.1/24", "fd00:3::1/64"]})),
        end(6, "b2", "a2", "", json!({"ip_addresses": ["10.0.3.2/24"]})),
    ]
}

fn end(n: u8, name: &str, peer: &str, netns: &str, more: Value) -> Value {
    with(&veth(name, peer, netns, more), json!({"phys_address": format!("02:00:00:00:00:{n:02x}")}))
}

fn each_with(wishes: Vec<Value>, more: [Value; 6]) -> Vec<Value> {
    wishes.iter().zip(more).map(|(wish, more)| with(wish, more)).collect()
}

/// Other settings: the first of several addresses gone, MTU and MAC, up and down, addresses of both families.
fn changed() -> Vec<Value> {
    let first = json!({"mtu": 1300, "phys_address": "02:00:00:00:01:01", "ip_addresses": ["10.0.1.2/24", "10.0.1.3/24", "fd00:1::5/64"]});
    each_with(
        start(),
        [
            first,
            json!({"enabled": false, "ip_addresses": ["10.0.1.9/16"]}),
            json!({"mtu": 0, "ip_addresses": ["10.0.2.1/24", "fd00:2::1/64"]}),
            json!({"enabled": true, "mtu": 1280}),
            json!({"ip_addresses": []}),
            json!({"ip_addresses": ["10.0.3.2/24", "fd00:3::2/64"]}),
        ],
    )
}

/// The left ends under one roof, so that names can change places.
fn together(names: [&str; 6]) -> Vec<Value> {
    let red = json!({"type": "NAMED_NS", "name": "red"});
    let named = |n: usize| json!({"host_if_name": names[n]});
    let in_red = |n: usize| json!({"host_if_name": names[n], "namespace": red});
    each_with(start(), [in_red(0), named(1), in_red(2), named(3), in_red(4), named(5)])
}

/// Elsewhere: ends that change places, one that joins its peer, one that leaves alone.
fn elsewhere() -> Vec<Value> {
    let to = |name: &str| json!({"namespace": {"type": "NAMED_NS", "name": name}});
    each_with(start(), [to("blue"), to("red"), to("green"), json!({}), to("red"), to("green")])
}

/// Goes to these wishes, over a wire if `n` is given; whether it was killed. The wishes are fulfilled in either case.
fn go(world: &mut World<'_>, wishes: &[Value], point: &Point, n: Option<usize>) -> bool {
    let wire = n.map(|n| Wire::lay(world.agent.pid(), point, n));
    world.write(wishes);
    eventually_ok(&format!("killed at {point:?} {n:?}, or done"), || if world.agent.has_ended() { Ok(()) } else { world.compare(wishes) });
    drop(wire);
    let killed = world.agent.has_ended();
    if killed {
        world.recover();
    }
    world.settle(wishes, &format!("killed: {killed}, at {point:?} {n:?}"));
    killed
}

/// Goes there and back with a kill at every call; returns how many kills there were on the ways there and back.
fn sweep(world: &mut World<'_>, back: &[Value], there: &[Value], point: &Point) -> [usize; 2] {
    world.write(back);
    world.settle(back, "before the sweep");
    let mut kills = [0, 0];
    let mut done = [false, false];
    for n in 1..MOST {
        for (way, wishes) in [there, back].into_iter().enumerate() {
            let killed = go(world, wishes, point, (!done[way]).then_some(n));
            kills[way] += usize::from(killed);
            done[way] |= !killed;
        }
        if done == [true, true] {
            tell(&format!("{point:?}: {kills:?} kills"));
            return kills;
        }
    }
    panic!("no end of kill points: {kills:?} at {point:?}");
}

#[allow(clippy::print_stderr, reason = "shown with --nocapture and with a failed test: a sweep must say what it has swept")]
fn tell(what: &str) {
    eprintln!("{what}");
}

fn sends() -> Point {
    Point::of(SENDS.0, SENDS.1)
}

#[test]
fn killed_while_creating_and_deleting() {
    let host = Host::new();
    let kills = sweep(&mut World::new(&host), &[], &start(), &sends());
    assert!(kills[0] > 5 && kills[1] > 3, "{kills:?}");
}

#[test]
fn killed_while_changing() {
    let host = Host::new();
    let kills = sweep(&mut World::new(&host), &start(), &changed(), &sends());
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

#[test]
fn killed_while_names_change_places() {
    let host = Host::new();
    let one = together(["eth1", "x1", "eth2", "x2", "eth3", "x3"]);
    let other = together(["eth2", "y1", "eth3", "x2", "eth1", "y3"]);
    let kills = sweep(&mut World::new(&host), &one, &other, &sends());
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

#[test]
fn killed_while_moving() {
    let host = Host::new();
    let kills = sweep(&mut World::new(&host), &start(), &elsewhere(), &sends());
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

/// TAPs in three namespaces and the agent's own. Nobody on the machine has these ids: where they have a name, `ip` shows that.
fn taps(owner: u32) -> Vec<Value> {
    let one = |n: u8, name: &str, netns: &str, settings: Value, more: Value| {
        with(&tap(name, netns, settings, more), json!({"phys_address": format!("02:00:00:00:01:{n:02x}")}))
    };
    vec![
        one(
            1,
            "tap1",
            "red",
            json!({"owner": owner, "group": 65001}),
            json!({"host_if_name": "eth1", "mtu": 1400, "ip_addresses": ["10.0.1.1/24", "10.0.1.2/24", "fd00:1::1/64"]}),
        ),
        one(2, "tap2", "red", json!({"multi_queue": owner.is_multiple_of(2)}), json!({"ip_addresses": ["10.0.2.1/24"]})),
        one(3, "tap3", "blue", json!({"owner": owner}), json!({"mtu": 9000, "ip_addresses": ["fd00:3::1/64"]})),
        one(4, "tap4", "", json!({"group": owner}), json!({"enabled": false})),
    ]
}

/// At every request and at every call on the TAPs' own descriptors.
fn sweep_taps(back: &[Value], there: &[Value]) -> Vec<[usize; 2]> {
    let host = Host::new();
    let mut world = World::new(&host);
    // Made by a thread in the namespace, made persistent by the configurator's.
    let made = Point::on("ioctl", &["/dev/net/tun".into()]);
    let kept = Point { threads: SENDS.0, ..made.clone() };
    [sends(), made, kept].iter().map(|point| sweep(&mut world, back, there, point)).collect()
}

#[test]
fn killed_while_making_and_deleting_taps() {
    let kills = sweep_taps(&[], &taps(65000));
    assert!(kills[0][0] > 5 && kills[0][1] > 3, "{kills:?}");
    // Name, owner and group of a TAP, at least; and the persistence of each.
    assert!(kills[1][0] >= 3 && kills[1][1] == 0 && kills[2] == [4, 0], "{kills:?}");
}

#[test]
fn killed_while_making_taps_anew() {
    let kills = sweep_taps(&taps(65000), &taps(65003));
    assert!(kills[0].iter().all(|kills| *kills > 5), "{kills:?}");
    assert!(kills[1..].iter().flatten().all(|kills| *kills >= 3), "{kills:?}");
}

#[test]
fn killed_while_taps_and_pairs_change_places() {
    let host = Host::new();
    let kills = sweep(&mut World::new(&host), &start()[..2], &taps_for_pairs(), &sends());
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

/// TAPs under the keys and the names of a pair.
fn taps_for_pairs() -> Vec<Value> {
    start()[..2].iter().map(|wish| with(wish, json!({"type": "TAP", "tap": {"owner": 65000}, "veth": null}))).collect()
}

/// TAPs that someone else made, in these namespaces under these names.
fn auto_taps(places: [(&str, &str); 3], enabled: bool) -> Vec<Value> {
    let one = |n: usize| {
        let (netns, name) = places[n];
        let addresses = json!([format!("10.0.{n}.1/24"), format!("fd00:1{n}::1/64")]);
        let more =
            json!({"host_if_name": name, "mtu": 1400, "enabled": enabled, "phys_address": tap_address(n), "ip_addresses": addresses});
        auto_tap(&format!("t{n}"), netns, &format!("tap{n}"), more)
    };
    (0..3).map(one).collect()
}

fn tap_address(n: usize) -> String {
    format!("02:00:00:00:02:{n:02x}")
}

/// A TAP that someone else made is never deleted and never lost, wherever we die.
fn sweep_auto_taps(back: &[Value], there: &[Value]) -> [usize; 2] {
    let host = Host::new();
    let mut world = World::new(&host);
    (0..3).for_each(|n| world.add_tap(&format!("tap{n}"), &tap_address(n), 1400));
    sweep(&mut world, back, there, &sends())
}

const IN_PLACE: [(&str, &str); 3] = [("red", "eth1"), ("blue", "tap1"), ("", "eth2")];

#[test]
fn killed_while_taking_taps_and_giving_them_back() {
    let kills = sweep_auto_taps(&[], &auto_taps(IN_PLACE, true));
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

#[test]
fn killed_while_taps_follow_their_wishes() {
    let elsewhere = auto_taps([("blue", "eth1"), ("", "eth5"), ("red", "eth2")], false);
    let kills = sweep_auto_taps(&auto_taps(IN_PLACE, true), &elsewhere);
    assert!(kills.iter().all(|kills| *kills > 5), "{kills:?}");
}

/// The threads that delete, with more to delete than they take at once: comparing, marking, deleting. Each counts its calls for itself, and there may be a thread for every
/// portion.
#[test]
fn killed_while_reaping() {
    let host = Host::new();
    let mut world = World::new(&host);
    let many: Vec<Value> = (0..72_u8)
        .flat_map(|n| {
            let (left, right) = (format!("l{n}"), format!("r{n}"));
            [end(2 * n, &left, &right, "red", json!({})), end(2 * n + 1, &right, &left, "blue", json!({}))]
        })
        .collect();
    let kills = sweep(&mut world, &[], &many, &Point::of("reaper", "sendto"));
    assert!(kills[0] == 0 && kills[1] >= 3, "{kills:?}");
    // With few, all are marked when the first is to be deleted: no later deletion by group takes them along.
    let kills = sweep(&mut world, &[], &start(), &Point::of("reaper", "sendto"));
    assert!(kills[0] == 0 && kills[1] > 0, "{kills:?}");
}

/// The switch of IPv6, which is a file per link.
#[test]
fn killed_while_switching_ipv6() {
    let host = Host::new();
    let mut world = World::new(&host);
    // One of each namespace without IPv6. A file at a time: each is written by a thread of its own, and each counts for itself.
    for name in ["eth1", "a2"] {
        let file = [format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6").into()];
        for call in ["openat", "write"] {
            let kills = sweep(&mut world, &[], &start(), &Point::on(call, &file));
            assert_eq!(kills, [1, 0], "{call} {name}");
        }
    }
}

/// A namespace that is missing, and so made: an empty file, a new namespace, its mount.
#[test]
fn killed_while_making_a_namespace() {
    let host = Host::with_netns(&["blue"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let wishes = [end(1, "veth1", "veth2", "new", json!({})), end(2, "veth2", "veth1", "blue", json!({}))];
    let mut kills = Vec::new();
    for call in ["mount", "unshare"] {
        for n in 1..MOST {
            let wire = Wire::lay(agent.pid(), &Point::of("", call), n);
            etcd.put_all(&wishes);
            let configured = |agent: &support::Agent<'_>| agent.vnfctl(&["status", "veth1"]).stdout.contains("CONFIGURED");
            support::eventually("killed, or done", || agent.has_ended() || configured(&agent));
            drop(wire);
            let killed = agent.has_ended();
            if killed {
                kills.push((call, n));
                agent.wait();
                agent.start();
            }
            agent.wait_configured(&["veth1", "veth2"]);
            assert_eq!(host.link_names("new"), ["veth1"]);
            let mut folder: Vec<_> =
                std::fs::read_dir(host.outside("/run/netns")).expect("a folder").flatten().map(|f| f.file_name()).collect();
            folder.sort();
            assert_eq!(folder, ["blue", "new"]);
            etcd.delete_all(&["veth1", "veth2"]);
            support::eventually_eq("both are forgotten", &0, || agent.statuses().len());
            host.del_netns("new");
            if !killed {
                break;
            }
        }
    }
    tell(&format!("killed while making a namespace: {kills:?}"));
    assert!(["mount", "unshare"].iter().all(|call| kills.iter().any(|kill| kill.0 == *call)), "{kills:?}");
}

/// What it remembers across restarts: a file that is replaced.
#[test]
fn killed_while_remembering() {
    let host = Host::new();
    let mut world = World::new(&host);
    let files = ["memory.new", "memory.json"].map(|name| world.agent.state_dir().join(name));
    for call in ["openat", "write", "chmod", "rename"] {
        let kills = sweep(&mut world, &[], &start(), &Point::on(call, &files));
        assert!(kills[0] > 0 && kills[1] > 0, "{call}: {kills:?}");
    }
}

/// Killed at a call, and killed again up to three times while it recovers.
#[test]
fn killed_again_while_recovering() {
    let host = Host::new();
    let mut world = World::new(&host);
    let mut dice = Dice::new(0x5eed);
    let states = [vec![], start(), changed(), elsewhere()];
    let (mut kills, mut again) = (0, 0);
    // How many calls a recovery makes depends on how the machine orders the agent's threads, so a fixed number of rounds cannot
    // promise how often the second wire is reached: go on until it was reached often enough.
    for round in 0..120_usize {
        if round >= 24 && again >= 10 {
            break;
        }
        let wishes = &states[round % states.len()];
        let at = 1 + dice.below(20);
        let wire = Wire::lay(world.agent.pid(), &sends(), at);
        world.write(wishes);
        eventually_ok("killed, or done", || if world.agent.has_ended() { Ok(()) } else { world.compare(wishes) });
        drop(wire);
        for _ in 0..3 {
            if !world.agent.has_ended() {
                break;
            }
            kills += 1;
            world.agent.wait();
            world.agent.spawn();
            again += usize::from(killed_at_start(&mut world, wishes, 1 + dice.below(30)));
        }
        if world.agent.has_ended() {
            world.recover();
        }
        world.settle(wishes, &format!("round {round}, at {at}"));
    }
    tell(&format!("killed {kills} times, {again} of them while it recovered"));
    assert!(again >= 10, "{again}");
}

/// Lays a wire across an agent that is just starting.
fn killed_at_start(world: &mut World<'_>, wishes: &[Value], n: usize) -> bool {
    let pid = world.agent.pid();
    support::eventually("its thread is there", || !support::wire::threads(pid, SENDS.0).is_empty());
    let _wire = Wire::lay(pid, &sends(), n);
    eventually_ok("killed while it recovers, or done", || if world.agent.has_ended() { Ok(()) } else { world.compare(wishes) });
    world.agent.has_ended()
}

/// Killed at any moment, by a clock instead of a call; sometimes with other wishes or without its memory at the next start.
#[test]
fn killed_at_random() {
    let host = Host::new();
    let mut world = World::new(&host);
    let seed = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    tell(&format!("KILL_SEED={seed}"));
    let mut dice = Dice::new(seed);
    let names = together(["eth2", "y1", "eth3", "x2", "eth1", "y3"]);
    let states = [vec![], start(), changed(), elsewhere(), names];
    for round in 0..100 {
        let mut chosen = dice.below(states.len());
        world.write(&states[chosen]);
        let delay = Duration::from_micros(dice.below(30_000) as u64);
        std::thread::sleep(delay);
        world.agent.kill();
        let (other, forget) = (dice.below(2) == 0, dice.below(8) == 0);
        if other {
            chosen = dice.below(states.len());
            world.write(&states[chosen]);
        }
        if forget {
            std::fs::remove_dir_all(world.agent.state_dir()).expect("it has a state directory");
        }
        world.agent.start();
        world.agent.wait_ready();
        world.settle(&states[chosen], &format!("seed {seed}, round {round}: {delay:?}, other {other}, forget {forget}, state {chosen}"));
    }
}

/// Acknowledged writes into the embedded store are there after a kill at any of its calls; others are there or not, never in part.
#[test]
fn killed_while_storing() {
    let host = Host::with_netns(&["red", "blue"]);
    let mut agent = host.start_agent();
    let wishes = |mtu: u32| {
        let mtu = json!({"mtu": mtu});
        [with(&end(1, "veth1", "veth2", "red", json!({})), mtu.clone()), with(&end(2, "veth2", "veth1", "blue", json!({})), mtu)]
    };
    agent.apply(&wishes(1400));
    let (mut mtu, mut kills) = (1400, 0);
    let files = [agent.state_dir().join("store.redb")];
    for call in ["pwrite64", "fdatasync", "fsync", "ftruncate"] {
        for n in 1..MOST {
            let wire = Wire::lay(agent.pid(), &Point::on(call, &files), n);
            let folder = tempfile::tempdir_in(host.path("")).expect("a temporary folder");
            for (n, wish) in wishes(mtu + 1).iter().enumerate() {
                std::fs::write(folder.path().join(format!("{n}.json")), wish.to_string()).expect("a file");
            }
            let answer = agent.vnfctl(&["apply", "-f", &folder.path().display().to_string()]);
            drop(wire);
            if !agent.has_ended() {
                assert_eq!(answer.code, 0, "{}", answer.stderr);
                mtu += 1;
                break;
            }
            kills += 1;
            agent.wait();
            agent.start();
            agent.wait_configured(&["veth1", "veth2"]);
            let seen = eventually_ok("both ends agree", || {
                let seen = ["red", "blue"].map(|netns| host.links(netns).first().map_or(0, |link| link.mtu));
                if seen[0] == seen[1] { Ok(seen[0]) } else { Err(seen) }
            });
            let allowed = if answer.code == 0 { mtu + 1..=mtu + 1 } else { mtu..=mtu + 1 };
            assert!(allowed.contains(&u32::try_from(seen).expect("an MTU")), "{call} {n}: {seen} not in {allowed:?}");
            mtu = u32::try_from(seen).expect("an MTU");
        }
    }
    tell(&format!("killed {kills} times while storing"));
    assert!(kills > 3, "{kills}");
}
