//! The rows of the case list that are about external nodes, with their values: C80, C81, C83, C86, C87 (C82 and C84 are tests of their own).

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::{Host, NETWORK, Nic, eventually, eventually_eq, eventually_ok};

/// C80: both families, several routes (metric, table 100, gateway before link order), secondary addresses, labels, MTU 1400; rp_filter, rules,
/// nexthop objects, many addresses.
#[test]
fn everything_comes_along_and_back() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip link property add dev nic0 altname enp0s31f6-a-long-alternative-name");
    for address in
        ["10.199.0.3/24 label nic0:1", "10.199.0.4/24", "10.198.0.2/16 brd 10.198.255.255 metric 7", "10.197.0.2 peer 10.197.0.1/32"]
    {
        host.run(&format!("ip address add {address} dev nic0"));
    }
    for n in 0..80 {
        host.run(&format!("ip address add 10.196.{n}.2/24 dev nic0"));
        host.run(&format!("ip address add fd99:196:{n}::2/64 dev nic0 nodad"));
    }
    eventually("addresses are usable", || !host.run("ip -6 address show dev nic0").contains("tentative"));
    for route in [
        "10.51.0.1 scope link",
        "default via 10.51.0.1 metric 50 proto static onlink",
        "10.50.0.0/16 via 10.199.0.1 table 100",
        "default via 10.199.0.1 table 100 metric 3",
    ] {
        host.run(&format!("ip route add {route} dev nic0"));
    }
    host.run("ip -6 route add fd50::/32 via fd99:199::1 dev nic0 metric 77 table 100");
    host.run("ip nexthop add id 9 via 10.199.0.1 dev nic0");
    host.run("ip route add 10.60.0.0/16 nhid 9");
    host.run("ip rule add from 10.199.0.3 lookup 100 priority 100");
    host.run("ip rule add iif nic0 lookup 100 priority 101");
    host.run("ip -6 rule add oif nic0 lookup 100 priority 102");
    for setting in
        ["ipv4.conf.nic0.rp_filter=1", "ipv4.conf.nic0.promote_secondaries=1", "ipv6.conf.nic0.accept_ra=2", "ipv4.conf.nic0.arp_notify=1"]
    {
        sysctl(&host, setting);
    }
    let before = settled_shape(&host, "nic0");
    let rules = || host.run("ip rule") + &host.run("ip -6 rule") + &host.run("ip -4 nexthop");
    let rules_before = rules();
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    for round in 0..2 {
        let traffic = Traffic::start(&host, &nic, 5000 + round);
        wish(&etcd, &json!([{"name": "nic0"}]));
        wait_attached(&etcd, &["nic0"]);
        traffic.end("with everything on it, behind the bridge");
        eventually_eq("everything came along", &before, || shape(&host, "nic0"));
        assert_eq!(rules(), rules_before);
        for (setting, value) in
            [("ipv4/conf/nic0/rp_filter", "1"), ("ipv4/conf/nic0/promote_secondaries", "1"), ("ipv6/conf/nic0/accept_ra", "2")]
        {
            assert_eq!(read_sysctl(&host, setting), value, "{setting}");
        }
        nic.passes_all_but(5010, &[]);
        unwish(&etcd);
        wait_given_back(&host, &etcd, "nic0", &before);
        assert_eq!(rules(), rules_before);
        assert_eq!(read_sysctl(&host, "ipv4/conf/nic0/rp_filter"), "1");
        assert!(host.run("ip link show dev nic0").contains("enp0s31f6-a-long-alternative-name"));
    }
}

fn sysctl(host: &Host, setting: &str) {
    let (path, value) = setting.split_once('=').expect("a setting");
    host.inside("", || std::fs::write(format!("/proc/sys/net/{}", path.replace('.', "/")), value)).expect("it is written");
}

fn read_sysctl(host: &Host, path: &str) -> String {
    host.inside("", || std::fs::read_to_string(format!("/proc/sys/net/{path}"))).expect("it is read").trim().to_owned()
}

