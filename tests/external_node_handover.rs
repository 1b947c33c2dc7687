//! A NIC behind a real Open vSwitch and back: nothing is lost, at whatever step it is cut off.

mod nic_support;
mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nic_support::*;
use support::{Host, eventually};
use vnf_agent::external_node::handover::Outcome;
use vnf_agent::external_node::journal::{Journal, JournalFolder};
use vnf_agent::external_node::phase::{Goal, Step, phase};
use vnf_agent::model::Phase;

/// Pings from outside as long as it lives.
struct Probe {
    child: std::process::Child,
}

impl Probe {
    fn start(host: &Host, address: &str) -> Self {
        let mut command: Command = host.command("net", "ping");
        command.args(["-i", "0.02", "-W", "10", address]).stdout(Stdio::piped());
        Self { child: command.spawn().expect("nsenter starts") }
    }

    /// How many were sent and how many were not answered.
    fn end(self) -> (u64, u64) {
        let pid = i32::try_from(self.child.id()).expect("a process number");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGINT).expect("it runs");
        let output = self.child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let summary = text.lines().find(|line| line.contains("packets transmitted")).unwrap_or_else(|| panic!("no summary: {text}"));
        let numbers: Vec<u64> = summary.split([' ', ',', '+']).filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[0].saturating_sub(numbers[1]))
    }
}

#[test]
fn everything_comes_along_and_back_and_the_host_answers_meanwhile() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    let before = digest(&host, "nic0");
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    assert_reachable(&host, "before");
    let probes = [Probe::start(&host, HERE), Probe::start(&host, HERE_6)];
    std::thread::sleep(std::time::Duration::from_millis(300));
    mover.to(Goal::Attached);
    let seen = mover.handover.observe("nic0").unwrap();
    assert_eq!(phase(&seen.observation), Phase::Attached, "{seen:#?}");
    assert_reachable(&host, "behind the bridge");
    std::thread::sleep(std::time::Duration::from_millis(300));
    for probe in probes {
        // On a quiet machine none is lost. The switch forwards in user space here, so on a busy one it, too, may wait for a processor; a NIC
        // that is taken down and up again, or flows that come after the addresses, would lose most of them.
        let (sent, lost) = probe.end();
        assert!(sent > 5 && lost * 4 <= sent, "{lost} of {sent} probes were lost on the way behind the bridge");
    }
    let behind = digest(&host, "nic0");
    for part in ["mtu", "mac", "up", "addresses", "routes", "rules"] {
        assert_eq!(behind[part], before[part], "{part}");
    }
    assert!(!host.run("ip address show dev nic0~").contains("inet"));
    mover.to(Goal::Plain);
    wait_digest(&host, "everything is as it was", &before);
    assert_eq!(host.link_names(""), ["br-int", "nic0", "ovs-netdev"]);
    assert!(!mover.handover.journals().path("nic0").exists());
    assert!(!host.run("nft list tables").contains("vnf_agent"));
    assert_reachable(&host, "afterwards");
}

/// Cut off after every step of both ways, then taken up by a process that knows nothing, in the same direction and back. The host is reachable at every cut.
#[test]
fn cut_off_after_every_step() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    let flows = Arc::default();
    let before = digest(&host, "nic0");
    for goal in [Goal::Attached, Goal::Plain] {
        let other = if goal == Goal::Attached { Goal::Plain } else { Goal::Attached };
        for steps in 0.. {
            for onward in [goal, other] {
                mover(&ovs, &flows, "boot").to(other);
                let Some((step, seen)) = mover(&ovs, &flows, "boot").stop_after(steps, goal) else {
                    continue;
                };
                assert_reachable(&host, &format!("when cut off before {step:?} on the way to {goal:?} at {seen:?}"));
                mover(&ovs, &flows, "boot").to(onward);
                assert_reachable(&host, &format!("after it was cut off before {step:?} and went on to {onward:?}"));
                if onward == Goal::Plain {
                    wait_digest(&host, &format!("cut off before {step:?} on the way to {goal:?}: everything is as it was"), &before);
                }
            }
            mover(&ovs, &flows, "boot").to(other);
            if mover(&ovs, &flows, "boot").stop_after(steps, goal).is_none() {
                assert!(steps >= 6, "the way to {goal:?} has only {steps} steps");
                break;
            }
        }
    }
    mover(&ovs, &flows, "boot").to(Goal::Plain);
    wait_digest(&host, "at the end", &before);
}

