//! Microservices when Docker, the agent or the timing fail: nothing is torn down for want of news, nothing is missed, and no link is ever made
//! in a namespace that a container used to have.

mod docker_support;
mod support;

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use docker_support::imposter::Imposter;
use docker_support::proxy::Proxy;
use docker_support::{Bed, host, in_microservice, rounds, the_pair};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::wish::with;
use support::{Dice, Host, eventually, eventually_ok, pair};

/// Waits until the agent says that it cannot reach Docker, and returns what it says.
fn wait_disconnected(bed: &Bed<'_>) -> Value {
    eventually_ok("the agent says that Docker is away", || {
        let runtime = bed.runtime();
        let away = runtime["connected"] == false
            && runtime["since"].is_string()
            && runtime["message"].as_str().is_some_and(|text| !text.is_empty());
        if away { Ok(runtime.clone()) } else { Err(runtime) }
    })
}

/// A bed whose agent reaches Docker through a proxy.
fn with_proxy(host: &Host) -> (Bed<'_>, Proxy) {
    let docker = host.start_docker();
    let proxy = Proxy::new(host.path("proxy.sock"), host.outside(support::docker::SOCKET));
    let agent = host.agent().with(&["--docker-host", &proxy.url()]);
    (Bed::with(host, docker, agent), proxy)
}

/// F27: Docker is restarted and its containers with it, some by its own policy, some by hand.
#[test]
fn docker_restarts_and_ends_its_containers() {
    let host = host();
    let mut bed = Bed::new(&host);
    bed.docker.run("ms1", "ms1");
    bed.docker.run_with("ms2", "ms2", &["--network=none", "--restart=always"], &["sleep", "infinity"]);
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    bed.docker.stop();
    wait_disconnected(&bed);
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "MICROSERVICE_MISSING");
    bed.docker.start();
    bed.wait_connected();
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.docker.ask(&["start", "ms1"]);
    bed.wait_pair_in("ms1", "ms2");
    // Killed, it has no time to end them; started again, it does so first.
    bed.docker.kill();
    wait_disconnected(&bed);
    bed.docker.start();
    bed.wait_connected();
    bed.docker.ask(&["start", "ms1"]);
    bed.wait_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// C41: Docker is away and its containers run. Nothing is touched; the agent says since when; a container that ends meanwhile is noticed all the same.
#[test]
fn docker_is_away_and_its_containers_run() {
    let host = host();
    let mut bed = Bed::with(&host, host.start_docker_with(&["--live-restore"]), host.agent().on_docker());
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    let places = [bed.docker.netns("ms1"), bed.docker.netns("ms2")];
    let links = || places.each_ref().map(|netns| host.links(netns));
    let before = links();
    let passes = bed.agent.history().len();
    bed.docker.kill();
    host.run("rm /run/docker.sock");
    let since = wait_disconnected(&bed)["since"].clone();
    bed.agent.ask(&["resync"]);
    // Several attempts fail meanwhile.
    thread::sleep(Duration::from_secs(5));
    assert_eq!(wait_disconnected(&bed)["since"], since, "since then, not since the last attempt");
    assert_eq!((links(), bed.agent.history().len()), (before.clone(), passes), "nothing was done");
    assert_eq!(bed.agent.http("/readiness").0, 200, "Docker does not count for readiness");
    bed.docker.start();
    bed.wait_connected();
    bed.assert_pair_in("ms1", "ms2");
    assert_eq!((links(), bed.agent.history().len()), (before, passes), "nothing was done");
    // Again, and this time one of them ends while nobody can be asked, and another agent run begins.
    let pid = bed.docker.pid("ms1");
    bed.docker.kill();
    wait_disconnected(&bed);
    host.run(&format!("kill -9 {pid}"));
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "");
    bed.docker.start();
    bed.wait_connected();
    bed.docker.ask(&["start", "ms1"]);
    bed.wait_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// C41: the agent starts while Docker is away; what stands stays as it is, and Docker is found when it comes.
