//! Rules of links: how they are made, changed and deleted, and what a change of one does to its addresses and its peer.
//!
//! Measured on Linux 6.18.

use nix::errno::Errno;

use super::faults::OpKind;
use super::state::{Doomed, Refusal, State, refuse};
use crate::linux::{Done, ExpectedMark, KernelError, LinkChange, LinkEvent, NewLink, NewTap};
use crate::model::interface::{MTU_MAX, MTU_MAX_TAP, MTU_MIN};
use crate::model::{LinkId, LinkKind, NetnsId, TapMode, TunInfo};

/// Longest alias in bytes (`IFALIASZ` less one).
const ALIAS_MAX: usize = 255;

fn check_mtu(kind: &LinkKind, mtu: u32) -> Result<(), Refusal> {
    let most = if is_tun(kind) == Some(false) { MTU_MAX_TAP } else { MTU_MAX };
    match mtu {
        ..MTU_MIN => Err(Refusal(Errno::EINVAL, "mtu less than device minimum")),
        mtu if mtu <= most => Ok(()),
        _ => Err(Refusal(Errno::EINVAL, "mtu greater than device maximum")),
    }
}

/// Of a TUN/TAP, whether it has no Ethernet header.
fn is_tun(kind: &LinkKind) -> Option<bool> {
    if let LinkKind::Tun(info) = kind { Some(!info.tap) } else { None }
}

fn check_alias(alias: &str) -> Result<(), Refusal> {
    if alias.len() > ALIAS_MAX { refuse(Errno::ERANGE) } else { Ok(()) }
}

impl State {
    /// `RTM_NEWLINK` of a veth pair: all or nothing. Both ends carry the group; neither gets an alias, which the kernel ignores here.
    pub(super) fn create_veth(&mut self, a: &NewLink, b: &NewLink, group: u32, a_up: bool) -> Result<Done, Refusal> {
        self.living(a.netns)?;
        self.living(b.netns)?;
        for end in [a, b] {
            check_mtu(&LinkKind::Veth, end.mtu)?;
            if self.living(end.netns)?.name_taken(end.name.as_str()) {
                return refuse(Errno::EEXIST);
            }
        }
        if a.netns == b.netns && a.name == b.name {
            return refuse(Errno::EEXIST);
        }
        // The peer is registered first, so within one namespace it has the lower index.
        let b_id = self.add_end(b, group)?;
        let a_id = self.add_end(a, group)?;
        let (a_uid, b_uid) = (self.link_mut(a_id)?.uid, self.link_mut(b_id)?.uid);
        self.link_mut(a_id)?.peer = Some(b_uid);
        self.link_mut(b_id)?.peer = Some(a_uid);
        if a.netns != b.netns {
            self.nsid(a.netns, b.netns);
            self.nsid(b.netns, a.netns);
        }
        self.link_mut(a_id)?.observed.admin_up = a_up;
        self.emit_link(b_id);
        self.emit_link(a_id);
        Ok(Done::Created { a: a_id.ifindex, b: b_id.ifindex })
    }

    fn add_end(&mut self, end: &NewLink, group: u32) -> Result<LinkId, Refusal> {
        let id = self.add_link(end.netns, end.name.as_str(), LinkKind::Veth)?;
        let link = self.link_mut(id)?;
        link.observed.mac = end.mac.or(link.observed.mac);
        link.observed.mtu = end.mtu;
        link.observed.group = group;
        link.mac_given = end.mac.is_some();
        // It never existed without this group, so this is all that it ever carried.
        link.marks.clear();
        link.remember_marks();
        Ok(id)
    }

    /// `TUNSETIFF`, the settings and marks, `TUNSETPERSIST`: what fails before the last takes the TAP away with its descriptor.
    pub(super) fn create_tap(&mut self, new: &NewTap) -> Result<Done, Refusal> {
        let (link, tap) = (&new.link, &new.tap);
        if self.living(link.netns)?.name_taken(link.name.as_str()) {
            return refuse(Errno::EBUSY);
        }
        let kind = LinkKind::Tun(TunInfo {
            tap: tap.mode == TapMode::Tap,
            owner: tap.owner,
            group: tap.group,
            multi_queue: tap.multi_queue,
            vnet_hdr: tap.vnet_hdr,
            persist: true,
            packet_info: false,
            open: false,
        });
        check_alias(&new.alias)?;
        if link.mac.is_some() && tap.mode == TapMode::Tun {
            return refuse(Errno::EOPNOTSUPP);
        }
        check_mtu(&kind, link.mtu)?;
        let id = self.add_link(link.netns, link.name.as_str(), kind)?;
        let made = self.link_mut(id)?;
        made.mac_given = link.mac.is_some();
        made.observed.mac = link.mac.or(made.observed.mac);
        made.observed.mtu = link.mtu;
        made.observed.group = new.group;
        made.observed.alias = Some(new.alias.as_str().into());
        made.observed.admin_up = new.up;
        // Without them it was nobody's for long.
        made.marks.clear();
        made.remember_marks();
        self.emit_link(id);
        Ok(Done::CreatedTap(id.ifindex))
    }

