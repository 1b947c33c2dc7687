//! The kernel side of a host's NIC: read its whole configuration, put it onto another link, take it off, rename.
//!
//! Attributes that we do not understand are carried along as the kernel wrote them. Whatever is put somewhere is put there beside what already
//! stands elsewhere; only [`NicKernel::strip`] takes anything away. Calls block, so they belong on a thread of their own.

mod guard;
mod links;
mod listeners;
mod managers;
mod order;
mod read;
mod rename;
mod sysctl;
mod watch;
mod write;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

pub use managers::Caretakers;
pub use rename::Renaming;
pub use watch::RouteWatch;

use crate::linux::KernelError;
use crate::linux::counters::Counters;
use crate::linux::socket::{Failure, RouteSocket};
use crate::model::nic::{Difference, NicAddress, NicConfig, NicLink, NicRoute, difference};
use crate::model::{IfIndex, MacAddr};
use crate::namespace::NetnsHandle;

/// The NICs of one namespace, the agent's own.
pub struct NicKernel {
    netns: NetnsHandle,
    counters: Arc<Counters>,
    socket: Option<RouteSocket>,
}

impl NicKernel {
    /// Works on the links of this namespace. Nothing is opened yet.
    #[must_use]
    pub fn new(netns: NetnsHandle) -> Self {
        Self { netns, counters: Arc::default(), socket: None }
    }

