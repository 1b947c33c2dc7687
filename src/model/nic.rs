//! Everything that makes up a NIC's configuration, as values that lose nothing: what we do not understand is kept as the kernel wrote it.
//!
//! The kernel side reads and writes these; the journal stores them as JSON. Interface indexes inside are those of the NIC they were read from.

/// JSON of a wrapped message: the message, and the same for people, which is not read.
macro_rules! message_json {
    ($type:ty, $make:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                (self.to_string(), &self.0).serialize(serializer)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let (text, message) = <(String, Message)>::deserialize(deserializer)?;
                $make(message).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is damaged")))
            }
        }
    };
}
use message_json;

pub mod address;
pub mod difference;
pub mod given;
mod lasting;
pub mod message;
mod nexthop;
mod replaced;
pub mod route;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use address::NicAddress;
pub use difference::{Difference, difference};
pub use given::Given;
pub use message::{Attribute, Message};
pub use nexthop::NicNexthop;
pub use route::{NicRoute, RouteSlot};

use crate::model::{IfIndex, InterfaceAddress, MacAddr};

const IFF_PROMISC: u32 = 0x100;

/// A link as far as it matters to whether and how it can stand behind a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicLink {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Its kind as the kernel calls it; empty for physical devices and `lo`.
    pub kind: String,
    /// Its hardware address, `aa:bb:cc:dd:ee:ff`; empty where it has none of six bytes.
    pub mac: String,
    /// The hardware address that the device itself knows; empty where the driver does not say.
    #[serde(default)]
    pub permanent_mac: String,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Its flags (`IFF_…`).
    pub flags: u32,
    /// The link that it is a port of; 0 for none.
    #[serde(default)]
    pub master: u32,
    /// The link that it stands on (`IFLA_LINK`), in the same namespace; 0 for none.
    #[serde(default)]
    pub lower: u32,
    /// Its alternative names.
    #[serde(default)]
    pub altnames: Vec<String>,
    /// Its group.
    #[serde(default)]
    pub group: u32,
    /// Its alias; empty where it has none.
    #[serde(default)]
    pub alias: String,
}

impl NicLink {
    /// Its index as a value that cannot be zero.
    #[must_use]
    pub fn index(&self) -> Option<IfIndex> {
        IfIndex::new(self.ifindex)
    }

    /// Its hardware address as a value.
    #[must_use]
    pub fn mac(&self) -> Option<MacAddr> {
        MacAddr::parse(&self.mac).ok()
    }

    /// Whether it takes everybody's frames because somebody asked for that for good (`IFF_PROMISC`).
    #[must_use]
    pub fn is_promiscuous(&self) -> bool {
        self.flags & IFF_PROMISC != 0
    }

    /// The same link, as if nobody had asked for that.
    #[must_use]
    pub fn without_promiscuity(self) -> Self {
        Self { flags: self.flags & !IFF_PROMISC, ..self }
    }

    /// Whether it is found under this name, also as an alternative one.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.altnames.iter().any(|alt| alt == name)
    }

    /// A physical device that is up, with nothing else to tell.
    #[cfg(test)]
    pub fn of_test(ifindex: u32, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ifindex,
            kind: String::new(),
            mac: String::new(),
            permanent_mac: String::new(),
            mtu: 1500,
            up: true,
            flags: 1,
            master: 0,
            lower: 0,
            altnames: Vec::new(),
            group: 0,
            alias: String::new(),
        }
    }
}

/// A NIC's whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicConfig {
    /// The link itself.
    pub link: NicLink,
    /// Its settings below `net/ipv4/conf/<name>` and `net/ipv6/conf/<name>`: `ipv4/rp_filter` to value.
    pub sysctls: BTreeMap<String, String>,
    /// Its addresses in the kernel's order.
    pub addresses: Vec<NicAddress>,
    /// Its nexthop objects.
    pub nexthops: Vec<NicNexthop>,
    /// The routes of all tables that lead through it, without those that the kernel makes with every address.
    pub routes: Vec<NicRoute>,
    /// Those of its IPv4 routes that stand before routes of other links which differ from them in nothing but the way: the kernel takes the first of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leading: Vec<NicRoute>,
    /// Its permanent and proxy neighbour entries.
    pub neighbours: Vec<Message>,
    /// The rules that name it. They bind to whichever link has the name, so they are never changed; they stand here for who must repair by hand.
    pub rules: Vec<Message>,
    /// When it was read, seconds since boot (`CLOCK_BOOTTIME`): the lifetimes of addresses count from here.
    pub taken_at: u64,
}

impl NicConfig {
    /// The addresses that people gave, without link-locals that the kernel made.
    #[must_use]
    pub fn given_addresses(&self) -> Vec<InterfaceAddress> {
        self.addresses.iter().filter(|a| !a.is_kernel_link_local()).filter_map(NicAddress::address).collect()
    }

    /// Whether duplicate address detection had not come to an end for each address when it was read.
    #[must_use]
    pub fn has_undecided(&self) -> bool {
        self.addresses.iter().any(NicAddress::is_undecided)
    }

    /// Takes over what was found out on another link about addresses of which nothing was decided when they were read.
    pub fn decide(&mut self, there: &Self) {
        for address in self.addresses.iter_mut().filter(|address| address.is_undecided()) {
            let found = there.addresses.iter().find(|found| found.address() == address.address());
            *address = found.map_or_else(|| address.clone(), |found| address.decided_as(found));
        }
    }
}
