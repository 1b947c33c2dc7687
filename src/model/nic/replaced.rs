//! Routes whose place another one has taken.
//!
//! Who replaces a route, or joins a hop to an IPv6 one, leaves the former one nowhere and another one in its place. That is another thing than a
//! route that is gone: the host's owner has said what shall lead there instead.

use std::collections::{HashMap, HashSet};

use crate::model::nic::route::RouteKey;
use crate::model::nic::{NicConfig, NicRoute, RouteSlot};

impl NicConfig {
    /// This configuration with what others put into the places of its routes: of routes that none of these links has any more, and whose place on one of
    /// them has another one, that one is wished from now on. `None` where there is none.
    #[must_use]
    pub fn with_replaced_routes(&self, links: &[&NicConfig]) -> Option<NicConfig> {
        let present: HashSet<RouteKey> = links.iter().flat_map(|there| keys(there)).collect();
        let mut config = self.clone();
        let superseded = config.replace_missing(&present, links);
        (!superseded.is_empty()).then_some(config)
    }

    /// Puts into the places of routes that are not `present` what these links have there; returns what is not wished any more.
    pub(super) fn replace_missing(&mut self, present: &HashSet<RouteKey>, links: &[&NicConfig]) -> Vec<NicRoute> {
        let own = self.link.ifindex;
        let missing: HashSet<RouteSlot> =
            self.routes.iter().filter(|route| !present.contains(&route.key(own))).map(NicRoute::slot).collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let mut instead: HashMap<RouteSlot, Vec<NicRoute>> = HashMap::new();
        let mut seen: HashSet<RouteKey> = keys(self).collect();
        for there in links {
            let in_place = |route: &&NicRoute| missing.contains(&route.slot()) && route.is_given() && there.leads(route);
            for route in there.routes.iter().filter(in_place) {
                if seen.insert(route.key(there.link.ifindex)) {
                    self.take_nexthops(there, route);
                    instead.entry(route.slot()).or_default().push(route.on_link(there.link.ifindex, own));
                }
            }
        }
        let mut superseded = Vec::new();
        for route in std::mem::take(&mut self.routes) {
            let slot = route.slot();
            if present.contains(&route.key(own)) || !missing.contains(&slot) {
                self.routes.push(route);
            } else if let Some(others) = instead.get_mut(&slot) {
                // All of them stand where the first one stood.
                self.routes.append(others);
                superseded.push(route);
            } else {
                self.routes.push(route);
            }
        }
        superseded
    }

    /// Whether a route leads through this link; one that uses a nexthop object is told of by all links.
    fn leads(&self, route: &NicRoute) -> bool {
        route.nexthop().is_none_or(|id| self.nexthops.iter().any(|object| object.id() == id))
    }

    /// Takes in the nexthop object that a route uses, after its members.
    fn take_nexthops(&mut self, there: &NicConfig, route: &NicRoute) {
        let Some(group) = there.nexthops.iter().find(|object| Some(object.id()) == route.nexthop()) else { return };
        let members = group.members();
        let wanted = there.nexthops.iter().filter(|object| members.contains(&object.id())).chain([group]);
        for object in wanted {
            if self.nexthops.iter().all(|known| known.id() != object.id()) {
                self.nexthops.push(object.clone());
            }
        }
    }
}