    /// `RTM_SETLINK`: the settings one after another in the kernel's order. The first that fails ends it; what came before stays done.
    pub(super) fn set_link(&mut self, id: LinkId, change: &LinkChange) -> Result<Done, Refusal> {
        self.living(id.netns)?;
        // Refused by the attribute policy, before the link is looked at.
        check_alias(change.alias.as_deref().unwrap_or_default())?;
        self.change(id)?;
        let outcome = self.set_link_in_order(id, change);
        if let Ok(link) = self.link_mut(id) {
            link.remember_marks();
        }
        self.emit_link(id);
        outcome
    }

    /// The same request with a namespace: the link is moved first, and stays moved when a setting after that is refused.
    pub(super) fn move_and_set(&mut self, id: LinkId, to: NetnsId, change: &LinkChange) -> Result<Done, Refusal> {
        check_alias(change.alias.as_deref().unwrap_or_default())?;
        let place = self.move_link(id, to, change.name.as_ref().map(|name| name.as_str()))?;
        self.counters.moves += 1;
        let outcome = self.set_link_in_order(place, change);
        self.link_mut(place)?.remember_marks();
        self.emit_link(place);
        outcome.map(|_| Done::Moved(place.ifindex))
    }

    /// The link leaves its namespace: it loses its addresses and goes down, and its name gives way to `pattern` only where it is taken.
    pub(super) fn move_link(&mut self, link: LinkId, to: NetnsId, pattern: Option<&str>) -> Result<LinkId, Refusal> {
        let moving = self.change(link)?.observed.clone();
        if &*moving.name == "lo" {
            return Err(Refusal(Errno::EINVAL, "The interface netns is immutable"));
        }
        let target = self.living(to)?;
        let default = target.settings.ipv6_disabled;
        if to == link.netns {
            return Ok(link);
        }
        let name = if target.name_taken(&moving.name) { pattern } else { Some(&*moving.name) };
        let Some(name) = name.filter(|name| !target.name_taken(name)) else {
            return Err(Refusal(Errno::EEXIST, "an interface with the same name exists in the target netns"));
        };
        if moving.altnames.iter().any(|altname| target.name_taken(altname)) {
            return Err(Refusal(Errno::EEXIST, "an interface with the altname exists in the target netns"));
        }
        let peer = self.peer_of(link);
        let moved = &mut self.link_mut(link)?.observed;
        (moved.admin_up, moved.name) = (false, name.into());
        self.drop_addresses(link);
        let place = self.relocate(link, to)?;
        self.link_mut(place)?.observed.ipv6_disabled = default;
        self.emit(LinkEvent::LinkGone(link));
        self.emit_link(place);
        if let Some(peer) = peer {
            self.emit_link(peer);
        }
        Ok(place)
    }

    fn set_link_in_order(&mut self, id: LinkId, change: &LinkChange) -> Result<Done, Refusal> {
        if let Some(mac) = change.mac {
            // Addresses stay as they are, the kernel's link-local of the old one too.
            let link = self.link_mut(id)?;
            if is_tun(&link.observed.kind) == Some(true) {
                return refuse(Errno::EOPNOTSUPP);
            }
            link.observed.mac = Some(mac);
            link.mac_given = true;
        }
        if let Some(mtu) = change.mtu {
            self.set_mtu(id, mtu)?;
        }
        if let Some(group) = change.group {
            self.link_mut(id)?.observed.group = group;
        }
        if let Some(name) = &change.name {
            self.set_name(id, name.as_str())?;
        }
        if let Some(alias) = &change.alias {
            self.link_mut(id)?.observed.alias = Some(alias.as_str()).filter(|a| !a.is_empty()).map(Into::into);
        }
        if let Some(up) = change.up {
            self.set_up(id, up)?;
        }
        Ok(Done::Ok)
    }

    fn set_name(&mut self, id: LinkId, name: &str) -> Result<(), Refusal> {
        if *self.link_mut(id)?.observed.name == *name {
            return Ok(());
        }
        // Its own alternative names count as taken, too.
        if self.living(id.netns)?.name_taken(name) {
            return refuse(Errno::EEXIST);
        }
        self.link_mut(id)?.observed.name = name.into();
        Ok(())
    }

