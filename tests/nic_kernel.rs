//! A NIC's whole configuration on the real kernel: read, put onto another link, taken off, renamed, brought back. An independent program looks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod kernel_support;

use kernel_support::TestNetns;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vnf_agent::linux::nic::{NicKernel, Renaming};
use vnf_agent::model::nic::{NicConfig, NicLink};
use vnf_agent::namespace::NetnsHandle;

const PATIENCE: Duration = Duration::from_secs(60);

/// A host with a NIC `nic0` whose other end is in a namespace of its own.
struct Bed {
    host: TestNetns,
    _network: TestNetns,
    kernel: NicKernel,
}

impl Bed {
    fn new() -> Self {
        let (host, network) = (TestNetns::new(), TestNetns::new());
        let kernel = NicKernel::new(NetnsHandle { own: true, ..host.handle() });
        let bed = Self { host, _network: network, kernel };
        bed.ip("link set lo up");
        bed.ip("link add nic0 type veth peer name p0");
        bed.ip("link set p0 up");
        bed.ip("link set nic0 up mtu 1400");
        bed
    }

    /// With everything that a configuration can hold.
    fn furnished() -> Self {
        let mut bed = Self::new();
        bed.set("ipv4/conf/nic0/rp_filter", "2");
        bed.set("ipv6/conf/nic0/accept_ra", "2");
        bed.set("ipv6/conf/nic0/addr_gen_mode", "0");
        bed.set("ipv6/conf/nic0/mtu", "1300");
        for address in [
            "10.0.0.2/24 brd 10.0.0.255",
            "10.0.0.3/24",
            "10.0.0.4/24 label nic0:x",
            "10.1.0.2/24 noprefixroute",
            "10.2.0.2/24 metric 77",
            "10.9.9.1 peer 10.9.9.2/32",
            "10.3.0.2/24 valid_lft 3600 preferred_lft 1800",
            "2001:db8::2/64 nodad",
            "2001:db8::3/64",
            "fd00::2/64 noprefixroute nodad",
            "fd01::2/64 valid_lft 7200 preferred_lft 3600",
        ] {
            bed.ip(&format!("address add {address} dev nic0"));
        }
        bed.settle();
        for route in [
            "default via 10.0.0.1 dev nic0 proto static metric 50",
            "10.50.0.1 dev nic0 scope link src 10.0.0.3",
            "10.51.0.0/16 via 10.50.0.1 dev nic0 mtu 1300 advmss 1200",
            "10.52.0.0/16 via 192.168.77.1 dev nic0 onlink",
            "10.53.0.0/16 nexthop via 10.0.0.7 dev nic0 weight 2 nexthop via 10.0.0.8 dev nic0",
            "default via 10.0.0.1 dev nic0 table 100",
            "10.54.0.0/16 dev nic0 table 4242 proto 77 metric 9",
            "2001:db8:1::/48 via 2001:db8::1 dev nic0 metric 99 pref high",
            "2001:db8:2::/48 dev nic0 table 100",
            "default via fe80::1 dev nic0 proto static",
            "2001:db8:3::/48 nexthop via 2001:db8::7 dev nic0 weight 3 nexthop via 2001:db8::8 dev nic0",
        ] {
            let family = if route.contains("::") { "-6 " } else { "" };
            bed.ip(&format!("{family}route add {route}"));
        }
        bed.ip("nexthop add id 31 via 10.0.0.9 dev nic0");
        bed.ip("route add 10.55.0.0/16 nhid 31");
        bed.ip("rule add iif nic0 lookup 100");
        bed.ip("neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev nic0 nud permanent");
        bed.ip("neigh add proxy 10.0.0.78 dev nic0");
        bed
    }

    fn ip(&self, arguments: &str) {
        self.host.ip(arguments);
    }

    fn set(&self, setting: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/{setting}"), value.to_owned());
        self.host.run(move || std::fs::write(path, value).unwrap());
    }

    fn json(&self, arguments: &str) -> Vec<Value> {
        serde_json::from_str(&self.host.show(&format!("-d -j {arguments}"))).unwrap_or_default()
    }

