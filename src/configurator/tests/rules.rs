//! HOLD, adoption and frozen objects, rule by rule.

use super::bench::{Bench, the_pair, veth};
use crate::configurator::plan::Settings;
use crate::model::{InterfaceAddress, ReservedNames};
use crate::store::{StoreEvent, Versioned};

fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

fn wiped() -> (Bench, std::collections::BTreeMap<String, crate::store::Versioned>) {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let kept = std::mem::take(&mut bench.store);
    bench.cluster = 77;
    bench.list();
    bench.run();
    assert!(bench.published.hold.borrow().is_some());
    (bench, kept)
}

#[test]
fn what_is_held_is_also_repaired_and_changed() {
    let (mut bench, _) = wiped();
    let digest = bench.digest();
    let red = bench.ns("red");
    bench.world.delete_link(bench.world.link_id(red, "veth1").unwrap()).unwrap();
    bench.run();
    assert_eq!(bench.digest(), digest, "re-creation is no removal");
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert!(bench.status("veth1").warnings.iter().any(|warning| warning.contains("held back")));
    // A change that needs a new pair is a change.
    bench.put(&[("veth1", &veth("veth1", "veth2", "own", ""))]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert!(bench.world.link(red, "veth1").is_none());
    // A deletion is not carried out.
    let digest = bench.digest();
    bench.del("veth1");
    assert_eq!(bench.digest(), digest);
    let kept = bench.published.hold.borrow().clone().unwrap().kept;
    assert_eq!(kept, ["veth1", "veth2"]);
}

#[test]
fn hold_ends_when_the_keys_are_written_one_by_one() {
    let (mut bench, kept) = wiped();
    let value = |name: &str| String::from_utf8(kept[&format!("linux/config/v1/interface/{name}")].value.clone()).unwrap();
    bench.put(&[("veth1", &value("veth1"))]);
    assert_eq!(bench.published.hold.borrow().clone().unwrap().kept, ["veth2"]);
    bench.put(&[("veth2", &value("veth2"))]);
    assert!(bench.published.hold.borrow().is_none());
    // From now on a deletion counts, also after a restart.
    bench.restart();
    assert!(bench.published.hold.borrow().is_none());
    bench.del("veth1");
    assert_eq!(bench.digest(), "");
}

/// The NIC of an external node is nobody's wish here, but it is given back when HOLD ends.
#[test]
fn hold_lasts_as_long_as_the_node_of_a_nic_is_missing() {
    let (mut bench, kept) = wiped();
    assert_eq!(*bench.published.judged_listings.borrow(), 2);
    let mut names = ReservedNames::default();
    names.add_nic("eth0", ["eth0~"]);
    bench.reserve(names);
    let values =
        ["veth1", "veth2"].map(|name| String::from_utf8(kept[&format!("linux/config/v1/interface/{name}")].value.clone()).unwrap());
    bench.put(&[("veth1", &values[0]), ("veth2", &values[1])]);
    assert_eq!(bench.published.hold.borrow().clone().unwrap().kept, ["node vpp1"]);
    bench.list();
    bench.run();
    assert_eq!(bench.published.hold.borrow().clone().unwrap().kept, ["node vpp1"]);
    let node = || "external/config/v1/node/vpp1".to_owned();
    bench.deliver(vec![StoreEvent::Delete(node(), bench.revision)]);
    bench.run();
    assert!(bench.published.hold.borrow().is_some());
    let value = Versioned { value: Vec::new(), create_revision: bench.revision, mod_revision: bench.revision };
    bench.deliver(vec![StoreEvent::Apply(node(), value)]);
    bench.run();
    assert!(bench.published.hold.borrow().is_none());
}

#[test]
fn the_same_store_at_a_later_revision_is_no_reason_to_hold() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.kill();
    bench.erase("veth1");
    bench.revision += 1000;
    bench.start();
    assert!(bench.published.hold.borrow().is_none());
    assert_eq!(bench.digest(), "");
}

