//! What others gave to a link beyond a configuration: theirs to take away again, and there once more where the link is made anew.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::model::nic::address::end_together;
use crate::model::nic::route::RouteKey;
use crate::model::nic::{NicAddress, NicConfig, NicRoute, difference};

/// So many of its routes are remembered.
const MOST_ROUTES: usize = 512;

/// Addresses and routes as they were last seen on a host's port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// The index of that port; any other one lacks what passes, or was given, through nobody's will. 0: it is on none.
    pub port: u32,
    /// The addresses, in the kernel's order.
    pub addresses: Vec<NicAddress>,
    /// The routes, as if they led through the NIC.
    pub routes: Vec<NicRoute>,
    /// When they were seen, seconds since boot: lifetimes count from here.
    pub taken_at: u64,
}

impl Given {
    /// What a link that shall be called `name` has beyond a configuration. Without `all`, only what nobody else would give again: no addresses that the
    /// kernel makes of what a router tells, and nothing of programs that look after theirs. One that moves an address between hosts, as keepalived does, may
    /// have moved it by the time that the port is back.
    #[must_use]
    pub fn seen(config: &NicConfig, there: &NicConfig, name: &str, all: bool) -> Self {
        let found = difference(config, there, false);
        let (from, to) = (there.link.ifindex, config.link.ifindex);
        let addresses: Vec<NicAddress> = found.given_addresses().filter(|address| all || !address.is_looked_after()).cloned().collect();
        let remembered = |route: &&NicRoute| {
            let of_address = || addresses.iter().any(|address| route.is_of(address));
            !route.is_shared(from) && if route.is_kernel_made() { of_address() } else { all || route.is_given_by_hand() || route.is_dhcp() }
        };
        let routes = found.lasting_routes().filter(remembered).take(if all { usize::MAX } else { MOST_ROUTES });
        let routes = routes.map(|route| route.on_link(from, to)).collect();
        let named = |mut address: NicAddress| {
            address.rename_label(&there.link.name, name);
            address
        };
        Self { port: from, routes, taken_at: there.taken_at, addresses: addresses.into_iter().map(named).collect() }
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }

    /// Whether another look has shown the same.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        let ends = |given: &Self| -> Vec<Option<u64>> { given.addresses.iter().map(|address| address.ends_at(given.taken_at)).collect() };
        let addresses = |given: &Self| given.addresses.iter().map(|address| address.key(true)).collect::<Vec<_>>();
        let routes = |given: &Self| given.routes.iter().map(|route| route.key(0)).collect::<HashSet<RouteKey>>();
        self.port == other.port
            && addresses(self) == addresses(other)
            && ends(self).into_iter().zip(ends(other)).all(|(one, other)| end_together(one, other))
            && routes(self) == routes(other)
    }

    /// With what another look has shown besides; on no port.
    #[must_use]
    pub fn joined(mut self, more: Self) -> Self {
        let known: HashSet<_> = self.addresses.iter().filter_map(NicAddress::address).collect();
        let later = more.taken_at.saturating_sub(self.taken_at);
        let new = more.addresses.into_iter().filter(|address| address.address().is_some_and(|value| !known.contains(&value)));
        self.addresses.extend(new.map(|address| address.as_read_earlier(later)));
        let known: HashSet<RouteKey> = self.routes.iter().map(|route| route.key(0)).collect();
        self.routes.extend(more.routes.into_iter().filter(|route| !known.contains(&route.key(0))));
        Self { port: 0, ..self }
    }
}

