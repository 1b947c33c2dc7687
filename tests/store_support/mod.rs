//! Parts of the tests of the stores: a network namespace per test, etcd processes in it, and a sink that remembers.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub mod etcd;
pub mod proxy;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use vnf_agent::store::etcd::{EtcdOptions, EtcdStore, Timing};
use vnf_agent::store::{StoreEvent, StoreHealth, StoreIdentity, StoreSink, Versioned};

/// Prefix of the agent in all tests.
pub const PREFIX: &str = "/vnf-agent/vpp1/";
/// Relative prefix of the wishes.
pub const CONFIG: &str = "linux/config/v1/interface/";

/// A wish's whole key.
pub fn key(name: &str) -> String {
    format!("{PREFIX}{CONFIG}{name}")
}

/// A wish's relative key.
pub fn relative(name: &str) -> String {
    format!("{CONFIG}{name}")
}

/// Runs a test in a network namespace of its own, on a thread that ends with it.
pub fn in_own_netns<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        #[allow(clippy::disallowed_methods, reason = "this thread was made for it and ends with the test")]
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace of our own (needs root)");
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("run ip").success());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits for a condition on a watched value; the panic says what was there instead.
pub async fn eventually<T: Clone + std::fmt::Debug>(
    receiver: &mut watch::Receiver<T>,
    limit: Duration,
    what: &str,
    condition: impl Fn(&T) -> bool,
) -> T {
    let met = tokio::time::timeout(limit, receiver.wait_for(condition)).await.map(|value| value.expect("the sender lives").clone());
    met.unwrap_or_else(|_| panic!("{what}: not within {limit:?}, but {:?}", receiver.borrow()))
}

/// What a sink has been told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// The calls, in order, without the parts of listings.
    pub changes: Vec<Vec<StoreEvent>>,
    /// What is there, as the contract says: listings replace, changes follow.
    pub view: BTreeMap<String, Versioned>,
    /// One per complete listing.
    pub listings: Vec<StoreIdentity>,
    /// Revisions in the order in which they were told: of a listing (true) or of changes.
    pub revisions: Vec<(bool, i64)>,
    /// Listings that began.
    pub begun: usize,
    listing: Option<BTreeMap<String, Versioned>>,
}

impl Told {
    /// The value of a wish, as text.
    pub fn value(&self, name: &str) -> Option<String> {
        self.view.get(&relative(name)).map(|versioned| String::from_utf8_lossy(&versioned.value).into_owned())
    }

    fn take(&mut self, event: &StoreEvent) {
        match event.clone() {
            StoreEvent::Init => {
                self.begun += 1;
                self.listing = Some(BTreeMap::new());
            }
            StoreEvent::InitApply(key, value) => {
                let listing = self.listing.as_mut().expect("InitApply only between Init and InitDone");
                assert!(listing.insert(key.clone(), value).is_none(), "{key} twice in one listing");
            }
            StoreEvent::InitDone(identity) => {
                self.view = self.listing.take().expect("InitDone only after Init");
                self.listings.push(identity);
                self.revisions.push((true, identity.revision));
            }
            StoreEvent::Apply(key, value) => {
                self.take_change(value.mod_revision);
                self.view.insert(key, value);
            }
            StoreEvent::Delete(key, revision) => {
                self.take_change(revision);
                self.view.remove(&key);
            }
        }
    }

    fn take_change(&mut self, revision: i64) {
        assert!(self.listing.is_none(), "a change within a listing");
        let (_, last) = *self.revisions.last().expect("a listing comes first");
        assert!(revision > last || self.revisions.last() == Some(&(false, revision)), "revision {revision} after {last}");
        if revision > last {
            self.revisions.push((false, revision));
        }
    }
}

/// A sink that remembers and checks the contract.
#[derive(Default)]
pub struct Recorder {
    told: Mutex<Told>,
    news: Notify,
    /// While true, it takes nothing.
    pub busy: watch::Sender<bool>,
}

impl Recorder {
    /// What was told up to now.
    pub fn told(&self) -> Told {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no panic in the sink")
    }

    /// Waits until what was told fulfils a condition.
    pub async fn wait(&self, limit: Duration, what: &str, condition: impl Fn(&Told) -> bool) {
        let met = tokio::time::timeout(limit, async {
            loop {
                let news = self.news.notified();
                if condition(&self.lock()) {
                    return;
                }
                news.await;
            }
        });
        if met.await.is_err() {
            let told = self.lock();
            panic!("{what}: not within {limit:?}; {} keys, listings {:?}, {} changes", told.view.len(), told.listings, told.changes.len());
        }
    }

