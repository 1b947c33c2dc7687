//! An agent's API without an agent: published state made by hand, a store in memory, requests that are written down.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::future::ready;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Output;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use vnf_agent::api::context::now;
use vnf_agent::api::{ApiOptions, Context, Nodes, Serving, Surroundings, serve};
use vnf_agent::configurator::published::{IndexEntry, Published, Requests};
use vnf_agent::model::interface::MTU_DEFAULT;
use vnf_agent::model::{
    AgentLabel, HostIfName, IfIndex, InterfaceAddress, InterfaceKind, InterfaceName, InterfaceSpec, InterfaceStatus, LinkId,
    NamespaceStatus, NetnsId, NetnsRef, Reason, State, Timestamp,
};
use vnf_agent::namespace::docker::RuntimeHealth;
use vnf_agent::proto::agent as pb;
use vnf_agent::proto::agent::config_service_client::ConfigServiceClient;
use vnf_agent::proto::agent::status_service_client::StatusServiceClient;
use vnf_agent::store::{ConfigStore, StoreError, StoreHealth, Versioned, Write};

pub const PREFIX: &str = "linux/config/v1/interface/";

/// A store with revisions, in memory.
#[derive(Default)]
pub struct MemoryStore {
    keys: Mutex<BTreeMap<String, Versioned>>,
    pub writes: Mutex<Vec<(i64, Vec<Write>)>>,
    pub revision: watch::Sender<i64>,
    pub refuse: Mutex<Option<&'static str>>,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

impl ConfigStore for MemoryStore {
    fn write(&self, writes: Vec<Write>) -> Answer<'_, i64> {
        if let Some(cause) = *self.refuse.lock().unwrap() {
            let attempted = format!("write {} keys", writes.len());
            return Box::pin(ready(Err(StoreError::Unreachable { attempted, cause: cause.to_owned() })));
        }
        let revision = *self.revision.borrow() + 1;
        let mut keys = self.keys.lock().unwrap();
        for write in &writes {
            match write {
                Write::Put(key, value) => {
                    let create_revision = keys.get(key).map_or(revision, |v| v.create_revision);
                    keys.insert(key.clone(), Versioned { value: value.clone(), create_revision, mod_revision: revision });
                }
                Write::Delete(key) => drop(keys.remove(key)),
            }
        }
        drop(keys);
        self.writes.lock().unwrap().push((revision, writes));
        self.revision.send_replace(revision);
        Box::pin(ready(Ok(revision)))
    }

    fn get(&self, key: &str) -> Answer<'_, Option<Versioned>> {
        Box::pin(ready(Ok(self.keys.lock().unwrap().get(key).cloned())))
    }

    fn list(&self, prefix: &str) -> Answer<'_, Vec<(String, Versioned)>> {
        let keys = self.keys.lock().unwrap();
        let found = keys.iter().filter(|(k, _)| k.starts_with(prefix)).map(|(k, v)| (k.clone(), v.clone())).collect();
        Box::pin(ready(Ok(found)))
    }
}

/// Requests that were made.
#[derive(Default)]
pub struct Recorder(pub Mutex<Vec<String>>);

impl Requests for Recorder {
    fn resync(&self, accept_removals: bool) {
        self.0.lock().unwrap().push(format!("resync {accept_removals}"));
    }
    fn adopt(&self, name: &str) {
        self.0.lock().unwrap().push(format!("adopt {name}"));
    }
}

/// The API of a host.
pub struct Host {
    pub dir: TempDir,
    pub socket: PathBuf,
    pub published: Arc<Published>,
    pub store: Arc<MemoryStore>,
    pub requests: Arc<Recorder>,
    pub health: watch::Sender<StoreHealth>,
    pub context: Arc<Context>,
    pub serving: Serving,
}

pub fn healthy(kind: &'static str) -> StoreHealth {
    StoreHealth { live: true, message: "watching".to_owned(), last_heard: Some(now()), since: now(), revision: 7, kind }
}

/// Parts of an API that is not served yet.
pub fn parts(
    published: &Arc<Published>,
    store: &Arc<MemoryStore>,
    requests: &Arc<Recorder>,
    kind: &'static str,
) -> (watch::Sender<StoreHealth>, Arc<Context>) {
    let (health, receiver) = watch::channel(healthy(kind));
    let label = AgentLabel::new("vpp1").unwrap();
    let docker = watch::channel(RuntimeHealth::off()).1;
    let surroundings = Surroundings { store: receiver, publishing: watch::channel(None).1, docker, nodes: Nodes::default() };
    let context = Context::new(label, published.clone(), store.clone(), requests.clone(), surroundings, CancellationToken::new());
    (health, context)
}

impl Host {
    /// With a unix socket only, on an etcd-like store, ready.
    pub async fn start() -> Self {
        Self::with("etcd", |_| {}).await
    }

    pub async fn with(kind: &'static str, options: impl FnOnce(&mut ApiOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("run").join("agent.sock");
        let published = Arc::new(Published::default());
        published.first_listing_applied.send_replace(true);
        Self::in_dir(dir, socket, published, kind, options).await
    }

    pub async fn in_dir(
        dir: TempDir,
        socket: PathBuf,
        published: Arc<Published>,
        kind: &'static str,
        options: impl FnOnce(&mut ApiOptions),
    ) -> Self {
        let (store, requests) = (Arc::new(MemoryStore::default()), Arc::new(Recorder::default()));
        let (health, context) = parts(&published, &store, &requests, kind);
        let mut offered = ApiOptions { socket: Some(socket.clone()), ..ApiOptions::default() };
        options(&mut offered);
        let serving = serve(offered, context.clone()).await.unwrap();
        Self { dir, socket, published, store, requests, health, context, serving }
    }

