//! A restart with everything in place: how long until ready, what is written, what a stream of pings loses.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use vnf_agent::proto::agent::apply_request::Put;
use vnf_agent::proto::agent::config_service_client::ConfigServiceClient;
use vnf_agent::proto::agent::{ApplyRequest, State};

use crate::bed::{self, note};
use crate::follow::Follower;
use crate::stats::spread;
use crate::support::{Agent, Host, wish};

/// How much is measured.
pub struct Scale {
    pub pairs: usize,
    pub spaces: usize,
    pub rounds: usize,
}

/// All rounds of one kind, and the pings lost in them.
type Column = (Vec<Restart>, Lost);

/// One restart.
struct Restart {
    ready: Duration,
    told: Duration,
    writes: f64,
    lost: Lost,
}

/// Pings: sent and not answered.
#[derive(Clone, Copy)]
struct Lost {
    sent: u64,
    lost: u64,
}

/// Measures on both stores.
pub fn measure(scale: &Scale) {
    println!(
        "\n| restart with {} pairs in {} namespaces | SIGTERM, etcd | SIGKILL, etcd | SIGTERM, embedded | SIGKILL, embedded |",
        scale.pairs, scale.spaces
    );
    println!("|---|---|---|---|---|");
    let columns: Vec<Column> = [true, false].into_iter().flat_map(|on_etcd| on_store(scale, on_etcd)).collect();
    let row = |what: &str, cell: &dyn Fn(&Column) -> String| {
        println!("| {what} | {} |", columns.iter().map(cell).collect::<Vec<_>>().join(" | "));
    };
    row("process start until ready", &|(rounds, _)| spread(&rounds.iter().map(|r| r.ready).collect::<Vec<_>>()));
    row("process start until all statuses are CONFIGURED", &|(rounds, _)| spread(&rounds.iter().map(|r| r.told).collect::<Vec<_>>()));
    row("writes to the kernel, most of all rounds", &|(rounds, _)| rounds.iter().map(|r| r.writes).fold(0.0, f64::max).to_string());
    let share = |lost: &Lost| format!("{} of {}", lost.lost, lost.sent);
    row("lost pings of a 2 ms stream, all rounds", &|(rounds, _)| {
        let sum =
            rounds.iter().fold(Lost { sent: 0, lost: 0 }, |sum, r| Lost { sent: sum.sent + r.lost.sent, lost: sum.lost + r.lost.lost });
        share(&sum)
    });
    row("the same stream without a restart", &|(_, quiet)| share(quiet));
}

fn on_store(scale: &Scale, on_etcd: bool) -> Vec<(Vec<Restart>, Lost)> {
    let spaces = bed::spaces(scale.spaces);
    let host = bed::host(scale.spaces, false);
    let etcd = on_etcd.then(|| host.start_etcd());
    let label = bed::label();
    let mut agent = if on_etcd { bed::agent(&host, &label).on_etcd() } else { bed::agent(&host, &label) };
    agent.start();
    let wishes = bed::wishes(&spaces, 0..scale.pairs);
    match &etcd {
        Some(etcd) => bed::put_all(etcd, &label, &wishes),
        None => apply(&agent, &wishes),
    }
    bed::configured(&mut Follower::start(agent.socket()), 2 * scale.pairs);
    note(&format!("{} pairs stand; restarting on {}", scale.pairs, if on_etcd { "etcd" } else { "the embedded store" }));
    let ping = Ping::start(&host);
    std::thread::sleep(Duration::from_secs(2));
    let quiet = ping.stop();
    let columns = [false, true].map(|kill| ((0..scale.rounds).map(|_| restart(&host, &mut agent, kill, 2 * scale.pairs)).collect(), quiet));
    columns.into()
}

fn restart(host: &Host, agent: &mut Agent<'_>, kill: bool, interfaces: usize) -> Restart {
    let ping = Ping::start(host);
    std::thread::sleep(Duration::from_millis(300));
    if kill {
        agent.kill();
    } else {
        agent.stop();
    }
    let start = bed::spawn(agent);
    let mut follower = Follower::start(agent.socket());
    let ready = bed::ready(agent).duration_since(start);
    let told = follower.until_count(interfaces, |status| status.state() == State::Configured).duration_since(start);
    std::thread::sleep(Duration::from_millis(500));
    let lost = ping.stop();
    Restart { ready, told, writes: agent.metric("kernel_writes"), lost }
}

/// Writes wishes through the agent, many at a time.
fn apply(agent: &Agent<'_>, wishes: &[Value]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = ConfigServiceClient::connect(format!("unix:{}", agent.socket().display())).await.unwrap();
        for part in wishes.chunks(500) {
            let put = |wish: &Value| Put { key: format!("linux/config/v1/interface/{}", wish::name(wish)), value: wish.to_string().into() };
            client.apply(ApplyRequest { puts: part.iter().map(put).collect(), ..ApplyRequest::default() }).await.unwrap();
        }
    });
}

/// A stream of pings over the first pair, one every 2 ms.
struct Ping(Child);

impl Ping {
    fn start(host: &Host) -> Self {
        let mut command = host.command("ns0", "ping");
        let ping = Self(command.args(["-i", "0.002", "-q", "10.100.0.2"]).stdout(Stdio::piped()).spawn().unwrap());
        let begin = Instant::now();
        while !host.pings("ns0", "10.100.0.2") {
            assert!(begin.elapsed() < bed::LIMIT, "the first pair carries nothing");
        }
        ping
    }

    fn stop(self) -> Lost {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        let said = String::from_utf8(self.0.wait_with_output().unwrap().stdout).unwrap();
        let line = said.lines().find(|line| line.contains("packets transmitted")).unwrap_or_else(|| panic!("ping said: {said}"));
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        Lost { sent: numbers[0], lost: numbers[0] - numbers[1] }
    }
}