    /// Waits until a wish has this value, or is absent.
    pub async fn wait_value(&self, name: &str, value: Option<&str>) {
        self.wait(SOON, &format!("{name} becomes {value:?}"), |told| told.value(name).as_deref() == value).await;
    }

    /// Waits for this many complete listings.
    pub async fn wait_listings(&self, count: usize) {
        self.wait(SOON, &format!("{count} listings"), |told| told.listings.len() >= count).await;
    }
}

impl StoreSink for Recorder {
    fn deliver(&self, events: Vec<StoreEvent>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            self.busy.subscribe().wait_for(|busy| !busy).await.expect("the sender lives");
            let mut told = self.lock();
            events.iter().for_each(|event| told.take(event));
            if events.iter().any(|event| matches!(event, StoreEvent::Apply(..) | StoreEvent::Delete(..))) {
                told.changes.push(events);
            }
            drop(told);
            self.news.notify_one();
        })
    }
}

/// A running source.
pub struct Running {
    pub sink: Arc<Recorder>,
    pub health: watch::Receiver<StoreHealth>,
    pub resync: Arc<Notify>,
    pub stop: CancellationToken,
    pub task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Starts a source given as what makes its future.
    pub fn start<F: Future<Output = ()> + Send + 'static>(
        kind: &'static str,
        run: impl FnOnce(Arc<dyn StoreSink>, watch::Sender<StoreHealth>, Arc<Notify>, CancellationToken) -> F,
    ) -> Self {
        let sink = Arc::new(Recorder::default());
        let (sender, health) = watch::channel(StoreHealth::starting(kind));
        let resync = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(Arc::clone(&sink) as Arc<dyn StoreSink>, sender, Arc::clone(&resync), stop.clone()));
        Self { sink, health, resync, stop, task }
    }

    /// Waits until the source is live.
    pub async fn live(&mut self, limit: Duration) -> StoreHealth {
        eventually(&mut self.health, limit, "live", |health| health.live).await
    }

    /// Waits until the source says that it is not live.
    pub async fn down(&mut self, limit: Duration) -> StoreHealth {
        eventually(&mut self.health, limit, "down", |health| !health.live).await
    }

    /// Waits until the store has answered so many times more.
    pub async fn wait_beats(&mut self, count: usize) {
        for _ in 0..count {
            let last = self.health.borrow().last_heard;
            eventually(&mut self.health, SOON, "a sign of life", |health| health.last_heard > last).await;
        }
    }

    /// Ends it; it must obey at once.
    pub async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(SOON, self.task).await.expect("the source ends when told").expect("without a panic");
    }
}

/// Long enough for anything that has no reason to wait.
pub const SOON: Duration = Duration::from_secs(60);

/// Options without any credentials.
pub fn options(endpoints: &[&str]) -> EtcdOptions {
    EtcdOptions { endpoints: endpoints.iter().map(|&endpoint| endpoint.to_owned()).collect(), ..EtcdOptions::default() }
}

/// The agent's part of that etcd.
pub fn store(options: EtcdOptions) -> EtcdStore {
    EtcdStore::new(options, PREFIX.to_owned()).expect("good options")
}

/// Starts a source of etcd.
pub fn start(store: EtcdStore) -> Running {
    let store = Arc::new(store);
    Running::start("etcd", |sink, health, resync, stop| store.run_source(sink, health, resync, stop))
}

/// A heart that beats faster, for tests that wait for it.
pub fn quick() -> Timing {
    Timing { heartbeat: Duration::from_millis(300), ..Timing::default() }
}

thread_local! {
    static HERE: Log = Log::default();
}

/// The log of one test, which runs on one thread.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what this thread says from now on. One subscriber serves all threads: several would share their ideas of what is
    /// worth logging.
    pub fn listen() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(|| HERE.with(Log::clone)).finish();
            tracing::subscriber::set_global_default(lines).expect("the only subscriber");
        });
        HERE.with(Log::clone)
    }

    /// Everything up to now.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic in the log")).into_owned()
    }

    /// How many lines have this level and hold these words.
    pub fn count(&self, level: &str, words: &str) -> usize {
        self.text().lines().filter(|line| line.contains(level) && line.contains(words)).count()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic in the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
