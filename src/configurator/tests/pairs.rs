//! Pairs come, change and go.

use super::bench::{Bench, the_pair, veth};

#[test]
fn one_end_alone_waits_and_touches_nothing() {
    let mut bench = Bench::new();
    let writes = bench.writes();
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", ""))]);
    assert_eq!(bench.state("veth1"), "PENDING PEER_MISSING");
    assert_eq!(bench.status("veth1").waits_for, ["veth2"]);
    assert_eq!(bench.writes(), writes);
    bench.put(&[("veth2", &veth("veth2", "veth1", "blue", ""))]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert_eq!(bench.state("veth2"), "CONFIGURED");
    bench.del("veth1");
    assert_eq!(bench.state("veth1"), "-");
    assert_eq!(bench.state("veth2"), "PENDING PEER_MISSING");
    assert_eq!(bench.digest(), "");
    assert!(bench.published.index.is_empty());
}

#[test]
fn a_pair_is_complete_and_told() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    assert_eq!((bench.state("veth1"), bench.state("veth2")), ("CONFIGURED".into(), "CONFIGURED".into()));
    let status = bench.status("veth1");
    let addresses: Vec<String> = status.ip_addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.11.1.1/24", "fd00::1/64"]);
    assert_eq!((status.admin, status.oper, status.mtu), ("UP", "UP", 1500));
    assert_eq!(status.revision, bench.revision);
    let entry = bench.published.index.get("veth1").unwrap();
    assert_eq!(entry.link.netns, bench.ns("red"));
    assert_eq!(entry.link.ifindex.get(), status.if_index);
}

#[test]
fn a_settled_system_plans_nothing() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let writes = bench.writes();
    bench.resync(false);
    bench.restart();
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert_eq!(bench.writes(), writes, "{:?}", bench.world.take_log());
}

#[test]
fn namespaces_are_told_of_when_something_about_them_changes() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let told = |bench: &Bench| (bench.published.namespaces.snapshot().0, bench.memory.0.lock().unwrap().netns_writes);
    let users = |bench: &Bench| bench.published.namespaces.get("NAMED:red:0").map(|entry| entry.interfaces);
    let before = told(&bench);
    assert_eq!(users(&bench), Some(1));
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", r#","mtu":1400"#))]);
    assert_eq!(told(&bench), before, "a change of a wish is none of its namespace");
    bench.put(&[("veth3", &veth("veth3", "veth4", "red", ""))]);
    assert_eq!(users(&bench), Some(2));
    bench.del("veth3");
    assert_eq!(users(&bench), Some(1));
    assert_eq!(told(&bench).1, before.1, "where references lead has not changed");
    bench.del("veth1");
    assert_eq!(users(&bench), None);
    assert_eq!(told(&bench).1, before.1 + 1);
}

#[test]
fn settings_change_in_place() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let index = bench.status("veth1").if_index;
    let changed = r#","ip_addresses":["10.11.1.3/24","fd00::3/64"],"mtu":1400,"phys_address":"02:00:00:00:00:07","host_if_name":"eth7""#;
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", changed))]);
    let status = bench.status("veth1");
    assert_eq!(status.state.word(), "CONFIGURED", "{}", status.message);
    assert_eq!((status.if_index, status.mtu, &*status.host_if_name, &*status.phys_address), (index, 1400, "eth7", "02:00:00:00:00:07"));
    let addresses: Vec<String> = status.ip_addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.11.1.3/24", "fd00::3/64"]);
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", "").replace("true", "false"))]);
    let status = bench.status("veth1");
    assert_eq!((status.state.word(), status.admin, status.mtu), ("CONFIGURED", "DOWN", 1500));
    assert!(status.ip_addresses.is_empty());
}

