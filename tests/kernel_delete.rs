//! Deletion on the real kernel: what carries our mark goes, nothing else ever does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use kernel_support::*;
use nix::errno::Errno;
use vnf_agent::linux::{Done, ExpectedMark, Kernel, KernelOp, LinkChange, LinkEvent};
use vnf_agent::model::LinkId;
use vnf_agent::namespace::{NetnsHandle, OpenNetns};

fn delete(link: LinkId) -> KernelOp {
    KernelOp::DeleteLink { link, doomed_group: DOOMED, expected: ExpectedMark { group: GROUP, alias: None } }
}

#[test]
fn both_ends_go_and_the_end_is_told() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (a, b) = bed.pair((&red, "x"), (&blue, "x"));
    assert!(bed.link(b).is_some());
    assert_eq!(bed.execute_one(delete(a)), Ok(Done::Ok));
    bed.record.wait_for("the end of a", |e| *e == LinkEvent::LinkGone(a));
    bed.record.wait_for("the end of b", |e| *e == LinkEvent::LinkGone(b));
    assert_eq!((bed.link(a), bed.link(b)), (None, None));
    assert_eq!(bed.execute_one(delete(a)), Ok(Done::AlreadySo));
    // The name is free.
    bed.pair((&red, "x"), (&blue, "x"));
}

#[test]
fn deletion_keeps_nobody_waiting() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let pairs: Vec<_> = (0..20).map(|i| bed.pair((&red, &format!("a{i}")), (&red, &format!("b{i}")))).collect();
    let before = bed.kernel.counters().writes;
    let ops: Vec<_> = pairs.iter().map(|(a, _)| delete(*a)).collect();
    assert!(bed.kernel.execute(&ops).iter().all(|answer| *answer == Ok(Done::Ok)));
    bed.until("an empty namespace", |kernel| (kernel.read_netns(red.id).unwrap().links.len() == 1).then_some(()));
    // Each is marked, and few requests delete them all; one by one it would be 40 and more.
    bed.until("all answers", |kernel| (kernel.counters().writes - before >= 21).then_some(()));
    assert!(bed.kernel.counters().writes - before < 30, "{}", bed.kernel.counters().writes - before);
}

#[test]
fn many_go_in_portions() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let ops: Vec<_> = (0..150).map(|i| create((&red, &format!("x{i}")), (&blue, &format!("y{i}")))).collect();
    let links: Vec<_> = bed.kernel.execute(&ops).into_iter().map(|d| ends(&red, &blue, d.unwrap()).0).collect();
    let stays = bed.pair((&red, "stays"), (&blue, "stays")).0;
    let ops: Vec<_> = links.iter().map(|link| delete(*link)).collect();
    assert!(bed.kernel.execute(&ops).iter().all(|answer| *answer == Ok(Done::Ok)));
    let doomed = |links: &[vnf_agent::model::ObservedLink]| links.iter().filter(|l| l.group == DOOMED).count();
    assert!(doomed(&bed.kernel.read_netns(red.id).unwrap().links) <= 32);
    // Asking again changes nothing.
    assert!(bed.kernel.execute(&ops).iter().all(|answer| matches!(answer, Ok(Done::Ok | Done::AlreadySo))));
    bed.until("all deleted", |kernel| (kernel.read_netns(red.id).unwrap().links.len() == 2).then_some(()));
    assert_eq!(&*bed.link(stays).unwrap().name, "stays");
    assert!(!bed.record.has(|e| matches!(e, LinkEvent::ReapFailed(..))));
}

#[test]
fn strangers_are_never_touched() {
    let mut bed = Bed::new();
    let red = bed.netns();
    red.ip("link add foreign type bridge");
    red.ip("link add group9 type bridge");
    red.ip("link set group9 group 9");
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    let other = bed.pair((&red, "other"), (&red, "other2")).0;
    let all = bed.kernel.read_netns(red.id).unwrap().links;
    let find = |name: &str| LinkId { netns: red.id, ifindex: all.iter().find(|l| &*l.name == name).unwrap().ifindex };
    for name in ["foreign", "group9", "lo"] {
        let error = bed.execute_one(delete(find(name))).unwrap_err();
        assert!(error.is(Errno::ESTALE), "{name}: {error}");
    }
    // Group 0 proves nothing, whoever expects it.
    let op = KernelOp::DeleteLink { link: find("foreign"), doomed_group: DOOMED, expected: ExpectedMark { group: 0, alias: None } };
    assert!(bed.execute_one(op).unwrap_err().is(Errno::ESTALE));
    assert_eq!(bed.execute_one(delete(a)), Ok(Done::Ok));
    bed.record.wait_for("the end of x", |e| *e == LinkEvent::LinkGone(a));
    let names = bed.names(&red);
    for name in ["lo", "foreign", "group9", "other", "other2"] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
    assert_eq!(bed.link(other).unwrap().group, GROUP);
    assert_eq!(names.len(), 5, "{names:?}");
}

#[test]
fn the_alias_is_proof_enough() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    let change = LinkChange { group: Some(0), alias: Some("vnf-agent:vpp1:veth:x".into()), ..LinkChange::default() };
    assert_eq!(bed.execute_one(set(a, change)), Ok(Done::Ok));
    assert!(bed.execute_one(delete(a)).unwrap_err().is(Errno::ESTALE));
    let expected = ExpectedMark { group: GROUP, alias: Some("vnf-agent:vpp1:veth:x".into()) };
    assert_eq!(bed.execute_one(KernelOp::DeleteLink { link: a, doomed_group: DOOMED, expected }), Ok(Done::Ok));
    bed.record.wait_for("the end of x", |e| *e == LinkEvent::LinkGone(a));
}

