//! The etcd source on real etcd processes, each in a network namespace of its own, through the faults that etcd has in the field.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod store_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use store_support::etcd::Etcd;
use store_support::{CONFIG, Log, SOON, eventually, in_own_netns, key, options, proxy, quick, relative, start, store};
use vnf_agent::store::etcd::Timing;
use vnf_agent::store::{ConfigStore, StoreError, StoreEvent, Write};

#[test]
fn lists_then_follows_and_sees_no_neighbour() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        etcd.put(&key("a"), "1");
        etcd.put("/vnf-agent/vpp10/linux/config/v1/interface/a", "neighbour");
        etcd.put("/vnf-agent/vpp1/linux/status/v1/interface/a", "status");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        source.sink.wait_value("a", Some("1")).await;
        etcd.put(&key("b"), "2");
        etcd.put("/vnf-agent/vpp10/linux/config/v1/interface/b", "neighbour");
        etcd.del(&key("a"));
        source.sink.wait_value("a", None).await;
        assert_eq!(source.sink.told().view.len(), 1);
        assert_eq!(source.health.borrow().revision, 7);
        source.end().await;
    });
}

fn put(name: &str, value: impl Into<Vec<u8>>) -> Write {
    Write::Put(relative(name), value.into())
}

#[test]
fn several_prefixes_are_read_at_one_revision() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let other = "vpp/config/v1/interface/";
        let writer = store(options(&[&etcd.endpoint()]));
        writer.write(vec![put("a", "1"), Write::Put(format!("{other}a"), b"1".to_vec())]).await.unwrap();
        let mut source = start(store(options(&[&etcd.endpoint()])).watching(&[CONFIG, other]).with_timing(quick()));
        source.live(SOON).await;
        assert_eq!(source.sink.told().view.len(), 2);
        writer.write(vec![put("b", "1"), Write::Put(format!("{other}b"), b"1".to_vec())]).await.unwrap();
        writer.write(vec![Write::Delete(format!("{other}a")), Write::Put("unwatched".to_owned(), b"1".to_vec())]).await.unwrap();
        source.sink.wait(SOON, "all changes", |told| told.view.len() == 3 && !told.view.contains_key(&format!("{other}a"))).await;
        // Long enough for counts of both prefixes to be compared: they agree.
        source.wait_beats(6).await;
        assert_eq!(source.sink.told().listings.len(), 1);
        source.end().await;
    });
}

#[test]
fn nothing_is_lost_or_doubled_beside_a_busy_writer() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let writer = Arc::new(store(options(&[&etcd.endpoint()])));
        let writing = tokio::spawn({
            let writer = Arc::clone(&writer);
            async move {
                for n in 0..1500 {
                    writer.write(vec![put("busy", n.to_string()), put(&format!("k{}", n % 50), n.to_string())]).await.unwrap();
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let source = start(store(options(&[&etcd.endpoint()])).with_timing(quick()));
        writing.await.unwrap();
        source.sink.wait_value("busy", Some("1499")).await;
        let told = source.sink.told();
        assert_eq!(told.listings.len(), 1, "no reason to list again");
        let first = told.listings[0].revision;
        let revisions: Vec<i64> = told.changes.iter().map(|group| revision_of_pair(group)).collect();
        assert_eq!(revisions, (first + 1..=1501).collect::<Vec<i64>>(), "each revision once, both of its keys together");
        assert_eq!(told.view.len(), 51);
        source.end().await;
    });
}

/// The revision of a group that holds both writes of one transaction.
fn revision_of_pair(group: &[StoreEvent]) -> i64 {
    match group {
        [StoreEvent::Apply(_, first), StoreEvent::Apply(_, second)] if first.mod_revision == second.mod_revision => first.mod_revision,
        other => panic!("not one transaction: {other:?}"),
    }
}

#[test]
fn a_large_listing_is_read_in_pages_at_one_revision() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let writer = store(options(&[&etcd.endpoint()]));
        // 1200 values of 12 kB, then 90 of 1.2 MB: more than any single answer may hold.
        for batch in 0..12 {
            writer.write((0..100).map(|n| put(&format!("s{batch:02}{n:02}"), vec![b'x'; 12_000])).collect()).await.unwrap();
        }
        for n in 0..90 {
            writer.write(vec![put(&format!("t{n:02}"), vec![b'y'; 1_200_000])]).await.unwrap();
        }
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        let told = source.sink.told();
        assert_eq!(told.view.len(), 1290);
        assert!(told.view.values().all(|value| value.value.len() >= 12_000));
        assert_eq!(told.listings[0].revision, 103);
        assert_eq!(writer.list(CONFIG).await.unwrap().len(), 1290);
        source.end().await;
    });
}

