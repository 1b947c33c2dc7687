//! What a link lacks of a configuration, and what it has beyond it.

use std::collections::HashSet;
use std::fmt;

use crate::model::nic::address::AddressKey;
use crate::model::nic::route::RouteKey;
use crate::model::nic::{Message, NicAddress, NicConfig, NicNexthop, NicRoute};

/// From what the kernel makes addresses that do not tell the hardware address. It cannot be read where there is none, and is told to nobody.
pub const STABLE_SECRET: &str = "ipv6/stable_secret";

/// The MTU of IPv6, which is at most that of the link.
pub const IPV6_MTU: &str = "ipv6/mtu";

/// Place of the link's index in `struct ndmsg`.
const NEIGHBOUR_INDEX: usize = 4;

/// From what is there to what is wished. Nothing in it means: equal, attributes included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Addresses that are not there, in the order of the wish.
    pub missing_addresses: Vec<NicAddress>,
    /// Of those that are not there, the ones that another host was found to have: nobody can use them, so nothing waits for them. Where the wish has no
    /// others they are among the missing ones.
    pub missing_duplicates: Vec<NicAddress>,
    /// Addresses that are there with other attributes; as they are wished.
    pub changed_addresses: Vec<NicAddress>,
    /// IPv4 addresses whose only fault is their label, and all after the first of them, so that their order stays; as they are wished. A label cannot be
    /// changed, only made anew.
    pub mislabelled_addresses: Vec<NicAddress>,
    /// Addresses that nobody wished.
    pub extra_addresses: Vec<NicAddress>,
    /// Nexthop objects that are not there, or lead elsewhere.
    pub missing_nexthops: Vec<NicNexthop>,
    /// Routes that are not there.
    pub missing_routes: Vec<NicRoute>,
    /// Routes that nobody wished; as they are there.
    pub extra_routes: Vec<NicRoute>,
    /// Neighbour entries that are not there.
    pub missing_neighbours: Vec<Message>,
    /// Settings that have another value, with the wished one.
    pub sysctls: Vec<(String, String)>,
    /// The wished MTU, where it is another.
    pub mtu: Option<u32>,
    /// The wished state, where it is another.
    pub up: Option<bool>,
    /// Whether any of the wished addresses and routes is there, link-locals of the kernel left out.
    pub has_some: bool,
}

impl Difference {
    /// Whether every wished address, route and nexthop is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.has_all_addresses()
            && self.missing_nexthops.is_empty()
            && self.missing_routes.is_empty()
            && self.missing_neighbours.is_empty()
            && self.up != Some(true)
    }

    /// Whether people gave the link addresses or routes that are not wished: neither made by the kernel nor gone by themselves. Routes that use nexthop
    /// objects stand on no link.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.given_addresses().next().is_some() || self.lasting_routes().any(|route| !route.is_kernel_made())
    }

    pub(super) fn given_addresses(&self) -> impl Iterator<Item = &NicAddress> {
        self.extra_addresses.iter().filter(|address| !address.is_kernel_link_local() && !address.is_temporary())
    }

    pub(super) fn lasting_routes(&self) -> impl Iterator<Item = &NicRoute> {
        self.extra_routes.iter().filter(|route| !route.ends() && route.nexthop().is_none())
    }

    /// Whether an address or a route is not there.
    #[must_use]
    pub fn lacks_some(&self) -> bool {
        !self.missing_addresses.is_empty() || !self.missing_routes.is_empty()
    }

    /// Routes that the kernel made and nobody wishes, other than those of addresses that others gave.
    pub fn unwished_routes(&self) -> impl Iterator<Item = &NicRoute> {
        let of_others = |route: &NicRoute| self.extra_addresses.iter().any(|address| route.is_of(address));
        self.extra_routes.iter().filter(move |route| route.is_kernel_made() && !of_others(route))
    }

    /// Whether every wished address is there as it is wished.
    #[must_use]
    pub fn has_all_addresses(&self) -> bool {
        self.missing_addresses.is_empty() && self.changed_addresses.is_empty() && self.mislabelled_addresses.is_empty()
    }

    /// Whether all is as wished, with nothing beyond it.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self { has_some: self.has_some, ..Self::default() }
    }
}

/// Compares two configurations. Without `labels`, IPv4 labels do not count: under another name they are other ones.
#[must_use]
pub fn difference(wish: &NicConfig, there: &NicConfig, labels: bool) -> Difference {
    let mut found = Difference::default();
    addresses(wish, there, labels, &mut found);
    routes(wish, there, &mut found);
    found.missing_nexthops = missing_nexthops(wish, there);
    let neighbours: Vec<Message> = there.neighbours.iter().map(without_index).collect();
    found.missing_neighbours = wish.neighbours.iter().filter(|entry| !neighbours.contains(&without_index(entry))).cloned().collect();
    let differs = |path: &str, value: &String| there.sysctls.get(path).map_or(path == STABLE_SECRET, |present| present != value);
    let other = wish.sysctls.iter().filter(|(path, value)| differs(path, value));
    found.sysctls = other.map(|(path, value)| (path.clone(), value.clone())).collect();
    found.mtu = (wish.link.mtu != there.link.mtu).then_some(wish.link.mtu);
    found.up = (wish.link.up != there.link.up).then_some(wish.link.up);
    found
}

