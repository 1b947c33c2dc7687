//! A kernel in memory for tests: it refuses what Linux refuses, with the same errno, and forgets what Linux forgets.
//!
//! A [`FakeWorld`] is shared: the agent under test talks to it through a [`FakeKernel`], and the test keeps a handle to act as someone else,
//! to plant faults, and to ask afterwards what was done. It owns no thread, socket or clock. It knows veth pairs, TAPs and opaque other links; it has no
//! routes, no traffic, and gives `lo` no addresses. The rules were measured on Linux 6.18.

mod addresses;
mod audit;
pub mod conformance;
mod faults;
mod links;
mod outsider;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;

pub use audit::{Baseline, LogEntry};
pub use faults::{CallCounts, FaultMode, OpKind, SingleFault};
pub use state::NetnsSettings;

use crate::linux::{Done, Kernel, KernelCounters, KernelError, KernelOp, LinkSink, NetnsReading};
use crate::model::{IfIndex, LinkId, NetnsId, ObservedLink};
use crate::namespace::{NetnsHandle, OpenNetns};
use state::{Refusal, State};

/// All namespaces and links of a fake host. Cloning gives another handle of the same world.
#[derive(Clone, Default)]
pub struct FakeWorld(Arc<Mutex<State>>);

/// The world as the agent sees it. What it has attached is its own; all else is shared.
pub struct FakeKernel {
    world: FakeWorld,
    attached: BTreeSet<NetnsId>,
}

/// A fake namespace has no file.
struct NoFile;

impl OpenNetns for NoFile {
    fn open(&self) -> io::Result<OwnedFd> {
        Err(io::Error::from_raw_os_error(Errno::ENOENT as i32))
    }
}

/// A refusal as the caller sees it.
fn error(refusal: Refusal, attempted: String) -> KernelError {
    KernelError { errno: refusal.0 as i32, text: refusal.1.to_owned(), attempted }
}

impl FakeWorld {
    /// A world without namespaces, with the reaper waiting for [`FakeWorld::reap`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Does something with the state, then tells the listener what happened, with nothing locked.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // A rule that panics is a failing test anyway; others may go on to report.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = act(&mut state);
        let events = std::mem::take(&mut state.events);
        let sink = state.sink.clone();
        drop(state);
        if let Some(sink) = sink {
            for event in events {
                sink.link_event(event);
            }
        }
        result
    }

    /// A kernel for the agent, with nothing attached.
    #[must_use]
    pub fn kernel(&self) -> FakeKernel {
        FakeKernel { world: self.clone(), attached: BTreeSet::new() }
    }

    /// Sets who is told of changes, the agent's own included, as by the kernel's monitor.
    pub fn set_sink(&self, sink: Arc<dyn LinkSink>) {
        self.with(|state| state.sink = Some(sink));
    }

    /// A handle of a namespace, dead or alive; it cannot be opened. `own` is false: set it for the agent's own.
    #[must_use]
    pub fn handle(&self, id: NetnsId) -> NetnsHandle {
        NetnsHandle { id, inode: 4_026_531_840_u64.wrapping_add(id.0.get()), own: false, opener: Arc::new(NoFile) }
    }

    /// All links of a namespace, `lo` first; none if it is dead.
    #[must_use]
    pub fn links(&self, netns: NetnsId) -> Vec<ObservedLink> {
        self.with(|state| state.observe_all(netns))
    }

    /// The link of this name (not alternative name).
    #[must_use]
    pub fn link(&self, netns: NetnsId, name: &str) -> Option<ObservedLink> {
        self.links(netns).into_iter().find(|link| *link.name == *name)
    }

    /// The identity of the link of this name.
    #[must_use]
    pub fn link_id(&self, netns: NetnsId, name: &str) -> Option<LinkId> {
        self.link(netns, name).map(|link| LinkId { netns, ifindex: link.ifindex })
    }
}