    fn link(&mut self, name: &str) -> NicLink {
        let links = self.kernel.links().unwrap();
        links.iter().find(|link| link.name == name).unwrap_or_else(|| panic!("{name} is not among {links:?}")).clone()
    }

    fn read(&mut self, name: &str) -> NicConfig {
        let link = self.link(name);
        self.kernel.read(&link).unwrap()
    }

    /// Waits until duplicate address detection is over.
    fn settle(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.read("nic0").addresses.iter().any(|address| address.is_unusable()) {
            assert!(Instant::now() < end, "addresses stay tentative");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this address is known to be another host's, and all others are in use.
    fn settle_but(&mut self, duplicate: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let addresses = self.read("nic0").addresses;
            let (is_ours, is_theirs): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| !address.to_string().starts_with(duplicate));
            if is_ours.iter().all(|address| !address.is_unusable()) && is_theirs.iter().any(|address| address.is_duplicate()) {
                return;
            }
            assert!(Instant::now() < end, "{addresses:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A link that stands for the bridge's port.
    fn add_port(&mut self, name: &str) {
        let mac = self.link("nic0~").mac;
        self.ip(&format!("link add {name} address {mac} type veth peer name q0"));
        self.ip("link set q0 up");
    }

    /// Everything that `ip` shows of a link and what leads through it, without what changes by itself.
    fn digest(&self, name: &str) -> Value {
        let mut links = self.json(&format!("address show dev {name}"));
        let link = links.pop().unwrap();
        let mut addresses = link["addr_info"].as_array().unwrap().clone();
        for address in &mut addresses {
            let finite = |value: &Value| value.as_u64().is_some_and(|seconds| seconds < u64::from(u32::MAX));
            let lifetimes = [finite(&address["valid_life_time"]), finite(&address["preferred_life_time"])];
            address["valid_life_time"] = json!(lifetimes[0]);
            address["preferred_life_time"] = json!(lifetimes[1]);
            // Where it came from; the kernel lets nobody else say so.
            address.as_object_mut().unwrap().remove("stable-privacy");
        }
        // The order of IPv4 addresses has a meaning: the first of a subnet is the primary one.
        addresses[..].sort_by_key(|a| if a["family"] == "inet" { String::new() } else { a["local"].to_string() });
        let mut routes: Vec<Value> = ["-4 ", "-6 "].iter().flat_map(|f| self.json(&format!("{f}route show table all"))).collect();
        routes.retain(|route| route.to_string().contains(&format!("\"dev\":\"{name}\"")));
        for route in &mut routes {
            if let Some(expires) = route.get_mut("expires") {
                *expires = json!(true);
            }
            // The order of IPv6 hops has none, nor that of routes.
            if let Some(hops) = route.get_mut("nexthops").and_then(Value::as_array_mut) {
                hops.sort_by_key(ToString::to_string);
            }
        }
        routes.sort_by_key(ToString::to_string);
        let neighbours = [self.json(&format!("neigh show nud permanent dev {name}")), self.json(&format!("neigh show proxy dev {name}"))];
        let sysctls: Vec<String> = ["ipv4/conf", "ipv6/conf"]
            .iter()
            .flat_map(|family| {
                let folder = format!("/proc/sys/net/{family}/{name}");
                self.host.run(move || {
                    let files = std::fs::read_dir(folder).unwrap().flatten();
                    files
                        .map(|f| format!("{}={}", f.path().display(), std::fs::read_to_string(f.path()).unwrap_or_default()))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        json!({
            "mtu": link["mtu"], "mac": link["address"], "up": link["flags"].to_string().contains("\"UP\""),
            "addresses": addresses, "routes": routes, "neighbours": neighbours, "nexthops": self.json("nexthop show"),
            "rules": self.json("rule show"), "sysctls": sysctls,
        })
    }
}

impl Bed {
    /// Waits until parts of the digest are as before (the kernel adds local routes a little later); tells only what differs.
    fn wait_same(&self, name: &str, before: &Value, parts: &[&str]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let differing = differing(&self.digest(name), before, parts);
            if differing.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{differing}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn differing(now: &Value, before: &Value, parts: &[&str]) -> String {
    let mut found = String::new();
    for part in parts {
        let items = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
        let (now, before) = (items(&now[part]), items(&before[part]));
        let lost: Vec<String> = before.iter().filter(|item| !now.contains(item)).map(ToString::to_string).collect();
        let new: Vec<String> = now.iter().filter(|item| !before.contains(item)).map(ToString::to_string).collect();
        if !lost.is_empty() || !new.is_empty() {
            found += &format!("{part}\nlost: {lost:#?}\nnew: {new:#?}\n");
        } else if now != before {
            found += &format!("{part}: the order: {now:#?} not {before:#?}");
        }
    }
    found
}

#[test]
fn a_configuration_goes_to_a_port_and_comes_back() {
    let mut bed = Bed::furnished();
    let before = bed.digest("nic0");
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    assert!(wish.routes.len() >= 12 && wish.addresses.len() >= 11, "{wish:#?}");
    assert_eq!(bed.kernel.rename(&nic, "nic0~", &wish).unwrap(), Renaming::Live);
    let uplink = bed.link("nic0~");
    assert_eq!(bed.kernel.compare(&wish, &uplink, false).unwrap().to_string(), "no difference");
    bed.add_port("nic0");
    let port = bed.link("nic0");
    let bare = bed.kernel.compare(&wish, &port, true).unwrap();
    assert!(!bare.has_some && !bare.is_whole());
    bed.kernel.put(&wish, &port, true).unwrap();
    // Beside what the NIC has: that is still whole, but for what can be at one place only.
    let both = bed.kernel.compare(&wish, &uplink, false).unwrap();
    assert!(both.missing_addresses.is_empty() && both.missing_routes.iter().all(|route| route.nexthop().is_some()), "{both}");
    let on_port = bed.kernel.compare(&wish, &port, true).unwrap();
    assert_eq!(on_port.to_string(), "no difference");
    bed.kernel.strip(&uplink).unwrap();
    let on_port = bed.kernel.compare(&wish, &port, true).unwrap();
    assert_eq!(on_port.to_string(), "no difference", "what was taken off the uplink is still on the port");
    assert!(!bed.kernel.compare(&wish, &uplink, false).unwrap().has_some);
    assert_eq!(bed.json("address show dev nic0~")[0]["addr_info"], json!([]));
    bed.wait_same("nic0", &before, &["mtu", "up", "addresses", "routes", "neighbours", "nexthops", "rules", "sysctls"]);
    // And back.
    bed.kernel.put(&wish, &uplink, false).unwrap();
    bed.kernel.remove_link(&port).unwrap();
    let whole = bed.kernel.compare(&wish, &uplink, false).unwrap();
    assert!(whole.is_whole(), "{whole}");
    bed.kernel.rename(&uplink, "nic0", &wish).unwrap();
    let nic = bed.link("nic0");
    bed.kernel.put(&wish, &nic, true).unwrap();
    assert_eq!(bed.kernel.compare(&wish, &nic, true).unwrap().to_string(), "no difference");
    bed.wait_same("nic0", &before, &["mtu", "mac", "up", "addresses", "routes", "neighbours", "nexthops", "rules", "sysctls"]);
    // Nothing is left to do.
    let writes = bed.kernel.writes();
    bed.kernel.put(&wish, &nic, true).unwrap();
    assert_eq!(bed.kernel.writes(), writes);
}

#[test]
fn a_rename_that_needs_the_link_down_gives_everything_back() {
    let mut bed = Bed::furnished();
    let before = bed.digest("nic0");
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    assert_eq!(bed.kernel.rename_down(&nic, "nic0~", &wish).unwrap(), Renaming::Down);
    let uplink = bed.link("nic0~");
    let difference = bed.kernel.compare(&wish, &uplink, false).unwrap();
    assert_eq!(difference.to_string(), "no difference");
    bed.kernel.rename_down(&uplink, "nic0", &wish).unwrap();
    let nic = bed.link("nic0");
    bed.kernel.put(&wish, &nic, true).unwrap();
    bed.wait_same("nic0", &before, &["addresses", "routes", "neighbours", "nexthops", "rules", "sysctls", "up"]);
}

#[test]
fn a_rename_that_fails_leaves_the_link_up_with_everything() {
    let mut bed = Bed::furnished();
    bed.ip("link add taken type bridge");
    let before = bed.digest("nic0");
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    for live in [true, false] {
        let answer = if live { bed.kernel.rename(&nic, "taken", &wish) } else { bed.kernel.rename_down(&nic, "taken", &wish) };
        let error = answer.unwrap_err();
        assert!(error.is(nix::errno::Errno::EEXIST), "{error}");
        assert!(bed.link("nic0").up);
        let difference = bed.kernel.compare(&wish, &nic, true).unwrap();
        assert_eq!(difference.to_string(), "no difference");
    }
    bed.wait_same("nic0", &before, &["addresses", "routes", "neighbours", "nexthops", "rules", "sysctls", "up"]);
}

#[test]
fn the_old_name_is_freed_from_the_alternative_ones() {
    let mut bed = Bed::new();
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    // As udev does it: the link gets another name, and its old one as alternative name.
    bed.ip("link set nic0 name enp7");
    bed.ip("link property add dev enp7 altname nic0");
    bed.ip("link property add dev enp7 altname second");
    bed.kernel.rename(&nic, "nic0~", &wish).unwrap();
    assert_eq!(bed.link("nic0~").altnames, ["second"]);
    bed.add_port("nic0");
}

#[test]
fn ipv6_is_switched_on_where_new_links_have_it_off() {
    let mut bed = Bed::furnished();
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    bed.kernel.rename(&nic, "nic0~", &wish).unwrap();
    bed.set("ipv6/conf/default/disable_ipv6", "1");
    bed.add_port("nic0");
    let port = bed.link("nic0");
    bed.kernel.put(&wish, &port, true).unwrap();
    assert_eq!(bed.kernel.compare(&wish, &port, true).unwrap().to_string(), "no difference");
    assert!(bed.read("nic0").addresses.iter().all(|address| !address.is_unusable()), "usable at once");
}

/// Whether an address is the host's own was not known yet when it was read: it is found out anew, wherever it is put.
#[test]
fn an_address_that_was_not_in_use_yet_is_tried_on_the_network_again() {
    let mut bed = Bed::new();
    // What comes up without a carrier decides nothing.
    for change in ["p0 down", "nic0 down", "nic0 up"] {
        bed.ip(&format!("link set {change}"));
    }
    bed.set("ipv6/conf/nic0/dad_transmits", "4");
    bed.ip("address add 10.0.0.2/24 dev nic0");
    bed.ip("address add 2001:db8:7::2/64 dev nic0 nodad");
    bed.ip("address add 2001:db8:7::44/64 dev nic0");
    bed.ip("address add 2001:db8:7::45/64 dev nic0");
    let nic = bed.link("nic0");
    let wish = bed.read("nic0");
    assert_eq!(wish.addresses.iter().filter(|address| address.is_unusable()).count(), 2, "{wish:#?}");
    bed.kernel.rename(&nic, "nic0~", &wish).unwrap();
    bed.add_port("nic0");
    bed.ip("address add 2001:db8:7::44/64 dev q0 nodad");
    let port = bed.link("nic0");
    bed.kernel.put(&wish, &port, true).unwrap();
    assert!(bed.kernel.compare(&wish, &port, true).unwrap().has_all_addresses(), "both are there");
    bed.settle_but("2001:db8:7::44");
}

/// From a secret the kernel makes other addresses on each link; those that the NIC had go along, and no others are made.
#[test]
fn the_secret_for_addresses_goes_along() {
    for mode in ["2", "0"] {
        let mut bed = Bed::new();
        bed.set("ipv6/conf/nic0/stable_secret", "2001:db8::1234");
        bed.set("ipv6/conf/nic0/addr_gen_mode", mode);
        for change in ["link set nic0 down", "link set nic0 up", "address add 2001:db8::2/64 dev nic0"] {
            bed.ip(change);
        }
        bed.settle();
        let before = bed.digest("nic0");
        let (nic, wish) = (bed.link("nic0"), bed.read("nic0"));
        bed.kernel.rename(&nic, "nic0~", &wish).unwrap();
        let uplink = bed.link("nic0~");
        bed.add_port("nic0");
        let port = bed.link("nic0");
        let bare = bed.kernel.compare(&wish, &port, true).unwrap();
        assert!(!bare.to_string().contains("1234"), "it is told to nobody: {bare}");
        bed.kernel.put(&wish, &port, true).unwrap();
        bed.kernel.strip(&uplink).unwrap();
        assert_eq!(bed.kernel.compare(&wish, &port, true).unwrap().to_string(), "no difference", "mode {mode}");
        bed.wait_same("nic0", &before, &["addresses", "routes", "sysctls"]);
        // What is on the port goes back.
        let wish = bed.read("nic0");
        bed.kernel.put(&wish, &uplink, false).unwrap();
        bed.kernel.remove_link(&port).unwrap();
        bed.kernel.rename(&uplink, "nic0", &wish).unwrap();
        let nic = bed.link("nic0");
        bed.kernel.put(&wish, &nic, true).unwrap();
        bed.wait_same("nic0", &before, &["addresses", "routes", "sysctls"]);
    }
}

#[test]
fn what_cannot_be_put_is_told_and_the_rest_is_there() {
    let mut bed = Bed::furnished();
    let wish = bed.read("nic0");
    bed.ip("link add port0 type veth peer name q0");
    let port = bed.link("port0");
    // The gateways of some routes cannot be reached while the link is held down.
    let down = NicConfig { link: NicLink { up: false, ..wish.link.clone() }, ..wish };
    let error = bed.kernel.put(&down, &port, true).unwrap_err();
    assert!(error.to_string().contains("port0 (") && error.to_string().contains(" table "), "it names the route: {error}");
    assert!(bed.read("port0").addresses.len() >= 7);
}

#[test]
fn a_guard_keeps_frames_from_the_host_and_nothing_else() {
    let mut bed = Bed::new();
    bed.ip("address add 10.0.0.2/24 dev nic0");
    let nic = bed.link("nic0");
    assert!(!bed.kernel.is_guarded(&nic).unwrap());
    bed.kernel.guard(&nic).unwrap();
    bed.kernel.guard(&nic).unwrap();
    assert!(bed.kernel.is_guarded(&nic).unwrap());
    let wish = bed.read("nic0");
    bed.kernel.rename(&nic, "nic0~", &wish).unwrap();
    let uplink = bed.link("nic0~");
    assert!(bed.kernel.is_guarded(&uplink).unwrap(), "known by its index, whatever its name");
    bed.kernel.unguard(&uplink).unwrap();
    bed.kernel.unguard(&uplink).unwrap();
    assert!(!bed.kernel.is_guarded(&uplink).unwrap());
    let nobody = NicLink { name: "a-name-that-no-link-has".into(), ..uplink };
    assert!(bed.kernel.guard(&nobody).unwrap_err().to_string().contains("guard a-name-that-no-link-has"));
    assert!(!bed.kernel.is_guarded(&nobody).unwrap(), "all of it or nothing");
    // A table without its chain guards nothing: some kernels remove that with its link.
    let uplink = bed.link("nic0~");
    bed.kernel.guard(&uplink).unwrap();
    let chain = format!("delete chain netdev vnf_agent_nic_{} ingress", uplink.ifindex);
    assert!(bed.host.run(move || Command::new("nft").args(chain.split(' ')).status().unwrap().success()));
    assert!(!bed.kernel.is_guarded(&uplink).unwrap() && bed.kernel.has_guard(&uplink).unwrap());
    bed.kernel.unguard(&uplink).unwrap();
    assert!(!bed.kernel.has_guard(&uplink).unwrap());
}
