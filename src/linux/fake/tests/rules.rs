//! What the kernel refuses, and what it forgets.

use super::*;

fn refused(errno: Errno) -> Result<Done, Refused> {
    Err(Refused(errno as i32))
}

#[test]
fn pairs_that_are_refused_leave_nothing() {
    let w = World::new();
    w.world.add_link(w.a, LinkKind::Other("bridge".into()), "taken").unwrap();
    w.world.add_altname(w.id(w.a, "taken"), "alt").unwrap();
    let mtu = |mtu| NewLink { mtu, ..end("b0", w.b) };
    for (what, a, b, errno) in [
        ("name taken", end("taken", w.a), end("b0", w.b), Errno::EEXIST),
        ("peer's name taken", end("b0", w.b), end("taken", w.a), Errno::EEXIST),
        ("altname", end("alt", w.a), end("b0", w.b), Errno::EEXIST),
        ("peer's is an altname", end("b0", w.b), end("alt", w.a), Errno::EEXIST),
        ("lo", end("lo", w.a), end("b0", w.b), Errno::EEXIST),
        ("one name for both", end("x", w.a), end("x", w.a), Errno::EEXIST),
        ("mtu too small", end("a0", w.a), mtu(67), Errno::EINVAL),
        ("mtu too large", mtu(65536), end("a0", w.a), Errno::EINVAL),
    ] {
        let op = KernelOp::CreateVeth { a, b, group: 1, a_up: true };
        assert_eq!(w.errno(&op), Some(errno), "{what}");
        assert_eq!((w.world.links(w.a).len(), w.world.links(w.b).len()), (2, 1), "{what}");
    }
    for (mtu_a, name) in [(68, "a1"), (65535, "a2")] {
        let op = KernelOp::CreateVeth { a: NewLink { mtu: mtu_a, ..end(name, w.a) }, b: end(name, w.b), group: 1, a_up: false };
        assert_eq!(w.errno(&op), None);
    }
}

#[test]
fn changes_that_are_refused() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.a)).unwrap();
    w.world.add_altname(w.id(w.a, "a0"), "alt").unwrap();
    let name = |name| LinkChange { name: Some(host_name(name)), ..LinkChange::default() };
    let mtu = |mtu| LinkChange { mtu: Some(mtu), ..LinkChange::default() };
    let alias = |length| LinkChange { alias: Some("x".repeat(length)), ..LinkChange::default() };
    assert_eq!(w.set("a0", name("b0")), refused(Errno::EEXIST));
    assert_eq!(w.set("a0", name("alt")), refused(Errno::EEXIST), "also its own altname");
    assert_eq!(w.set("a0", name("a0")), Ok(Done::Ok));
    assert_eq!(w.set("a0", mtu(67)), refused(Errno::EINVAL));
    assert_eq!(w.set("a0", mtu(65536)), refused(Errno::EINVAL));
    assert_eq!(w.set("a0", alias(256)), refused(Errno::ERANGE));
    assert_eq!(w.set("a0", alias(255)), Ok(Done::Ok));
    assert_eq!(w.set("a0", alias(0)), Ok(Done::Ok));
    assert_eq!(w.link(w.a, "a0").alias, None);
    assert!(w.world.add_altname(w.id(w.a, "a0"), "a0").is_err_and(|e| e.is(Errno::EEXIST)));
    let nobody = LinkId { netns: w.a, ifindex: IfIndex::new(99).unwrap() };
    assert_eq!(w.errno(&KernelOp::SetLink { link: nobody, change: mtu(1400) }), Some(Errno::ENODEV));
    assert_eq!(w.add(nobody, "10.0.0.1/24"), refused(Errno::ENODEV));
    assert_eq!(w.remove(nobody, "10.0.0.1/24"), refused(Errno::ENODEV));
}

