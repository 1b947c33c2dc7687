//! What of a configuration is for good, and what is there for a time only: who takes the one from a host's port has not said that the host shall be without
//! it; the other is renewed, or let go, by whoever gave it.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::model::nic::address::end_together;
use crate::model::nic::difference::IPV6_MTU;
use crate::model::nic::route::RouteKey;
use crate::model::nic::{Difference, NicAddress, NicConfig, NicRoute, RouteSlot, difference};

impl NicConfig {
    /// Without addresses and routes that are there for a time only. Those come along on a move; afterwards they are renewed, or let go, by whoever gave them.
    /// What leans on one that a link does not have any more is none of it either: the kernel would refuse it.
    #[must_use]
    pub fn lasting(&self, there: &NicConfig) -> Self {
        let mut lasting = self.without_gone(there);
        lasting.addresses.retain(|address| !address.is_passing());
        lasting.routes.retain(|route| !route.is_passing());
        lasting
    }

    /// Whether anything of it is there for a time only.
    #[must_use]
    pub fn has_passing(&self) -> bool {
        self.addresses.iter().any(NicAddress::is_passing) || self.routes.iter().any(NicRoute::is_passing)
    }

    /// This as the link shows it that has it now: with what was found out about addresses there, and of what passes. `None` where that is the same.
    #[must_use]
    pub fn followed(&self, there: &NicConfig) -> Option<NicConfig> {
        if !self.has_undecided() && !self.has_passing() {
            return None;
        }
        let mut now = self.clone();
        now.decide(there);
        now.follow_passing(there);
        (now != *self).then_some(now)
    }

    /// Drops what was there for a time only and is not on the link any more that has the rest now, and notes which leases were renewed there. What a router
    /// tells again and again needs no note of how long it holds: another link hears it too.
    pub fn follow_passing(&mut self, there: &NicConfig) {
        let mut now = self.without_gone(there);
        let present: HashSet<RouteKey> = there.routes.iter().map(|route| route.key(there.link.ifindex)).collect();
        now.routes.retain(|route| !route.is_passing() || present.contains(&route.key(self.link.ifindex)));
        let later = there.taken_at.saturating_sub(self.taken_at);
        for address in now.addresses.iter_mut().filter(|address| address.is_leased()) {
            let found = there.addresses.iter().find(|found| found.address() == address.address());
            let ends_otherwise = |found: &&NicAddress| !end_together(address.ends_at(self.taken_at), found.ends_at(there.taken_at));
            if let Some(found) = found.filter(ends_otherwise) {
                *address = found.as_read_earlier(later);
            }
        }
        *self = now;
    }

    /// Without passing addresses that a link does not have any more, and without what the kernel takes away with them, or would not make without them.
    fn without_gone(&self, there: &NicConfig) -> Self {
        let mut config = self.clone();
        let present: HashSet<_> = there.addresses.iter().filter_map(NicAddress::address).collect();
        let is_gone = |address: &NicAddress| address.is_passing() && address.address().is_some_and(|value| !present.contains(&value));
        let (gone, kept): (Vec<NicAddress>, Vec<NicAddress>) = config.addresses.into_iter().partition(is_gone);
        config.addresses = kept;
        if gone.is_empty() {
            return config;
        }
        let others: Vec<&NicAddress> = config.addresses.iter().chain(&there.addresses).collect();
        let lost = |hop: IpAddr| gone.iter().any(|address| address.reaches(hop)) && !others.iter().any(|address| address.reaches(hop));
        let is_source = |ip: IpAddr| {
            let is_it = |address: &NicAddress| address.address().is_some_and(|value| value.ip() == ip);
            gone.iter().any(is_it) && !others.iter().any(|address| is_it(address))
        };
        let of_gone =
            |route: &NicRoute| gone.iter().any(|address| route.is_of(address)) && !others.iter().any(|address| route.is_of(address));
        config.nexthops.retain(|object| !object.gateway().is_some_and(lost));
        let lacks_object = |route: &NicRoute| {
            route.nexthop().is_some_and(|id| self.nexthops.iter().any(|o| o.id() == id) && !config.nexthops.iter().any(|o| o.id() == id))
        };
        let leans = |route: &NicRoute| {
            of_gone(route) || route.source().is_some_and(is_source) || route.gateways().into_iter().any(lost) || lacks_object(route)
        };
        let (leaning, standing): (Vec<NicRoute>, Vec<NicRoute>) = config.routes.into_iter().partition(leans);
        config.routes = standing;
        config.leading.retain(|route| !leans(route));
        // The kernel made another one for the next address of that network.
        let places: HashSet<RouteSlot> = leaning.iter().filter(|route| route.is_kernel_made()).map(NicRoute::slot).collect();
        let instead = there.routes.iter().filter(|route| route.is_kernel_made() && places.contains(&route.slot()));
        config.routes.extend(instead.map(|route| route.on_link(there.link.ifindex, self.link.ifindex)));
        config
    }

