//! The embedded store: the contract of a source, durability over SIGKILL, one process at a time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking; the victim speaks through its output")]

mod store_support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use store_support::{Running, relative};
use vnf_agent::store::embedded::EmbeddedStore;
use vnf_agent::store::{ConfigStore, StoreError, StoreEvent, Versioned, Write};

/// Tells a process of this test binary that it is the one to be killed, and where its store is.
const VICTIM: &str = "VNF_AGENT_TEST_VICTIM";

fn put(name: &str, value: &str) -> Write {
    Write::Put(relative(name), value.as_bytes().to_vec())
}

fn open(dir: &Path) -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::open(dir).expect("open the store"))
}

fn start(store: &Arc<EmbeddedStore>) -> Running {
    let store = Arc::clone(store);
    Running::start("embedded", |sink, health, resync, stop| store.run_source(sink, health, resync, stop))
}

#[tokio::test]
async fn writes_come_back_through_the_source_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("state"));
    let mut source = start(&store);
    source.live(store_support::SOON).await;
    assert_eq!(store.write(vec![put("a", "1"), put("b", "1")]).await.unwrap(), 2);
    assert_eq!(store.write(vec![put("a", "2")]).await.unwrap(), 3);
    assert_eq!(store.write(vec![Write::Delete(relative("b")), Write::Delete(relative("never"))]).await.unwrap(), 4);
    // Nothing changes, so nothing is told, there is no revision to wait for, and the store's stays.
    assert_eq!(store.write(vec![Write::Delete(relative("b"))]).await.unwrap(), 0);
    // No wish: stored, but not told.
    assert_eq!(store.write(vec![Write::Put("other/x".to_owned(), b"1".to_vec())]).await.unwrap(), 5);
    assert_eq!(store.write(vec![put("b", "3")]).await.unwrap(), 6);
    source.sink.wait_value("b", Some("3")).await;
    let versioned = |text: &str, create_revision, mod_revision| Versioned { value: text.into(), create_revision, mod_revision };
    assert_eq!(
        source.sink.told().changes,
        [
            vec![StoreEvent::Apply(relative("a"), versioned("1", 2, 2)), StoreEvent::Apply(relative("b"), versioned("1", 2, 2))],
            vec![StoreEvent::Apply(relative("a"), versioned("2", 2, 3))],
            vec![StoreEvent::Delete(relative("b"), 4)],
            vec![StoreEvent::Apply(relative("b"), versioned("3", 6, 6))],
        ]
    );
    assert_eq!(store.get(&relative("a")).await.unwrap(), Some(versioned("2", 2, 3)));
    assert_eq!(store.get(&relative("never")).await.unwrap(), None);
    let keys: Vec<String> = store.list("").await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [relative("a"), relative("b"), "other/x".to_owned()]);
    assert_eq!(store.list("other/").await.unwrap().len(), 1);
    source.end().await;
}

#[tokio::test]
async fn a_resync_lists_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.write((0..1200).map(|n| put(&format!("i{n}"), "x")).collect()).await.unwrap();
    let source = start(&store);
    source.sink.wait_listings(1).await;
    let before = source.sink.told().view.clone();
    assert_eq!(before.len(), 1200);
    source.resync.notify_one();
    source.sink.wait_listings(2).await;
    let told = source.sink.told();
    assert_eq!((&told.view, told.listings[0]), (&before, told.listings[1]));
    source.end().await;
}

#[tokio::test]
async fn many_writers_and_a_source_that_lags_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let source = start(&store);
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..50 {
                    store.write(vec![put(&format!("w{writer}"), &n.to_string())]).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for writer in 0..8 {
        source.sink.wait_value(&format!("w{writer}"), Some("49")).await;
    }
    source.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_beside_a_busy_writer_lose_and_repeat_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let source = start(&store);
    source.sink.wait_listings(1).await;
    for n in 0..600 {
        store.write(vec![put(&format!("k{}", n % 20), &n.to_string())]).await.unwrap();
        if n % 7 == 0 {
            source.resync.notify_one();
        }
    }
    source.sink.wait_value("k19", Some("599")).await;
    let told = source.sink.told();
    assert!(told.listings.len() > 3, "{}", told.listings.len());
    for pair in told.revisions.windows(2) {
        // Every revision holds a wish, so a change that follows anything is the very next one.
        if let [(_, before), (false, change)] = pair {
            assert_eq!(before + 1, *change, "a revision is missing or told twice");
        }
    }
    source.end().await;
}

#[tokio::test]
async fn identity_and_revision_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut identities = Vec::new();
    for round in 1..=3 {
        let store = open(dir.path());
        store.write(vec![put("a", &round.to_string())]).await.unwrap();
        let source = start(&store);
        source.sink.wait_listings(1).await;
        assert_eq!(source.sink.told().value("a"), Some(round.to_string()));
        identities.push(source.sink.told().listings[0]);
        source.end().await;
    }
    assert_eq!(identities.iter().map(|identity| identity.revision).collect::<Vec<_>>(), [2, 3, 4]);
    assert!(identities.iter().all(|identity| identity.cluster == identities[0].cluster && identity.cluster != 0));
    let other = tempfile::tempdir().unwrap();
    let source = start(&open(other.path()));
    source.sink.wait_listings(1).await;
    assert_ne!(source.sink.told().listings[0].cluster, identities[0].cluster);
    source.end().await;
}

