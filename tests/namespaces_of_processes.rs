//! Namespaces that processes hold: bound to the process, not to its number, and told of only when it is certain.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what they measure is printed")]

mod netns_support;

use std::fs;
use std::io;
use std::process::Command;

use netns_support::{Holder, Watch, alone, bound, mount_netns, named, opens_as, red, refused, remove_netns, sandbox, unbound, until};
use vnf_agent::model::{NetnsRef, NetnsSlot, Reason};
use vnf_agent::namespace::{NetnsEvent, NetnsTracker, Remembered, TrackerOptions};

#[test]
fn a_process_is_bound_until_it_ends() {
    sandbox(|| {
        let mut holder = Holder::start();
        let watch = Watch::without_a_clock();
        let file = NetnsSlot::new(NetnsRef::File(format!("/proc/{}/ns/net", holder.pid()).into()), 7);
        let netns = bound(watch.ask(&holder.slot(7)));
        assert_eq!(netns.id.0.get(), holder.cookie());
        assert_eq!(opens_as(&netns).unwrap(), netns.id);
        assert_eq!(bound(watch.ask(&file)).id, netns.id);
        watch.silent();
        holder.0.kill().unwrap(); // A zombie from here on.
        for _ in 0..2 {
            let message = unbound(watch.next());
            assert!(message.contains("has ended; write the key again"), "{message}");
        }
        assert!(unbound(watch.ask(&holder.slot(8))).contains("has ended"), "a zombie, first seen");
        holder.end();
        assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"), "for good");
        assert!(unbound(watch.ask(&holder.slot(9))).contains("does not exist"), "written anew");
        assert_eq!(netns.opener.open().unwrap_err().raw_os_error(), Some(nix::libc::ESRCH));
    });
}

#[test]
fn numbers_that_are_no_process() {
    sandbox(|| {
        let watch = Watch::plain();
        let ask = |pid| watch.ask(&NetnsSlot::new(NetnsRef::Pid(pid), 1));
        refused(ask(0), Reason::BadNamespace);
        refused(ask(u32::MAX), Reason::BadNamespace);
        assert!(unbound(ask(4_194_303)).contains("does not exist"));
        let thread = nix::unistd::gettid().as_raw().unsigned_abs();
        assert_ne!(thread, std::process::id());
        assert!(refused(ask(thread), Reason::BadNamespace).contains("is a thread, not a process"));
    });
}

#[test]
fn a_process_that_changes_its_namespace_is_followed() {
    sandbox(|| {
        let script = "import os,sys\nos.unshare(0x40000000)\nprint(flush=True)\nsys.stdin.readline()\nos.unshare(0x40000000)\nprint(flush=True)\nsys.stdin.readline()";
        let script = script.replace("os.unshare(", "libc.unshare(");
        let script = format!("import ctypes\nlibc = ctypes.CDLL(None)\n{script}");
        let pipe = std::process::Stdio::piped;
        let mut holder = Holder(Command::new("python3").args(["-c", &script]).stdin(pipe()).stdout(pipe()).spawn().unwrap());
        let mut out = io::BufReader::new(holder.0.stdout.take().unwrap());
        let mut line = String::new();
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        let watch = Watch::plain();
        let first = bound(watch.ask(&holder.slot(1)));
        io::Write::write_all(holder.0.stdin.as_mut().unwrap(), b"\n").unwrap();
        io::BufRead::read_line(&mut out, &mut line).unwrap();
        watch.tracker.recheck();
        let second = bound(watch.next());
        assert_ne!(first.id, second.id);
        assert_eq!(second.id.0.get(), holder.cookie());
    });
}

#[test]
fn a_written_pid_keeps_its_process_over_restarts() {
    sandbox(|| {
        let state = tempfile::tempdir().unwrap();
        let start = || Watch::start(TrackerOptions { state_dir: Some(state.path().into()), ..TrackerOptions::default() });
        let mut holder = Holder::start();
        let watch = start();
        bound(watch.ask(&holder.slot(7)));
        drop(watch);
        let watch = start();
        bound(watch.ask(&holder.slot(7)));
        drop(watch);
        // The number now belongs to a process that started at another time, or in another boot.
        let file = state.path().join("pid-bindings.json");
        let good = fs::read_to_string(&file).unwrap();
        for (field, other) in [("started", "1"), ("inode", "1"), ("boot", "\"before\"")] {
            let mut records: serde_json::Value = serde_json::from_str(&good).unwrap();
            records[0][field] = other.parse().unwrap();
            fs::write(&file, records.to_string()).unwrap();
            let watch = start();
            assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"), "{field}");
            bound(watch.ask(&holder.slot(8)));
        }
        // Ended while no agent ran: still not waiting for a new process of that number.
        fs::write(&file, &good).unwrap();
        holder.end();
        let watch = start();
        assert!(unbound(watch.ask(&holder.slot(7))).contains("has ended"));
        // What nobody uses is forgotten.
        watch.tracker.unwatch(&holder.slot(7));
        watch.tracker.retain(&[]);
        watch.silent();
        drop(watch);
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]");
    });
}

