//! What the fake kernel holds: namespaces, links, who is whose peer, and the questions that every rule asks about them.
//!
//! It changes nothing by rule; the rules stand in `links` and `addresses`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nix::errno::Errno;

use super::audit::{Gone, LogEntry};
use super::faults::{Faults, Hidden};
use crate::linux::{KernelCounters, LinkEvent, LinkSink};
use crate::model::interface::MTU_MIN_IPV6;
use crate::model::{IfIndex, LinkId, LinkKind, MacAddr, NetnsId, ObservedLink, OperState, PeerLink, TunInfo};

/// Number of a link in the whole world, never used twice: ours to tell whether a link is still the same one. The kernel has none.
pub(super) type Uid = u64;

/// Settings of a fake namespace. The default is a new namespace's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetnsSettings {
    /// New links have IPv6 switched off (`net.ipv6.conf.default.disable_ipv6`).
    pub ipv6_disabled: bool,
    /// The next secondary becomes primary when the primary goes (`promote_secondaries`).
    pub promote_secondaries: bool,
    /// `/proc/sys` is mounted read-only: no sysctl can be written.
    pub proc_sys_readonly: bool,
    /// The kernel's own link-locals are tentative until [`super::FakeWorld::end_dad`]. Off by default for quieter tests.
    pub link_local_dad: bool,
    /// The link watch is behind: a carrier that has come does not show until somebody asks for that link singly.
    pub link_watch_behind: bool,
}

/// Why the fake kernel refuses: the errno and the kernel's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) Errno, pub(super) &'static str);

/// Refuses without words, as the kernel mostly does.
pub(super) fn refuse<T>(errno: Errno) -> Result<T, Refusal> {
    Err(Refusal(errno, ""))
}

/// The two properties of a link that can say whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) group: u32,
    pub(super) alias: Option<Box<str>>,
}

/// A link. `observed.peer` and `observed.oper` are computed when it is read.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) uid: Uid,
    pub(super) observed: ObservedLink,
    pub(super) peer: Option<Uid>,
    /// Its hardware address was asked for, not generated.
    pub(super) mac_given: bool,
    /// Every pair of marks that it ever carried.
    pub(super) marks: Vec<Marks>,
    /// The kernel has made its link-local since the link last came up; it makes none again when the carrier only came back.
    pub(super) ipv6_ready: bool,
    /// Somebody has asked for it while it had carrier.
    pub(super) watched: bool,
    /// How often someone else changed it.
    pub(super) outside_changes: u64,
    /// Someone else made it.
    pub(super) made_outside: bool,
}

impl Link {
    /// Remembers the marks that it carries now.
    pub(super) fn remember_marks(&mut self) {
        let now = Marks { group: self.observed.group, alias: self.observed.alias.clone() };
        if !self.marks.contains(&now) {
            self.marks.push(now);
        }
    }

    /// Whether IPv6 exists on it at all: below its smallest MTU the kernel takes it away, sysctls included.
    pub(super) fn has_ipv6(&self) -> bool {
        self.observed.mtu >= MTU_MIN_IPV6
    }
}

/// A namespace.
#[derive(Debug, Default)]
pub(super) struct Netns {
    pub(super) alive: bool,
    pub(super) settings: NetnsSettings,
    pub(super) links: BTreeMap<IfIndex, Link>,
    last_index: u32,
    nsids: BTreeMap<NetnsId, i32>,
}

impl Netns {
    /// Whether a link here answers to the name, by its own or an alternative one.
    pub(super) fn name_taken(&self, name: &str) -> bool {
        self.links.values().any(|link| link.observed.answers_to(name))
    }

    /// The next free index, cyclic like the kernel's: one that was freed comes back only after all others.
    fn next_index(&mut self) -> Option<IfIndex> {
        for _ in 0..=self.links.len() {
            self.last_index = if self.last_index >= i32::MAX.unsigned_abs() { 1 } else { self.last_index + 1 };
            let index = IfIndex::new(self.last_index)?;
            if !self.links.contains_key(&index) {
                return Some(index);
            }
        }
        None
    }
}

/// A link that waits for the reaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doomed {
    pub(super) id: LinkId,
    pub(super) uid: Uid,
    /// The group by which it is deleted.
    pub(super) group: u32,
}

