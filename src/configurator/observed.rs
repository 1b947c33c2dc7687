//! What the kernel showed last, per namespace, indexed by who owns it.
//!
//! Pure. It is a cache: events only say where to look again, and every write is followed by a read-back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::linux::NetnsReading;
use crate::model::owner::Mark;
use crate::model::{IfIndex, InterfaceName, LinkId, MarkKind, NetnsId, ObservedLink, Owner};

/// A link with the meaning of its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The link.
    pub link: ObservedLink,
    /// Whose it is.
    pub mark: Mark,
}

#[derive(Debug, Default)]
struct Space {
    links: BTreeMap<IfIndex, Seen>,
    names: HashMap<Box<str>, IfIndex>,
    /// How many of the links are ours.
    ours: usize,
}

/// A link that changed: who may have to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Which.
    pub id: LinkId,
    /// What was seen before.
    pub before: Option<Seen>,
}

/// The last known state of all namespaces in use.
#[derive(Debug)]
pub struct Observed {
    owner: Owner,
    spaces: HashMap<NetnsId, Space>,
    /// By logical name; nearly always one link, for which a tree would take ten times the memory.
    named: HashMap<InterfaceName, Vec<LinkId>>,
    unnamed: BTreeSet<LinkId>,
    doomed: BTreeSet<LinkId>,
    /// Handed over for removal, and the other ends, which go with them: on their way out, whatever their marks say.
    reaping: BTreeSet<LinkId>,
    leaving: HashMap<InterfaceName, Vec<LinkId>>,
    peerless: BTreeSet<LinkId>,
    /// Names that aliases have no room for, by what stands there instead.
    long_names: HashMap<InterfaceName, InterfaceName>,
}