/// In a PID namespace of its own a number can be given out again at once.
#[test]
fn a_number_that_is_used_again_is_not_the_process() {
    alone(&["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"], "inside_a_pid_namespace");
}

#[test]
#[ignore = "run by a_number_that_is_used_again_is_not_the_process, inside a PID namespace"]
fn inside_a_pid_namespace() {
    sandbox(|| {
        let next_number = |pid: u32| fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let state = tempfile::tempdir().unwrap();
        let start = || Watch::start(TrackerOptions { state_dir: Some(state.path().into()), ..TrackerOptions::default() });
        let watch = start();
        next_number(30_000);
        let mut first = Holder::start();
        assert_eq!(first.pid(), 30_000);
        let file = NetnsSlot::new(NetnsRef::File("/proc/30000/ns/net".into()), 2);
        let netns = bound(watch.ask(&first.slot(1)));
        bound(watch.ask(&file));
        first.end();
        next_number(30_000);
        let second = Holder::start();
        assert_eq!(second.pid(), 30_000);
        assert!(unbound(watch.next()).contains("has ended") && unbound(watch.next()).contains("has ended"));
        for watch in [watch, start()] {
            assert!(unbound(watch.ask(&second.slot(1))).contains("has ended"));
            assert!(unbound(watch.ask(&file)).contains("has ended"));
            watch.silent();
            assert_eq!(bound(watch.ask(&second.slot(3))).id.0.get(), second.cookie(), "written anew");
        }
        assert!(netns.opener.open().is_err(), "never the namespace of the other process");
    });
}

/// Another agent's namespaces are reachable through its processes only, and its links may look like ours.
#[test]
fn namespaces_of_mere_processes_are_not_searched() {
    sandbox(|| {
        let holder = Holder::start();
        let watch = Watch::plain();
        watch.tracker.search();
        let found: Vec<u64> =
            std::iter::from_fn(|| if let NetnsEvent::Found { netns, .. } = watch.next() { Some(netns.id.0.get()) } else { None }).collect();
        assert!(!found.is_empty() && !found.contains(&holder.cookie()));
    });
}

/// The namespace lives on with the process in it, but the name leads nowhere; a search still finds it.
#[test]
fn unmounted_but_alive() {
    sandbox(|| {
        mount_netns(&red());
        let watch = Watch::plain();
        let netns = bound(watch.ask(&named("red")));
        let child = Command::new("ip").args(["netns", "exec", "red", "sleep", "1000"]).spawn().unwrap();
        let holder = Holder(child);
        until(|| fs::read_to_string(format!("/proc/{}/comm", holder.pid())).is_ok_and(|comm| comm.trim() == "sleep"));
        assert_eq!(holder.cookie(), netns.id.0.get());
        remove_netns(&red());
        unbound(watch.next());
        assert!(netns.opener.open().is_err());
        let remembered = vec![Remembered { id: netns.id, reference: NetnsRef::Named("red".into()) }];
        let watch = Watch::start(TrackerOptions { remembered, ..TrackerOptions::default() });
        watch.tracker.search();
        let own = watch.next();
        assert!(matches!(own, NetnsEvent::Found { ref netns, .. } if netns.own), "{own:?}");
        assert!(matches!(watch.next(), NetnsEvent::Found { netns: found, .. } if found.id == netns.id));
        assert!(matches!(watch.next(), NetnsEvent::SearchDone));
    });
}

#[test]
fn what_cannot_be_told_is_not_gone() {
    alone(&["prlimit", "--nofile=48:48"], "without_free_descriptors");
}

#[test]
#[ignore = "run by what_cannot_be_told_is_not_gone, with few descriptors"]
fn without_free_descriptors() {
    sandbox(|| {
        let holder = Holder::start();
        mount_netns(&red());
        let watch = Watch::plain();
        let process = bound(watch.ask(&holder.slot(1)));
        let name = bound(watch.ask(&named("red")));
        let mut hoard = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            hoard.push(file);
        }
        watch.silent();
        assert_eq!(bound(watch.ask(&holder.slot(1))).id, process.id);
        assert_eq!(bound(watch.ask(&named("red"))).id, name.id);
        assert!(unbound(watch.ask(&holder.slot(2))).contains("cannot be looked at"));
        assert!(unbound(watch.ask(&named("other"))).contains("cannot be looked at"));
        drop(hoard);
        // By itself, when it can be told again.
        let mut later = [watch.next(), watch.next()];
        later.sort_by_key(|event| matches!(event, NetnsEvent::Bound { .. }));
        let [other, again] = later;
        assert!(unbound(other).contains("does not exist"));
        assert_eq!(bound(again).id, process.id);
        watch.silent();
    });
}
