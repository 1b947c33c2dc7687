//! TAPs that we make: what is changed in place, what makes them anew, and what a program that has one open may do.

use super::bench::{Bench, veth};
use crate::linux::fake::OpKind;
use crate::model::{LinkId, LinkKind, TunInfo};
use nix::errno::Errno;

fn tap(settings: &str, more: &str) -> String {
    format!(r#"{{"name":"tap1","type":"TAP","enabled":true,"namespace":{{"type":"NAMED_NS","name":"red"}},"tap":{{{settings}}}{more}}}"#)
}

fn id(bench: &Bench) -> LinkId {
    bench.world.link_id(bench.ns("red"), "tap1").expect("the TAP is there")
}

fn tun(bench: &Bench) -> TunInfo {
    let LinkKind::Tun(info) = bench.world.link(bench.ns("red"), "tap1").unwrap().kind else { panic!("no TAP") };
    info
}

/// What the passes since the start did, as text.
fn history(bench: &Bench) -> String {
    let steps = bench.published.history(100).into_iter().flat_map(|pass| pass.steps.clone()).map(|step| step.step.to_string());
    steps.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_tap_costs_one_creation_and_one_request_per_address() {
    let mut bench = Bench::new();
    let writes = bench.writes();
    bench.put(&[("tap1", &tap("", r#","mtu":1400,"phys_address":"02:00:00:00:00:01","ip_addresses":["10.0.0.1/24","fd00::1/64"]"#))]);
    assert_eq!(bench.state("tap1"), "CONFIGURED", "{}", bench.status("tap1").message);
    assert_eq!(bench.writes() - writes, 3);
    let status = bench.status("tap1");
    assert_eq!((status.peer.as_str(), status.mtu, status.admin, status.oper), ("", 1400, "UP", "DOWN"));
    assert_eq!(bench.published.index.get("tap1").unwrap().link, id(&bench));
    let writes = bench.writes();
    bench.resync(false);
    bench.restart();
    assert_eq!(bench.writes(), writes, "{:?}", bench.world.take_log());
}

#[test]
fn what_can_change_in_place_never_makes_it_anew() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap("", r#","ip_addresses":["10.0.0.1/24"]"#))]);
    let before = id(&bench);
    bench.world.set_tun(before, |info| info.open = true).unwrap();
    for more in [r#","ip_addresses":["10.0.0.2/24"]"#, r#","mtu":1300"#, r#","phys_address":"02:00:00:00:00:05""#] {
        bench.put(&[("tap1", &tap("", more))]);
        assert_eq!(bench.state("tap1"), "CONFIGURED", "{more}");
        bench.put(&[("tap1", &tap("", more).replace("true", "false"))]);
        assert_eq!((bench.state("tap1").as_str(), bench.status("tap1").admin), ("CONFIGURED", "DOWN"), "{more}");
        assert_eq!(id(&bench), before, "{more}");
    }
}

#[test]
fn other_settings_make_it_anew_and_say_so() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap(r#""owner":1000"#, r#","ip_addresses":["10.0.0.1/24"]"#))]);
    for (settings, says) in [
        (r#""owner":1001"#, "owner is 1000, wished 1001"),
        ("", "owner is 1001, wished nobody"),
        (r#""owner":0"#, "owner is nobody, wished 0"),
        (r#""group":7"#, "group is nobody, wished 7"),
        (r#""multi_queue":true"#, "multi_queue is off, wished on"),
        (r#""vnet_hdr":true"#, "vnet_hdr is off, wished on"),
        (r#""mode":"TUN""#, "mode is TAP, wished TUN"),
    ] {
        let before = id(&bench);
        bench.put(&[("tap1", &tap(settings, r#","ip_addresses":["10.0.0.1/24"]"#))]);
        assert_eq!(bench.state("tap1"), "CONFIGURED", "{settings}");
        assert_ne!(id(&bench), before, "{settings}");
        assert!(history(&bench).contains(says), "{says} is not in:\n{}", history(&bench));
        assert_eq!(bench.digest().lines().count(), 1, "{}", bench.digest());
    }
}

/// Its program cannot be spared; so it is told.
#[test]
fn that_a_program_loses_it_is_said() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap("", ""))]);
    bench.world.set_tun(id(&bench), |info| info.open = true).unwrap();
    bench.run();
    bench.put(&[("tap1", &tap(r#""owner":1"#, ""))]);
    let told = history(&bench);
    assert!(told.contains("under the program that has it open to make it anew: owner is nobody, wished 1"), "{told}");
    bench.del("tap1");
    assert_eq!(history(&bench).matches("under the program").count(), 1, "nobody has opened the new one");
}

#[test]
fn whoever_opens_it_chooses_its_header() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap("", ""))]);
    let before = id(&bench);
    bench.world.set_tun(before, |info| (info.open, info.vnet_hdr, info.packet_info) = (true, true, true)).unwrap();
    bench.run();
    assert_eq!((bench.state("tap1").as_str(), id(&bench)), ("CONFIGURED", before));
    assert!(bench.status("tap1").warnings.iter().any(|w| w.contains("vnet_hdr is on, wished off")), "{:?}", bench.status("tap1").warnings);
    bench.restart();
    assert_eq!(id(&bench), before, "it is open");
    bench.world.set_tun(before, |info| info.open = false).unwrap();
    bench.run();
    assert_eq!((bench.state("tap1").as_str(), id(&bench)), ("CONFIGURED", before), "its program may be about to open it again");
    let writes = bench.writes();
    bench.restart();
    assert_eq!(bench.writes(), writes);
    bench.put(&[("tap1", &tap(r#""vnet_hdr":true"#, ""))]);
    assert_eq!(id(&bench), before, "it has the wished one");
    assert_eq!(bench.status("tap1").warnings, [""; 0]);
    bench.put(&[("tap1", &tap("", ""))]);
    assert_ne!(id(&bench), before, "another wish, and nobody has it open");
    assert_eq!(bench.status("tap1").warnings, [""; 0]);
}

#[test]
fn what_others_did_to_it_is_repaired() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap("", r#","ip_addresses":["10.0.0.1/24"]"#))]);
    bench.world.set_tun(id(&bench), |info| info.persist = false).unwrap();
    bench.run();
    assert!(tun(&bench).persist);
    bench.world.delete_link(id(&bench)).unwrap();
    bench.run();
    let before = id(&bench);
    bench.world.set_alias(before, "").unwrap();
    bench.run();
    assert_eq!((bench.state("tap1").as_str(), id(&bench)), ("CONFIGURED", before), "its group still tells that it is ours");
    let drift: Vec<String> = bench.published.history(100).iter().flat_map(|pass| pass.drift.clone()).collect();
    for what in ["persistence is off, wished on", "the link is not there", "alias ``"] {
        assert!(drift.iter().any(|line| line.contains(what)), "{what}: {drift:?}");
    }
}

#[test]
fn a_foreign_tap_is_not_touched() {
    let mut bench = Bench::new();
    let foreign = bench.world.add_link(bench.ns("red"), LinkKind::Tun(TunInfo { tap: true, ..TunInfo::default() }), "tap1").unwrap();
    let baseline = bench.world.baseline(&bench.owner);
    bench.put(&[("tap1", &tap("", ""))]);
    assert_eq!(bench.state("tap1"), "FAILED FOREIGN_LINK");
    bench.world.foreign_untouched(&baseline).unwrap();
    bench.world.delete_link(foreign).unwrap();
    bench.run();
    assert_eq!(bench.state("tap1"), "CONFIGURED");
}

#[test]
fn a_name_belongs_to_whoever_has_it() {
    let mut bench = Bench::new();
    let host = r#","host_if_name":"tap1""#;
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", host)), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    bench.put(&[("tap1", &tap("", ""))]);
    assert_eq!(bench.state("tap1"), "FAILED NAME_CONFLICT");
    bench.put(&[("veth1", &veth("veth1", "veth2", "red", ""))]);
    assert_eq!((bench.state("tap1"), bench.state("veth1")), ("CONFIGURED".into(), "CONFIGURED".into()));
}

#[test]
fn a_refused_creation_is_tried_again() {
    let mut bench = Bench::new();
    bench.world.fail_always(OpKind::CreateTap, Errno::EOPNOTSUPP);
    bench.put(&[("tap1", &tap("", ""))]);
    assert_eq!(bench.state("tap1"), "RETRYING KERNEL_REFUSED");
    bench.world.heal();
    bench.settle();
    assert_eq!(bench.state("tap1"), "CONFIGURED");
}

#[test]
fn an_invalid_key_holds_it_and_a_namespace_takes_it_along() {
    let mut bench = Bench::new();
    bench.put(&[("tap1", &tap("", ""))]);
    let digest = bench.digest();
    bench.put(&[("tap1", &tap("", r#","mtu":65522"#))]);
    bench.restart();
    assert_eq!((bench.state("tap1").as_str(), bench.digest()), ("INVALID BAD_MTU", digest));
    bench.put(&[("tap1", &tap("", ""))]);
    bench.kill_netns("red");
    assert_eq!(bench.state("tap1"), "PENDING NAMESPACE_MISSING");
    bench.add_netns("red");
    assert_eq!(bench.state("tap1"), "CONFIGURED");
    bench.put(&[("tap1", &tap("", "").replace("red", "blue"))]);
    assert!(bench.world.link(bench.ns("red"), "tap1").is_none() && bench.world.link(bench.ns("blue"), "tap1").is_some());
    bench.del("tap1");
    assert_eq!((bench.state("tap1").as_str(), bench.digest().as_str()), ("-", ""));
}
