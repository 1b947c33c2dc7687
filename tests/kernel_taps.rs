//! TAPs on the real kernel: complete and marked from the start, all or nothing, many at once; and the fake kernel's answers are the real one's.
//!
//! A child that is being started holds this process's descriptors for a moment, and a TAP's among them keeps the TAP open. So the tests run one
//! after another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;

use std::sync::{Mutex, PoisonError};

use kernel_support::*;
use nix::errno::Errno;
use vnf_agent::linux::fake::conformance::transcript;
use vnf_agent::linux::fake::{FakeWorld, NetnsSettings};
use vnf_agent::linux::{Done, Kernel, KernelOp, LinkChange, NewLink, NewTap};
use vnf_agent::model::{LinkId, LinkKind, TapMode, TapSpec, TunInfo};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const ALIAS: &str = "vnf-agent:test:tap:t";

fn plain() -> TapSpec {
    TapSpec { mode: TapMode::Tap, owner: None, group: None, multi_queue: false, vnet_hdr: false }
}

fn tap(netns: &TestNetns, text: &str, tap: TapSpec) -> KernelOp {
    KernelOp::CreateTap(NewTap { link: new_link(netns, text), tap, group: GROUP, alias: ALIAS.to_owned(), up: true })
}

fn make(bed: &mut Bed, netns: &TestNetns, text: &str, spec: TapSpec) -> LinkId {
    let done = bed.execute_one(tap(netns, text, spec)).unwrap();
    let Done::CreatedTap(ifindex) = done else { panic!("{done:?}") };
    LinkId { netns: netns.id, ifindex }
}

#[test]
fn a_tap_is_complete() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let red = bed.netns();
    let spec = TapSpec { owner: Some(1000), group: Some(u32::MAX - 1), multi_queue: true, vnet_hdr: true, ..plain() };
    let id = make(&mut bed, &red, "t0", spec);
    let link = bed.link(id).unwrap();
    let info = TunInfo {
        tap: true,
        owner: Some(1000),
        group: Some(u32::MAX - 1),
        multi_queue: true,
        vnet_hdr: true,
        persist: true,
        packet_info: false,
        open: false,
    };
    assert_eq!(link.kind, LinkKind::Tun(info));
    assert_eq!((&*link.name, link.group, link.alias.as_deref(), link.admin_up), ("t0", GROUP, Some(ALIAS), true));
    assert!(!bed.names(&red).contains(&"tap0".to_owned()));
    assert_eq!(bed.kernel.read_netns(bed.own.id).unwrap().links.len(), 1, "nothing in the agent's own namespace");

    let tun = make(&mut bed, &red, "u0", TapSpec { mode: TapMode::Tun, ..plain() });
    let link = bed.link(tun).unwrap();
    assert_eq!((link.kind, link.mac), (LinkKind::Tun(TunInfo { persist: true, ..TunInfo::default() }), None));
}

#[test]
fn what_is_refused_leaves_nothing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let red = bed.netns();
    red.ip("link add taken type bridge");
    red.ip("link property add dev taken altname alternative");
    red.ip("tuntap add dev tap mode tap");
    let before = bed.names(&red);
    for (name, link, mode, errno) in [
        ("a bridge has it", new_link(&red, "taken"), TapMode::Tap, Errno::EBUSY),
        ("an alternative name", new_link(&red, "alternative"), TapMode::Tap, Errno::EBUSY),
        ("someone's TAP has it", new_link(&red, "tap"), TapMode::Tap, Errno::EBUSY),
        ("MTU", NewLink { mtu: 65522, ..new_link(&red, "t0") }, TapMode::Tap, Errno::EINVAL),
        ("hardware address", NewLink { mac: Some(mac(1)), ..new_link(&red, "t0") }, TapMode::Tun, Errno::EOPNOTSUPP),
    ] {
        let op = KernelOp::CreateTap(NewTap { link, tap: TapSpec { mode, ..plain() }, group: GROUP, alias: ALIAS.to_owned(), up: true });
        let error = bed.execute_one(op).unwrap_err();
        assert!(error.is(errno), "{name}: {error}");
        assert_eq!(bed.names(&red), before, "{name}");
    }
}

