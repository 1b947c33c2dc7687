//! The flows of our NICs: pure. Six tables carry a packet from one port of a pair to the other, past what the host's policies say.
//!
//! Only packets that enter by a port of ours enter our tables, so bridge and flows of others work as before. A connection is looked up, let
//! through if it is established, else held against the bypass rules and the policies, recorded, and handed on. ARP, neighbour discovery and
//! whatever is not IP are handed on at once. IPv4 and IPv6 are treated alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;

use super::view::OfPort;
use crate::model::owner::fnv1a_32;
use crate::model::{BypassRule, Direction, Owner, Protocol};

/// The tables. All but the first have numbers that nobody else is known to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Takes packets of our ports out of the bridge's first table.
    Classify = 0,
    /// What connection tracking says.
    State = 201,
    /// New connections that no policy may stop.
    Bypass = 202,
    /// New connections that policies may stop. Empty: who has policies adds flows here, with a cookie of their own and a priority above 0.
    Policy = 203,
    /// Connections that were let through are recorded.
    Commit = 204,
    /// To the other port of the pair.
    Output = 205,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}

/// Where the connections of our flows are tracked, by family.
pub(super) const ZONES: [u16; 2] = [ZONE_V4, ZONE_V6];
/// Zones of connection tracking, as Antrea has them. One for all NICs: an answer may come back by another NIC.
const ZONE_V4: u16 = 65520;
const ZONE_V6: u16 = 65510;

const HIGH: u16 = 210;
const NORMAL: u16 = 200;
const LOW: u16 = 190;
const MISS: u16 = 0;

/// Router and neighbour solicitations and advertisements (RFC 4861): without them there is no IPv6, whatever the policies.
const NEIGHBOUR_DISCOVERY: [u8; 4] = [133, 134, 135, 136];

/// Which of the cookie's bits say whose flow it is; the others tell our flows apart.
pub(super) const OWNER_BITS: u64 = 0xffff_ffff_0000_0000;

/// The cookie of a flow: the same 32 bits that mark our links (their group), then a hash of the flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub(super) u64);

impl Cookie {
    /// What all our cookies have in the [`OWNER_BITS`].
    pub(super) fn ours(owner: &Owner) -> u64 {
        u64::from(owner.group()) << 32
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// One flow, in the words of `ovs-ofctl` as it prints them itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it matches; empty: everything.
    pub matches: String,
    /// What is done.
    pub actions: String,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = if self.matches.is_empty() { "" } else { "," };
        write!(f, "table={},priority={}{comma}{} actions={}", self.table, self.priority, self.matches, self.actions)
    }
}

/// A flow that stands in the bridge, as it is printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Standing {
    /// Its cookie.
    pub cookie: Cookie,
    /// The flow.
    pub flow: Flow,
}

/// The numbers of a NIC's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairNumbers {
    /// The internal port.
    pub host: OfPort,
    /// The NIC.
    pub uplink: OfPort,
}

/// All our flows in a bridge, each under its cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSet(BTreeMap<Cookie, Flow>);

impl FlowSet {
    /// The flows of these pairs under these rules; none without a pair.
    #[must_use]
    pub fn new(owner: &Owner, pairs: &[PairNumbers], rules: &[BypassRule]) -> Self {
        let pairs: BTreeSet<&PairNumbers> = pairs.iter().collect();
        let mut flows = if pairs.is_empty() { Vec::new() } else { shared() };
        for pair in pairs {
            flows.extend(of_pair(*pair));
            flows.extend(rules.iter().map(|rule| bypass(*pair, rule)));
        }
        let mut set = BTreeMap::new();
        // Sorted and without duplicates, so that the same flows have the same cookies in any order of rules.
        for flow in flows.into_iter().collect::<BTreeSet<_>>() {
            let mut hash = fnv1a_32(flow.to_string().as_bytes());
            while set.contains_key(&Cookie(Cookie::ours(owner) | u64::from(hash))) {
                hash = hash.wrapping_add(1);
            }
            set.insert(Cookie(Cookie::ours(owner) | u64::from(hash)), flow);
        }
        Self(set)
    }

    /// Each flow with its cookie.
    pub fn iter(&self) -> impl Iterator<Item = (Cookie, &Flow)> {
        self.0.iter().map(|(cookie, flow)| (*cookie, flow))
    }