#[test]
fn a_large_revision_comes_in_fragments_and_is_delivered_whole() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let writer = store(options(&[&etcd.endpoint()]));
        // Names of 5 kB: their common delete is one revision of 3 MB, which etcd sends in parts.
        let name = |batch: usize, n: usize| format!("k{batch}{n:02}{}", "x".repeat(5000));
        for batch in 0..6 {
            writer.write((0..100).map(|n| put(&name(batch, n), vec![b'x'; 10_240 - 5000])).collect()).await.unwrap();
        }
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        assert_eq!(source.sink.told().view.len(), 600);
        etcd.ctl(&["del", "--prefix", &key("")]);
        source.sink.wait(SOON, "all deleted", |told| told.view.is_empty()).await;
        let told = source.sink.told();
        assert_eq!(told.changes.iter().map(Vec::len).collect::<Vec<_>>(), [600]);
        assert_eq!(told.listings.len(), 1);
        // The other direction, where the values travel too: one transaction of 1.3 MB.
        writer.write((0..120).map(|n| put(&format!("k{n}"), vec![b'x'; 10_900])).collect()).await.unwrap();
        source.sink.wait(SOON, "all written", |told| told.view.len() == 120).await;
        assert_eq!(source.sink.told().changes.iter().map(Vec::len).collect::<Vec<_>>(), [600, 120]);
        source.end().await;
    });
}

#[test]
fn what_happened_during_an_outage_is_found_although_it_was_compacted() {
    in_own_netns(async || {
        let mut etcd = Etcd::start();
        for name in ["gone", "changed", "kept"] {
            etcd.put(&key(name), "1");
        }
        let proxy = proxy::start(3000, 2379).await;
        let mut source = start(store(options(&["127.0.0.1:3000"])));
        source.live(SOON).await;
        // Cut off without a sign, as by a firewall.
        proxy.stall.store(true, Ordering::Relaxed);
        let writer = store(options(&[&etcd.endpoint()]));
        for n in 0..20 {
            writer.write((0..100).map(|k| Write::Put(format!("other/{k}"), n.to_string().into_bytes())).collect()).await.unwrap();
        }
        etcd.put(&key("changed"), "2");
        let revision = writer.write(vec![Write::Delete(relative("gone"))]).await.unwrap();
        // At the very revision of the delete: a resumed watch would never hear of it.
        etcd.ctl(&["compact", &revision.to_string()]);
        let down = source.down(SOON).await;
        assert!(down.message.contains("127.0.0.1:3000"), "{}", down.message);
        etcd.kill();
        etcd.up();
        proxy.stall.store(false, Ordering::Relaxed);
        source.live(SOON).await;
        let told = source.sink.told();
        assert_eq!((told.value("gone"), told.value("changed"), told.value("kept")), (None, Some("2".to_owned()), Some("1".to_owned())));
        source.end().await;
    });
}

#[test]
fn a_receiver_that_lags_behind_a_compaction_ends_with_the_truth() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        for name in ["gone", "changed"] {
            etcd.put(&key(name), "1");
        }
        let mut source = start(store(options(&[&etcd.endpoint()])).with_timing(quick()));
        source.live(SOON).await;
        let log = Log::listen();
        source.sink.busy.send_replace(true);
        let writer = store(options(&[&etcd.endpoint()]));
        // More than all buffers on the way hold, so etcd has to keep the rest back, and then compacts it away.
        for n in 0..3000 {
            writer.write(vec![put("busy", format!("{n}{}", "x".repeat(5000)))]).await.unwrap();
        }
        etcd.put(&key("changed"), "2");
        let revision = writer.write(vec![Write::Delete(relative("gone"))]).await.unwrap();
        etcd.ctl(&["compact", &revision.to_string()]);
        source.sink.busy.send_replace(false);
        source.sink.wait_value("changed", Some("2")).await;
        source.sink.wait_value("gone", None).await;
        source.wait_beats(8).await;
        let told = source.sink.told();
        assert_eq!(told.view.len(), 2);
        assert!(told.value("busy").unwrap().starts_with("2999"));
        assert_eq!(log.count(" WARN ", "compacted its history"), 1, "{}", log.text());
        assert!(source.health.borrow().live);
        source.end().await;
    });
}

