//! Things that come and go for hours, in fast motion: namespaces that vanish in the middle of the work, namespaces in a crash loop, strangers who
//! make and remove links without a pause, deletions that are interrupted. Nothing may be left behind, mixed up, or slowly grow.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use support::host::inode;
use support::tun::{NO_PI, TAP};
use support::wire::{thread_name, threads};
use support::wish::{auto_tap, tap, with};
use support::{Agent, Canaries, Dice, Host, eventually, eventually_eq, eventually_ok, pair};

/// Names of the first so many pairs of [`pair`].
fn names(count: usize) -> Vec<String> {
    (0..count).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect()
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// The agent's links in a namespace.
fn veths(host: &Host, netns: &str) -> Vec<String> {
    host.links(netns).into_iter().filter(|link| link.kind == "veth").map(|link| link.name).collect()
}

/// C68: ended again and again while 200 pairs are being deleted. What it calls gone is gone; the rest goes after the next start.
#[test]
fn ended_while_deleting_again_and_again() {
    let spaces = ["red", "blue", "green"];
    let host = Host::with_netns(&spaces);
    let canaries = Canaries::plant(&host, &["", "red", "blue", "green"]);
    let etcd = host.start_etcd();
    let mut agent = host.agent().on_etcd().started();
    let wishes: Vec<_> = (0..200).flat_map(|n| pair(n, spaces[n % 3], spaces[(n + 1 + n / 100) % 3])).collect();
    let names = names(200);
    let mut dice = Dice::new(68);
    let mut interrupted = 0;
    for round in 0..12 {
        etcd.put_all(&wishes);
        agent.wait_configured(&borrowed(&names));
        etcd.delete_all(&borrowed(&names));
        let some = dice.below(80);
        let mut left = eventually_ok("some are gone", || {
            let left = veths(&host, "red").len();
            if left * 3 / 2 <= 200 - some { Ok(left) } else { Err(left) }
        });
        if round % 2 == 1 {
            // Statuses first: what has none any more must not be there when the kernel is asked afterwards.
            let all = agent.statuses();
            let said: BTreeSet<&str> = all.iter().filter_map(|status| status["name"].as_str()).collect();
            let there: Vec<String> = spaces.iter().flat_map(|netns| veths(&host, netns)).collect();
            let unsaid: Vec<&String> = there.iter().filter(|name| !said.contains(name.as_str())).collect();
            assert_eq!(unsaid, [""; 0], "round {round}: called gone and still there");
            left = there.len();
        }
        assert!(agent.stop().success(), "round {round}");
        interrupted += usize::from(left > 0);
        assert_eq!(etcd.keys(&support::etcd::status_key("")), [""; 0], "round {round}: statuses of an agent that is not there");
        agent.start();
        agent.wait_ready();
        eventually("all are gone", || spaces.iter().all(|netns| veths(&host, netns).is_empty()));
        eventually_eq("and forgotten", &0, || agent.statuses().len());
        canaries.assert_untouched();
    }
    tell(&format!("{interrupted} of 12 ends came while links were being deleted"));
    assert!(interrupted >= 4, "{interrupted}");
}

/// The start namespace of an agent, and that of each of its threads which stays.
fn misplaced(agent: &Agent<'_>, start: u64) -> Vec<String> {
    let pid = agent.pid();
    let elsewhere = |thread: &u32| {
        let now = inode(Path::new(&format!("/proc/{pid}/task/{thread}/ns/net")));
        // Threads that enter a namespace are named before they do, so the name is read second. One that has ended meanwhile has none.
        let name = thread_name(pid, *thread);
        (now != 0 && now != start && !["", "netns"].contains(&name.as_str())).then_some(name)
    };
    threads(pid, "").iter().filter_map(elsewhere).collect()
}

/// C53: namespaces are deleted in the middle of operations, 8 at a time.
#[test]
fn namespaces_vanish_in_the_middle() {
    const AT_ONCE: usize = 8;
    const ROUNDS: usize = 25;
    let host = Host::with_netns(&["stay"]);
    let canaries = Canaries::plant(&host, &["", "stay"]);
    let agent = host.start_agent();
    let start = inode(&host.netns_file(""));
    let spaces: Vec<String> = (0..AT_ONCE).map(|n| format!("c{n}")).collect();
    let (wrong, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let workers: Vec<_> = spaces
            .iter()
            .enumerate()
            .map(|(n, netns)| {
                let (host, agent) = (&host, &agent);
                scope.spawn(move || {
                    let mut dice = Dice::new(n as u64);
                    for round in 0..ROUNDS {
                        // Written while it is missing, it is made by the agent; else it is there.
                        let _ = host.try_run(&format!("ip netns {} {netns}", if dice.below(2) == 0 { "add" } else { "pids" }));
                        agent.put_all(&pair(n, netns, "stay").map(|wish| with(&wish, json!({"mtu": 1400 + round}))));
                        thread::sleep(Duration::from_micros(dice.below(20_000) as u64));
                        let _ = host.try_run(&format!("ip netns del {netns}"));
                    }
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let stray = veths(&host, "");
                if !misplaced(&agent, start).is_empty() || !stray.is_empty() {
                    wrong.store(true, Ordering::Relaxed);
                }
            }
        });
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Ordering::Relaxed);
        watch.join().expect("the watch");
        assert!(ended.iter().all(Result::is_ok), "a worker failed");
    });
    assert!(!wrong.load(Ordering::Relaxed), "a thread, or a link, was where it must not be");
    assert_eq!(misplaced(&agent, start), [""; 0]);
    for netns in &spaces {
        let _ = host.try_run(&format!("ip netns add {netns}"));
    }
    let names = names(AT_ONCE);
    agent.wait_configured(&borrowed(&names));
    for (n, netns) in spaces.iter().enumerate() {
        assert_eq!(veths(&host, netns), [format!("a{n}")]);
    }
    assert_eq!(veths(&host, "stay"), (0..AT_ONCE).map(|n| format!("b{n}")).collect::<Vec<_>>());
    names.iter().for_each(|name| agent.del(name));
    eventually("all are gone", || spaces.iter().all(|netns| veths(&host, netns).is_empty()) && veths(&host, "stay").is_empty());
    assert_eq!(veths(&host, ""), [""; 0]);
    canaries.assert_untouched();
}

