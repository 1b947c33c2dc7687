//! TAPs that others make: found, moved, given back, and never lost or deleted.

use super::bench::Bench;
use crate::linux::fake::OpKind;
use crate::model::{HostIfName, LinkId, LinkKind, MacAddr, TunInfo};
use nix::errno::Errno;

fn auto(name: &str, netns: &str, temporary: &str, more: &str) -> String {
    let place = if netns.is_empty() { String::new() } else { format!(r#","namespace":{{"type":"NAMED_NS","name":"{netns}"}}"#) };
    format!(r#"{{"name":"{name}","type":"AUTO_TAP","enabled":true{place},"tap":{{"temp_if_name":"{temporary}"}}{more}}}"#)
}

/// Someone makes a TAP in the agent's namespace.
fn appear(bench: &mut Bench, name: &str) -> MacAddr {
    let kind = LinkKind::Tun(TunInfo { tap: true, multi_queue: true, open: true, ..TunInfo::default() });
    bench.world.add_link(bench.ns("own"), kind, name).unwrap();
    bench.run();
    let all = bench.names.values().flat_map(|netns| bench.world.links(*netns));
    all.filter(|link| matches!(link.kind, LinkKind::Tun(_)))
        .max_by_key(|link| link.mac.map(MacAddr::octets))
        .and_then(|link| link.mac)
        .unwrap()
}

/// Where the TAP with this hardware address is: namespace and name.
fn place(bench: &Bench, mac: MacAddr) -> Option<(String, String)> {
    let all = bench.names.iter().flat_map(|(name, netns)| bench.world.links(*netns).into_iter().map(move |link| (name.clone(), link)));
    let found: Vec<_> = all.filter(|(_, link)| link.mac == Some(mac)).map(|(netns, link)| (netns, link.name.to_string())).collect();
    assert!(found.len() <= 1, "{found:?}");
    found.into_iter().next()
}

fn at(netns: &str, name: &str) -> Option<(String, String)> {
    Some((netns.to_owned(), name.to_owned()))
}

#[track_caller]
fn assert_never_lost(bench: &Bench) {
    assert_eq!(bench.world.misuses(), [""; 0]);
    bench.assert_sound();
}

#[test]
fn in_either_order() {
    for tap_first in [true, false] {
        let mut bench = Bench::new();
        let wish = auto("t", "red", "tap7", r#","host_if_name":"eth1","mtu":1400,"ip_addresses":["10.0.0.1/24","fd00::1/64"]"#);
        let mac = if tap_first { Some(appear(&mut bench, "tap7")) } else { None };
        let writes = bench.writes();
        bench.put(&[("t", &wish)]);
        let mac = mac.unwrap_or_else(|| {
            assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
            let status = bench.status("t");
            assert_eq!(
                (status.waits_for.as_slice(), status.message.contains("`tap7`")),
                (&["tap7".to_owned()][..], true),
                "{}",
                status.message
            );
            appear(&mut bench, "tap7")
        });
        assert_eq!(bench.state("t"), "CONFIGURED", "{}", bench.status("t").message);
        assert_eq!(place(&bench, mac), at("red", "eth1"));
        assert_eq!(bench.writes() - writes, 4, "the mark, the move with all settings, two addresses: {:#?}", bench.world.take_log());
        let link = bench.world.link(bench.ns("red"), "eth1").unwrap();
        assert_eq!((link.mtu, link.admin_up, link.group, link.alias.as_deref()), (1400, true, 0, Some("vnf-agent:vpp1:autotap:t:tap7")));
        assert_eq!(bench.status("t").if_index, link.ifindex.get());
        let writes = bench.writes();
        bench.restart();
        bench.resync(false);
        assert_eq!((bench.writes(), bench.state("t").as_str()), (writes, "CONFIGURED"));
        bench.del("t");
        assert_eq!(place(&bench, mac), at("own", "tap7"));
        let link = bench.world.link(bench.ns("own"), "tap7").unwrap();
        assert_eq!((link.admin_up, link.alias, link.addresses.len(), bench.state("t").as_str()), (false, None, 0, "-"));
        assert_eq!(bench.writes() - writes, 1, "one request");
        assert_never_lost(&bench);
    }
}

#[test]
fn many_at_once_and_others_in_between() {
    let mut bench = Bench::new();
    let wishes: Vec<(String, String)> = (0..30).map(|n| (format!("t{n}"), auto(&format!("t{n}"), "red", &format!("tap{n}"), ""))).collect();
    let wishes: Vec<(&str, &str)> = wishes.iter().map(|(name, wish)| (name.as_str(), wish.as_str())).collect();
    for n in 0..30 {
        bench.world.add_link(bench.ns("own"), LinkKind::Tun(TunInfo { tap: true, ..TunInfo::default() }), &format!("tap{n}")).unwrap();
    }
    let events = bench.write(&wishes);
    bench.deliver(events);
    let moved = loop {
        bench.step();
        let moved = bench.world.links(bench.ns("red")).len() - 1;
        if moved > 0 {
            break moved;
        }
    };
    assert!(moved <= 8, "{moved} moves in one pass");
    // Who comes now does not wait for all of them.
    let other = r#"{"name":"mine","type":"TAP","enabled":true,"namespace":{"type":"NAMED_NS","name":"red"}}"#;
    let events = bench.write(&[("mine", other)]);
    bench.deliver(events);
    bench.step();
    assert_eq!(bench.state("mine"), "CONFIGURED");
    assert_ne!(bench.state("t9"), "CONFIGURED");
    bench.run();
    let states = bench.states();
    assert!(states.iter().all(|state| state.ends_with("CONFIGURED")), "{states:?}");
    assert_never_lost(&bench);
}

#[test]
fn another_namespace_name_or_tap() {
    let mut bench = Bench::new();
    let mac = appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "red", "tap7", r#","ip_addresses":["10.0.0.1/24"]"#))]);
    assert_eq!(place(&bench, mac), at("red", "t"));
    bench.put(&[("t", &auto("t", "blue", "tap7", r#","host_if_name":"eth1","ip_addresses":["10.0.0.1/24"]"#))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("CONFIGURED", at("blue", "eth1")));
    bench.put(&[("t", &auto("t", "", "tap7", r#","host_if_name":"eth2","ip_addresses":["10.0.0.1/24"]"#))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("CONFIGURED", at("own", "eth2")));
    bench.put(&[("t", &auto("t", "red", "tap8", ""))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("PENDING LINK_MISSING", at("own", "tap7")));
    assert_eq!(bench.world.link(bench.ns("own"), "tap7").unwrap().addresses, []);
    let other = appear(&mut bench, "tap8");
    assert_eq!((bench.state("t").as_str(), place(&bench, other)), ("CONFIGURED", at("red", "t")));
    bench.put(&[("t", r#"{"name":"t","type":"TAP","enabled":true,"namespace":{"type":"NAMED_NS","name":"red"}}"#)]);
    assert_eq!((bench.state("t").as_str(), place(&bench, other)), ("CONFIGURED", at("own", "tap8")));
    bench.put(&[("t", &auto("t", "red", "tap8", ""))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, other)), ("CONFIGURED", at("red", "t")));
    bench.put(&[("t", &auto("t", "green", "tap8", ""))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, other)), ("PENDING NAMESPACE_MISSING", at("own", "tap8")));
    assert_never_lost(&bench);
}

#[test]
fn in_the_agents_own_namespace_it_is_only_renamed() {
    let mut bench = Bench::new();
    let mac = appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "", "tap7", r#","host_if_name":"eth1","ip_addresses":["10.0.0.1/24"]"#))]);
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("CONFIGURED", at("own", "eth1")));
    assert_eq!(bench.world.calls().of(OpKind::MoveLink), 0);
    bench.del("t");
    assert_eq!(place(&bench, mac), at("own", "tap7"));
    assert_eq!(bench.world.link(bench.ns("own"), "tap7").unwrap().addresses, []);
    assert_never_lost(&bench);
}

#[test]
fn conflicts_are_said_before_anything_is_changed() {
    let mut bench = Bench::new();
    appear(&mut bench, "tap7");
    let bridge = bench.world.add_link(bench.ns("red"), LinkKind::Other("bridge".into()), "br0").unwrap();
    bench.world.add_altname(bridge, "eth1").unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    let writes = bench.writes();
    bench.put(&[("t", &auto("t", "red", "tap7", r#","host_if_name":"eth1""#))]);
    assert_eq!(bench.state("t"), "FAILED FOREIGN_LINK");
    assert!(bench.status("t").message.contains("br0"), "{}", bench.status("t").message);
    assert_eq!(bench.writes(), writes);
    bench.world.foreign_untouched(&baseline).unwrap();
    bench.world.delete_link(bridge).unwrap();
    bench.run();
    assert_eq!(bench.state("t"), "CONFIGURED");

    let tap = bench.world.add_link(bench.ns("own"), LinkKind::Tun(TunInfo::default()), "tap8").unwrap();
    bench.world.add_altname(tap, "eth2").unwrap();
    bench.put(&[("u", &auto("u", "red", "tap8", r#","host_if_name":"eth2""#))]);
    assert_eq!(bench.state("u"), "FAILED FOREIGN_LINK", "its own alternative name");
    assert_eq!(bench.world.link(bench.ns("own"), "tap8").unwrap().alias, None);
}

#[test]
fn what_is_no_tap_is_not_touched() {
    let mut bench = Bench::new();
    let bridge = bench.world.add_link(bench.ns("own"), LinkKind::Other("bridge".into()), "tap7").unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    bench.put(&[("t", &auto("t", "red", "tap7", ""))]);
    assert_eq!(bench.state("t"), "FAILED FOREIGN_LINK");
    bench.world.foreign_untouched(&baseline).unwrap();
    bench.world.delete_link(bridge).unwrap();
    bench.run();
    assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
    bench.put(&[("mine", r#"{"name":"mine","type":"TAP","host_if_name":"tap7"}"#)]);
    assert_eq!(bench.state("t"), "FAILED NAME_CONFLICT", "our own TAP is not someone else's");
}

#[test]
fn its_owner_takes_it_away_and_makes_another() {
    let mut bench = Bench::new();
    appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "red", "tap7", ""))]);
    let id = bench.world.link_id(bench.ns("red"), "t").unwrap();
    bench.world.delete_link(id).unwrap();
    bench.run();
    assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
    appear(&mut bench, "tap7");
    assert_eq!(bench.state("t"), "CONFIGURED");
    // A second one while the first stands.
    let second = appear(&mut bench, "tap7");
    assert_eq!((bench.state("t").as_str(), place(&bench, second)), ("CONFIGURED", at("own", "tap7")));
    bench.put(&[("t", &auto("t", "red", "tap7", r#","mtu":1400"#))]);
    assert!(bench.status("t").warnings.iter().any(|w| w.contains("another TAP `tap7`")), "{:?}", bench.status("t").warnings);
    // Both names cannot be had at home: neither is lost.
    bench.del("t");
    let names: Vec<String> = bench.world.links(bench.ns("own")).iter().map(|link| link.name.to_string()).collect();
    assert_eq!(names, ["lo", "tap7~1", "tap7"]);
    assert_never_lost(&bench);
}

#[test]
fn two_wishes_for_one_tap() {
    let mut bench = Bench::new();
    bench.put(&[("one", &auto("one", "red", "tap7", ""))]);
    bench.put(&[("two", &auto("two", "blue", "tap7", ""))]);
    assert_eq!((bench.state("one").as_str(), bench.state("two").as_str()), ("PENDING LINK_MISSING", "FAILED NAME_CONFLICT"));
    let mac = appear(&mut bench, "tap7");
    assert_eq!((bench.state("one").as_str(), bench.state("two").as_str()), ("CONFIGURED", "FAILED NAME_CONFLICT"));
    bench.del("one");
    assert_eq!((bench.state("two").as_str(), place(&bench, mac)), ("CONFIGURED", at("blue", "two")));
    assert_never_lost(&bench);
}

#[test]
fn its_namespace_ends_with_it() {
    let mut bench = Bench::new();
    appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "red", "tap7", ""))]);
    bench.kill_netns("red");
    assert_eq!(bench.state("t"), "PENDING NAMESPACE_MISSING");
    bench.add_netns("red");
    assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
    appear(&mut bench, "tap7");
    assert_eq!(bench.state("t"), "CONFIGURED");
}

#[test]
fn vpp_explains_and_wakes() {
    let mut bench = Bench::new();
    let message = |bench: &Bench| bench.status("t").message;
    bench.vpp("status/v1/interface/bad", Some("{"));
    bench.vpp("config/v1/interface/bad", Some("\u{1}"));
    bench.put(&[("t", &auto("t", "red", "tap7", ""))]);
    assert!(message(&bench).contains("some other program"), "{}", message(&bench));
    bench.vpp("config/v1/interface/v", Some(r#"{"name":"v","type":3,"tap":{"host_if_name":"tap7"}}"#));
    assert!(message(&bench).contains("has been told to make it"), "{}", message(&bench));
    bench.vpp("status/v1/interface/v", Some(r#"{"name":"v","type":3,"oper_status":1}"#));
    assert!(message(&bench).contains("says that it has made it"), "{}", message(&bench));
    let mac = appear(&mut bench, "tap7");
    assert_eq!(bench.state("t"), "CONFIGURED");
    bench.vpp("status/v1/interface/error/v", Some(r#"{"oper_status":3}"#));
    assert_eq!(bench.state("t"), "CONFIGURED");
    bench.vpp("status/v1/interface/v", Some(r#"{"name":"v","type":3,"oper_status":3}"#));
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("PENDING LINK_MISSING", at("own", "tap7")));
    assert!(message(&bench).contains("has deleted it"), "{}", message(&bench));
    bench.restart();
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("PENDING LINK_MISSING", at("own", "tap7")));
    // It goes at last, and another one of that name comes: of that VPP has said nothing.
    bench.world.delete_link(bench.world.link_id(bench.ns("own"), "tap7").unwrap()).unwrap();
    bench.run();
    assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
    appear(&mut bench, "tap7");
    assert_eq!(bench.state("t"), "CONFIGURED");
    bench.list();
    bench.run();
    assert_eq!(bench.state("t"), "CONFIGURED", "the same word, listed again");
    assert_never_lost(&bench);
}

/// At every call, refused once, unanswered once, and the agent killed: it comes to the same end, and the TAP is never lost.
#[test]
fn nothing_that_goes_wrong_loses_it() {
    for kind in [OpKind::SetLink, OpKind::MoveLink, OpKind::AddAddress, OpKind::RemoveAddress, OpKind::ReadLink, OpKind::ReadNetns] {
        for way in 0..3 {
            for n in 1..=8 {
                let mut bench = Bench::new();
                let mac = appear(&mut bench, "tap7");
                let wish = auto("t", "red", "tap7", r#","host_if_name":"eth1","mtu":1400,"ip_addresses":["10.0.0.1/24"]"#);
                match way {
                    0 => bench.world.fail_nth(kind, n, Errno::EBUSY),
                    1 => bench.world.apply_but_report_failure(kind, n, Errno::ETIMEDOUT),
                    _ => bench.world.before_nth(kind, n, super::bench::killer),
                }
                let what = format!("{kind:?} {way} {n}");
                bench.put(&[("t", &wish)]);
                bench.settle();
                assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("CONFIGURED", at("red", "eth1")), "{what}");
                bench.put(&[("t", &auto("t", "", "tap7", r#","host_if_name":"eth2","ip_addresses":["10.0.0.2/24"]"#))]);
                bench.settle();
                assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("CONFIGURED", at("own", "eth2")), "{what}");
                bench.put(&[("t", &wish)]);
                bench.settle();
                bench.del("t");
                bench.settle();
                assert_eq!(place(&bench, mac), at("own", "tap7"), "{what}");
                let link = bench.world.link(bench.ns("own"), "tap7").unwrap();
                assert_eq!((link.alias, link.addresses.len()), (None, 0), "{what}");
                assert_never_lost(&bench);
            }
        }
    }
}

#[test]
fn what_others_did_to_it_is_repaired() {
    let mut bench = Bench::new();
    let mac = appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "red", "tap7", r#","mtu":1400,"ip_addresses":["10.0.0.1/24"]"#))]);
    let digest = bench.digest();
    let id = |bench: &Bench| -> LinkId {
        let (netns, name) = place(bench, mac).unwrap();
        bench.world.link_id(bench.ns(&netns), &name).unwrap()
    };
    for what in 0..5 {
        let id = id(&bench);
        match what {
            0 => bench.world.set_up(id, false).unwrap(),
            1 => bench.world.rename(id, "other").unwrap(),
            2 => bench.world.set_mtu(id, 900).unwrap(),
            3 => drop(bench.world.move_link(id, bench.ns("own")).unwrap()),
            _ => bench.world.remove_address(id, id_address()).unwrap(),
        }
        bench.run();
        assert_eq!((bench.state("t").as_str(), bench.digest()), ("CONFIGURED", digest.clone()), "{what}");
    }
    assert_never_lost(&bench);
}

#[test]
fn an_alias_that_somebody_took_away_comes_back() {
    let mut bench = Bench::new();
    let mac = appear(&mut bench, "tap7");
    bench.put(&[("t", &auto("t", "red", "tap7", r#","ip_addresses":["10.0.0.1/24"]"#))]);
    let digest = bench.digest();
    for alias in ["", "mine"] {
        bench.world.set_alias(bench.world.link_id(bench.ns("red"), "t").unwrap(), alias).unwrap();
        bench.run();
        assert_eq!((bench.state("t").as_str(), bench.digest()), ("CONFIGURED", digest.clone()), "{alias}");
    }
    // Another agent's is another agent's.
    bench.world.set_alias(bench.world.link_id(bench.ns("red"), "t").unwrap(), "vnf-agent:vpp2:autotap:t:tap7").unwrap();
    bench.run();
    assert_eq!((bench.state("t").as_str(), place(&bench, mac)), ("PENDING LINK_MISSING", at("red", "t")));
}

#[test]
fn a_tun_has_no_hardware_address() {
    let mut bench = Bench::new();
    bench.world.add_link(bench.ns("own"), LinkKind::Tun(TunInfo::default()), "tun7").unwrap();
    bench.put(&[("t", &auto("t", "red", "tun7", r#","phys_address":"02:00:00:00:00:01""#))]);
    assert_eq!(bench.state("t"), "CONFIGURED", "{}", bench.status("t").message);
    assert!(bench.status("t").warnings.iter().any(|w| w.contains("is a TUN")), "{:?}", bench.status("t").warnings);
    assert_eq!(bench.published.counters.steps_failed.load(std::sync::atomic::Ordering::Relaxed), 0);
}

fn id_address() -> crate::model::InterfaceAddress {
    crate::model::InterfaceAddress::new("10.0.0.1".parse().unwrap(), 24).unwrap()
}

#[test]
fn a_name_that_is_too_long_for_an_ending_is_cut() {
    let mut bench = Bench::new();
    let name = HostIfName::new("fifteen-bytes-x").unwrap();
    appear(&mut bench, name.as_str());
    bench.put(&[("t", &auto("t", "red", name.as_str(), ""))]);
    bench.world.add_link(bench.ns("own"), LinkKind::Other("bridge".into()), name.as_str()).unwrap();
    bench.del("t");
    assert!(bench.world.link(bench.ns("own"), "fifteen-bytes~1").is_some());
    assert_never_lost(&bench);
}
