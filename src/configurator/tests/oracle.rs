//! What must stand and what must be said at the end, found out from the wishes and the kernel alone, by rules written a second time.
//!
//! A relation, not a function: where the contract lets history decide (who held a name first, what stood when a key became invalid), every
//! outcome that some history allows is accepted, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::bench::Bench;
use crate::configurator::book::Next;
use crate::model::owner::{ADDRESS_PROTO, Mark};
use crate::model::{LinkId, LinkKind, NetnsId, ObservedLink};

/// A value as a test writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub peer: &'static str,
    /// `None`: the default namespace.
    pub netns: Option<&'static str>,
    pub host: Option<&'static str>,
    pub mtu: u32,
    pub addresses: Vec<&'static str>,
    pub enabled: bool,
    pub mac: Option<&'static str>,
    /// A TAP of one of a few makes, not an end of a pair.
    pub tap: Option<Make>,
    /// A TAP that someone else makes under this name, neither of the others.
    pub auto: Option<&'static str>,
    /// Makes the value invalid in one way.
    pub bad: Option<Bad>,
}

/// What a TAP is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Make {
    pub tun: bool,
    pub owner: Option<u32>,
    pub multi_queue: bool,
}

/// Ways to be invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    Encoding,
    OtherName,
    HostName,
    Itself,
    Address,
    Mac,
    Mtu,
}

impl Want {
    /// An enabled end without addresses.
    pub(super) fn new(peer: &'static str, netns: &'static str) -> Self {
        Self {
            peer,
            netns: Some(netns),
            host: None,
            mtu: 0,
            addresses: Vec::new(),
            enabled: true,
            mac: None,
            tap: None,
            auto: None,
            bad: None,
        }
    }

