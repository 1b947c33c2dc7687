//! The work that every method does: everything follows from the number of a pair.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::support::veth;
use crate::support::wish::with;

/// Length of the addresses' prefix: each pair has a subnet of its own.
pub const PREFIX: u8 = 30;
/// MTU at first.
pub const MTU: u32 = 1400;
/// What the agent's addresses say of their origin.
pub const ORIGIN: u8 = 118;

/// One end of a pair. The logical name is the link's name.
#[derive(Clone, Debug)]
pub struct End {
    /// Place of its namespace.
    pub netns: usize,
    pub name: String,
    pub mac: [u8; 6],
    pub ip: Ipv4Addr,
    /// For methods that choose it: from a range that the kernel does not use by itself, and never equal at both ends.
    pub index: u32,
}

impl End {
    /// The hardware address as people write it.
    pub fn mac_text(&self) -> String {
        self.mac.map(|byte| format!("{byte:02x}")).join(":")
    }

    /// Fields of a wish.
    fn settings(&self, mtu: u32) -> Value {
        json!({"ip_addresses": [format!("{}/{PREFIX}", self.ip)], "phys_address": self.mac_text(), "mtu": mtu})
    }
}

/// A pair.
#[derive(Clone, Debug)]
pub struct Pair {
    pub ends: [End; 2],
}

impl Pair {
    /// The n-th pair over so many namespaces; its ends never lie in the same one.
    pub fn new(n: usize, spaces: usize) -> Self {
        let netns = [n % spaces, (n + 1 + n / spaces % (spaces - 1)) % spaces];
        let number = u32::try_from(n).unwrap();
        let end = |side: u8| {
            let [_, x, y, z] = number.to_be_bytes();
            End {
                netns: netns[usize::from(side)],
                name: format!("{}{n}", if side == 0 { 'a' } else { 'b' }),
                mac: [2, 0xbe, side, x, y, z],
                ip: Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 0, 1).to_bits() + 4 * number + u32::from(side)),
                index: (1 << 20) + 2 * number + u32::from(side),
            }
        };
        Self { ends: [end(0), end(1)] }
    }

    /// So many pairs from the `first` on.
    pub fn many(first: usize, count: usize, spaces: usize) -> Vec<Self> {
        (first..first + count).map(|n| Self::new(n, spaces)).collect()
    }

    /// The two wishes that ask for it, with this MTU.
    pub fn wishes(&self, mtu: u32) -> [Value; 2] {
        let [a, b] = &self.ends;
        let wish = |end: &End, peer: &End| veth(&end.name, &peer.name, &netns_name(end.netns), end.settings(mtu));
        [wish(a, b), wish(b, a)]
    }
}

/// The wishes that ask for pairs.
pub fn wishes(pairs: &[Pair], mtu: u32) -> Vec<Value> {
    pairs.iter().flat_map(|pair| pair.wishes(mtu)).collect()
}

/// The ends of pairs.
pub fn ends(pairs: &[Pair]) -> impl Iterator<Item = &End> {
    pairs.iter().flat_map(|pair| &pair.ends)
}

/// Name of a namespace, by its place.
pub fn netns_name(place: usize) -> String {
    format!("ns{place}")
}

/// The second name that the agent gives to a link.
pub fn alias(label: &str, kind: &str, name: &str) -> String {
    format!("vnf-agent:{label}:{kind}:{name}")
}

/// So many TAPs.
pub fn taps(count: usize, spaces: usize) -> Vec<End> {
    let tap = |n| {
        let [end, _] = Pair::new(n, spaces).ends;
        End { name: format!("t{n}"), ..end }
    };
    (0..count).map(tap).collect()
}

/// The wish that asks for a TAP.
pub fn tap_wish(tap: &End) -> Value {
    let namespace = json!({"type": "NAMED_NS", "name": netns_name(tap.netns)});
    let more = json!({"name": tap.name, "type": "TAP", "enabled": true, "namespace": namespace});
    with(&more, tap.settings(MTU))
}
