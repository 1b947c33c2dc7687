//! What work costs, counted in calls of the kernel and in wishes that are looked at: never in time.

use super::bench::{Bench, veth};
use crate::linux::LinkEvent;
use crate::linux::fake::OpKind;
use crate::model::{ObservedAddress, ObservedLink};

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