impl NicConfig {
    /// Takes in what was given to another link beyond this; it bears the NIC's own `name` from now on. Returns the routes that are not wished any more,
    /// as that link has others in their places.
    pub fn take_in(&mut self, there: &NicConfig, name: &str) -> Vec<NicRoute> {
        let present = there.routes.iter().map(|route| route.key(there.link.ifindex)).collect();
        let superseded = self.replace_missing(&present, &[there]);
        let found = difference(self, there, false);
        self.addresses.extend(found.given_addresses().map(|address| {
            let mut address = address.clone();
            address.rename_label(&there.link.name, name);
            address
        }));
        let (from, to) = (there.link.ifindex, self.link.ifindex);
        // Also those that the kernel made for the addresses: one that is not wished would be removed.
        self.routes.extend(found.lasting_routes().map(|route| route.on_link(from, to)));
        superseded
    }
}

fn addresses(wish: &NicConfig, there: &NicConfig, labels: bool, found: &mut Difference) {
    let exact: HashSet<AddressKey> = there.addresses.iter().map(|a| a.key(true)).collect();
    let unlabelled: HashSet<AddressKey> = there.addresses.iter().map(|a| a.key(false)).collect();
    let values: HashSet<_> = there.addresses.iter().filter_map(NicAddress::address).collect();
    let has_others = !wish.addresses.iter().all(NicAddress::is_duplicate);
    for address in &wish.addresses {
        let present = address.address().is_some_and(|value| values.contains(&value));
        if unlabelled.contains(&address.key(false)) {
            let after_one = !found.mislabelled_addresses.is_empty() && !address.is_ipv6();
            if labels && (after_one || !exact.contains(&address.key(true))) {
                found.mislabelled_addresses.push(address.clone());
            }
        } else if present {
            found.changed_addresses.push(address.clone());
        } else if has_others && address.is_duplicate() {
            found.missing_duplicates.push(address.clone());
        } else {
            found.missing_addresses.push(address.clone());
        }
        found.has_some |= present && !address.is_kernel_link_local();
    }
    let wished: HashSet<_> = wish.addresses.iter().filter_map(NicAddress::address).collect();
    let extra = there.addresses.iter().filter(|a| a.address().is_some_and(|value| !wished.contains(&value)));
    found.extra_addresses = extra.cloned().collect();
}

fn routes(wish: &NicConfig, there: &NicConfig, found: &mut Difference) {
    let (wish_link, there_link) = (wish.link.ifindex, there.link.ifindex);
    let present: HashSet<RouteKey> = there.routes.iter().map(|route| route.key(there_link)).collect();
    let wished: HashSet<RouteKey> = wish.routes.iter().map(|route| route.key(wish_link)).collect();
    found.missing_routes = wish.routes.iter().filter(|route| !present.contains(&route.key(wish_link))).cloned().collect();
    found.extra_routes = there.routes.iter().filter(|route| !wished.contains(&route.key(there_link))).cloned().collect();
    // Those that the kernel makes for link-locals stand on every link that is up.
    let telling = |route: &&NicRoute| !route.is_kernel_made() && present.contains(&route.key(wish_link));
    found.has_some |= wish.routes.iter().any(|route| telling(&route));
}

/// A group is as wished when it has those members that lead through the NIC: what becomes of the others is not the NIC's affair.
fn missing_nexthops(wish: &NicConfig, there: &NicConfig) -> Vec<NicNexthop> {
    let objects: HashSet<_> = there.nexthops.iter().map(NicNexthop::key).collect();
    let own: HashSet<u32> = wish.nexthops.iter().filter(|object| object.members().is_empty()).map(NicNexthop::id).collect();
    let stands = |object: &&NicNexthop| {
        let members = object.members();
        let present = there.nexthops.iter().find(|present| present.id() == object.id()).map(NicNexthop::members).unwrap_or_default();
        let as_group = !members.is_empty() && members.iter().filter(|id| own.contains(id)).all(|id| present.contains(id));
        as_group || objects.contains(&object.key())
    };
    wish.nexthops.iter().filter(|object| !stands(object)).cloned().collect()
}

fn without_index(entry: &Message) -> Message {
    let mut entry = entry.clone();
    entry.set_header_number(NEIGHBOUR_INDEX, 0);
    entry
}

/// Tells what is missing, for a message: kinds with a few examples.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        tell(&mut parts, "missing addresses", &self.missing_addresses);
        tell(&mut parts, "missing addresses of other hosts", &self.missing_duplicates);
        tell(&mut parts, "changed addresses", &self.changed_addresses);
        tell(&mut parts, "addresses with another label", &self.mislabelled_addresses);
        tell(&mut parts, "missing nexthops", &self.missing_nexthops);
        tell(&mut parts, "missing routes", &self.missing_routes);
        tell(&mut parts, "further addresses", &self.extra_addresses);
        tell(&mut parts, "further routes", &self.extra_routes);
        if !self.missing_neighbours.is_empty() {
            parts.push(format!("{} missing neighbour entries", self.missing_neighbours.len()));
        }
        let shown = |path: &str, value: &str| if path == STABLE_SECRET { "another one".to_owned() } else { value.to_owned() };
        let sysctls: Vec<String> = self.sysctls.iter().map(|(path, value)| format!("{path} should be {}", shown(path, value))).collect();
        tell(&mut parts, "settings", &sysctls);
        parts.extend(self.mtu.map(|mtu| format!("MTU should be {mtu}")));
        parts.extend(self.up.map(|up| format!("should be {}", if up { "up" } else { "down" })));
        f.write_str(&if parts.is_empty() { "no difference".to_owned() } else { parts.join("; ") })
    }
}

fn tell<T: fmt::Display>(parts: &mut Vec<String>, what: &str, items: &[T]) {
    const SHOWN: usize = 4;
    if items.is_empty() {
        return;
    }
    let shown: Vec<String> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = if items.len() > SHOWN { format!(" and {} more", items.len() - SHOWN) } else { String::new() };
    parts.push(format!("{what}: {}{more}", shown.join(", ")));
}
