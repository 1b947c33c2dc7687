//! A NIC that shares something with other links, or with what the kernel makes for each link by itself: order and number stay as they were.

mod nic_support;
mod support;

use std::sync::Arc;

use nic_support::{BRIDGE, Mover, assert_reachable, digest, furnish, mover, purpose, wait_digest};
use support::{Host, eventually, eventually_eq};
use vnf_agent::external_node::phase::{Goal, Step};

/// Of routes that differ in nothing but their way the kernel takes the first, and its strict filter lets in by no other link: who stood first, or last,
/// stands so wherever the NIC is.
#[test]
fn two_nics_in_one_network_keep_their_order() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    host.run("ip link add nic1 type veth peer name p1 netns net");
    host.run("ip -n net link set p1 up");
    host.run("ip address add 10.0.0.9/24 dev nic1");
    host.run("ip link set nic1 up");
    eventually("both ends are up", || !host.run("ip route show").contains("linkdown"));
    for behind in ["append default via 10.0.0.1 dev nic1 metric 50 proto static", "append 10.50.0.0/16 via 10.0.0.7 dev nic1 table 100"] {
        host.run(&format!("ip route {behind}"));
    }
    for (first, then) in [("nic1", "nic0"), ("nic0", "nic1")] {
        for link in [first, then] {
            host.run(&format!("ip route append 10.60.{}.0/24 dev {link} scope link", u8::from(first == "nic0")));
        }
    }
    for link in ["all", "nic0"] {
        host.run(&format!("sysctl -q -w net.ipv4.conf.{link}.rp_filter=1"));
    }
    let routes = || host.run("ip -4 route show") + &host.run("ip -4 route show table 100");
    let before = routes();
    assert_reachable(&host, "before");
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    for goal in [Goal::Attached, Goal::Plain] {
        mover.to(goal);
        eventually_eq(&format!("the order is as it was, {goal:?}"), &before, routes);
        assert_reachable(&host, &format!("{goal:?}"));
    }
}

/// The kernel makes temporary addresses of its own for each link that has the address that they come from. They are nothing that was given to the port.
#[test]
fn temporary_addresses_do_not_pile_up() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    host.run("sysctl -q -w net.ipv6.conf.nic0.use_tempaddr=2");
    host.run("ip address add 2001:db8:62::5/64 dev nic0 mngtmpaddr nodad");
    let addresses = || -> Vec<String> {
        let text = host.run("ip -6 -o address show dev nic0");
        let of_net = text.lines().filter(|line| line.contains("2001:db8:62:"));
        of_net.filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect()
    };
    eventually("the kernel has made one", || addresses().len() == 2 && !host.run("ip -6 address show dev nic0").contains("tentative"));
    let before = addresses();
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    for _ in 0..3 {
        let mut whole = false;
        let outcome = mover.handover.drive("nic0", Goal::Attached, &purpose(), |step, _| {
            whole |= step == Step::StripNic;
            !whole
        });
        assert!(matches!(outcome, Ok(None)) && whole, "{outcome:?}");
        mover.to(Goal::Plain);
        eventually_eq("no address was added", &before, addresses);
    }
    mover.to(Goal::Attached);
    mover.to(Goal::Plain);
    let made_by_port = addresses().into_iter().filter(|address| !before.contains(address)).count();
    assert!(made_by_port <= 1, "only one for the NIC itself is new: {before:?} {:?}", addresses());
}

/// The kernel does not use an address that another host was found to have; nor does the port, nor the NIC when it is back.
#[test]
fn an_address_of_another_host_stays_that_ones() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    // A slow answer counts as well.
    host.run("sysctl -q -w net.ipv6.conf.nic0.dad_transmits=4");
    // Deprecated, so that nothing is sent from it: who has it as a duplicate does not believe that anybody answers there.
    host.run("ip -n net address add 2001:db8::44/64 dev p0 nodad preferred_lft 0");
    host.run("ip address add 2001:db8::44/64 dev nic0");
    let is_unused = || host.run("ip -6 -o address show dev nic0 to 2001:db8::44").contains("dadfailed");
    eventually("it was found to be another one's", is_unused);
    let before = digest(&host, "nic0");
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    for goal in [Goal::Attached, Goal::Plain] {
        mover.to(goal);
        eventually(&format!("it is found to be so again, {goal:?}"), is_unused);
        assert_reachable(&host, &format!("{goal:?}"));
    }
    wait_digest(&host, "everything is as it was", &before);
}

/// The addresses of the journal that the network was still asked about when they were read.
fn undecided(mover: &Mover) -> Vec<String> {
    let journal = mover.handover.journals().load("nic0").expect("it can be read").expect("a journal");
    journal.config.addresses.iter().filter(|address| address.is_unusable()).map(ToString::to_string).collect()
}

/// An address that is in use on the port is the host's, whatever was known when it was read: it is not tried on the network again.
#[test]
fn what_is_found_out_about_an_address_is_noted() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    // What comes up without a carrier decides nothing.
    for change in ["-n net link set p0 down", "link set nic0 down", "link set nic0 up"] {
        host.run(&format!("ip {change}"));
    }
    for setting in ["dad_transmits", "router_solicitation_delay"] {
        host.run(&format!("sysctl -q -w net.ipv6.conf.nic0.{setting}=0"));
    }
    host.run("ip address add 2001:db8::2/64 dev nic0");
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    assert!(mover.stop_after(1, Goal::Attached).is_some());
    assert_eq!(undecided(&mover), ["2001:db8::2/64"]);
    mover.to(Goal::Attached);
    assert!(undecided(&mover).is_empty(), "{:?}", undecided(&mover));
}

/// Nobody waits for a network that is asked a dozen times; what it says in the end is noted all the same.
#[test]
fn what_is_found_out_late_is_noted_too() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    host.run("sysctl -q -w net.ipv6.conf.nic0.dad_transmits=12");
    host.run("ip address add 2001:db8::2:2/64 dev nic0");
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::default(), "boot");
    mover.to(Goal::Attached);
    eventually("it is noted", || {
        mover.to(Goal::Attached);
        undecided(&mover).is_empty()
    });
    assert!(host.run("ip address show dev nic0").contains("2001:db8::2:2"));
}