#[test]
fn a_change_that_fails_stays_half_done() {
    let w = World::new();
    w.create(("a0", w.a), ("b0", w.a)).unwrap();
    let mac = MacAddr::parse("02:00:00:00:00:07").unwrap();
    let change = LinkChange {
        name: Some(host_name("b0")),
        mac: Some(mac),
        mtu: Some(1400),
        up: Some(true),
        group: Some(77),
        alias: Some("alias".to_owned()),
    };
    // As measured: hardware address, MTU, group, name, alias, flags.
    assert_eq!(w.set("a0", change.clone()), refused(Errno::EEXIST));
    let link = w.link(w.a, "a0");
    assert_eq!((link.mac, link.mtu, link.group, link.alias, link.admin_up), (Some(mac), 1400, 77, None, false));
    assert_eq!(w.set("a0", LinkChange { mtu: Some(1), group: Some(78), ..change.clone() }), refused(Errno::EINVAL));
    assert_eq!(w.link(w.a, "a0").group, 77);
    assert_eq!(w.set("a0", LinkChange { name: Some(host_name("a1")), ..change }), Ok(Done::Ok));
    assert!(w.link(w.a, "a1").admin_up);
}

#[test]
fn ipv6_comes_and_goes_with_the_link() {
    let w = World::new();
    let (a, b) = w.up_pair();
    assert_eq!(w.addresses(), ["kernel"], "made when the carrier came");
    for text in ["fd00::1/64", "fd00::2/64", "10.0.0.1/24"] {
        assert_eq!(w.add(a, text), Ok(Done::Ok));
    }
    let all = ["10.0.0.1/24", "fd00::2/64", "fd00::1/64", "kernel"];
    assert_eq!(w.addresses(), all, "IPv4 first, then the newest by scope");
    let before = w.link(w.a, "a0").addresses;
    w.world.set_mac(a, MacAddr::parse("02:00:00:00:00:09").unwrap()).unwrap();
    assert_eq!(w.link(w.a, "a0").addresses, before, "a new hardware address changes none");
    w.world.set_up(b, false).unwrap();
    assert_eq!(w.addresses(), all, "carrier lost: they stay");
    w.world.set_up(b, true).unwrap();
    let _ = w.events();
    w.world.set_up(a, false).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24"]);
    // The link-local was not made anew for the new hardware address when only the carrier came back: three in all.
    assert_eq!(w.events().iter().filter(|e| matches!(e, LinkEvent::AddressGone(..))).count(), 3);
    assert_eq!(w.add(a, "fd00::1/64"), Ok(Done::Ok), "a link that is down takes IPv6 addresses");
    w.world.set_up(a, true).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24", "fd00::1/64", "kernel"]);
    let kernel = w.link(w.a, "a0").addresses.into_iter().find(|k| k.kernel_made).unwrap();
    assert_eq!((kernel.address, kernel.proto, kernel.scope), (addr("fe80::ff:fe00:9/64"), 3, 253), "of the hardware address of now");
}

#[test]
fn a_small_mtu_takes_ipv6_away() {
    let w = World::with(NetnsSettings { ipv6_disabled: true, ..NetnsSettings::default() });
    let (a, _) = w.up_pair();
    let enable = KernelOp::EnableIpv6 { link: a, name: "a0".into() };
    assert_eq!(w.run(&enable), Ok(Done::Ok));
    w.add(a, "fd00::1/64").unwrap();
    w.add(a, "10.0.0.1/24").unwrap();
    w.world.set_mtu(a, 1280).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24", "fd00::1/64", "kernel"]);
    w.world.set_mtu(a, 1279).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24"]);
    assert_eq!(w.add(a, "fd00::1/64"), refused(Errno::EINVAL));
    assert_eq!(w.errno(&enable), Some(Errno::ENOENT), "its sysctls are gone, too");
    w.world.set_mtu(a, 1500).unwrap();
    assert!(w.link(w.a, "a0").ipv6_disabled, "the default again");
    w.world.set_settings(w.a, NetnsSettings::default()).unwrap();
    w.world.set_mtu(a, 1279).unwrap();
    w.world.set_mtu(a, 1500).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24", "kernel"]);
}