#[test]
fn another_namespace_or_peer_makes_another_pair() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.put(&[("veth1", &veth("veth1", "veth2", "own", ""))]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert!(bench.world.link(bench.ns("red"), "veth1").is_none());
    assert!(bench.world.link(bench.ns("own"), "veth1").is_some());
    bench.put(&[("veth3", &veth("veth3", "veth1", "red", "")), ("veth1", &veth("veth1", "veth3", "own", ""))]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert_eq!(bench.state("veth3"), "CONFIGURED");
    assert_eq!(bench.state("veth2"), "PENDING PEER_MISMATCH");
    assert!(bench.world.link(bench.ns("blue"), "veth2").is_none());
}

#[test]
fn names_are_swapped_and_passed_on() {
    let mut bench = Bench::new();
    let host = |name: &str| format!(r#","host_if_name":"{name}""#);
    bench.put(&[
        ("a1", &veth("a1", "a2", "red", &host("x"))),
        ("a2", &veth("a2", "a1", "blue", &host("x"))),
        ("b1", &veth("b1", "b2", "red", &host("y"))),
        ("b2", &veth("b2", "b1", "blue", &host("y"))),
    ]);
    assert_eq!(bench.state("a1"), "CONFIGURED");
    bench.put(&[("a1", &veth("a1", "a2", "red", &host("y"))), ("b1", &veth("b1", "b2", "red", &host("x")))]);
    for name in ["a1", "a2", "b1", "b2"] {
        assert_eq!(bench.state(name), "CONFIGURED", "{name}: {}", bench.status(name).message);
    }
    assert_eq!(bench.status("a1").host_if_name, "y");
    // Two wishes for one name: who has it keeps it, and it passes on when the holder goes.
    bench.put(&[("b1", &veth("b1", "b2", "red", &host("y")))]);
    assert_eq!(bench.state("a1"), "CONFIGURED");
    assert_eq!(bench.state("b1"), "FAILED NAME_CONFLICT");
    bench.del("a1");
    assert_eq!(bench.state("b1"), "CONFIGURED");
    assert_eq!(bench.status("b1").host_if_name, "y");
}

#[test]
fn a_swap_takes_one_detour_and_fails_at_nothing() {
    let mut bench = Bench::new();
    let closed = crate::linux::fake::NetnsSettings { ipv6_disabled: true, ..Default::default() };
    bench.world.set_settings(bench.ns("red"), closed).unwrap();
    let host = |name: &str, more: &str| format!(r#","host_if_name":"{name}"{more}"#);
    bench.put(&[("a1", &veth("a1", "a2", "red", &host("x", r#","mtu":1000"#))), ("a2", &veth("a2", "a1", "blue", ""))]);
    bench.put(&[("b1", &veth("b1", "b2", "red", &host("y", ""))), ("b2", &veth("b2", "b1", "blue", ""))]);
    let writes = bench.writes();
    let more = r#","ip_addresses":["fd00::1/64"]"#;
    bench.put(&[("a1", &veth("a1", "a2", "red", &host("y", more))), ("b1", &veth("b1", "b2", "red", &host("x", "")))]);
    assert_eq!((bench.state("a1"), bench.state("b1")), ("CONFIGURED".into(), "CONFIGURED".into()));
    let failed = bench.published.counters.steps_failed.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(failed, 0, "{:#?}", bench.published.history(1));
    // One aside, two names, IPv6 switched on, the address.
    assert_eq!(bench.writes() - writes, 5, "{:#?}", bench.published.history(1));
}

#[test]
fn a_refused_removal_is_told_of_both_ends() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.world.fail_always(crate::linux::fake::OpKind::DeleteLink, nix::errno::Errno::EPERM);
    bench.put(&[("veth1", &veth("veth1", "veth2", "own", ""))]);
    assert_eq!(bench.state("veth1"), "RETRYING KERNEL_REFUSED", "{}", bench.status("veth1").message);
    assert_eq!(bench.state("veth2"), "RETRYING KERNEL_REFUSED", "{}", bench.status("veth2").message);
}

#[test]
fn both_ends_under_one_name_in_one_namespace() {
    let mut bench = Bench::new();
    let host = r#","host_if_name":"eth1""#;
    bench.put(&[("v1", &veth("v1", "v2", "red", host)), ("v2", &veth("v2", "v1", "red", host))]);
    assert_eq!(bench.state("v1"), "FAILED NAME_CONFLICT");
    assert_eq!(bench.state("v2"), "FAILED NAME_CONFLICT");
    bench.put(&[("v2", &veth("v2", "v1", "blue", host))]);
    assert_eq!(bench.state("v1"), "CONFIGURED");
}

#[test]
fn both_ends_come_to_want_one_name() {
    let mut bench = Bench::new();
    let host = |name: &str| format!(r#","host_if_name":"{name}""#);
    bench.put(&[("v1", &veth("v1", "v2", "red", &host("eth1"))), ("v2", &veth("v2", "v1", "red", &host("eth2")))]);
    let digest = bench.digest();
    bench.put(&[("v2", &veth("v2", "v1", "red", &host("eth1")))]);
    assert_eq!(bench.state("v1"), "FAILED NAME_CONFLICT");
    assert_eq!(bench.state("v2"), "FAILED NAME_CONFLICT");
    assert_eq!(bench.digest(), digest, "what stands under other names stays");
    bench.put(&[("v2", &veth("v2", "v1", "red", &host("eth3")))]);
    assert_eq!(bench.state("v1"), "CONFIGURED");
    assert_eq!(bench.status("v2").host_if_name, "eth3");
}

#[test]
fn each_end_says_its_own_trouble() {
    let mut bench = Bench::new();
    let host = r#","host_if_name":"x""#;
    bench.put(&[("n1", &veth("n1", "n2", "red", host))]);
    bench.world.add_link(bench.ns("blue"), crate::model::LinkKind::Other("bridge".into()), "veth2").unwrap();
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", host)), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    assert_eq!(bench.state("veth1"), "FAILED NAME_CONFLICT");
    assert_eq!(bench.state("veth2"), "FAILED FOREIGN_LINK");
}

#[test]
fn a_pair_leaves_a_namespace_also_where_its_name_is_taken_in_the_next() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let host = r#","host_if_name":"veth1""#;
    bench.put(&[("n1", &veth("n1", "n2", "own", host)), ("n2", &veth("n2", "n1", "blue", ""))]);
    bench.put(&[("veth1", &veth("veth1", "veth2", "own", ""))]);
    assert_eq!(bench.state("veth1"), "FAILED NAME_CONFLICT");
    assert!(bench.world.link(bench.ns("red"), "veth1").is_none(), "nobody wishes it there any more");
    bench.del("n1");
    assert_eq!(bench.state("veth1"), "CONFIGURED");
}

#[test]
fn peers_that_do_not_answer() {
    let mut bench = Bench::new();
    bench.put(&[("a", &veth("a", "b", "red", "")), ("b", &veth("b", "c", "blue", "")), ("c", &veth("c", "b", "red", ""))]);
    assert_eq!(bench.state("a"), "PENDING PEER_MISMATCH");
    assert_eq!(bench.state("b"), "CONFIGURED");
    assert_eq!(bench.state("c"), "CONFIGURED");
}

#[test]
fn an_invalid_update_freezes_what_stands() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    bench.put(&[("veth1", "{")]);
    assert_eq!(bench.state("veth1"), "INVALID BAD_ENCODING");
    assert_eq!(bench.state("veth2"), "CONFIGURED");
    assert_eq!(bench.digest(), digest);
    bench.restart();
    assert_eq!(bench.state("veth1"), "INVALID BAD_ENCODING");
    assert_eq!(bench.state("veth2"), "CONFIGURED");
    assert_eq!(bench.digest(), digest);
    // The valid end still follows its own key.
    bench.put(&[("veth2", &veth("veth2", "veth1", "blue", r#","mtu":1300"#))]);
    assert_eq!(bench.status("veth2").mtu, 1300);
    bench.del("veth1");
    assert_eq!(bench.digest(), "");
    assert_eq!(bench.state("veth2"), "PENDING PEER_MISSING");
}

#[test]
fn a_namespace_goes_and_comes_back() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    let digest = bench.digest();
    bench.kill_netns("blue");
    assert_eq!(bench.state("veth1"), "PENDING NAMESPACE_MISSING");
    assert_eq!(bench.state("veth2"), "PENDING NAMESPACE_MISSING");
    assert_eq!(bench.digest(), "");
    bench.add_netns("blue");
    assert_eq!(bench.state("veth1"), "CONFIGURED", "{}", bench.status("veth1").message);
    assert_eq!(bench.digest().lines().count(), digest.lines().count());
}

#[test]
fn a_namespace_out_of_reach_takes_our_end_along() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.unmount("blue");
    assert_eq!(bench.state("veth2"), "PENDING NAMESPACE_MISSING");
    assert!(bench.world.link(bench.ns("red"), "veth1").is_none());
    bench.del("veth1");
    bench.del("veth2");
    assert_eq!(bench.digest(), "");
}

#[test]
fn another_type_takes_the_old_link_away() {
    let mut bench = Bench::new();
    the_pair(&mut bench);
    bench.put(&[("veth1", r#"{"name":"veth1","type":"TAP","enabled":true,"namespace":{"type":"NAMED_NS","name":"red"}}"#)]);
    assert_eq!(bench.state("veth1"), "CONFIGURED");
    assert_eq!(bench.state("veth2"), "PENDING PEER_MISMATCH");
    assert_eq!(bench.digest().lines().count(), 1, "{}", bench.digest());
    the_pair(&mut bench);
    assert_eq!((bench.state("veth1"), bench.state("veth2")), ("CONFIGURED".into(), "CONFIGURED".into()));
}
