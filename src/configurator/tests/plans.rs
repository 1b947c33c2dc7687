//! The text of the plan for each typical situation, compared with a file that people can read. `UPDATE_GOLDEN=1` writes the files anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::bench::{Bench, killer, the_pair, veth};
use crate::configurator::plan::Settings;
use crate::linux::fake::{NetnsSettings, OpKind};
use crate::model::{InterfaceAddress, LinkKind};

/// What happens, what is planned for it, and how all stands afterwards.
struct Sheet {
    bench: Bench,
    text: String,
}

impl Sheet {
    fn new() -> Self {
        Self { bench: Bench::new(), text: String::new() }
    }

    fn with_pair() -> Self {
        let mut sheet = Self::new();
        the_pair(&mut sheet.bench);
        sheet
    }

    fn write(&mut self, values: &[(&str, &str)]) {
        let events = self.bench.write(values);
        self.bench.deliver(events);
    }

    fn erase(&mut self, name: &str) {
        let event = self.bench.erase(name);
        self.bench.deliver(vec![event]);
    }

    /// Notes the first plan, checks it, and lets it be carried out.
    fn plan(&mut self, what: &str) {
        let (plan, violations) = self.bench.preview();
        assert_eq!(violations, [], "{what}: {plan}");
        let _ = write!(self.text, "{what}\n{plan}");
        self.bench.run();
        let _ = writeln!(self.text, "  then {}\n", self.bench.states().join(", "));
        let (plan, _) = self.bench.preview();
        assert!(plan.steps.is_empty(), "{what}: still to do afterwards: {plan}");
        self.bench.assert_sound();
    }

    fn compare(self, name: &str) {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "src/configurator/tests/golden", &format!("{name}.txt")].iter().collect();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &self.text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}; UPDATE_GOLDEN=1 writes it", path.display()));
        assert!(golden == self.text, "{} differs; now it is\n{}\nUPDATE_GOLDEN=1 writes it anew", path.display(), self.text);
    }
}

fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
}