/// What was attempted, on what.
fn describe(op: &KernelOp) -> String {
    let at = |link: &LinkId| format!("link {} in namespace {}", link.ifindex, link.netns);
    match op {
        KernelOp::CreateVeth { a, b, .. } => format!("create veth {}@{} / {}@{}", a.name, a.netns, b.name, b.netns),
        KernelOp::CreateTap(new) => format!("create tap {}@{}", new.link.name, new.link.netns),
        KernelOp::SetLink { link, .. } => format!("set {}", at(link)),
        KernelOp::MoveLink { link, to, .. } => format!("move {} to {to}", at(link)),
        KernelOp::EnableIpv6 { link, name } => format!("enable IPv6 on `{name}`, {}", at(link)),
        KernelOp::AddAddress { link, address } => format!("add {} to {}", address.address, at(link)),
        KernelOp::RemoveAddress { link, address } => format!("remove {address} from {}", at(link)),
        KernelOp::DeleteLink { link, .. } => format!("delete {}", at(link)),
    }
}

impl State {
    /// The link that an operation is about.
    fn target(&self, op: &KernelOp) -> Option<state::Uid> {
        let id = match op {
            KernelOp::CreateVeth { .. } | KernelOp::CreateTap(_) => return None,
            KernelOp::EnableIpv6 { link, name } => {
                return self.netns.get(&link.netns)?.links.values().find(|l| l.observed.name == *name).map(|l| l.uid);
            }
            KernelOp::SetLink { link, .. }
            | KernelOp::MoveLink { link, .. }
            | KernelOp::AddAddress { link, .. }
            | KernelOp::RemoveAddress { link, .. }
            | KernelOp::DeleteLink { link, .. } => *link,
        };
        self.link(id).map(|link| link.uid)
    }

    /// Does what the kernel does.
    fn apply(&mut self, op: &KernelOp) -> Result<Done, Refusal> {
        match op {
            KernelOp::CreateVeth { a, b, group, a_up } => self.create_veth(a, b, *group, *a_up),
            KernelOp::CreateTap(new) => self.create_tap(new),
            KernelOp::SetLink { link, change } => self.set_link(*link, change),
            KernelOp::MoveLink { link, to, change, .. } => self.move_and_set(*link, *to, change),
            KernelOp::EnableIpv6 { link, name } => self.enable_ipv6(link.netns, name),
            KernelOp::AddAddress { link, address } => self.add_address(*link, address),
            KernelOp::RemoveAddress { link, address } => self.remove_address(*link, *address),
            KernelOp::DeleteLink { link, doomed_group, expected } => self.delete_link(*link, *doomed_group, expected),
        }
    }

    /// Counts, lets faults happen, does it, and writes it down.
    fn perform(&mut self, op: &KernelOp, attached: &BTreeSet<NetnsId>) -> Result<Done, KernelError> {
        self.counters.writes += 1;
        self.counters.sends += 1;
        let fault = self.faults.due(OpKind::of(op));
        let target = self.target(op);
        let mut reached = false;
        let done = match fault {
            Some(FaultMode::Refused(errno)) => Err(Refusal(errno, "")),
            _ if !is_attached(op, attached) => {
                self.misuses.push(format!("{}: not attached", describe(op)));
                Err(Refusal(Errno::EINVAL, "not attached"))
            }
            _ => {
                reached = true;
                self.apply(op)
            }
        };
        let done = match fault {
            Some(FaultMode::Unanswered(errno)) => Err(Refusal(errno, "")),
            _ => done,
        };
        let answer = done.map_err(|refusal| error(refusal, describe(op)));
        self.log.push(LogEntry { op: op.clone(), answer: answer.clone(), reached, target });
        answer
    }

    /// Reads a namespace, as far as faults let it.
    fn read(&mut self, netns: NetnsId) -> Result<NetnsReading, Refusal> {
        match self.faults.due(OpKind::ReadNetns) {
            Some(FaultMode::Refused(errno) | FaultMode::Unanswered(errno)) => return state::refuse(errno),
            Some(FaultMode::Incomplete) => return Ok(NetnsReading::default()),
            None => {}
        }
        self.living(netns)?;
        let mut reading = NetnsReading { links: self.observe_all(netns), complete: true };
        for hidden in self.hidden.iter_mut().filter(|hidden| hidden.netns == netns && hidden.times > 0) {
            hidden.times -= 1;
            reading.complete = false;
            reading.links.retain(|link| !hidden.links.contains(&link.ifindex));
        }
        Ok(reading)
    }
}

