//! What somebody gives the host or changes there while its NIC is on its way behind the bridge or back is not lost, at whichever step it comes.

mod nic_support;
mod support;

use std::sync::Arc;

use nic_support::{BRIDGE, Mover, NoFlows, assert_reachable, furnish, mover, purpose};
use support::{Host, eventually};
use vnf_agent::external_node::handover::Outcome;
use vnf_agent::external_node::phase::{Goal, Step};

const GIVEN: &str = "10.88.0.9/24";
const GIVEN_6: &str = "2001:db8:88::9/64";
const ROUTE: &str = "10.77.0.0/16 via 10.88.0.1";

/// Gives the host something more, as people and programs do: by the NIC's name, which the NIC or the port has, or else by the uplink's.
fn give(host: &Host) {
    let link = if host.link_names("").iter().any(|name| name == "nic0") { "nic0" } else { "nic0~" };
    host.run(&format!("ip address add {GIVEN} dev {link}"));
    // Refused where IPv6 is off, which it is on what has nothing yet; and a route, on what is down.
    let _ = host.try_run(&format!("ip address add {GIVEN_6} dev {link} nodad"));
    let _ = host.try_run(&format!("ip route add {ROUTE} dev {link}"));
}

fn given(host: &Host) -> Vec<String> {
    let addresses = host.run("ip -o address show");
    let of_them = [GIVEN, GIVEN_6].into_iter().filter(|address| addresses.contains(&format!(" {address} ")));
    let route = host.run("ip route show").contains(ROUTE).then_some(ROUTE);
    of_them.chain(route).map(str::to_owned).collect()
}

/// Goes the way, and gives the host something before its `n`-th step; that step, and what was taken of what was given. `None` where the way is shorter.
fn go(host: &Host, mover: &mut Mover, goal: Goal, n: usize) -> Option<(Step, Vec<String>)> {
    let (mut number, mut at) = (0, None);
    let outcome = mover.handover.drive("nic0", goal, &purpose(), |step, _| {
        number += 1;
        if number == n {
            give(host);
            at = Some((step, given(host)));
        }
        true
    });
    assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{goal:?}, given before step {n} ({at:?}): {outcome:#?}");
    at
}

#[test]
fn what_is_given_at_any_step_comes_along() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    let mut seen = Vec::new();
    for n in 1.. {
        let mut steps = 0;
        for goal in [Goal::Attached, Goal::Plain] {
            let Some((step, taken)) = go(&host, &mut mover, goal, n) else { continue };
            steps += 1;
            seen.push(step);
            assert!(taken.contains(&GIVEN.to_owned()));
            assert_eq!(given(&host), taken, "given before {step:?} on the way to {goal:?}");
            assert_reachable(&host, &format!("after something was given before {step:?}"));
            let _ = host.try_run(&format!("ip route del {ROUTE} dev nic0"));
            host.run(&format!("ip address del {GIVEN} dev nic0"));
            let _ = host.try_run(&format!("ip address del {GIVEN_6} dev nic0"));
        }
        if steps == 0 {
            break;
        }
    }
    for step in [Step::StripNic, Step::DeletePorts] {
        assert!(seen.contains(&step), "{seen:?}");
    }
    assert!(!host.link_names("").iter().any(|name| name == "nic0~"));
}

const INSTEAD: &str = "default via 10.0.0.254 metric 50 proto static";
const INSTEAD_6: &str = "default via 2001:db8::fe metric 77";

/// Replaces both default routes by the NIC's name; which of them the kernel took.
fn replace(host: &Host) -> [bool; 2] {
    let link = if host.link_names("").iter().any(|name| name == "nic0") { "nic0" } else { "nic0~" };
    // Refused where the link is down, or has no address yet.
    [("-4", INSTEAD), ("-6", INSTEAD_6)]
        .map(|(family, route)| host.try_run(&format!("ip {family} route replace {route} dev {link}")).is_ok())
}

/// Where default routes lead: the first of each family, by gateway, and how many there are of IPv6.
fn defaults(host: &Host) -> (String, Vec<String>) {
    let lines = |family: &str| -> Vec<String> {
        let routes = host.run(&format!("ip {family} route show default"));
        routes.split("via ").skip(1).filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
    };
    (lines("-4").first().cloned().unwrap_or_default(), lines("-6"))
}

