//! The same eyes for every method: reads all namespaces and compares them with the work, link by link.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::bed::LIMIT;
use crate::netlink::*;
use crate::support::Host;
use crate::work::{End, ORIGIN, PREFIX, Pair, alias, ends, netns_name};

/// How links are to be: these, like this, and no others.
#[derive(Clone, Copy)]
pub struct Wanted<'w> {
    pub pairs: &'w [Pair],
    pub taps: &'w [End],
    pub mtu: u32,
    /// Whose marks (alias, group, one queue) they carry; `None` where the method sets none.
    pub label: Option<&'w str>,
    /// The origin that addresses carry; 0 where the method sets none.
    pub origin: u8,
}

impl<'w> Wanted<'w> {
    /// Nothing.
    pub const NOTHING: Self = Self { pairs: &[], taps: &[], mtu: 0, label: None, origin: 0 };

    /// Pairs with all marks.
    pub fn pairs(pairs: &'w [Pair], mtu: u32, label: &'w str) -> Self {
        Self { pairs, taps: &[], mtu, label: Some(label), origin: ORIGIN }
    }
}

/// A link as it is.
#[derive(Debug, Default)]
struct Found {
    index: u32,
    peer: u32,
    up: bool,
    mac: Vec<u8>,
    mtu: u32,
    alias: String,
    group: u32,
    queues: u32,
    addresses: Vec<(Ipv4Addr, u8, u8)>,
}

/// Sockets to look with.
pub struct Eyes(Vec<Conn>);

impl Eyes {
    pub fn new(host: &Host, spaces: usize) -> Self {
        Self((0..spaces).map(|place| Conn::inside(host, &netns_name(place))).collect())
    }

    /// The bare listings of all namespaces, decoded by nobody: what reading them costs at least.
    pub fn list(&mut self) -> usize {
        let mut count = 0;
        for conn in &mut self.0 {
            conn.dump(RTM_GETLINK, &link_header(0, 0, 0), |_| count += 1);
            conn.dump(RTM_GETADDR, &[0; 8], |_| count += 1);
        }
        count
    }

    /// Waits until everything is as wanted and nothing else is there; returns when that was seen. `since` is the moment of the last hint: what is found so
    /// at the first look was so then.
    pub fn until(&mut self, wanted: Wanted<'_>, since: Instant) -> Instant {
        let mut begun = since;
        loop {
            let Some(difference) = self.difference(wanted) else { return begun };
            assert!(since.elapsed() < LIMIT, "not as wanted: {difference}");
            std::thread::sleep(Duration::from_millis(1));
            begun = Instant::now();
        }
    }

    /// The first difference.
    fn difference(&mut self, wanted: Wanted<'_>) -> Option<String> {
        let found: Vec<HashMap<String, Found>> = self.0.iter_mut().map(look).collect();
        let (there, expected) = (found.iter().map(HashMap::len).sum::<usize>(), 2 * wanted.pairs.len() + wanted.taps.len());
        if there != expected {
            return Some(format!("{there} links instead of {expected}"));
        }
        let get = |end: &End| found[end.netns].get(&end.name);
        let joined = |pair: &&Pair| match pair.ends.each_ref().map(get) {
            [Some(a), Some(b)] => (a.index, b.index) == (b.peer, a.peer),
            _ => false,
        };
        if let Some(pair) = wanted.pairs.iter().find(|pair| !joined(pair)) {
            return Some(format!("the ends of {} are not there, or not joined", pair.ends[0].name));
        }
        let all = ends(wanted.pairs).map(|end| ("veth", end)).chain(wanted.taps.iter().map(|end| ("tap", end)));
        all.filter(|(kind, end)| !get(end).is_some_and(|link| as_wanted(link, kind, end, wanted)))
            .map(|(_, end)| format!("{} is {:?}", end.name, get(end)))
            .next()
    }
}

fn as_wanted(link: &Found, kind: &str, end: &End, wanted: Wanted<'_>) -> bool {
    const OURS: u32 = 0x56;
    let marked =
        wanted.label.is_none_or(|label| link.alias == alias(label, kind, &end.name) && link.group >> 24 == OURS && link.queues == 1);
    let addressed = link.addresses == [(end.ip, PREFIX, wanted.origin)];
    marked && addressed && link.up && link.mac == end.mac && link.mtu == wanted.mtu
}

/// All links but `lo`, by name.
fn look(conn: &mut Conn) -> HashMap<String, Found> {
    let (mut links, mut names) = (HashMap::new(), HashMap::new());
    conn.dump(RTM_GETLINK, &link_header(0, 0, 0), |payload| {
        let mut link = Found { index: number(&payload[4..]), up: number(&payload[8..]) & IFF_UP != 0, ..Found::default() };
        let mut name = String::new();
        for (kind, value) in attributes(&payload[16..]) {
            match kind {
                IFLA_IFNAME => text(value).clone_into(&mut name),
                IFLA_ADDRESS => link.mac = value.to_vec(),
                IFLA_MTU => link.mtu = number(value),
                IFLA_LINK => link.peer = number(value),
                IFLA_IFALIAS => text(value).clone_into(&mut link.alias),
                IFLA_GROUP => link.group = number(value),
                IFLA_NUM_TX_QUEUES => link.queues = number(value),
                _ => {}
            }
        }
        if name != "lo" {
            names.insert(link.index, name.clone());
            links.insert(name, link);
        }
    });
    const AF_INET: u8 = 2;
    conn.dump(RTM_GETADDR, &[AF_INET, 0, 0, 0, 0, 0, 0, 0], |payload| {
        let (mut ip, mut origin) = (None, 0);
        for (kind, value) in attributes(&payload[8..]) {
            match kind {
                IFA_LOCAL => ip = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from),
                IFA_PROTO => origin = value[0],
                _ => {}
            }
        }
        let link = names.get(&number(&payload[4..])).and_then(|name| links.get_mut(name));
        if let (Some(link), Some(ip)) = (link, ip) {
            link.addresses.push((ip, payload[1], origin));
        }
    });
    links
}
