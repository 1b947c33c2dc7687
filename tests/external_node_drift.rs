//! What others change of a NIC behind the bridge is put right and counted; what is not ours is left alone.

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::{Agent, Etcd, Host, NETWORK, Nic, Ovs, eventually, eventually_eq};

/// A NIC with routes, attached; everything in its place.
struct Bed<'h> {
    host: &'h Host,
    nic: Nic<'h>,
    ovs: Ovs<'h>,
    etcd: Etcd<'h>,
    agent: Agent<'h>,
    before: Vec<String>,
    port: u16,
}

impl<'h> Bed<'h> {
    fn new(host: &'h Host) -> Self {
        let nic = host.add_nic("nic0", 0);
        for route in ["default via 10.199.0.1 metric 50", "10.50.0.0/16 via 10.199.0.1 table 100", "10.51.0.1 scope link"] {
            host.run(&format!("ip route add {route} dev nic0"));
        }
        host.run("ip -6 route add default via fd99:199::1 dev nic0 metric 77");
        let before = settled_shape(host, "nic0");
        host.run("sysctl -q -w net.ipv6.conf.nic0.mtu=1350");
        let (ovs, etcd) = (host.start_ovs(), host.start_etcd());
        let agent = agent(host).started();
        wish(&etcd, &json!([{"name": "nic0", "ips": ["10.199.0.2"]}]));
        wait_attached(&etcd, &["nic0"]);
        eventually_long("it is confirmed", || if agent.log().contains("confirmed: the host") { Ok(()) } else { Err(()) });
        Self { host, nic, ovs, etcd, agent, before, port: 5000 }
    }

    /// Waits until one more repair was counted, everything is as it was, and traffic passes.
    fn is_repaired(&mut self, repairs_before: usize, what: &str) {
        eventually_long(&format!("{what} is repaired"), || {
            let now = repairs(&self.agent);
            if now > repairs_before { Ok(()) } else { Err((now, status(&self.etcd))) }
        });
        wait_attached(&self.etcd, &["nic0"]);
        eventually_eq(&format!("all is as before after {what}"), &self.before, || shape(self.host, "nic0"));
        self.port += 1;
        self.nic.passes_all_but(self.port, &[]);
        assert!(!self.host.run("ip address show dev nic0~").contains("inet"), "{what}");
        assert_eq!(self.mtus(), [json!(1400), json!(1400)], "{what}");
        assert_eq!(self.ipv6_mtu(), "1350", "{what}");
        assert_eq!(link(self.host, "nic0")["address"], link(self.host, "nic0~")["address"], "{what}");
    }

    fn mtus(&self) -> Vec<Value> {
        ["nic0", "nic0~"].map(|name| link(self.host, name)["mtu"].clone()).into()
    }

    fn ipv6_mtu(&self) -> String {
        self.host.run("sysctl -n net.ipv6.conf.nic0.mtu").trim().to_owned()
    }

    fn given_back(self) {
        unwish(&self.etcd);
        wait_given_back(self.host, &self.etcd, "nic0", &self.before);
        self.nic.passes_all_but(5999, &[]);
        assert_eq!(link(self.host, "nic0")["mtu"], 1400);
        assert_eq!(self.ipv6_mtu(), "1350");
    }
}

#[test]
fn links_addresses_and_routes() {
    let host = Host::new();
    let mut bed = Bed::new(&host);
    host.run("ip link add foreign0 up type bridge");
    for change in [
        "ip address del 10.199.0.2/24 dev nic0",
        "ip address del fd99:199::2/64 dev nic0",
        "ip address flush dev nic0",
        "ip route del default via 10.199.0.1 dev nic0 metric 50",
        "ip route del 10.50.0.0/16 via 10.199.0.1 dev nic0 table 100",
        "ip -6 route del default via fd99:199::1 dev nic0 metric 77",
        "ip route flush dev nic0",
        "ip link set nic0 down",
        "ip link set nic0~ down",
        "ip link set nic0~ mtu 1300",
        "ip link set nic0 address 02:00:00:00:00:99",
        "ip link set nic0~ address 02:00:00:00:00:99",
        "ip link set nic0~ name other0",
        "ip link set nic0 name other0",
        "ip address add 10.199.0.2/24 dev nic0~",
        "ip link set nic0 master foreign0",
        "ip link set nic0~ master foreign0",
        "nft flush ruleset",
    ] {
        let before = repairs(&bed.agent);
        host.run(change);
        bed.is_repaired(before, change);
    }
    // Of its own ports Open vSwitch looks after the MTU itself; whoever is first.
    host.run("ip link set nic0 mtu 1300");
    eventually_long("the MTU is as it was", || if bed.mtus() == [json!(1400), json!(1400)] { Ok(()) } else { Err(bed.mtus()) });
    bed.given_back();
}

