//! Names that a host hangs on: nobody takes them, and nothing touches the links that bear them.

use super::bench::{Bench, veth};
use crate::model::{LinkKind, ReservedNames, TunInfo};

const AUTO: &str =
    r#"{"name":"t","type":"AUTO_TAP","enabled":true,"namespace":{"type":"NAMED_NS","name":"red"},"tap":{"temp_if_name":"nic0"}}"#;

fn nic0() -> ReservedNames {
    let mut names = ReservedNames::default();
    names.add_nic("nic0", ["nic0~", "enp0"]);
    names.add_bridge("br-int");
    names
}

/// An internal port of the user-space datapath.
fn add_port(bench: &mut Bench, name: &str) {
    bench.world.add_link(bench.ns("own"), LinkKind::Tun(TunInfo { tap: true, open: true, ..TunInfo::default() }), name).unwrap();
}

#[test]
fn a_host_s_port_is_no_tap_to_be_taken_until_its_name_is_free() {
    let mut bench = Bench::new();
    bench.reserve(nic0());
    add_port(&mut bench, "nic0");
    let baseline = bench.world.baseline(&bench.owner);
    let writes = bench.writes();
    bench.put(&[("t", AUTO)]);
    assert_eq!(bench.state("t"), "FAILED NAME_CONFLICT");
    let message = bench.status("t").message;
    assert!(message.contains("the name `nic0` belongs to the external node's NIC nic0"), "{message}");
    // Another name, and the removal of the key, change nothing either.
    bench.put(&[("t", &AUTO.replace("\"enabled\":true", "\"enabled\":false"))]);
    bench.del("t");
    bench.put(&[("t", AUTO)]);
    bench.world.foreign_untouched(&baseline).unwrap();
    assert_eq!(bench.writes(), writes);
    // Whoever waits is woken.
    bench.reserve(ReservedNames::default());
    assert_eq!(bench.state("t"), "CONFIGURED");
    assert!(bench.world.link(bench.ns("red"), "t").is_some());
    bench.assert_sound();
}

#[test]
fn what_is_reserved_before_a_link_comes_to_its_name_is_known_in_time() {
    let mut bench = Bench::new();
    bench.put(&[("t", AUTO)]);
    assert_eq!(bench.state("t"), "PENDING LINK_MISSING");
    bench.reserve(nic0());
    assert_eq!(bench.state("t"), "FAILED NAME_CONFLICT");
    add_port(&mut bench, "nic0");
    let baseline = bench.world.baseline(&bench.owner);
    bench.run();
    bench.world.foreign_untouched(&baseline).unwrap();
}

#[test]
fn internal_ports_of_other_bridges_are_not_taken() {
    let mut bench = Bench::new();
    let mut names = ReservedNames::default();
    names.add_port("nic0", "br-other");
    bench.reserve(names);
    add_port(&mut bench, "nic0");
    bench.put(&[("t", AUTO)]);
    assert_eq!(bench.state("t"), "FAILED NAME_CONFLICT");
    assert!(bench.status("t").message.contains("br-other"), "{}", bench.status("t").message);
}

#[test]
fn no_wish_takes_such_a_name_in_the_agents_own_namespace() {
    for name in ["nic0", "nic0~", "enp0", "br-int"] {
        let mut bench = Bench::new();
        bench.reserve(nic0());
        let tap = format!(r#"{{"name":"mine","type":"TAP","enabled":true,"host_if_name":"{name}"}}"#);
        let own = format!(r#"{{"name":"a","enabled":true,"host_if_name":"{name}","veth":{{"peer_if_name":"b"}}}}"#);
        bench.put(&[("mine", &tap), ("a", &own), ("b", &veth("b", "a", "red", ""))]);
        for key in ["mine", "a", "b"] {
            assert_eq!(bench.state(key), "FAILED NAME_CONFLICT", "{key} {name}");
        }
        assert_eq!(bench.writes(), 0, "{name}");
        bench.reserve(ReservedNames::default());
        assert_ne!(bench.state("a"), bench.state("mine"), "one of both has its turn");
        // In another namespace the name is nobody's.
        bench.reserve(nic0());
        bench.put(&[(
            "there",
            &format!(
                r#"{{"name":"there","type":"TAP","enabled":true,"host_if_name":"{name}","namespace":{{"type":"NAMED_NS","name":"blue"}}}}"#
            ),
        )]);
        assert_eq!(bench.state("there"), "CONFIGURED", "{name}");
    }
}

#[test]
fn a_link_of_ours_is_not_renamed_to_such_a_name_and_a_tap_is_given_back_under_another() {
    let mut bench = Bench::new();
    let tap = |name: &str| format!(r#"{{"name":"mine","type":"TAP","enabled":true,"host_if_name":"{name}"}}"#);
    bench.put(&[("mine", &tap("x"))]);
    add_port(&mut bench, "nic0");
    bench.put(&[("t", AUTO)]);
    assert_eq!([bench.state("mine"), bench.state("t")], ["CONFIGURED", "CONFIGURED"]);
    // The name is free now, and a NIC gets it.
    bench.reserve(nic0());
    assert_eq!(bench.state("t"), "CONFIGURED", "what it has taken before, it keeps");
    bench.put(&[("mine", &tap("nic0"))]);
    assert_eq!(bench.state("mine"), "FAILED NAME_CONFLICT");
    assert!(bench.world.link(bench.ns("own"), "nic0").is_none());
    bench.del("t");
    assert!(bench.world.link(bench.ns("own"), "nic0~1").is_some(), "{:?}", bench.world.links(bench.ns("own")));
    assert!(bench.world.link(bench.ns("own"), "nic0").is_none());
    bench.assert_sound();
}

/// A veth of a host whose wishes the agent would adopt.
#[test]
fn a_veth_that_is_a_nic_is_not_adopted_and_one_of_ours_is_left_as_it_is() {
    let mut bench = Bench::new();
    let own = r#"{"name":"a","enabled":true,"host_if_name":"nic0","veth":{"peer_if_name":"b"}}"#;
    let there = veth("b", "a", "red", "");
    bench.put(&[("a", own), ("b", &there)]);
    assert_eq!([bench.state("a"), bench.state("b")], ["CONFIGURED", "CONFIGURED"]);
    bench.reserve(nic0());
    let writes = bench.writes();
    bench.put(&[("a", &own.replace("nic0", "other")), ("b", &veth("b", "a", "red", r#","mtu":1400"#))]);
    assert_eq!([bench.state("a"), bench.state("b")], ["FAILED NAME_CONFLICT", "FAILED NAME_CONFLICT"]);
    bench.del("a");
    bench.del("b");
    assert_eq!(bench.writes(), writes, "nor is it removed");
    bench.reserve(ReservedNames::default());
    assert!(bench.world.link(bench.ns("own"), "nic0").is_none(), "it goes when it is nobody's any more");
}
