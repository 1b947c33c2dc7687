//! What the kernel tells of namespaces that we only watch from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;

use std::sync::Arc;

use kernel_support::*;
use vnf_agent::linux::{Kernel, LinkEvent, LinuxKernel};
use vnf_agent::model::{IfIndex, LinkId, NetnsId, ObservedLink};
use vnf_agent::namespace::NetnsHandle;

fn is_link(event: &LinkEvent, id: NetnsId, wanted: impl Fn(&ObservedLink) -> bool) -> bool {
    matches!(event, LinkEvent::Link(netns, link) if *netns == id && wanted(link))
}

#[test]
fn changes_are_told_with_their_namespace() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    for netns in [&red, &blue] {
        bed.kernel.read_netns(netns.id).unwrap();
    }
    red.ip("link add same type bridge");
    blue.ip("link add same type bridge");
    bed.own.ip("link add same type bridge");
    for netns in [red.id, blue.id, bed.own.id] {
        bed.record.wait_for("the new link", |e| is_link(e, netns, |l| &*l.name == "same"));
    }
    // A new alias or group alone is told only of links that are up.
    red.ip("link set same alias words");
    red.ip("link set same mtu 1300");
    bed.record.wait_for("the new mtu", |e| is_link(e, red.id, |l| l.mtu == 1300 && l.alias.as_deref() == Some("words")));
    blue.ip("link set same up");
    bed.record.wait_for("up", |e| is_link(e, blue.id, |l| &*l.name == "same" && l.admin_up));
    red.ip("address add 10.0.0.1/24 dev same");
    red.ip("address add fd00::1/64 dev same nodad");
    let ipv4 =
        bed.record.wait_for("IPv4", |e| matches!(e, LinkEvent::Address(l, a) if l.netns == red.id && a.address == address("10.0.0.1/24")));
    let LinkEvent::Address(same, _) = ipv4 else { unreachable!() };
    bed.record.wait_for("IPv6", |e| matches!(e, LinkEvent::Address(l, a) if *l == same && a.address == address("fd00::1/64")));
    red.ip("address del 10.0.0.1/24 dev same");
    bed.record.wait_for("IPv4 gone", |e| *e == LinkEvent::AddressGone(same, address("10.0.0.1/24")));
    red.ip("link del same");
    bed.record.wait_for("the link gone", |e| *e == LinkEvent::LinkGone(same));
    assert!(!bed.record.has(|e| matches!(e, LinkEvent::Lost(_) | LinkEvent::NetnsGone(_))));
    assert_eq!(bed.kernel.counters().writes, 0);
}