/// Whether every namespace that an operation needs is attached.
fn is_attached(op: &KernelOp, attached: &BTreeSet<NetnsId>) -> bool {
    match op {
        KernelOp::CreateVeth { a, b, .. } => attached.contains(&a.netns) && attached.contains(&b.netns),
        KernelOp::CreateTap(new) => attached.contains(&new.link.netns),
        KernelOp::MoveLink { link, to, .. } => attached.contains(&link.netns) && attached.contains(to),
        KernelOp::SetLink { link, .. }
        | KernelOp::EnableIpv6 { link, .. }
        | KernelOp::AddAddress { link, .. }
        | KernelOp::RemoveAddress { link, .. }
        | KernelOp::DeleteLink { link, .. } => attached.contains(&link.netns),
    }
}

impl FakeKernel {
    /// Where a peer is can be told of attached namespaces only.
    fn hide_strangers<'a>(&self, links: impl IntoIterator<Item = &'a mut ObservedLink>) {
        for peer in links.into_iter().filter_map(|link| link.peer.as_mut()) {
            peer.netns = peer.netns.filter(|netns| self.attached.contains(netns));
        }
    }

    /// Reads by `act`, counted, in a namespace that must be attached.
    fn reading<T>(&self, netns: NetnsId, what: &str, act: impl FnOnce(&mut State) -> Result<T, Refusal>) -> Result<T, KernelError> {
        let attempted = format!("read {what} namespace {netns}");
        self.world.with(|state| {
            state.counters.reads += 1;
            state.counters.sends += 1;
            if !self.attached.contains(&netns) {
                state.misuses.push(format!("{attempted}: not attached"));
                return Err(error(Refusal(Errno::EINVAL, "not attached"), attempted));
            }
            act(state).map_err(|refusal| error(refusal, attempted))
        })
    }
}

impl Kernel for FakeKernel {
    fn attach(&mut self, netns: &NetnsHandle) {
        self.attached.insert(netns.id);
    }

    fn detach(&mut self, netns: NetnsId) {
        self.attached.remove(&netns);
    }

    fn read_netns(&mut self, netns: NetnsId) -> Result<NetnsReading, KernelError> {
        self.world.let_others_act(OpKind::ReadNetns);
        let mut reading = self.reading(netns, "all of", |state| state.read(netns))?;
        self.hide_strangers(&mut reading.links);
        Ok(reading)
    }

    fn read_link(&mut self, link: LinkId) -> Result<Option<ObservedLink>, KernelError> {
        self.world.let_others_act(OpKind::ReadLink);
        let mut found = self.reading(link.netns, &format!("link {} of", link.ifindex), |state| {
            if let Some(fault) = state.faults.due(OpKind::ReadLink) {
                return state::refuse(fault.errno());
            }
            state.living(link.netns)?;
            state.watch(link);
            Ok(state.observe(link))
        })?;
        self.hide_strangers(&mut found);
        Ok(found)
    }

    fn read_settings(&mut self, netns: NetnsId, links: &[IfIndex]) -> Vec<Result<Option<ObservedLink>, KernelError>> {
        let bare = |link: ObservedLink| ObservedLink { addresses: Vec::new(), ..link };
        links.iter().map(|ifindex| Ok(self.read_link(LinkId { netns, ifindex: *ifindex })?.map(bare))).collect()
    }

    fn execute(&mut self, ops: &[KernelOp]) -> Vec<Result<Done, KernelError>> {
        let one = |op: &KernelOp| {
            self.world.let_others_act(OpKind::of(op));
            self.world.with(|state| state.perform(op, &self.attached))
        };
        ops.iter().map(one).collect()
    }

    fn rest(&mut self) {}

    fn counters(&self) -> KernelCounters {
        self.world.with(|state| state.counters)
    }
}