impl NicConfig {
    /// This and what others gave, as far as it has not ended by `now`, seconds since boot.
    #[must_use]
    pub fn with_given(&self, given: &Given, now: u64) -> Self {
        let mut config = self.clone();
        let known: HashSet<_> = self.addresses.iter().filter_map(NicAddress::address).collect();
        let has_ended =
            |address: &NicAddress| address.lifetimes().1.is_some_and(|valid| given.taken_at.saturating_add(valid.into()) <= now);
        let (ended, lasting): (Vec<&NicAddress>, Vec<&NicAddress>) = given.addresses.iter().partition(|address| has_ended(address));
        let later = given.taken_at.saturating_sub(self.taken_at);
        let new = lasting.into_iter().filter(|address| address.address().is_some_and(|value| !known.contains(&value)));
        config.addresses.extend(new.map(|address| address.as_read_earlier(later)));
        let own = self.link.ifindex;
        let known: HashSet<RouteKey> = self.routes.iter().map(|route| route.key(own)).collect();
        let stands = |route: &&NicRoute| !known.contains(&route.key(own)) && !ended.iter().any(|address| route.is_of(address));
        config.routes.extend(given.routes.iter().filter(stands).cloned());
        config
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::nic::replaced::tests::{config, route};
    use crate::model::nic::{Attribute, Message};

    pub(in crate::model::nic) fn address(last: u8, valid: Option<u32>) -> NicAddress {
        address_of(last, valid, None)
    }

    fn address_of(last: u8, valid: Option<u32>, proto: Option<u8>) -> NicAddress {
        let mut attributes = vec![Attribute(1, vec![10, 0, 0, last]), Attribute(2, vec![10, 0, 0, last])];
        let info: Vec<u8> = [valid.unwrap_or(u32::MAX); 2].into_iter().chain([0, 0]).flat_map(u32::to_ne_bytes).collect();
        attributes.push(Attribute(6, info));
        attributes.extend(proto.map(|proto| Attribute(11, vec![proto])));
        NicAddress::new(Message { header: vec![2, 24, 0, 0, 7, 0, 0, 0], attributes }).unwrap()
    }

    #[test]
    fn what_was_given_is_told_from_what_was_found() {
        let found = NicConfig { addresses: vec![address(2, None)], ..config(2, vec![route(2, 1, 50, 4)]) };
        // The kernel's for an address that was found, one of a routing daemon, and people's.
        let routes = vec![route(7, 1, 50, 4), route(7, 3, 60, 186), route(7, 4, 60, 4)];
        let there = NicConfig { addresses: vec![address(2, None), address(9, Some(100))], taken_at: 1000, ..config(7, routes) };
        let given = Given::seen(&found, &there, "eth0", false);
        let wanted = Given { port: 7, addresses: vec![address(9, Some(100))], routes: vec![route(2, 4, 60, 4)], taken_at: 1000 };
        assert!(given.is_as(&wanted), "{given:?}");
        assert_eq!(Given::seen(&found, &there, "eth0", true).routes.len(), 2, "a link that is stripped has all of it to lose");
        let again = |seconds: u64, left: u32| Given { addresses: vec![address(9, Some(left))], taken_at: 1000 + seconds, ..wanted.clone() };
        assert!(given.is_as(&again(50, 50)) && given.is_as(&again(50, 90)) && !given.is_as(&again(50, 300)));
        assert!(!given.is_as(&Given { port: 8, ..wanted.clone() }) && !Given::default().is_as(&Given { port: 8, ..Given::default() }));
    }

    #[test]
    fn what_a_program_marks_as_its_own_is_left_to_it() {
        let found = config(2, Vec::new());
        // Nobody's, a router's, and keepalived's, which marks its routes, too.
        let addresses =
            vec![address(9, None), address_of(10, None, Some(0)), address_of(11, None, Some(2)), address_of(12, None, Some(18))];
        let there = NicConfig { addresses: addresses.clone(), ..config(7, vec![route(7, 3, 60, 18), route(7, 4, 60, 4)]) };
        let given = Given::seen(&found, &there, "eth0", false);
        assert_eq!((given.addresses, given.routes), (addresses[..2].to_vec(), vec![route(2, 4, 60, 4)]));
        let all = Given::seen(&found, &there, "eth0", true);
        assert_eq!((all.addresses.len(), all.routes.len()), (4, 2), "a link that is stripped has all of it to lose");
    }

    #[test]
    fn it_comes_along_with_what_is_left_of_it() {
        let found = NicConfig { addresses: vec![address(2, None)], taken_at: 900, ..config(2, Vec::new()) };
        let given = Given { port: 7, addresses: vec![address(9, Some(1000))], routes: vec![route(2, 4, 60, 4)], taken_at: 1000 };
        let all = found.with_given(&given, 1500);
        assert_eq!((all.addresses.len(), all.routes.len()), (2, 1));
        // Lifetimes count from when the configuration was read.
        assert_eq!(all.addresses[1].lifetimes().1, Some(1100));
        assert_eq!(all.with_given(&given, 1500), all, "twice is once");
        assert_eq!(found.with_given(&given, 2000).addresses, found.addresses, "it has ended");
        let joined = given.clone().joined(Given { addresses: vec![address(9, None), address(10, None)], ..given.clone() });
        assert_eq!((joined.addresses.len(), joined.routes.len(), joined.port), (2, 1, 0));
    }
}