/// As when a driver is loaded anew: the kernel gives the NIC another name, as its own one is taken.
#[test]
fn a_nic_that_is_made_anew() {
    let host = Host::new();
    let mut bed = Bed::new(&host);
    let mac = link(&host, "nic0~")["address"].as_str().expect("an address").to_owned();
    let before = repairs(&bed.agent);
    host.run("ip link del nic0~");
    wait_for(&bed.etcd, "RETRYING", "LINK_MISSING", "not in this network namespace; its port keeps name, addresses and routes");
    assert_eq!(shape(&host, "nic0"), bed.before, "what is bound to its addresses goes on when it is back");
    host.run(&format!("ip link add eth7 mtu 1400 address {mac} type veth peer name p-nic0 netns {NETWORK}"));
    bed.nic.answer();
    bed.is_repaired(before, "a NIC that is made anew");
    bed.given_back();
    assert!(!host.run("nft list tables").contains("vnf_agent"));
}

/// It may come back with the index that it had: whoever listened to it does not hear it any more, and its guard has no chain.
#[test]
fn a_nic_that_was_in_another_namespace() {
    let host = Host::with_netns(&["away"]);
    let mut bed = Bed::new(&host);
    let (before, index_before) = (repairs(&bed.agent), index(&host, "nic0~"));
    host.run("ip link set nic0~ netns away");
    wait_for(&bed.etcd, "RETRYING", "LINK_MISSING", "not in this network namespace; its port keeps name, addresses and routes");
    let back = host.command("", "sh").args(["-c", "ip -n away link set nic0~ netns $$"]).status();
    assert!(back.expect("nsenter starts").success());
    assert_eq!(index(&host, "nic0~"), index_before, "it is the same link");
    bed.is_repaired(before, "a NIC that was away");
    assert!(host.run("nft list tables").contains("vnf_agent"));
    bed.given_back();
    assert!(!host.run("nft list tables").contains("vnf_agent"));
}

/// So shortly that nobody looked meanwhile, or while there was no agent to look: link and journal are as they were, and the switch hears nothing.
#[test]
fn a_nic_that_nobody_saw_go() {
    let host = Host::with_netns(&["away"]);
    let mut bed = Bed::new(&host);
    let there_and_back = || {
        let script = "ip link set nic0~ netns away && ip -n away link set nic0~ netns $$ && ip link set nic0~ up";
        assert!(host.command("", "sh").args(["-c", script]).status().expect("nsenter starts").success());
    };
    let before = repairs(&bed.agent);
    there_and_back();
    bed.is_repaired(before, "a NIC that was away for a moment");
    bed.agent.kill();
    there_and_back();
    let before = repairs(&bed.agent);
    bed.agent.start();
    bed.is_repaired(before, "a NIC that was away while there was no agent");
    bed.given_back();
    assert!(!host.run("nft list tables").contains("vnf_agent"));
}

/// Its wish goes while it is away: everything is given up but what it had, and it has that when it comes back, whether an agent runs by then or not.
#[test]
fn a_nic_that_comes_back_after_it_was_given_up() {
    let host = Host::with_netns(&["away"]);
    let mut bed = Bed::new(&host);
    let come_back = || {
        // It comes down, and an agent that runs may call it `nic0` by the next moment: setting it up is the agent's part.
        let script = "ip -n away link set nic0~ netns $$";
        assert!(host.command("", "sh").args(["-c", script]).status().expect("nsenter starts").success());
    };
    for is_running in [true, false] {
        host.run("ip link set nic0~ netns away");
        unwish(&bed.etcd);
        eventually_long("nothing is told of it any more", || {
            let told = status(&bed.etcd);
            if told.is_null() { Ok(()) } else { Err(told) }
        });
        if is_running {
            come_back();
        } else {
            bed.agent.kill();
            come_back();
            bed.agent.start();
        }
        wait_plain(&host, "nic0", &bed.before);
        wait_reachable(&host, &bed.nic, "back");
        eventually("nothing is left of it", || {
            std::fs::read_dir(bed.agent.state_dir().join("nic"))
                .is_ok_and(|all| all.flatten().all(|entry| entry.path().extension().is_some_and(|ending| ending == "lock")))
        });
        // The kernel takes the link's own as soon as there is a carrier.
        host.run("sysctl -q -w net.ipv6.conf.nic0.mtu=1350");
        wish(&bed.etcd, &json!([{"name": "nic0", "ips": ["10.199.0.2"]}]));
        wait_attached(&bed.etcd, &["nic0"]);
    }
    bed.given_back();
}

