//! Someone else: a user with `ip`, a container that ends, a monitor that loses events.
//!
//! Every act obeys the same rules as the agent's requests and is told to the listener in the same way.

use nix::errno::Errno;

use super::FakeWorld;
use super::state::{NetnsSettings, Refusal, State};
use crate::linux::{KernelError, LinkChange, LinkEvent, NewAddress, NewLink};
use crate::model::interface::MTU_DEFAULT;
use crate::model::{HostIfName, InterfaceAddress, LinkId, LinkKind, MacAddr, NetnsId, TunInfo};

/// A name for the kernel, or its refusal.
fn name(text: &str) -> Result<HostIfName, Refusal> {
    HostIfName::new(text).map_err(|_| Refusal(Errno::EINVAL, ""))
}

/// Acts of someone else. They fail with the kernel's errno where the kernel refuses.
impl FakeWorld {
    fn outside<T>(&self, attempted: &str, act: impl FnOnce(&mut State) -> Result<T, Refusal>) -> Result<T, KernelError> {
        self.with(|state| {
            state.outsider = true;
            let outcome = act(state);
            state.outsider = false;
            outcome.map_err(|refusal| super::error(refusal, format!("someone else: {attempted}")))
        })
    }

    /// Makes a namespace with its `lo`.
    #[must_use]
    pub fn add_netns(&self, settings: NetnsSettings) -> NetnsId {
        self.with(|state| state.add_netns(settings))
    }

    /// Changes the settings of a namespace, for links that are made later (`ipv6_disabled`) or at once (all others).
    ///
    /// # Errors
    /// `ENOENT` when it is dead.
    pub fn set_settings(&self, netns: NetnsId, settings: NetnsSettings) -> Result<(), KernelError> {
        self.outside("set sysctls", |state| {
            state.living(netns)?.settings = settings;
            Ok(())
        })
    }

    /// Ends a namespace with all its links, and their other ends.
    ///
    /// # Errors
    /// `ENOENT` when it is dead already.
    pub fn kill_netns(&self, netns: NetnsId) -> Result<(), KernelError> {
        self.outside("end namespace", |state| state.kill_netns(netns))
    }

    /// The next link of this namespace gets the first free index after this one.
    pub fn set_last_index(&self, netns: NetnsId, index: u32) {
        self.with(|state| state.set_last_index(netns, index));
    }

    /// Makes a link that is no veth.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EINVAL` for a bad name.
    pub fn add_link(&self, netns: NetnsId, kind: LinkKind, link: &str) -> Result<LinkId, KernelError> {
        self.outside("add link", |state| {
            let id = state.add_link(netns, name(link)?.as_str(), kind)?;
            state.emit_link(id);
            Ok(id)
        })
    }

    /// Makes a veth pair, both ends down.
    ///
    /// # Errors
    /// As [`FakeWorld::add_link`].
    pub fn add_veth(&self, a: (NetnsId, &str), b: (NetnsId, &str)) -> Result<(LinkId, LinkId), KernelError> {
        self.outside("add veth", |state| {
            let end = |(netns, link)| Ok(NewLink { netns, name: name(link)?, mac: None, mtu: MTU_DEFAULT });
            let (a, b) = (end(a)?, end(b)?);
            match state.create_veth(&a, &b, 0, false)? {
                crate::linux::Done::Created { a: first, b: second } => {
                    Ok((LinkId { netns: a.netns, ifindex: first }, LinkId { netns: b.netns, ifindex: second }))
                }
                _ => Err(Refusal(Errno::EINVAL, "")),
            }
        })
    }

    /// Removes a link, and its other end.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`.
    pub fn delete_link(&self, link: LinkId) -> Result<(), KernelError> {
        self.outside("delete link", |state| {
            state.link_mut(link)?;
            state.destroy(link);
            Ok(())
        })
    }

