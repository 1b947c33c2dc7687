//! What the kernel shows, as plain values.

use std::fmt;
use std::num::NonZeroU32;

use crate::model::{InterfaceAddress, MacAddr, NetnsId};

/// Index of a link within its namespace; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IfIndex(NonZeroU32);

impl IfIndex {
    /// Wraps an index; zero is none.
    #[must_use]
    pub fn new(index: u32) -> Option<Self> {
        NonZeroU32::new(index).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for IfIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A link's identity while its namespace lives. Names only refer to links.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId {
    /// Its namespace.
    pub netns: NetnsId,
    /// Its index there.
    pub ifindex: IfIndex,
}

/// Kind of a link (`IFLA_INFO_KIND`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkKind {
    /// An end of a veth pair.
    Veth,
    /// A TUN or TAP.
    Tun(TunInfo),
    /// Anything else, by the kernel's word; empty for physical devices and `lo`.
    Other(Box<str>),
}

impl LinkKind {
    /// The word for messages.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Veth => "veth",
            Self::Tun(_) => "tun",
            Self::Other(word) if word.is_empty() => "device",
            Self::Other(word) => word,
        }
    }
}

/// What the kernel tells of a TUN/TAP (`IFLA_TUN_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TunInfo {
    /// True for a TAP, false for a TUN.
    pub tap: bool,
    /// Uid of its owner.
    pub owner: Option<u32>,
    /// Gid of its owner.
    pub group: Option<u32>,
    /// Several queues.
    pub multi_queue: bool,
    /// virtio-net header.
    pub vnet_hdr: bool,
    /// Survives its last open file.
    pub persist: bool,
    /// Packets are preceded by packet information (no `IFF_NO_PI`). This and the virtio-net header are chosen anew by whoever opens it.
    pub packet_info: bool,
    /// A program has it open, as far as the kernel tells: it has carrier, or a queue.
    pub open: bool,
}

/// The other end of a veth, as seen from this one (`IFLA_LINK`, `IFLA_LINK_NETNSID`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerLink {
    /// Its index in its own namespace.
    pub ifindex: IfIndex,
    /// The id of its namespace as seen from this link's one; `None` when it is the same namespace. Ids of different namespaces cannot be compared.
    pub nsid: Option<i32>,
    /// Its namespace, where it is another one and known to us.
    pub netns: Option<NetnsId>,
}

/// Operational state (RFC 2863, `IFLA_OPERSTATE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperState {
    /// The driver does not say.
    Unknown,
    /// Ready to pass packets.
    Up,
    /// Not ready.
    Down,
    /// The other end or the lower layer is down.
    LowerLayerDown,
    /// Any of the rarer states.
    Other,
}

impl OperState {
    /// The word in the status.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Up => "UP",
            Self::Down => "DOWN",
            Self::LowerLayerDown => "LOWER_LAYER_DOWN",
            Self::Other => "OTHER",
        }
    }
}

/// An address on a link. `scope`, `broadcast` and `label` are kept only to put the address back as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedAddress {
    /// The address (`IFA_LOCAL` where there is one, else `IFA_ADDRESS`).
    pub address: InterfaceAddress,
    /// Who added it (`IFA_PROTO`); 0 when nobody said.
    pub proto: u8,
    /// `IFA_F_SECONDARY` (IPv4): goes when the first address of its subnet goes.
    pub secondary: bool,
    /// Duplicate address detection has not ended; the address cannot be used yet.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub dad_failed: bool,
    /// Made by the kernel itself: a link-local address of IPv6 autoconfiguration.
    pub kernel_made: bool,
    /// `rt_scope` of the address.
    pub scope: u8,
    /// Broadcast address (IPv4).
    pub broadcast: Option<std::net::Ipv4Addr>,
    /// Address label (IPv4), when it is not the link's name.
    pub label: Option<Box<str>>,
}

/// A link with its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedLink {
    /// Its index.
    pub ifindex: IfIndex,
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: Box<str>,
    /// Its alternative names: they occupy names just as well.
    pub altnames: Vec<Box<str>>,
    /// Its kind.
    pub kind: LinkKind,
    /// Its hardware address; `None` where it has none of six bytes.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// `IFF_UP`.
    pub admin_up: bool,
    /// Whether packets pass.
    pub oper: OperState,
    /// `IFLA_GROUP`.
    pub group: u32,
    /// `IFLA_IFALIAS`.
    pub alias: Option<Box<str>>,
    /// The other end, for a veth.
    pub peer: Option<PeerLink>,
    /// IPv6 is switched off on this link (`disable_ipv6`).
    pub ipv6_disabled: bool,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<ObservedAddress>,
}

impl ObservedLink {
    /// A link of this index, name and kind with nothing else set: down, MTU 1500, group 0.
    #[must_use]
    pub fn bare(ifindex: IfIndex, name: &str, kind: LinkKind) -> Self {
        Self {
            ifindex,
            name: name.into(),
            altnames: Vec::new(),
            kind,
            mac: None,
            mtu: 1500,
            admin_up: false,
            oper: OperState::Down,
            group: 0,
            alias: None,
            peer: None,
            ipv6_disabled: false,
            addresses: Vec::new(),
        }
    }

    /// Whether it passes no packets for want of a carrier.
    #[must_use]
    pub fn lacks_carrier(&self) -> bool {
        matches!(self.oper, OperState::Down | OperState::LowerLayerDown)
    }

    /// Whether the link answers to this name, by its own or an alternative one.
    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        &*self.name == name || self.altnames.iter().any(|alt| &**alt == name)
    }
}
