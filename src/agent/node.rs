//! The external node's part of the wiring: it comes to life with the first wish for a node, the first journal, or what a lost one has left, so that a
//! host without Open vSwitch hears nothing of it.

mod awake;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use awake::Reason;
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::configurator::inbox::Inbox;
use crate::configurator::published::{PassRecord, Published, StepRecord};
use crate::configurator::reservations::Reservations;
use crate::external_node::attachment::Heard;
use crate::external_node::controller::diary::{Diary, NodeRecord};
use crate::external_node::controller::inbox::NodeInbox;
use crate::external_node::controller::names::journalled;
use crate::external_node::controller::published::PublishedNodes;
use crate::external_node::controller::{Guardian, NameKeeper, NodeController, NodeParts, StoreState};
use crate::external_node::flows::BridgeFlows;
use crate::external_node::handover::{Handover, HandoverSettings};
use crate::external_node::journal::JournalFolder;
use crate::external_node::rollback::RollbackFile;
use crate::external_node::stand_by::{self, Order};
use crate::linux::nic::{NicKernel, RouteWatch};
use crate::linux::{LinkEvent, LinkSink};
use crate::model::key::NODE_CONFIG_PREFIX;
use crate::model::{AgentLabel, BypassRule, Datapath, InterfaceName, NetnsId, OvsdbTarget, Owner, ReservedNames};
use crate::namespace::{self, NetnsHandle};
use crate::ovs::{Dpctl, Ofctl, OvsClient, OvsEvent, OvsOptions, OvsSink, Switch, SwitchWatch, management_socket};
use crate::store::{StoreEvent, StoreHealth, StoreSink};

/// How long `ovs-ofctl` may take.
const FLOWS_WITHIN: Duration = Duration::from_secs(5);
/// How long the switch may be silent before it is asked whether it is there.
const PROBE: Duration = Duration::from_secs(3);
/// Where Open vSwitch has its sockets when its database is not a unix socket.
const OVS_RUN: &str = "/var/run/openvswitch";
const ASLEEP: Duration = Duration::from_secs(3600);

/// Gives each part of the agent the store's events that are its own.
pub(super) struct StoreSplit {
    pub(super) interfaces: Arc<Inbox>,
    pub(super) nodes: Arc<NodeInbox>,
}

impl StoreSink for StoreSplit {
    fn deliver(&self, events: Vec<StoreEvent>) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let of_nodes = |event: &StoreEvent| match event {
            StoreEvent::Init | StoreEvent::InitDone(_) => true,
            StoreEvent::InitApply(key, _) | StoreEvent::Apply(key, _) | StoreEvent::Delete(key, _) => key.starts_with(NODE_CONFIG_PREFIX),
        };
        let nodes: Vec<StoreEvent> = events.iter().filter(|event| of_nodes(event)).cloned().collect();
        if !nodes.is_empty() {
            self.nodes.store_events(nodes);
        }
        self.interfaces.deliver(events)
    }
}

/// Tells both parts of the kernel's news.
pub(super) struct LinkSplit {
    pub(super) interfaces: Arc<Inbox>,
    pub(super) nodes: Arc<NodeInbox>,
    pub(super) own: NetnsId,
}

impl LinkSink for LinkSplit {
    fn link_event(&self, event: LinkEvent) {
        let of_own = match &event {
            LinkEvent::Link(netns, _) => *netns == self.own,
            LinkEvent::LinkGone(link) | LinkEvent::Address(link, _) | LinkEvent::AddressGone(link, _) => link.netns == self.own,
            LinkEvent::Lost(netns) => netns.is_none_or(|netns| netns == self.own),
            LinkEvent::NetnsGone(_) | LinkEvent::ReapFailed(..) => false,
        };
        if of_own {
            self.nodes.kernel_changed();
        }
        self.interfaces.link_event(event);
    }
}

/// What the controller is started with.
pub(super) struct NodeSetup {
    pub(super) config: Config,
    pub(super) own: NetnsHandle,
    pub(super) store: watch::Receiver<StoreHealth>,
    pub(super) interfaces: Arc<Published>,
    pub(super) published: Arc<PublishedNodes>,
    pub(super) reserving: Reserving,
}