/// The whole world.
#[derive(Default)]
pub(super) struct State {
    pub(super) netns: BTreeMap<NetnsId, Netns>,
    pub(super) places: BTreeMap<Uid, LinkId>,
    pub(super) gone: BTreeMap<Uid, Gone>,
    pub(super) doomed: Vec<Doomed>,
    pub(super) reap_at_once: bool,
    pub(super) faults: Faults,
    pub(super) hidden: Vec<Hidden>,
    pub(super) log: Vec<LogEntry>,
    pub(super) counters: KernelCounters,
    pub(super) misuses: Vec<String>,
    pub(super) sink: Option<Arc<dyn LinkSink>>,
    pub(super) muted: bool,
    pub(super) events: Vec<LinkEvent>,
    /// The one who acts is not the agent.
    pub(super) outsider: bool,
    last_cookie: u64,
    last_uid: Uid,
}

impl State {
    /// A new namespace with its `lo`.
    pub(super) fn add_netns(&mut self, settings: NetnsSettings) -> NetnsId {
        self.last_cookie += 1;
        let id = NetnsId(std::num::NonZeroU64::MIN.saturating_add(self.last_cookie));
        self.netns.insert(id, Netns { alive: true, settings, ..Netns::default() });
        if let Ok(lo) = self.add_link(id, "lo", LinkKind::Other("".into()))
            && let Ok(link) = self.link_mut(lo)
        {
            link.observed.mtu = 65536;
            link.observed.mac = None;
        }
        id
    }

    /// The namespace, if it lives.
    pub(super) fn living(&mut self, id: NetnsId) -> Result<&mut Netns, Refusal> {
        self.netns.get_mut(&id).filter(|netns| netns.alive).ok_or(Refusal(Errno::ENOENT, ""))
    }

    /// The link, or the errno of an index that is none.
    pub(super) fn link_mut(&mut self, id: LinkId) -> Result<&mut Link, Refusal> {
        self.living(id.netns)?.links.get_mut(&id.ifindex).ok_or(Refusal(Errno::ENODEV, ""))
    }

    /// The link, for looking only.
    pub(super) fn link(&self, id: LinkId) -> Option<&Link> {
        self.netns.get(&id.netns)?.links.get(&id.ifindex)
    }

    /// The link, to be changed now: counts whoever is not the agent.
    pub(super) fn change(&mut self, id: LinkId) -> Result<&mut Link, Refusal> {
        let outside = u64::from(self.outsider);
        let link = self.link_mut(id)?;
        link.outside_changes += outside;
        Ok(link)
    }

    /// Where the other end of a veth is.
    pub(super) fn peer_of(&self, id: LinkId) -> Option<LinkId> {
        self.places.get(&self.link(id)?.peer?).copied()
    }

    /// Puts a new link into a namespace, down, with a generated address where its kind has one. The name must be free.
    pub(super) fn add_link(&mut self, netns: NetnsId, name: &str, kind: LinkKind) -> Result<LinkId, Refusal> {
        self.last_uid += 1;
        let (uid, made_outside) = (self.last_uid, self.outsider);
        let home = self.living(netns)?;
        if home.name_taken(name) {
            return refuse(Errno::EEXIST);
        }
        let ifindex = home.next_index().ok_or(Refusal(Errno::EBUSY, ""))?;
        let bare = matches!(kind, LinkKind::Tun(TunInfo { tap: false, .. }));
        let mut observed = ObservedLink::bare(ifindex, name, kind);
        observed.mac = generated_mac(uid).filter(|_| !bare);
        observed.ipv6_disabled = home.settings.ipv6_disabled;
        let mut link = Link {
            uid,
            observed,
            peer: None,
            mac_given: false,
            marks: Vec::new(),
            ipv6_ready: false,
            watched: false,
            outside_changes: 0,
            made_outside,
        };
        link.remember_marks();
        home.links.insert(ifindex, link);
        let id = LinkId { netns, ifindex };
        self.places.insert(uid, id);
        Ok(id)
    }

    /// Sets the index after which the next ones are given out.
    pub(super) fn set_last_index(&mut self, netns: NetnsId, index: u32) {
        if let Some(netns) = self.netns.get_mut(&netns) {
            netns.last_index = index;
        }
    }

    /// Moves a link to a place in another namespace: its index is kept where it is free.
    pub(super) fn relocate(&mut self, from: LinkId, to: NetnsId) -> Result<LinkId, Refusal> {
        let mut link = self.living(from.netns)?.links.remove(&from.ifindex).ok_or(Refusal(Errno::ENODEV, ""))?;
        let home = self.living(to)?;
        let ifindex = if home.links.contains_key(&from.ifindex) { home.next_index() } else { Some(from.ifindex) };
        let ifindex = ifindex.ok_or(Refusal(Errno::EBUSY, ""))?;
        link.observed.ifindex = ifindex;
        let (uid, place) = (link.uid, LinkId { netns: to, ifindex });
        home.links.insert(ifindex, link);
        self.places.insert(uid, place);
        Ok(place)
    }

