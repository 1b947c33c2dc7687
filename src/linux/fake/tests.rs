//! Each rule of the fake kernel, as measured on Linux 6.18.

use std::sync::{Arc, Mutex};

use nix::errno::Errno;

use super::*;
use crate::linux::{ExpectedMark, LinkChange, LinkEvent, NewAddress, NewLink, RestoredAddress};
use crate::model::{AgentLabel, HostIfName, IfIndex, InterfaceAddress, InterfaceName, LinkKind, MacAddr, MarkKind, OperState, Owner};

mod helpers;
mod rules;

use helpers::*;

#[test]
fn indexes_are_cyclic_and_the_peer_comes_first() {
    let w = World::new();
    assert_eq!(w.create(("a0", w.a), ("b0", w.a)), Ok((3, 2)));
    assert_eq!(w.create(("a1", w.a), ("b1", w.b)), Ok((4, 2)));
    w.world.delete_link(w.id(w.a, "a0")).unwrap();
    assert_eq!(w.create(("a2", w.a), ("b2", w.b)), Ok((5, 3)), "freed indexes are not given out at once");
    w.world.set_last_index(w.b, i32::MAX.unsigned_abs());
    assert_eq!(w.create(("a3", w.a), ("b3", w.b)), Ok((6, 4)), "after the last index the first free one");
}

#[test]
fn peers_are_linked_both_ways() {
    let w = World::new();
    w.create(("same1", w.a), ("same2", w.a)).unwrap();
    w.create(("far1", w.a), ("far2", w.b)).unwrap();
    let peer = |netns, name: &str| w.link(netns, name).peer.map(|p| (p.ifindex.get(), p.nsid));
    assert_eq!(peer(w.a, "same1"), Some((2, None)));
    assert_eq!(peer(w.a, "same2"), Some((3, None)));
    assert_eq!(peer(w.a, "far1"), Some((2, Some(0))));
    assert_eq!(peer(w.b, "far2"), Some((4, Some(0))));
}

#[test]
fn a_new_pair_carries_the_group_and_what_was_asked() {
    let w = World::new();
    let mac = MacAddr::parse("02:00:00:00:00:01").unwrap();
    let a = NewLink { mac: Some(mac), mtu: 9000, ..end("a0", w.a) };
    let answer = w.run(&KernelOp::CreateVeth { a, b: end("b0", w.b), group: 77, a_up: true });
    assert!(matches!(answer, Ok(Done::Created { .. })));
    let (a, b) = (w.link(w.a, "a0"), w.link(w.b, "b0"));
    assert_eq!((a.mac, a.mtu, a.group, a.alias.clone(), a.admin_up), (Some(mac), 9000, 77, None, true));
    assert_eq!((b.mtu, b.group, b.alias.clone(), b.admin_up), (1500, 77, None, false));
    assert!(b.mac.is_some_and(|m| m.octets()[0] & 2 == 2 && m != mac), "a locally administered address was generated");
    assert_eq!(a.addresses, [], "no link-local without carrier");
}

#[test]
fn oper_state_of_a_pair() {
    for (name, far, waiting) in [("same", false, OperState::LowerLayerDown), ("far", true, OperState::Down)] {
        let w = World::new();
        let b = if far { w.b } else { w.a };
        let (one, two) = (format!("{name}1"), format!("{name}2"));
        w.create((&one, w.a), (&two, b)).unwrap();
        let (a_id, b_id) = (w.id(w.a, &one), w.id(b, &two));
        let oper = || (w.link(w.a, &one).oper, w.link(b, &two).oper);
        assert_eq!(oper(), (OperState::Down, OperState::Down));
        w.world.set_up(a_id, true).unwrap();
        assert_eq!(oper(), (waiting, OperState::Down), "{name}");
        w.world.set_up(b_id, true).unwrap();
        assert_eq!(oper(), (OperState::Up, OperState::Up));
        w.world.set_up(b_id, false).unwrap();
        assert_eq!(oper(), (waiting, OperState::Down), "{name}");
    }
}

#[test]
fn what_is_not_attached_is_refused_and_noted() {
    let w = World::new();
    let stranger = w.world.add_netns(NetnsSettings::default());
    let op = KernelOp::CreateVeth { a: end("a0", w.a), b: end("b0", stranger), group: 1, a_up: false };
    assert_eq!(w.errno(&op), Some(Errno::EINVAL));
    assert!(w.kernel.lock().unwrap().read_netns(stranger).is_err());
    assert_eq!(w.world.misuses().len(), 2);
    assert!(w.world.misuses()[0].contains("not attached"));
}

