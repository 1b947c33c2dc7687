//! Publishing statuses into real etcd: bound to a lease, through outages, lost leases and a store without space.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod store_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use store_support::etcd::Etcd;
use store_support::{PREFIX, SOON, eventually, in_own_netns, options, store};
use vnf_agent::store::status_writer::{LeasedStore, StatusHandle, spawn};

/// Relative prefix of the statuses.
const STATUS: &str = "linux/status/v1/interface/";

fn set(handle: &StatusHandle, name: &str, value: &str) {
    handle.set(&format!("{STATUS}{name}"), Some(value.as_bytes().to_vec()));
}

fn writer(endpoints: &[&str]) -> (Arc<dyn LeasedStore>, StatusHandle) {
    let store: Arc<dyn LeasedStore> = Arc::new(store(options(endpoints)));
    (Arc::clone(&store), spawn(store))
}

/// What etcd holds below the statuses: name, value.
fn published(etcd: &Etcd) -> BTreeMap<String, String> {
    let (ok, text) = etcd.try_ctl(&["get", "--prefix", &format!("{PREFIX}{STATUS}")]);
    assert!(ok, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks(2).map(|pair| (pair[0].rsplit('/').next().unwrap().to_owned(), pair[1].to_owned())).collect()
}

/// Waits until etcd holds exactly what a condition asks for.
async fn until(etcd: &Etcd, limit: Duration, what: &str, condition: impl Fn(&BTreeMap<String, String>) -> bool) {
    let end = Instant::now() + limit;
    loop {
        let there = published(etcd);
        if condition(&there) {
            return;
        }
        assert!(Instant::now() < end, "{what}: not within {limit:?}, but {there:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The leases that etcd has.
fn leases(etcd: &Etcd) -> Vec<String> {
    etcd.ctl(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn values_are_published_replaced_removed_and_end_with_the_agent() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let (_, handle) = writer(&[&etcd.endpoint()]);
        for n in 0..250 {
            set(&handle, &format!("i{n}"), "1");
        }
        until(&etcd, SOON, "all there", |there| there.len() == 250).await;
        for n in 0..1000 {
            set(&handle, "i0", &n.to_string());
        }
        handle.set(&format!("{STATUS}i1"), None);
        // One that etcd would never take holds up nobody.
        set(&handle, "giant", &"x".repeat(1_600_000));
        until(&etcd, SOON, "latest", |there| there["i0"] == "999" && there.len() == 249).await;
        let leases = leases(&etcd);
        assert_eq!(leases.len(), 1);
        let keys = etcd.ctl(&["lease", "timetolive", "--keys", &leases[0]]);
        assert_eq!(keys.matches(STATUS).count(), 249, "every key is bound to the lease");
        assert!(keys.contains("granted with TTL(15s)"), "{keys}");
        assert_eq!(*handle.problem().borrow(), None);
        handle.shutdown().await;
        assert!(published(&etcd).is_empty());
    });
}

#[test]
fn after_a_lost_lease_everything_is_published_again() {
    in_own_netns(async || {
        let mut etcd = Etcd::start();
        let (_, handle) = writer(&[&etcd.endpoint()]);
        for n in 0..120 {
            set(&handle, &format!("i{n}"), "1");
        }
        until(&etcd, SOON, "all there", |there| there.len() == 120).await;
        let lost = leases(&etcd).remove(0);
        etcd.ctl(&["lease", "revoke", &lost]);
        // Noticed by the care of the lease, without any write.
        until(&etcd, SOON, "back", |there| there.len() == 120).await;
        let second = leases(&etcd).remove(0);
        assert_ne!(second, lost);
        etcd.ctl(&["lease", "revoke", &second]);
        // Noticed by a write.
        set(&handle, "i7", "2");
        until(&etcd, SOON, "back", |there| there.len() == 120 && there["i7"] == "2").await;
        // The data is gone altogether.
        etcd.kill();
        etcd.wipe();
        set(&handle, "i8", "2");
        etcd.up();
        until(&etcd, SOON, "back", |there| there.len() == 120 && there["i8"] == "2").await;
        // The lease is kept for longer than it would live by itself.
        let third = leases(&etcd);
        tokio::time::sleep(Duration::from_secs(18)).await;
        assert_eq!(leases(&etcd), third);
        assert_eq!(published(&etcd).len(), 120);
        handle.shutdown().await;
    });
}

/// C64: during an outage statuses are bounded to the latest value per key.
#[test]
fn an_outage_holds_up_nobody_and_ends_with_the_latest_values() {
    in_own_netns(async || {
        let mut etcd = Etcd::member("m0", 2379, "m0=http://127.0.0.1:2380", &[]);
        let (_, handle) = writer(&[&etcd.endpoint()]);
        for n in 0..100_000 {
            set(&handle, &format!("i{}", n % 100), &n.to_string());
        }
        for n in 0..1000 {
            set(&handle, &format!("passing{n}"), "1");
            handle.set(&format!("{STATUS}passing{n}"), None);
        }
        let mut problem = handle.problem();
        let why = eventually(&mut problem, SOON, "why", Option::is_some).await.unwrap();
        assert!(why.contains("Connection refused"), "{why}");
        etcd.up();
        until(&etcd, SOON, "all there", |there| there.len() == 100 && there["i99"] == "99999").await;
        eventually(&mut problem, SOON, "no problem", Option::is_none).await;
        // Without the store a shutdown does not wait for it.
        etcd.pause();
        tokio::time::timeout(SOON, handle.shutdown()).await.expect("it does not wait for etcd");
        etcd.cont();
    });
}

/// C65: etcd's space alarm.
#[test]
fn without_space_it_says_so_still_removes_and_goes_on_later() {
    in_own_netns(async || {
        let etcd = Etcd::start_with(&["--quota-backend-bytes", "2000000"]);
        let (_, handle) = writer(&[&etcd.endpoint()]);
        set(&handle, "before", "1");
        set(&handle, "passing", "1");
        until(&etcd, SOON, "both there", |there| there.len() == 2).await;
        let big = "x".repeat(100_000);
        while etcd.try_ctl(&["put", "filler", &big]).0 {}
        assert!(etcd.ctl(&["alarm", "list"]).contains("NOSPACE"));
        set(&handle, "before", "2");
        let mut problem = handle.problem();
        let why = eventually(&mut problem, SOON, "why", Option::is_some).await.unwrap();
        assert!(why.contains("database space exceeded"), "{why}");
        handle.set(&format!("{STATUS}passing"), None);
        until(&etcd, SOON, "removed", |there| there.len() == 1 && there["before"] == "1").await;
        // The way out for an operator.
        let status = etcd.ctl(&["get", "filler", "-w", "fields"]);
        let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap();
        etcd.ctl(&["compact", revision]);
        etcd.ctl(&["defrag"]);
        etcd.ctl(&["alarm", "disarm"]);
        until(&etcd, SOON, "published", |there| there.get("before").is_some_and(|value| value == "2")).await;
        eventually(&mut problem, SOON, "no problem", Option::is_none).await;
        handle.shutdown().await;
    });
}

#[test]
fn what_an_earlier_life_left_is_removed() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        for name in ["old", "mine", "live"] {
            etcd.put(&format!("{PREFIX}{STATUS}{name}"), "old");
        }
        etcd.put("/vnf-agent/vpp10/linux/status/v1/interface/old", "neighbour");
        let (_, handle) = writer(&[&etcd.endpoint()]);
        set(&handle, "mine", "new");
        let live = format!("{STATUS}live");
        handle.remove_stale(STATUS, move |key| key == live);
        let right = BTreeMap::from([("live".to_owned(), "old".to_owned()), ("mine".to_owned(), "new".to_owned())]);
        until(&etcd, SOON, "only ours", |there| *there == right).await;
        assert!(etcd.ctl(&["get", "/vnf-agent/vpp10/linux/status/v1/interface/old"]).contains("neighbour"));
        handle.shutdown().await;
        assert_eq!(published(&etcd).into_keys().collect::<Vec<_>>(), ["live"]);
    });
}