    /// What is there now, and of this what does not end by itself and is gone: what a repair would put back. In whose place something else stands now is
    /// not wished any more.
    #[must_use]
    pub fn kept_with(&self, there: &NicConfig) -> NicConfig {
        let wish = self.with_replaced_routes(&[there]).as_ref().unwrap_or(self).lasting(there);
        let missing = difference(&wish, there, false);
        let mut kept = there.clone();
        // The kernel takes that of the link in its place with every change of the link's, which is nobody's wish.
        if let Some(mtu) = wish.sysctls.get(IPV6_MTU).filter(|_| there.sysctls.get(IPV6_MTU) == Some(&there.link.mtu.to_string())) {
            kept.sysctls.insert(IPV6_MTU.to_owned(), mtu.clone());
        }
        if missing.is_whole() {
            return kept;
        }
        kept.addresses = self.in_order(&wish, there);
        kept.take_missing_routes(&wish, &missing);
        kept.neighbours.extend(missing.missing_neighbours);
        // What is missing may have gone with a setting, as IPv6 addresses do; and without its settings it could not come back.
        (kept.sysctls, kept.link.mtu, kept.link.up) = (wish.sysctls, wish.link.mtu, wish.link.up);
        kept
    }

    /// The addresses of both, in the order in which they were found, and as they are there now where they are: the first one of a network is the one that the
    /// host uses.
    fn in_order(&self, wish: &NicConfig, there: &NicConfig) -> Vec<NicAddress> {
        let in_wish = |address: &&NicAddress| wish.addresses.iter().any(|wished| wished.address() == address.address());
        let now = |address: &NicAddress| there.addresses.iter().find(|found| found.address() == address.address()).cloned();
        let known: HashSet<_> = self.addresses.iter().filter_map(NicAddress::address).collect();
        let more = there.addresses.iter().filter(|address| address.address().is_none_or(|value| !known.contains(&value)));
        let found = self.addresses.iter().filter_map(|address| now(address).or_else(|| Some(address).filter(in_wish).cloned()));
        found.chain(more.cloned()).collect()
    }

