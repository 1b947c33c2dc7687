//! The wish for a host behind Open vSwitch, after validation, and the names that follow from it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

use crate::model::{HostIfName, InterfaceName, MacAddr};

/// Hexadecimal digits of the interface name's hash in an entity's name.
const HASH_DIGITS: usize = 5;

/// What a user wants of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name.
    pub name: InterfaceName,
    /// Its Kubernetes namespace.
    pub namespace: InterfaceName,
    /// Labels of its entities.
    pub labels: BTreeMap<String, String>,
    /// Its interfaces in the order of the wish; at least one, no two with the same entity name.
    pub interfaces: Vec<NicSelector>,
}

impl NodeSpec {
    /// The entity that an interface of this node stands for.
    #[must_use]
    pub fn entity(&self, interface: &NicSelector) -> EntityName {
        EntityName::derive(&self.name, interface.name.as_ref())
    }
}

/// How an interface of the host is chosen: at least one part is given, and all that are given must lead to one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NicSelector {
    /// Name of the link.
    pub name: Option<HostIfName>,
    /// Addresses on it, each once.
    pub ips: Vec<IpAddr>,
    /// Its hardware address.
    pub mac: Option<MacAddr>,
}

impl fmt::Display for NicSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.iter().map(|name| format!("name {name}"));
        let ips = self.ips.iter().map(|ip| format!("address {ip}"));
        let mac = self.mac.iter().map(|mac| format!("hardware address {mac}"));
        f.write_str(&name.chain(ips).chain(mac).collect::<Vec<_>>().join(", "))
    }
}

/// Name of an external entity, as Antrea's controller derives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityName(Box<str>);

impl EntityName {
    /// The node's name; where the interface has one, followed by a dash and the first five hexadecimal digits of its SHA-1.
    #[must_use]
    pub fn derive(node: &InterfaceName, interface: Option<&HostIfName>) -> Self {
        let text = match interface {
            None => node.to_string(),
            Some(interface) => format!("{node}-{}", short_hash(interface.as_str())),
        };
        Self(text.into())
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The first five hexadecimal digits of a text's SHA-1: short, stable, and for telling names apart only.
#[must_use]
pub fn short_hash(text: &str) -> String {
    let mut digits = hex::encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
    digits.truncate(HASH_DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_names() {
        let node = InterfaceName::new("vm1").unwrap();
        assert_eq!(EntityName::derive(&node, None).as_str(), "vm1");
        // `printf eth0 | sha1sum` begins with 3e616.
        let eth0 = HostIfName::new("eth0").unwrap();
        assert_eq!(EntityName::derive(&node, Some(&eth0)).to_string(), "vm1-3e616");
    }
}