    /// How often something was changed by netlink.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.counters.snapshot().writes
    }

    /// The socket; a new one where the last one lost an answer.
    fn socket(&mut self) -> Result<&mut RouteSocket, Failure> {
        if self.socket.as_ref().is_none_or(RouteSocket::is_broken) {
            self.socket = Some(RouteSocket::open(&self.netns, &self.counters)?);
        }
        self.socket.as_mut().ok_or_else(|| Failure::new(Errno::EBADF, "no socket"))
    }

    /// All links.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn links(&mut self) -> Result<Vec<NicLink>, KernelError> {
        self.socket().and_then(links::all).map_err(|failure| failure.attempting("read the links"))
    }

    /// The addresses of all links, by index.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn addresses(&mut self) -> Result<HashMap<u32, Vec<NicAddress>>, KernelError> {
        self.socket().and_then(read::all_addresses).map_err(|failure| failure.attempting("read the addresses of all links"))
    }

    /// Who looks after a NIC's addresses. `run` is where programs keep their state, `/run` but in tests.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn caretakers(&mut self, link: &NicLink, run: &Path) -> Result<Caretakers, KernelError> {
        let found = sysctl::inside(self, || Ok(managers::caretakers(link, run)));
        found.map_err(|failure| failure.attempting(format!("find out who looks after {}", link.name)))
    }

    /// Whether a link has left the namespace and come back, so that who listened to it does not hear it any more, and nobody else does.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn is_unheard(&mut self, link: &NicLink) -> Result<bool, KernelError> {
        listeners::is_unheard(self, link).map_err(|failure| failure.attempting(format!("find out who listens to {}", link.name)))
    }

    /// Seconds since boot, by the clock that goes on in sleep.
    #[must_use]
    pub fn uptime() -> u64 {
        read::uptime()
    }

    /// A link's whole configuration.
    ///
    /// # Errors
    /// `ENODEV` when there is no such link; else what the kernel says.
    pub fn read(&mut self, link: &NicLink) -> Result<NicConfig, KernelError> {
        read::config(self, link).map_err(|failure| failure.attempting(format!("read the configuration of {}", link.name)))
    }

    /// Those of a link's IPv4 routes that stand before routes of other links which differ from them in nothing but the way.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn leading(&mut self, config: &NicConfig) -> Result<Vec<NicRoute>, KernelError> {
        order::leading(self, config).map_err(|failure| failure.attempting(format!("read the order of the routes of {}", config.link.name)))
    }

    /// What a link lacks of a configuration. Without `labels`, IPv4 labels do not count.
    ///
    /// # Errors
    /// As [`NicKernel::read`].
    pub fn compare(&mut self, wish: &NicConfig, link: &NicLink, labels: bool) -> Result<Difference, KernelError> {
        Ok(difference(wish, &self.read(link)?, labels))
    }

    /// Puts a configuration onto a link, beside what stands elsewhere: settings, MTU, up, addresses, routes without a gateway, nexthop objects (which
    /// can only be at one place, and so move), other routes, neighbours. What is there already is left as it is.
    ///
    /// # Errors
    /// The first thing that failed; the others are done all the same.
    pub fn put(&mut self, wish: &NicConfig, link: &NicLink, labels: bool) -> Result<(), KernelError> {
        write::put(self, wish, link, labels)
    }

    /// Takes a configuration off a link: its routes first, then its addresses, secondary ones before their primaries; IPv6 is switched off there.
    ///
    /// # Errors
    /// The first thing that failed; the others are done all the same.
    pub fn strip(&mut self, link: &NicLink) -> Result<(), KernelError> {
        write::strip(self, link)
    }

    /// Removes the routes of a configuration, and nothing else of it, from a link. One that is not there is no error.
    ///
    /// # Errors
    /// The first thing that failed; the others are done all the same.
    pub fn remove_routes(&mut self, gone: &NicConfig, link: &NicLink) -> Result<(), KernelError> {
        write::remove_routes(self, gone, link)
    }

    /// Sets a link up or down.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&mut self, link: &NicLink, up: bool) -> Result<(), KernelError> {
        write::set_link(self, link, None, Some(up)).map_err(|failure| failure.attempting(format!("set {} up or down", link.name)))
    }

    /// Sets a link's MTU (bytes), and that of its IPv6, as a configuration has them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_mtu(&mut self, link: &NicLink, wish: &NicConfig) -> Result<(), KernelError> {
        let mtu = wish.link.mtu;
        let set = write::set_link(self, link, Some(mtu), None).and_then(|()| write::restrict_ipv6(self, wish, link));
        set.map_err(|failure| failure.attempting(format!("set the MTU of {} to {mtu}", link.name)))
    }

    /// Sets a link's hardware address.
    ///
    /// # Errors
    /// What the kernel says: some devices take another one only while they are down.
    pub fn set_mac(&mut self, link: &NicLink, mac: MacAddr) -> Result<(), KernelError> {
        let attempted = || format!("set the hardware address of {} to {mac}", link.name);
        write::set_mac(self, link, mac).map_err(|failure| failure.attempting(attempted()))
    }

    /// Takes a link out of the bridge or bond whose port it is.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(&mut self, link: &NicLink) -> Result<(), KernelError> {
        rename::release(self, link).map_err(|failure| failure.attempting(format!("take {} out of its bridge", link.name)))
    }

    /// Ends that a link takes everybody's frames (`IFF_PROMISC`).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end_promiscuity(&mut self, link: &NicLink) -> Result<(), KernelError> {
        rename::end_promiscuity(self, link).map_err(|failure| failure.attempting(format!("end the promiscuous mode of {}", link.name)))
    }

    /// Removes a link, for good.
    ///
    /// # Errors
    /// What the kernel says; one that is gone already is no error.
    pub fn remove_link(&mut self, link: &NicLink) -> Result<(), KernelError> {
        write::remove_link(self, link).map_err(|failure| failure.attempting(format!("remove the link {}", link.name)))
    }

    /// Renames a link, up where the kernel can, and frees its old name. See [`Renaming`].
    ///
    /// # Errors
    /// What the kernel says; the link is up again in every case, with what it had where that can be put back.
    pub fn rename(&mut self, link: &NicLink, to: &str, wish: &NicConfig) -> Result<Renaming, KernelError> {
        rename::rename(self, link, to, wish, true)
    }

    /// As [`NicKernel::rename`], as on kernels that rename only what is down.
    ///
    /// # Errors
    /// As [`NicKernel::rename`].
    pub fn rename_down(&mut self, link: &NicLink, to: &str, wish: &NicConfig) -> Result<Renaming, KernelError> {
        rename::rename(self, link, to, wish, false)
    }

    /// Whether frames that arrive on a link are kept from the host's own stack.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn is_guarded(&mut self, link: &NicLink) -> Result<bool, KernelError> {
        guard::stands(self, link)
    }

    /// Whether anything is left of what [`NicKernel::guard`] began, also where it keeps nothing any more: its link was gone for a while.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn has_guard(&mut self, link: &NicLink) -> Result<bool, KernelError> {
        guard::remains(self, link)
    }

    /// Keeps frames that arrive on a link from the host's own stack; programs that read raw frames still see them.
    ///
    /// # Errors
    /// When `nft` refuses.
    pub fn guard(&mut self, link: &NicLink) -> Result<(), KernelError> {
        guard::raise(self, link)
    }

    /// Ends what [`NicKernel::guard`] began.
    ///
    /// # Errors
    /// When `nft` refuses; a guard that is not there is no error.
    pub fn unguard(&mut self, link: &NicLink) -> Result<(), KernelError> {
        guard::lower(self, link)
    }

    fn index(link: &NicLink) -> Result<IfIndex, Failure> {
        link.index().ok_or_else(|| Failure::new(Errno::ENODEV, "no link has the index 0"))
    }
}
