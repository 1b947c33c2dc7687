//! In which order operations run: as given within one namespace, batched across namespaces.
//!
//! The creation of a pair is sent in its first end's namespace, yet needs a name in the other one. So it waits for what comes before it in
//! both, and what comes after it in either waits for it. Creations among each other may change places: they touch only links of
//! their own, and of two that want one name either may win. Moves come last: each holds up everybody for some 20 ms.

use std::collections::{BTreeMap, HashMap};

use crate::linux::KernelOp;
use crate::model::NetnsId;

/// Places of operations, per namespace in whose socket they are sent, in their given order.
pub(super) type Wave = BTreeMap<NetnsId, Vec<usize>>;

/// What of a namespace is placed already: each the first wave in which an operation of that sort may run. Operations that are sent in one
/// namespace in one wave keep their order.
#[derive(Default, Clone, Copy)]
struct Reached {
    /// The creation of a pair whose first end is here.
    first_end: usize,
    /// The creation of a pair whose second end is here.
    second_end: usize,
    /// Anything else.
    other: usize,
}

/// Sorts operations into waves: the namespaces of one wave may be served in any order.
pub(super) fn waves(ops: &[KernelOp]) -> Vec<Wave> {
    let mut reached: HashMap<NetnsId, Reached> = HashMap::new();
    let mut waves: Vec<Wave> = Vec::new();
    let (moves, others): (Vec<usize>, Vec<usize>) = (0..ops.len()).partition(|place| matches!(ops[*place], KernelOp::MoveLink { .. }));
    for place in others {
        let op = &ops[place];
        let sender = sender(op);
        let at = if let KernelOp::CreateVeth { a, b, .. } = op {
            let at = reached.entry(a.netns).or_default().first_end;
            let at = if a.netns == b.netns { at } else { at.max(reached.entry(b.netns).or_default().second_end) };
            reached.entry(a.netns).and_modify(|r| r.other = r.other.max(at));
            if a.netns != b.netns {
                reached.entry(b.netns).and_modify(|r| r.other = r.other.max(at + 1));
            }
            at
        } else {
            let here = reached.entry(sender).or_default();
            let at = here.other;
            *here = Reached { first_end: at, second_end: at + 1, other: at };
            at
        };
        if waves.len() <= at {
            waves.resize_with(at + 1, Wave::new);
        }
        waves[at].entry(sender).or_default().push(place);
    }
    waves.extend(moves.into_iter().map(|place| Wave::from([(sender(&ops[place]), vec![place])])));
    waves
}

/// The namespace in whose socket an operation is sent.
pub(super) fn sender(op: &KernelOp) -> NetnsId {
    match op {
        KernelOp::CreateVeth { a, .. } => a.netns,
        KernelOp::CreateTap(new) => new.link.netns,
        KernelOp::SetLink { link, .. }
        | KernelOp::MoveLink { link, .. }
        | KernelOp::EnableIpv6 { link, .. }
        | KernelOp::AddAddress { link, .. }
        | KernelOp::RemoveAddress { link, .. }
        | KernelOp::DeleteLink { link, .. } => link.netns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{LinkChange, NewLink};
    use crate::model::{HostIfName, IfIndex, LinkId};

    fn netns(n: u64) -> NetnsId {
        NetnsId::new(n).unwrap()
    }

    fn create(a: u64, b: u64) -> KernelOp {
        let end = |n| NewLink { netns: netns(n), name: HostIfName::new("x").unwrap(), mac: None, mtu: 1500 };
        KernelOp::CreateVeth { a: end(a), b: end(b), group: 1, a_up: true }
    }

    fn set(n: u64) -> KernelOp {
        KernelOp::SetLink { link: LinkId { netns: netns(n), ifindex: IfIndex::new(5).unwrap() }, change: LinkChange::default() }
    }

    fn wave_of(waves: &[Wave], place: usize) -> usize {
        waves.iter().position(|wave| wave.values().flatten().any(|p| *p == place)).unwrap()
    }

    #[test]
    fn creations_share_a_wave_however_they_are_chained() {
        let ops: Vec<_> = (1..50).map(|n| create(n, n % 7 + 50)).chain((1..50).map(|n| create(n, n + 1))).collect();
        assert_eq!(waves(&ops).len(), 1);
    }

    #[test]
    fn what_touches_the_second_end_keeps_its_side() {
        // A rename in 2 frees the name that the pair needs there; the next change in 2 is meant for after it.
        let ops = [set(2), create(1, 2), set(2), create(2, 1), set(1)];
        let waves = waves(&ops);
        let at: Vec<usize> = (0..ops.len()).map(|place| wave_of(&waves, place)).collect();
        assert!(at[0] < at[1] && at[1] < at[2], "{at:?}");
        assert!(at[2] <= at[3] && at[3] <= at[4], "{at:?}");
    }

    #[test]
    fn every_operation_runs_once_and_in_order_within_its_namespace() {
        let ops: Vec<_> = (0..60).map(|n| if n % 3 == 0 { create(n % 4 + 1, n % 5 + 1) } else { set(n % 4 + 1) }).collect();
        let waves = waves(&ops);
        let mut seen: HashMap<NetnsId, Vec<usize>> = HashMap::new();
        for wave in &waves {
            for (netns, places) in wave {
                seen.entry(*netns).or_default().extend(places);
            }
        }
        assert_eq!(seen.values().map(Vec::len).sum::<usize>(), ops.len());
        for (netns, places) in seen {
            let others: Vec<_> = places.iter().filter(|p| matches!(ops[**p], KernelOp::SetLink { .. })).collect();
            assert!(others.is_sorted(), "{netns}: {places:?}");
        }
    }
}
