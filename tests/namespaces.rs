//! Where named and file references lead, what a search finds, and what is said when that changes.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests; what they measure is printed")]

mod netns_support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use netns_support::{
    Holder, NOTHING, Watch, alone, bound, ip, mount_netns, named, open_files, opens_as, red, refused, remove_netns, sandbox, unbound,
    unmount, until,
};
use nix::mount::{MsFlags, mount};
use vnf_agent::linux::netns_thread::own_cookie;
use vnf_agent::model::{NetnsId, NetnsRef, NetnsSlot, Reason};
use vnf_agent::namespace::{NetnsEvent, Remembered, TrackerOptions};

#[test]
fn own_namespace() {
    sandbox(|| {
        let watch = Watch::plain();
        let own = bound(watch.ask(&NetnsSlot::new(NetnsRef::Default, 0)));
        assert!(own.own);
        assert_eq!(own.id, own_cookie().unwrap());
        assert_eq!(opens_as(&own).unwrap(), own.id);
        assert_eq!(watch.tracker.own().id, own.id);
    });
}

#[test]
fn microservices_are_said_to_be_missing() {
    sandbox(|| match Watch::plain().ask(&NetnsSlot::new(NetnsRef::Microservice("ms1".into()), 0)) {
        NetnsEvent::Unbound { reason: Reason::MicroserviceMissing, message, .. } => {
            assert!(message.contains("no running container has MICROSERVICE_LABEL=ms1: no container runtime is watched"), "{message}");
        }
        other => panic!("{other:?}"),
    });
}

#[test]
fn named_namespace_comes_and_goes() {
    sandbox(|| {
        let watch = Watch::plain();
        assert!(unbound(watch.ask(&named("red"))).contains("`red` does not exist"));
        ip(&["netns", "add", "red"]);
        let netns = watch.next_bound();
        assert!(!netns.own && opens_as(&netns).unwrap() == netns.id);
        assert_eq!(netns.inode, std::os::unix::fs::MetadataExt::ino(&fs::metadata(red()).unwrap()));
        // A file reference to the same one.
        assert_eq!(bound(watch.ask_file("/var/run/netns/red")).id, netns.id);
        watch.silent();
        // Asked again, it is said again.
        assert_eq!(bound(watch.ask(&named("red"))).id, netns.id);
        ip(&["netns", "del", "red"]);
        let mut gone: Vec<NetnsSlot> = Vec::new();
        while !(gone.contains(&named("red")) && gone.iter().any(|slot| matches!(slot.reference, NetnsRef::File(_)))) {
            match watch.next() {
                NetnsEvent::Unbound { slot, .. } => gone.push(slot),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(netns.opener.open().unwrap_err().raw_os_error(), Some(nix::libc::ENOENT));
    });
}

#[test]
fn a_bare_file_is_waited_for_and_taken_at_once_when_mounted() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        let watch = Watch::without_a_clock();
        assert!(unbound(watch.ask(&named("red"))).contains("nothing is mounted"));
        assert!(unbound(watch.ask_file("/run/netns/red")).contains("nothing is mounted"));
        thread::sleep(Duration::from_millis(300));
        let cookie = mount_netns(&red());
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
        assert_eq!(bound(watch.next()).id.0.get(), cookie);
    });
}

#[test]
fn a_namespace_that_is_replaced_is_a_new_one_though_its_inode_is_the_same() {
    sandbox(|| {
        let watch = Watch::plain();
        let mut cookie = mount_netns(&red());
        assert_eq!(bound(watch.ask(&named("red"))).id.0.get(), cookie);
        let mut inodes = std::collections::HashSet::new();
        for _ in 0..30 {
            remove_netns(&red());
            let next = mount_netns(&red());
            assert_ne!(next, cookie);
            cookie = next;
            let handle = loop {
                if let NetnsEvent::Bound { netns, .. } = watch.next() {
                    break netns;
                }
            };
            assert_eq!(handle.id.0.get(), cookie);
            assert_eq!(opens_as(&handle).unwrap(), handle.id);
            inodes.insert(handle.inode);
        }
        println!("30 namespaces had {} inodes", inodes.len());
    });
}