#[test]
fn what_others_remove_or_overwrite_is_published_again() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let (_, handle) = writer(&[&etcd.endpoint()]);
        for name in ["kept", "removed", "overwritten"] {
            set(&handle, name, "1");
        }
        let right = |there: &BTreeMap<String, String>| there.len() == 3 && there.values().all(|value| value == "1");
        until(&etcd, SOON, "all there", right).await;
        let kept = etcd.ctl(&["get", &format!("{PREFIX}{STATUS}kept"), "-w", "fields"]);
        etcd.ctl(&["del", &format!("{PREFIX}{STATUS}removed")]);
        etcd.put(&format!("{PREFIX}{STATUS}overwritten"), "a lie");
        until(&etcd, Duration::from_secs(25), "as they were", right).await;
        let lease = leases(&etcd);
        let keys = etcd.ctl(&["lease", "timetolive", "--keys", &lease[0]]);
        assert_eq!((lease.len(), keys.matches(STATUS).count()), (1, 3), "all of them end with the agent: {keys}");
        let version = |text: &str| text.lines().find(|line| line.starts_with("\"Version\"")).map(str::to_owned);
        let now = etcd.ctl(&["get", &format!("{PREFIX}{STATUS}kept"), "-w", "fields"]);
        assert_eq!(version(&now), version(&kept), "what was right is not written again");
        handle.shutdown().await;
    });
}
