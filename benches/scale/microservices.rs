//! A microservice that starts and dies: how long until its pair is configured, and until it is known to be gone. Beside it, when the old agent's loop,
//! which asks Docker every three seconds, would have found out.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use vnf_agent::proto::agent::State;

use crate::bed::{self, LIMIT, note};
use crate::follow::Follower;
use crate::stats::spread;
use crate::support::docker::SOCKET;
use crate::support::host::inode;
use crate::support::wish::with;
use crate::support::{Dice, Docker, Host, veth};

/// The old agent's pause between two looks.
const OLD_PAUSE: Duration = Duration::from_secs(3);
/// What a container does: it notes when it runs, and goes on running.
const INIT: [&str; 3] = ["sh", "-c", ": >/mark/runs; exec sleep infinity"];

/// Starts and deaths: what each took.
#[derive(Default)]
struct Samples {
    found: Vec<Duration>,
    lost: Vec<Duration>,
}

/// Measures so many starts and deaths.
pub fn measure(changes: usize) {
    let host = Host::contained();
    host.add_netns("red");
    let docker = host.start_docker();
    std::fs::create_dir(host.path("mark")).unwrap();
    let few = (changes / 5).max(4);
    note("microservices");
    let own = ours(&host, &docker, changes);
    note("microservices, and the old agent's loop");
    let old = theirs(&host, &docker, few);
    println!("\n| a microservice, median (worst) | agent, {} rounds | the old agent's loop, {few} rounds |", changes);
    println!("|---|---|---|");
    println!("| its first process runs until both ends are CONFIGURED | {} | {} until found |", spread(&own.found), spread(&old.found));
    println!("| its first process dies until both ends are PENDING | {} | {} until noticed |", spread(&own.lost), spread(&old.lost));
}

fn options(host: &Host) -> [String; 2] {
    ["--network=none".to_owned(), format!("--volume={}:/mark", host.path("mark").display())]
}

/// The agent: one container is started and killed again and again.
fn ours(host: &Host, docker: &Docker<'_>, rounds: usize) -> Samples {
    let agent = bed::agent(host, &bed::label()).on_docker().started();
    let place = json!({"namespace": {"type": "MICROSERVICE_REF_NS", "microservice": "ms1"}, "ip_addresses": ["10.11.1.1/24"]});
    let wishes =
        [with(&veth("veth1", "veth2", "", json!({})), place), veth("veth2", "veth1", "red", json!({"ip_addresses": ["10.11.1.2/24"]}))];
    agent.put_all(&wishes);
    let mut follower = Follower::start(agent.socket());
    let options = options(host);
    docker.create("ms1", "ms1", &options.each_ref().map(String::as_str), &INIT);
    let mut samples = Samples::default();
    for round in 0..rounds + 3 {
        docker.ask(&["start", "ms1"]);
        let configured = follower.until_count(2, |status| status.state() == State::Configured);
        let found = since_running(host, configured);
        let first = first_process(host, docker, "ms1");
        let died = Instant::now();
        kill(first, Signal::SIGKILL).unwrap();
        let lost = follower.until_count(2, |status| status.state() == State::Pending).duration_since(died);
        wait_over(docker, "ms1");
        // The first ones open connections and sockets.
        if round >= 3 {
            samples.found.push(found);
            samples.lost.push(lost);
        }
    }
    docker.ask(&["rm", "--force", "ms1"]);
    samples
}

/// The old agent's loop, at any phase of its pause. It takes only containers that are newer than the last one, so each round makes one.
fn theirs(host: &Host, docker: &Docker<'_>, rounds: usize) -> Samples {
    let socket = host.outside(SOCKET);
    let over = AtomicBool::new(false);
    let (sender, seen) = channel();
    let mut samples = Samples::default();
    let mut dice = Dice::new(3);
    let options = options(host);
    std::thread::scope(|scope| {
        scope.spawn(|| poll(&socket, &over, &sender));
        for round in 0..rounds {
            let name = format!("old{round}");
            std::thread::sleep(Duration::from_millis(dice.below(3000) as u64));
            docker.run_with(&name, &name, &options.each_ref().map(String::as_str), &INIT);
            samples.found.push(since_running(host, next(&seen, true)));
            std::thread::sleep(Duration::from_millis(dice.below(3000) as u64));
            let first = first_process(host, docker, &name);
            let died = Instant::now();
            kill(first, Signal::SIGKILL).unwrap();
            samples.lost.push(next(&seen, false).duration_since(died));
            docker.ask(&["rm", "--force", &name]);
        }
        over.store(true, Ordering::Relaxed);
    });
    samples
}

fn next(seen: &Receiver<(Instant, bool)>, started: bool) -> Instant {
    loop {
        let (at, what) = seen.recv_timeout(LIMIT).unwrap();
        if what == started {
            return at;
        }
    }
}

/// Looks as the old agent did: first at the containers that it knows, then for ones that it does not. Tells of each start (true) and end.
fn poll(socket: &PathBuf, over: &AtomicBool, seen: &Sender<(Instant, bool)>) {
    let mut known: Vec<String> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        known.retain(|id| {
            let running = get(socket, &format!("/containers/{id}/json")).is_some_and(|container| container["State"]["Running"] == true);
            if !running {
                let _ = seen.send((Instant::now(), false));
            }
            running
        });
        let all = get(socket, "/containers/json?all=1").unwrap_or_default();
        let running = all.as_array().into_iter().flatten().filter(|container| container["State"] == "running");
        for id in running.filter_map(|container| container["Id"].as_str()) {
            if !known.iter().any(|one| one == id) && get(socket, &format!("/containers/{id}/json")).is_some() {
                let _ = seen.send((Instant::now(), true));
                known.push(id.to_owned());
            }
        }
        std::thread::sleep(OLD_PAUSE);
    }
}

/// What Docker answers; nothing when it does not know.
fn get(socket: &PathBuf, path: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if head.contains(" 200 ") { serde_json::from_str(body).ok() } else { None }
}

/// How long before a moment the container noted that it runs. The kernel's time stamps may be some milliseconds early, never late.
fn since_running(host: &Host, moment: Instant) -> Duration {
    let marked = std::fs::metadata(host.path("mark/runs")).unwrap().modified().unwrap();
    SystemTime::now().duration_since(marked).unwrap().saturating_sub(moment.elapsed())
}

/// The number, outside of the host, of a container's first process.
fn first_process(host: &Host, docker: &Docker<'_>, container: &str) -> Pid {
    let inner = docker.pid(container).to_string();
    let netns = inode(&host.outside(&format!("/proc/{inner}/ns/net")));
    let is_it = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        numbers.split_whitespace().nth(1) == Some(&inner) && inode(format!("/proc/{pid}/ns/net").as_ref()) == netns
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Pid::from_raw(processes.into_iter().find(is_it).unwrap().try_into().unwrap())
}

fn wait_over(docker: &Docker<'_>, container: &str) {
    while docker.pid(container) != 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}
