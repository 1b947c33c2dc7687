//! What can go wrong by order of a test: calls that are refused, answers that are lost, readings that are interrupted, and someone else who
//! acts just before a call. And the list of all single faults that a run can meet.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::FakeWorld;
use crate::linux::KernelOp;
use crate::model::{IfIndex, NetnsId};

/// Kinds of calls that are counted and can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OpKind {
    /// [`KernelOp::CreateVeth`].
    CreateVeth,
    /// [`KernelOp::CreateTap`].
    CreateTap,
    /// [`KernelOp::SetLink`].
    SetLink,
    /// [`KernelOp::MoveLink`].
    MoveLink,
    /// [`KernelOp::EnableIpv6`].
    EnableIpv6,
    /// [`KernelOp::AddAddress`].
    AddAddress,
    /// [`KernelOp::RemoveAddress`].
    RemoveAddress,
    /// [`KernelOp::DeleteLink`].
    DeleteLink,
    /// The reaper's deletion of one link, later.
    Reap,
    /// [`crate::linux::Kernel::read_netns`].
    ReadNetns,
    /// [`crate::linux::Kernel::read_link`].
    ReadLink,
}

impl OpKind {
    /// The kind of an operation.
    #[must_use]
    pub fn of(op: &KernelOp) -> Self {
        match op {
            KernelOp::CreateVeth { .. } => Self::CreateVeth,
            KernelOp::CreateTap(_) => Self::CreateTap,
            KernelOp::SetLink { .. } => Self::SetLink,
            KernelOp::MoveLink { .. } => Self::MoveLink,
            KernelOp::EnableIpv6 { .. } => Self::EnableIpv6,
            KernelOp::AddAddress { .. } => Self::AddAddress,
            KernelOp::RemoveAddress { .. } => Self::RemoveAddress,
            KernelOp::DeleteLink { .. } => Self::DeleteLink,
        }
    }

    /// Whether calls of this kind change something and are answered at once.
    #[must_use]
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Reap | Self::ReadNetns | Self::ReadLink)
    }
}

/// How a call goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultMode {
    /// Refused; nothing is done.
    Refused(Errno),
    /// Done, but reported as failed: the answer was lost.
    Unanswered(Errno),
    /// A reading that shows no links and says that it is not complete.
    Incomplete,
}

impl FaultMode {
    /// The errno that the caller sees where he sees one.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::Refused(errno) | Self::Unanswered(errno) => errno,
            Self::Incomplete => Errno::EINTR,
        }
    }
}

/// One fault: the n-th call of a kind, counted from the moment of [`FakeWorld::inject`], 1 being the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SingleFault {
    /// Which kind of call.
    pub kind: OpKind,
    /// Which one of them.
    pub n: u64,
    /// How it goes wrong.
    pub mode: FaultMode,
}

/// Numbers of calls per kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallCounts(BTreeMap<OpKind, u64>);

impl CallCounts {
    /// The number of calls of a kind.
    #[must_use]
    pub fn of(&self, kind: OpKind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// The number of calls that change something.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.0.iter().filter(|(kind, _)| kind.is_write()).map(|(_, n)| n).sum()
    }

    /// What was called after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(self.0.iter().map(|(kind, n)| (*kind, n - earlier.of(*kind))).filter(|(_, n)| *n > 0).collect())
    }

    /// Every single fault that a run with these calls can meet: each call refused with each errno, each write done but unanswered (ETIMEDOUT),
    /// each namespace reading incomplete.
    #[must_use]
    pub fn single_faults(&self, errnos: &[Errno]) -> Vec<SingleFault> {
        let mut faults = Vec::new();
        for (kind, calls) in &self.0 {
            let mut modes: Vec<_> = errnos.iter().copied().map(FaultMode::Refused).collect();
            if kind.is_write() {
                modes.push(FaultMode::Unanswered(Errno::ETIMEDOUT));
            }
            if *kind == OpKind::ReadNetns {
                modes.push(FaultMode::Incomplete);
            }
            for n in 1..=*calls {
                faults.extend(modes.iter().map(|mode| SingleFault { kind: *kind, n, mode: *mode }));
            }
        }
        faults
    }
}