#[test]
fn many_at_once_and_one_of_them_refused() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    red.ip("link add t7 type bridge");
    bed.kernel.read_netns(red.id).unwrap();
    bed.kernel.read_netns(blue.id).unwrap();
    let before = bed.kernel.counters();
    let ops: Vec<_> = (0..64).map(|n| tap(if n % 2 == 1 { &red } else { &blue }, &format!("t{n}"), plain())).collect();
    let answers = bed.kernel.execute(&ops);
    let refused: Vec<_> = answers.iter().enumerate().filter(|(_, answer)| answer.is_err()).map(|(n, _)| n).collect();
    assert_eq!(refused, [7]);
    let after = bed.kernel.counters();
    assert_eq!(after.writes - before.writes, 64 + 63, "a creation each, and a request for each that was made");
    assert_eq!(after.sends - before.sends, 2, "one for each namespace");
    assert_eq!((bed.names(&red).len(), bed.names(&blue).len()), (33, 33));
    for (n, answer) in answers.iter().enumerate().filter(|(n, _)| *n != 7) {
        let Ok(Done::CreatedTap(ifindex)) = answer else { panic!("{answer:?}") };
        let netns = if n % 2 == 1 { red.id } else { blue.id };
        let link = bed.link(LinkId { netns, ifindex: *ifindex }).unwrap();
        assert_eq!((link.name.to_string(), link.group), (format!("t{n}"), GROUP));
    }
}

#[test]
fn a_namespace_that_is_gone_says_so() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let red = bed.netns();
    let op = tap(&red, "t0", plain());
    bed.kernel.detach(red.id);
    assert!(bed.execute_one(op.clone()).unwrap_err().is(Errno::ENOENT));
    bed.kernel.attach(&red.handle());
    let path = red.path.clone();
    drop(red);
    bed.until("the thread inside has ended", |_| (!path.exists()).then_some(()));
    let error = bed.execute_one(op).unwrap_err();
    assert!([Errno::ENOENT, Errno::ESRCH, Errno::ESTALE].iter().any(|errno| error.is(*errno)), "{error}");
}

/// A TAP that someone holds open is moved with its packets; it loses its addresses, and where its index is taken gets another one.
#[test]
fn a_move_is_one_request() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (red, blue) = (bed.netns(), bed.netns());
    let id = make(&mut bed, &red, "tap7", plain());
    blue.ip(&format!("link add other index {} type bridge", id.ifindex));
    assert_eq!(bed.execute_one(add(id, "10.0.0.1/24")), Ok(Done::Ok));
    bed.kernel.read_netns(blue.id).unwrap();
    let before = bed.kernel.counters();
    let change = LinkChange { name: Some(name("eth1")), mac: Some(mac(9)), mtu: Some(1400), up: Some(true), ..LinkChange::default() };
    let op = KernelOp::MoveLink { link: id, to: blue.id, change, alias: Some(ALIAS.into()) };
    let done = bed.execute_one(op.clone()).unwrap();
    let after = bed.kernel.counters();
    assert_eq!((after.writes - before.writes, after.moves - before.moves), (1, 1));
    let Done::Moved(ifindex) = done else { panic!("{done:?}") };
    assert_ne!(ifindex, id.ifindex);
    let link = bed.link(LinkId { netns: blue.id, ifindex }).unwrap();
    assert_eq!((&*link.name, link.mac, link.mtu, link.admin_up), ("eth1", Some(mac(9)), 1400, true));
    assert_eq!((link.alias.as_deref(), link.group, link.addresses.iter().filter(|a| !a.kernel_made).count()), (Some(ALIAS), GROUP, 0));
    assert_eq!(bed.names(&red), ["lo"]);
    assert!(bed.execute_one(op).unwrap_err().is(Errno::ENODEV));
}

/// The fake kernel is worth something only as far as it answers as the real one does.
#[test]
fn the_fake_kernel_answers_as_this_one() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new();
    let (a, b) = (bed.netns(), bed.netns());
    for netns in [&a, &b] {
        // The script leaves alone what a kernel settles later; here it must not settle anything in between.
        netns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap());
    }
    let real = transcript(&mut bed.kernel, a.id, b.id).unwrap();
    let world = FakeWorld::new();
    let (a, b) = (world.add_netns(NetnsSettings::default()), world.add_netns(NetnsSettings::default()));
    let mut kernel = world.kernel();
    kernel.attach(&world.handle(a));
    kernel.attach(&world.handle(b));
    let fake = transcript(&mut kernel, a, b).unwrap();
    // Acknowledged and not done by the kernel; the fake one says so.
    let known = |line: &str| line.starts_with("add fd00::1/65 to a0");
    let differences: Vec<_> = real.lines().zip(fake.lines()).filter(|(real, fake)| real != fake && !known(real)).collect();
    assert!(differences.is_empty() && real.lines().count() == fake.lines().count(), "(real, fake): {differences:#?}");
}
