//! A host in memory: namespaces by name, a store, and a clock that the test moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::configurator::inbox::Inbox;
use crate::configurator::memory::{KnownStore, Memory, UsedNetns};
use crate::configurator::plan::{Plan, Settings, Violation, check, plan};
use crate::configurator::published::Published;
use crate::configurator::{Configurator, Now, Parts};
use crate::linux::fake::{FakeWorld, NetnsSettings};
use crate::linux::{LinkEvent, LinkSink};
use crate::model::{AgentLabel, InterfaceStatus, NetnsId, NetnsRef, NetnsSlot, Owner, Reason, ReservedNames, Timestamp};
use crate::namespace::{NetnsEvent, NetnsHandle, NetnsSink, NetnsTracker};
use crate::store::{StoreEvent, StoreIdentity, StoreSink, Versioned};

pub(super) const CLUSTER: u64 = 0xc1;

/// Memory that the test keeps over restarts of the agent.
#[derive(Clone, Default)]
pub(super) struct SharedMemory(pub Arc<Mutex<Remembered>>);

#[derive(Default)]
pub(super) struct Remembered {
    pub store: Option<KnownStore>,
    pub netns: Vec<UsedNetns>,
    /// How often that was written.
    pub netns_writes: usize,
    pub applied: bool,
}

impl Memory for SharedMemory {
    fn known_store(&self) -> Option<KnownStore> {
        self.0.lock().unwrap().store.clone()
    }
    fn remember_store(&mut self, store: &KnownStore) {
        self.0.lock().unwrap().store = Some(store.clone());
    }
    fn remember_netns(&mut self, used: &[UsedNetns]) {
        let mut remembered = self.0.lock().unwrap();
        remembered.netns = used.to_vec();
        remembered.netns_writes += 1;
    }
    fn first_start(&self) -> bool {
        !self.0.lock().unwrap().applied
    }
    fn listing_applied(&mut self) {
        self.0.lock().unwrap().applied = true;
    }
}

/// Named namespaces of the fake host; `own` is the agent's.
#[derive(Default)]
struct Host {
    names: BTreeMap<String, NetnsId>,
    watched: BTreeSet<NetnsSlot>,
    create: Vec<NetnsSlot>,
}

/// The namespace of this name.
fn handle(world: &FakeWorld, name: &str, id: NetnsId) -> NetnsHandle {
    NetnsHandle { own: name == "own", ..world.handle(id) }
}

struct FakeTracker {
    host: Mutex<Host>,
    world: FakeWorld,
    inbox: Arc<Inbox>,
}

impl FakeTracker {
    fn answer(&self, host: &Host, slot: &NetnsSlot) {
        let name = match &slot.reference {
            NetnsRef::Default => "own",
            NetnsRef::Named(name) => name,
            _ => "",
        };
        let slot = slot.clone();
        self.inbox.netns_event(match host.names.get(name) {
            Some(id) => NetnsEvent::Bound { slot, netns: handle(&self.world, name, *id), created: false, container: None },
            None => NetnsEvent::Unbound { slot, reason: Reason::NamespaceMissing, message: format!("namespace `{name}` is not there") },
        });
    }
}

impl NetnsTracker for FakeTracker {
    fn watch(&self, slot: &NetnsSlot, create: bool) {
        let mut host = self.host.lock().unwrap();
        host.watched.insert(slot.clone());
        if create {
            host.create.push(slot.clone());
        }
        self.answer(&host, slot);
    }
    fn unwatch(&self, slot: &NetnsSlot) {
        self.host.lock().unwrap().watched.remove(slot);
    }
    fn retain(&self, slots: &[NetnsSlot]) {
        self.host.lock().unwrap().watched.retain(|slot| slots.contains(slot));
    }
    fn recheck(&self) {
        let host = self.host.lock().unwrap();
        host.watched.iter().for_each(|slot| self.answer(&host, slot));
    }
}