/// C61: etcd is frozen; silence is noticed within 20 s.
#[test]
fn a_frozen_etcd_is_noticed_and_healed() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        etcd.put(&key("a"), "1");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        let before = source.live(SOON).await;
        etcd.pause();
        let down = source.down(SOON).await;
        assert!(down.since >= before.since && down.last_heard.is_some(), "{down:?}");
        etcd.cont();
        etcd.wait_ready();
        etcd.put(&key("a"), "2");
        source.sink.wait_value("a", Some("2")).await;
        source.live(SOON).await;
        source.end().await;
    });
}

#[test]
fn a_killed_etcd_that_returns_is_read_again() {
    in_own_netns(async || {
        let mut etcd = Etcd::start();
        etcd.put(&key("a"), "1");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        for round in 2..5 {
            if round % 2 == 0 {
                etcd.kill()
            } else {
                etcd.stop()
            }
            let down = source.down(Duration::from_secs(2)).await;
            assert!(!down.message.is_empty());
            // What was known stays known.
            assert_eq!(source.sink.told().view.len(), 1);
            etcd.up();
            etcd.put(&key("a"), &round.to_string());
            source.sink.wait_value("a", Some(&round.to_string())).await;
            source.live(SOON).await;
        }
        assert_eq!(source.sink.told().listings.len(), 4);
        source.end().await;
    });
}

#[test]
fn a_wiped_etcd_shows_in_the_identity() {
    in_own_netns(async || {
        let mut etcd = Etcd::start();
        for n in 0..20 {
            etcd.put(&key("a"), &n.to_string());
        }
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        etcd.kill();
        etcd.wipe();
        etcd.up();
        source.sink.wait_listings(2).await;
        let told = source.sink.told();
        assert_eq!(told.listings[0].cluster, told.listings[1].cluster, "etcd derives its id from names: the revision has to tell");
        assert!(told.listings[1].revision < told.listings[0].revision, "{:?}", told.listings);
        assert!(told.view.is_empty());
        source.live(SOON).await;
        assert_eq!(source.health.borrow().revision, 1);
        // It does not wait for the revisions of the old history.
        etcd.put(&key("b"), "1");
        source.sink.wait_value("b", Some("1")).await;
        source.end().await;
    });
}

#[test]
fn starts_without_etcd_and_recovers_by_itself() {
    in_own_netns(async || {
        let log = Log::listen();
        let mut etcd = Etcd::member("m0", 2379, "m0=http://127.0.0.1:2380", &[]);
        // A name that does not resolve, a port where nobody listens, and the right one.
        let mut source = start(store(options(&["no-such-host.invalid:2379", "127.0.0.1:1", &etcd.endpoint()])));
        let refused = eventually(&mut source.health, SOON, "refused", |health| health.message.contains("127.0.0.1:1")).await;
        assert!(refused.message.contains("Connection refused") && refused.last_heard.is_none(), "{}", refused.message);
        let unknown = eventually(&mut source.health, SOON, "no name", |health| health.message.contains("no-such-host.invalid")).await;
        assert!(unknown.message.contains("lookup address"), "{}", unknown.message);
        assert_eq!(source.sink.told().begun, 0, "nothing is listed while nothing can be read");
        etcd.up();
        etcd.put(&key("a"), "1");
        source.live(SOON).await;
        source.sink.wait_value("a", Some("1")).await;
        assert_eq!(log.count(" WARN ", "etcd is not readable"), 1, "one line per outage:\n{}", log.text());
        assert_eq!(log.count(" INFO ", "reading wishes from etcd"), 1, "{}", log.text());
        assert_eq!(log.count(" WARN ", "known faults"), 1, "{}", log.text());
        source.end().await;
    });
}

