//! C82: the agent is killed with SIGKILL instead of each of its writes on the way of a NIC behind the bridge and back (kernel, database, flows, guard,
//! journal), and so is the process that stands by for it. The host answers in both families before anybody starts again, and after that, with the store
//! away; it ends in one of the two good states; and when the NIC is plain again, everything is as it was.

mod nic_support;
mod support;

use nic_support::assert_reachable;
use nic_support::rig::{Rest, Rig};
use support::{Dice, Host, eventually};

/// More writes than any way has.
const MOST: usize = 400;

#[allow(clippy::print_stderr, reason = "shown with --nocapture and with a failed test: a sweep must say what it has swept")]
fn tell(what: &str) {
    eprintln!("{what}");
}

#[test]
fn the_agent_is_killed_instead_of_a_write() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    let (mut there, mut back) = (Some(1), Some(1));
    let mut kills = [0, 0];
    while there.is_some() || back.is_some() {
        assert!(there.max(back) < Some(MOST), "no end of writes: {}", rig.last_write.last());
        let n = there.unwrap_or(0);
        let mut rest = Rest::Attached;
        if rig.go(Rest::Attached, n) {
            let what = format!("killed on the way there instead of write {}", rig.last_write.last());
            tell(&what);
            kills[0] += 1;
            rest = rig.recover(&[Rest::Plain, Rest::Attached], &what);
            there = Some(n + 1);
        } else {
            there = None;
        }
        let n = back.unwrap_or(0);
        if rig.go(Rest::Plain, n) {
            let what = format!("killed on the way back instead of write {}", rig.last_write.last());
            tell(&what);
            kills[1] += 1;
            if rig.recover(&[Rest::Plain, Rest::Attached], &what) == Rest::Attached {
                assert!(!rig.go(Rest::Plain, 0));
            }
            back = Some(n + 1);
        } else if rest == Rest::Attached {
            back = None;
        }
        rig.assert_as_before(&format!("after {kills:?} kills, the next at {there:?} and {back:?}"));
    }
    tell(&format!("{kills:?} kills on the ways there and back"));
    assert!(kills.iter().all(|kills| *kills >= 15), "{kills:?}");
}

/// Killed on its way back instead of a write; then another one goes on, or the agent does, without its store.
#[test]
fn the_process_that_stands_by_is_killed_instead_of_a_write() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    let mut kills = 0;
    for n in 1..MOST {
        rig.go(Rest::Attached, 0);
        rig.overdue();
        if rig.stand_by(n).wait().expect("a child").success() {
            assert_eq!(rig.rest(), Some(Rest::Plain));
            rig.assert_as_before("after a way back that was not cut off");
            tell(&format!("{kills} kills on the way back of the process that stands by"));
            assert!(kills >= 12, "{kills}");
            return;
        }
        let what = format!("killed standing by instead of write {}", rig.last_write.last());
        tell(&what);
        kills += 1;
        assert_reachable(&host, &what);
        if kills % 2 == 0 && rig.journal().is_some() {
            assert!(rig.stand_by(0).wait().expect("a child").success(), "{what}: {}", rig.stand_by_log());
            assert_reachable(&host, &format!("afterwards, {what}"));
        } else {
            rig.recover(&[Rest::Plain], &what);
        }
        rig.assert_as_before(&what);
    }
    panic!("no end of writes");
}

/// Killed on a way, and killed again up to three times while it takes up what it finds, without its store. `VNF_TEST_SOAK` goes on for long, `KILL_SEED` goes
/// other ways.
#[test]
fn the_agent_is_killed_again_while_it_recovers() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    let seed = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut dice = Dice::new(seed);
    let (mut kills, mut again) = (0, 0);
    for round in 0..if std::env::var_os("VNF_TEST_SOAK").is_some() { 200 } else { 8 } {
        let to = [Rest::Attached, Rest::Plain][round % 2];
        if !rig.go(to, 1 + dice.below(20)) {
            continue;
        }
        kills += 1;
        let mut what = format!("seed {seed}, round {round}, to {to:?}, killed instead of write {}", rig.last_write.last());
        rig.etcd.freeze();
        for _ in 0..3 {
            let environment = rig.last_write.of_agent(1 + dice.below(10));
            rig.agent.set_environment(environment);
            rig.agent.spawn();
            eventually(&format!("killed again, or nothing is left to do, {what}"), || rig.agent.has_ended() || rig.rest().is_some());
            if !rig.agent.has_ended() {
                rig.agent.kill();
                break;
            }
            rig.agent.wait();
            again += 1;
            what += &format!(", then instead of {}", rig.last_write.last());
            assert_reachable(&host, &what);
        }
        rig.agent.set_environment(Vec::new());
        rig.etcd.thaw();
        tell(&what);
        rig.recover(&[Rest::Plain, Rest::Attached], &what);
        rig.go(to, 0);
        if to == Rest::Plain {
            rig.assert_as_before(&what);
        }
    }
    rig.go(Rest::Plain, 0);
    rig.assert_as_before("at the end");
    tell(&format!("{kills} kills on a way, {again} while it recovered"));
    assert!(kills > 1 && again > 0, "{kills} {again}");
}
