//! Rules of addresses: secondaries, families that come and go with the link, duplicate address detection.
//!
//! Measured on Linux 6.18. An IPv6 address that is there with another prefix length is refused (`EEXIST`, as with `NLM_F_EXCL`); a request with
//! `NLM_F_REPLACE` the kernel would acknowledge without changing the length.

use std::net::{IpAddr, Ipv6Addr};

use nix::errno::Errno;

use super::state::{Link, Refusal, State, refuse};
use crate::linux::{Done, LinkEvent, NewAddress};
use crate::model::{InterfaceAddress, LinkId, LinkKind, ObservedAddress};

/// `IFA_PROTO` of the kernel's own link-locals.
const PROTO_KERNEL_LINK_LOCAL: u8 = 3;
const SCOPE_SITE: u8 = 200;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;

impl State {
    /// `RTM_NEWADDR`: adds, or renews the attributes of the one that is there.
    pub(super) fn add_address(&mut self, id: LinkId, new: &NewAddress) -> Result<Done, Refusal> {
        let link = self.link_mut(id)?;
        if new.address.is_ipv6() {
            check_ipv6(link, new.address)?;
        }
        let there = |a: &&mut ObservedAddress| a.address == new.address;
        if let Some(same) = link.observed.addresses.iter_mut().find(there) {
            same.proto = new.proto;
        } else {
            let address = arrange(link, new)?;
            insert(&mut link.observed.addresses, address);
        }
        let now = link.observed.addresses.iter().find(|a| a.address == new.address).cloned();
        self.change(id)?;
        if let Some(now) = now {
            self.emit(LinkEvent::Address(id, now));
        }
        Ok(Done::Ok)
    }

    /// `RTM_DELADDR`. With the first IPv4 address of a subnet its secondaries go too, unless the first of them is promoted.
    pub(super) fn remove_address(&mut self, id: LinkId, address: InterfaceAddress) -> Result<Done, Refusal> {
        let promote = self.living(id.netns)?.settings.promote_secondaries;
        let addresses = &mut self.link_mut(id)?.observed.addresses;
        let Some(at) = addresses.iter().position(|a| a.address == address) else { return Ok(Done::AlreadySo) };
        let removed = addresses.remove(at);
        let mut gone = Vec::new();
        let follows = |a: &ObservedAddress| a.secondary && a.address.same_subnet(address);
        if !address.is_ipv6() && !removed.secondary {
            if !promote {
                gone.extend(addresses.extract_if(.., |a| follows(a)));
            } else if let Some(heir) = addresses.iter().position(follows) {
                let mut heir = addresses.remove(heir);
                heir.secondary = false;
                insert(addresses, heir);
            }
        }
        gone.push(removed);
        self.change(id)?;
        self.tell_gone(id, gone);
        Ok(Done::Ok)
    }

    /// Takes all IPv6 addresses away, as the kernel does when the link goes down, loses IPv6, or moves.
    pub(super) fn drop_ipv6(&mut self, id: LinkId) {
        let Ok(link) = self.link_mut(id) else { return };
        link.ipv6_ready = false;
        let gone = link.observed.addresses.extract_if(.., |a| a.address.is_ipv6()).collect();
        self.tell_gone(id, gone);
    }

    /// Takes all addresses away: the link leaves its namespace.
    pub(super) fn drop_addresses(&mut self, id: LinkId) {
        let Ok(link) = self.link_mut(id) else { return };
        link.ipv6_ready = false;
        let gone = std::mem::take(&mut link.observed.addresses);
        self.tell_gone(id, gone);
    }

    fn tell_gone(&mut self, id: LinkId, gone: Vec<ObservedAddress>) {
        for address in gone {
            self.emit(LinkEvent::AddressGone(id, address.address));
        }
    }