    fn take_missing_routes(&mut self, wish: &NicConfig, missing: &Difference) {
        let (from, to) = (wish.link.ifindex, self.link.ifindex);
        let anew: HashSet<u32> = missing.missing_nexthops.iter().map(super::NicNexthop::id).collect();
        self.nexthops.retain(|object| !anew.contains(&object.id()));
        self.nexthops.extend(missing.missing_nexthops.iter().cloned());
        let routes = &missing.missing_routes;
        let keys: HashSet<RouteKey> = routes.iter().map(|route| route.key(from)).collect();
        let led = wish.leading.iter().filter(|leading| keys.contains(&leading.key(from)));
        self.leading.extend(led.map(|route| route.on_link(from, to)));
        self.routes.extend(routes.iter().map(|route| route.on_link(from, to)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::nic::given::tests::address;
    use crate::model::nic::replaced::tests::{config, route};
    use crate::model::nic::{Attribute, Message};

    const BOOT: u8 = 3;

    #[test]
    fn what_lasts_and_is_gone_is_kept_in_its_order() {
        let found = NicConfig {
            addresses: vec![address(2, None), address(3, None), address(4, Some(100))],
            sysctls: [("ipv6/disable_ipv6".to_owned(), "0".to_owned())].into(),
            ..config(2, vec![route(2, 1, 50, BOOT)])
        };
        let there = NicConfig {
            addresses: vec![address(3, None), address(9, None)],
            sysctls: [("ipv6/disable_ipv6".to_owned(), "1".to_owned())].into(),
            ..config(7, vec![route(7, 3, 60, BOOT)])
        };
        let kept = found.kept_with(&there);
        assert_eq!(kept.addresses, [address(2, None), address(3, None), address(9, None)]);
        assert_eq!(kept.routes, [route(7, 3, 60, BOOT), route(7, 1, 50, BOOT)]);
        assert_eq!((kept.link.ifindex, kept.sysctls), (7, found.sysctls));
    }

    #[test]
    fn a_lease_that_was_first_stays_so() {
        let found = NicConfig { addresses: vec![address(4, Some(100)), address(2, None), address(3, None)], ..config(2, Vec::new()) };
        let there = NicConfig { addresses: vec![address(4, Some(50)), address(2, None)], ..config(7, Vec::new()) };
        assert_eq!(found.kept_with(&there).addresses, [address(4, Some(50)), address(2, None), address(3, None)]);
    }

    #[test]
    fn where_nothing_is_gone_it_is_what_is_there() {
        let found = NicConfig { addresses: vec![address(2, None), address(4, Some(100))], ..config(2, vec![route(2, 1, 50, BOOT)]) };
        let there = NicConfig {
            addresses: vec![address(2, None), address(9, None)],
            sysctls: [("ipv4/rp_filter".to_owned(), "2".to_owned())].into(),
            ..config(7, vec![route(7, 1, 50, BOOT), route(7, 3, 60, BOOT)])
        };
        assert_eq!(found.kept_with(&there), there);
    }

    #[test]
    fn what_took_the_place_of_a_route_is_there_alone() {
        let found = config(2, vec![route(2, 1, 50, BOOT)]);
        let there = config(7, vec![route(7, 3, 50, BOOT)]);
        assert_eq!(found.kept_with(&there), there);
    }

    const KERNEL: u8 = 2;
    const DHCP: u8 = 16;

    /// The network of the tests' addresses, by this one of them.
    fn network(link: u32, source: u8) -> NicRoute {
        let attributes =
            vec![Attribute(1, vec![10, 0, 0, 0]), Attribute(4, link.to_ne_bytes().to_vec()), Attribute(7, vec![10, 0, 0, source])];
        NicRoute::new(Message { header: vec![2, 24, 0, 0, 254, KERNEL, 253, 1, 0, 0, 0, 0], attributes }).unwrap()
    }

    fn leased(last: u8, link: u32, routes: &[NicRoute]) -> NicConfig {
        NicConfig { addresses: vec![address(last, Some(100))], ..config(link, routes.to_vec()) }
    }

    #[test]
    fn what_leans_on_a_lease_goes_with_it() {
        let found = leased(2, 2, &[network(2, 2), route(2, 1, 50, BOOT), route(2, 1, 60, DHCP)]);
        let there = leased(2, 7, &[network(7, 2)]);
        assert_eq!(found.lasting(&there), NicConfig { addresses: Vec::new(), ..config(2, vec![network(2, 2), route(2, 1, 50, BOOT)]) });
        // Let go, and with it its network, and what cannot be reached without it.
        assert_eq!(found.lasting(&config(7, Vec::new())), config(2, Vec::new()));
        assert_eq!(found.kept_with(&config(7, Vec::new())), config(7, Vec::new()));
        // Another one of the same network: the way by it is as good as before, and its network is wished instead.
        let there = leased(3, 7, &[network(7, 3)]);
        assert_eq!(found.lasting(&there), config(2, vec![route(2, 1, 50, BOOT), network(2, 3)]));
        // As with one that lasts.
        let both = NicConfig { addresses: vec![address(2, Some(100)), address(3, None)], ..found.clone() };
        let there = NicConfig { addresses: vec![address(3, None)], ..config(7, vec![network(7, 3)]) };
        assert_eq!(both.lasting(&there).routes, [route(2, 1, 50, BOOT), network(2, 3)]);
    }

    #[test]
    fn leases_are_followed() {
        let found = NicConfig { taken_at: 1000, ..leased(2, 2, &[network(2, 2), route(2, 1, 50, BOOT), route(2, 1, 60, DHCP)]) };
        let followed = |there: &NicConfig| {
            let mut config = found.clone();
            config.follow_passing(there);
            config
        };
        let there = NicConfig { taken_at: 1050, ..leased(2, 7, &[network(7, 2), route(7, 1, 60, DHCP)]) };
        assert_eq!(followed(&there), found, "it ends 50 s later, which is not worth a word");
        let renewed = NicConfig { taken_at: 1090, ..there.clone() };
        assert_eq!(followed(&renewed), NicConfig { addresses: vec![address(2, Some(190))], ..found.clone() });
        let without_route = NicConfig { routes: vec![network(7, 2)], ..there.clone() };
        assert_eq!(followed(&without_route).routes, [network(2, 2), route(2, 1, 50, BOOT)], "only the route of the lease was let go");
        assert_eq!(followed(&config(7, Vec::new())), NicConfig { taken_at: 1000, ..config(2, Vec::new()) });
        assert!(found.has_passing() && !followed(&config(7, Vec::new())).has_passing());
    }
}
