//! A host with many namespaces, its store and its agent.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{DeleteOptions, Txn, TxnOp};
use serde_json::Value;

use crate::classical::CONFIG;
use crate::follow::Follower;
use crate::support::{Agent, Etcd, Host, pair, wish};
use crate::work::netns_name;

/// Longest time for anything.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Names of namespaces.
pub fn spaces(count: usize) -> Vec<String> {
    (0..count).map(netns_name).collect()
}

/// A label that no agent of this machine had before.
pub fn label() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("bench{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The agent of a host, not yet started.
pub fn agent<'h>(host: &'h Host, label: &str) -> Agent<'h> {
    host.agent().label(label).with_http()
}

/// The whole key of an interface's wish.
pub fn config_key(label: &str, name: &str) -> String {
    format!("/vnf-agent/{label}/linux/config/v1/interface/{name}")
}

/// What all status keys of an agent's interfaces begin with.
pub fn status_prefix(label: &str) -> String {
    format!("/vnf-agent/{label}/linux/status/v1/interface/")
}

/// The operations that write wishes.
pub fn puts(label: &str, wishes: &[Value]) -> Vec<TxnOp> {
    wishes.iter().map(|wish| TxnOp::put(config_key(label, wish::name(wish)), wish.to_string(), None)).collect()
}

/// Writes wishes in transactions of so many keys (etcd allows 128).
pub fn put_by(etcd: &Etcd<'_>, label: &str, wishes: &[Value], keys: usize) {
    let puts = puts(label, wishes);
    etcd.client(async |mut client| {
        for part in puts.chunks(keys) {
            client.txn(Txn::new().and_then(part)).await.unwrap();
        }
    });
}

/// Writes wishes in as few transactions as etcd allows.
pub fn put_all(etcd: &Etcd<'_>, label: &str, wishes: &[Value]) {
    put_by(etcd, label, wishes, 128);
}

/// Deletes all wishes at once.
pub fn delete_all(etcd: &Etcd<'_>, label: &str) {
    let options = Some(DeleteOptions::new().with_prefix());
    etcd.client(async |mut client| client.delete(config_key(label, ""), options).await.map(drop)).unwrap();
}

/// A host with so many namespaces, in which the kernel makes IPv6 link-locals or not, and one more for the classical way.
pub fn host(spaces: usize, link_locals: bool) -> Host {
    let names = self::spaces(spaces);
    let host = Host::with_netns(&names.iter().map(String::as_str).collect::<Vec<_>>());
    host.add_netns(CONFIG);
    if !link_locals {
        for netns in &names {
            host.inside(netns, || std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap());
        }
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

/// A size in the kernel's account of a process (`VmRSS`, `VmHWM`), bytes.
pub fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The time that all threads of a process have run. Threads that have ended do not count.
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