/// Tells when it becomes known whether what is missing in the store may be removed, as long as the agent runs.
async fn tell_of_removals(interfaces: Arc<Published>, inbox: Arc<NodeInbox>) {
    let (mut listings, mut hold) = (interfaces.judged_listings.subscribe(), interfaces.hold.subscribe());
    loop {
        let told = tokio::select! {
            told = listings.changed() => told,
            told = hold.changed() => told,
        };
        if told.is_err() {
            return;
        }
        inbox.store_heard();
    }
}

/// Starts the controller's thread. What is returned is closed when it has ended, however it ended.
///
/// # Errors
/// When no thread can be had.
pub(super) fn start(setup: NodeSetup, inbox: Arc<NodeInbox>) -> anyhow::Result<oneshot::Receiver<()>> {
    let (alive, ended) = oneshot::channel();
    tokio::spawn(tell_of_removals(setup.interfaces.clone(), inbox.clone()));
    let work = move || {
        let _alive: oneshot::Sender<()> = alive;
        let left_on = match awake::reason_to_live(&setup, &inbox) {
            None => return,
            Some(Reason::Told) => None,
            Some(Reason::LeftOn(bridge)) => Some(bridge),
        };
        match parts(&setup, &inbox, left_on) {
            Ok((first, mut watch)) => NodeController::new(first).run(&inbox, || match parts(&setup, &inbox, None) {
                Ok((next, next_watch)) => {
                    watch = next_watch;
                    Some(next)
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "the configured bridge is not used before the agent starts anew");
                    None
                }
            }),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the external node cannot be served");
                while !inbox.take(Instant::now() + ASLEEP).stop {}
            }
        }
    };
    thread::Builder::new().name("node".to_owned()).spawn(work).context("start the node's thread")?;
    Ok(ended)
}

/// What the controller works with, for the bridge that is in use; `left_on`: one with ports of ours of which no journal tells.
fn parts(setup: &NodeSetup, inbox: &Arc<NodeInbox>, left_on: Option<String>) -> anyhow::Result<(NodeParts, SwitchWatch)> {
    let config = &setup.config;
    let journals = JournalFolder::open(&config.state_dir)?;
    let bridge = bridge_in_use(&journals, left_on, &config.ovs.bridge)?;
    let place = Place {
        target: config.ovs.db.clone(),
        bridge: bridge.clone(),
        datapath: config.ovs.datapath,
        label: config.label.clone(),
        rules: config.node.bypass_rules.clone(),
        confirm_within: config.node.confirm_timeout,
    };
    let (handover, watch) = handover(&place, setup.own.clone(), journals, Some((inbox.clone(), setup.reserving.clone())))?;
    let legal = |what: &str, text: &str| InterfaceName::new(text).map_err(|why| anyhow::anyhow!("{what} `{text}` {why}"));
    let order = Order {
        nic: String::new(),
        attachment: String::new(),
        state_dir: config.state_dir.clone(),
        ovs_db: config.ovs.db.to_string(),
        bridge: bridge.clone(),
        label: config.label.to_string(),
        netdev: config.ovs.datapath == Datapath::Netdev,
        bypass_rules: config.node.bypass_rules.iter().map(BypassRule::fields).collect(),
    };
    let parts = NodeParts {
        handover,
        guardian: Box::new(Processes { order, running: Vec::new() }),
        store: Box::new(Store { health: setup.store.clone(), interfaces: setup.interfaces.clone() }),
        routes: RouteWatch::new(
            setup.own.clone(),
            Arc::new({
                let inbox = inbox.clone();
                move || inbox.kernel_changed()
            }),
        ),
        published: setup.published.clone(),
        diary: Box::new(History(setup.interfaces.clone())),
        names: Box::new(setup.reserving.clone()),
        rollbacks: RollbackFile::of(&config.state_dir),
        name: legal("node name", &config.node.name)?,
        namespace: legal("node namespace", &config.node.namespace)?,
        is_old_bridge: bridge != config.ovs.bridge,
        bridge,
        allow_managed: config.node.allow_managed,
    };
    Ok((parts, watch))
}

/// The bridge that NICs stand behind already goes before the one of the configuration: what was made there must be found, to be kept or given back.
fn bridge_in_use(journals: &JournalFolder, left_on: Option<String>, configured: &str) -> anyhow::Result<String> {
    let journalled = journals.all()?.into_iter().flatten().map(|journal| journal.bridge);
    let in_use = journalled.chain(left_on).find(|bridge| bridge != configured);
    let Some(bridge) = in_use else { return Ok(configured.to_owned()) };
    tracing::warn!(bridge, configured, "NICs stand behind another bridge than the configured one: it is used until they are given back");
    Ok(bridge)
}