#[test]
fn a_namespace_that_nobody_asked_for_is_not_told_of() {
    let mut bed = Bed::new();
    let (red, stranger) = (bed.netns(), TestNetns::new());
    bed.kernel.read_netns(red.id).unwrap();
    // A pair between them gives the stranger an id in `red`, one to the agent's own namespace gives it one there.
    let (red_path, own_path) = (red.path.clone(), bed.own.path.clone());
    stranger.run(move || {
        for path in [red_path, own_path] {
            let pid = path.display().to_string();
            let tid = pid.split('/').nth(4).unwrap().to_owned();
            let made = std::process::Command::new("ip").args(["link", "add", "type", "veth", "peer", "netns", &tid]).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
    });
    stranger.ip("link add marker type bridge");
    red.ip("link add last type bridge");
    bed.record.wait_for("the last link", |e| is_link(e, red.id, |l| &*l.name == "last"));
    assert!(!bed.record.has(|e| matches!(e, LinkEvent::Link(_, l) if &*l.name == "marker")));
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_a_link_that_is_gone() {
    let mut bed = Bed::new();
    let red = bed.netns();
    let (a, _) = bed.pair((&red, "x"), (&red, "y"));
    red.ip("link add bridge0 type bridge");
    red.ip("link set x master bridge0");
    red.ip("link set x nomaster");
    red.ip("link set x alias done");
    bed.record.wait_for("the alias", |e| is_link(e, red.id, |l| l.alias.as_deref() == Some("done")));
    assert!(!bed.record.has(|e| *e == LinkEvent::LinkGone(a)));
}

#[test]
fn the_end_of_a_namespace_is_told_when_nothing_holds_it() {
    let mut bed = Bed::new();
    let (ends, stays) = (bed.netns(), bed.netns());
    for netns in [&ends, &stays] {
        bed.kernel.read_netns(netns.id).unwrap();
    }
    let id = ends.id;
    drop(ends);
    let record = bed.record.clone();
    // The idle socket is the last thing that holds it.
    bed.until("the end", |kernel| {
        kernel.rest();
        record.has(|e| *e == LinkEvent::NetnsGone(id)).then_some(())
    });
    // Its number is the next one's, and that one lives.
    let next = bed.netns();
    bed.kernel.read_netns(next.id).unwrap();
    next.ip("link set lo mtu 1234");
    bed.record.wait_for("the mtu", |e| is_link(e, next.id, |l| l.mtu == 1234));
    assert!(!bed.record.has(|e| matches!(e, LinkEvent::NetnsGone(gone) if *gone != id)));
}

#[test]
fn numbers_that_are_used_again_at_once_never_mix_namespaces_up() {
    let mut bed = Bed::new();
    for round in 0..200 {
        let (first, second) = (bed.netns(), bed.netns());
        bed.kernel.read_netns(first.id).unwrap();
        bed.kernel.detach(first.id);
        drop(first);
        bed.kernel.read_netns(second.id).unwrap();
        let mtu = 1000 + round;
        second.ip(&format!("link set lo mtu {mtu}"));
        bed.record.wait_for("the mtu", |e| is_link(e, second.id, |l| l.mtu == mtu));
        assert!(!bed.record.has(|e| matches!(e, LinkEvent::Link(netns, l) if *netns != second.id && l.mtu == mtu)));
        assert!(!bed.record.has(|e| matches!(e, LinkEvent::NetnsGone(_))));
        bed.kernel.detach(second.id);
        bed.record.clear();
    }
}

#[test]
fn lost_changes_are_admitted() {
    let own = TestNetns::new();
    let red = TestNetns::new();
    let record = Arc::new(Stuck::default());
    let mut kernel = LinuxKernel::new(NetnsHandle { own: true, ..own.handle() }, record.clone()).unwrap();
    kernel.attach(&red.handle());
    let (a, b) = ends(&red, &red, kernel.execute(&[create((&red, "x"), (&red, "y"))]).swap_remove(0).unwrap());
    let toggles: Vec<_> = (0..2000u32)
        .map(|i| set(if i % 2 == 0 { a } else { b }, vnf_agent::linux::LinkChange { mtu: Some(1000 + i % 400), ..Default::default() }))
        .collect();
    // The sink does not return, so nothing is read; 8 MiB hold some 1,800 changes.
    for _ in 0..5 {
        assert!(kernel.execute(&toggles).iter().all(Result::is_ok));
    }
    record.release();
    record.record.wait_for("the loss", |e| *e == LinkEvent::Lost(None));
    // What comes while the backlog is read is lost as well, and silently: so the loss is told again when all was read.
    record.record.wait_for_sequence("the end of the backlog", |events| events.iter().filter(|e| **e == LinkEvent::Lost(None)).count() >= 2);
    red.ip("link set x alias still");
    record.record.wait_for("later changes", |e| is_link(e, red.id, |l| l.alias.as_deref() == Some("still")));
}

/// A sink that is stuck until it is released.
#[derive(Default)]
struct Stuck {
    record: Record,
    released: std::sync::Mutex<bool>,
    wake: std::sync::Condvar,
}

impl Stuck {
    fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.wake.notify_all();
    }
}

impl vnf_agent::linux::LinkSink for Stuck {
    fn link_event(&self, event: LinkEvent) {
        let released = self.released.lock().unwrap();
        drop(self.wake.wait_while(released, |released| !*released).unwrap());
        self.record.link_event(event);
    }
}

#[test]
fn a_pair_seen_from_outside() {
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let (a, b) = bed.pair((&red, "x"), (&blue, "x"));
    bed.record.wait_for("a", |e| is_link(e, red.id, |l| l.ifindex == a.ifindex && l.group == GROUP && l.admin_up));
    bed.record.wait_for("b", |e| is_link(e, blue.id, |l| l.ifindex == b.ifindex && l.group == GROUP));
    let lo = LinkId { netns: red.id, ifindex: IfIndex::new(1).unwrap() };
    assert_eq!(&*bed.link(lo).unwrap().name, "lo");
}

#[test]
fn a_missing_capability_is_named() {
    const INNER: &str = "KERNEL_MONITOR_WITHOUT_BROADCAST";
    if std::env::var_os(INNER).is_some() {
        let own = TestNetns::new();
        let error = LinuxKernel::new(NetnsHandle { own: true, ..own.handle() }, Arc::new(Record::default())).err().unwrap();
        assert!(error.is(nix::errno::Errno::EPERM), "{error}");
        assert!(error.to_string().contains("CAP_NET_BROADCAST"), "{error}");
        return;
    }
    // Once more in a process that may never have it.
    let inner = std::process::Command::new("setpriv")
        .args(["--bounding-set", "-net_broadcast", "--inh-caps", "-net_broadcast"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_missing_capability_is_named"])
        .env(INNER, "1")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&inner.stdout);
    assert!(inner.status.success() && told.contains("1 passed"), "{inner:?}");
}