    /// The value under the key `name`.
    pub(super) fn json(&self, name: &str) -> String {
        let (mut named, mut peer, mut host, mut mtu) = (name, self.peer, self.host, self.mtu);
        let (mut addresses, mut mac) = (self.addresses.clone(), self.mac);
        match self.bad {
            None => {}
            Some(Bad::Encoding) => return "{".to_owned(),
            Some(Bad::OtherName) => named = "other",
            Some(Bad::HostName) => host = Some("sixteen-bytes-at"),
            Some(Bad::Itself) => peer = name,
            Some(Bad::Address) => addresses.push("224.0.0.1/24"),
            Some(Bad::Mac) => mac = Some("01:00:5e:00:00:01"),
            Some(Bad::Mtu) => mtu = 67,
        }
        let mut json = format!(r#"{{"name":"{named}","enabled":{},"veth":{{"peer_if_name":"{peer}"}},"mtu":{mtu}"#, self.enabled);
        if let Some(netns) = self.netns {
            let _ = write!(json, r#","namespace":{{"type":"NAMED_NS","name":"{netns}"}}"#);
        }
        if let Some(host) = host {
            let _ = write!(json, r#","host_if_name":"{host}""#);
        }
        if let Some(mac) = mac {
            let _ = write!(json, r#","phys_address":"{mac}""#);
        }
        if let Some(make) = self.tap {
            let mode = if make.tun { "TUN" } else { "TAP" };
            let _ = write!(json, r#","type":"TAP","tap":{{"mode":"{mode}","multi_queue":{}"#, make.multi_queue);
            let _ = make.owner.map(|owner| write!(json, r#","owner":{owner}"#));
            json.push('}');
        }
        if let Some(temporary) = self.auto {
            let _ = write!(json, r#","type":"AUTO_TAP","tap":{{"temp_if_name":"{temporary}"}}"#);
        }
        let _ = write!(json, r#","ip_addresses":{addresses:?}}}"#);
        json
    }

    fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|address| address.contains(':'))
    }

    /// The reason of its invalidity.
    fn invalid(&self) -> Option<&'static str> {
        match self.bad {
            Some(Bad::Encoding) => Some("BAD_ENCODING"),
            Some(Bad::OtherName) => Some("KEY_MISMATCH"),
            Some(Bad::HostName) => Some("BAD_NAME"),
            Some(Bad::Itself) => Some("BAD_PEER"),
            Some(Bad::Address) => Some("BAD_ADDRESS"),
            Some(Bad::Mac) => Some("BAD_MAC"),
            Some(Bad::Mtu) => Some("BAD_MTU"),
            None if self.tap.is_some_and(|make| make.tun) && self.mac.is_some() => Some("BAD_MAC"),
            None if self.has_ipv6() && (1..1280).contains(&self.mtu) => Some("BAD_MTU"),
            None => None,
        }
    }
}

/// All wishes by key.
pub(super) type Wants = BTreeMap<&'static str, Want>;

/// How a link differs from what it was to be made with.
fn unlike(make: Make, link: &ObservedLink) -> Option<String> {
    let LinkKind::Tun(info) = link.kind else { return Some(format!("is a {}", link.kind.word())) };
    let is = (!info.tap, info.owner, info.multi_queue, info.persist);
    (is != (make.tun, make.owner, make.multi_queue, true)).then(|| format!("is {info:?}, must be {make:?}"))
}

struct Oracle<'a> {
    bench: &'a Bench,
    wants: &'a Wants,
    links: Vec<(LinkId, ObservedLink, Mark)>,
}

/// Everything that is not as it must be.
pub(super) fn faults(bench: &Bench, wants: &Wants) -> Vec<String> {
    let ids: BTreeSet<NetnsId> = bench.names.values().copied().collect();
    let all = ids.into_iter().flat_map(|netns| bench.world.links(netns).into_iter().map(move |link| (netns, link)));
    let links = all.map(|(netns, link)| {
        let mark = bench.owner.mark(&link);
        (LinkId { netns, ifindex: link.ifindex }, link, mark)
    });
    let oracle = Oracle { bench, wants, links: links.collect() };
    let mut faults = Vec::new();
    for (key, want) in wants {
        oracle.wish(key, want, &mut faults);
    }
    for (id, link, mark) in &oracle.links {
        faults.extend(oracle.leftover(*id, link, mark));
    }
    oracle.index(&mut faults);
    let strangers = bench.published.statuses.snapshot().1.into_iter().filter(|(key, _)| !wants.contains_key(&**key));
    faults.extend(strangers.map(|(key, status)| format!("{key} has no key but status {}", status.state)));
    faults.extend(bench.world.misuses());
    faults.extend(bench.world.foreign_writes(&bench.owner).into_iter().map(|entry| format!("foreign write {entry:?}")));
    faults
}

impl Oracle<'_> {
    fn netns(&self, want: &Want) -> Option<NetnsId> {
        self.bench.names.get(want.netns.unwrap_or("own")).copied()
    }

    fn name<'w>(key: &'w str, want: &'w Want) -> &'w str {
        want.host.unwrap_or(key)
    }

    fn logical(mark: &Mark) -> Option<&str> {
        match mark {
            Mark::Named(_, name) => Some(name.as_str()),
            _ => None,
        }
    }

    /// Our link for this key in its namespace.
    fn own_link(&self, key: &str, netns: NetnsId) -> Option<&(LinkId, ObservedLink, Mark)> {
        self.links.iter().find(|(id, _, mark)| id.netns == netns && Self::logical(mark) == Some(key))
    }

    fn are_ends(a: &(LinkId, ObservedLink, Mark), b: &(LinkId, ObservedLink, Mark)) -> bool {
        let points = |x: &ObservedLink, y: LinkId| x.peer.is_some_and(|peer| peer.ifindex == y.ifindex);
        points(&a.1, b.0) && points(&b.1, a.0)
    }

    /// Why this end cannot have the name that it wants.
    fn blocked(&self, key: &str, want: &Want, netns: NetnsId) -> Option<&'static str> {
        let name = Self::name(key, want);
        let at = self.links.iter().find(|(id, link, _)| id.netns == netns && link.answers_to(name));
        let has = at.and_then(|(_, _, mark)| Self::logical(mark));
        let claims =
            self.wants.iter().filter(|(other, w)| w.invalid().is_none() && self.netns(w) == Some(netns) && Self::name(other, w) == name);
        let created = |key: &str| self.bench.store[&format!("linux/config/v1/interface/{key}")].create_revision;
        let first = claims.min_by_key(|(other, _)| (has != Some(**other), created(other), **other)).map(|(other, _)| *other);
        match at {
            _ if first != Some(key) => Some("NAME_CONFLICT"),
            Some((_, _, Mark::Foreign)) => Some("FOREIGN_LINK"),
            Some(_) if has != Some(key) => Some("NAME_CONFLICT"),
            _ => None,
        }
    }

    fn wish(&self, key: &str, want: &Want, faults: &mut Vec<String>) {
        let state = self.bench.state(key);
        let mut expect = |wanted: &str| {
            if state != wanted {
                let message = self.bench.published.statuses.get(key).map(|s| s.message.clone()).unwrap_or_default();
                faults.push(format!("{key} is {state} ({message}), must be {wanted}"));
            }
        };
        if let Some(reason) = want.invalid() {
            return expect(&format!("INVALID {reason}"));
        }
        let Some(netns) = self.netns(want) else { return expect("PENDING NAMESPACE_MISSING") };
        if let Some(make) = want.tap {
            return match (self.own_link(key, netns), self.blocked(key, want, netns)) {
                (Some((_, link, _)), _) => {
                    faults.extend(unlike(make, link).map(|what| format!("{key}: {what}")));
                    self.end(key, want, netns, faults);
                }
                (None, Some(reason)) => expect(&format!("FAILED {reason}")),
                (None, None) => expect("CONFIGURED"),
            };
        }
        if let Some(temporary) = want.auto {
            let waits = self.auto(key, want, temporary, netns);
            return if self.own_link(key, netns).is_some() { self.end(key, want, netns, faults) } else { expect(waits) };
        }
        let Some(peer) = self.wants.get(want.peer) else { return expect("PENDING PEER_MISSING") };
        if peer.invalid().is_some() {
            return match self.own_link(key, netns) {
                None => expect("PENDING PEER_MISMATCH"),
                Some(_) => self.end(key, want, netns, faults),
            };
        }
        if peer.peer != key || peer.tap.is_some() || peer.auto.is_some() {
            return expect("PENDING PEER_MISMATCH");
        }
        let Some(peer_netns) = self.netns(peer) else { return expect("PENDING NAMESPACE_MISSING") };
        if netns == peer_netns && Self::name(key, want) == Self::name(want.peer, peer) {
            return expect("FAILED NAME_CONFLICT");
        }
        let stands = match (self.own_link(key, netns), self.own_link(want.peer, peer_netns)) {
            (Some(a), Some(b)) => Self::are_ends(a, b),
            _ => false,
        };
        if stands {
            return self.end(key, want, netns, faults);
        }
        match (self.blocked(key, want, netns), self.blocked(want.peer, peer, peer_netns)) {
            (Some(reason), _) | (None, Some(reason)) => expect(&format!("FAILED {reason}")),
            (None, None) => expect("CONFIGURED"),
        }
    }

    /// How a wish stands whose TAP is not in its place.
    fn auto(&self, key: &str, want: &Want, temporary: &str, netns: NetnsId) -> &'static str {
        let serves = |key: &str, link: &ObservedLink, mark: &Mark| {
            let right = self.bench.owner.temporary(link).is_some_and(|name| name.as_str() == temporary);
            right && Self::logical(mark) == Some(key)
        };
        let has = |key: &str| self.links.iter().any(|(_, link, mark)| serves(key, link, mark));
        let created = |key: &str| self.bench.store[&format!("linux/config/v1/interface/{key}")].create_revision;
        let claims = self.wants.iter().filter(|(_, want)| want.invalid().is_none() && want.auto == Some(temporary));
        let first = claims.min_by_key(|(other, _)| (!has(other), created(other), **other)).map(|(other, _)| *other);
        if first != Some(key) {
            return "FAILED NAME_CONFLICT";
        }
        let own = self.bench.names["own"];
        let home = self.links.iter().find(|(id, link, _)| id.netns == own && *link.name == *temporary);
        match home {
            None => "PENDING LINK_MISSING",
            Some((_, link, Mark::Foreign)) if !matches!(link.kind, LinkKind::Tun(_)) => "FAILED FOREIGN_LINK",
            Some((_, _, Mark::Foreign)) => match self.blocked(key, want, netns) {
                Some("FOREIGN_LINK") => "FAILED FOREIGN_LINK",
                Some(_) => "FAILED NAME_CONFLICT",
                None => "CONFIGURED",
            },
            Some(_) => "FAILED NAME_CONFLICT",
        }
    }

    /// An end that stands has all its settings, and its name unless someone is in the way.
    fn end(&self, key: &str, want: &Want, netns: NetnsId, faults: &mut Vec<String>) {
        let Some((id, link, _)) = self.own_link(key, netns) else { return };
        let mut expect = |what: &str, is: String, must: String| {
            if is != must {
                faults.push(format!("{key}: {what} is {is}, must be {must}"));
            }
        };
        let named = *link.name == *Self::name(key, want);
        let state = match self.blocked(key, want, netns) {
            Some(reason) if !named => format!("FAILED {reason}"),
            _ => "CONFIGURED".to_owned(),
        };
        expect("state", self.bench.state(key), state.clone());
        expect("mtu", link.mtu.to_string(), if want.mtu == 0 { 1500 } else { want.mtu }.to_string());
        expect("up", link.admin_up.to_string(), want.enabled.to_string());
        if let Some(mac) = want.mac {
            expect("mac", link.mac.map(|mac| mac.to_string()).unwrap_or_default(), mac.to_owned());
        }
        let wished: BTreeSet<String> = want.addresses.iter().map(ToString::to_string).collect();
        let ours = link.addresses.iter().filter(|a| a.proto == ADDRESS_PROTO || wished.contains(&a.address.to_string()));
        let ours: BTreeSet<String> = ours.map(|a| a.address.to_string()).collect();
        expect("addresses", format!("{ours:?}"), format!("{wished:?}"));
        if state != "CONFIGURED" {
            return;
        }
        expect("name", link.name.to_string(), Self::name(key, want).to_owned());
        let status = self.bench.status(key);
        expect("status index", status.if_index.to_string(), id.ifindex.to_string());
        let revision = self.bench.store[&format!("linux/config/v1/interface/{key}")].mod_revision;
        expect("status revision", status.revision.to_string(), revision.to_string());
        let entry = self.bench.published.index.get(key).map(|entry| (entry.link, entry.host_if_name.clone()));
        expect("index entry", format!("{entry:?}"), format!("{:?}", Some((*id, link.name.clone()))));
    }

    /// No link of ours without a reason to stand.
    fn leftover(&self, id: LinkId, link: &ObservedLink, mark: &Mark) -> Option<String> {
        let logical = match mark {
            Mark::Foreign => return None,
            Mark::Named(_, name) => name.as_str(),
            Mark::Unnamed | Mark::Doomed(_) => return Some(format!("leftover {} at {id:?}: {mark:?}", link.name)),
        };
        let what = format!("link {} of {logical} at {id:?}", link.name);
        let Some(want) = self.wants.get(logical) else { return Some(format!("{what} has no key")) };
        let temporary = self.bench.owner.temporary(link);
        if want.auto.is_some() && want.invalid().is_none() {
            let right = temporary.as_ref().map(|name| name.as_str()) == want.auto && self.netns(want) == Some(id.netns);
            return (!right).then(|| format!("{what} must not stand"));
        }
        if want.tap.is_some() && want.invalid().is_none() {
            let own = self.netns(want).and_then(|netns| self.own_link(logical, netns));
            return own.is_none_or(|own| own.0 != id).then(|| format!("{what} must not stand"));
        }
        let peer = self.wants.get(want.peer);
        if want.invalid().is_some() || peer.is_some_and(|peer| peer.invalid().is_some()) {
            return None;
        }
        let answered =
            peer.is_some_and(|peer| peer.peer == logical && peer.tap.is_none() && peer.auto.is_none() && self.netns(peer).is_some());
        if !answered || self.netns(want) != Some(id.netns) {
            return Some(format!("{what} must not stand"));
        }
        let other = self.wants.get(want.peer).and_then(|peer| self.own_link(want.peer, self.netns(peer)?));
        let stands = other.is_some_and(|other| Self::are_ends(&(id, link.clone(), mark.clone()), other));
        (!stands).then(|| format!("{what} has not the other end {}", want.peer))
    }

    /// The index holds links that stand, and its changes add up to it.
    fn index(&self, faults: &mut Vec<String>) {
        let book = &self.bench.published.index;
        for (key, entry) in book.snapshot().1 {
            let stands = self
                .links
                .iter()
                .any(|(id, link, mark)| *id == entry.link && link.name == entry.host_if_name && Self::logical(mark) == Some(&*key));
            if !stands {
                faults.push(format!("index entry of {key} does not stand: {:?} {}", entry.link, entry.host_if_name));
            }
        }
        let Next::Changes(changes) = book.since(0, usize::MAX) else { return faults.push("index history too old".to_owned()) };
        let mut replay = BTreeMap::new();
        for (number, change) in (1..).zip(changes) {
            let before = match &change.value {
                Some(value) => replay.insert(change.key.clone(), value.clone()),
                None => replay.remove(&change.key),
            };
            let again = before.is_some() && before == change.value;
            if change.sequence != number || before.is_some() != change.known_before || again {
                faults.push(format!("index change {} of {} is odd", change.sequence, change.key));
            }
        }
        if replay.into_iter().collect::<Vec<_>>() != book.snapshot().1 {
            faults.push("the index's changes do not add up to it".to_owned());
        }
    }
}
