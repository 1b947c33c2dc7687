//! What a test asks afterwards: who wrote what, what stands there, and whether anything was touched that was not ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::FakeWorld;
use super::state::{Link, Marks, State, Uid};
use crate::linux::{Done, KernelError, KernelOp};
use crate::model::owner::Mark;
use crate::model::{IfIndex, LinkId, LinkKind, ObservedLink, OperState, Owner, TunInfo};

/// A link that is no more.
pub(super) struct Gone {
    id: LinkId,
    marks: Vec<Marks>,
    by_outsider: bool,
}

/// A write, as it was asked for and answered.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// What was asked.
    pub op: KernelOp,
    /// What the caller was told.
    pub answer: Result<Done, KernelError>,
    /// Whether the kernel saw it at all: false where an injected fault refused it.
    pub reached: bool,
    /// The link that it was about.
    pub(super) target: Option<Uid>,
}

/// The foreign links of one moment.
pub struct Baseline {
    owner: Owner,
    links: BTreeMap<Uid, (LinkId, ObservedLink, u64)>,
}

/// Whether any of these marks is the owner's.
fn ever_owned(owner: &Owner, ifindex: IfIndex, marks: &[Marks]) -> bool {
    marks.iter().any(|marks| {
        // A kind on which every mark counts.
        let mut link = ObservedLink::bare(ifindex, "", LinkKind::Tun(TunInfo::default()));
        link.group = marks.group;
        link.alias.clone_from(&marks.alias);
        owner.mark(&link) != Mark::Foreign
    })
}

/// A link without what changes by itself.
fn settled(link: &ObservedLink) -> ObservedLink {
    let mut link = ObservedLink { oper: OperState::Unknown, peer: None, ..link.clone() };
    link.addresses.retain(|a| !a.kernel_made);
    for address in &mut link.addresses {
        address.tentative = false;
    }
    link
}

impl State {
    /// Remembers a link that is no more.
    pub(super) fn bury(&mut self, id: LinkId, link: Link) {
        self.gone.insert(link.uid, Gone { id, marks: link.marks, by_outsider: self.outsider });
    }

    fn never_owned(&self, owner: &Owner, uid: Uid) -> bool {
        let living = self.places.get(&uid).and_then(|id| self.link(*id));
        match (living, self.gone.get(&uid)) {
            (Some(link), _) => !ever_owned(owner, link.observed.ifindex, &link.marks),
            (None, Some(gone)) => !ever_owned(owner, gone.id.ifindex, &gone.marks),
            (None, None) => false,
        }
    }

    fn baseline(&mut self, owner: &Owner) -> Baseline {
        let places = self.places.clone();
        let foreign = places.into_iter().filter(|(uid, _)| self.never_owned(owner, *uid)).collect::<Vec<_>>();
        let mut links = BTreeMap::new();
        for (uid, id) in foreign {
            let outside = self.link(id).map_or(0, |link| link.outside_changes);
            if let Some(link) = self.observe(id) {
                links.insert(uid, (id, settled(&link), outside));
            }
        }
        Baseline { owner: owner.clone(), links }
    }

    /// What differs in one foreign link without someone else having changed it.
    fn difference(&self, uid: Uid, was: &(LinkId, ObservedLink, u64)) -> Option<String> {
        let (id, was, outside) = was;
        let Some(now_at) = self.places.get(&uid).copied() else {
            let ours = self.gone.get(&uid).is_none_or(|gone| !gone.by_outsider);
            return ours.then(|| format!("link `{}` ({} in namespace {}) is gone", was.name, id.ifindex, id.netns));
        };
        let link = self.link(now_at).filter(|link| link.outside_changes == *outside)?;
        let now = settled(&link.observed);
        (now_at != *id || now != *was).then(|| format!("link `{}` was {was:?} at {id:?}, is {now:?} at {now_at:?}", was.name))
    }