    /// Changes a link, in the kernel's order.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn set_link(&self, link: LinkId, change: &LinkChange) -> Result<(), KernelError> {
        self.outside("set link", |state| state.set_link(link, change).map(drop))
    }

    /// Sets a link up or down.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`.
    pub fn set_up(&self, link: LinkId, up: bool) -> Result<(), KernelError> {
        self.set_link(link, &LinkChange { up: Some(up), ..LinkChange::default() })
    }

    /// Renames a link.
    ///
    /// # Errors
    /// `EEXIST`, `EINVAL`, `ENODEV`, `ENOENT`.
    pub fn rename(&self, link: LinkId, to: &str) -> Result<(), KernelError> {
        let to = self.outside("rename link", |_| name(to))?;
        self.set_link(link, &LinkChange { name: Some(to), ..LinkChange::default() })
    }

    /// Sets the MTU.
    ///
    /// # Errors
    /// `EINVAL`, `ENODEV`, `ENOENT`.
    pub fn set_mtu(&self, link: LinkId, mtu: u32) -> Result<(), KernelError> {
        self.set_link(link, &LinkChange { mtu: Some(mtu), ..LinkChange::default() })
    }

    /// Sets the hardware address.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`.
    pub fn set_mac(&self, link: LinkId, mac: MacAddr) -> Result<(), KernelError> {
        self.set_link(link, &LinkChange { mac: Some(mac), ..LinkChange::default() })
    }

    /// Sets the alias; an empty one removes it.
    ///
    /// # Errors
    /// `ERANGE`, `ENODEV`, `ENOENT`.
    pub fn set_alias(&self, link: LinkId, alias: &str) -> Result<(), KernelError> {
        self.set_link(link, &LinkChange { alias: Some(alias.to_owned()), ..LinkChange::default() })
    }

    /// A program opens a TAP, closes it, or changes what it was made with.
    ///
    /// # Errors
    /// `EINVAL` for what is no TUN/TAP, `ENODEV`, `ENOENT`.
    pub fn set_tun(&self, link: LinkId, change: impl FnOnce(&mut TunInfo)) -> Result<(), KernelError> {
        self.outside("change a TAP", |state| {
            let LinkKind::Tun(info) = &mut state.change(link)?.observed.kind else { return Err(Refusal(Errno::EINVAL, "")) };
            change(info);
            state.emit_link(link);
            Ok(())
        })
    }

    /// Gives a link one more name.
    ///
    /// # Errors
    /// `EEXIST` (the link's own name included), `ENODEV`, `ENOENT`.
    pub fn add_altname(&self, link: LinkId, alternative: &str) -> Result<(), KernelError> {
        self.outside("add altname", |state| {
            if state.living(link.netns)?.name_taken(alternative) {
                return Err(Refusal(Errno::EEXIST, ""));
            }
            state.change(link)?.observed.altnames.push(alternative.into());
            state.emit_link(link);
            Ok(())
        })
    }

    /// Switches IPv6 off on a link (its addresses go) or on.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`.
    pub fn set_ipv6_disabled(&self, link: LinkId, disabled: bool) -> Result<(), KernelError> {
        self.outside("set disable_ipv6", |state| {
            state.change(link)?.observed.ipv6_disabled = disabled;
            if disabled {
                state.drop_ipv6(link);
            } else {
                state.make_link_local(link);
            }
            state.emit_link(link);
            Ok(())
        })
    }

    /// Adds an address (IPv6 without duplicate address detection).
    ///
    /// # Errors
    /// As the kernel's.
    pub fn add_address(&self, link: LinkId, address: InterfaceAddress, proto: u8) -> Result<(), KernelError> {
        let new = NewAddress { address, proto, nodad: true, restore: None };
        self.outside("add address", |state| state.add_address(link, &new).map(drop))
    }

    /// Removes an address, with its secondaries.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`; an address that is not there is no error.
    pub fn remove_address(&self, link: LinkId, address: InterfaceAddress) -> Result<(), KernelError> {
        self.outside("remove address", |state| state.remove_address(link, address).map(drop))
    }

    /// Moves a link to another namespace: it loses its addresses and goes down; name, alias, group and hardware address stay, its index
    /// where it is free there.
    ///
    /// # Errors
    /// `EEXIST` when one of its names is taken there, `EINVAL` for `lo`, `ENODEV`, `ENOENT`.
    pub fn move_link(&self, link: LinkId, to: NetnsId) -> Result<LinkId, KernelError> {
        self.outside("move link", |state| state.move_link(link, to, None))
    }

    /// Ends duplicate address detection in a namespace: every tentative address on a link with carrier can be used.
    pub fn end_dad(&self, netns: NetnsId) {
        self.finish_dad(netns, false);
    }

    /// Ends duplicate address detection in a namespace: every tentative address on a link with carrier turns out to be someone else's.
    pub fn fail_dad(&self, netns: NetnsId) {
        self.finish_dad(netns, true);
    }

    fn finish_dad(&self, netns: NetnsId, failed: bool) {
        self.with(|state| {
            let ids: Vec<LinkId> = state.places.values().copied().filter(|id| id.netns == netns).collect();
            for id in ids.into_iter().filter(|id| state.carrier(*id)).collect::<Vec<_>>() {
                let Ok(link) = state.link_mut(id) else { continue };
                if !link.observed.admin_up {
                    continue;
                }
                let mut ended = Vec::new();
                for address in link.observed.addresses.iter_mut().filter(|a| a.tentative && !a.dad_failed) {
                    address.tentative = failed;
                    address.dad_failed = failed;
                    ended.push(address.clone());
                }
                for address in ended {
                    state.emit(LinkEvent::Address(id, address));
                }
            }
        });
    }

    /// Loses all of the kernel's events from now on, silently (or no longer); the reaper's failures are still told.
    pub fn mute(&self, muted: bool) {
        self.with(|state| state.muted = muted);
    }

    /// Tells the listener that events were lost in a namespace, or in all.
    pub fn tell_lost(&self, netns: Option<NetnsId>) {
        self.with(|state| state.tell(LinkEvent::Lost(netns)));
    }

    /// Lets the reaper delete every link that waits for it, with the other ends. Returns how many of those that waited are gone.
    pub fn reap(&self) -> usize {
        self.with(State::reap)
    }

    /// Whether the reaper works at once instead of waiting for [`FakeWorld::reap`].
    pub fn reap_at_once(&self, at_once: bool) {
        self.with(|state| state.reap_at_once = at_once);
    }
}
