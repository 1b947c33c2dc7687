//! The dead man's switch: an agent that hangs, comes back late or is killed; the process that stands by killed, doubled, late, or for an attachment that is
//! not the one that stands any more; journals that are damaged, of another boot, or cannot be written. The host is never lost.

mod nic_support;
mod support;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;

use nic_support::rig::{Rest, Rig};
use nic_support::{Mover, assert_reachable};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::host::Process;
use support::{Host, eventually, eventually_ok};
use vnf_agent::external_node::handover::Purpose;
use vnf_agent::external_node::journal::Intent;
use vnf_agent::external_node::phase::Goal;

const IN_TIME: &str = "was not confirmed in time";

fn rig_with_time<'h>(host: &'h Host, confirm_within: &str) -> Rig<'h> {
    Rig::new(host, &["--node-confirm-timeout", confirm_within])
}

fn is_frozen(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.lines().any(|line| line.starts_with("State:\tT")))
}

/// Starts the agent on its way there, frozen before its `n`-th write.
fn start_frozen(rig: &mut Rig<'_>, n: usize) {
    rig.wish(true);
    let environment = rig.last_write.of_frozen_agent(n);
    rig.agent.set_environment(environment);
    rig.agent.spawn();
    eventually(&format!("frozen before write {n}"), || is_frozen(rig.agent.pid()));
    rig.agent.set_environment(Vec::new());
}