#[test]
fn the_rows_outlive_a_reboot() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let mut ovs = host.start_ovs();
    let flows = Arc::default();
    let before = digest(&host, "nic0");
    mover(&ovs, &flows, "boot 1").to(Goal::Attached);
    // Everything of the kernel is gone but the NIC, which the boot has set up under its own name; the database is as it was.
    ovs.exit_switch_with_cleanup();
    host.run("nft flush ruleset");
    host.run("ip link del nic0~");
    host.run("ip rule flush");
    for (priority, table) in [("32766", "main"), ("32767", "default")] {
        host.run(&format!("ip rule add from all lookup {table} priority {priority}"));
    }
    furnish(&host);
    ovs.start_switch();
    assert_reachable(&host, "after the boot");
    mover(&ovs, &flows, "boot 2").to(Goal::Attached);
    assert_reachable(&host, "when it is taken up again");
    mover(&ovs, &flows, "boot 2").to(Goal::Plain);
    wait_digest(&host, "everything is as it was", &before);
}

#[test]
fn a_switch_that_dies_restarts_or_cleans_up() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let mut ovs = host.start_ovs();
    let flows = Arc::default();
    let before = digest(&host, "nic0");
    let mut mover = mover(&ovs, &flows, "boot");
    mover.to(Goal::Attached);
    // Killed and started: the addresses are still on the port.
    ovs.kill_switch();
    ovs.start_switch();
    eventually("it is seen that the switch is back", || mover.drive(Goal::Attached).is_ok());
    mover.to(Goal::Attached);
    assert_reachable(&host, "after the switch was killed and started");
    // Ended with clean-up and started: the port is made anew, bare.
    ovs.exit_switch_with_cleanup();
    ovs.start_switch();
    eventually("it is seen that the switch is back", || mover.drive(Goal::Attached).is_ok());
    mover.to(Goal::Attached);
    assert_reachable(&host, "after the switch had cleaned up");
    ovs.kill_database();
    ovs.start_database();
    eventually("the database is back", || mover.switch.read().is_ok());
    mover.to(Goal::Attached);
    assert_reachable(&host, "after the database was killed and started");
    // Nor is what the switch did to the NIC taken for the owner's, when nothing is left that says how it was found.
    mover.handover.journals().drop("nic0").expect("it is there");
    mover.to(Goal::Attached);
    mover.to(Goal::Plain);
    wait_digest(&host, "everything is as it was", &before);
}

#[test]
fn a_host_is_rescued_from_a_dead_switch() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let mut ovs = host.start_ovs();
    let flows = Arc::default();
    let before = digest(&host, "nic0");
    let mut mover = mover(&ovs, &flows, "boot");
    mover.to(Goal::Attached);
    ovs.kill_switch();
    // Nor does anybody undo this by then.
    host.run("ip link set nic0~ address 02:00:00:00:00:99");
    eventually("the way back leads past a dead switch", || {
        let _unfinished = mover.drive(Goal::Plain);
        host.link_names("").iter().all(|name| name != "nic0~")
    });
    mover.to(Goal::Plain);
    assert_reachable(&host, "with a dead switch");
    wait_digest(&host, "everything is as it was", &before);
    // And with a dead database too.
    ovs.start_switch();
    mover.to(Goal::Attached);
    ovs.kill_switch();
    ovs.kill_database();
    let _waits = mover.drive(Goal::Plain);
    assert_reachable(&host, "with a dead switch and a dead database");
    ovs.start_database();
    ovs.start_switch();
    eventually("the database is back", || mover.switch.read().is_ok());
    mover.to(Goal::Plain);
    wait_digest(&host, "everything is as it was at the end", &before);
}