    fn digest(&mut self, owner: &Owner) -> String {
        let mut lines = Vec::new();
        let ids: Vec<LinkId> = self.places.values().copied().collect();
        for id in ids {
            let mac_given = self.link(id).is_some_and(|link| link.mac_given);
            if let Some(link) = self.observe(id).filter(|link| owner.mark(link) != Mark::Foreign) {
                lines.push(line(owner, id, &link, mac_given));
            }
        }
        lines.sort_unstable();
        lines.concat()
    }
}

/// One link of a digest.
fn line(owner: &Owner, id: LinkId, link: &ObservedLink, mac_given: bool) -> String {
    let mut line = format!("{} {} alias={:?} mtu={}", id.netns, link.name, link.alias.as_deref().unwrap_or(""), link.mtu);
    line.push_str(if link.admin_up { " up" } else { " down" });
    if let LinkKind::Tun(TunInfo { tap, owner, group, multi_queue, vnet_hdr, .. }) = link.kind {
        let _ = write!(line, " tap={tap} owner={owner:?} group={group:?} multi_queue={multi_queue} vnet_hdr={vnet_hdr}");
    }
    if let Some(mac) = link.mac.filter(|_| mac_given) {
        let _ = write!(line, " mac={mac}");
    }
    if link.group != owner.group() {
        let _ = write!(line, " group={:#x}", link.group);
    }
    let mut addresses: Vec<_> = link.addresses.iter().filter(|a| !a.kernel_made).map(|a| a.address).collect();
    addresses.sort_unstable();
    for address in addresses {
        let _ = write!(line, " {address}");
    }
    line.push('\n');
    line
}

/// Questions afterwards.
impl FakeWorld {
    /// All writes so far, in order.
    #[must_use]
    pub fn log(&self) -> Vec<LogEntry> {
        self.with(|state| state.log.clone())
    }

    /// All writes since the last call of this, in order; forgets them.
    #[must_use]
    pub fn take_log(&self) -> Vec<LogEntry> {
        self.with(|state| std::mem::take(&mut state.log))
    }

    /// What the kernel would never have been asked by a correct caller, such as an operation in a namespace that was not attached.
    #[must_use]
    pub fn misuses(&self) -> Vec<String> {
        self.with(|state| state.misuses.clone())
    }

    /// Every link that carries the owner's mark, one line each, sorted: namespace, name, alias, MTU, up, hardware address where one was asked
    /// for, group where it is not the owner's usual one, addresses without the kernel's own. Indexes are left out: two histories that lead to
    /// the same links have the same digest.
    #[must_use]
    pub fn digest(&self, owner: &Owner) -> String {
        self.with(|state| state.digest(owner))
    }

    /// All links that never carried the owner's mark so far, to be compared later.
    #[must_use]
    pub fn baseline(&self, owner: &Owner) -> Baseline {
        self.with(|state| state.baseline(owner))
    }

    /// Whether all links of the baseline stand as they stood, except those that carried the owner's mark since, and those that someone
    /// else changed or removed.
    ///
    /// # Errors
    /// What differs, a line per link.
    pub fn foreign_untouched(&self, baseline: &Baseline) -> Result<(), String> {
        let differences: Vec<String> = self.with(|state| {
            let foreign = baseline.links.iter().filter(|(uid, _)| state.never_owned(&baseline.owner, **uid));
            foreign.filter_map(|(uid, was)| state.difference(*uid, was)).collect()
        });
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
    }

    /// Writes that were about a link that never carried the owner's mark, whether they succeeded or not; a deletion refused with
    /// ESTALE is the guard at work and does not count.
    #[must_use]
    pub fn foreign_writes(&self, owner: &Owner) -> Vec<LogEntry> {
        self.with(|state| {
            let guarded = |entry: &LogEntry| {
                matches!(entry.op, KernelOp::DeleteLink { .. })
                    && entry.answer.as_ref().is_err_and(|error| error.is(nix::errno::Errno::ESTALE))
            };
            let foreign = |entry: &&LogEntry| entry.target.is_some_and(|uid| state.never_owned(owner, uid)) && !guarded(entry);
            state.log.iter().filter(foreign).cloned().collect()
        })
    }
}