#[test]
fn a_dead_namespace_takes_its_links_and_their_peers() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    w.create(("a1", w.a), ("a2", w.a)).unwrap();
    let (a0, b0) = (w.id(w.a, "a0"), w.id(w.b, "b0"));
    let _ = w.events();
    w.world.kill_netns(w.b).unwrap();
    assert!(w.world.link(w.a, "a0").is_none());
    assert!(w.world.link(w.a, "a1").is_some());
    let events = w.events();
    assert!(events.contains(&LinkEvent::LinkGone(a0)) && events.contains(&LinkEvent::LinkGone(b0)));
    assert_eq!(events.last(), Some(&LinkEvent::NetnsGone(w.b)));
    w.kernel.lock().unwrap().attach(&w.world.handle(w.b));
    let gone = |r: Result<(), KernelError>| r.is_err_and(|e| e.is(Errno::ENOENT));
    assert!(gone(w.kernel.lock().unwrap().read_netns(w.b).map(drop)));
    assert!(gone(w.kernel.lock().unwrap().read_link(b0).map(drop)));
    let op = KernelOp::CreateVeth { a: end("a0", w.a), b: end("b0", w.b), group: 1, a_up: false };
    assert_eq!(w.errno(&op), Some(Errno::ENOENT));
    assert!(w.world.link(w.a, "a0").is_none(), "nothing is left of the refused pair");
    assert!(w.world.handle(w.b).opener.open().is_err());
}

#[test]
fn deletion_needs_the_mark_and_the_reaper() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    let (a, b) = (w.id(w.a, "a0"), w.id(w.b, "b0"));
    w.world.set_alias(a, "mine").unwrap();
    let delete = |group, alias: Option<&str>| {
        let expected = ExpectedMark { group, alias: alias.map(Into::into) };
        KernelOp::DeleteLink { link: a, doomed_group: 99, expected }
    };
    assert_eq!(w.errno(&delete(5, None)), Some(Errno::ESTALE));
    assert_eq!(w.errno(&delete(5, Some("other"))), Some(Errno::ESTALE));
    assert_eq!(w.link(w.a, "a0").group, 1);
    assert_eq!(w.run(&delete(5, Some("mine"))), Ok(Done::Ok));
    assert_eq!(w.link(w.a, "a0").group, 99, "doomed, but still there");
    w.world.fail_nth(OpKind::Reap, 1, Errno::EBUSY);
    let _ = w.events();
    assert_eq!(w.world.reap(), 0);
    assert!(matches!(&w.events()[..], [LinkEvent::ReapFailed(id, e)] if *id == a && e.is(Errno::EBUSY)));
    assert_eq!(w.run(&delete(99, None)), Ok(Done::Ok));
    assert_eq!(w.world.reap(), 1);
    assert_eq!(w.events()[1..], [LinkEvent::LinkGone(a), LinkEvent::LinkGone(b)]);
    assert!(w.world.link(w.b, "b0").is_none());
    assert_eq!(w.run(&delete(99, None)), Ok(Done::AlreadySo));
    w.world.reap_at_once(true);
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    let again = KernelOp::DeleteLink { link: w.id(w.a, "a0"), doomed_group: 99, expected: ExpectedMark { group: 1, alias: None } };
    assert_eq!(w.run(&again), Ok(Done::Ok));
    assert!(w.world.link(w.a, "a0").is_none());
}

#[test]
fn the_reaper_spares_what_is_not_doomed_any_more() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    let a = w.id(w.a, "a0");
    let delete = KernelOp::DeleteLink { link: a, doomed_group: 99, expected: ExpectedMark { group: 1, alias: None } };
    w.run(&delete).unwrap();
    w.set("a0", LinkChange { group: Some(1), ..LinkChange::default() }).unwrap();
    assert_eq!(w.world.reap(), 0);
    assert!(w.world.link(w.a, "a0").is_some());
    w.run(&delete).unwrap();
    w.world.delete_link(a).unwrap();
    w.world.set_last_index(w.a, a.ifindex.get() - 1);
    w.create(("heir", w.a), ("b0", w.b)).unwrap();
    assert_eq!(w.id(w.a, "heir"), a, "another link with the same index");
    assert_eq!(w.world.reap(), 0);
    assert!(w.world.link(w.a, "heir").is_some());
}