#[tokio::test]
async fn what_etcd_refuses_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let twice = store.write(vec![put("a", "1"), put("a", "2")]).await;
    assert!(matches!(&twice, Err(StoreError::Refused { cause, .. }) if cause.contains("duplicate")), "{twice:?}");
    let large = store.write(vec![Write::Put(relative("a"), vec![0; 2 << 20])]).await;
    assert!(matches!(&large, Err(StoreError::Refused { cause, .. }) if cause.contains("too large")), "{large:?}");
    assert_eq!(store.list("").await.unwrap(), []);
}

#[test]
fn one_process_only_and_only_for_root() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("deep/state");
    let first = EmbeddedStore::open(&state).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("store.redb"))), (0o700, 0o600));
    let second = EmbeddedStore::open(&state).err().unwrap().to_string();
    assert!(second.contains("another agent uses the state directory") && second.contains(state.to_str().unwrap()), "{second}");
    drop(first);
    EmbeddedStore::open(&state).unwrap();
}

#[test]
fn a_file_that_is_no_store_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.redb");
    let text = "this is not a store\n".repeat(1000);
    std::fs::write(&file, &text).unwrap();
    let error = EmbeddedStore::open(dir.path()).err().unwrap();
    assert!(error.to_string().contains("store.redb"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let test = std::thread::spawn(|| {
        let dir = tempfile::tempdir().unwrap();
        small_disk(dir.path(), "size=3m");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = open(dir.path());
            let source = start(&store);
            let mut written = 0;
            let error = loop {
                match store.write(vec![Write::Put(relative(&format!("i{written}")), vec![b'x'; 50_000])]).await {
                    Ok(_) => written += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(&error, StoreError::Unreachable { cause, .. } if cause.contains("No space left")), "{error}");
            assert!(written > 10);
            assert_eq!(store.list("").await.unwrap().len(), written, "what was acknowledged, and nothing else");
            small_disk(dir.path(), "remount,size=30m");
            store.write(vec![put("after", "1")]).await.unwrap();
            source.sink.wait_value("after", Some("1")).await;
            assert_eq!(source.sink.told().view.len(), written + 1);
            source.end().await;
        });
    });
    if let Err(panic) = test.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Mounts a file system of limited size, which only the calling thread and those that it starts can see.
fn small_disk(dir: &Path, options: &str) {
    use nix::mount::{MsFlags, mount};
    if options.starts_with("size") {
        #[allow(clippy::disallowed_methods, reason = "the calling thread ends with the test")]
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    }
    let flags = if options.starts_with("remount") { MsFlags::MS_REMOUNT } else { MsFlags::empty() };
    mount(Some("tmpfs"), dir, Some("tmpfs"), flags, Some(options.trim_start_matches("remount,"))).unwrap();
}

/// Not a test of its own: the process that [`acknowledged_writes_survive_sigkill`] kills. It counts up, and says each number once the
/// store has acknowledged it.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM) else { return };
    let store = EmbeddedStore::open(Path::new(&dir)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let next = |text: Option<String>| text.map_or(0, |text| text.parse::<u64>().unwrap()) + 1;
        let last = store.get(&relative("count")).await.unwrap();
        let first = next(last.map(|versioned| String::from_utf8(versioned.value).unwrap()));
        for n in first.. {
            let history = Write::Put(relative(&format!("n{n}")), n.to_string().into_bytes());
            store.write(vec![put("count", &n.to_string()), history]).await.unwrap();
            println!("\nacknowledged {n}");
        }
    });
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut kills_during_writes = 0;
    let mut acknowledged = 0_u64;
    for round in 0..40_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env(VICTIM, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let mut seen = 0;
        for number in lines.filter_map(|line| line.strip_prefix("acknowledged ").and_then(|n| n.parse::<u64>().ok())) {
            acknowledged = number;
            if seen == 0 {
                // From the first acknowledgement on it writes without a pause; a moment later it is anywhere in a write.
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(round * 1777 % 23_000));
                    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL)
                });
            }
            seen += 1;
        }
        let status = child.wait().unwrap();
        assert!(std::os::unix::process::ExitStatusExt::signal(&status).is_some(), "the victim ended by itself: {status}");
        kills_during_writes += u64::from(seen > 0);
        check(dir.path(), acknowledged);
    }
    assert!(kills_during_writes >= 30, "only {kills_during_writes} kills hit a writer");
}

/// Every acknowledged number is there; one more may be, but then with both of its keys.
fn check(dir: &Path, acknowledged: u64) {
    let store = EmbeddedStore::open(dir).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let found = runtime.block_on(store.list(&relative(""))).unwrap();
    let text = |versioned: &Versioned| String::from_utf8(versioned.value.clone()).unwrap();
    let count: u64 = found.iter().find(|(key, _)| *key == relative("count")).map(|(_, v)| text(v).parse().unwrap()).unwrap();
    assert!(count == acknowledged || count == acknowledged + 1, "{acknowledged} was acknowledged, {count} is there");
    assert_eq!(found.len() as u64, count + 1, "each number has its key");
    for n in 1..=count {
        assert!(found.iter().any(|(key, v)| *key == relative(&format!("n{n}")) && text(v) == n.to_string()), "{n} is lost");
    }
}