/// TAPs of ours at home, where only those of programs may be.
fn strays(host: &Host) -> Vec<String> {
    let links = host.links("").into_iter();
    links.filter(|link| link.kind == "tun" && !link.name.starts_with('x')).map(|link| format!("{link:?}")).collect()
}

/// C53, with TAPs: our own, and one of a program that holds it open, in each namespace that vanishes. What was at home may come back there under its
/// temporary name; nothing of ours ever shows up anywhere else.
#[test]
fn namespaces_vanish_under_taps() {
    const AT_ONCE: usize = 4;
    const ROUNDS: usize = 20;
    let host = Host::new();
    let canaries = Canaries::plant(&host, &[""]);
    let agent = host.start_agent();
    let start = inode(&host.netns_file(""));
    let wishes = |n: usize| {
        let netns = format!("c{n}");
        [tap(&format!("m{n}"), &netns, json!({"owner": 1000}), json!({})), auto_tap(&format!("t{n}"), &netns, &format!("x{n}"), json!({}))]
    };
    let open =
        |n: usize| eventually_ok("it is made", || host.try_open_tap("", &format!("x{n}"), TAP | NO_PI).map_err(|error| error.to_string()));
    let (wrong, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let mut programs: Vec<_> = thread::scope(|scope| {
        let worker = |n: usize| {
            let (host, agent, open) = (&host, &agent, &open);
            move || {
                let mut dice = Dice::new(n as u64);
                let mut program = open(n);
                for _ in 0..ROUNDS {
                    let _ = host.try_run(&format!("ip netns {} c{n}", if dice.below(2) == 0 { "add" } else { "pids" }));
                    agent.put_all(&wishes(n));
                    thread::sleep(Duration::from_micros(dice.below(60_000) as u64));
                    let _ = host.try_run(&format!("ip netns del c{n}"));
                    if dice.below(2) == 0 {
                        drop(program);
                        program = open(n);
                    }
                }
                drop(program);
                open(n)
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|n| scope.spawn(worker(n))).collect();
        let watch = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                wrong.lock().expect("no panic").extend(strays(&host).into_iter().chain(misplaced(&agent, start)));
            }
        });
        let programs = workers.into_iter().map(|worker| worker.join().expect("a worker")).collect();
        over.store(true, Ordering::Relaxed);
        watch.join().expect("the watch");
        programs
    });
    assert_eq!(wrong.into_inner().expect("no panic"), Vec::<String>::new(), "a thread, or a link, was where it must not be");
    (0..AT_ONCE).for_each(|n| drop(host.try_run(&format!("ip netns add c{n}"))));
    let names: Vec<String> = (0..AT_ONCE).flat_map(|n| [format!("m{n}"), format!("t{n}")]).collect();
    eventually_ok("all are configured", || {
        // The last one may have gone with the namespace that it was brought into; its program makes another one.
        programs.iter_mut().enumerate().filter(|(_, program)| program.is_gone()).for_each(|(n, program)| *program = open(n));
        let there = |n: usize| host.link_names(&format!("c{n}")) == [format!("m{n}"), format!("t{n}")];
        let states: Vec<_> = agent.statuses().iter().map(|status| [status["name"].clone(), status["state"].clone()]).collect();
        let configured = states.iter().filter(|[_, state]| state == "CONFIGURED").count() == names.len();
        if configured && (0..AT_ONCE).all(there) { Ok(()) } else { Err(states) }
    });
    names.iter().for_each(|name| agent.del(name));
    eventually("all are gone or given back", || (0..AT_ONCE).all(|n| host.link_names(&format!("c{n}")).is_empty()));
    eventually("none is lost", || (0..AT_ONCE).all(|n| host.link("", &format!("x{n}")).is_some_and(|link| link.alias.is_empty())));
    drop::<Vec<_>>(programs);
    canaries.assert_untouched();
}

