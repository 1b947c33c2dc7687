//! What somebody takes from the host's port is put back; so it goes back with the NIC, too, whatever comes first.

mod nic_support;
mod support;

use std::sync::Arc;

use nic_support::{BRIDGE, NoFlows, assert_reachable, digest, furnish, mover, purpose, wait_digest};
use support::Host;
use vnf_agent::external_node::handover::Outcome;
use vnf_agent::external_node::phase::{Goal, Step};

/// What takes something that lasts from the port, or all of a family, or all frames.
const TAKES: [&str; 11] = [
    "ip -4 address flush dev nic0",
    "ip -6 address flush dev nic0",
    "ip address flush dev nic0",
    "ip route flush dev nic0",
    "ip address del 10.0.0.2/24 dev nic0",
    "ip route del default dev nic0",
    "ip link set nic0 down",
    "ip link set nic0 mtu 600",
    "sysctl -q -w net.ipv6.conf.nic0.disable_ipv6=1",
    "ip link set nic0 master foreign0",
    "ip link set nic0~ master foreign0",
];

/// Before anything was looked at, and between the look and the step that notes what goes back.
#[test]
fn what_is_taken_right_before_the_way_back() {
    let host = Host::with_netns(&["net"]);
    furnish(&host);
    host.run("ip link add foreign0 up type bridge");
    let before = digest(&host, "nic0");
    let ovs = host.start_ovs();
    ovs.add_bridge(BRIDGE);
    let mut mover = mover(&ovs, &Arc::new(NoFlows::default()), "boot");
    for take in TAKES {
        for is_seen in [true, false] {
            mover.to(Goal::Attached);
            if is_seen {
                host.run(take);
            }
            let outcome = mover.handover.drive("nic0", Goal::Plain, &purpose(), |step, _| {
                if step == Step::MarkDetaching && !is_seen {
                    host.run(take);
                }
                true
            });
            assert!(matches!(outcome, Ok(Some(Outcome::Done(_)))), "after {take}: {outcome:#?}");
            wait_digest(&host, &format!("it is as it was, after {take}"), &before);
            assert_reachable(&host, &format!("after {take}"));
        }
    }
}