#[test]
fn faults_come_when_they_are_ordered() {
    let w = World::new();
    let mut pairs = 0;
    let mut create = || {
        pairs += 1;
        w.create((&format!("a{pairs}"), w.a), (&format!("b{pairs}"), w.b)).map_err(|e| e.errno())
    };
    w.world.fail_nth(OpKind::CreateVeth, 2, Errno::ENOMEM);
    w.world.apply_but_report_failure(OpKind::CreateVeth, 3, Errno::ETIMEDOUT);
    assert!(create().is_ok());
    assert_eq!(create(), Err(Errno::ENOMEM));
    assert_eq!(create(), Err(Errno::ETIMEDOUT));
    assert!(create().is_ok());
    let names: Vec<_> = w.world.links(w.a).into_iter().map(|l| l.name).collect();
    assert_eq!(names.iter().map(|n| &**n).collect::<Vec<_>>(), ["lo", "a1", "a3", "a4"]);
    assert_eq!(w.world.log().iter().map(|e| e.reached).collect::<Vec<_>>(), [true, false, true, true]);
    w.world.fail_always(OpKind::CreateVeth, Errno::EPERM);
    assert_eq!((create(), create()), (Err(Errno::EPERM), Err(Errno::EPERM)));
    w.world.heal();
    assert!(create().is_ok());
    assert_eq!(w.kernel.lock().unwrap().counters().writes, 7);
}

#[test]
fn readings_can_fail_and_be_interrupted() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    let a = w.id(w.a, "a0");
    let read = || w.kernel.lock().unwrap().read_netns(w.a).map(|r| (r.links.len(), r.complete)).map_err(|e| e.errno);
    w.world.interrupt_readings(w.a, &[a.ifindex], 2);
    assert_eq!([read(), read(), read()], [Ok((1, false)), Ok((1, false)), Ok((2, true))]);
    w.world.inject(SingleFault { kind: OpKind::ReadNetns, n: 2, mode: FaultMode::Incomplete });
    assert_eq!([read(), read(), read()], [Ok((2, true)), Ok((0, false)), Ok((2, true))]);
    w.world.fail_nth(OpKind::ReadNetns, 1, Errno::ENOBUFS);
    w.world.fail_nth(OpKind::ReadLink, 1, Errno::ENOBUFS);
    assert_eq!(read(), Err(Errno::ENOBUFS as i32));
    let link = || w.kernel.lock().unwrap().read_link(a).map(|l| l.map(|l| l.name)).map_err(|e| e.errno);
    assert_eq!([link(), link()], [Err(Errno::ENOBUFS as i32), Ok(Some("a0".into()))]);
    let nobody = LinkId { netns: w.a, ifindex: IfIndex::new(99).unwrap() };
    assert_eq!(w.kernel.lock().unwrap().read_link(nobody), Ok(None));
}

#[test]
fn all_single_faults_are_listed() {
    let w = World::new();
    let before = w.world.calls();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    w.create(("a1", w.a), ("b1", w.b)).unwrap();
    w.kernel.lock().unwrap().read_netns(w.a).unwrap();
    let calls = w.world.calls().since(&before);
    assert_eq!((calls.of(OpKind::CreateVeth), calls.of(OpKind::ReadNetns), calls.writes()), (2, 1, 2));
    let faults = calls.single_faults(&[Errno::EPERM]);
    let (refused, lost) = (FaultMode::Refused(Errno::EPERM), FaultMode::Unanswered(Errno::ETIMEDOUT));
    let create = |n, mode| SingleFault { kind: OpKind::CreateVeth, n, mode };
    let read = |mode| SingleFault { kind: OpKind::ReadNetns, n: 1, mode };
    let expected = [create(1, refused), create(1, lost), create(2, refused), create(2, lost), read(refused), read(FaultMode::Incomplete)];
    assert_eq!(faults, expected);
}

#[test]
fn someone_else_may_act_just_before_a_call() {
    let w = World::new();
    let a = w.a;
    w.world.before_nth(OpKind::CreateVeth, 2, move |world| {
        world.add_link(a, LinkKind::Other("bridge".into()), "a1").unwrap();
    });
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    assert_eq!(w.create(("a1", w.a), ("b1", w.b)).map_err(|e| e.errno()), Err(Errno::EEXIST));
    assert_eq!(w.link(w.a, "a1").kind.word(), "bridge");
}

#[test]
fn events_can_be_lost() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    assert_eq!(w.events().len(), 2);
    w.world.mute(true);
    w.world.set_mtu(w.id(w.a, "a0"), 1400).unwrap();
    w.world.tell_lost(Some(w.a));
    assert_eq!(w.events(), [LinkEvent::Lost(Some(w.a))]);
    w.world.mute(false);
    w.world.set_mtu(w.id(w.a, "a0"), 1300).unwrap();
    assert!(matches!(&w.events()[..], [LinkEvent::Link(netns, link)] if *netns == w.a && link.mtu == 1300 && link.addresses.is_empty()));
}