/// The host, the store and the agent under test.
pub(super) struct Bench {
    pub world: FakeWorld,
    pub published: Arc<Published>,
    pub memory: SharedMemory,
    pub owner: Owner,
    pub settings: Settings,
    pub now: Now,
    pub store: BTreeMap<String, Versioned>,
    pub cluster: u64,
    pub revision: i64,
    pub names: BTreeMap<String, NetnsId>,
    inbox: Arc<Inbox>,
    tracker: Arc<FakeTracker>,
    agent: Configurator,
    runtime: tokio::runtime::Runtime,
    /// How often the agent was killed by a hook.
    pub kills: usize,
}

/// Thrown by a hook before a kernel call: the agent dies there as by SIGKILL. (`resume_unwind` prints nothing.)
pub(super) struct Killed;

/// A hook that kills the agent.
pub(super) fn killer(_: &FakeWorld) {
    std::panic::resume_unwind(Box::new(Killed));
}

impl Bench {
    /// A host with the namespaces `own`, `red` and `blue`; the agent has started on an empty store.
    pub(super) fn new() -> Self {
        let mut bench = Self::stopped(Settings::default());
        bench.start();
        bench
    }

    pub(super) fn stopped(settings: Settings) -> Self {
        let world = FakeWorld::new();
        let names = ["own", "red", "blue"].map(|name| (name.to_owned(), world.add_netns(NetnsSettings::default())));
        let owner = Owner::new(AgentLabel::new("vpp1").unwrap());
        let memory = SharedMemory::default();
        let now = Now { instant: Instant::now(), wall: Timestamp(1_767_225_600_000) };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (inbox, published) = (Inbox::new(), Arc::new(Published::default()));
        let (agent, tracker) = boot(&world, &owner, settings, &inbox, &published, &memory, names.clone().into());
        let names = names.into();
        let (store, revision, cluster) = (BTreeMap::new(), 1, CLUSTER);
        Self { world, published, memory, owner, settings, now, store, cluster, revision, names, inbox, tracker, agent, runtime, kills: 0 }
    }

    /// Ends the agent as SIGKILL does and begins a new one; nothing is told to it yet.
    pub(super) fn kill(&mut self) {
        self.assert_sound();
        self.inbox = Inbox::new();
        self.published = Arc::new(Published::default());
        let (agent, tracker) =
            boot(&self.world, &self.owner, self.settings, &self.inbox, &self.published, &self.memory, self.names.clone());
        (self.agent, self.tracker) = (agent, tracker);
    }

    /// The search of the host and the first listing reach the agent.
    pub(super) fn start(&mut self) {
        self.boot_up();
        self.run();
    }

    pub(super) fn boot_up(&mut self) {
        for (name, id) in &self.names {
            self.inbox.netns_event(NetnsEvent::Found { netns: handle(&self.world, name, *id), reference: name.clone() });
        }
        self.inbox.netns_event(NetnsEvent::SearchDone);
        self.list();
    }

    pub(super) fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// Sends the whole store as a listing.
    pub(super) fn list(&mut self) {
        let mut events = vec![StoreEvent::Init];
        events.extend(self.store.iter().map(|(key, value)| StoreEvent::InitApply(key.clone(), value.clone())));
        events.push(StoreEvent::InitDone(StoreIdentity { cluster: self.cluster, revision: self.revision }));
        self.deliver(events);
    }

    pub(super) fn deliver(&self, events: Vec<StoreEvent>) {
        self.runtime.block_on(self.inbox.deliver(events));
    }

    /// Writes values without telling the agent.
    pub(super) fn write(&mut self, values: &[(&str, &str)]) -> Vec<StoreEvent> {
        self.revision += 1;
        let mut events = Vec::new();
        for (name, value) in values {
            let key = format!("linux/config/v1/interface/{name}");
            let create_revision = self.store.get(&key).map_or(self.revision, |v| v.create_revision);
            let versioned = Versioned { value: value.as_bytes().to_vec(), create_revision, mod_revision: self.revision };
            self.store.insert(key.clone(), versioned.clone());
            events.push(StoreEvent::Apply(key, versioned));
        }
        events
    }

    /// Writes values at one revision and lets the agent work until it is idle.
    pub(super) fn put(&mut self, values: &[(&str, &str)]) {
        let events = self.write(values);
        self.deliver(events);
        self.run();
    }