/// It may come back as another one, or never: nothing of ours is left when it is not wished any more.
#[test]
fn a_nic_that_is_gone() {
    let host = Host::new();
    let mut bed = Bed::new(&host);
    host.run("ip link del nic0~");
    let told = "the host cannot be reached by it until the NIC is back, or its wish is gone";
    wait_for(&bed.etcd, "RETRYING", "LINK_MISSING", told);
    bed.agent.restart();
    wait_for(&bed.etcd, "RETRYING", "LINK_MISSING", told);
    unwish(&bed.etcd);
    eventually_long("nothing is left", || {
        let tables = host.run("nft list tables");
        let left = tables.contains("vnf_agent") || host.link_names("").contains(&"nic0".to_owned());
        if left { Err(tables + &host.run("ip link")) } else { Ok(()) }
    });
}

#[test]
fn ports_bridge_and_flows() {
    let host = Host::new();
    let mut bed = Bed::new(&host);
    let number = |bed: &Bed<'_>| bed.ovs.column("interface", "nic0~", "ofport");
    for change in ["del-port br-int nic0", "del-port br-int nic0~", "del-br br-int"] {
        let before = repairs(&bed.agent);
        bed.ovs.vsctl(change);
        bed.is_repaired(before, change);
    }
    // A second interface makes it a bond, which no flow knows.
    for port in ["nic0", "nic0~"] {
        let before = repairs(&bed.agent);
        bed.ovs.vsctl(&format!("--id=@i create interface name=more0 type=internal -- add port {port} interfaces @i"));
        bed.is_repaired(before, &format!("a second interface of {port}"));
    }
    for change in [
        "mod-port br-int UPLINK no-forward".to_owned(),
        "mod-port br-int nic0 no-receive".to_owned(),
        "del-flows br-int".to_owned(),
        "--strict del-flows br-int table=205,priority=200,in_port=UPLINK".to_owned(),
        // Under the same cookie.
        "mod-flows br-int table=205,in_port=UPLINK,actions=drop".to_owned(),
        // A stranger that bears our mark.
        format!("add-flow br-int cookie={},table=203,priority=7,actions=drop", cookie(&bed.ovs)),
    ] {
        let before = repairs(&bed.agent);
        bed.ovs.ofctl(&change.replace("UPLINK", &number(&bed)));
        bed.is_repaired(before, &change);
        let flows = bed.ovs.ofctl("dump-flows br-int");
        assert!(!flows.contains(&format!("in_port={} actions=drop", number(&bed))) && !flows.contains("priority=7 "), "{change}: {flows}");
    }
    bed.given_back();
}

/// The host is better off without what somebody undoes as often as it is put right.
#[test]
fn flows_that_somebody_removes_all_the_time() {
    let host = Host::new();
    let bed = Bed::new(&host);
    while_disturbed(
        || remove_flows(&host),
        || {
            wait_for(&bed.etcd, "RETRYING", "CONTENDED", "everything was undone");
            wait_plain(&host, "nic0", &bed.before);
            wait_reachable(&host, &bed.nic, "while somebody removes flows");
        },
    );
    wait_attached(&bed.etcd, &["nic0"]);
    bed.given_back();
}

/// Who takes an address from the port as often as it is put back has not taken it from the host.
#[test]
fn an_address_that_somebody_takes_all_the_time() {
    let host = Host::new();
    let bed = Bed::new(&host);
    while_disturbed(
        || on_port(&host, "nic0", "address del 10.199.0.2/24 dev"),
        || {
            wait_for(&bed.etcd, "RETRYING", "CONTENDED", "everything was undone");
            wait_plain(&host, "nic0", &bed.before);
            wait_reachable(&host, &bed.nic, "while somebody takes an address from the port");
        },
    );
    wait_attached(&bed.etcd, &["nic0"]);
    bed.given_back();
}

