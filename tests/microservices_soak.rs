//! Microservices that come and go for hours, in fast motion: few rounds among the other tests, many with `make soak`. Nothing may be left behind,
//! mixed up, or slowly grow.

mod docker_support;
mod support;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use docker_support::{Bed, half_named_pair, host, in_microservice, rounds, the_pair};
use serde_json::json;
use support::wish::with;
use support::{Dice, eventually, eventually_eq, veth};

/// What an agent has spent: bytes of log, and ticks of processor time.
fn spent(bed: &Bed<'_>) -> [usize; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", bed.agent.pid())).expect("the agent runs");
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<usize>().ok()).sum();
    [bed.agent.log().len(), ticks]
}

/// Asserts that the second half of some rounds cost about what the first did.
fn assert_flat(what: &str, at: [[usize; 2]; 3]) {
    let half = |n: usize| [at[n + 1][0] - at[n][0], at[n + 1][1] - at[n][1]];
    tell(&format!("{what}: bytes of log and ticks of the halves: {:?}, {:?}", half(0), half(1)));
    assert!(half(1)[0] <= half(0)[0] * 2, "the log grows");
    assert!(half(1)[1] <= half(0)[1] * 2 + 10, "the work grows");
}

/// C45: one microservice is started and stopped again and again; each time its pair is made and gone.
#[test]
fn started_and_stopped() {
    let count = rounds(20, 1000);
    let host = host();
    let bed = Bed::new(&host);
    bed.agent.put_all(&half_named_pair());
    bed.docker.create("ms1", "ms1", &["--network=none"], &["sleep", "infinity"]);
    let stranger = bed.listen_to_stranger();
    let (beginning, mut cost) = (Instant::now(), Vec::new());
    for round in 0..count {
        if round == 0 || round == count / 2 {
            cost.push(spent(&bed));
        }
        bed.docker.ask(&["start", "ms1"]);
        bed.agent.wait_configured(&["veth1", "veth2"]);
        if round % 10 == 0 {
            bed.assert_links(&[(&bed.docker.netns("ms1"), &["veth1"]), ("red", &["veth2"])]);
        }
        bed.docker.ask(&["stop", "ms1"]);
        bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
        eventually("the other end is gone", || host.link("red", "veth2").is_none());
    }
    cost.push(spent(&bed));
    tell(&format!("{count} starts and stops in {:?}", beginning.elapsed()));
    assert_flat("starts and stops", cost.try_into().expect("three readings"));
    assert!(!host.pings("red", "10.11.1.1"), "the old address is silent");
    assert_eq!(stranger.names(&host), BTreeSet::new(), "a stranger's namespace");
    bed.assert_at_rest();
    bed.end(&["ms1"]);
}

/// C42, F30, F31: a container that ends after a moment and is started again at once, for ever; nobody waits for anything.
#[test]
fn in_a_crash_loop() {
    let count = rounds(24, 200);
    let host = host();
    let bed = Bed::new(&host);
    bed.agent.put_all(&the_pair());
    bed.docker.run("ms2", "ms2");
    bed.docker.create("ms1", "ms1", &["--network=none"], &["sleep", "0.3"]);
    bed.docker.create("moment", "moment", &["--network=none"], &["true"]);
    bed.agent.put_all(&[in_microservice("a0", "b0", "moment", json!({})), veth("b0", "a0", "red", json!({}))]);
    let stranger = bed.listen_to_stranger();
    let (beginning, mut cost) = (Instant::now(), Vec::new());
    for round in 0..count {
        if round == 0 || round == count / 2 {
            cost.push(spent(&bed));
        }
        // Attached, the client waits for the end.
        bed.docker.ask(&["start", "--attach", "ms1"]);
        bed.docker.ask(&["start", "moment"]);
    }
    cost.push(spent(&bed));
    tell(&format!("{count} crash loops in {:?}", beginning.elapsed()));
    assert_flat("crash loops", cost.try_into().expect("three readings"));
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("a0", "PENDING", "MICROSERVICE_MISSING");
    bed.assert_links(&[]);
    assert_eq!(stranger.names(&host), BTreeSet::new(), "a stranger's namespace");
    bed.docker.ask(&["rm", "ms1"]);
    bed.docker.run("ms1", "ms1");
    bed.assert_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2", "moment"]);
}

/// F30: one restart after the other, of both ends, without a look in between; the last incarnation counts.
#[test]
fn many_restarts_in_a_row() {
    let host = host();
    let bed = Bed::new(&host);
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    for containers in [["ms1", "ms1"], ["ms1", "ms2"]] {
        for _ in 0..rounds(5, 30) {
            bed.docker.ask(&["restart", containers[0], containers[1]]);
        }
        bed.wait_pair_in("ms1", "ms2");
    }
    bed.end(&["ms1", "ms2"]);
}

/// C53: containers come and go in the middle of operations on them, many at a time.
#[test]
fn containers_vanish_in_the_middle() {
    const AT_ONCE: usize = 4;
    let count = rounds(6, 60);
    let host = host();
    let bed = Bed::new(&host);
    let stranger = bed.listen_to_stranger();
    let own = host.listen();
    thread::scope(|scope| {
        for n in 0..AT_ONCE {
            let (bed, host) = (&bed, &host);
            scope.spawn(move || {
                let mut dice = Dice::new(n as u64);
                let (container, a, b) = (format!("c{n}"), format!("a{n}"), format!("b{n}"));
                bed.docker.create(&container, &container, &["--network=none"], &["sleep", "infinity"]);
                for round in 0..count {
                    let mtu = json!({"mtu": 1400 + round, "ip_addresses": [format!("10.13.{n}.1/24")]});
                    let wishes = [in_microservice(&a, &b, &container, mtu), veth(&b, &a, "red", json!({}))];
                    if dice.below(2) == 0 {
                        bed.agent.put_all(&wishes);
                    }
                    bed.docker.ask(&["start", &container]);
                    bed.agent.put_all(&wishes.map(|wish| with(&wish, json!({"mtu": 1300}))));
                    thread::sleep(Duration::from_micros(dice.below(20_000) as u64));
                    if dice.below(2) == 0 {
                        host.run(&format!("kill -9 {}", bed.docker.pid(&container)));
                    } else {
                        bed.docker.ask(&["kill", &container]);
                    }
                    // What was killed by hand is over for Docker a little later.
                    eventually("it is over", || bed.docker.pid(&container) == 0);
                }
            });
        }
    });
    let names: Vec<String> = (0..AT_ONCE).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let containers: Vec<String> = (0..AT_ONCE).map(|n| format!("c{n}")).collect();
    let containers: Vec<&str> = containers.iter().map(String::as_str).collect();
    bed.assert_links(&[]);
    assert_eq!(stranger.names(&host), BTreeSet::new(), "a stranger's namespace");
    // Strangers that are up speak of their own addresses there.
    let strays: Vec<String> = own.names(&host).into_iter().filter(|name| names.contains(&name.as_str())).collect();
    assert_eq!(strays, [""; 0], "the agent's own namespace");
    bed.docker.ask(&[&["start"], containers.as_slice()].concat());
    bed.agent.wait_configured(&names);
    for (n, container) in containers.iter().enumerate() {
        let netns = bed.docker.netns(container);
        eventually_eq("each has its end", &vec![format!("a{n}")], || host.link_names(&netns));
    }
    bed.end(&containers);
}

#[allow(clippy::print_stderr, reason = "shown with --nocapture and with a failed test")]
fn tell(text: &str) {
    eprintln!("{text}");
}