    /// VPP's agent writes a key below `vpp/`, or removes it.
    pub(super) fn vpp(&mut self, key: &str, value: Option<&str>) {
        self.revision += 1;
        let key = format!("vpp/{key}");
        let event = if let Some(value) = value {
            let versioned = Versioned { value: value.as_bytes().to_vec(), create_revision: self.revision, mod_revision: self.revision };
            self.store.insert(key.clone(), versioned.clone());
            StoreEvent::Apply(key, versioned)
        } else {
            self.store.remove(&key);
            StoreEvent::Delete(key, self.revision)
        };
        self.deliver(vec![event]);
        self.run();
    }

    pub(super) fn erase(&mut self, name: &str) -> StoreEvent {
        self.revision += 1;
        let key = format!("linux/config/v1/interface/{name}");
        self.store.remove(&key);
        StoreEvent::Delete(key, self.revision)
    }

    pub(super) fn del(&mut self, name: &str) {
        let event = self.erase(name);
        self.deliver(vec![event]);
        self.run();
    }

    /// Tells the agent one event of the kernel.
    pub(super) fn tell(&self, event: LinkEvent) {
        self.inbox.link_event(event);
    }

    /// Passes until nothing comes in and nothing is due any more; the reaper works in between.
    pub(super) fn run(&mut self) {
        for _ in 0..200 {
            let (idle, due) = self.step();
            if self.world.reap() == 0 && idle && !due {
                return;
            }
        }
        panic!("the agent does not come to rest");
    }

    /// One pass, without the reaper: whether nothing had come in, and whether the next pass is due at once. An agent that is killed in the
    /// middle ([`Killed`]) begins anew.
    pub(super) fn step(&mut self) -> (bool, bool) {
        let batch = self.inbox.take(Instant::now());
        let idle = batch.is_empty();
        let (agent, now) = (&mut self.agent, self.now);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| agent.pass(batch, now))) {
            Ok(next) => (idle, next <= now.instant),
            Err(cause) if cause.is::<Killed>() => {
                self.kills += 1;
                self.kill();
                self.boot_up();
                (false, true)
            }
            Err(cause) => std::panic::resume_unwind(cause),
        }
    }

    /// What the next pass would plan first, and what is wrong with that plan; nothing is done.
    pub(super) fn preview(&mut self) -> (Plan, Vec<Violation>) {
        loop {
            let batch = self.inbox.take(Instant::now());
            if batch.is_empty() {
                break;
            }
            self.agent.take_in(batch, self.now);
            self.agent.look(self.now);
        }
        let proof = self.agent.synchronised().unwrap();
        let plan = plan(self.agent.world(), proof, &self.agent.todo.dirty);
        let violations = check(&plan, &self.agent.observed);
        (plan, violations)
    }

    /// No pass since the start has made a plan that breaks an invariant.
    pub(super) fn assert_sound(&self) {
        assert_eq!(self.published.counters.unsound_plans.load(std::sync::atomic::Ordering::Relaxed), 0, "unsound plans");
    }

    /// Lets time pass until the agent has done and said nothing new for a while.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..60 {
            let before = (self.writes(), self.published.statuses.snapshot().0, self.published.index.snapshot().0);
            self.wait(Duration::from_secs(61));
            quiet = if before == (self.writes(), self.published.statuses.snapshot().0, self.published.index.snapshot().0) {
                quiet + 1
            } else {
                0
            };
            if quiet == 3 {
                return;
            }
        }
        panic!("never quiet: {:?}", self.published.history(3));
    }

    /// All statuses as `name: STATE REASON`.
    pub(super) fn states(&self) -> Vec<String> {
        self.published.statuses.snapshot().1.iter().map(|(name, _)| format!("{name}: {}", self.state(name))).collect()
    }

    pub(super) fn wait(&mut self, duration: Duration) {
        self.now.instant += duration;
        self.now.wall = self.now.wall.after(duration);
        self.run();
    }

    pub(super) fn resync(&mut self, accept: bool) {
        use crate::configurator::published::Requests;
        self.inbox.resync(accept);
        self.run();
    }

    pub(super) fn adopt(&mut self, name: &str) {
        use crate::configurator::published::Requests;
        self.inbox.adopt(name);
        self.run();
    }

    /// Reserves these names and no others.
    pub(super) fn reserve(&mut self, names: ReservedNames) {
        assert!(self.agent.parts.reservations.set(names), "it is news");
        self.inbox.reserved();
        self.run();
    }

    pub(super) fn ns(&self, name: &str) -> NetnsId {
        self.names[name]
    }

    /// The names of the namespaces that the agent has asked for since it began, and still wants to be told of.
    pub(super) fn asked(&self) -> Vec<String> {
        self.tracker.host.lock().unwrap().watched.iter().map(|slot| slot.reference.reference()).collect()
    }

    /// A namespace of this name appears (again).
    pub(super) fn add_netns(&mut self, name: &str) {
        let id = self.world.add_netns(NetnsSettings::default());
        self.names.insert(name.to_owned(), id);
        self.sync_names();
    }

    /// The name goes; the namespace dies with it.
    pub(super) fn kill_netns(&mut self, name: &str) {
        let id = self.names.remove(name).unwrap();
        self.world.kill_netns(id).unwrap();
        self.sync_names();
    }

    /// The name goes; the namespace lives on, out of reach.
    pub(super) fn unmount(&mut self, name: &str) -> NetnsId {
        let id = self.names.remove(name).unwrap();
        self.sync_names();
        id
    }

    pub(super) fn sync_names(&mut self) {
        self.tracker.host.lock().unwrap().names = self.names.clone();
        self.tracker.recheck();
        self.run();
    }

    pub(super) fn status(&self, name: &str) -> InterfaceStatus {
        (*self.published.statuses.get(name).unwrap_or_else(|| panic!("no status of {name}"))).clone()
    }

    /// `STATE` or `STATE REASON`.
    pub(super) fn state(&self, name: &str) -> String {
        match self.published.statuses.get(name) {
            None => "-".to_owned(),
            Some(status) => match status.reason {
                Some(reason) => format!("{} {reason}", status.state),
                None => status.state.to_string(),
            },
        }
    }

    pub(super) fn digest(&self) -> String {
        self.world.digest(&self.owner)
    }

    pub(super) fn writes(&self) -> u64 {
        self.world.calls().writes()
    }
}

