//! Nothing is left behind, and nothing is removed on half a truth.

use super::bench::{Bench, the_pair, veth};
use crate::linux::fake::{OpKind, SingleFault};
use crate::model::LinkKind;
use nix::errno::Errno;

#[test]
fn what_lost_its_key_while_the_agent_was_away_goes() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.kill();
    bench.erase("veth1");
    bench.erase("veth2");
    bench.start();
    assert_eq!(bench.digest(), "");
    assert!(bench.published.statuses.is_empty());
}

#[test]
fn nothing_happens_before_the_first_listing() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let (digest, writes) = (bench.digest(), bench.writes());
    bench.kill();
    bench.run();
    assert_eq!((bench.digest(), bench.writes()), (digest, writes));
    assert!(bench.published.statuses.is_empty());
}

#[test]
fn a_wiped_store_removes_nothing_until_it_is_accepted() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    let kept = std::mem::take(&mut bench.store);
    bench.revision = 1;
    bench.list();
    bench.run();
    assert_eq!(bench.digest(), digest);
    assert!(bench.published.hold.borrow().as_ref().unwrap().why.contains("revision went back"));
    // Additions work meanwhile.
    bench.put(&[("n1", &veth("n1", "n2", "red", "")), ("n2", &veth("n2", "n1", "blue", ""))]);
    assert_eq!(bench.state("n1"), "CONFIGURED");
    // Over a restart as well.
    bench.restart();
    assert!(bench.published.hold.borrow().is_some());
    assert!(bench.digest().contains("veth1"));
    // The keys come back: HOLD ends by itself.
    let mut back = bench.store.clone();
    back.extend(kept);
    bench.store = back;
    bench.list();
    bench.run();
    assert!(bench.published.hold.borrow().is_none());
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    // Wiped again, and this time meant.
    bench.store.clear();
    bench.cluster = 99;
    bench.list();
    bench.run();
    assert!(bench.digest().contains("veth1"));
    bench.resync(true);
    assert_eq!(bench.digest(), "");
    assert!(bench.published.hold.borrow().is_none());
}

#[test]
fn canaries_with_similar_names_stay() {
    let mut bench = Bench::new();
    for netns in ["own", "red", "blue"] {
        for name in ["veth", "veth11", "veth1.", "xveth1"] {
            bench.world.add_link(bench.ns(netns), LinkKind::Other("bridge".into()), name).unwrap();
        }
    }
    let baseline = bench.world.baseline(&bench.owner);
    the_pair(&mut bench);
    bench.restart();
    bench.del("veth1");
    bench.del("veth2");
    bench.world.foreign_untouched(&baseline).unwrap();
    assert!(bench.world.foreign_writes(&bench.owner).is_empty());
    assert_eq!(bench.world.misuses(), Vec::<String>::new());
}

/// Every single request of a whole life fails once, in every way: it always ends as wished.
#[test]
fn every_single_fault_converges() {
    let life = |bench: &mut Bench| {
        the_pair(bench);
        let changed = r#","ip_addresses":["10.11.1.3/24","fd00::3/64"],"mtu":1400,"host_if_name":"eth7""#;
        bench.put(&[("veth1", &veth("veth1", "veth2", "red", changed))]);
        bench.put(&[("veth2", &veth("veth2", "veth1", "own", ""))]);
    };
    let mut calm = Bench::new();
    let before = calm.world.calls();
    life(&mut calm);
    let wanted = calm.digest();
    let faults =
        calm.world.calls().since(&before).single_faults(&[Errno::EPERM, Errno::ENOMEM, Errno::EBUSY, Errno::ENODEV, Errno::EEXIST]);
    assert!(faults.len() > 50, "only {} faults", faults.len());
    for fault in faults {
        let mut bench = Bench::new();
        let shifted = SingleFault { n: fault.n + bench.world.calls().of(fault.kind), ..fault };
        bench.world.inject(shifted);
        life(&mut bench);
        for _ in 0..5 {
            bench.wait(std::time::Duration::from_secs(61));
        }
        assert_eq!(bench.digest(), wanted, "after {fault:?}");
        assert_eq!(bench.state("veth1"), "CONFIGURED", "after {fault:?}");
        let writes = bench.writes();
        bench.resync(false);
        assert_eq!(bench.writes(), writes, "a settled system plans nothing, after {fault:?}");
        assert!(bench.world.foreign_writes(&bench.owner).is_empty(), "after {fault:?}");
    }
}