#[test]
fn what_is_replaced_at_any_step_stands_afterwards() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    let mut taken_at = Vec::new();
    for n in 1.. {
        let mut steps = 0;
        for goal in [Goal::Attached, Goal::Plain] {
            let (mut number, mut at) = (0, None);
            let outcome = mover.handover.drive("nic0", goal, &purpose(), |step, _| {
                number += 1;
                if number == n {
                    at = Some((step, replace(&host)));
                }
                true
            });
            assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{goal:?}, replaced before step {n} ({at:?}): {outcome:#?}");
            let Some((step, [taken, taken_6])) = at else { continue };
            steps += 1;
            taken_at.extend([taken, taken_6].contains(&true).then_some(step));
            let (first, all_6) = defaults(&host);
            assert_eq!(first, if taken { "10.0.0.254" } else { "10.0.0.1" }, "replaced before {step:?} on the way to {goal:?}");
            let wanted = if taken_6 { "2001:db8::fe" } else { "2001:db8::1" };
            assert_eq!(all_6, [wanted], "replaced before {step:?} on the way to {goal:?}");
            assert_reachable(&host, &format!("after a route was replaced before {step:?}"));
            while host.try_run("ip route del default").is_ok() {}
            host.run("ip route add default via 10.0.0.1 metric 50 proto static dev nic0");
            host.run("ip -6 route replace default via 2001:db8::1 metric 77 dev nic0");
        }
        if steps == 0 {
            break;
        }
    }
    for step in [Step::StripNic, Step::DeletePorts] {
        assert!(taken_at.contains(&step), "{taken_at:?}");
    }
}

/// Somebody removes the port after it was seen: what is seen then decides, and nothing has failed.
#[test]
fn a_port_that_goes_between_look_and_step() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    for (goal, at) in [(Goal::Attached, Step::CopyToPort), (Goal::Plain, Step::MarkDetaching)] {
        let mut times = 0;
        let outcome = mover.handover.drive("nic0", goal, &purpose(), |step, _| {
            if step == at && times == 0 {
                times = 1;
                ovs.vsctl(&format!("del-port {BRIDGE} nic0"));
                eventually("its link is gone", || !host.link_names("").iter().any(|name| name == "nic0"));
            }
            true
        });
        assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{goal:?}: {outcome:#?}");
        assert_eq!(times, 1, "{at:?} is on the way to {goal:?}");
        assert_reachable(&host, &format!("{goal:?} past a port that went before {at:?}"));
    }
}

/// Somebody removes an address while everything is read back, as one does whose address moves between hosts: another look, and no way back.
#[test]
fn an_address_that_goes_during_the_read_back() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    host.run(&format!("ip address add {GIVEN} dev nic0"));
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    let mut times = 0;
    let outcome = mover.handover.drive("nic0", Goal::Attached, &purpose(), |step, _| {
        if step == Step::Confirm {
            times += 1;
            if times == 1 {
                host.run(&format!("ip address del {GIVEN} dev nic0"));
            }
        }
        true
    });
    assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "{outcome:#?}");
    assert_eq!(times, 2, "it is read back again");
    assert_reachable(&host, "past an address that went during the read-back");
    mover.to(Goal::Plain);
}

/// Somebody empties what stands beside the ports as soon as they are made: they are known by their rows, on either way.
#[test]
fn ports_that_say_no_more_whose_they_are() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    for goes_on in [false, true] {
        let outcome = mover.handover.drive("nic0", Goal::Attached, &purpose(), |step, _| {
            if step == Step::InstallFlows {
                for port in ["nic0", "nic0~"] {
                    ovs.vsctl(&format!("clear port {port} external_ids -- clear interface {port} external_ids"));
                }
                return goes_on;
            }
            true
        });
        let is_there = matches!(outcome, Ok(Some(Outcome::Done(_))));
        assert_eq!(is_there, goes_on, "{outcome:#?}");
        assert_reachable(&host, "with ports that say nothing");
        mover.to(Goal::Plain);
        assert!(!ovs.vsctl(&format!("list-ports {BRIDGE}")).contains("nic0"), "its ports are left behind");
        assert_reachable(&host, "given back");
    }
}