/// C53: the folder of the named namespaces is taken away with all that is in it, and made again.
#[test]
fn the_folder_of_namespaces_vanishes() {
    let spaces = ["c0", "c1", "c2"];
    let host = Host::with_netns(&spaces);
    let canaries = Canaries::plant(&host, &[""]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    let start = inode(&host.netns_file(""));
    agent.put_all(&(0..6).flat_map(|n| pair(n, spaces[n % 3], spaces[(n + 1) % 3])).collect::<Vec<_>>());
    let names = names(6);
    let mut dice = Dice::new(53);
    for round in 0..20 {
        if dice.below(2) == 0 {
            agent.wait_configured(&borrowed(&names));
        }
        host.run("umount --lazy /run/netns");
        host.run("rm -r /run/netns");
        if dice.below(2) == 0 {
            agent.wait_for("a0", "PENDING", "NAMESPACE_MISSING");
        }
        spaces.iter().for_each(|netns| host.add_netns(netns));
        assert_eq!((misplaced(&agent, start), veths(&host, "")), (vec![], vec![]), "round {round}");
    }
    agent.wait_configured(&borrowed(&names));
    assert_eq!(spaces.map(|netns| veths(&host, netns).len()), [4; 3]);
    canaries.assert_untouched();
}

/// What an agent holds: open files, and namespaces. Each that it works in has an id where it lives, which the kernel takes back when the
/// namespace ends, that is when nobody holds it any more (`lsns` would also show those of other tests).
fn held(host: &Host, agent: &Agent<'_>) -> [usize; 2] {
    let files = fs::read_dir(format!("/proc/{}/fd", agent.pid())).expect("the agent runs").count();
    [files, host.run("ip netns list-id").lines().count()]
}

/// C45: a namespace with an end in it is made and deleted 200 times.
#[test]
fn a_namespace_comes_and_goes() {
    let host = Host::with_netns(&["stay"]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    agent.put_all(&pair(0, "ms", "stay"));
    let round = || {
        host.add_netns("ms");
        agent.wait_configured(&["a0", "b0"]);
        host.del_netns("ms");
        agent.wait_for("a0", "PENDING", "NAMESPACE_MISSING");
        agent.wait_for("b0", "PENDING", "");
        // The kernel takes the other end down in its own time, after the namespace has ended.
        eventually("the other end is gone, too", || host.link_names("stay").is_empty());
    };
    round();
    let mut before = held(&host, &agent);
    // Sockets that are idle are closed after a while.
    let quiet = Instant::now() + Duration::from_secs(3);
    eventually("idle sockets are closed", || {
        before = held(&host, &agent);
        Instant::now() > quiet
    });
    let beginning = Instant::now();
    (1..200).for_each(|_| round());
    tell(&format!("200 rounds in {:?}", beginning.elapsed()));
    eventually_ok("nothing is held any more", || {
        let now = held(&host, &agent);
        if now[0] <= before[0] && now[1] <= before[1] { Ok(()) } else { Err((now, before)) }
    });
    assert!(!host.pings("stay", "10.100.0.1"), "the old address is silent");
}

/// C42: namespaces that live for a moment, 100 times; nobody waits for anything.
#[test]
fn namespaces_in_a_crash_loop() {
    let host = Host::with_netns(&["stay"]);
    let canaries = Canaries::plant(&host, &["", "stay"]);
    let agent = host.agent().with(&["--named-netns", "wait"]).started();
    let names = names(4);
    agent.put_all(&(0..4).flat_map(|n| pair(n, "ms", "stay")).collect::<Vec<_>>());
    agent.wait_for("a0", "PENDING", "NAMESPACE_MISSING");
    let mut dice = Dice::new(42);
    let mut cost = Vec::new();
    for round in 0..100 {
        if round % 50 == 0 {
            cost.push((agent.log().len(), cpu_ticks(&agent)));
        }
        host.run("ip netns add ms");
        thread::sleep(Duration::from_millis(dice.below(60) as u64));
        host.del_netns("ms");
        thread::sleep(Duration::from_millis(dice.below(20) as u64));
    }
    cost.push((agent.log().len(), cpu_ticks(&agent)));
    agent.wait_for("a0", "PENDING", "NAMESPACE_MISSING");
    eventually_eq("nothing is left", &Vec::<String>::new(), || veths(&host, "stay"));
    let (first, second) = ((cost[1].0 - cost[0].0, cost[1].1 - cost[0].1), (cost[2].0 - cost[1].0, cost[2].1 - cost[1].1));
    tell(&format!("log bytes and CPU ticks of the halves: {first:?}, {second:?}"));
    assert!(second.0 <= first.0 * 2 && second.1 <= first.1 * 2 + 10, "it grows: {first:?}, {second:?}");
    host.add_netns("ms");
    agent.wait_configured(&borrowed(&names));
    assert_eq!(veths(&host, "ms"), ["a0", "a1", "a2", "a3"]);
    canaries.assert_untouched();
}

/// User and system time of a process up to now, in ticks.
fn cpu_ticks(agent: &Agent<'_>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid())).expect("the agent runs");
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// C69: someone makes and removes links in a namespace at full speed, so that listings are interrupted, while the agent reads all of it again
/// and again. Healthy links are neither called gone nor made anew.
#[test]
fn listings_interrupted_by_churn() {
    const PAIRS: usize = 100;
    let host = Host::with_netns(&["red", "blue"]);
    let agent = host.start_agent();
    let names = names(PAIRS);
    agent.apply(&(0..PAIRS).flat_map(|n| pair(n, "red", "blue")).collect::<Vec<_>>());
    agent.wait_configured(&borrowed(&names));
    let links = |netns: &str| host.links(netns).into_iter().filter(|link| link.alias.starts_with("vnf-agent:")).collect::<Vec<_>>();
    let before = [links("red"), links("blue")];
    let steps = || agent.history().len();
    let (steps_before, over) = (steps(), AtomicBool::new(false));
    let trace = host.path("dumps");
    thread::scope(|scope| {
        let churn = scope.spawn(|| churn(&host, &over));
        let mut strace = host.command("", "strace");
        let thread = threads(agent.pid(), "configurator")[0].to_string();
        strace.args(["-qqq", "-e", "trace=recvfrom", "-p", &thread, "-o"]).arg(&trace);
        let mut strace = strace.stderr(Stdio::null()).spawn().expect("nsenter starts");
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end {
            agent.ask(&["resync"]);
            let missing: Vec<_> = agent.statuses().into_iter().filter(|status| status["state"] != "CONFIGURED").collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
        // Killed, it would not write what it has seen.
        kill(Pid::from_raw(strace.id().try_into().expect("a process number")), Signal::SIGTERM).expect("it runs");
        strace.wait().expect("a child");
        over.store(true, Ordering::Relaxed);
        let made = churn.join().expect("the churn");
        let interrupted = fs::read_to_string(&trace).expect("a trace").matches("NLM_F_DUMP_INTR").count();
        tell(&format!("{made} strangers came and went, {interrupted} messages said that a listing was interrupted"));
        assert!(interrupted > 0, "no listing was interrupted: this proves nothing");
    });
    assert_eq!([links("red"), links("blue")], before, "the same links, indexes included");
    assert_eq!(steps(), steps_before, "{:?}", agent.history().first());
}

/// Adds and removes bridges until it is over; returns how many.
fn churn(host: &Host, over: &AtomicBool) -> usize {
    // Added one by one, without waiting; removed together, for which the kernel waits only once.
    let add = |n: usize| format!("link add s{n} group 77 type veth peer name t{n}\naddress add 192.0.2.{n}/32 dev s{n}\n");
    let batch: String = (1..=60).map(add).chain(["link del group 77\n".to_owned()]).collect();
    let mut made = 0;
    while !over.load(Ordering::Relaxed) {
        let mut ip = host.command("red", "ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("nsenter starts");
        let written = ip.stdin.take().expect("piped").write_all(batch.as_bytes());
        written.expect("ip reads");
        assert!(ip.wait().expect("a child").success());
        made += 120;
    }
    made
}

#[allow(clippy::print_stderr, reason = "shown with --nocapture and with a failed test")]
fn tell(what: &str) {
    eprintln!("{what}");
}
