//! The keys below an agent's prefix: parsed and written here only.

/// Prefix of the interfaces' wishes, below the agent's prefix.
pub const INTERFACE_CONFIG_PREFIX: &str = "linux/config/v1/interface/";
/// Prefix of the interfaces' statuses, below the agent's prefix.
pub const INTERFACE_STATUS_PREFIX: &str = "linux/status/v1/interface/";
/// Prefix of the external nodes' wishes, below the agent's prefix.
pub const NODE_CONFIG_PREFIX: &str = "external/config/v1/node/";
/// Prefix of the external nodes' statuses, below the agent's prefix.
pub const NODE_STATUS_PREFIX: &str = "external/status/v1/node/";
/// Prefix of the references to external entities, below the agent's prefix; `<namespace>/<name>` follows.
pub const ENTITY_STATUS_PREFIX: &str = "external/status/v1/entity/";
/// Prefix of what VPP is told to make, below the agent's prefix. Read only.
pub const VPP_INTERFACE_CONFIG_PREFIX: &str = "vpp/config/v1/interface/";
/// Prefix of what VPP says to have made, below the agent's prefix. Read only.
pub const VPP_INTERFACE_STATUS_PREFIX: &str = "vpp/status/v1/interface/";
/// Key of the agent's own status, below the agent's prefix.
pub const AGENT_STATUS_KEY: &str = "check/status/v1/agent";

/// A key that configures something, relative to the agent's prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConfigKey {
    /// `linux/config/v1/interface/<last part>`; the last part is kept verbatim, also where it is no legal name, so that its status can
    /// say so under the same name.
    Interface(String),
}

impl ConfigKey {
    /// Reads a key relative to the agent's prefix; `None` for keys that configure nothing we know.
    #[must_use]
    pub fn parse(relative: &str) -> Option<Self> {
        relative.strip_prefix(INTERFACE_CONFIG_PREFIX).map(|last| Self::Interface(last.to_owned()))
    }

    /// The key of this object's status, relative to the agent's prefix.
    #[must_use]
    pub fn status_key(&self) -> String {
        match self {
            Self::Interface(last) => format!("{INTERFACE_STATUS_PREFIX}{last}"),
        }
    }
}

impl std::fmt::Display for ConfigKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interface(last) => write!(f, "{INTERFACE_CONFIG_PREFIX}{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_there_and_back() {
        let key = ConfigKey::parse("linux/config/v1/interface/veth1").unwrap();
        assert_eq!(key.to_string(), "linux/config/v1/interface/veth1");
        assert_eq!(key.status_key(), "linux/status/v1/interface/veth1");
        assert_eq!(ConfigKey::parse("linux/config/v1/interface/a/b"), Some(ConfigKey::Interface("a/b".to_owned())));
        assert_eq!(ConfigKey::parse("linux/config/v1/route/x"), None);
        assert_eq!(ConfigKey::parse("linux/status/v1/interface/veth1"), None);
    }
}