#[test]
fn a_kernel_that_refuses_for_ever_is_told_and_retried_without_haste() {
    let mut bench = Bench::new();
    bench.world.fail_always(OpKind::CreateVeth, Errno::ENOMEM);
    the_pair(&mut bench);
    let status = bench.status("veth1");
    assert_eq!(bench.state("veth1"), "RETRYING KERNEL_REFUSED");
    assert!(status.message.contains("ENOMEM"), "{}", status.message);
    assert_eq!(status.attempt, 1);
    assert!(status.next_retry.is_some());
    assert_eq!(bench.state("veth2"), "RETRYING KERNEL_REFUSED");
    bench.world.heal();
    bench.wait(std::time::Duration::from_secs(61));
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

/// The kernel names the other end of a pair by its index only: in new namespaces all of them have the same.
#[test]
fn equal_indexes_do_not_make_a_pair() {
    let mut bench = Bench::new();
    bench.add_netns("green");
    bench.put(&[("a1", &veth("a1", "a2", "red", "")), ("a2", &veth("a2", "a1", "own", ""))]);
    bench.put(&[("b1", &veth("b1", "b2", "blue", "")), ("b2", &veth("b2", "b1", "green", ""))]);
    let indexes = ["a1", "a2", "b1", "b2"].map(|name| bench.status(name).if_index);
    assert_eq!(indexes, [2, 2, 2, 2]);
    let events = ["a2", "b1", "b2"].map(|name| bench.erase(name));
    bench.deliver(events.into());
    bench.run();
    assert_eq!(bench.digest(), "");
    assert_eq!(bench.states(), ["a1: PENDING PEER_MISSING"]);
}

/// The same for what is taken over: one end of ours and someone's link under the name of the other one are no pair.
#[test]
fn equal_indexes_do_not_make_a_foreign_link_ours() {
    let mut bench = Bench::new();
    bench.add_netns("green");
    the_pair(&mut bench);
    let true_end = bench.world.link_id(bench.ns("blue"), "veth2").unwrap();
    bench.world.rename(true_end, "hidden").unwrap();
    bench.world.set_alias(true_end, "").unwrap();
    let moved = bench.world.move_link(true_end, bench.ns("own")).unwrap();
    assert_eq!(moved.ifindex, true_end.ifindex);
    bench.world.set_last_index(bench.ns("blue"), 1);
    bench.world.add_veth((bench.ns("blue"), "veth2"), (bench.ns("green"), "theirs")).unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    bench.run();
    bench.world.foreign_untouched(&baseline).unwrap();
    assert_eq!(bench.world.foreign_writes(&bench.owner).len(), 0);
    assert_eq!(bench.state("veth2"), "FAILED FOREIGN_LINK");
}

/// The safety net: whatever removal was missed is found by looking at everything.
#[test]
fn a_link_without_a_key_is_found_by_every_full_look() {
    let mut bench = Bench::new();
    for by_request in [true, false] {
        bench.world.mute(true);
        let (a, b) = bench.world.add_veth((bench.ns("red"), "x1"), (bench.ns("own"), "x2")).unwrap();
        bench.put(&[("y1", &veth("y1", "y2", "red", "")), ("y2", &veth("y2", "y1", "blue", ""))]);
        bench.world.set_alias(a, "vnf-agent:vpp1:veth:x1").unwrap();
        bench.world.set_alias(b, "vnf-agent:vpp1:veth:x2").unwrap();
        bench.world.mute(false);
        if by_request {
            bench.resync(false);
        } else {
            bench.settle();
        }
        assert!(bench.world.link(bench.ns("red"), "x1").is_none(), "by request: {by_request}");
        bench.del("y1");
    }
}