    /// The link has become ready (up, with carrier and IPv6): the kernel makes its link-local, from the hardware address of this moment.
    pub(super) fn make_link_local(&mut self, id: LinkId) {
        if !self.carrier(id) {
            return;
        }
        let tentative = self.netns.get(&id.netns).is_some_and(|netns| netns.settings.link_local_dad);
        let Ok(link) = self.link_mut(id) else { return };
        let ready = link.observed.admin_up && link.has_ipv6() && !link.observed.ipv6_disabled && link.observed.kind == LinkKind::Veth;
        if !ready || std::mem::replace(&mut link.ipv6_ready, true) {
            return;
        }
        let Some(address) = link.observed.mac.and_then(|mac| link_local(mac.octets())) else { return };
        if link.observed.addresses.iter().any(|a| a.address.ip() == address.ip()) {
            return;
        }
        let made = ObservedAddress { tentative, kernel_made: true, scope: SCOPE_LINK, ..plain(address, PROTO_KERNEL_LINK_LOCAL) };
        insert(&mut link.observed.addresses, made.clone());
        self.emit(LinkEvent::Address(id, made));
    }
}

/// What the kernel refuses of an IPv6 address before it looks at the others.
fn check_ipv6(link: &Link, address: InterfaceAddress) -> Result<(), Refusal> {
    if !link.has_ipv6() {
        return refuse(Errno::EINVAL);
    }
    if link.observed.ipv6_disabled {
        return Err(Refusal(Errno::EACCES, "ipv6: IPv6 is disabled on this device"));
    }
    if address.ip().is_multicast() || address.ip().is_unspecified() || (address.ip().is_loopback() && &*link.observed.name != "lo") {
        return Err(Refusal(Errno::EADDRNOTAVAIL, "ipv6: Cannot assign requested address"));
    }
    let other_length = |a: &ObservedAddress| a.address.ip() == address.ip() && a.address != address;
    if link.observed.addresses.iter().any(other_length) {
        return Err(Refusal(Errno::EEXIST, "ipv6: address already assigned"));
    }
    Ok(())
}

/// The new address as it will stand on the link.
fn arrange(link: &Link, new: &NewAddress) -> Result<ObservedAddress, Refusal> {
    let mut address = plain(new.address, new.proto);
    address.tentative = new.address.is_ipv6() && !new.nodad;
    address.scope = natural_scope(new.address.ip());
    if let Some(restore) = new.restore.as_ref().filter(|_| !new.address.is_ipv6()) {
        address.scope = restore.scope;
        address.broadcast = restore.broadcast;
        address.label = restore.label.clone().filter(|label| **label != *link.observed.name);
    }
    if !new.address.is_ipv6() {
        let same_subnet = |a: &&ObservedAddress| a.address.same_subnet(new.address);
        if link.observed.addresses.iter().filter(same_subnet).any(|a| a.scope != address.scope) {
            return Err(Refusal(Errno::EINVAL, "ipv4: Invalid scope value"));
        }
        address.secondary = link.observed.addresses.iter().any(|a| same_subnet(&a));
    }
    Ok(address)
}

/// In the kernel's order: IPv4 primaries by scope, then the secondaries, then IPv6 by scope with the newest first.
fn insert(addresses: &mut Vec<ObservedAddress>, new: ObservedAddress) {
    let rank = |a: &ObservedAddress| (a.address.is_ipv6(), a.secondary, if a.secondary { 0 } else { a.scope });
    let before = |a: &ObservedAddress| if new.address.is_ipv6() { rank(a) < rank(&new) } else { rank(a) <= rank(&new) };
    let at = addresses.iter().position(|a| !before(a)).unwrap_or(addresses.len());
    addresses.insert(at, new);
}

/// An address with nothing else to say.
fn plain(address: InterfaceAddress, proto: u8) -> ObservedAddress {
    ObservedAddress {
        address,
        proto,
        secondary: false,
        tentative: false,
        dad_failed: false,
        kernel_made: false,
        scope: 0,
        broadcast: None,
        label: None,
    }
}

/// The scope that the kernel reads from an IPv6 address; an IPv4 one gets what the request says, global if nothing.
fn natural_scope(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if ip.is_loopback() => SCOPE_HOST,
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80 => SCOPE_LINK,
        IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfec0 => SCOPE_SITE,
        IpAddr::V6(_) => 0,
    }
}

/// The link-local of a hardware address (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Option<InterfaceAddress> {
    let ip = Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    InterfaceAddress::new(ip.into(), 64)
}