/// Takes the NIC's lock, as a process that hangs.
fn hold(rig: &Rig<'_>) -> Process {
    let lock = rig.journal_path().with_extension("lock");
    let mut command = rig.host.command("", "flock");
    command.arg("-o").arg(lock).args(["setpriv", "--pdeathsig", "KILL", "sh", "-c", "echo held && exec sleep 600"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("nsenter starts");
    child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("it holds the lock");
    Process(child)
}

/// An agent that hangs while it has the NIC is ended; one that comes to at that very moment is ended or lets go. Either way the NIC is given back.
#[test]
fn an_agent_that_hangs() {
    thread::scope(|scope| {
        // Before the NIC is touched, in the middle, and before it is noted that the way is done.
        for (n, thawed) in [(4, true), (9, false), (14, true), (19, false)] {
            scope.spawn(move || {
                let host = Host::with_netns(&["net"]);
                let mut rig = rig_with_time(&host, "1h");
                let what = format!("frozen before write {n}, thawed: {thawed}");
                start_frozen(&mut rig, n);
                rig.etcd.freeze();
                assert_reachable(&host, &what);
                rig.overdue();
                eventually(&format!("the other process takes over, {what}"), || rig.agent.log().contains(IN_TIME));
                if thawed {
                    rig.agent.signal(Signal::SIGCONT);
                }
                if !thawed {
                    eventually(&format!("the agent is ended, {what}"), || rig.agent.has_ended());
                }
                rig.wait_rest(&[Rest::Plain], &what);
                assert_reachable(&host, &format!("given back, {what}"));
                if rig.agent.has_ended() {
                    rig.agent.wait();
                } else {
                    rig.agent.kill();
                }
                // An agent that was thawed may have begun again.
                for pid in rig.standing_by() {
                    let _has_ended = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
                rig.etcd.thaw();
                rig.go(Rest::Plain, 0);
                rig.assert_as_before(&what);
            });
        }
    });
}

/// Somebody always stands by for what is not confirmed: one that was killed is started again by the agent, also by one that found the attachment there.
#[test]
fn somebody_always_stands_by() {
    let host = Host::with_netns(&["net"]);
    let mut rig = rig_with_time(&host, "1h");
    start_frozen(&mut rig, 3);
    rig.etcd.freeze();
    rig.agent.signal(Signal::SIGCONT);
    rig.wait_rest(&[Rest::Attached], "without its store");
    assert_ne!(rig.journal().expect("a journal")["confirmed"], true);
    for _ in 0..2 {
        let first = eventually_ok("one stands by", || <[i32; 1]>::try_from(rig.standing_by()).map(|[pid]| pid));
        kill(Pid::from_raw(first), Signal::SIGKILL).expect("it runs");
        eventually("another one stands by", || rig.standing_by().iter().any(|pid| *pid != first));
    }
    // Another agent does not know the one that is there already.
    rig.agent.kill();
    rig.agent.spawn();
    eventually("two stand by", || rig.standing_by().len() == 2);
    assert_reachable(&host, "attached, not confirmed");
    // Both take over at once.
    rig.agent.kill();
    rig.overdue();
    rig.wait_rest(&[Rest::Plain], "two at once");
    eventually("both end", || rig.standing_by().is_empty());
    rig.assert_as_before("two at once");
}

/// A journal that is lost before the attachment was confirmed is no NIC that was given back.
#[test]
fn a_journal_that_is_lost_before_it_was_confirmed() {
    let host = Host::with_netns(&["net"]);
    let mut rig = rig_with_time(&host, "1h");
    start_frozen(&mut rig, 3);
    rig.etcd.freeze();
    rig.agent.signal(Signal::SIGCONT);
    rig.wait_rest(&[Rest::Attached], "without its store");
    eventually("one stands by", || !rig.standing_by().is_empty());
    fs::remove_file(rig.journal_path()).expect("it is there");
    // Whatever comes brings the next look.
    host.run("ip link add news type bridge");
    let stands = |journal: Value| journal["intent"] == "ATTACHED" && journal["confirmed"] == false;
    eventually("another one is written from what stands", || rig.journal().is_some_and(stands));
    assert!(!rig.agent.log().contains("and was undone"), "{}", rig.agent.log());
    assert_reachable(&host, "with another journal");
    rig.etcd.thaw();
    rig.wait_confirmed("with the store back");
    rig.agent.kill();
    assert!(!rig.go(Rest::Plain, 0));
    rig.assert_as_before("at the end");
}

/// What the journal says of another attachment, or of one that was confirmed at the last moment, is left alone.
#[test]
fn only_what_it_guards_is_given_back() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    rig.go(Rest::Attached, 0);
    let attached = rig.journal().expect("a journal");
    // Another one begins while it watches.
    rig.change_journal(&json!({"confirmed": false, "confirm_until": u64::MAX}));
    let mut watcher = rig.stand_by(0);
    eventually("it stands by", || rig.stand_by_log().matches("standing by").count() == 1);
    rig.change_journal(&json!({"attachment": "another", "confirm_until": 0}));
    assert!(watcher.wait().expect("a child").success());
    assert_eq!(rig.rest(), Some(Rest::Attached));
    // It has decided already, and waits for the NIC.
    for last_moment in [json!({"attachment": "a third"}), json!({"confirmed": true})] {
        rig.change_journal(&attached);
        let holder = hold(&rig);
        rig.overdue();
        let times = rig.stand_by_log().matches(IN_TIME).count();
        let mut watcher = rig.stand_by(0);
        eventually("it takes over", || rig.stand_by_log().matches(IN_TIME).count() > times);
        rig.change_journal(&last_moment);
        drop(holder);
        assert!(watcher.wait().expect("a child").success(), "{last_moment}");
        assert_eq!(rig.rest(), Some(Rest::Attached), "{last_moment}");
    }
    assert_reachable(&host, "attached");
    assert!(!rig.go(Rest::Plain, 0));
    rig.assert_as_before("at the end");
}

/// A confirmation is for one attachment; what turns round on its way back is another one, and not confirmed.
#[test]
fn a_confirmation_is_for_what_stands() {
    let host = Host::with_netns(&["net"]);
    nic_support::furnish(&host);
    let ovs = host.start_ovs();
    let flows = Arc::default();
    let mut mover = nic_support::mover(&ovs, &flows, "boot");
    mover.to(Goal::Attached);
    let journal = |mover: &Mover| mover.handover.journals().load("nic0").expect("no failure");
    let confirm = |mover: &mut Mover, attachment: &str| mover.handover.confirm_attachment("nic0", attachment).expect("no failure");
    assert!(!confirm(&mut mover, "another") && journal(&mover).is_some_and(|journal| !journal.confirmed));
    assert!(confirm(&mut mover, "a1") && journal(&mover).is_some_and(|journal| journal.confirmed));
    mover.stop_after(1, Goal::Plain).expect("a way of several steps");
    let on_its_way_back = journal(&mover).expect("a journal");
    assert_eq!(on_its_way_back.intent, Intent::Detaching);
    assert!(!confirm(&mut mover, "a1") && journal(&mover).as_ref() == Some(&on_its_way_back));
    let again = Purpose { attachment: "a2".into(), ..nic_support::purpose() };
    mover.handover.drive("nic0", Goal::Attached, &again, |_, _| true).expect("every step goes well");
    assert!(journal(&mover).is_some_and(|journal| journal.attachment == "a2" && !journal.confirmed));
    assert!(!confirm(&mut mover, "a1") && confirm(&mut mover, "a2"));
    mover.to(Goal::Plain);
    assert!(!confirm(&mut mover, "a2") && journal(&mover).is_none());
}

/// Not the agent, but whoever holds the NIC and does not let go.
#[test]
fn whoever_holds_the_nic_and_hangs_is_ended() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    rig.go(Rest::Attached, 0);
    let mut holder = hold(&rig);
    rig.overdue();
    assert!(rig.stand_by(0).wait().expect("a child").success(), "{}", rig.stand_by_log());
    assert!(holder.0.wait().expect("a child").code().is_none());
    rig.assert_as_before("given back");
}

/// A journal that cannot be read any more when it is needed.
#[test]
fn a_journal_is_damaged() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    rig.go(Rest::Attached, 0);
    // The process that stands by has read it before.
    let holder = hold(&rig);
    rig.overdue();
    let mut watcher = rig.stand_by(0);
    eventually("it takes over", || rig.stand_by_log().contains(IN_TIME));
    fs::write(rig.journal_path(), "{\"version\": 1").expect("a file");
    drop(holder);
    assert!(watcher.wait().expect("a child").success(), "{}", rig.stand_by_log());
    assert!(fs::remove_file(rig.journal_path().with_extension("damaged")).is_ok());
    rig.assert_as_before("given back with a damaged journal");
    // An agent that is started says so and touches nothing; without the file it writes a new one from what stands.
    rig.go(Rest::Attached, 0);
    let whole = fs::read(rig.journal_path()).expect("a journal");
    fs::write(rig.journal_path(), &whole[..whole.len() / 2]).expect("a file");
    rig.agent.start();
    eventually("it is told", || rig.status()["message"].to_string().contains("it is left as it is"));
    assert_reachable(&host, "with a damaged journal");
    assert_eq!(fs::read(rig.journal_path()).expect("a journal"), whole[..whole.len() / 2]);
    rig.agent.kill();
    fs::remove_file(rig.journal_path()).expect("it is there");
    rig.agent.start();
    rig.wait_confirmed("with a new journal");
    rig.agent.kill();
    assert!(!rig.go(Rest::Plain, 0));
    rig.assert_as_before("at the end");
}