    /// How they differ from what stands in the bridge. A flow that was changed under its cookie is missing, and what it was made into is too much.
    #[must_use]
    pub fn compare(&self, standing: &BTreeSet<Standing>) -> FlowDifference {
        let stands = |(cookie, flow): (&Cookie, &Flow)| standing.contains(&Standing { cookie: *cookie, flow: flow.clone() });
        FlowDifference {
            missing: self.0.iter().filter(|flow| !stands(*flow)).map(|(_, flow)| flow.clone()).collect(),
            surplus: standing.iter().filter(|found| self.0.get(&found.cookie) != Some(&found.flow)).map(|found| found.cookie).collect(),
        }
    }

    /// The flow with this cookie.
    #[must_use]
    pub fn get(&self, cookie: Cookie) -> Option<&Flow> {
        self.0.get(&cookie)
    }

    /// As they stand when nobody has changed them.
    #[must_use]
    pub fn standing(&self) -> BTreeSet<Standing> {
        self.iter().map(|(cookie, flow)| Standing { cookie, flow: flow.clone() }).collect()
    }
}

/// How what stands in the bridge differs from what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowDifference {
    /// Flows that do not stand.
    pub missing: Vec<Flow>,
    /// Flows of ours that are not wanted.
    pub surplus: Vec<Cookie>,
}

impl FlowDifference {
    /// Nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.surplus.is_empty()
    }
}

fn flow(table: Table, priority: u16, matches: impl Into<String>, actions: impl Into<String>) -> Flow {
    Flow { table: table as u8, priority, matches: matches.into(), actions: actions.into() }
}

fn goto(table: Table) -> String {
    format!("goto_table:{table}")
}

/// Flows that do not depend on ports: only what [`Table::Classify`] let in gets to them.
fn shared() -> Vec<Flow> {
    let (state, output) = (Table::State, Table::Output);
    vec![
        flow(state, HIGH, "ct_state=+inv+trk", "drop"),
        flow(state, NORMAL, "ct_state=-new+est", goto(output)),
        flow(state, NORMAL, "ct_state=-new+rel", goto(output)),
        flow(state, MISS, "", goto(Table::Bypass)),
        flow(Table::Bypass, MISS, "", goto(Table::Policy)),
        flow(Table::Policy, MISS, "", goto(Table::Commit)),
        flow(Table::Commit, NORMAL, "ct_state=+new+trk,ip", format!("ct(commit,table={output},zone={ZONE_V4})")),
        flow(Table::Commit, NORMAL, "ct_state=+new+trk,ipv6", format!("ct(commit,table={output},zone={ZONE_V6})")),
        flow(Table::Commit, MISS, "", goto(output)),
    ]
}

fn of_pair(pair: PairNumbers) -> Vec<Flow> {
    let (state, output) = (Table::State, Table::Output);
    let mut flows = Vec::new();
    for (from, to) in [(pair.host, pair.uplink), (pair.uplink, pair.host)] {
        for kind in NEIGHBOUR_DISCOVERY {
            flows.push(flow(Table::Classify, HIGH, format!("icmp6,in_port={from},icmp_type={kind}"), goto(output)));
        }
        flows.push(flow(Table::Classify, NORMAL, format!("ip,in_port={from}"), format!("ct(table={state},zone={ZONE_V4})")));
        flows.push(flow(Table::Classify, NORMAL, format!("ipv6,in_port={from}"), format!("ct(table={state},zone={ZONE_V6})")));
        flows.push(flow(Table::Classify, LOW, format!("in_port={from}"), goto(output)));
        flows.push(flow(output, NORMAL, format!("in_port={from}"), format!("output:{to}")));
    }
    flows
}

/// The flow of one rule. It holds for connections that are opened in the rule's direction only.
fn bypass(pair: PairNumbers, rule: &BypassRule) -> Flow {
    let (port, side) = match rule.direction() {
        Direction::Ingress => (pair.uplink, "src"),
        Direction::Egress => (pair.host, "dst"),
    };
    let protocol = match (rule.protocol(), rule.network()) {
        (Protocol::Tcp, IpNet::V4(_)) => "tcp",
        (Protocol::Tcp, IpNet::V6(_)) => "tcp6",
        (Protocol::Udp, IpNet::V4(_)) => "udp",
        (Protocol::Udp, IpNet::V6(_)) => "udp6",
        (Protocol::Icmp, IpNet::V4(_)) => "icmp",
        (Protocol::Icmp, IpNet::V6(_)) => "icmp6",
        (Protocol::Ip, IpNet::V4(_)) => "ip",
        (Protocol::Ip, IpNet::V6(_)) => "ipv6",
    };
    let mut matches = format!("ct_state=+new+trk,{protocol},in_port={port}");
    if let Some(network) = network(rule.network()) {
        let family = if rule.network().addr().is_ipv4() { "nw" } else { "ipv6" };
        matches.push_str(&format!(",{family}_{side}={network}"));
    }
    if let Some(port) = rule.port() {
        matches.push_str(&format!(",tp_dst={port}"));
    }
    flow(Table::Bypass, NORMAL, matches, goto(Table::Commit))
}