/// Where NICs are put.
struct Place {
    target: OvsdbTarget,
    bridge: String,
    datapath: Datapath,
    label: AgentLabel,
    rules: Vec<BypassRule>,
    confirm_within: Duration,
}

fn handover(
    place: &Place,
    netns: NetnsHandle,
    journals: JournalFolder,
    agent: Option<(Arc<NodeInbox>, Reserving)>,
) -> anyhow::Result<(Handover, SwitchWatch)> {
    let alive = Arc::new(AtomicBool::new(true));
    let ears: Arc<dyn OvsSink> = Arc::new(Ears { alive: alive.clone(), agent });
    let options = OvsOptions::new(place.target.clone(), place.label.clone(), place.bridge.clone());
    let switch: Arc<dyn Switch> = Arc::new(OvsClient::start(options, ears.clone()).context("start the Open vSwitch client")?);
    let socket = management_socket(&run_dir(&place.target), &place.bridge);
    let owner = Owner::new(place.label.clone());
    let watch = SwitchWatch::start(&socket, &owner, PROBE, ears).context("watch the switch")?;
    let sink = Arc::new(Ofctl::new(&socket, &owner, FLOWS_WITHIN).as_long_as(alive.clone()));
    let flows = Arc::new(BridgeFlows::new(switch.clone(), sink, owner, place.rules.clone()));
    let settings = HandoverSettings {
        bridge: place.bridge.clone(),
        datapath: place.datapath,
        boot_id: namespace::boot_id().context("read the boot id")?,
        confirm_within: place.confirm_within,
        dpctl: Dpctl::default(),
    };
    Ok((Handover::new(NicKernel::new(netns), switch, flows, journals, settings, alive), watch))
}

fn run_dir(target: &OvsdbTarget) -> PathBuf {
    match target {
        OvsdbTarget::Unix(socket) => socket.parent().unwrap_or(Path::new(OVS_RUN)).to_owned(),
        OvsdbTarget::Tcp { .. } => OVS_RUN.into(),
    }
}

/// Hears of the switch.
struct Ears {
    alive: Arc<AtomicBool>,
    /// Nobody but itself hears in the process that stands by.
    agent: Option<(Arc<NodeInbox>, Reserving)>,
}

impl OvsSink for Ears {
    fn tell(&self, event: OvsEvent) {
        let is_news = match &event {
            // It has no flow of ours after a restart, so this one always counts.
            OvsEvent::SwitchBack => {
                self.alive.store(true, Ordering::Relaxed);
                true
            }
            OvsEvent::SwitchLost(_) => self.alive.swap(false, Ordering::Relaxed),
            _ => true,
        };
        match (&self.agent, event) {
            (Some((_, reserving)), OvsEvent::InternalPorts(ports)) => reserving.reserve_ports(ports),
            (Some((inbox, _)), event) if is_news => inbox.tell(event),
            _ => {}
        }
    }
}

/// Starts processes that stand by, and takes note of those that have ended.
struct Processes {
    order: Order,
    running: Vec<(Order, std::process::Child)>,
}

impl Guardian for Processes {
    fn stand_by(&mut self, nic: &str, attachment: &str) -> Result<(), String> {
        self.reap();
        let order = Order { nic: nic.to_owned(), attachment: attachment.to_owned(), ..self.order.clone() };
        if self.running.iter().all(|(running, _)| *running != order) {
            let child = stand_by::start(&order).map_err(|error| format!("start the process that stands by: {error}"))?;
            self.running.push((order, child));
        }
        Ok(())
    }

    fn reap(&mut self) {
        self.running.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
    }
}

/// Keeps names from the configurator: those that the host hangs on, and those that Open vSwitch has told of.
#[derive(Clone)]
pub(super) struct Reserving {
    names: Arc<Reservations>,
    inbox: Arc<Inbox>,
    known: Arc<Mutex<Known>>,
}

/// Who reserves what.
struct Known {
    host: ReservedNames,
    /// Internal ports of all bridges as the database showed them last, and their bridges.
    ports: BTreeMap<String, String>,
}

impl Reserving {
    /// Adds to what is reserved already.
    pub(super) fn new(names: Arc<Reservations>, inbox: Arc<Inbox>) -> Self {
        let known = Known { host: names.get().as_ref().clone(), ports: BTreeMap::new() };
        Self { names, inbox, known: Arc::new(Mutex::new(known)) }
    }