/// The state directory is full, or cannot be written at all: nothing is begun, and everything is given back.
#[test]
fn a_disk_that_takes_nothing() {
    let host = Host::with_netns(&["net"]);
    let mut rig = Rig::new(&host, &[]);
    let folder = rig.agent.state_dir().display().to_string();
    host.run(&format!("mkdir -p {folder}"));
    host.run(&format!("mount -t tmpfs -o size=256k tmpfs {folder}"));
    let full = format!("{folder}/full");
    let fill = || drop(host.try_run(&format!("dd if=/dev/zero of={full} bs=1k")));
    rig.agent.start();
    fill();
    rig.wish(true);
    eventually("it is told", || rig.status()["message"].to_string().contains("write the journal"));
    rig.wait_rest(&[Rest::Plain], "on a full disk");
    rig.assert_as_before("on a full disk");
    host.run(&format!("rm {full}"));
    rig.agent.kill();
    rig.agent.start();
    rig.wait_confirmed("with space again");
    fill();
    rig.wish(false);
    rig.wait_rest(&[Rest::Plain], "back on a full disk");
    rig.assert_as_before("back on a full disk");
    host.run(&format!("rm {full}"));
    rig.wish(true);
    rig.wait_confirmed("once more");
    rig.agent.kill();
    eventually("what is confirmed needs nobody any more", || rig.standing_by().is_empty());
    rig.overdue();
    for hindrance in ["full", "read-only"] {
        // The file of the lock may be the first that cannot be made.
        if hindrance == "full" {
            fill()
        } else {
            host.run(&format!("mount -o remount,ro {folder}"));
        }
        let mut watcher = rig.stand_by(0);
        eventually(&format!("plain with a disk that is {hindrance}"), || host.link_names("").iter().all(|name| name != "nic0~"));
        rig.assert_as_before(&format!("with a disk that is {hindrance}"));
        assert_reachable(&host, hindrance);
        let said = [rig.agent.log(), rig.stand_by_log()].concat();
        assert!(!said.contains("something undoes them"), "the way back has an end on a disk that takes nothing: {said}");
        if hindrance == "full" {
            assert!(watcher.wait().expect("a child").success());
            host.run(&format!("rm {full}"));
            rig.go(Rest::Attached, 0);
            rig.overdue();
        } else {
            watcher.kill().expect("a child");
            watcher.wait().expect("a child");
        }
    }
}

