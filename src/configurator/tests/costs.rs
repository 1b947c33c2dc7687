//! What work costs, counted in calls of the kernel and in wishes that are looked at: never in time.

use super::bench::{Bench, veth};
use crate::linux::LinkEvent;
use crate::linux::fake::{NetnsSettings, OpKind};
use crate::model::{ObservedAddress, ObservedLink, OperState};

fn pairs(bench: &mut Bench, numbers: std::ops::Range<usize>) {
    let mut values = Vec::new();
    for n in numbers {
        let (third, fourth) = (n / 250, n % 250);
        let one = format!(r#","ip_addresses":["10.1.{third}.{fourth}/32"]"#);
        let two = format!(r#","ip_addresses":["10.2.{third}.{fourth}/32"]"#);
        values.push((format!("a{n}"), veth(&format!("a{n}"), &format!("b{n}"), "red", &one)));
        values.push((format!("b{n}"), veth(&format!("b{n}"), &format!("a{n}"), "blue", &two)));
    }
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (&**name, &**value)).collect();
    bench.put(&values);
}

#[test]
fn a_pair_with_two_addresses_costs_five_requests_and_no_reading_of_its_own() {
    let mut bench = Bench::new();
    let before = bench.world.calls();
    pairs(&mut bench, 0..40);
    assert!(bench.states().iter().all(|state| state.ends_with(": CONFIGURED")), "{:?}", bench.states());
    let calls = bench.world.calls().since(&before);
    assert_eq!(calls.writes(), 5 * 40, "{calls:?}");
    // Each of the two namespaces when it comes into use and for the read-back; what the kernel tells of our own work is known by then.
    assert_eq!((calls.of(OpKind::ReadNetns), calls.of(OpKind::ReadLink)), (4, 0), "{calls:?}");
}

/// Behind: it does not tell of a carrier before it is asked, and never of a link that is only listed.
#[test]
fn a_link_watch_that_is_behind_is_asked_once_for_each_link() {
    let mut bench = Bench::new();
    for name in ["red", "blue"] {
        let behind = NetnsSettings { link_watch_behind: true, ..NetnsSettings::default() };
        bench.world.set_settings(bench.ns(name), behind).unwrap();
    }
    let before = bench.world.calls();
    pairs(&mut bench, 0..40);
    assert!(bench.states().iter().all(|state| state.ends_with(": CONFIGURED")), "{:?}", bench.states());
    let calls = bench.world.calls().since(&before);
    assert_eq!((calls.of(OpKind::ReadNetns), calls.of(OpKind::ReadLink)), (4, 2 * 40), "{calls:?}");
}

#[test]
fn a_carrier_and_the_kernels_own_addresses_are_taken_as_told() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..1);
    let link = bench.published.index.get("a0").unwrap().link;
    let known = bench.world.links(link.netns).into_iter().find(|seen| seen.ifindex == link.ifindex).unwrap();
    let own = known.addresses.iter().find(|address| address.kernel_made).unwrap().clone();
    let before = bench.world.calls();
    let told = |oper| LinkEvent::Link(link.netns, Box::new(ObservedLink { addresses: Vec::new(), oper, ..known.clone() }));
    bench.tell(told(OperState::LowerLayerDown));
    bench.run();
    assert_eq!(bench.world.calls(), before, "nothing is read, and nothing written");
    bench.tell(told(OperState::Up));
    for tentative in [true, false] {
        bench.tell(LinkEvent::Address(link, ObservedAddress { tentative, ..own.clone() }));
        bench.run();
    }
    bench.tell(LinkEvent::AddressGone(link, own.address));
    bench.run();
    assert_eq!((bench.world.calls(), bench.state("a0")), (before, "CONFIGURED".to_owned()));
}

#[test]
fn a_removal_is_not_read_back_and_its_end_is_taken_as_told() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..40);
    let before = bench.world.calls();
    let gone: Vec<_> = (0..40).flat_map(|n| [format!("a{n}"), format!("b{n}")]).map(|name| bench.erase(&name)).collect();
    bench.deliver(gone);
    bench.run();
    assert_eq!(bench.states(), Vec::<String>::new());
    let calls = bench.world.calls().since(&before);
    assert_eq!((calls.of(OpKind::DeleteLink), calls.of(OpKind::ReadNetns), calls.of(OpKind::ReadLink)), (40, 0, 0), "{calls:?}");
}

/// Should a note be lost, the retry looks.
#[test]
fn a_removal_whose_end_nobody_told_is_found_out() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..1);
    let gone: Vec<_> = ["a0", "b0"].map(|name| bench.erase(name)).into();
    bench.world.mute(true);
    bench.deliver(gone);
    bench.run();
    bench.world.mute(false);
    assert_eq!(bench.state("a0"), "REMOVED");
    bench.wait(std::time::Duration::from_secs(3));
    assert_eq!(bench.states(), Vec::<String>::new());
}

#[test]
fn a_change_costs_the_same_among_many() {
    let cost = |count: usize| {
        let mut bench = Bench::new();
        pairs(&mut bench, 0..count);
        let events = bench.write(&[("a3", &veth("a3", "b3", "red", r#","mtu":1400,"ip_addresses":["10.1.0.3/32"]"#))]);
        bench.deliver(events);
        let (plan, violations) = bench.preview();
        assert!(violations.is_empty(), "{violations:?}");
        let before = bench.world.calls();
        bench.run();
        assert_eq!((bench.state("a3"), bench.status("a3").mtu), ("CONFIGURED".to_owned(), 1400));
        (plan.verdicts.len(), plan.steps.len(), bench.world.calls().since(&before))
    };
    let (few, many) = (cost(5), cost(1000));
    assert_eq!(few, many);
    assert_eq!((few.0, few.1), (2, 1));
}

#[test]
fn a_resync_reads_each_namespace_once() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..40);
    let before = bench.world.calls();
    bench.list();
    bench.resync(false);
    let calls = bench.world.calls().since(&before);
    assert_eq!((calls.writes(), calls.of(OpKind::ReadNetns), calls.of(OpKind::ReadLink)), (0, 3, 0), "{calls:?}");
}

#[test]
fn what_is_known_already_is_not_read_again() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..1);
    let link = bench.published.index.get("a0").unwrap().link;
    let known = bench.world.links(link.netns).into_iter().find(|seen| seen.ifindex == link.ifindex).unwrap();
    let address = known.addresses.iter().find(|address| !address.address.is_ipv6()).unwrap().clone();
    let before = bench.world.calls();
    // As the kernel tells it: with the link's own name as a label, which a reading leaves out.
    bench.tell(LinkEvent::Address(link, ObservedAddress { label: Some("a0".into()), ..address.clone() }));
    bench.tell(LinkEvent::Link(link.netns, Box::new(ObservedLink { addresses: Vec::new(), ..known })));
    bench.run();
    assert_eq!(bench.world.calls(), before);
    bench.tell(LinkEvent::Address(link, ObservedAddress { label: Some("other".into()), ..address }));
    bench.run();
    assert_eq!(bench.world.calls().since(&before).of(OpKind::ReadLink), 1);
}

#[test]
fn a_restart_reads_each_namespace_once() {
    let mut bench = Bench::new();
    pairs(&mut bench, 0..40);
    let before = bench.world.calls();
    bench.restart();
    let calls = bench.world.calls().since(&before);
    assert_eq!((calls.writes(), calls.of(OpKind::ReadLink)), (0, 0), "{calls:?}");
    // Two of the three again: the first was read before its links' other ends could be placed.
    assert!(calls.of(OpKind::ReadNetns) <= 5, "{calls:?}");
}