#[test]
fn what_is_no_network_namespace_is_named() {
    sandbox(|| {
        let watch = Watch::plain();
        let bad = |path: &str, what: &str| {
            let message = refused(watch.ask_file(path), Reason::BadNamespace);
            assert!(message.contains(what) && message.contains(&path[..path.len().min(40)]), "{path}: {message}");
        };
        fs::create_dir_all("/run/x/dir").unwrap();
        fs::write("/run/x/plain", "").unwrap();
        nix::unistd::mkfifo("/run/x/fifo", nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind("/run/x/socket").unwrap();
        let device = nix::sys::stat::makedev(1, 5);
        nix::sys::stat::mknod("/run/x/zero", nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::S_IRWXU, device).unwrap();
        mount_netns(Path::new("/run/x/real"));
        symlink("/run/x/real", "/run/x/link").unwrap();
        symlink("/run/x", "/run/y").unwrap();
        symlink("/proc/self/ns/net", "/run/x/magic").unwrap();
        fs::write("/run/x/uts", "").unwrap();
        mount(Some("/proc/thread-self/ns/uts"), "/run/x/uts", NOTHING, MsFlags::MS_BIND, NOTHING).unwrap();
        bad("/run/x/plain", "plain file");
        bad("/run/x/dir", "directory");
        bad("/run/x/fifo", "FIFO");
        bad("/run/x/socket", "socket");
        bad("/run/x/zero", "character device");
        bad("/dev/zero", "character device");
        bad("/run/x/link", "symbolic link");
        bad("/run/y/real", "symbolic link");
        bad("/run/x/magic", "symbolic link");
        bad("/proc/self/ns/net", "symbolic link");
        bad("/run/x/uts", "UTS namespace");
        bad("/run/x/../x/real", "`..`");
        bad("run/x/real", "absolute");
        bad(&format!("/run/{}", "x/".repeat(2100)), "too long");
        bad(&format!("/run/{}", "x".repeat(256)), "too long");
        assert!(unbound(watch.ask_file("/run/x/nothing")).contains("does not exist"));
        assert!(unbound(watch.ask_file("/run/x/plain/below")).contains("does not exist"));
        bound(watch.ask_file("/run/x/real"));
        bound(watch.ask_file("/var/run/x//real/"));
    });
}

#[test]
fn namespace_files_elsewhere_are_not_accepted() {
    sandbox(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("real");
        mount_netns(&path);
        let text = path.to_str().unwrap();
        let watch = Watch::plain();
        assert!(refused(watch.ask_file(text), Reason::BadNamespace).contains("below `/run`"));
        drop(watch);
        let watch = Watch::start(TrackerOptions { file_roots: vec![dir.path().into()], ..TrackerOptions::default() });
        bound(watch.ask_file(text));
        unmount(&path);
        assert!(refused(watch.next(), Reason::BadNamespace).contains("plain file"));
    });
}

#[test]
fn references_to_the_agents_own_namespace_are_refused() {
    sandbox(|| {
        fs::create_dir_all("/run/netns").unwrap();
        fs::write(red(), "").unwrap();
        mount(Some("/proc/thread-self/ns/net"), &red(), NOTHING, MsFlags::MS_BIND, NOTHING).unwrap();
        let watch = Watch::plain();
        let me = std::process::id();
        for reference in
            [NetnsRef::Named("red".into()), NetnsRef::File(red()), NetnsRef::Pid(me), NetnsRef::File(format!("/proc/{me}/ns/net").into())]
        {
            let message = refused(watch.ask(&NetnsSlot::new(reference, 3)), Reason::OwnNamespace);
            assert!(message.contains("leave `namespace` out to mean the agent's own"), "{message}");
        }
    });
}

