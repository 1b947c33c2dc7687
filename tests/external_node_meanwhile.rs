//! What somebody gives the host while its NIC is on its way behind the bridge or back is not lost, at whichever step it comes.

mod nic_support;
mod support;

use std::sync::Arc;

use nic_support::{BRIDGE, Mover, NoFlows, assert_reachable, furnish, mover, purpose};
use support::Host;
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