#[test]
fn an_agent_that_starts_without_docker() {
    let host = host();
    let mut bed = Bed::with(&host, host.start_docker_with(&["--live-restore"]), host.agent().on_docker());
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    let places = [bed.docker.netns("ms1"), bed.docker.netns("ms2")];
    let links = || places.each_ref().map(|netns| host.links(netns));
    let (before, pid) = (links(), bed.docker.pid("ms1"));
    bed.docker.kill();
    for round in 0..2 {
        if round == 0 {
            bed.agent.stop();
        } else {
            bed.agent.kill();
        }
        bed.agent.start();
        bed.agent.wait_ready();
        wait_disconnected(&bed);
        assert_eq!(links(), before, "what stands stays");
    }
    bed.docker.start();
    bed.wait_connected();
    bed.assert_pair_in("ms1", "ms2");
    assert_eq!(links(), before, "what stood was adopted");
    // A container ends while neither is there, and its process number goes to somebody else.
    bed.docker.kill();
    bed.agent.stop();
    host.run(&format!("kill -9 {pid}"));
    let imposter = Imposter::new(&host, pid, "red");
    let red = host.links("red");
    bed.agent.start();
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.agent.wait_for("veth2", "PENDING", "");
    bed.assert_links(&[]);
    assert_eq!(host.links("red"), red, "the namespace of the process that has the number now");
    drop(imposter);
    bed.docker.start();
    bed.wait_connected();
    bed.docker.ask(&["start", "ms1"]);
    bed.wait_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// C41: the agent starts while Docker is away, and what it remembered of the containers is lost (killed before it was written, another state folder). It
/// does not know which container has which label, so what stands is kept.
#[test]
fn docker_is_away_and_the_agent_has_no_memory() {
    let host = host();
    let mut bed = Bed::with(&host, host.start_docker_with(&["--live-restore"]), host.agent().on_docker());
    bed.run_both();
    bed.agent.put_all(&the_pair());
    let tap = with(&in_microservice("tap1", "", "ms1", json!({"type": "TAP"})), json!({"veth": null}));
    bed.agent.put(&tap);
    bed.agent.wait_configured(&["veth1", "veth2", "tap1"]);
    let places = [bed.docker.netns("ms1"), bed.docker.netns("ms2")];
    let links = || places.each_ref().map(|netns| host.links(netns));
    let before = links();
    bed.agent.kill();
    std::fs::remove_file(bed.agent.state_dir().join("microservices.json")).expect("it was written");
    bed.docker.kill();
    bed.agent.start();
    for name in ["veth1", "veth2", "tap1"] {
        let status = bed.agent.wait_for(name, "PENDING", "MICROSERVICE_MISSING");
        assert!(status["message"].as_str().is_some_and(|text| text.contains("what stands is kept")), "{status}");
    }
    bed.agent.ask(&["resync"]);
    // What is torn down is so at once; that nothing is cannot be waited for.
    thread::sleep(Duration::from_secs(1));
    assert_eq!(links(), before, "nothing was done");
    bed.docker.start();
    bed.wait_connected();
    bed.agent.wait_configured(&["veth1", "veth2", "tap1"]);
    assert_eq!(links(), before, "adopted as it stands");
    bed.end(&["ms1", "ms2"]);
}

/// C41: containers that start and end between the agent's start and its first listing of them, or while that listing is under way.
#[test]
fn containers_that_start_before_the_first_listing() {
    let host = host();
    let (mut bed, proxy) = with_proxy(&host);
    bed.docker.create("ms1", "ms1", &["--network=none"], &["sleep", "infinity"]);
    bed.docker.run("ms2", "ms2");
    bed.agent.put_all(&the_pair());
    let mut dice = Dice::new(41);
    for _ in 0..6 {
        bed.agent.stop();
        let seen = proxy.accepted();
        proxy.hold();
        bed.agent.start();
        eventually("the agent asks", || proxy.accepted() > seen);
        let late = dice.below(2) == 0;
        if late {
            proxy.release();
            thread::sleep(Duration::from_micros(dice.below(20_000) as u64));
        }
        bed.docker.ask(&["restart", "ms1"]);
        proxy.release();
        bed.wait_pair_in("ms1", "ms2");
    }
    bed.end(&["ms1", "ms2"]);
}

/// F28: Docker takes connections and never answers. Everything else goes on.
#[test]
fn docker_hangs() {
    let host = host();
    let mut bed = Bed::new(&host);
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    bed.docker.signal(Signal::SIGSTOP);
    bed.agent.put_all(&pair(0, "red", ""));
    bed.agent.wait_configured(&["a0", "b0", "veth1", "veth2"]);
    // It is noticed when something is asked; a start asks first of all.
    bed.agent.restart();
    bed.agent.wait_ready();
    wait_disconnected(&bed);
    bed.agent.put_all(&pair(1, "red", ""));
    bed.agent.wait_configured(&["a0", "b0", "a1", "b1"]);
    bed.docker.signal(Signal::SIGCONT);
    bed.wait_connected();
    bed.assert_pair_in_beside("ms1", "ms2", &[("red", &["a0", "a1"]), ("", &["b0", "b1"])]);
    bed.end(&["ms1", "ms2"]);
}

/// F29, K32: more happened than Docker remembers, while it could not be heard. The listing tells the truth.
#[test]
fn more_news_than_docker_remembers() {
    let host = host();
    let (bed, proxy) = with_proxy(&host);
    bed.run_both();
    bed.docker.run("ms3", "ms3");
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    proxy.cut();
    wait_disconnected(&bed);
    bed.docker.ask(&["restart", "ms1"]);
    bed.docker.ask(&["rm", "--force", "ms2"]);
    bed.docker.run("successor", "ms2");
    bed.flood(300);
    proxy.release();
    bed.wait_connected();
    bed.wait_pair_in("ms1", "successor");
    // The same, but the agent stands still instead of Docker's socket.
    bed.agent.signal(Signal::SIGSTOP);
    bed.docker.ask(&["restart", "ms1"]);
    bed.docker.ask(&["rm", "--force", "successor"]);
    bed.docker.run("ms2", "ms2");
    bed.flood(300);
    bed.agent.signal(Signal::SIGCONT);
    bed.wait_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2", "ms3"]);
}

/// F31: containers that are over before anybody can look at them.
#[test]
fn containers_that_end_at_once() {
    let host = host();
    let bed = Bed::new(&host);
    bed.agent.put_all(&the_pair());
    bed.docker.run("ms2", "ms2");
    let stranger = bed.listen_to_stranger();
    for round in 0..15 {
        bed.docker.run_with(&format!("once{round}"), "ms1", &["--network=none", "--rm"], &["true"]);
    }
    bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
    bed.assert_links(&[]);
    assert_eq!(stranger.names(&host), BTreeSet::new(), "a stranger's namespace");
    bed.docker.run("ms1", "ms1");
    bed.assert_pair_in("ms1", "ms2");
    bed.end(&["ms1", "ms2"]);
}

/// The agent is killed in the middle of whatever containers do, again and again.
#[test]
fn the_agent_is_killed_while_containers_restart() {
    let host = host();
    let mut bed = Bed::new(&host);
    bed.run_both();
    bed.agent.put_all(&the_pair());
    bed.assert_pair_in("ms1", "ms2");
    let mut dice = Dice::new(9);
    for _ in 0..8 {
        thread::scope(|scope| {
            let docker = &bed.docker;
            let restarts = scope.spawn(|| docker.ask(&["restart", "ms1", "ms2"]));
            let agent = &mut bed.agent;
            thread::sleep(Duration::from_millis(dice.below(400) as u64));
            agent.kill();
            if dice.below(2) == 0 {
                restarts.join().expect("the containers restart");
            }
            agent.start();
        });
        bed.wait_pair_in("ms1", "ms2");
    }
    bed.end(&["ms1", "ms2"]);
}

/// F32, K1: a container ends, and its process number goes to a process in another namespace, between Docker's answer that names the number and the
/// agent's use of it; half of the time the agent does not hear of the end either.
#[test]
fn a_process_number_is_used_again() {
    let host = host();
    let (bed, proxy) = with_proxy(&host);
    host.add_netns("foreign");
    host.run("ip -n foreign link add other type bridge");
    let foreign = host.listen_in("foreign");
    bed.docker.create("ms1", "ms1", &["--network=none"], &["sleep", "infinity"]);
    bed.docker.run("ms2", "ms2");
    bed.agent.put_all(&the_pair());
    for round in 0..rounds(8, 60) {
        proxy.hold_inspections();
        bed.docker.ask(&["start", "ms1"]);
        eventually("the agent was told the number", || proxy.waiting() > 0);
        if round % 2 == 0 {
            proxy.hold();
        }
        let pid = bed.docker.pid("ms1");
        bed.docker.ask(&["kill", "ms1"]);
        let imposter = Imposter::new(&host, pid, "foreign");
        proxy.release_inspections();
        // Whatever it does with the number it has done soon; nothing of it can be waited for.
        thread::sleep(Duration::from_millis(50));
        proxy.release();
        bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
        bed.docker.ask(&["start", "ms1"]);
        bed.wait_pair_in("ms1", "ms2");
        // The number of a container that is known changes hands, too.
        let pid = bed.docker.pid("ms1");
        bed.agent.signal(Signal::SIGSTOP);
        bed.docker.ask(&["kill", "ms1"]);
        drop(imposter);
        let imposter = Imposter::new(&host, pid, "foreign");
        bed.agent.signal(Signal::SIGCONT);
        bed.agent.wait_for("veth1", "PENDING", "MICROSERVICE_MISSING");
        drop(imposter);
    }
    assert_eq!(foreign.names(&host), BTreeSet::new(), "a foreign namespace");
    assert_eq!(host.link_names("foreign"), ["other"]);
    bed.end(&["ms1", "ms2"]);
}
