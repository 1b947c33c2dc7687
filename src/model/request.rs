//! What may be asked of a link, as values: the planner writes them, the kernel part carries them out.

use crate::model::{HostIfName, InterfaceAddress, MacAddr, NetnsId, TapSpec};

/// A link to be made, complete from its first moment: an end of a veth pair or a TAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLink {
    /// The namespace it is born in.
    pub netns: NetnsId,
    /// Its name.
    pub name: HostIfName,
    /// Its hardware address; `None` lets the kernel choose.
    pub mac: Option<MacAddr>,
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// A TAP to be made: persistent, and marked before it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTap {
    /// Where, under which name, with which hardware address and MTU.
    pub link: NewLink,
    /// What only a TAP has.
    pub tap: TapSpec,
    /// Its link group.
    pub group: u32,
    /// Its alias.
    pub alias: String,
    /// Whether it is up.
    pub up: bool,
}

/// Changes of one link, all in one request. `None` leaves a setting alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// New name.
    pub name: Option<HostIfName>,
    /// New hardware address.
    pub mac: Option<MacAddr>,
    /// New MTU in bytes.
    pub mtu: Option<u32>,
    /// Up or down.
    pub up: Option<bool>,
    /// New link group.
    pub group: Option<u32>,
    /// New alias.
    pub alias: Option<String>,
}

/// An address to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAddress {
    /// The address.
    pub address: InterfaceAddress,
    /// `IFA_PROTO`.
    pub proto: u8,
    /// Skip duplicate address detection (IPv6).
    pub nodad: bool,
    /// Scope, broadcast and label of an address that is put back as it was; `None` for the kernel's defaults.
    pub restore: Option<RestoredAddress>,
}

/// Attributes of an IPv4 address that is put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredAddress {
    /// Its scope.
    pub scope: u8,
    /// Its broadcast address.
    pub broadcast: Option<std::net::Ipv4Addr>,
    /// Its label.
    pub label: Option<Box<str>>,
}

/// The mark that proves, right before a deletion, that the link is still ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedMark {
    /// Its group.
    pub group: u32,
    /// Its alias.
    pub alias: Option<Box<str>>,
}