/// An unmarked pair under the wished names, at the start of an agent with this history.
fn unmarked(bench: &mut Bench) {
    let (red, blue) = (bench.ns("red"), bench.ns("blue"));
    let (a, _) = bench.world.add_veth((red, "veth1"), (blue, "veth2")).unwrap();
    bench.world.add_address(a, address("10.11.1.1/24"), 0).unwrap();
    bench.world.add_address(a, address("10.9.9.9/32"), 0).unwrap();
    let one = veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24"]"#);
    bench.write(&[("veth1", &one), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
}

#[test]
fn nothing_is_adopted_after_the_first_start_unless_by_request() {
    let mut bench = Bench::new();
    bench.kill();
    unmarked(&mut bench);
    let baseline = bench.world.baseline(&bench.owner);
    bench.start();
    assert_eq!(bench.state("veth1"), "FAILED FOREIGN_LINK");
    assert_eq!(bench.state("veth2"), "FAILED FOREIGN_LINK");
    bench.world.foreign_untouched(&baseline).unwrap();
    bench.adopt("veth2");
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert_eq!(bench.status("veth1").extra_addresses, [address("10.9.9.9/32")]);
    // The permission is used up: what stands there next is foreign again.
    bench.world.delete_link(bench.world.link_id(bench.ns("red"), "veth1").unwrap()).unwrap();
    bench.world.add_veth((bench.ns("red"), "veth1"), (bench.ns("blue"), "veth2")).unwrap();
    bench.run();
    assert_eq!(bench.state("veth1"), "FAILED FOREIGN_LINK");
}

#[test]
fn adopted_addresses_are_ours_and_others_are_not() {
    let mut bench = Bench::stopped(Settings::default());
    unmarked(&mut bench);
    bench.start();
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    bench.restart();
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.7/24"]"#))]);
    let mut shown: Vec<String> = bench.status("veth1").ip_addresses.iter().map(ToString::to_string).collect();
    shown.sort();
    assert_eq!(shown, ["10.11.1.7/24", "10.9.9.9/32"]);
    bench.del("veth1");
    assert_eq!(bench.digest(), "", "an adopted pair goes with its key");
}

#[test]
fn a_pair_that_fits_by_half_is_not_adopted() {
    let mut bench = Bench::stopped(Settings::default());
    bench.world.add_veth((bench.ns("red"), "veth1"), (bench.ns("blue"), "another")).unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    bench.write(&[("veth1", &veth("veth1", "veth2", "red", "")), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    bench.start();
    assert_eq!(bench.state("veth1"), "FAILED FOREIGN_LINK");
    bench.world.foreign_untouched(&baseline).unwrap();
}

/// Every way to be invalid freezes what stands, also over a restart, and each is left in the same way.
#[test]
fn every_invalid_update_freezes() {
    let values = [
        "",
        "null",
        "[]",
        r#"{"name":"other","veth":{"peer_if_name":"veth2"}}"#,
        &veth("veth1", "veth1", "red", ""),
        &veth("veth1", "veth2", "red", r#","mtu":67"#),
        &veth("veth1", "veth2", "red", r#","ip_addresses":["224.0.0.1/24"]"#),
        &veth("veth1", "veth2", "red", r#","phys_address":"ff:ff:ff:ff:ff:ff""#),
        &veth("veth1", "veth2", "red", r#","host_if_name":"a b""#),
    ];
    for value in values {
        let mut bench = Bench::new();
        the_pair(&mut bench);
        let (digest, writes) = (bench.digest(), bench.writes());
        bench.put(&[("veth1", value)]);
        assert!(bench.state("veth1").starts_with("INVALID "), "{value}: {}", bench.state("veth1"));
        bench.restart();
        assert_eq!((bench.digest(), bench.writes()), (digest, writes), "{value}");
        assert!(bench.status("veth1").message.contains("stays as it is"), "{value}: {}", bench.status("veth1").message);
        assert_eq!(bench.state("veth2"), "CONFIGURED", "{value}");
        the_pair(&mut bench);
        assert_eq!(bench.state("veth1"), "CONFIGURED", "{value}");
        assert_eq!(bench.writes(), writes, "{value}: the same value again changes nothing");
    }
}

#[test]
fn a_first_listing_that_is_broken_off_leaves_nothing() {
    let mut bench = Bench::stopped(Settings::default());
    let long = "x".repeat(240);
    let listed = bench.write(&[
        ("gone1", &veth("gone1", &long, "red", "")),
        (&long, &veth(&long, "gone1", "missing", r#","host_if_name":"gone2""#)),
        ("veth1", &veth("veth1", "veth2", "red", r#","mtu":1400"#)),
    ]);
    let page = listed.into_iter().map(|event| match event {
        StoreEvent::Apply(key, value) => StoreEvent::InitApply(key, value),
        other => other,
    });
    bench.deliver(std::iter::once(StoreEvent::Init).chain(page).collect());
    bench.step();
    assert_eq!((bench.states(), bench.asked(), bench.writes()), (Vec::new(), Vec::new(), 0), "nothing is begun before it is complete");
    bench.erase("gone1");
    bench.erase(&long);
    bench.write(&[("veth1", &veth("veth1", "veth2", "red", "")), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    bench.start();
    assert_eq!(bench.states(), ["veth1: CONFIGURED", "veth2: CONFIGURED"]);
    assert_eq!((bench.status("veth1").mtu, bench.asked()), (1500, vec!["blue".to_owned(), "red".to_owned()]));
}
