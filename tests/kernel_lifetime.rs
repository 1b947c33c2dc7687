//! Namespaces that end or are replaced while we work in them: nothing is pinned, nothing lands in the wrong one.
//!
//! The tests count this process's descriptors and threads, so they run one after another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;

use std::sync::{Mutex, PoisonError};

use kernel_support::*;
use nix::errno::Errno;
use vnf_agent::linux::{Kernel, KernelError, KernelOp, LinkEvent};
use vnf_agent::model::LinkId;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn is_gone(error: &KernelError) -> bool {
    [Errno::ENOENT, Errno::ESRCH, Errno::ESTALE].iter().any(|errno| error.is(*errno))
}

/// Descriptors of namespaces and of sockets.
fn census() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| ["net:[", "socket:["].iter().any(|kind| link.to_string_lossy().starts_with(kind))).count()
}

#[test]
fn a_socket_is_closed_on_detach_and_when_idle() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (_, b) = bed.pair((&red, "x"), (&blue, "x"));
    drop(red);
    // Our socket keeps the namespace, and so the pair, alive.
    assert!(bed.link(b).is_some());
    let red = bed.link(b).unwrap();
    assert!(red.peer.is_some());
    let id = bed.record.wait_for("the first end", |e| matches!(e, LinkEvent::Link(id, _) if *id != b.netns));
    let LinkEvent::Link(id, _) = id else { unreachable!() };
    bed.kernel.detach(id);
    bed.record.wait_for("the end of the pair", |e| *e == LinkEvent::LinkGone(b));
    assert!(bed.kernel.read_netns(id).unwrap_err().is(Errno::ENOENT));

    let before = census();
    bed.until("idle sockets closed", |kernel| {
        kernel.rest();
        (census() < before).then_some(())
    });
    // What stays open is in the agent's own namespace: the monitor's socket and the one that asks for numbers.
    assert_eq!(census(), 2);
}

#[test]
fn a_namespace_that_is_gone_says_so() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (nowhere, op) = (LinkId { netns: blue.id, ifindex: no_such_index() }, create((&red, "x"), (&blue, "x")));
    let other_way = create((&blue, "y"), (&red, "y"));
    drop(blue);
    assert!(is_gone(&bed.kernel.read_netns(nowhere.netns).unwrap_err()));
    assert!(is_gone(&bed.kernel.read_link(nowhere).unwrap_err()));
    let enable = KernelOp::EnableIpv6 { link: nowhere, name: "x".into() };
    let answers = bed.kernel.execute(&[op, other_way, up(nowhere), enable, create((&red, "good"), (&red, "good2"))]);
    for answer in &answers[..4] {
        assert!(is_gone(answer.as_ref().unwrap_err()), "{answer:?}");
    }
    assert!(answers[4].is_ok());
    assert_eq!(bed.names(&red), ["lo", "good2", "good"]);
}

#[test]
fn another_namespace_under_the_old_name_is_left_alone() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let red = bed.netns();
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("blue");
    let (blue, impostor) = (TestNetns::new(), TestNetns::new());
    std::os::unix::fs::symlink(&blue.path, &name).unwrap();
    bed.kernel.attach(&blue.handle_by(&name));
    let (_, b) = bed.pair((&red, "x"), (&blue, "x"));
    std::fs::remove_file(&name).unwrap();
    std::os::unix::fs::symlink(&impostor.path, &name).unwrap();
    // The open socket is still in the old one.
    assert!(bed.link(b).is_some());
    bed.until("closed", |kernel| {
        kernel.rest();
        (census() == 2).then_some(())
    });
    assert!(bed.kernel.read_netns(blue.id).unwrap_err().is(Errno::ESTALE));
    let answers = bed.kernel.execute(&[create((&red, "y"), (&blue, "y")), create((&blue, "z"), (&red, "z")), up(b)]);
    for answer in answers {
        assert!(answer.as_ref().unwrap_err().is(Errno::ESTALE), "{answer:?}");
    }
    assert_eq!(impostor.show("-oneline link show").lines().count(), 1);
    assert_eq!(bed.names(&red), ["lo", "x"]);
}

#[test]
fn open_sockets_are_bounded() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let spaces: Vec<_> = (0..530).map(|_| bed.netns()).collect();
    // The usual limit.
    let limit = ["--pid", &std::process::id().to_string(), "--nofile=1024"].map(str::to_owned);
    assert!(std::process::Command::new("prlimit").args(limit).status().unwrap().success());
    for netns in &spaces {
        bed.kernel.read_netns(netns.id).unwrap();
    }
    assert!((500..=515).contains(&census()), "{}", census());
    // The one that was closed first is opened again.
    assert_eq!(bed.names(&spaces[0]), ["lo"]);
    let ops: Vec<_> = (0..spaces.len() - 1).map(|i| create((&spaces[i], "a"), (&spaces[i + 1], "b"))).collect();
    assert!(bed.kernel.execute(&ops).iter().all(Result::is_ok));
    let hub: Vec<_> = spaces.iter().enumerate().skip(1).map(|(i, netns)| create((&spaces[0], &format!("h{i}")), (netns, "hub"))).collect();
    for answer in bed.kernel.execute(&hub) {
        answer.unwrap();
    }
    assert!(census() <= 515, "{}", census());
}

#[test]
fn long_lived_threads_stay_at_home() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    for round in 0..20 {
        let (a, b) = bed.pair((&red, "x"), (&blue, "x"));
        let enable = KernelOp::EnableIpv6 { link: b, name: "x".into() };
        assert!(bed.execute_one(enable).is_ok(), "{round}");
        let expected = vnf_agent::linux::ExpectedMark { group: GROUP, alias: None };
        assert!(bed.execute_one(KernelOp::DeleteLink { link: a, doomed_group: DOOMED, expected }).is_ok());
        bed.record.wait_for("the end", |e| *e == LinkEvent::LinkGone(b));
        bed.record.clear();
    }
    let home = std::fs::read_link("/proc/self/ns/net").unwrap();
    let mut names = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // Threads that enter a namespace are named before they do, so the name is read second.
        let (Ok(netns), Ok(name)) = (std::fs::read_link(path.join("ns/net")), std::fs::read_to_string(path.join("comm"))) else { continue };
        if name.trim() != INSIDE {
            assert_eq!(netns, home, "{name}");
            names.push(name.trim().to_owned());
        }
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("reaper-")).count(), 8);
    assert_eq!(names.iter().filter(|name| *name == "link-monitor").count(), 1);
}

#[test]
fn churn_makes_a_reading_incomplete_never_wrong() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let red = bed.netns();
    let ops: Vec<_> = (0..150).map(|i| create((&red, &format!("x{i}")), (&red, &format!("y{i}")))).collect();
    assert!(bed.kernel.execute(&ops).iter().all(Result::is_ok));
    let churn = "for i in $(seq 100); do ip link add churn type bridge; ip link del churn; done";
    let path = red.path.clone();
    let shell = red.run(move || {
        assert!(path.exists());
        std::process::Command::new("sh").args(["-c", churn]).spawn().unwrap()
    });
    let mut shell = shell;
    let mut readings = 0;
    while shell.try_wait().unwrap().is_none() {
        let reading = bed.kernel.read_netns(red.id).unwrap();
        let stable = reading.links.iter().filter(|l| l.group == GROUP).count();
        assert!(stable == 300 || !reading.complete, "{stable}");
        readings += 1;
    }
    assert!(readings > 1, "{readings}");
    assert!(bed.kernel.read_netns(red.id).unwrap().complete);
}
