//! What others do to our links is repaired; what others made is left alone.

use std::time::Duration;

use super::bench::{Bench, the_pair, veth};
use crate::configurator::VERIFY_EVERY;
use crate::linux::LinkEvent;
use crate::model::{InterfaceAddress, LinkKind};

fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

#[test]
fn everything_done_by_hand_is_repaired() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    let (red, blue) = (bench.ns("red"), bench.ns("blue"));
    for name in ["delete", "delete peer", "down", "mtu", "rename", "address", "alias", "move"] {
        let id = bench.world.link_id(red, "veth1").unwrap_or_else(|| panic!("veth1 before {name}"));
        let world = bench.world.clone();
        match name {
            "delete" => world.delete_link(id).unwrap(),
            "delete peer" => world.delete_link(world.link_id(blue, "veth2").unwrap()).unwrap(),
            "down" => world.set_up(id, false).unwrap(),
            "mtu" => world.set_mtu(id, 900).unwrap(),
            "rename" => world.rename(id, "other").unwrap(),
            "address" => world.remove_address(id, address("10.11.1.1/24")).unwrap(),
            "alias" => world.set_alias(id, "mine").unwrap(),
            _ => drop(world.move_link(id, blue).unwrap()),
        }
        bench.run();
        assert_eq!(bench.digest(), digest, "after {name}");
        assert_eq!(bench.state("veth1"), "CONFIGURED", "after {name}");
        assert_eq!(bench.state("veth2"), "CONFIGURED", "after {name}");
        let drift = bench.published.history(1)[0].drift.clone();
        assert!(!drift.is_empty(), "{name} is told as drift");
        // A minute of peace, so that this does not count as a tug-of-war.
        bench.wait(Duration::from_secs(61));
    }
}

#[test]
fn a_deletion_is_drift_also_when_its_news_come_end_by_end() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    let one = bench.world.link_id(bench.ns("red"), "veth1").unwrap();
    let other = bench.world.link_id(bench.ns("blue"), "veth2").unwrap();
    bench.world.mute(true);
    bench.world.delete_link(one).unwrap();
    bench.world.mute(false);
    bench.tell(LinkEvent::LinkGone(one));
    bench.step();
    let drift = bench.published.history(1)[0].drift.clone();
    assert_eq!(drift, ["veth1: the link is not there", "veth2: its other end is not there"]);
    bench.tell(LinkEvent::LinkGone(other));
    bench.run();
    assert_eq!(bench.digest(), digest);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

#[test]
fn lost_events_are_found_by_the_periodic_look() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    bench.world.mute(true);
    bench.world.delete_link(bench.world.link_id(bench.ns("red"), "veth1").unwrap()).unwrap();
    bench.run();
    bench.wait(VERIFY_EVERY * 5 / 4);
    assert_eq!(bench.digest(), digest);
}

#[test]
fn a_foreign_link_under_the_wished_name_stays() {
    let mut bench = Bench::new();
    bench.world.add_link(bench.ns("red"), LinkKind::Other("bridge".into()), "veth1").unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    the_pair(&mut bench);
    assert_eq!(bench.state("veth1"), "FAILED FOREIGN_LINK");
    assert!(bench.status("veth1").message.contains("bridge `veth1`"), "{}", bench.status("veth1").message);
    assert_eq!(bench.state("veth2"), "FAILED FOREIGN_LINK");
    bench.world.foreign_untouched(&baseline).unwrap();
    bench.world.delete_link(bench.world.link_id(bench.ns("red"), "veth1").unwrap()).unwrap();
    bench.run();
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

#[test]
fn extra_addresses_are_kept_and_listed() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let id = bench.world.link_id(bench.ns("red"), "veth1").unwrap();
    bench.world.add_address(id, address("10.9.9.9/32"), 0).unwrap();
    bench.run();
    let status = bench.status("veth1");
    assert_eq!(status.extra_addresses, [address("10.9.9.9/32")]);
    assert_eq!(status.state.word(), "CONFIGURED");
}