#[test]
fn ipv6_switched_off() {
    let w = World::with(NetnsSettings { ipv6_disabled: true, ..NetnsSettings::default() });
    let (a, _) = w.up_pair();
    assert!(w.link(w.a, "a0").ipv6_disabled);
    assert_eq!(w.add(a, "fd00::1/64"), refused(Errno::EACCES));
    assert_eq!(w.add(a, "10.0.0.1/24"), Ok(Done::Ok));
    let enable = |name: &str| KernelOp::EnableIpv6 { link: a, name: name.into() };
    assert_eq!(w.errno(&enable("nobody")), Some(Errno::ENOENT));
    w.world.set_settings(w.a, NetnsSettings { proc_sys_readonly: true, ..NetnsSettings::default() }).unwrap();
    assert_eq!(w.errno(&enable("a0")), Some(Errno::EROFS));
    assert!(w.link(w.a, "a0").ipv6_disabled);
    w.world.set_settings(w.a, NetnsSettings::default()).unwrap();
    assert_eq!(w.run(&enable("a0")), Ok(Done::Ok));
    assert_eq!(w.addresses(), ["10.0.0.1/24", "kernel"]);
    assert_eq!(w.add(a, "fd00::1/64"), Ok(Done::Ok));
    w.world.set_ipv6_disabled(a, true).unwrap();
    assert_eq!(w.addresses(), ["10.0.0.1/24"]);
}

#[test]
fn addresses_that_are_refused_or_renewed() {
    let w = World::new();
    let (a, _) = w.up_pair();
    w.world.add_address(a, addr("10.0.0.1/24"), 0).unwrap();
    w.world.add_address(a, addr("fd00::1/64"), 0).unwrap();
    for text in ["10.0.0.1/24", "fd00::1/64"] {
        assert_eq!(w.add(a, text), Ok(Done::Ok));
        let seen = w.link(w.a, "a0").addresses.into_iter().filter(|x| x.address == addr(text)).map(|x| x.proto).collect::<Vec<_>>();
        assert_eq!(seen, [118], "{text} renewed, not doubled");
    }
    assert_eq!(w.add(a, "fd00::1/65"), refused(Errno::EEXIST));
    assert_eq!(w.add(a, "10.0.0.1/32"), Ok(Done::Ok), "IPv4 takes one address with two lengths");
    for text in ["ff02::1/64", "::/64", "::1/128"] {
        assert_eq!(w.add(a, text), refused(Errno::EADDRNOTAVAIL), "{text}");
    }
    assert_eq!(w.add(a, "224.0.0.1/24"), Ok(Done::Ok), "IPv4 takes multicast");
    for text in ["10.9.9.9/24", "10.0.0.1/25", "fd00::1/65", "fd00::9/64"] {
        assert_eq!(w.remove(a, text), Ok(Done::AlreadySo), "{text}");
    }
    assert_eq!(w.remove(a, "fd00::1/64"), Ok(Done::Ok));
}

#[test]
fn secondaries_go_with_their_primary_unless_promoted() {
    for (promote_secondaries, left) in [(false, &["10.0.0.3/25", "10.5.0.1/16"][..]), (true, &PROMOTED)] {
        let w = World::with(NetnsSettings { promote_secondaries, ..NetnsSettings::default() });
        w.create(("a0", w.a), ("b0", w.b)).unwrap();
        let a = w.id(w.a, "a0");
        for text in ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/25", "10.0.0.4/24", "10.5.0.1/16"] {
            w.add(a, text).unwrap();
        }
        let all = ["10.0.0.1/24", "10.0.0.3/25", "10.5.0.1/16", "10.0.0.2/24 secondary", "10.0.0.4/24 secondary"];
        assert_eq!(w.addresses(), all, "secondaries last");
        let _ = w.events();
        assert_eq!(w.remove(a, "10.0.0.1/24"), Ok(Done::Ok));
        assert_eq!(w.addresses(), left);
        let told = w.events().iter().filter(|e| matches!(e, LinkEvent::AddressGone(..))).count();
        assert_eq!(told, all.len() - left.len());
    }
}

const PROMOTED: [&str; 4] = ["10.0.0.3/25", "10.5.0.1/16", "10.0.0.2/24", "10.0.0.4/24 secondary"];

