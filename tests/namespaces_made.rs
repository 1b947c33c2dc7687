//! Named namespaces that are missing: made once where that is wished, and nothing else is put in their place.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what they measure is printed")]

mod netns_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use netns_support::{Watch, bound, ip, mount_netns, named, opens_as, red, refused, sandbox, unbound};
use vnf_agent::model::{NetnsId, NetnsRef, NetnsSlot, Reason};
use vnf_agent::namespace::{NetnsEvent, NetnsTracker, TrackerOptions};

/// What the agent writes into the file before the mount covers it.
const OUR_STUB: &str = "made by vnf-agent, waits for its mount\n";

#[test]
fn created_once_and_then_waited_for() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        let first = match watch.next() {
            NetnsEvent::Bound { netns, created: true, .. } => netns,
            other => panic!("{other:?}"),
        };
        assert_eq!(opens_as(&first).unwrap(), first.id);
        ip(&["-n", "red", "link", "show", "lo"]);
        let links = Command::new("ip").args(["-n", "red", "-o", "link", "show", "lo", "up"]).output().unwrap();
        assert!(links.status.success() && links.stdout.is_empty(), "loopback stays down");
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(mounts.lines().any(|line| line.contains(" /run/netns rw") && line.contains("shared:")), "{mounts}");
        watch.silent();
        ip(&["netns", "del", "red"]);
        // For a moment the bare file may be seen.
        while !unbound(watch.next()).contains("does not exist") {}
        watch.silent();
        assert!(!red().exists());
        // The key is written again.
        watch.tracker.watch(&named("red"), true);
        let second = bound(watch.next());
        assert_ne!(first.id, second.id);
        watch.tracker.unwatch(&named("red"));
        watch.silent();
        assert!(red().exists(), "never deleted by us");
    });
}

#[test]
fn many_are_created_in_one_go() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        let start = Instant::now();
        (0..200).for_each(|n| watch.tracker.watch(&named(&format!("n{n}")), true));
        // Others are answered meanwhile.
        assert!(matches!(watch.ask(&NetnsSlot::new(NetnsRef::Default, 0)), NetnsEvent::Bound { netns, .. } if netns.own));
        println!("an answer after {:?}", start.elapsed());
        let ids: std::collections::HashSet<NetnsId> = (0..200).map(|_| bound(watch.next()).id).collect();
        println!("200 namespaces after {:?}", start.elapsed());
        assert_eq!(ids.len(), 200);
        watch.silent();
    });
}

#[test]
fn not_created_unless_asked() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        unbound(watch.ask(&named("red")));
        let watch = Watch::plain();
        watch.tracker.watch(&named("red"), true);
        unbound(watch.next());
        assert!(!red().exists());
    });
}

#[test]
fn a_file_of_our_own_that_a_kill_left_is_used() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), OUR_STUB).unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(matches!(watch.next(), NetnsEvent::Bound { created: true, .. }));
    });
}

/// Also where missing namespaces are made: somebody may be about to mount on it.
#[test]
fn a_bare_file_of_others_is_never_mounted_over() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(unbound(watch.next()).contains("nothing is mounted"));
        // A creation that is not to be is over long before that.
        thread::sleep(Duration::from_millis(300));
        watch.silent();
        let cookie = mount_netns(&red());
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
    });
}

#[test]
fn names_that_lead_elsewhere_are_refused_and_make_nothing() {
    sandbox(|| {
        let watch = Watch::start(TrackerOptions::default());
        for name in ["../red", "a/b", "..", ".", "", "/etc/x", &"n".repeat(256)] {
            watch.tracker.watch(&named(name), true);
            refused(watch.next(), Reason::BadNamespace);
        }
        assert_eq!(fs::read_dir("/run").unwrap().count(), 0);
    });
}

#[test]
fn what_is_in_the_way_of_a_name_is_refused_and_watched() {
    sandbox(|| {
        fs::create_dir_all(red()).unwrap();
        symlink("/run/netns/red", "/run/netns/link").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        assert!(refused(watch.next(), Reason::BadNamespace).contains("directory"));
        assert!(refused(watch.ask(&named("link")), Reason::BadNamespace).contains("symbolic link"));
        fs::remove_dir(red()).unwrap();
        assert!(unbound(watch.next()).contains("does not exist"));
        let cookie = mount_netns(&red());
        assert_eq!(watch.next_bound().id.0.get(), cookie);
    });
}

#[test]
fn what_cannot_be_made_leaves_nothing_and_says_why() {
    sandbox(|| {
        fs::write("/run/netns", "in the way").unwrap();
        let watch = Watch::start(TrackerOptions::default());
        watch.tracker.watch(&named("red"), true);
        let message = unbound(watch.next());
        assert!(message.contains("cannot be made"), "{message}");
        fs::remove_file("/run/netns").unwrap();
        assert!(matches!(watch.next(), NetnsEvent::Bound { created: true, .. }), "tried again by the clock");
    });
}

#[test]
fn many_who_make_one_name_end_up_with_one() {
    sandbox(|| {
        for round in 0..20 {
            let name = format!("n{round}");
            let left_over = round % 2 == 1;
            if left_over {
                fs::write(format!("/run/netns/{name}"), OUR_STUB).unwrap();
            }
            let watches: Vec<Watch> = (0..4).map(|_| Watch::start(TrackerOptions::default())).collect();
            watches.iter().for_each(|watch| watch.tracker.watch(&named(&name), true));
            if !left_over {
                let mut other = Command::new("ip").args(["netns", "add", &name]).stderr(std::process::Stdio::null()).spawn().unwrap();
                other.wait().unwrap();
            }
            let ids: std::collections::HashSet<NetnsId> = watches.iter().map(|watch| bound(watch.next()).id).collect();
            assert_eq!(ids.len(), 1, "round {round}");
            let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let target = format!(" /run/netns/{name} ");
            // A shared folder that is bound onto itself shows each mount in it twice at most; never two namespaces.
            let kinds: std::collections::HashSet<&str> =
                mounts.lines().filter(|line| line.contains(&target)).filter_map(|line| line.split(' ').nth(3)).collect();
            assert_eq!(kinds.len(), 1, "round {round}: {mounts}");
        }
    });
}