    pub fn agent(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    pub async fn channel(&self) -> Channel {
        Endpoint::from_shared(self.agent()).unwrap().connect().await.unwrap()
    }

    pub async fn status(&self) -> StatusServiceClient<Channel> {
        StatusServiceClient::new(self.channel().await)
    }

    pub async fn config(&self) -> ConfigServiceClient<Channel> {
        ConfigServiceClient::new(self.channel().await)
    }

    pub fn publish(&self, statuses: impl IntoIterator<Item = InterfaceStatus>) {
        self.published.statuses.publish(statuses.into_iter().map(|s| (s.name.as_str().into(), Some(s))));
    }

    pub fn remove(&self, name: &str) {
        self.published.statuses.publish([(name.into(), None)]);
    }

    /// Stands in for the configurator: what is put becomes CONFIGURED (INVALID where it is no JSON, UNIMPLEMENTED a TAP), what is deleted goes.
    pub fn configure_everything(&self) {
        let (published, store) = (self.published.clone(), self.store.clone());
        let mut revisions = self.store.revision.subscribe();
        tokio::spawn(async move {
            while revisions.changed().await.is_ok() {
                let writes = std::mem::take(&mut *store.writes.lock().unwrap());
                for (revision, writes) in writes {
                    published.statuses.publish(writes.into_iter().filter_map(|write| react(write, revision)));
                    published.applied_revision.send_replace(revision);
                }
            }
        });
    }

    /// Runs vnfctl against this host.
    pub async fn vnfctl(&self, arguments: &[&str]) -> Run {
        run(&self.agent(), arguments, b"").await
    }

    pub async fn stop(self) -> TempDir {
        self.context.stop.cancel();
        self.serving.stopped().await;
        self.dir
    }
}

fn react(write: Write, revision: i64) -> Option<(Arc<str>, Option<InterfaceStatus>)> {
    match write {
        Write::Put(key, value) => {
            let name = key.strip_prefix(PREFIX)?;
            let mut s = configured(name);
            s.revision = revision;
            match serde_json::from_slice::<serde_json::Value>(&value) {
                Err(_) => {
                    (s.state, s.reason, s.message) =
                        (State::Invalid, Some(Reason::BadEncoding), "the value is no JSON (offset 1)".to_owned());
                }
                Ok(value) if value["type"] == "TAP" => (s.state, s.message) = (State::Unimplemented, "not handled".to_owned()),
                Ok(_) => {}
            }
            Some((name.into(), Some(s)))
        }
        Write::Delete(key) => Some((key.strip_prefix(PREFIX)?.into(), None)),
    }
}

/// What a run of vnfctl gave.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

pub async fn run(agent: &str, arguments: &[&str], input: &'static [u8]) -> Run {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vnfctl"));
    command.env_clear().env("VNF_AGENT", agent).args(arguments);
    let output: Output = tokio::task::spawn_blocking(move || {
        use std::io::Write as _;
        use std::process::Stdio;
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A command that does not read its input may have closed it.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    })
    .await
    .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

/// The example of the contract.
pub fn configured(name: &str) -> InterfaceStatus {
    InterfaceStatus {
        name: name.to_owned(),
        state: State::Configured,
        reason: None,
        message: String::new(),
        host_if_name: "eth1".to_owned(),
        if_index: 7,
        namespace: NamespaceStatus { kind: "MICROSERVICE", reference: "ms1".to_owned(), inode: 4_026_532_301 },
        admin: "UP",
        oper: "UP",
        mtu: 1500,
        phys_address: "02:00:00:00:00:01".to_owned(),
        ip_addresses: vec![address("10.0.0.1/24")],
        peer: "veth2".to_owned(),
        extra_addresses: Vec::new(),
        waits_for: Vec::new(),
        warnings: Vec::new(),
        errors: Vec::new(),
        attempt: 0,
        next_retry: None,
        revision: 812,
        since: Timestamp(1_767_225_600_000),
    }
}

/// One that waits for its peer.
pub fn pending(name: &str) -> InterfaceStatus {
    InterfaceStatus {
        state: State::Pending,
        reason: Some(Reason::PeerMissing),
        message: "peer `veth2` is not configured".to_owned(),
        if_index: 0,
        namespace: NamespaceStatus { kind: "NAMED", reference: "red".to_owned(), inode: 0 },
        admin: "",
        oper: "",
        mtu: 0,
        phys_address: String::new(),
        ip_addresses: Vec::new(),
        waits_for: vec!["interface `veth2`".to_owned()],
        ..configured(name)
    }
}

/// An entry of the index: `name` as eth0 in the microservice.
pub fn index_entry(name: &str, cookie: u64, ifindex: u32, microservice: &str) -> IndexEntry {
    IndexEntry {
        link: LinkId { netns: NetnsId::new(cookie).unwrap(), ifindex: IfIndex::new(ifindex).unwrap() },
        inode: 4_026_532_000 + cookie,
        host_if_name: "eth0".into(),
        spec: Arc::new(InterfaceSpec {
            name: InterfaceName::new(name).unwrap(),
            host_if_name: HostIfName::new("eth0").unwrap(),
            netns: NetnsRef::Microservice(microservice.to_owned()),
            enabled: true,
            addresses: vec![address("10.0.0.1/24")],
            mac: None,
            mtu: MTU_DEFAULT,
            kind: InterfaceKind::Veth { peer: InterfaceName::new("peer").unwrap() },
        }),
    }
}

/// Waits for a condition, ten seconds at most.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..1000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("not within 10 s: {what}");
}

pub fn wait(seconds: i64) -> Option<pb::Wait> {
    Some(pb::Wait { timeout: Some(prost_types::Duration { seconds, nanos: 0 }) })
}