/// A network as Open vSwitch prints it: nothing if it is everything, no length if it is one address.
fn network(network: IpNet) -> Option<String> {
    match network.prefix_len() {
        0 => None,
        length if length == network.max_prefix_len() => Some(network.addr().to_string()),
        _ => Some(network.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AgentLabel;

    fn owner(label: &str) -> Owner {
        Owner::new(AgentLabel::new(label).unwrap())
    }

    fn pair(host: u16, uplink: u16) -> PairNumbers {
        PairNumbers { host: OfPort::new(host).unwrap(), uplink: OfPort::new(uplink).unwrap() }
    }

    fn rules() -> Vec<BypassRule> {
        [
            ["ingress", "tcp", "10.199.0.0/30", "5002"],
            ["ingress", "tcp", "fd99:199::/64", "5004"],
            ["egress", "udp", "192.0.2.53/32", "53"],
            ["egress", "icmp", "::/0", ""],
            ["ingress", "ip", "0.0.0.0/0", ""],
        ]
        .map(|[direction, protocol, cidr, port]| BypassRule::parse(direction, protocol, cidr, port).unwrap())
        .to_vec()
    }

    /// The whole pipeline of one NIC, as it stands in the bridge.
    #[test]
    fn golden() {
        let set = FlowSet::new(&owner("vpp1"), &[pair(2, 1)], &rules());
        let mut flows: Vec<&Flow> = set.iter().map(|(_, flow)| flow).collect();
        flows.sort_by_key(|flow| (flow.table, std::cmp::Reverse(flow.priority), *flow));
        let text: String = flows.iter().map(|flow| format!("{flow}\n")).collect();
        assert_eq!(text, include_str!("flows.golden"));
    }

    #[test]
    fn cookies_say_whose_and_which() {
        let (ours, others) = (owner("vpp1"), owner("vpp10"));
        let set = FlowSet::new(&ours, &[pair(2, 1)], &rules());
        assert!(set.iter().all(|(cookie, _)| cookie.0 & OWNER_BITS == Cookie::ours(&ours)));
        assert_ne!(Cookie::ours(&ours), Cookie::ours(&others));
        let mut turned = rules();
        turned.reverse();
        assert_eq!(FlowSet::new(&ours, &[pair(2, 1), pair(2, 1)], &turned), set, "the same whatever the order");
        let other = FlowSet::new(&ours, &[pair(2, 3)], &rules()).standing();
        assert!(!set.compare(&other).is_empty(), "other numbers, other cookies");
    }

    #[test]
    fn what_is_missing_and_what_is_too_much() {
        let set = FlowSet::new(&owner("vpp1"), &[pair(2, 1)], &[]);
        let mut standing = set.standing();
        assert!(set.compare(&standing).is_empty());
        let lost = standing.pop_first().unwrap();
        standing.insert(Standing { cookie: Cookie(7), ..lost.clone() });
        let difference = set.compare(&standing);
        assert_eq!(difference.missing.as_slice(), std::slice::from_ref(&lost.flow));
        assert_eq!(difference.surplus, [Cookie(7)]);
        // Changed under its cookie.
        standing.remove(&Standing { cookie: Cookie(7), ..lost.clone() });
        standing.insert(Standing { cookie: lost.cookie, flow: Flow { actions: "drop".to_owned(), ..lost.flow.clone() } });
        assert_eq!(set.compare(&standing), FlowDifference { missing: vec![lost.flow], surplus: vec![lost.cookie] });
        assert_eq!(FlowSet::new(&owner("vpp1"), &[], &rules()), FlowSet::default(), "no NIC, no flow");
    }

    #[test]
    fn two_nics_share_what_does_not_depend_on_ports() {
        let count = |pairs: &[PairNumbers]| FlowSet::new(&owner("vpp1"), pairs, &[]).0.len();
        let (one, two) = (count(&[pair(2, 1)]), count(&[pair(2, 1), pair(4, 3)]));
        assert_eq!(two - one, of_pair(pair(2, 1)).len());
        assert_eq!(one, of_pair(pair(2, 1)).len() + shared().len());
    }
}
