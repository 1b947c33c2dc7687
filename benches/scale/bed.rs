//! A host with many namespaces, its store and its agent.

use std::io::Write as _;
use std::time::{Duration, Instant};

use etcd_client::{DeleteOptions, Txn, TxnOp};
use serde_json::Value;

use crate::follow::Follower;
use crate::support::{Agent, Etcd, Host, pair, wish};

/// Longest time for anything.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Names of namespaces.
pub fn spaces(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("ns{n}")).collect()
}

/// A label that no other agent of this machine has: an agent with a fresh state directory looks into every namespace that a process is in, and would
/// take equally marked links of a neighbour for leftovers of its own.
pub fn label() -> String {
    format!("bench{}", std::process::id())
}

/// The agent of a host, not yet started.
pub fn agent(host: &Host) -> Agent<'_> {
    host.agent().label(&label()).with_http()
}

/// The whole key of an interface's wish.
pub fn config_key(name: &str) -> String {
    format!("/vnf-agent/{}/linux/config/v1/interface/{name}", label())
}

/// Writes wishes in as few transactions as etcd allows.
pub fn put_all(etcd: &Etcd<'_>, wishes: &[Value]) {
    let puts: Vec<TxnOp> = wishes.iter().map(|wish| TxnOp::put(config_key(wish::name(wish)), wish.to_string(), None)).collect();
    etcd.client(async |mut client| {
        for part in puts.chunks(128) {
            client.txn(Txn::new().and_then(part)).await.unwrap();
        }
    });
}

/// Deletes all wishes at once.
pub fn delete_all(etcd: &Etcd<'_>) {
    let options = Some(DeleteOptions::new().with_prefix());
    etcd.client(async |mut client| client.delete(config_key(""), options).await.map(drop)).unwrap();
}

/// A host with these namespaces. The kernel makes no IPv6 link-locals there: their background work would be measured too.
pub fn host(spaces: &[String]) -> Host {
    let host = Host::with_netns(&spaces.iter().map(String::as_str).collect::<Vec<_>>());
    for netns in spaces {
        host.inside(netns, || std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap());
    }
    host
}

/// The namespaces of the n-th pair: never the same one twice.
pub fn places(spaces: &[String], n: usize) -> [&str; 2] {
    let count = spaces.len();
    [&spaces[n % count], &spaces[(n + 1 + n / count % (count - 1)) % count]]
}

/// Wishes for so many pairs, spread over the namespaces.
pub fn wishes(spaces: &[String], pairs: std::ops::Range<usize>) -> Vec<Value> {
    pairs
        .flat_map(|n| {
            let [a, b] = places(spaces, n);
            pair(n, a, b)
        })
        .collect()
}

/// Starts the agent and returns the moment before.
pub fn spawn(agent: &mut Agent<'_>) -> Instant {
    let start = Instant::now();
    agent.spawn();
    start
}

/// Waits until the agent says that it is ready.
pub fn ready(agent: &Agent<'_>) -> Instant {
    let start = Instant::now();
    while agent.http("/readiness").0 != 200 {
        assert!(start.elapsed() < LIMIT, "the agent does not get ready: {}", agent.log());
        std::thread::sleep(Duration::from_millis(2));
    }
    Instant::now()
}

/// Waits until so many interfaces are configured; returns when the last one was.
pub fn configured(follower: &mut Follower, count: usize) -> Instant {
    follower.until_count(count, |status| status.state() == vnf_agent::proto::agent::State::Configured)
}

/// The resident memory of a process, bytes.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The time that all threads of a process have run.
pub fn processor_time(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
    let nanos = |text: String| text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_nanos(tasks.flatten().map(of).map(nanos).sum())
}

/// Says what goes on, so that a long run can be followed.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "  … {text}");
}