#[test]
fn secondaries_survive_their_primary() {
    let mut bench = Bench::new();
    let with = |list: &str| veth("veth1", "veth2", "red", &format!(r#","ip_addresses":[{list}]"#));
    let all = with(r#""10.0.0.1/24","10.0.0.2/24","10.0.0.3/24""#);
    bench.put(&[("veth1", &all), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    let id = bench.world.link_id(bench.ns("red"), "veth1").unwrap();
    bench.world.add_address(id, address("10.0.0.9/24"), 0).unwrap();
    bench.run();
    bench.put(&[("veth1", &with(r#""10.0.0.2/24","10.0.0.3/24""#))]);
    let mut left: Vec<String> = bench.status("veth1").ip_addresses.iter().map(ToString::to_string).collect();
    left.sort();
    assert_eq!(left, ["10.0.0.2/24", "10.0.0.3/24", "10.0.0.9/24"]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

#[test]
fn a_tug_of_war_slows_down_and_is_told() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    for _ in 0..20 {
        if let Some(id) = bench.world.link_id(bench.ns("red"), "veth1") {
            bench.world.set_mtu(id, 1400).unwrap();
        }
        bench.run();
    }
    assert_eq!(bench.state("veth1"), "RETRYING CONTENDED");
    let status = bench.status("veth1");
    assert!(status.attempt > 0 && status.next_retry > Some(status.since), "it is told when it is tried again: {status:?}");
    assert_eq!(bench.world.link(bench.ns("red"), "veth1").unwrap().mtu, 1400, "not repaired at once any more");
    bench.wait(Duration::from_secs(61));
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

#[test]
fn a_pair_of_the_old_agent_is_adopted_on_the_very_first_start() {
    let mut bench = Bench::stopped(crate::configurator::plan::Settings::default());
    let (red, blue) = (bench.ns("red"), bench.ns("blue"));
    let (a, _) = bench.world.add_veth((red, "veth1"), (blue, "veth2")).unwrap();
    bench.world.add_address(a, address("10.11.1.1/24"), 0).unwrap();
    bench.world.add_address(a, address("10.9.9.9/32"), 0).unwrap();
    let mac = bench.world.link(red, "veth1").unwrap().mac;
    let one = veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24"],"mtu":1400"#);
    bench.write(&[("veth1", &one), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    bench.start();
    let status = bench.status("veth1");
    assert_eq!(status.state.word(), "CONFIGURED", "{}", status.message);
    assert_eq!((status.if_index, status.mtu), (a.ifindex.get(), 1400));
    assert_eq!(bench.world.link(red, "veth1").unwrap().mac, mac);
    assert_eq!(status.extra_addresses, [address("10.9.9.9/32")]);
    // What the wish names counts as ours from now on.
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", ""))]);
    assert_eq!(bench.status("veth1").ip_addresses, [address("10.9.9.9/32")]);
    // Later on nothing is adopted.
    bench.world.add_veth((red, "x1"), (blue, "x2")).unwrap();
    bench.put(&[("x1", &veth("x1", "x2", "red", "")), ("x2", &veth("x2", "x1", "blue", ""))]);
    assert_eq!(bench.state("x1"), "FAILED FOREIGN_LINK");
}

#[test]
fn the_index_follows_a_frozen_link() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.put(&[("veth2", "{")]);
    bench.put(&[("veth1", "{")]);
    let entry = bench.published.index.get("veth1").unwrap();
    bench.world.rename(entry.link, "eth9").unwrap();
    bench.run();
    let renamed = bench.published.index.get("veth1").unwrap();
    assert_eq!((renamed.link, &*renamed.host_if_name), (entry.link, "eth9"));
    bench.world.move_link(entry.link, bench.ns("own")).unwrap();
    bench.run();
    assert_eq!(bench.published.index.get("veth1"), None, "what was registered is not there any more");
}
