//! Names in the agent's own namespace that no wish for an interface may have: a host, or Open vSwitch, hangs on the links that bear them.

use std::collections::BTreeMap;
use std::fmt;

/// Whose a name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A host's own link: its NIC behind a bridge under either name, or its port. The NIC's own name.
    Nic(String),
    /// The bridge that NICs stand behind.
    Bridge,
    /// An internal port of this bridge of Open vSwitch.
    Port(String),
}

impl fmt::Display for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nic(nic) => write!(f, "the external node's NIC {nic}"),
            Self::Bridge => f.write_str("the bridge of the external node's NICs"),
            Self::Port(bridge) => write!(f, "the bridge {bridge} of Open vSwitch, whose port it is"),
        }
    }
}

/// All of them at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedNames(BTreeMap<Box<str>, Reserved>);

impl ReservedNames {
    /// Reserves a NIC's own name, which its port takes, and other names of it: the uplink's, alternative ones.
    pub fn add_nic<'n>(&mut self, nic: &'n str, others: impl IntoIterator<Item = &'n str>) {
        for name in others.into_iter().chain([nic]) {
            self.0.insert(name.into(), Reserved::Nic(nic.to_owned()));
        }
    }

    /// Reserves the name of the bridge that NICs stand behind.
    pub fn add_bridge(&mut self, bridge: &str) {
        self.0.entry(bridge.into()).or_insert(Reserved::Bridge);
    }

    /// Reserves the name of an internal port, whosever it is.
    pub fn add_port(&mut self, port: &str, bridge: &str) {
        self.0.entry(port.into()).or_insert_with(|| Reserved::Port(bridge.to_owned()));
    }

    /// Whose a name is that is reserved.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Reserved> {
        self.0.get(name)
    }

    /// Whether any of them is a host's NIC.
    #[must_use]
    pub fn has_nics(&self) -> bool {
        self.0.values().any(|whose| matches!(whose, Reserved::Nic(_)))
    }

    /// Names about which both say something else.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a str> {
        let unlike = |a: &'a Self, b: &'a Self| a.0.iter().filter(move |(name, whose)| b.0.get(*name) != Some(whose));
        unlike(self, other).chain(unlike(other, self)).map(|(name, _)| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_comes_before_a_port_and_differences_are_told_both_ways() {
        let mut before = ReservedNames::default();
        before.add_port("nic0", "br-int");
        before.add_port("p", "br-int");
        assert!(!before.has_nics());
        let mut after = ReservedNames::default();
        after.add_nic("nic0", ["nic0~"]);
        after.add_port("nic0", "br-int");
        after.add_bridge("br-int");
        after.add_port("br-int", "br-int");
        assert!(after.has_nics());
        assert_eq!(after.get("nic0"), Some(&Reserved::Nic("nic0".into())));
        assert_eq!((after.get("br-int"), after.get("p")), (Some(&Reserved::Bridge), None));
        let mut told: Vec<&str> = before.differences(&after).collect();
        told.sort_unstable();
        told.dedup();
        assert_eq!(told, ["br-int", "nic0", "nic0~", "p"]);
        assert_eq!(after.differences(&after).count(), 0);
    }
}