#[test]
fn the_digest_shows_only_what_is_owned_and_matters() {
    let owner = Owner::new(AgentLabel::new("t").unwrap());
    let digest = |skip: u32| {
        let w = World::new();
        w.world.set_last_index(w.a, skip);
        let op = KernelOp::CreateVeth { a: end("a0", w.a), b: end("b0", w.b), group: owner.group(), a_up: true };
        w.run(&op).unwrap();
        w.create(("foreign", w.a), ("foreign", w.b)).unwrap();
        let alias = owner.alias(MarkKind::Veth, &InterfaceName::new("x").unwrap());
        let mac = Some(MacAddr::parse("02:00:00:00:00:01").unwrap());
        w.set("a0", LinkChange { alias: Some(alias), mac, ..LinkChange::default() }).unwrap();
        w.world.set_up(w.id(w.b, "b0"), true).unwrap();
        for text in ["10.0.0.2/24", "10.0.0.1/24", "fd00::1/64"] {
            w.world.add_address(w.id(w.a, "a0"), addr(text), 0).unwrap();
        }
        (w.world.digest(&owner), w.a, w.b)
    };
    let (text, a, b) = digest(0);
    let expected = format!(
        "{a} a0 alias=\"vnf-agent:t:veth:x\" mtu=1500 up mac=02:00:00:00:00:01 10.0.0.1/24 10.0.0.2/24 fd00::1/64\n{b} b0 alias=\"\" mtu=1500 up\n"
    );
    assert_eq!(text, expected);
    assert_eq!(digest(40).0, text, "indexes do not matter");
}

#[test]
fn foreign_links_are_watched() {
    let owner = Owner::new(AgentLabel::new("t").unwrap());
    let w = World::new();
    w.create(("foreign", w.a), ("foreign", w.b)).unwrap();
    w.create(("touched", w.a), ("touched", w.b)).unwrap();
    let op = KernelOp::CreateVeth { a: end("ours", w.a), b: end("ours", w.b), group: owner.group(), a_up: true };
    w.run(&op).unwrap();
    let baseline = w.world.baseline(&owner);
    w.set("ours", LinkChange { mtu: Some(1400), ..LinkChange::default() }).unwrap();
    w.world.set_mtu(w.id(w.a, "foreign"), 1300).unwrap();
    assert_eq!(w.world.foreign_untouched(&baseline), Ok(()), "ours, and what others do to theirs");
    assert_eq!(w.world.foreign_writes(&owner).len(), 0);
    w.set("touched", LinkChange { mtu: Some(1400), ..LinkChange::default() }).unwrap();
    assert!(w.world.foreign_untouched(&baseline).is_err_and(|text| text.contains("touched") && !text.contains("foreign`")));
    assert_eq!(w.world.foreign_writes(&owner).len(), 1);
    // Adoption: a link that comes to carry the mark was not foreign.
    w.set("touched", LinkChange { group: Some(owner.group()), ..LinkChange::default() }).unwrap();
    assert_eq!(w.world.foreign_untouched(&baseline), Ok(()));
    // A foreign link that goes with a namespace, or by its user's hand, is not our doing.
    w.world.kill_netns(w.b).unwrap();
    assert_eq!(w.world.foreign_untouched(&baseline), Ok(()));
}

#[test]
fn a_foreign_link_that_goes_by_our_hand_is_told() {
    let owner = Owner::new(AgentLabel::new("t").unwrap());
    let w = World::new();
    w.create(("foreign", w.a), ("foreign", w.b)).unwrap();
    let baseline = w.world.baseline(&owner);
    let expected = ExpectedMark { group: 1, alias: None };
    w.run(&KernelOp::DeleteLink { link: w.id(w.a, "foreign"), doomed_group: 99, expected }).unwrap();
    w.world.reap();
    let told = w.world.foreign_untouched(&baseline).unwrap_err();
    assert_eq!(told.lines().filter(|line| line.ends_with("is gone")).count(), 2, "{told}");
}

#[test]
fn the_conformance_series_runs() {
    let w = World::new();
    let text = conformance::transcript(&mut *w.kernel.lock().unwrap(), w.a, w.b).unwrap();
    let answers: Vec<_> = text.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.rsplit(": ").next()).collect();
    let count = |answer: &str| answers.iter().filter(|a| **a == answer).count();
    assert_eq!((count("created"), count("already so"), count("EEXIST"), count("EINVAL")), (10, 4, 8, 8), "{text}");
    assert_eq!(count("moved"), 2, "{text}");
    assert_eq!((count("EBUSY"), count("EOPNOTSUPP"), count("ERANGE")), (2, 2, 2), "{text}");
    assert_eq!((count("ESTALE"), count("ENODEV"), count("ENOENT"), count("EADDRNOTAVAIL")), (1, 1, 1, 1));
    assert!(text.contains("a a0 mtu=1280 group=0x56000001 alias=- up peer=elsewhere"), "{text}");
    assert_eq!(w.world.misuses(), [] as [String; 0]);
}