    /// Open vSwitch makes, or has made, the devices of these ports.
    fn reserve_ports(&self, ports: BTreeMap<String, String>) {
        self.change(|known| known.ports = ports);
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        let mut names = known.host.clone();
        known.ports.iter().for_each(|(port, bridge)| names.add_port(port, bridge));
        // Still locked: what was known later is also said later.
        if self.names.set(names) {
            self.inbox.reserved();
        }
    }
}

impl NameKeeper for Reserving {
    fn reserve(&self, names: ReservedNames) {
        self.change(|known| known.host = names);
    }
}

/// What the journals of a state directory reserve, before anybody looks at anything.
pub(super) fn reservations(state_dir: &Path) -> Arc<Reservations> {
    let reservations = Reservations::default();
    match JournalFolder::open(state_dir) {
        Ok(journals) => drop(reservations.set(journalled(&journals))),
        Err(error) => tracing::error!(%error, "which NICs stand behind a bridge is not known"),
    }
    Arc::new(reservations)
}

/// Steps of NICs stand in one history with those of interfaces.
struct History(Arc<Published>);

impl Diary for History {
    fn record(&self, record: NodeRecord) {
        let NodeRecord { started, elapsed_us, triggers, drift, steps } = record;
        let steps = steps.into_iter().map(|(step, outcome)| StepRecord { step: step.into(), outcome: outcome.into() }).collect();
        self.0.record(PassRecord { sequence: 0, started, elapsed_us, triggers, drift, steps });
    }
}

struct Store {
    health: watch::Receiver<StoreHealth>,
    interfaces: Arc<Published>,
}

impl StoreState for Store {
    fn last_heard(&self) -> Heard {
        let health = self.health.borrow();
        if health.kind == "etcd" { Heard::At(health.last_heard.unwrap_or_default()) } else { Heard::Always }
    }

    fn removals_allowed(&self, listings: u64) -> bool {
        // What they are a reason for was told before.
        *self.interfaces.judged_listings.borrow() >= listings && self.interfaces.hold.borrow().is_none()
    }
}

/// Runs the process that stands by.
///
/// # Errors
/// One sentence.
pub fn stand_by(order: &Order) -> Result<(), String> {
    let text = |error: anyhow::Error| format!("{error:#}");
    let label = AgentLabel::new(&order.label).map_err(|error| error.to_string())?;
    let target = OvsdbTarget::parse(&order.ovs_db).map_err(|rule| format!("{} {rule}", order.ovs_db))?;
    let rule = |[direction, protocol, cidr, port]: &[String; 4]| BypassRule::parse(direction, protocol, cidr, port);
    let rules = order.bypass_rules.iter().map(rule).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let mut watch = None;
    stand_by::run(order, |journals| {
        let datapath = if order.netdev { Datapath::Netdev } else { Datapath::System };
        let place = Place { target, bridge: order.bridge.clone(), datapath, label, rules, confirm_within: Duration::ZERO };
        let own = namespace::own_netns().map_err(|error| format!("open the own namespace: {error}"))?;
        let (handover, switch_watch) = handover(&place, own, journals, None).map_err(text)?;
        watch = Some(switch_watch);
        Ok(handover)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Reserved;

    #[test]
    fn what_the_database_tells_of_is_reserved_before_anybody_looks() {
        let (names, inbox, nodes) = (Arc::new(Reservations::default()), Inbox::new(), NodeInbox::new());
        let reserving = Reserving::new(names.clone(), inbox);
        let ears = Ears { alive: Arc::new(AtomicBool::new(true)), agent: Some((nodes, reserving.clone())) };
        let ports = |name: &str| OvsEvent::InternalPorts([(name.to_owned(), "br-ex".to_owned())].into());
        ears.tell(ports("vport0"));
        assert_eq!(names.get().get("vport0"), Some(&Reserved::Port("br-ex".into())));
        // The host's own names come and go beside them.
        let mut host = ReservedNames::default();
        host.add_nic("eth0", ["eth0~"]);
        reserving.reserve(host);
        assert!(names.get().get("vport0").is_some() && names.get().get("eth0~").is_some());
        ears.tell(ports("vport1"));
        assert!(names.get().get("vport0").is_none() && names.get().get("vport1").is_some() && names.get().get("eth0").is_some());
        reserving.reserve(ReservedNames::default());
        assert!(names.get().get("vport1").is_some() && names.get().get("eth0").is_none());
    }
}