#[test]
fn the_end_of_a_lease_is_a_delete() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let lease = etcd.ctl(&["lease", "grant", "2"]);
        let id = lease.split_whitespace().nth(1).unwrap();
        etcd.ctl(&["put", "--lease", id, &key("leased"), "1"]);
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        source.sink.wait_value("leased", Some("1")).await;
        source.sink.wait_value("leased", None).await;
        let told = source.sink.told();
        assert_eq!(told.changes, [[StoreEvent::Delete(relative("leased"), 3)]]);
        assert_eq!(told.listings.len(), 1);
        source.end().await;
    });
}

/// C66: one answer of the watch is lost on the way.
#[test]
fn a_lost_answer_of_the_watch_is_found() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        let proxy = proxy::start(3000, 2379).await;
        let mut source = start(store(options(&["127.0.0.1:3000"])).with_timing(quick()));
        source.live(SOON).await;
        *proxy.lose.lock().unwrap() = Some(key("lost").into_bytes());
        etcd.put(&key("lost"), "1");
        source.sink.wait_value("lost", Some("1")).await;
        assert_eq!(proxy.lost.load(Ordering::Relaxed), 1);
        let told = source.sink.told();
        assert_eq!((told.listings.len(), told.changes.len()), (2, 0), "found by the count, told by a listing");
        assert!(source.health.borrow().live, "the connection was never in doubt");
        source.end().await;
    });
}

#[test]
fn lists_again_when_asked_and_from_time_to_time() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        etcd.put(&key("a"), "1");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        source.resync.notify_one();
        source.sink.wait_listings(2).await;
        source.end().await;
        let mut source = start(store(options(&[&etcd.endpoint()])).with_timing(Timing { relist: Duration::from_millis(500), ..quick() }));
        source.live(SOON).await;
        source.sink.wait_listings(4).await;
        assert!(source.health.borrow().live);
        assert_eq!(source.sink.told().value("a").as_deref(), Some("1"));
        source.end().await;
    });
}

#[test]
fn writes_and_reads_for_the_config_service() {
    in_own_netns(async || {
        let etcd = Etcd::start();
        etcd.put("/vnf-agent/vpp10/x", "neighbour");
        let mut source = start(store(options(&[&etcd.endpoint()])));
        source.live(SOON).await;
        let store = store(options(&["127.0.0.1:1", &etcd.endpoint()]));
        assert_eq!(store.write(vec![put("a", "1"), put("b", "1")]).await.unwrap(), 3);
        assert_eq!(store.write(vec![Write::Delete(relative("a")), Write::Put("x".to_owned(), b"y".to_vec())]).await.unwrap(), 4);
        // Nothing changes: there is no revision to wait for.
        assert_eq!(store.write(vec![Write::Delete(relative("a"))]).await.unwrap(), 0);
        assert_eq!(store.get(&relative("a")).await.unwrap(), None);
        let b = store.get(&relative("b")).await.unwrap().unwrap();
        assert_eq!((b.value.as_slice(), b.create_revision, b.mod_revision), (b"1".as_slice(), 3, 3));
        let keys: Vec<String> = store.list("").await.unwrap().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [relative("b"), "x".to_owned()]);
        source.sink.wait_value("a", None).await;
        for (writes, words) in [
            ((0..129).map(|n| put(&n.to_string(), "1")).collect::<Vec<_>>(), "128"),
            (vec![put("a", "1"), put("a", "2")], "duplicate key"),
            (vec![put("a", vec![0; 1_600_000])], "too large"),
        ] {
            let refused = store.write(writes).await;
            assert!(matches!(&refused, Err(StoreError::Refused { cause, .. }) if cause.contains(words)), "{refused:?}");
        }
        drop(etcd);
        let lost = store.write(vec![put("a", "1")]).await;
        assert!(matches!(&lost, Err(StoreError::Unreachable { .. })), "{lost:?}");
        let lost = store.get("a").await.unwrap_err().to_string();
        assert!(lost.starts_with("read a: ") && lost.contains("Connection refused"), "{lost}");
        source.end().await;
    });
}
