//! Addresses and routes that others give to the port while the NIC is attached: theirs to take away, and not lost with a port that is made anew.

mod node_support;
mod support;

use node_support::*;
use serde_json::{Value, json};
use support::{Agent, Host};

const ADDRESSES: [&str; 5] = [
    "10.88.0.9/24 label nic0:vip",
    "10.199.0.77/24",
    "10.89.0.9/32",
    "2001:db8:88::9/64 nodad noprefixroute",
    "10.88.0.10/24 valid_lft 3600 preferred_lft 1800",
];
const ROUTES: [&str; 3] = ["10.77.0.0/16 via 10.88.0.1", "10.78.0.0/16 dev nic0 proto static metric 9", "2001:db8:99::/48 via fd99:199::1"];

/// What the journal says that others gave to the port that is there now: how many addresses and routes, without those that the kernel made for them.
fn noted(host: &Host, agent: &Agent<'_>) -> (usize, usize, String) {
    let text = std::fs::read(agent.state_dir().join("nic/nic0.json")).unwrap_or_default();
    let journal: Value = serde_json::from_slice(&text).unwrap_or_default();
    let given = &journal["given"];
    let (noted_on, port) = (given["port"].to_string(), index(host, "nic0"));
    if noted_on != port {
        return (0, 0, format!("of another port than {port}: {given}"));
    }
    let routes = given["routes"].as_array().map(|routes| routes.iter().filter(|route| !route[0].to_string().contains("proto 2\"")).count());
    (given["addresses"].as_array().map_or(0, Vec::len), routes.unwrap_or_default(), given.to_string())
}

fn wait_noted(host: &Host, agent: &Agent<'_>, addresses: usize, routes: usize) {
    eventually_long("the journal says what others gave", || {
        let noted = noted(host, agent);
        if (noted.0, noted.1) == (addresses, routes) { Ok(()) } else { Err(noted) }
    });
}

fn wait_shape(host: &Host, etcd: &support::Etcd<'_>, shape_then: &[String], when: &str) {
    eventually_long(&format!("all is there {when}"), || {
        let now = shape(host, "nic0");
        let missing: Vec<&String> = shape_then.iter().filter(|line| !now.contains(line)).collect();
        let more: Vec<&String> = now.iter().filter(|line| !shape_then.contains(line)).collect();
        if missing.is_empty() && more.is_empty() { Ok(()) } else { Err(format!("missing {missing:#?}, more {more:#?}")) }
    });
    wait_attached(etcd, &["nic0"]);
}

#[test]
fn what_others_gave_outlives_the_port() {
    let host = Host::new();
    let furniture = ["ip route add default via 10.199.0.1 dev nic0 metric 50"];
    let Moved { nic, before: _, mut ovs, etcd, mut agent } = Moved::furnished(&host, &furniture, &json!([{"name": "nic0"}]));
    for address in ADDRESSES {
        host.run(&format!("ip address add {address} dev nic0"));
    }
    for route in ROUTES {
        host.run(
            &format!("ip route add {route} dev nic0").replace("dev nic0 proto static metric 9 dev nic0", "dev nic0 proto static metric 9"),
        );
    }
    wait_noted(&host, &agent, ADDRESSES.len(), ROUTES.len());
    let with_all = shape(&host, "nic0");
    assert_eq!(repairs(&agent), 0, "what is given is no fault");
    let told = interface(&wait_attached(&etcd, &["nic0"]), "nic0")["ip_addresses"].to_string();
    assert!(told.contains("10.88.0.9/24"), "{told}");
    // What is put right for the journal takes nothing of theirs.
    host.run("ip address del fd99:199::2/64 dev nic0");
    eventually_long("it is repaired", || if repairs(&agent) > 0 { Ok(()) } else { Err(status(&etcd)) });
    wait_shape(&host, &etcd, &with_all, "beside what was repaired");
    // The port goes by somebody's hand, with the agent and without it, and with the switch.
    ovs.vsctl("del-port br-int nic0");
    wait_shape(&host, &etcd, &with_all, "after the port was deleted");
    agent.kill();
    ovs.vsctl("del-port br-int nic0");
    agent.start();
    wait_shape(&host, &etcd, &with_all, "after the port was deleted while no agent ran");
    ovs.kill_switch();
    wait_reachable(&host, &nic, "while the switch is dead");
    ovs.start_switch();
    wait_shape(&host, &etcd, &with_all, "after the switch was started anew");
    ovs.exit_switch_with_cleanup();
    ovs.start_switch();
    wait_shape(&host, &etcd, &with_all, "after the switch had cleaned up");
    // Theirs to take away.
    wait_noted(&host, &agent, ADDRESSES.len(), ROUTES.len());
    host.run("ip address del 10.88.0.10/24 dev nic0");
    host.run("ip address del 10.199.0.77/24 dev nic0");
    host.run("ip -6 route del 2001:db8:99::/48 dev nic0");
    wait_noted(&host, &agent, ADDRESSES.len() - 2, ROUTES.len() - 1);
    let with_less = shape(&host, "nic0");
    assert!(with_less.len() < with_all.len());
    ovs.vsctl("del-port br-int nic0");
    wait_shape(&host, &etcd, &with_less, "without what they took away");
    nic.passes_all_but(5000, &[]);
    unwish(&etcd);
    wait_given_back(&host, &etcd, "nic0", &with_less);
}