fn keys(config: &NicConfig) -> impl Iterator<Item = RouteKey> {
    config.routes.iter().map(|route| route.key(config.link.ifindex))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::nic::{Attribute, Message, NicLink, NicNexthop};

    const OIF: u16 = 4;
    const GATEWAY: u16 = 5;
    const PRIORITY: u16 = 6;
    const NH_ID: u16 = 30;
    const STATIC: u8 = 4;

    pub(in crate::model::nic) fn config(ifindex: u32, routes: Vec<NicRoute>) -> NicConfig {
        let link = NicLink::of_test(ifindex, &format!("link{ifindex}"));
        NicConfig {
            link,
            sysctls: [].into(),
            addresses: Vec::new(),
            nexthops: Vec::new(),
            routes,
            leading: Vec::new(),
            neighbours: Vec::new(),
            rules: Vec::new(),
            taken_at: 0,
        }
    }

    /// A default route through a link.
    pub(in crate::model::nic) fn route(link: u32, gateway: u8, metric: u32, protocol: u8) -> NicRoute {
        let attributes = vec![
            Attribute(OIF, link.to_ne_bytes().to_vec()),
            Attribute(GATEWAY, vec![10, 0, 0, gateway]),
            Attribute(PRIORITY, metric.to_ne_bytes().to_vec()),
        ];
        NicRoute::new(Message { header: vec![2, 0, 0, 0, 254, protocol, 0, 1, 0, 0, 0, 0], attributes }).unwrap()
    }

    fn gateways(config: Option<NicConfig>) -> Option<Vec<u8>> {
        let own =
            |route: &NicRoute| (1..9).find(|gateway| [50, 60].iter().any(|metric| *route == self::route(2, *gateway, *metric, STATIC)));
        config.map(|config| config.routes.iter().map(|route| own(route).unwrap()).collect())
    }

    #[test]
    fn a_place_that_is_taken_is_news_and_one_that_is_empty_is_not() {
        let wish = config(2, vec![route(2, 1, 50, STATIC), route(2, 2, 60, STATIC)]);
        let nic = config(2, Vec::new());
        let port = |routes: Vec<NicRoute>| config(7, routes);
        let (first, second) = (route(7, 1, 50, STATIC), route(7, 2, 60, STATIC));
        let told = |nic: &NicConfig, port: &NicConfig| gateways(wish.with_replaced_routes(&[nic, port]));
        assert_eq!(told(&nic, &port(vec![first.clone(), second.clone()])), None);
        assert_eq!(told(&nic, &port(vec![second.clone()])), None, "one that is gone is gone");
        assert_eq!(told(&nic, &port(vec![route(7, 3, 50, STATIC), second.clone()])), Some(vec![3, 2]));
        assert_eq!(told(&nic, &port(vec![route(7, 3, 50, STATIC), route(7, 4, 50, STATIC), second.clone()])), Some(vec![3, 4, 2]));
        assert_eq!(told(&nic, &port(vec![route(7, 3, 50, STATIC), first, second.clone()])), None, "beside it is not instead of it");
        // While it is on its way, the other link may still have the route.
        let on_both = config(2, vec![route(2, 1, 50, STATIC)]);
        assert_eq!(told(&on_both, &port(vec![route(7, 3, 50, STATIC), second.clone()])), None);
        assert_eq!(told(&config(2, vec![route(2, 3, 50, STATIC)]), &port(vec![second.clone()])), Some(vec![3, 2]));
        for told_by_the_network in [2, 9] {
            assert_eq!(told(&nic, &port(vec![route(7, 3, 50, told_by_the_network), second.clone()])), None);
        }
    }

    #[test]
    fn a_nexthop_object_comes_with_its_route() {
        let by_object = |id: u32| {
            let attributes = vec![Attribute(PRIORITY, 50u32.to_ne_bytes().to_vec()), Attribute(NH_ID, id.to_ne_bytes().to_vec())];
            NicRoute::new(Message { header: vec![2, 0, 0, 0, 254, STATIC, 0, 1, 0, 0, 0, 0], attributes }).unwrap()
        };
        let object = |id: u32| {
            let attributes = vec![Attribute(1, id.to_ne_bytes().to_vec()), Attribute(5, 7u32.to_ne_bytes().to_vec())];
            NicNexthop::new(Message { header: vec![2, 0, 0, 0, 0, 0, 0, 0], attributes }).unwrap()
        };
        let wish = config(2, vec![route(2, 1, 50, STATIC)]);
        let there = config(7, vec![by_object(10)]);
        assert_eq!(wish.with_replaced_routes(&[&there]), None, "it leads elsewhere");
        let there = NicConfig { nexthops: vec![object(10)], ..there };
        let now = wish.with_replaced_routes(&[&there]).unwrap();
        assert_eq!((now.routes, now.nexthops), (vec![by_object(10)], vec![object(10)]));
    }
}