    /// The id of `other` as seen from `here`; given out at the first need, as for a new veth.
    pub(super) fn nsid(&mut self, here: NetnsId, other: NetnsId) -> Option<i32> {
        let ids = &mut self.netns.get_mut(&here)?.nsids;
        let next = i32::try_from(ids.len()).ok()?;
        Some(*ids.entry(other).or_insert(next))
    }

    /// Whether packets could pass: of a veth, both ends are up.
    pub(super) fn carrier(&self, id: LinkId) -> bool {
        let up = |id| self.link(id).is_some_and(|link| link.observed.admin_up);
        match self.link(id).map(|link| &link.observed.kind) {
            Some(LinkKind::Veth) => up(id) && self.peer_of(id).is_some_and(up),
            // A TAP has carrier while a program holds it open; nobody does here.
            Some(LinkKind::Tun(_)) | None => false,
            Some(LinkKind::Other(_)) => true,
        }
    }

    /// `IFLA_OPERSTATE`. A veth without carrier is LOWERLAYERDOWN only if the peer's *number* is that of a link without carrier in the veth's
    /// own namespace: so `default_operstate()`, which looks there even when the peer lives elsewhere.
    fn oper(&self, id: LinkId) -> OperState {
        let Some(link) = self.link(id).filter(|link| link.observed.admin_up) else { return OperState::Down };
        match (&link.observed.kind, self.carrier(id)) {
            (LinkKind::Other(_), _) => OperState::Unknown,
            (_, true) if !link.watched && self.netns.get(&id.netns).is_some_and(|netns| netns.settings.link_watch_behind) => {
                OperState::Down
            }
            (_, true) => OperState::Up,
            (_, false) => {
                let lower = self.peer_of(id).map(|peer| LinkId { netns: id.netns, ifindex: peer.ifindex });
                let waits = lower.is_some_and(|lower| lower != id && self.link(lower).is_some() && !self.carrier(lower));
                if waits { OperState::LowerLayerDown } else { OperState::Down }
            }
        }
    }

    /// Whoever asks for one link makes the link watch look after it.
    pub(super) fn watch(&mut self, id: LinkId) {
        let carrier = self.carrier(id);
        let Ok(link) = self.link_mut(id) else { return };
        if std::mem::replace(&mut link.watched, carrier) != carrier
            && self.netns.get(&id.netns).is_some_and(|n| n.settings.link_watch_behind)
        {
            self.emit_link(id);
        }
    }

    /// A link as it reads now.
    pub(super) fn observe(&mut self, id: LinkId) -> Option<ObservedLink> {
        let peer = match self.peer_of(id) {
            Some(peer) if peer.netns == id.netns => Some(PeerLink { ifindex: peer.ifindex, nsid: None, netns: None }),
            Some(peer) => Some(PeerLink { ifindex: peer.ifindex, nsid: self.nsid(id.netns, peer.netns), netns: Some(peer.netns) }),
            None => None,
        };
        let oper = self.oper(id);
        Some(ObservedLink { peer, oper, ..self.link(id)?.observed.clone() })
    }

    /// All links of a namespace, or none if it is dead.
    pub(super) fn observe_all(&mut self, netns: NetnsId) -> Vec<ObservedLink> {
        let ids: BTreeSet<IfIndex> = self.netns.get(&netns).into_iter().flat_map(|n| n.links.keys().copied()).collect();
        ids.into_iter().filter_map(|ifindex| self.observe(LinkId { netns, ifindex })).collect()
    }

    /// Tells of what the kernel did, unless its events are lost.
    pub(super) fn emit(&mut self, event: LinkEvent) {
        if !self.muted {
            self.tell(event);
        }
    }

    /// Tells what never gets lost, because it does not come from the kernel.
    pub(super) fn tell(&mut self, event: LinkEvent) {
        if self.sink.is_some() {
            self.events.push(event);
        }
    }

    /// Tells of a link as it is now, without its addresses.
    pub(super) fn emit_link(&mut self, id: LinkId) {
        if let Some(link) = self.observe(id) {
            self.emit(LinkEvent::Link(id.netns, Box::new(ObservedLink { addresses: Vec::new(), ..link })));
        }
    }
}

/// A locally administered unicast address, another one for every link.
fn generated_mac(uid: Uid) -> Option<MacAddr> {
    let [.., a, b, c, d] = uid.to_be_bytes();
    MacAddr::new([0x42, 0xfa, a, b, c, d]).ok()
}
