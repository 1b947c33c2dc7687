//! What the agent says about a host behind Open vSwitch. The same values go to the store, gRPC and the log.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::{FieldError, Reason, State, Timestamp};

/// How far an interface's way behind the bridge has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// The NIC is as it was found.
    Plain,
    /// The NIC's configuration is in the journal; nothing has changed.
    Prepared,
    /// The NIC has the uplink's name, and still its whole configuration.
    Renamed,
    /// Both ports are there and usable.
    PortsCreated,
    /// The flows are there.
    FlowsInstalled,
    /// The host's port has the whole configuration and the uplink has none.
    Moved,
    /// Moved, read back and found right.
    Attached,
    /// On the way back.
    Detaching,
}

impl Phase {
    /// All of them, in the order of the way.
    pub const ALL: [Self; 8] = [
        Self::Plain,
        Self::Prepared,
        Self::Renamed,
        Self::PortsCreated,
        Self::FlowsInstalled,
        Self::Moved,
        Self::Attached,
        Self::Detaching,
    ];

    /// The phase's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::Prepared => "PREPARED",
            Self::Renamed => "RENAMED",
            Self::PortsCreated => "PORTS_CREATED",
            Self::FlowsInstalled => "FLOWS_INSTALLED",
            Self::Moved => "MOVED",
            Self::Attached => "ATTACHED",
            Self::Detaching => "DETACHING",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Status of one host: every field is always written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NodeStatus {
    /// Last part of the config key, verbatim.
    pub name: String,
    /// Its Kubernetes namespace; empty when the value cannot be read.
    pub namespace: String,
    /// Its state.
    pub state: State,
    /// Why; `None` (written as an empty string) when there is nothing to explain.
    #[serde(serialize_with = "super::status::reason_or_empty")]
    pub reason: Option<Reason>,
    /// One sentence for people; empty when all is well.
    pub message: String,
    /// Names of its entities.
    pub entities: Vec<String>,
    /// Mod revision of the value that this status answers.
    pub revision: i64,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// What is odd about the wish or the host, though it works.
    pub warnings: Vec<String>,
    /// Everything that is wrong with the value.
    pub errors: Vec<FieldError>,
    /// Its interfaces, those that are being given back included.
    pub interfaces: Vec<NodeInterfaceStatus>,
}

/// One interface of a host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NodeInterfaceStatus {
    /// Name under which the host knows it.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// Name of the NIC while it is the bridge's uplink; empty before.
    pub uplink: String,
    /// The bridge.
    pub bridge: String,
    /// OpenFlow number of the host's port; 0 when there is none.
    pub host_ofport: u32,
    /// OpenFlow number of the uplink; 0 when there is none.
    pub uplink_ofport: u32,
    /// Its hardware address.
    pub phys_address: String,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// The host's addresses on it, without link-locals that the kernel made.
    pub ip_addresses: Vec<String>,
    /// Name of its entity; empty while no wish names it.
    pub entity: String,
}

/// What policies refer to: one endpoint of a host. The value of the key `external/status/v1/entity/<namespace>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ExternalEntityReference {
    /// Name of the entity.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Name of the host.
    pub external_node: String,
    /// Name of the host's port.
    pub interface: String,
    /// The wished addresses.
    pub ips: Vec<String>,
    /// Labels of the host.
    pub labels: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON is a contract: names, order and words are those that users were promised.
    #[test]
    fn the_status_as_promised() {
        let interface = NodeInterfaceStatus {
            entity: "host1-3e616".into(),
            name: "eth0".into(),
            phase: Phase::Attached,
            uplink: "eth0~".into(),
            bridge: "br-int".into(),
            host_ofport: 2,
            uplink_ofport: 1,
            phys_address: "02:00:00:00:00:01".into(),
            mtu: 1500,
            ip_addresses: vec!["192.0.2.5/24".into()],
        };
        let status = NodeStatus {
            name: "host1".into(),
            namespace: "default".into(),
            state: State::Configured,
            reason: None,
            message: String::new(),
            entities: vec!["host1-9bf2c".into()],
            revision: 7,
            since: Timestamp(0),
            warnings: Vec::new(),
            errors: Vec::new(),
            interfaces: vec![interface],
        };
        let expected = r#"{"name":"host1","namespace":"default","state":"CONFIGURED","reason":"","message":"","entities":["host1-9bf2c"],"revision":7,"since":"1970-01-01T00:00:00Z","warnings":[],"errors":[],"interfaces":[{"name":"eth0","phase":"ATTACHED","uplink":"eth0~","bridge":"br-int","host_ofport":2,"uplink_ofport":1,"phys_address":"02:00:00:00:00:01","mtu":1500,"ip_addresses":["192.0.2.5/24"],"entity":"host1-3e616"}]}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), expected);
        for phase in [Phase::Plain, Phase::PortsCreated, Phase::FlowsInstalled, Phase::Detaching] {
            assert_eq!(serde_json::to_string(&phase).unwrap(), format!("\"{phase}\""));
        }
    }
}