#[test]
fn a_link_that_cannot_be_deleted_does_not_protect_the_others() {
    let mut bed = Bed::new();
    let red = bed.netns();
    // Anyone who may set groups in the namespace can do this; `lo` cannot be deleted, and makes the kernel refuse its whole group.
    red.ip(&format!("link set lo group {DOOMED}"));
    let (a, b) = bed.pair((&red, "x"), (&red, "y"));
    assert_eq!(bed.execute_one(delete(a)), Ok(Done::Ok));
    bed.record.wait_for("the end of x", |e| *e == LinkEvent::LinkGone(a));
    bed.record.wait_for("the end of y", |e| *e == LinkEvent::LinkGone(b));
    assert_eq!(bed.names(&red), ["lo"]);
}

#[test]
fn what_was_handed_over_is_finished_at_the_end() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let ops: Vec<_> = (0..50).map(|i| create((&red, &format!("x{i}")), (&red, &format!("y{i}")))).collect();
    let links: Vec<_> = bed.kernel.execute(&ops).into_iter().map(|d| ends(&red, &red, d.unwrap()).0).collect();
    let ops: Vec<_> = links.iter().map(|link| delete(*link)).collect();
    assert!(bed.kernel.execute(&ops).iter().all(Result::is_ok));
    drop(bed);
    assert_eq!(red.show("-oneline link show type veth"), "");
}

/// A way into a namespace that lets only some through: the others wait for the gate, or are refused.
struct Gate {
    way: Arc<dyn OpenNetns>,
    free: usize,
    used: AtomicUsize,
    open: Mutex<Option<bool>>,
    wake: Condvar,
}

impl Gate {
    fn before(netns: &TestNetns, free: usize) -> Arc<Self> {
        let way = netns.handle().opener;
        Arc::new(Self { way, free, used: AtomicUsize::new(0), open: Mutex::new(None), wake: Condvar::new() })
    }

    fn decide(&self, open: bool) {
        *self.open.lock().unwrap() = Some(open);
        self.wake.notify_all();
    }
}

impl OpenNetns for Gate {
    fn open(&self) -> io::Result<OwnedFd> {
        if self.used.fetch_add(1, Ordering::SeqCst) >= self.free {
            let open = self.wake.wait_while(self.open.lock().unwrap(), |open| open.is_none()).unwrap();
            if *open == Some(false) {
                return Err(nix::errno::Errno::ENOENT.into());
            }
        }
        self.way.open()
    }
}

/// Fifty marked links in a namespace that only the executor has entered so far; their deletion is handed over, the reaper waits at the gate.
fn handed_over(bed: &mut Bed) -> (TestNetns, Arc<Gate>, Vec<LinkId>) {
    let red = TestNetns::new();
    let gate = Gate::before(&red, 1);
    bed.kernel.attach(&NetnsHandle { opener: gate.clone(), ..red.handle() });
    let ops: Vec<_> = (0..50).map(|i| create((&red, &format!("x{i}")), (&red, &format!("y{i}")))).collect();
    let links: Vec<_> = bed.kernel.execute(&ops).into_iter().map(|d| ends(&red, &red, d.unwrap()).0).collect();
    let deletions: Vec<_> = links.iter().map(|link| delete(*link)).collect();
    assert!(bed.kernel.execute(&deletions).iter().all(|answer| *answer == Ok(Done::Ok)));
    (red, gate, links)
}

#[test]
fn what_waited_is_looked_at_again() {
    let mut bed = Bed::new();
    let (red, gate, links) = handed_over(&mut bed);
    // The last one is given away before it is its turn.
    let last = links[49];
    let change = LinkChange { group: Some(0), ..LinkChange::default() };
    assert_eq!(bed.execute_one(set(last, change)), Ok(Done::Ok));
    gate.decide(true);
    let refused = bed.record.wait_for("the refusal", |e| matches!(e, LinkEvent::ReapFailed(..)));
    assert!(matches!(&refused, LinkEvent::ReapFailed(link, error) if *link == last && error.is(Errno::ESTALE)), "{refused:?}");
    let left = bed.until("the others gone", |kernel| {
        let links = kernel.read_netns(red.id).unwrap().links;
        (links.len() == 3).then_some(links)
    });
    assert!(left.iter().any(|l| l.ifindex == last.ifindex && l.group == 0));
}

#[test]
fn a_namespace_that_cannot_be_entered_any_more_is_told() {
    let mut bed = Bed::new();
    let (red, gate, links) = handed_over(&mut bed);
    gate.decide(false);
    for link in links {
        let failed = bed.record.wait_for("the failure", |e| matches!(e, LinkEvent::ReapFailed(l, _) if *l == link));
        assert!(matches!(failed, LinkEvent::ReapFailed(_, error) if error.is(Errno::ENOENT)));
    }
    assert_eq!(bed.kernel.read_netns(red.id).unwrap().links.len(), 101);
}

#[test]
fn what_waits_in_a_forgotten_namespace_is_dropped() {
    let mut bed = Bed::new();
    let (red, gate, _) = handed_over(&mut bed);
    bed.kernel.detach(red.id);
    gate.decide(true);
    drop(bed);
    // What a thread had begun with is finished, what waited is not begun.
    let left = red.show("-oneline link show type veth").lines().count();
    assert!((36..=100).contains(&left), "{left}");
}