/// C81: the port cannot have an address that the NIC has. Nothing is lost, and it is told.
#[test]
fn an_address_that_the_port_cannot_have() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    // New links have no IPv6, and an MTU below the least of IPv6 cannot get it.
    sysctl(&host, "ipv6.conf.default.disable_ipv6=1");
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5001, &[]);
    eventually_eq("IPv6 is switched on where it is needed", &before, || shape(&host, "nic0"));
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// What others put on the port goes with it; that is told before.
#[test]
fn what_stands_on_the_port_is_told_of() {
    let host = Host::new();
    let _nic = host.add_nic("nic0", 0);
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    assert_eq!(wait_attached(&etcd, &["nic0"])["warnings"], json!([]));
    host.run("ip link add mv0 link nic0 type macvlan");
    host.run("ip link add mv1 link nic0 type macvlan");
    let told = eventually_ok("it is told of", || {
        let warnings = status(&etcd)["warnings"].to_string();
        if warnings.contains("(mv0, mv1)") { Ok(warnings) } else { Err(warnings) }
    });
    assert!(told.contains("they are lost when it is given back"), "{told}");
    let plan = agent.ask(&["node", "plan", "vpp1"]);
    assert!(plan.lines().any(|line| line.starts_with("nic0 back: links stand on the port nic0 (mv0, mv1)")), "{plan}");
    assert_eq!(repairs(&agent), 0);
    host.run("ip link del mv0");
    host.run("ip link del mv1");
    eventually("it is told no more", || status(&etcd)["warnings"] == json!([]));
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// C81: the port cannot have one of the addresses, and that shows only when it is there. Everything is undone, and the host is reachable all the time.
#[test]
fn an_address_that_the_port_cannot_be_given() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    host.run("ip route add default via 10.199.0.1 dev nic0 metric 50");
    host.run("ip route add 10.50.0.0/16 via 10.199.0.1 dev nic0 table 100");
    host.run("ip -6 route add default via fd99:199::1 dev nic0 metric 77");
    // New links have no IPv6, and nobody can switch it on.
    sysctl(&host, "ipv6.conf.default.disable_ipv6=1");
    host.run("mount --bind /proc/sys /proc/sys");
    host.run("mount -o remount,bind,ro /proc/sys");
    let before = settled_shape(&host, "nic0");
    let plain_link = || {
        let link = link(&host, "nic0");
        ["ifindex", "mtu", "address", "operstate", "flags"].map(|what| link[what].clone())
    };
    let link_before = plain_link();
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    let ping = Ping::start(&host, NETWORK, nic.addresses()[0]);
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_for(&etcd, "RETRYING", "KERNEL_REFUSED", "everything was undone");
    assert_eq!(agent.metric("vnf_agent_node_attached_total"), 0.0);
    nic.passes_all_but(5001, &[]);
    // The next attempt ends in the same way; in between nothing of the last one is left.
    wait_plain(&host, "nic0", &before);
    unwish(&etcd);
    eventually("nothing is told any more", || status(&etcd).is_null());
    wait_plain(&host, "nic0", &before);
    assert_eq!(plain_link(), link_before);
    assert_eq!(ovs.vsctl("list-ports br-int").trim(), "");
    assert!(!agent.state_dir().join("nic/nic0.json").exists() && !host.run("nft list tables").contains("vnf_agent"));
    let lost = ping.end();
    assert!(lost.lost * 4 <= lost.sent, "{lost:?}");
    // It was nothing but that.
    host.run("umount /proc/sys");
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    nic.passes_all_but(5002, &[]);
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// What Open vSwitch tells of an attempt that is undone is no reason to try again at once.
#[test]
fn an_attachment_that_fails_again_and_again() {
    let host = Host::new();
    let _nic = host.add_nic("nic0", 0);
    sysctl(&host, "ipv6.conf.default.disable_ipv6=1");
    host.run("mount --bind /proc/sys /proc/sys");
    host.run("mount -o remount,bind,ro /proc/sys");
    let before = settled_shape(&host, "nic0");
    let _ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    let failures = eventually_long("it has failed three times", || {
        let failures: Vec<String> = agent.log().lines().filter(|line| line.contains(" retry_in=")).map(str::to_owned).collect();
        if failures.len() >= 3 { Ok(failures) } else { Err(failures) }
    });
    // The log's own clock: how late the test looks does not matter.
    let moments: Vec<f64> = failures.iter().map(|line| second_of_day(line)).collect();
    let early = moments.windows(2).filter(|pair| (pair[1] - pair[0]).rem_euclid(86400.0) < 5.0);
    // That the new bridge begins to answer is real news, and the first of them count at once.
    assert!(early.count() <= 1, "{failures:#?}");
    unwish(&etcd);
    wait_plain(&host, "nic0", &before);
}

/// Of a line of the log, which begins with a moment as `2026-12-31T23:59:59.123456Z`.
fn second_of_day(line: &str) -> f64 {
    let clock = line.split(['T', 'Z']).nth(1).expect("a clock");
    clock.split(':').map(|part| part.parse::<f64>().expect("a number")).fold(0.0, |sum, part| sum * 60.0 + part)
}

/// C83: Open vSwitch keeps its rows over a reboot, the NIC is back under its own name.
#[test]
fn after_a_reboot() {
    let host = Host::new();
    let Moved { nic, before, mut ovs, etcd, mut agent } = Moved::start(&host, &json!([{"name": "nic0"}]));
    agent.stop();
    // As far as a test can reboot: links and their configuration are gone, the boot sets the NIC up under its own name, the rows are there. A boot
    // has another id, so nothing in the journal is of this one.
    ovs.exit_switch_with_cleanup();
    host.run("nft flush ruleset");
    let journal = agent.state_dir().join("nic/nic0.json");
    let text = std::fs::read_to_string(&journal).expect("a journal");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    std::fs::write(&journal, text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")).expect("a file");
    let mac = link(&host, "nic0~")["address"].as_str().expect("an address").to_owned();
    host.run("ip link del nic0~");
    let nic_again = host.add_nic("nic0", 0);
    host.run(&format!("ip link set nic0 address {mac}"));
    drop(nic);
    ovs.start_switch();
    wait_reachable(&host, &nic_again, "after the boot");
    let talk = Talk::start(&host, "", NETWORK, "10.199.0.1:5000".parse().expect("an address"));
    agent.start();
    wait_attached(&etcd, &["nic0"]);
    nic_again.passes_all_but(5001, &[]);
    talk.wait_for_some();
    talk.end();
    unwish(&etcd);
    eventually("it is given back", || !is_behind(&host, "nic0"));
    eventually_ok("as the boot set it up", || {
        let (now, wanted) = (host.try_run("ip -o address show dev nic0").unwrap_or_default(), ["10.199.0.2/24", "fd99:199::2/64"]);
        if wanted.iter().all(|address| now.contains(address)) { Ok(()) } else { Err((now, before.clone())) }
    });
    nic_again.passes_all_but(5002, &[]);
}

/// C86: bad rules are refused at load, each by name; the others work, for IPv6 too.
#[test]
fn bypass_rules() {
    let host = Host::new();
    let nic = host.add_nic("nic0", 0);
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let rules = [
        ["ingress", "tcp", "1.1.1.1", "22"],
        ["ingress", "tcp", "1.1.1.1/33", "22"],
        ["egress", "icmp", "::/0", ""],
        ["ingress", "tcpp", "0.0.0.0/0", "22"],
        ["ingress", "icmp", "0.0.0.0/0", "22"],
        ["ingress", "tcp", "0.0.0.0/0", "0"],
        ["ingress", "tcp", "0.0.0.0/0", "70000"],
        ["ingress", "tcp", "10.199.0.0/30", "5002"],
        ["ingress", "tcp", "fd99:199::/64", "5004"],
    ];
    let text: String = rules
        .iter()
        .map(|[direction, protocol, cidr, port]| {
            let port = if port.is_empty() { String::new() } else { format!("port = {port}\n") };
            format!(
                "[[external_node.policy_bypass_rules]]\ndirection = \"{direction}\"\nprotocol = \"{protocol}\"\ncidr = \"{cidr}\"\n{port}"
            )
        })
        .collect();
    let path = host.path("agent.toml");
    std::fs::write(&path, text).expect("a file");
    let mut agent = agent(&host).with(&["--config", &path.display().to_string()]).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    let log = agent.log();
    for (index, field) in [(0, "cidr"), (1, "cidr"), (3, "protocol"), (4, "port"), (5, "port"), (6, "port")] {
        assert!(log.contains(&format!("policy_bypass_rules[{index}].{field}")), "rule {index}: {log}");
    }
    for family in ["ip", "ipv6"] {
        ovs.ofctl(&format!("add-flow br-int table=203,priority=100,{family},actions=drop"));
    }
    let [v4, v6] = nic.addresses();
    let [far_v4, far_v6] = nic.far_addresses();
    let tcp = |from: &str, to: &str, address, port| host.tcp(from, to, std::net::SocketAddr::new(address, port));
    eventually("an IPv4 rule lets pass", || tcp(NETWORK, "", v4, 5002));
    eventually("an IPv6 rule lets pass", || tcp(NETWORK, "", v6, 5004));
    eventually("an ICMPv6 rule lets pass", || host.pings("", &far_v6.to_string()));
    assert!(!tcp(NETWORK, "", v4, 5003) && !tcp(NETWORK, "", v6, 5002) && !tcp("", NETWORK, far_v4, 5002));
    assert!(!host.pings("", &far_v4.to_string()) && !host.pings(NETWORK, &v6.to_string()));
    // A rule that was removed from the file is gone after the next start.
    std::fs::write(&path, "").expect("a file");
    agent.restart();
    eventually("no rule is left", || !ovs.ofctl("dump-flows br-int table=202").contains("tp_dst"));
    assert!(!tcp(NETWORK, "", v4, 5002));
}

/// C87: a name of 15 bytes; a NIC that is a bridge's port; one with an alternative name; one that carries another link; one whose port is in another bridge.
#[test]
fn names_and_roles() {
    let host = Host::new();
    let long = host.add_nic("enp10s31f6np1d0", 0);
    let other = host.add_nic("nic1", 1);
    let before = settled_shape(&host, "enp10s31f6np1d0");
    let ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "enp10s31f6np1d0"}]));
    let attached = wait_attached(&etcd, &["enp10s31f6np1d0"]);
    let uplink = interface(&attached, "enp10s31f6np1d0")["uplink"].as_str().expect("an uplink").to_owned();
    assert!(uplink.len() == 15 && uplink.ends_with('~') && uplink.starts_with("enp10s31f"), "{uplink}");
    long.passes_all_but(5001, &[]);
    unwish(&etcd);
    eventually_ok("it is given back", || {
        let now = shape(&host, "enp10s31f6np1d0");
        if now == before && !host.link_names("").contains(&uplink) { Ok(()) } else { Err(now) }
    });
    let refused = |words: &str| wait_for(&etcd, "FAILED", "NIC_UNSUITABLE", words);
    for (make, words, unmake) in [
        ("ip link add br9 type bridge\nip link set nic1 master br9", "port of br9", "ip link del br9"),
        ("ip link add link nic1 name on-it type macvlan", "on-it", "ip link del on-it"),
        (
            "ip link add other0 type veth peer name other1\nip link property add dev other0 altname nic1~",
            "alternative name of other0",
            "ip link del other0",
        ),
        (
            "ovs-vsctl --timeout=60 add-br br-ex -- set bridge br-ex datapath_type=netdev -- add-port br-ex nic1",
            "br-ex",
            "ovs-vsctl --timeout=60 del-br br-ex",
        ),
        ("ip link set nic1 down", "is down", "ip link set nic1 up"),
    ] {
        make.lines().for_each(|line| drop(host.run(line)));
        wish(&etcd, &json!([{"name": "nic1"}]));
        refused(words);
        assert!(!is_behind(&host, "nic1"), "{words}");
        unwish(&etcd);
        eventually("the wish is gone", || status(&etcd) == Value::Null);
        host.run(unmake);
    }
    host.run("ip address replace fd99:199:0:1::2/64 dev nic1 nodad");
    // Called by an alternative name; and one that is its own name, as udev may leave it behind after a rename.
    host.run("ip link set nic1 name was0");
    host.run("ip link property add dev was0 altname nic1");
    host.run("ip link property add dev was0 altname enp9s0");
    wish(&etcd, &json!([{"name": "enp9s0"}]));
    wait_attached(&etcd, &["was0"]);
    other.passes_all_but(5002, &[]);
    assert!(ovs.vsctl("list-ports br-int").contains("was0"));
    unwish(&etcd);
    eventually("it is given back", || !is_behind(&host, "was0"));
    other.passes_all_but(5003, &[]);
}

/// A NIC without any address: there and back.
#[test]
fn a_nic_without_addresses() {
    let host = Host::new();
    let _nic: Nic<'_> = host.add_nic("nic0", 0);
    host.run("ip address flush dev nic0 scope global");
    let before = settled_shape(&host, "nic0");
    let mut ovs = host.start_ovs();
    let etcd = host.start_etcd();
    let _agent = agent(&host).started();
    wish(&etcd, &json!([{"name": "nic0"}]));
    wait_attached(&etcd, &["nic0"]);
    ovs.kill_switch();
    eventually_long("it is seen", || if status(&etcd)["state"] == "CONFIGURED" { Err(status(&etcd)) } else { Ok(()) });
    ovs.start_switch();
    wait_attached(&etcd, &["nic0"]);
    unwish(&etcd);
    eventually_long("it is given back", || if is_behind(&host, "nic0") { Err(status(&etcd)) } else { Ok(()) });
    eventually_ok("as it was", || {
        let now = shape(&host, "nic0");
        if now == before { Ok(()) } else { Err((now, before.clone())) }
    });
}