impl Observed {
    /// Nothing seen yet; marks are read for this owner.
    #[must_use]
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            spaces: HashMap::new(),
            named: HashMap::new(),
            unnamed: BTreeSet::new(),
            doomed: BTreeSet::new(),
            reaping: BTreeSet::new(),
            leaving: HashMap::new(),
            peerless: BTreeSet::new(),
            long_names: HashMap::new(),
        }
    }

    /// Whether this namespace has been read.
    #[must_use]
    pub fn knows(&self, id: NetnsId) -> bool {
        self.spaces.contains_key(&id)
    }

    /// Takes a reading of a whole namespace. Links that an incomplete reading does not show are kept.
    pub fn take_reading(&mut self, netns: NetnsId, reading: NetnsReading) -> Vec<Changed> {
        let present: BTreeSet<IfIndex> = reading.links.iter().map(|l| l.ifindex).collect();
        let known: Vec<IfIndex> = self.spaces.entry(netns).or_default().links.keys().copied().collect();
        let mut changes = Vec::new();
        if reading.complete {
            // Gone ones first: their names may have passed to others.
            let gone = known.into_iter().filter(|index| !present.contains(index));
            changes.extend(gone.filter_map(|ifindex| self.take_link(LinkId { netns, ifindex }, None)));
        }
        changes.extend(reading.links.into_iter().filter_map(|l| self.take_link(LinkId { netns, ifindex: l.ifindex }, Some(l))));
        changes
    }

    /// Takes a reading of one link (`None`: it is not there); returns what was seen before if that differs.
    pub fn take_link(&mut self, id: LinkId, link: Option<ObservedLink>) -> Option<Changed> {
        let space = self.spaces.get_mut(&id.netns)?;
        let before = space.links.get(&id.ifindex);
        if before.map(|seen| &seen.link) == link.as_ref() {
            return None;
        }
        let before = space.links.remove(&id.ifindex);
        if let Some(seen) = &before {
            for name in names(&seen.link) {
                // Another link may have taken the name since.
                if space.names.get(name) == Some(&id.ifindex) {
                    space.names.remove(name);
                }
            }
            space.ours -= usize::from(seen.mark != Mark::Foreign);
            self.unfile(id, &seen.mark);
            self.peerless.remove(&id);
        }
        if let Some(link) = link {
            let mark = self.meaning(id, &link);
            let space = self.spaces.entry(id.netns).or_default();
            for name in names(&link) {
                space.names.insert(name.into(), id.ifindex);
            }
            self.file(id, &mark);
            if link.peer.is_some_and(|peer| peer.nsid.is_some() && peer.netns.is_none()) {
                self.peerless.insert(id);
            }
            if let Some(space) = self.spaces.get_mut(&id.netns) {
                space.ours += usize::from(mark != Mark::Foreign);
                space.links.insert(id.ifindex, Seen { link, mark });
            }
        }
        if self.get(id).is_none() {
            self.reaping.remove(&id);
        }
        Some(Changed { id, before })
    }

    fn file(&mut self, id: LinkId, mark: &Mark) {
        match mark {
            Mark::Foreign => {}
            Mark::Unnamed => {
                self.unnamed.insert(id);
            }
            Mark::Named(_, name) => {
                add_id(&mut self.named, name, id);
            }
            Mark::Doomed(logical) => {
                if let Some((_, name)) = logical {
                    add_id(&mut self.leaving, name, id);
                }
                if !self.reaping.contains(&id) {
                    self.doomed.insert(id);
                }
            }
        }
    }

    /// Whose a link is.
    fn meaning(&self, id: LinkId, link: &ObservedLink) -> Mark {
        match self.whole_name(self.owner.mark(link)) {
            Mark::Named(kind, name) if self.reaping.contains(&id) => Mark::Doomed(Some((kind, name))),
            Mark::Unnamed if self.reaping.contains(&id) => Mark::Doomed(None),
            mark => mark,
        }
    }

    /// Notes that a link has been handed over for removal; it stays known until the kernel tells that it is gone. So does its other end.
    pub fn note_reaping(&mut self, id: LinkId) {
        let other_end = self.partner(id);
        for id in [Some(id), other_end].into_iter().flatten() {
            self.doomed.remove(&id);
            self.reaping.insert(id);
            self.file_anew(id);
        }
    }

    /// Notes that a removal did not work out: what is still there of the link and its other end is what its marks say.
    pub fn note_reap_failed(&mut self, id: LinkId) {
        let other_end = self.partner(id);
        for id in [Some(id), other_end].into_iter().flatten() {
            if self.reaping.remove(&id) {
                self.file_anew(id);
            }
        }
    }

    /// Whether a link has been handed over for removal, or goes with one that has.
    #[must_use]
    pub fn is_leaving(&self, id: LinkId) -> bool {
        self.reaping.contains(&id)
    }

    /// Links with this logical name that are on their way out.
    pub fn leaving<'a>(&'a self, name: &str) -> impl Iterator<Item = LinkId> + 'a {
        self.leaving.get(name).into_iter().flatten().copied()
    }

    fn file_anew(&mut self, id: LinkId) {
        let Some(seen) = self.get(id) else { return };
        let (before, mark) = (seen.mark.clone(), self.meaning(id, &seen.link));
        self.unfile(id, &before);
        self.file(id, &mark);
        if let Some(seen) = self.spaces.get_mut(&id.netns).and_then(|space| space.links.get_mut(&id.ifindex)) {
            seen.mark = mark;
        }
    }

    /// How many links are being removed at the moment.
    #[must_use]
    pub fn reaping(&self) -> usize {
        self.reaping.len()
    }

    fn unfile(&mut self, id: LinkId, mark: &Mark) {
        match mark {
            Mark::Foreign => {}
            Mark::Unnamed => {
                self.unnamed.remove(&id);
            }
            Mark::Named(_, name) => drop_id(&mut self.named, name, id),
            Mark::Doomed(logical) => {
                if let Some((_, name)) = logical {
                    drop_id(&mut self.leaving, name, id);
                }
                self.doomed.remove(&id);
            }
        }
    }

    /// Tells of a logical name, so that links whose alias has no room for it are known by it.
    pub fn learn(&mut self, name: &InterfaceName) {
        let written = self.owner.written_name(name);
        if written == *name || self.long_names.insert(written.clone(), name.clone()).is_some() {
            return;
        }
        let ids: Vec<LinkId> = [&self.named, &self.leaving].into_iter().filter_map(|map| map.get(&written)).flatten().copied().collect();
        for id in ids {
            let Some(seen) = self.get(id).cloned() else { continue };
            self.unfile(id, &seen.mark);
            let mark = self.whole_name(seen.mark);
            self.file(id, &mark);
            if let Some(seen) = self.spaces.get_mut(&id.netns).and_then(|space| space.links.get_mut(&id.ifindex)) {
                seen.mark = mark;
            }
        }
    }

    /// Lets go of a logical name that neither a wish nor a link bears any more.
    pub fn unlearn(&mut self, name: &str) {
        if let Some(written) = InterfaceName::new(name).ok().map(|name| self.owner.written_name(&name))
            && self.long_names.get(&written).is_some_and(|known| known.as_str() == name)
        {
            self.long_names.remove(&written);
        }
    }

    fn whole_name(&self, mark: Mark) -> Mark {
        let whole = |name: InterfaceName| self.long_names.get(&name).cloned().unwrap_or(name);
        match mark {
            Mark::Named(kind, name) => Mark::Named(kind, whole(name)),
            Mark::Doomed(Some((kind, name))) => Mark::Doomed(Some((kind, whole(name)))),
            Mark::Foreign | Mark::Unnamed | Mark::Doomed(None) => mark,
        }
    }

    /// Forgets a namespace: it is gone, or nobody needs it.
    pub fn forget(&mut self, netns: NetnsId) -> Vec<Changed> {
        let Some(space) = self.spaces.remove(&netns) else { return Vec::new() };
        let mut changes = Vec::new();
        for (ifindex, seen) in space.links {
            let id = LinkId { netns, ifindex };
            self.unfile(id, &seen.mark);
            self.reaping.remove(&id);
            self.peerless.remove(&id);
            changes.push(Changed { id, before: Some(seen) });
        }
        changes
    }

    /// One link.
    #[must_use]
    pub fn get(&self, id: LinkId) -> Option<&Seen> {
        self.spaces.get(&id.netns)?.links.get(&id.ifindex)
    }

    /// The link that answers to a name in a namespace.
    #[must_use]
    pub fn at(&self, netns: NetnsId, name: &str) -> Option<(LinkId, &Seen)> {
        let space = self.spaces.get(&netns)?;
        let ifindex = *space.names.get(name)?;
        Some((LinkId { netns, ifindex }, space.links.get(&ifindex)?))
    }

    /// Our links with this logical name; not those on their way out.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = (LinkId, &'a Seen)> + 'a {
        self.named.get(name).into_iter().flatten().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// The logical names on our links.
    pub fn names(&self) -> impl Iterator<Item = &InterfaceName> {
        self.named.keys()
    }

    /// Whether a link of this logical name is still there, also on its way out.
    #[must_use]
    pub fn stands(&self, name: &str) -> bool {
        self.named.contains_key(name) || self.leaving.contains_key(name)
    }

    /// Our links without a logical name (made a moment before a crash).
    pub fn unnamed(&self) -> impl Iterator<Item = (LinkId, &Seen)> {
        self.unnamed.iter().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Our links that are on their way out and that nobody is removing.
    pub fn doomed(&self) -> impl Iterator<Item = (LinkId, &Seen)> {
        self.doomed.iter().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Whether any link of ours is in this namespace.
    #[must_use]
    pub fn has_ours(&self, netns: NetnsId) -> bool {
        self.spaces.get(&netns).is_some_and(|space| space.ours > 0)
    }

    /// How many links are known in a namespace.
    #[must_use]
    pub fn link_count(&self, netns: NetnsId) -> usize {
        self.spaces.get(&netns).map_or(0, |s| s.links.len())
    }

    /// The other end of a veth, where it was seen and points back.
    #[must_use]
    pub fn partner(&self, id: LinkId) -> Option<LinkId> {
        let leads_to = |from: LinkId| {
            let peer = self.get(from)?.link.peer?;
            let netns = if peer.nsid.is_none() { Some(from.netns) } else { peer.netns };
            Some(LinkId { netns: netns?, ifindex: peer.ifindex })
        };
        leads_to(id).filter(|other| *other != id && leads_to(*other) == Some(id))
    }

    /// Whether two links are the two ends of one pair.
    #[must_use]
    pub fn are_pair(&self, a: LinkId, b: LinkId) -> bool {
        self.partner(a) == Some(b)
    }

    /// Veth ends whose other end was in a namespace unknown at the time of the reading.
    pub fn with_unknown_peer(&self) -> impl Iterator<Item = LinkId> {
        self.peerless.iter().copied()
    }
}

fn add_id(map: &mut HashMap<InterfaceName, Vec<LinkId>>, name: &InterfaceName, id: LinkId) {
    let ids = map.entry(name.clone()).or_default();
    if let Err(at) = ids.binary_search(&id) {
        ids.reserve_exact(1);
        ids.insert(at, id);
    }
}

fn drop_id(map: &mut HashMap<InterfaceName, Vec<LinkId>>, name: &InterfaceName, id: LinkId) {
    if let Some(ids) = map.get_mut(name) {
        ids.retain(|have| *have != id);
        if ids.is_empty() {
            map.remove(name);
        }
    }
}

fn names(link: &ObservedLink) -> impl Iterator<Item = &str> {
    std::iter::once(&*link.name).chain(link.altnames.iter().map(|name| &**name))
}

impl Seen {
    /// The logical name and kind on the link, also while it is on its way out.
    #[must_use]
    pub fn logical(&self) -> Option<(MarkKind, &InterfaceName)> {
        match &self.mark {
            Mark::Named(kind, name) | Mark::Doomed(Some((kind, name))) => Some((*kind, name)),
            Mark::Foreign | Mark::Unnamed | Mark::Doomed(None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AgentLabel, LinkKind};

    fn observed() -> Observed {
        Observed::new(Owner::new(AgentLabel::new("test").unwrap()))
    }

    fn marked(observed: &Observed, name: &InterfaceName) -> ObservedLink {
        let bare = ObservedLink::bare(IfIndex::new(7).unwrap(), "eth7", LinkKind::Veth);
        ObservedLink { alias: Some(observed.owner.alias(MarkKind::Veth, name).into()), ..bare }
    }

    #[test]
    fn whether_any_is_ours_follows_the_marks() {
        let mut observed = observed();
        let netns = NetnsId::new(1).unwrap();
        let ours = marked(&observed, &InterfaceName::new("a").unwrap());
        let id = LinkId { netns, ifindex: ours.ifindex };
        let strange = ObservedLink::bare(IfIndex::new(8).unwrap(), "eth8", LinkKind::Veth);
        observed.take_reading(netns, NetnsReading { links: vec![ours.clone(), strange], complete: true });
        assert!(observed.has_ours(netns));
        observed.take_link(id, Some(ObservedLink { mtu: 1400, ..ours.clone() }));
        assert!(observed.has_ours(netns));
        observed.take_link(id, Some(ObservedLink { alias: None, ..ours.clone() }));
        assert!(!observed.has_ours(netns), "it lost its mark");
        observed.take_link(id, Some(ours));
        assert!(observed.has_ours(netns));
        observed.take_link(id, None);
        assert!(!observed.has_ours(netns), "it is gone");
    }

    #[test]
    fn a_name_too_long_for_an_alias_is_known_until_it_is_unlearned() {
        let mut observed = observed();
        let (long, netns) = (InterfaceName::new(&"x".repeat(253)).unwrap(), NetnsId::new(1).unwrap());
        let link = marked(&observed, &long);
        let id = LinkId { netns, ifindex: link.ifindex };
        observed.take_reading(netns, NetnsReading { links: vec![link], complete: true });
        assert!(!observed.stands(long.as_str()), "the alias holds only a part of it");
        observed.learn(&long);
        assert!(observed.stands(long.as_str()));
        observed.take_link(id, None);
        observed.unlearn(long.as_str());
        assert!(observed.long_names.is_empty() && observed.named.is_empty());
    }
}
