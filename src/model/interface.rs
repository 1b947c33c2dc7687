//! The wish for one interface, after validation: an illegal one cannot exist.

use crate::model::{HostIfName, InterfaceAddress, InterfaceName, MacAddr, NetnsRef};

/// Smallest MTU that the kernel takes for an Ethernet link.
pub const MTU_MIN: u32 = 68;
/// Smallest MTU of a link with IPv6 (RFC 8200, section 5).
pub const MTU_MIN_IPV6: u32 = 1280;
/// Largest MTU of a veth or TUN.
pub const MTU_MAX: u32 = 65535;
/// Largest MTU of a TAP: its frames have a header of 14 bytes.
pub const MTU_MAX_TAP: u32 = MTU_MAX - 14;
/// The MTU that the kernel gives to a new veth or TAP; meant by "not set".
pub const MTU_DEFAULT: u32 = 1500;

/// What a user wants of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSpec {
    /// Logical name, unique per agent.
    pub name: InterfaceName,
    /// Name of the link in its namespace.
    pub host_if_name: HostIfName,
    /// Where the link lives.
    pub netns: NetnsRef,
    /// Whether it is up.
    pub enabled: bool,
    /// Its addresses in the order of the wish, each once.
    pub addresses: Vec<InterfaceAddress>,
    /// Its hardware address; `None` leaves the one it has.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes, 68 to 65535; the kernel's default where the wish says 0.
    pub mtu: u32,
    /// What kind of link it is.
    pub kind: InterfaceKind,
}

/// The kind of link, with what only that kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// One end of a veth pair.
    Veth {
        /// Logical name of the other end; never this interface itself.
        peer: InterfaceName,
    },
    /// A TAP that someone else makes and that is moved to its namespace.
    AutoTap {
        /// The name under which it appears in the agent's own namespace.
        temporary: HostIfName,
    },
    /// A TUN or TAP that we make inside its namespace.
    Tap(TapSpec),
}

impl InterfaceKind {
    /// The word used in messages: `veth`, `autotap`, `tap`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Veth { .. } => "veth",
            Self::AutoTap { .. } => "autotap",
            Self::Tap(_) => "tap",
        }
    }
}

/// Layer of a TUN/TAP device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapMode {
    /// Ethernet frames.
    Tap,
    /// IP packets.
    Tun,
}

/// Settings of a TUN/TAP that we make; it is persistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapSpec {
    /// Its layer.
    pub mode: TapMode,
    /// Uid that may open it; `None` is nobody's.
    pub owner: Option<u32>,
    /// Gid that may open it; `None` is nobody's.
    pub group: Option<u32>,
    /// Whether several queues may be attached.
    pub multi_queue: bool,
    /// Whether frames carry a virtio-net header.
    pub vnet_hdr: bool,
}

impl InterfaceSpec {
    /// The logical name of the other end, if this is an end of a veth pair.
    #[must_use]
    pub fn peer(&self) -> Option<&InterfaceName> {
        match &self.kind {
            InterfaceKind::Veth { peer } => Some(peer),
            InterfaceKind::AutoTap { .. } | InterfaceKind::Tap(_) => None,
        }
    }

    /// Whether any address is an IPv6 one.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(|a| a.is_ipv6())
    }
}
