//! Wiring and shutdown: the only file that names every concrete type.

mod node;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::api::{self, ApiOptions};
use crate::config::{Adopt, Config, EtcdConfig, ExtraAddresses, NamedNetns};
use crate::configurator::inbox::Inbox;
use crate::configurator::plan::Settings;
use crate::configurator::published::{Published, Requests};
use crate::configurator::reservations::Reservations;
use crate::configurator::{Configurator, Parts, task};
use crate::external_node::controller::inbox::NodeInbox;
use crate::external_node::controller::published::PublishedNodes;
use crate::linux::{LinuxKernel, netns_thread};
use crate::model::Owner;
use crate::model::key::NODE_CONFIG_PREFIX;
use crate::namespace::docker::{Follower, RuntimeHealth, Timing, endpoint};
use crate::namespace::{Remembered, Tracker, TrackerOptions};
use crate::panics::{self, Panics};
use crate::state_dir::StateDir;
use crate::status_feed;
use crate::store::embedded::EmbeddedStore;
use crate::store::etcd::{EtcdOptions, EtcdStore};
use crate::store::status_writer::{self, StatusHandle};
use crate::store::{ConfigStore, StoreHealth};

pub use node::stand_by;

/// How long the step in hand may take at the end.
const LAST_STEP: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT. The kernel is left as it is.
///
/// # Errors
/// What keeps it from starting, in one sentence; or that one of its parts has ended by itself.
pub async fn run(config: Config) -> anyhow::Result<()> {
    // Before anything else, so that no signal is lost while parts start.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let panics = panics::watch();
    raise_file_limit();
    for refused in &config.node.refused_rules {
        tracing::warn!("{refused}");
    }
    let own = netns_thread::own_cookie().context("learn which network namespace this is (Linux 5.14 or later is needed)")?;
    let state_dir = StateDir::open(&config.state_dir, &config.label, own)?;
    let (inbox, nodes) = (Inbox::new(), NodeInbox::new());
    let published = Arc::new(Published::default());
    let tracker = Tracker::start(tracker_options(&config, &state_dir), inbox.clone())?;
    let links = node::LinkSplit { interfaces: inbox.clone(), nodes: nodes.clone(), own };
    let reservations = node::reservations(&config.state_dir);
    let configurator = configurator(&config, &state_dir, &tracker, Arc::new(links), &published, &reservations)?;
    tracker.search();
    let stop = CancellationToken::new();
    let split = Arc::new(node::StoreSplit { interfaces: inbox.clone(), nodes: nodes.clone() });
    let store = open_store(&config, &split, &stop)?;
    let external = api::Nodes { published: Arc::new(PublishedNodes::default()), inbox: nodes.clone() };
    let handing_over = node::start(
        node_setup(&config, &tracker, &store, &published, &external, node::Reserving::new(reservations, inbox.clone())),
        nodes.clone(),
    )?;
    let publishing = store.statuses.as_ref().map(StatusHandle::problem);
    let (docker, following) = follow_containers(&config, &tracker, &stop);
    let requests = Arc::new(AgentRequests { inbox: inbox.clone(), relist: store.relist.clone() });
    let context = api::Context::new(
        config.label.clone(),
        published,
        store.config.clone(),
        requests,
        api::Surroundings { store: store.health.clone(), publishing: store.publishing.clone(), docker, nodes: external.clone() },
        stop.clone(),
    );
    let options = ApiOptions { socket: config.socket.clone(), grpc: config.grpc.clone(), http_listen: config.http_listen };
    let serving = api::serve(options, context.clone()).await?;
    let configuring = task::spawn(Arc::new(Mutex::new(configurator)), inbox.clone()).context("start the configurator's thread")?;
    let mut feed = store.statuses.map(|statuses| tokio::spawn(status_feed::run(statuses, context, external.published)));
    tracing::info!(label = %config.label, store = store.health.borrow().kind, version = env!("CARGO_PKG_VERSION"), "started");

    let (cause, outcome) = tokio::select! {
        _ = terminate.recv() => ("SIGTERM", Ok(())),
        _ = interrupt.recv() => ("SIGINT", Ok(())),
        _ = following => ("failure", Err(anyhow::anyhow!("the follower of the container runtime has ended unexpectedly"))),
        part = broken(panics, store.source, feed.as_mut(), publishing) => ("failure", Err(anyhow::anyhow!("{part} has ended unexpectedly"))),
    };
    tracing::info!(cause, "stopping; the kernel is left as it is");
    let feed = feed.filter(|feed| !feed.is_finished());
    inbox.stop();
    nodes.stop();
    stop.cancel();
    let last_steps = async { tokio::join!(configuring, handing_over) };
    let _ = tokio::time::timeout(LAST_STEP, last_steps).await;
    serving.stopped().await;
    end_feed(feed).await;
    outcome
}

/// Removes the statuses from the store.
async fn end_feed(feed: Option<tokio::task::JoinHandle<StatusHandle>>) {
    if let Some(Ok(statuses)) = match feed {
        Some(feed) => Some(feed.await),
        None => None,
    } {
        statuses.shutdown().await;
    }
}

fn node_setup(
    config: &Config,
    tracker: &Arc<Tracker>,
    store: &OpenStore,
    published: &Arc<Published>,
    external: &api::Nodes,
    reserving: node::Reserving,
) -> node::NodeSetup {
    node::NodeSetup {
        config: config.clone(),
        own: tracker.own(),
        store: store.health.clone(),
        interfaces: published.clone(),
        published: external.published.clone(),
        reserving,
    }
}