/// A switch that hangs must not keep the host waiting on its way back for an answer that nobody needs yet.
#[test]
fn the_way_back_asks_for_flows_only_when_the_nic_is_plain() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    let flows = Arc::<NoFlows>::default();
    let before = digest(&host, "nic0");
    let mut mover = mover(&ovs, &flows, "boot");
    mover.to(Goal::Attached);
    let (mut asked, mut steps) = (0, Vec::new());
    let outcome = mover.handover.drive("nic0", Goal::Plain, &purpose(), |step, _| {
        let now = flows.asked.load(Ordering::SeqCst);
        steps.push((step, now - asked));
        asked = now;
        true
    });
    assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{outcome:?}");
    let at = |wanted| steps.iter().position(|(step, _)| *step == wanted).unwrap_or_else(|| panic!("{wanted:?}: {steps:?}"));
    let moved = &steps[at(Step::MarkDetaching) + 1..=at(Step::RenameBack)];
    assert!(moved.len() >= 3 && moved.iter().all(|(_, asked)| *asked == 0), "{steps:?}");
    assert!(steps[at(Step::RemoveFlows)].1 > 0, "{steps:?}");
    wait_digest(&host, "everything is as it was", &before);
}

/// The kernel's datapath outlives its switch, and has to be told to let go. There is none here, so what would be told to it is written down instead.
#[test]
fn a_dead_switch_of_the_kernels_datapath_is_gone_past() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let mut ovs = host.start_ovs();
    let flows = Arc::default();
    let before = digest(&host, "nic0");
    let mut mover = mover(&ovs, &flows, "boot");
    let (program, told) = (host.path("ovs-dpctl"), host.path("told"));
    std::fs::write(&program, format!("#!/bin/sh\necho \"$*\" >> {}\n", told.display())).expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its rights");
    mover.to(Goal::Attached);
    mover.to(Goal::Plain);
    assert!(!told.exists(), "a switch that is alive does it by itself");
    mover.to(Goal::Attached);
    ovs.kill_switch();
    let journals = JournalFolder::open(&host.path("")).expect("a folder");
    let journal = journals.load("nic0").expect("it can be read").expect("a journal");
    journals.write(&Journal { guard: false, ..journal }).expect("it can be written");
    eventually("the way back leads past a dead switch", || {
        let _unfinished = mover.drive(Goal::Plain);
        host.link_names("").iter().all(|name| name != "nic0~")
    });
    assert!(std::fs::read_to_string(&told).expect("something was told").contains("del-if ovs-system nic0~"));
    mover.to(Goal::Plain);
    assert_reachable(&host, "with a dead switch");
    wait_digest(&host, "everything is as it was", &before);
}

/// A link that goes between the look and the step cuts the step off: the way goes on, and does not tell of it as if it had been done.
#[test]
fn a_step_that_was_cut_off_is_told_as_such() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    let mut told: Vec<(Step, Option<String>)> = Vec::new();
    let outcome = mover.handover.drive("nic0", Goal::Attached, &purpose(), |step, seen| {
        let is_first = !told.iter().any(|(taken, _)| *taken == step);
        told.push((step, seen.undone.clone()));
        if step == Step::CopyToPort && is_first {
            host.run("ip link del nic0");
        }
        true
    });
    assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{outcome:#?}");
    let cut_off = told.iter().position(|(step, _)| *step == Step::CopyToPort).expect("it was begun");
    assert!(told[cut_off + 1].1.as_ref().is_some_and(|why| why.contains("nic0")), "{told:?}");
    assert!(told[..=cut_off].iter().all(|(_, undone)| undone.is_none()), "{told:?}");
    assert_reachable(&host, "behind the bridge");
}
