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