/// Each namespace in use may need a descriptor for a while; what the administrator allows at most is asked for.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Waits for a part that ends by itself, which only a defect makes it do; returns its name. Whoever watches this process starts it anew.
async fn broken(
    mut panics: Panics,
    source: tokio::task::JoinHandle<()>,
    feed: Option<&mut tokio::task::JoinHandle<StatusHandle>>,
    publishing: Option<watch::Receiver<Option<String>>>,
) -> String {
    let feeding = async {
        match feed {
            Some(feed) => drop(feed.await),
            None => std::future::pending().await,
        }
    };
    let writing = async {
        match publishing {
            Some(mut problem) => while problem.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        thread = panics.next() => format!("the thread `{thread}`"),
        _ = source => "the reader of the store".to_owned(),
        () = feeding => "the feed of the statuses".to_owned(),
        () = writing => "the writer of the statuses".to_owned(),
    }
}

fn configurator(
    config: &Config,
    state_dir: &StateDir,
    tracker: &Arc<Tracker>,
    links: Arc<node::LinkSplit>,
    published: &Arc<Published>,
    reservations: &Arc<Reservations>,
) -> anyhow::Result<Configurator> {
    let kernel = LinuxKernel::new(tracker.own(), links).context("talk to the kernel")?;
    Ok(Configurator::new(Parts {
        owner: Owner::new(config.label.clone()),
        settings: Settings {
            ipv6_dad: config.ipv6_dad,
            remove_extra_addresses: config.extra_addresses == ExtraAddresses::Remove,
            hold: false,
        },
        create_named: config.named_netns == NamedNetns::Create,
        adopt_on_first_start: config.adopt == Adopt::FirstStart,
        kernel: Box::new(kernel),
        tracker: tracker.clone(),
        memory: Box::new(state_dir.memory()),
        published: published.clone(),
        reservations: reservations.clone(),
        node_key: format!("{NODE_CONFIG_PREFIX}{}", config.node.name),
    }))
}

fn tracker_options(config: &Config, state_dir: &StateDir) -> TrackerOptions {
    let remembered = state_dir.used_netns().into_iter().map(|used| Remembered { id: used.id, reference: used.reference }).collect();
    TrackerOptions {
        netns_dir: config.netns_dir.clone(),
        create_named: config.named_netns == NamedNetns::Create,
        state_dir: Some(config.state_dir.clone()),
        remembered,
        runtime: config.docker_socket.as_deref().map(endpoint),
        ..TrackerOptions::default()
    }
}

/// Follows the container runtime, if one is to be followed. It may be away, or never come: nobody waits for it.
fn follow_containers(
    config: &Config,
    tracker: &Tracker,
    stop: &CancellationToken,
) -> (watch::Receiver<RuntimeHealth>, tokio::task::JoinHandle<()>) {
    let Some(socket) = config.docker_socket.clone() else {
        let stopped = stop.clone();
        return (watch::channel(RuntimeHealth::off()).1, tokio::spawn(async move { stopped.cancelled().await }));
    };
    let (sender, health) = watch::channel(RuntimeHealth::starting(endpoint(&socket)));
    let follower = Follower::new(socket, tracker.runtime_port(), Timing::default(), sender);
    (health, tokio::spawn(follower.run(stop.clone())))
}

/// The store, whichever it is.
struct OpenStore {
    config: Arc<dyn ConfigStore>,
    health: watch::Receiver<StoreHealth>,
    relist: Arc<Notify>,
    source: tokio::task::JoinHandle<()>,
    statuses: Option<StatusHandle>,
    publishing: watch::Receiver<Option<String>>,
}

fn open_store(config: &Config, inbox: &Arc<node::StoreSplit>, stop: &CancellationToken) -> anyhow::Result<OpenStore> {
    let relist = Arc::new(Notify::new());
    let kind = if config.etcd.is_some() { "etcd" } else { "embedded" };
    let (sender, health) = watch::channel(StoreHealth::starting(kind));
    let Some(etcd) = &config.etcd else {
        let store = Arc::new(EmbeddedStore::open(&config.state_dir)?);
        let source = tokio::spawn(store.clone().run_source(inbox.clone(), sender, relist.clone(), stop.clone()));
        return Ok(OpenStore { config: store, health, relist, source, statuses: None, publishing: watch::channel(None).1 });
    };
    let store = Arc::new(EtcdStore::new(etcd_options(etcd), config.label.key_prefix())?);
    let source = tokio::spawn(store.clone().run_source(inbox.clone(), sender, relist.clone(), stop.clone()));
    let statuses = status_writer::spawn(store.clone());
    Ok(OpenStore { config: store, health, relist, source, publishing: statuses.problem(), statuses: Some(statuses) })
}

fn etcd_options(etcd: &EtcdConfig) -> EtcdOptions {
    let (cert, key) = etcd.identity.clone().unzip();
    let (user, password_file) = etcd.user.clone().unzip();
    EtcdOptions { endpoints: etcd.endpoints.clone(), ca: etcd.ca.clone(), cert, key, user, password_file }
}

/// What the API may ask: the configurator for its part, the source for a new listing.
struct AgentRequests {
    inbox: Arc<Inbox>,
    relist: Arc<Notify>,
}

impl Requests for AgentRequests {
    fn resync(&self, accept_removals: bool) {
        self.relist.notify_one();
        self.inbox.resync(accept_removals);
    }

    fn adopt(&self, name: &str) {
        self.inbox.adopt(name);
    }
}