#[test]
fn a_secondary_goes_alone() {
    let w = World::new();
    let (a, _) = w.up_pair();
    for text in ["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"] {
        w.add(a, text).unwrap();
    }
    assert_eq!(w.remove(a, "10.0.0.2/24"), Ok(Done::Ok));
    assert_eq!(w.addresses(), ["10.0.0.1/24", "10.0.0.3/24 secondary", "kernel"]);
}

#[test]
fn restored_addresses_have_their_attributes() {
    let w = World::new();
    let (a, _) = w.up_pair();
    let restore = |scope, label: &str| {
        let restore = RestoredAddress { scope, broadcast: Some([10, 0, 0, 255].into()), label: Some(label.into()) };
        NewAddress { address: addr("10.0.0.1/24"), proto: 0, nodad: true, restore: Some(restore) }
    };
    w.run(&KernelOp::AddAddress { link: a, address: restore(253, "a0:1") }).unwrap();
    let seen = w.link(w.a, "a0").addresses[0].clone();
    assert_eq!((seen.scope, seen.broadcast, seen.label.as_deref()), (253, Some([10, 0, 0, 255].into()), Some("a0:1")));
    assert_eq!(w.add(a, "10.0.0.2/24"), refused(Errno::EINVAL), "one subnet, two scopes");
}

#[test]
fn duplicate_address_detection() {
    let w = World::with(NetnsSettings { link_local_dad: true, ..NetnsSettings::default() });
    w.create(("a0", w.a), ("b0", w.b)).unwrap();
    let (a, b) = (w.id(w.a, "a0"), w.id(w.b, "b0"));
    let address = NewAddress { address: addr("fd00::1/64"), proto: 118, nodad: false, restore: None };
    w.run(&KernelOp::AddAddress { link: a, address: address.clone() }).unwrap();
    w.world.end_dad(w.a);
    assert_eq!(w.addresses(), ["fd00::1/64 tentative"], "without carrier it does not end");
    w.world.set_up(a, true).unwrap();
    w.world.set_up(b, true).unwrap();
    assert_eq!(w.addresses(), ["fd00::1/64 tentative", "kernel tentative"]);
    w.world.end_dad(w.a);
    assert_eq!(w.addresses(), ["fd00::1/64", "kernel"]);
    w.run(&KernelOp::AddAddress { link: a, address: NewAddress { address: addr("fd00::2/64"), ..address } }).unwrap();
    w.world.fail_dad(w.a);
    assert_eq!(w.addresses(), ["fd00::2/64 tentative failed", "fd00::1/64", "kernel"]);
}

#[test]
fn a_move_loses_addresses_and_the_flag() {
    let w = World::new();
    let (a, b) = w.up_pair();
    w.add(a, "10.0.0.1/24").unwrap();
    w.world.set_alias(a, "alias").unwrap();
    w.world.add_altname(a, "alt").unwrap();
    let before = w.link(w.a, "a0");
    assert_eq!(a.ifindex, b.ifindex, "so the index is taken there");
    let there = w.world.move_link(a, w.b).unwrap();
    assert_ne!(there.ifindex, a.ifindex);
    assert!(w.world.link(w.a, "a0").is_none());
    let after = w.link(w.b, "a0");
    assert_eq!(
        (after.mac, after.mtu, after.group, &after.alias, &after.altnames),
        (before.mac, before.mtu, before.group, &before.alias, &before.altnames)
    );
    assert_eq!((after.admin_up, after.addresses), (false, vec![]));
    assert_eq!(after.peer.map(|p| (p.ifindex, p.nsid)), Some((b.ifindex, None)));
    assert_eq!(w.link(w.b, "b0").oper, OperState::LowerLayerDown);
    let lo = w.id(w.a, "lo");
    assert!(w.world.move_link(lo, w.b).is_err_and(|e| e.is(Errno::EINVAL)));
    let taken = w.world.add_link(w.a, LinkKind::Other("bridge".into()), "alt").unwrap();
    assert!(w.world.move_link(taken, w.b).is_err_and(|e| e.is(Errno::EEXIST)));
}
