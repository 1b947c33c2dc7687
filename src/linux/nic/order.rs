//! The order of IPv4 routes that differ in nothing but their way, as those of two NICs in one network do: the kernel takes the first, and a strict
//! reverse path filter lets in by no other link. Who is made anew comes last; so a NIC that stood first is put before the others again.

use std::collections::{BTreeSet, HashMap};

use netlink_packet_core::NLM_F_CREATE;

use crate::linux::batch::Request;
use crate::linux::nic::NicKernel;
use crate::linux::nic::read::{self, RTM_NEWROUTE};
use crate::linux::nic::write::{RTM_DELROUTE, kept};
use crate::linux::socket::{Failure, RouteSocket};
use crate::model::IfIndex;
use crate::model::nic::{NicConfig, NicRoute, RouteSlot};

/// Those of a link's routes that stand before others.
pub(super) fn leading(kernel: &mut NicKernel, config: &NicConfig) -> Result<Vec<NicRoute>, Failure> {
    let link = config.link.ifindex;
    let own: Vec<&NicRoute> = config.routes.iter().filter(|route| has_order(route, link)).collect();
    let all = in_tables(kernel.socket()?, &own)?;
    let leads = |route: &&NicRoute| {
        let mut same = all.get(&route.slot()).into_iter().flatten();
        same.next().is_some_and(|first| first.leads_through(link)) && same.any(|other| !other.leads_through(link))
    };
    Ok(own.into_iter().filter(leads).cloned().collect())
}

/// What puts a link's routes before those of others where they stood so. Each is made anew: the kernel moves none.
pub(super) fn put_first(kernel: &mut NicKernel, wish: &NicConfig, index: IfIndex) -> Result<Vec<Request>, Failure> {
    if wish.leading.is_empty() {
        return Ok(Vec::new());
    }
    let link = index.get();
    let all = in_tables(kernel.socket()?, &wish.leading.iter().collect::<Vec<_>>())?;
    let behind = wish.leading.iter().rev().filter_map(|route| {
        let mut same = all.get(&route.slot())?.iter();
        if same.next()?.leads_through(link) {
            return None;
        }
        same.find(|other| other.leads_through(link) && has_order(other, link))
    });
    Ok(behind
        .map(|route| route.to_add(link, index, 0))
        .flat_map(|route| [kept(RTM_DELROUTE, &route, 0), kept(RTM_NEWROUTE, &route, NLM_F_CREATE)])
        .collect())
}

fn has_order(route: &NicRoute, link: u32) -> bool {
    !route.is_ipv6() && route.nexthop().is_none() && !route.is_shared(link)
}

/// All IPv4 routes of the tables of these, by their places, each in the kernel's order.
fn in_tables(socket: &mut RouteSocket, routes: &[&NicRoute]) -> Result<HashMap<RouteSlot, Vec<NicRoute>>, Failure> {
    let tables: BTreeSet<u32> = routes.iter().map(|route| route.table()).collect();
    let mut all: HashMap<RouteSlot, Vec<NicRoute>> = HashMap::new();
    for table in tables {
        for route in read::ipv4_table(socket, table)? {
            all.entry(route.slot()).or_default().push(route);
        }
    }
    Ok(all)
}