/// A cookie of the agent's.
fn cookie(ovs: &Ovs<'_>) -> String {
    let flows = ovs.ofctl("--no-stats dump-flows br-int table=203");
    let flow = flows.lines().find(|line| line.contains("priority=0")).unwrap_or_else(|| panic!("no flow of ours: {flows}"));
    let own = flow.split(['=', ',']).nth(1).expect("a cookie").to_owned();
    format!("{}1", &own[..own.len() - 1])
}

#[test]
fn what_is_not_ours_stays() {
    let host = Host::new();
    let bed = Bed::new(&host);
    host.run("ip link add foreign0 type veth peer name foreign1");
    for line in [
        "set port nic0 external_ids:somebody=else",
        "add-port br-int foreign0",
        "add-br br-other -- set bridge br-other datapath_type=netdev",
    ] {
        bed.ovs.vsctl(line);
    }
    bed.ovs.ofctl("add-flow br-int cookie=0x7,table=203,priority=9,ip,in_port=99,actions=drop");
    bed.ovs.ofctl("add-flow br-int cookie=0x7,table=7,actions=drop");
    host.run("ip address add 10.199.0.77/24 dev nic0");
    host.run("ip route add 10.77.0.0/16 via 10.199.0.1 dev nic0");
    let before = repairs(&bed.agent);
    // Everything of ours is put up anew beside it.
    bed.ovs.ofctl("del-flows br-int table=204");
    host.run("ip address del fd99:199::2/64 dev nic0");
    eventually_long("ours is repaired", || {
        let flows = bed.ovs.ofctl("dump-flows br-int table=204").contains("commit");
        if flows && repairs(&bed.agent) > before && shape(&host, "nic0").join("").contains("fd99:199::2") {
            Ok(())
        } else {
            Err(repairs(&bed.agent))
        }
    });
    let flows = bed.ovs.ofctl("--no-stats dump-flows br-int");
    assert_eq!(flows.matches("cookie=0x7,").count(), 2, "{flows}");
    assert_eq!(bed.ovs.column("port", "nic0", "external_ids:somebody"), "else");
    assert!(bed.ovs.vsctl("list-ports br-int").contains("foreign0") && bed.ovs.vsctl("list-br").contains("br-other"));
    assert!(host.run("ip address show dev nic0").contains("10.199.0.77/24"));
    // What was added while it was attached goes back with it.
    unwish(&bed.etcd);
    eventually("it is given back", || !is_behind(&host, "nic0") && host.link_names("").contains(&"nic0".to_owned()));
    eventually("with what was added", || {
        host.run("ip address show dev nic0").contains("10.199.0.77/24")
            && host.run("ip route").contains("10.77.0.0/16 via 10.199.0.1 dev nic0")
    });
    assert!(bed.ovs.vsctl("list-ports br-int").contains("foreign0"));
    let flows = bed.ovs.ofctl("--no-stats dump-flows br-int");
    assert_eq!(flows.matches("cookie=0x7,").count(), 2, "{flows}");
}

/// Somebody empties what says whose the ports are, of one or of both: they are known by their rows, and say it again.
#[test]
fn ids_that_were_emptied() {
    let host = Host::new();
    let mut bed = Bed::new(&host);
    bed.ovs.vsctl("set port nic0 external_ids:somebody=else");
    let ids = |bed: &Bed<'_>| ["nic0", "nic0~"].map(|port| ["_uuid", "external_ids"].map(|column| bed.ovs.column("port", port, column)));
    let as_before = ids(&bed);
    let clear = |ports: &[&str]| {
        // All in one transaction.
        let keys = ["owner", "role", "peer", "orig-name", "entity", "attachment", "ips"].map(|key| format!("vnf-agent-{key}")).join(" ");
        ports.iter().map(|port| format!("remove port {port} external_ids {keys}")).collect::<Vec<_>>().join(" -- ")
    };
    for ports in [["nic0", "nic0~"].as_slice(), &["nic0~"], &["nic0"]] {
        let before = repairs(&bed.agent);
        bed.ovs.vsctl(&clear(ports));
        bed.is_repaired(before, &format!("nobody's ports {ports:?}"));
        eventually_eq(&format!("they say whose they are: {ports:?}"), &as_before, || ids(&bed));
    }
    // Nor is anything left when they are found so by who shall give them back.
    bed.agent.stop();
    bed.ovs.vsctl(&clear(&["nic0", "nic0~"]));
    unwish(&bed.etcd);
    bed.agent.start();
    wait_given_back(&host, &bed.etcd, "nic0", &bed.before);
    assert!(!bed.ovs.vsctl("list-ports br-int").contains("nic0"));
}