#[test]
fn create_a_pair() {
    let mut sheet = Sheet::new();
    sheet.write(&[("veth1", &veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24","fd00::1/64"]"#))]);
    sheet.plan("one end is written");
    sheet.write(&[("veth2", &veth("veth2", "veth1", "blue", r#","mtu":9000,"phys_address":"02:00:00:00:00:02""#))]);
    sheet.plan("the other end is written");
    sheet.compare("create_a_pair");
}

#[test]
fn change_settings() {
    let mut sheet = Sheet::with_pair();
    let changed = r#","ip_addresses":["10.11.1.3/24","fd00::3/64"],"mtu":1400,"phys_address":"02:00:00:00:00:07","host_if_name":"eth7""#;
    sheet.write(&[("veth1", &veth("veth1", "veth2", "red", changed))]);
    sheet.plan("name, MTU, hardware address and addresses change");
    sheet.write(&[("veth1", &veth("veth1", "veth2", "red", &changed.replace("fd00::3/64", "fd00::3/48")))]);
    sheet.plan("an IPv6 address gets another prefix length");
    sheet.compare("change_settings");
}

#[test]
fn swap_names() {
    let mut sheet = Sheet::new();
    let host = |name: &str| format!(r#","host_if_name":"{name}""#);
    let end = |name: &str, peer: &str, netns: &str, to: &str| veth(name, peer, netns, &host(to));
    sheet.write(&[("a1", &end("a1", "a2", "red", "x")), ("a2", &end("a2", "a1", "blue", "x"))]);
    sheet.write(&[("b1", &end("b1", "b2", "red", "y")), ("b2", &end("b2", "b1", "blue", "y"))]);
    sheet.write(&[("c1", &end("c1", "c2", "red", "z")), ("c2", &end("c2", "c1", "blue", "z"))]);
    sheet.plan("three pairs");
    sheet.write(&[("a1", &end("a1", "a2", "red", "y")), ("b1", &end("b1", "b2", "red", "x"))]);
    sheet.plan("two swap their names");
    sheet.write(&[("a1", &end("a1", "a2", "red", "z")), ("b1", &end("b1", "b2", "red", "y")), ("c1", &end("c1", "c2", "red", "x"))]);
    sheet.plan("three pass them on in a circle");
    sheet.compare("swap_names");
}

#[test]
fn change_namespace() {
    let mut sheet = Sheet::with_pair();
    sheet.write(&[("veth1", &veth("veth1", "veth2", "own", r#","ip_addresses":["10.11.1.1/24"]"#))]);
    sheet.plan("one end is wished in another namespace");
    sheet.bench.kill_netns("blue");
    sheet.plan("the other one's namespace has ended");
    sheet.compare("change_namespace");
}

#[test]
fn delete_keys() {
    let mut sheet = Sheet::with_pair();
    sheet.erase("veth2");
    sheet.plan("one key is deleted");
    sheet.erase("veth1");
    sheet.plan("the other one too");
    sheet.compare("delete_keys");
}

#[test]
fn adopt() {
    let mut sheet = Sheet { bench: Bench::stopped(Settings::default()), text: String::new() };
    let (red, blue) = (sheet.bench.ns("red"), sheet.bench.ns("blue"));
    let (a, _) = sheet.bench.world.add_veth((red, "veth1"), (blue, "veth2")).unwrap();
    sheet.bench.world.add_address(a, address("10.11.1.1/24"), 0).unwrap();
    sheet.bench.world.add_address(a, address("10.9.9.9/32"), 0).unwrap();
    let one = veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24","10.11.1.5/24"],"mtu":1400"#);
    sheet.bench.write(&[("veth1", &one), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    sheet.bench.boot_up();
    sheet.plan("the very first start finds the pair of an earlier agent");
    sheet.compare("adopt");
}

#[test]
fn finish_or_remove_what_is_half_made() {
    let mut sheet = Sheet::new();
    let (one, two) = (veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24"]"#), veth("veth2", "veth1", "blue", ""));
    sheet.write(&[("veth1", &one), ("veth2", &two)]);
    sheet.bench.world.before_nth(OpKind::SetLink, 1, killer);
    while sheet.bench.kills == 0 {
        sheet.bench.step();
    }
    sheet.plan("killed right after the creation, started again");
    sheet.bench.del("veth1");
    let event = sheet.bench.write(&[("veth1", &one)]);
    sheet.bench.deliver(event);
    sheet.bench.world.before_nth(OpKind::SetLink, 1, killer);
    while sheet.bench.kills == 1 {
        sheet.bench.step();
    }
    sheet.erase("veth1");
    sheet.erase("veth2");
    sheet.plan("the same, but the keys are gone");
    sheet.compare("half_made");
}

#[test]
fn leave_foreign_links() {
    let mut sheet = Sheet::new();
    sheet.bench.world.add_link(sheet.bench.ns("red"), LinkKind::Other("bridge".into()), "veth1").unwrap();
    let tap = sheet.bench.world.add_link(sheet.bench.ns("blue"), LinkKind::Other("dummy".into()), "else").unwrap();
    sheet.bench.world.add_altname(tap, "veth2").unwrap();
    sheet.write(&[("veth1", &veth("veth1", "veth2", "red", "")), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    sheet.plan("a bridge has the name of one end, an alternative name of a dummy that of the other");
    sheet.bench.world.delete_link(sheet.bench.world.link_id(sheet.bench.ns("red"), "veth1").unwrap()).unwrap();
    sheet.bench.world.delete_link(tap).unwrap();
    sheet.plan("both are gone");
    sheet.compare("foreign_link");
}

#[test]
fn down_and_up() {
    let mut sheet = Sheet::with_pair();
    let value = |more: &str| veth("veth1", "veth2", "red", &format!(r#","ip_addresses":["10.11.1.1/24","fd00::1/64"]{more}"#));
    sheet.write(&[("veth1", &value("").replace("true", "false"))]);
    sheet.plan("disabled: IPv6 addresses go with it and are put back");
    sheet.write(&[("veth1", &value(""))]);
    sheet.plan("enabled");
    sheet.bench.world.set_up(sheet.bench.world.link_id(sheet.bench.ns("red"), "veth1").unwrap(), false).unwrap();
    sheet.plan("set down by hand");
    sheet.compare("down_and_up");
}

#[test]
fn drop_the_first_of_several() {
    let mut sheet = Sheet::new();
    let with = |list: &str| veth("veth1", "veth2", "red", &format!(r#","ip_addresses":[{list}]"#));
    let all = with(r#""10.0.0.1/24","10.0.0.2/24","10.0.0.3/24","10.7.0.1/16""#);
    sheet.write(&[("veth1", &all), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    sheet.plan("three addresses of one subnet, and one of another");
    let id = sheet.bench.world.link_id(sheet.bench.ns("red"), "veth1").unwrap();
    sheet.bench.world.add_address(id, address("10.0.0.9/24"), 0).unwrap();
    sheet.plan("someone adds a fourth");
    sheet.write(&[("veth1", &with(r#""10.0.0.2/24","10.0.0.3/24","10.7.0.1/16""#))]);
    sheet.plan("the list without the first");
    sheet.compare("first_address");
}

#[test]
fn tell_conflicts() {
    let mut sheet = Sheet::new();
    let host = r#","host_if_name":"x""#;
    sheet.write(&[("a1", &veth("a1", "a2", "red", host)), ("a2", &veth("a2", "a1", "blue", ""))]);
    sheet.write(&[("b1", &veth("b1", "b2", "red", host)), ("b2", &veth("b2", "b1", "blue", ""))]);
    sheet.plan("two wishes for one name");
    sheet.erase("a1");
    sheet.plan("the holder goes");
    sheet.write(&[("c1", &veth("c1", "c2", "red", host)), ("c2", &veth("c2", "c1", "red", host))]);
    sheet.plan("a pair whose ends want one name, which a third one has");
    sheet.compare("conflict");
}

#[test]
fn tell_peers_that_do_not_answer() {
    let mut sheet = Sheet::with_pair();
    sheet.write(&[("a", &veth("a", "veth1", "red", ""))]);
    sheet.plan("a third one names an end of a pair that agrees");
    sheet.write(&[("veth2", &veth("veth2", "a", "blue", ""))]);
    sheet.plan("an end turns to the third one, which does not answer");
    sheet.write(&[("a", &veth("a", "veth2", "red", ""))]);
    sheet.plan("it answers");
    sheet.write(&[("veth2", "{")]);
    sheet.plan("an end becomes invalid");
    sheet.compare("peer_mismatch");
}

#[test]
fn repair_what_others_did() {
    let mut sheet = Sheet::with_pair();
    let world = sheet.bench.world.clone();
    let red = sheet.bench.ns("red");
    world.delete_link(world.link_id(red, "veth1").unwrap()).unwrap();
    sheet.plan("deleted by hand");
    let id = world.link_id(red, "veth1").unwrap();
    world.set_alias(id, "mine").unwrap();
    world.rename(id, "other").unwrap();
    world.set_mtu(id, 900).unwrap();
    sheet.plan("alias, name and MTU changed by hand");
    world.move_link(world.link_id(red, "veth1").unwrap(), sheet.bench.ns("own")).unwrap();
    sheet.plan("moved to another namespace by hand");
    sheet.compare("repair");
}

#[test]
fn make_taps() {
    let mut sheet = Sheet::new();
    let tap = |settings: &str, more: &str| {
        format!(
            r#"{{"name":"tap1","type":"TAP","enabled":true,"namespace":{{"type":"NAMED_NS","name":"red"}},"tap":{{{settings}}}{more}}}"#
        )
    };
    let owned = r#""owner":1000,"group":100,"multi_queue":true"#;
    sheet.write(&[("tap1", &tap(owned, r#","mtu":1400,"phys_address":"02:00:00:00:00:01","ip_addresses":["10.0.0.1/24"]"#))]);
    sheet.plan("a TAP is written");
    sheet.write(&[("tap1", &tap(owned, r#","mtu":1300,"host_if_name":"eth1","ip_addresses":["10.0.0.2/24"]"#))]);
    sheet.plan("its name, MTU and address change");
    sheet.write(&[(
        "tap1",
        &tap(r#""owner":1001,"group":100,"vnet_hdr":true"#, r#","host_if_name":"eth1","ip_addresses":["10.0.0.2/24"]"#),
    )]);
    sheet.plan("owner and queues change");
    sheet.write(&[("tap1", &tap(r#""mode":"TUN""#, ""))]);
    sheet.plan("it becomes a TUN of nobody");
    sheet.write(&[("tap1", &veth("tap1", "veth2", "red", "")), ("veth2", &veth("veth2", "tap1", "blue", ""))]);
    sheet.plan("it becomes an end of a pair");
    sheet.write(&[("tap1", &tap("", ""))]);
    sheet.plan("and a TAP again");
    sheet.erase("tap1");
    sheet.plan("its key is deleted");
    sheet.compare("make_taps");
}

#[test]
fn switch_ipv6_on() {
    let mut sheet = Sheet::new();
    let closed = NetnsSettings { ipv6_disabled: true, ..NetnsSettings::default() };
    sheet.bench.world.set_settings(sheet.bench.ns("red"), closed).unwrap();
    let one = veth("veth1", "veth2", "red", r#","ip_addresses":["10.11.1.1/24","fd00::1/64"]"#);
    sheet.write(&[("veth1", &one), ("veth2", &veth("veth2", "veth1", "blue", ""))]);
    sheet.plan("a namespace with IPv6 switched off");
    sheet.compare("ipv6_disabled");
}