    fn set_mtu(&mut self, id: LinkId, mtu: u32) -> Result<(), Refusal> {
        let default = self.living(id.netns)?.settings.ipv6_disabled;
        let link = self.link_mut(id)?;
        check_mtu(&link.observed.kind, mtu)?;
        let had_ipv6 = link.has_ipv6();
        link.observed.mtu = mtu;
        match (had_ipv6, link.has_ipv6()) {
            (true, false) => self.drop_ipv6(id),
            (false, true) => {
                // IPv6 is set up anew on the link: what was switched on for it before is forgotten.
                link.observed.ipv6_disabled = default;
                self.make_link_local(id);
            }
            _ => {}
        }
        Ok(())
    }

    fn set_up(&mut self, id: LinkId, up: bool) -> Result<(), Refusal> {
        let link = self.link_mut(id)?;
        if std::mem::replace(&mut link.observed.admin_up, up) == up {
            return Ok(());
        }
        if up {
            self.make_link_local(id);
        } else {
            self.drop_ipv6(id);
        }
        if let Some(peer) = self.peer_of(id) {
            // The peer has gained or lost its carrier.
            self.make_link_local(peer);
            self.emit_link(peer);
        }
        Ok(())
    }

    /// Writes `disable_ipv6 = 0` into the folder of this *name*: whoever bears it is changed.
    pub(super) fn enable_ipv6(&mut self, netns: NetnsId, name: &str) -> Result<Done, Refusal> {
        let home = self.living(netns)?;
        let found = home.links.values().find(|link| *link.observed.name == *name && link.has_ipv6()).map(|link| link.observed.ifindex);
        let Some(ifindex) = found else { return refuse(Errno::ENOENT) };
        if home.settings.proc_sys_readonly {
            return refuse(Errno::EROFS);
        }
        let id = LinkId { netns, ifindex };
        if std::mem::replace(&mut self.change(id)?.observed.ipv6_disabled, false) {
            self.make_link_local(id);
            self.emit_link(id);
        }
        Ok(Done::Ok)
    }

    /// Marks the link as doomed and hands it to the reaper.
    pub(super) fn delete_link(&mut self, id: LinkId, doomed_group: u32, expected: &ExpectedMark) -> Result<Done, Refusal> {
        self.living(id.netns)?;
        let Ok(link) = self.link_mut(id) else { return Ok(Done::AlreadySo) };
        let same_alias = expected.alias.is_some() && link.observed.alias == expected.alias;
        if link.observed.group != expected.group && !same_alias {
            return refuse(Errno::ESTALE);
        }
        if &*link.observed.name == "lo" {
            return refuse(Errno::EOPNOTSUPP);
        }
        let link = self.change(id)?;
        if link.made_outside && is_tun(&link.observed.kind).is_some() {
            let misuse = format!("the TAP `{}` of someone else was deleted", link.observed.name);
            self.misuses.push(misuse);
            return refuse(Errno::EPERM);
        }
        link.observed.group = doomed_group;
        link.remember_marks();
        let doomed = Doomed { id, uid: link.uid, group: doomed_group };
        self.emit_link(id);
        if !self.doomed.contains(&doomed) {
            self.doomed.push(doomed);
        }
        if self.reap_at_once {
            self.reap();
        }
        Ok(Done::Ok)
    }

    /// Removes what waits for the reaper, with the other ends, as far as it is still the same link in the doomed group. Returns how many.
    pub(super) fn reap(&mut self) -> usize {
        let mut reaped = 0;
        for Doomed { id, uid, group } in std::mem::take(&mut self.doomed) {
            if !self.link(id).is_some_and(|link| link.uid == uid && link.observed.group == group) {
                continue;
            }
            match self.faults.due(OpKind::Reap).map(super::faults::FaultMode::errno) {
                Some(errno) => {
                    let attempted = format!("delete link {} in namespace {}", id.ifindex, id.netns);
                    let error = KernelError { errno: errno as i32, text: String::new(), attempted };
                    self.tell(LinkEvent::ReapFailed(id, error));
                }
                None => {
                    self.destroy(id);
                    reaped += 1;
                }
            }
        }
        reaped
    }

    /// The link is no more, nor is its other end.
    pub(super) fn destroy(&mut self, id: LinkId) {
        let peer = self.peer_of(id);
        for id in [Some(id), peer].into_iter().flatten() {
            let Some(link) = self.netns.get_mut(&id.netns).and_then(|netns| netns.links.remove(&id.ifindex)) else { continue };
            self.places.remove(&link.uid);
            self.bury(id, link);
            self.emit(LinkEvent::LinkGone(id));
        }
    }

    /// A namespace ends, with everything in it and with the other ends elsewhere.
    pub(super) fn kill_netns(&mut self, netns: NetnsId) -> Result<(), Refusal> {
        let inside: Vec<_> = self.living(netns)?.links.keys().map(|ifindex| LinkId { netns, ifindex: *ifindex }).collect();
        for id in inside {
            self.destroy(id);
        }
        self.living(netns)?.alive = false;
        self.emit(LinkEvent::NetnsGone(netns));
        Ok(())
    }
}