fn boot(
    world: &FakeWorld,
    owner: &Owner,
    settings: Settings,
    inbox: &Arc<Inbox>,
    published: &Arc<Published>,
    memory: &SharedMemory,
    names: BTreeMap<String, NetnsId>,
) -> (Configurator, Arc<FakeTracker>) {
    world.set_sink(inbox.clone());
    let host = Host { names, ..Host::default() };
    let tracker = Arc::new(FakeTracker { host: Mutex::new(host), world: world.clone(), inbox: inbox.clone() });
    let agent = Configurator::new(Parts {
        owner: owner.clone(),
        settings,
        create_named: true,
        adopt_on_first_start: true,
        kernel: Box::new(world.kernel()),
        tracker: tracker.clone(),
        memory: Box::new(memory.clone()),
        published: published.clone(),
        reservations: Arc::default(),
        node_key: "external/config/v1/node/vpp1".to_owned(),
    });
    (agent, tracker)
}

/// An end of a pair in a named namespace.
pub(super) fn veth(name: &str, peer: &str, netns: &str, more: &str) -> String {
    format!(
        r#"{{"name":"{name}","enabled":true,"namespace":{{"type":"NAMED_NS","name":"{netns}"}},"veth":{{"peer_if_name":"{peer}"}}{more}}}"#
    )
}

/// The pair of the field cases: veth1 in red, veth2 in blue.
pub(super) fn the_pair(bench: &mut Bench) {
    let one = veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24","fd00::1/64"]"#);
    let two = veth("veth2", "veth1", "blue", r#","ip_addresses":["10.11.1.2/24"]"#);
    bench.put(&[("veth1", &one), ("veth2", &two)]);
}