/// The rows outlive a reboot, and so does the journal; the NIC comes up under its own name, and the store is away.
#[test]
fn a_reboot() {
    let host = Host::with_netns(&["net"]);
    let mut rig = rig_with_time(&host, "1h");
    for confirmed in [true, false] {
        rig.go(Rest::Attached, 0);
        rig.change_journal(&json!({"boot_id": "the boot before", "confirmed": confirmed, "confirm_until": u64::MAX}));
        rig.ovs.exit_switch_with_cleanup();
        host.run("nft flush ruleset");
        host.run("ip link del nic0~");
        host.run("ip rule flush");
        for (priority, table) in [("32766", "main"), ("32767", "default")] {
            host.run(&format!("ip rule add from all lookup {table} priority {priority}"));
        }
        nic_support::furnish(&host);
        rig.ovs.start_switch();
        rig.etcd.freeze();
        assert_reachable(&host, "after the boot, without an agent");
        rig.agent.spawn();
        if confirmed {
            // What was proved before is taken up by itself, and must be proved again.
            let again = |journal: Value| journal["boot_id"] != "the boot before" && journal["intent"] == "ATTACHED";
            eventually("it is taken up again", || rig.journal().is_some_and(again));
            assert!(!rig.standing_by().is_empty());
        } else {
            // The host may have been booted because it was lost.
            rig.wait_rest(&[Rest::Plain], "what was not confirmed stays plain");
            eventually("no rows are left", || rig.ovs.rows("Port").iter().all(|port| port["name"] != "nic0~"));
        }
        assert_reachable(&host, "after the boot");
        rig.etcd.thaw();
        rig.wait_confirmed("with the store back");
        assert_reachable(&host, "with the store back");
        rig.agent.kill();
        assert!(!rig.go(Rest::Plain, 0));
        rig.assert_as_before("at the end");
    }
}

/// The flows of all NICs are one set: who gives back one of them knows the bypass rules of the others.
#[test]
fn other_nics_keep_their_bypass_rules() {
    let host = Host::with_netns(&["net"]);
    let config = host.path("agent.toml");
    let rule = "direction = \"ingress\"\nprotocol = \"tcp\"\ncidr = \"10.0.0.0/8\"\nport = 4022\n";
    fs::write(&config, format!("[[external_node.policy_bypass_rules]]\n{rule}")).expect("a file");
    let mut rig = Rig::new(&host, &["--config", &config.display().to_string(), "--node-confirm-timeout", "1h"]);
    let other = host.add_nic("nic1", 1);
    rig.wish_for(&["nic0", "nic1"]);
    rig.agent.start();
    eventually_ok("both are attached", || if rig.status()["state"] == "CONFIGURED" { Ok(()) } else { Err(rig.status()) });
    let bypassed = |rig: &Rig<'_>| rig.ovs.ofctl("dump-flows br-int").matches("tp_dst=4022").count();
    let of_both = bypassed(&rig);
    eventually("what is confirmed needs nobody any more", || rig.standing_by().is_empty());
    // One of them is not confirmed any more, and the agent lets another process stand by.
    rig.etcd.freeze();
    rig.change_journal(&json!({"confirmed": false, "confirm_until": u64::MAX}));
    host.run("ip link add news type bridge");
    eventually("somebody stands by", || rig.standing_by().len() == 1);
    rig.agent.kill();
    rig.overdue();
    rig.wait_rest(&[Rest::Plain], "one of two");
    eventually("it has ended", || rig.standing_by().is_empty());
    assert!(of_both > 0 && bypassed(&rig) * 2 == of_both, "{of_both} flows became {}", bypassed(&rig));
    assert_reachable(&host, "the one");
    other.passes_all_but(5001, &[]);
}