#[test]
fn search_finds_each_once() {
    sandbox(|| {
        let red_id = NetnsId::new(mount_netns(&red())).unwrap();
        let docker = NetnsId::new(mount_netns(Path::new("/run/docker/netns/abc"))).unwrap();
        mount_netns(Path::new("/run/other/unknown"));
        let kept = NetnsId::new(mount_netns(Path::new("/run/other/kept"))).unwrap();
        fs::write("/run/netns/stub", "").unwrap();
        let holder = Holder::start();
        let held = NetnsId::new(holder.cookie()).unwrap();
        let remembered = vec![
            Remembered { id: red_id, reference: NetnsRef::Named("red".into()) },
            Remembered { id: kept, reference: NetnsRef::File("/run/other/kept".into()) },
            Remembered { id: held, reference: NetnsRef::Microservice("ms1".into()) },
            Remembered { id: NetnsId::new(u64::MAX).unwrap(), reference: NetnsRef::Named("gone".into()) },
        ];
        let watch = Watch::start(TrackerOptions { remembered, ..TrackerOptions::default() });
        watch.tracker.search();
        let mut found = Vec::new();
        while let NetnsEvent::Found { netns, .. } = watch.next() {
            assert_eq!(opens_as(&netns).unwrap(), netns.id);
            found.push(netns.id);
        }
        let own = own_cookie().unwrap();
        assert_eq!(found[0], own);
        found.sort();
        let mut want = vec![own, red_id, docker, kept, held];
        want.sort();
        assert_eq!(found, want);
    });
}

#[test]
fn the_folder_may_be_removed_and_made_again() {
    sandbox(|| {
        let watch = Watch::plain();
        unbound(watch.ask(&named("red")));
        for _ in 0..5 {
            let cookie = mount_netns(&red());
            let mut event = watch.next();
            while !matches!(event, NetnsEvent::Bound { .. }) {
                event = watch.next();
            }
            assert_eq!(bound(event).id.0.get(), cookie);
            remove_netns(&red());
            fs::remove_dir("/run/netns").unwrap();
            unbound(watch.next());
        }
    });
}

#[test]
fn nothing_of_a_namespace_stays_open() {
    alone(&["env"], "counting_open_files");
}

#[test]
#[ignore = "run by nothing_of_a_namespace_stays_open, where no other test opens files"]
fn counting_open_files() {
    sandbox(|| {
        let watch = Watch::plain();
        unbound(watch.ask(&named("red")));
        let mut before = 0;
        let mut seen = 0;
        for round in 0..1000 {
            mount_netns(&red());
            if round % 10 == 0 {
                // Every tenth is waited for; the others may come and go unseen.
                until(|| watch.events.try_iter().any(|event| matches!(event, NetnsEvent::Bound { .. })));
                seen += 1;
            }
            remove_netns(&red());
            if round == 10 {
                watch.silent_after_changes();
                before = open_files();
            }
        }
        watch.silent_after_changes();
        let after = open_files();
        assert_eq!(seen, 100);
        assert_eq!(before, after);
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        let inside = links.filter(|link| link.to_string_lossy().starts_with("net:")).count();
        println!("files open: {before} before, {after} after; namespaces among them: {inside}");
        assert_eq!(inside, 1, "the agent's own only");
    });
}

#[test]
fn of_a_thousand_only_those_that_changed_are_told_of() {
    sandbox(|| {
        let watch = Watch::plain();
        let path = |n: usize| PathBuf::from(format!("/run/netns/n{n}"));
        for n in 0..1000 {
            mount_netns(&path(n));
        }
        for n in 0..1000 {
            bound(watch.ask(&named(&format!("n{n}"))));
        }
        watch.silent();
        println!("a look at 1000 namespaces: {:?}", watch.tracker.last_check());
        let gone = [417, 23].map(|n| {
            remove_netns(&path(n));
            named(&format!("n{n}"))
        });
        let mut told: Vec<NetnsSlot> = Vec::new();
        while !gone.iter().all(|slot| told.contains(slot)) {
            match watch.next() {
                NetnsEvent::Unbound { slot, .. } if gone.contains(&slot) => told.push(slot),
                other => panic!("{other:?}"),
            }
        }
        let cookie = mount_netns(&path(417));
        loop {
            match watch.next() {
                // A file on which nothing is mounted, and none, are told apart.
                NetnsEvent::Unbound { slot, .. } if gone.contains(&slot) => {}
                event => break assert_eq!(bound(event).id.0.get(), cookie),
            }
        }
    });
}
