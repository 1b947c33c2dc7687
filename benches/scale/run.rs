//! An agent that is measured: what it did since a moment, and what it told.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use etcd_client::{GetOptions, WatchOptions};
use serde_json::Value;
use vnf_agent::proto::agent::ResyncRequest;
use vnf_agent::proto::agent::config_service_client::ConfigServiceClient;

use crate::bed::{self, LIMIT};
use crate::report::Sample;
use crate::support::{Agent, Etcd, Host};

/// An agent with a label of its own.
pub struct Run<'h> {
    pub agent: Agent<'h>,
    pub label: String,
    pub etcd: &'h Etcd<'h>,
    before: Account,
}

/// What an agent has used so far.
#[derive(Clone, Copy, Default)]
struct Account {
    cpu: Duration,
    writes: f64,
    reads: f64,
    sends: f64,
    moves: f64,
}

impl<'h> Run<'h> {
    /// On the etcd of its host, not yet started.
    pub fn new(host: &'h Host, etcd: &'h Etcd<'h>) -> Self {
        let label = bed::label();
        let agent = bed::agent(host, &label).on_etcd();
        Self { agent, label, etcd, before: Account::default() }
    }

    fn used(&self) -> Account {
        let [writes, reads, sends, moves] =
            ["kernel_writes", "kernel_reads", "kernel_sends", "link_moves"].map(|name| self.agent.metric(name));
        Account { cpu: bed::processor_time(self.agent.pid()), writes, reads, sends, moves }
    }

    /// From here on it counts.
    pub fn begin(&mut self) {
        self.before = self.used();
    }

    /// Fills in what was used since [`Run::begin`] or the start.
    pub fn account(&self, sample: Sample) -> Sample {
        let now = self.used();
        let since = |now: f64, before: f64| (now - before) as u64;
        Sample {
            cpu: Some(now.cpu.saturating_sub(self.before.cpu)),
            messages: Some(since(now.writes, self.before.writes)),
            reads: Some(since(now.reads, self.before.reads)),
            sends: Some(since(now.sends, self.before.sends)),
            moves: since(now.moves, self.before.moves),
            peak: Some(bed::memory(self.agent.pid(), "VmHWM")),
            ..sample
        }
    }

    /// The store's revision now.
    pub fn revision(&self) -> i64 {
        self.etcd.client(async |mut client| client.get("x", None).await.unwrap().header().unwrap().revision())
    }

    /// Waits until the status keys of so many interfaces say CONFIGURED with this MTU; returns when the last one was heard of. It hears what was written
    /// since `revision`, and disturbs nobody before it is called.
    pub fn told(&self, revision: i64, count: usize, mtu: u32) -> Instant {
        let good = |status: &Value| status["state"] == "CONFIGURED" && status["mtu"] == mtu;
        self.statuses(revision, &format!("{count} statuses are CONFIGURED"), |names: &mut HashSet<String>, key, value| {
            if value.is_some_and(|status| good(&status)) {
                names.insert(key);
            }
            names.len() >= count
        })
    }

    /// Waits until no status key is left.
    pub fn forgotten(&self) {
        let begin = Instant::now();
        while !self.etcd.keys(&bed::status_prefix(&self.label)).is_empty() {
            assert!(begin.elapsed() < LIMIT, "statuses stay");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn statuses(
        &self,
        since: i64,
        what: &str,
        mut take: impl FnMut(&mut HashSet<String>, String, Option<Value>) -> bool + Send,
    ) -> Instant {
        // In fragments: thousands of statuses may have been written by the time this asks, which is more than a message holds.
        let options = WatchOptions::new().with_prefix().with_start_revision(since + 1).with_fragment();
        self.etcd.client(async |client| {
            let mut names = HashSet::new();
            let mut client = client.watch_client().max_decoding_message_size(64 << 20);
            let mut watch = client.watch(bed::status_prefix(&self.label), Some(options)).await.unwrap();
            loop {
                let message = tokio::time::timeout(LIMIT, watch.message()).await;
                let message = message.unwrap_or_else(|_| panic!("{what}: {} are", names.len())).unwrap().unwrap();
                let at = Instant::now();
                for event in message.events() {
                    let kv = event.kv().unwrap();
                    let done = take(&mut names, kv.key_str().unwrap().to_owned(), serde_json::from_slice(kv.value()).ok());
                    if done {
                        return at;
                    }
                }
            }
        })
    }

    /// How long a client takes to read all wishes.
    pub fn range_read(&self) -> Duration {
        let prefix = bed::config_key(&self.label, "");
        self.etcd.client(async |mut client| {
            client.get("x", None).await.unwrap();
            let start = Instant::now();
            client.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
            start.elapsed()
        })
    }
}

/// Lets the agent read store and kernel again; returns how long that took. That it is done shows in its metrics: it knows a revision of the store that only a
/// new listing can tell, and has read all namespaces.
pub fn resync(run: &Run<'_>, spaces: usize) -> Duration {
    let reads = || run.agent.metric("namespace_reads");
    let before = reads();
    // Outside of what the agent watches.
    run.etcd.client(async |mut client| client.put("/elsewhere", "", None).await.unwrap());
    let revision = run.revision() as f64;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let start = runtime.block_on(async {
        let address = format!("unix:{}", run.agent.socket().display());
        let mut client = ConfigServiceClient::connect(address).await.unwrap();
        let start = Instant::now();
        client.resync(ResyncRequest::default()).await.unwrap();
        start
    });
    while run.agent.metric("applied_revision") < revision || reads() < before + spaces as f64 {
        assert!(start.elapsed() < LIMIT, "the agent does not end its resync");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}