/// Links that the next readings of a namespace leave out.
pub(super) struct Hidden {
    pub(super) netns: NetnsId,
    pub(super) links: Vec<IfIndex>,
    pub(super) times: usize,
}

/// Something that happens just before a call.
pub(super) type Meanwhile = Box<dyn FnOnce(&FakeWorld) + Send>;

/// Counted calls and the faults that wait for them.
#[derive(Default)]
pub(super) struct Faults {
    calls: CallCounts,
    once: Vec<SingleFault>,
    always: BTreeMap<OpKind, Errno>,
    meanwhile: Vec<(OpKind, u64, Meanwhile)>,
}

impl Faults {
    /// Counts a call and tells how it goes wrong, if it does.
    pub(super) fn due(&mut self, kind: OpKind) -> Option<FaultMode> {
        let calls = self.calls.0.entry(kind).or_default();
        *calls += 1;
        let now = *calls;
        let at = self.once.iter().position(|fault| fault.kind == kind && fault.n == now);
        let once = at.map(|at| self.once.remove(at).mode);
        once.or_else(|| self.always.get(&kind).copied().map(FaultMode::Refused))
    }

    fn absolute(&self, kind: OpKind, n: u64) -> u64 {
        self.calls.of(kind) + n
    }

    /// What is to happen before the next call of this kind.
    fn take_meanwhile(&mut self, kind: OpKind) -> Vec<Meanwhile> {
        let next = self.absolute(kind, 1);
        self.meanwhile.extract_if(.., |(k, n, _)| *k == kind && *n == next).map(|(_, _, act)| act).collect()
    }
}

/// Faults by order.
impl FakeWorld {
    /// Plants a fault.
    pub fn inject(&self, fault: SingleFault) {
        self.with(|state| {
            let n = state.faults.absolute(fault.kind, fault.n);
            state.faults.once.push(SingleFault { n, ..fault });
        });
    }

    /// The n-th call of this kind from now on (1 is the next) is refused.
    pub fn fail_nth(&self, kind: OpKind, n: u64, errno: Errno) {
        self.inject(SingleFault { kind, n, mode: FaultMode::Refused(errno) });
    }

    /// The n-th call of this kind from now on is done, but its caller hears of a failure.
    pub fn apply_but_report_failure(&self, kind: OpKind, n: u64, errno: Errno) {
        self.inject(SingleFault { kind, n, mode: FaultMode::Unanswered(errno) });
    }

    /// Every call of this kind is refused, until [`FakeWorld::heal`].
    pub fn fail_always(&self, kind: OpKind, errno: Errno) {
        self.with(|state| state.faults.always.insert(kind, errno));
    }

    /// Takes all faults back that have not happened yet.
    pub fn heal(&self) {
        self.with(|state| {
            state.faults.once.clear();
            state.faults.always.clear();
            state.hidden.clear();
        });
    }

    /// The next `times` readings of a namespace are incomplete: these links are missing in them.
    pub fn interrupt_readings(&self, netns: NetnsId, links: &[IfIndex], times: usize) {
        self.with(|state| state.hidden.push(Hidden { netns, links: links.to_vec(), times }));
    }

    /// Lets someone else act right before the n-th call of this kind from now on; a fault of that call comes after it.
    pub fn before_nth(&self, kind: OpKind, n: u64, act: impl FnOnce(&Self) + Send + 'static) {
        self.with(|state| {
            let n = state.faults.absolute(kind, n);
            state.faults.meanwhile.push((kind, n, Box::new(act)));
        });
    }

    /// How often what was called so far, the refused calls included.
    #[must_use]
    pub fn calls(&self) -> CallCounts {
        self.with(|state| state.faults.calls.clone())
    }

    /// Runs what was ordered for the moment before the next call of this kind.
    pub(super) fn let_others_act(&self, kind: OpKind) {
        for act in self.with(|state| state.faults.take_meanwhile(kind)) {
            act(self);
        }
    }
}
