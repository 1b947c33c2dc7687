//! The transactions that we make, and what their answers say: pure.
//!
//! Each is atomic, and begins with proofs of what it takes for granted. The first one is our lock: a request that is still under way on a
//! connection that we have left loses the lock to the next connection, so it can never take effect after that one has read.

use serde_json::{Value, json};

use super::ids::{self, Notes, Role};
use super::message::error_text;
use super::value::{Malformed, RowId, map_to_json, set_to_json};
use super::view::{PairRows, PairView, PortView};
use crate::model::{AgentLabel, Datapath, HostIfName, MacAddr};

/// The version of OpenFlow that flows are written with: the first one whose bundles are atomic as Open vSwitch has them.
pub(super) const OPENFLOW: &str = "OpenFlow15";
/// What a bridge of ours speaks: the old version is what tools ask for by default.
const PROTOCOLS: [&str; 3] = ["OpenFlow10", "OpenFlow13", OPENFLOW];

/// The two ports of a NIC that are to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPair {
    /// Name of the internal port: the NIC's own name.
    pub host: HostIfName,
    /// The name that the NIC has by then.
    pub uplink: HostIfName,
    /// The NIC's address, for the internal port.
    pub mac: MacAddr,
    /// The NIC's MTU (bytes), for the internal port; otherwise Open vSwitch takes the smallest of the bridge.
    pub mtu: u32,
    /// What is remembered beside both.
    pub notes: Notes,
}

/// What a transaction takes for granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// No newer connection of ours writes.
    Lock,
    /// The bridge is there.
    BridgeThere,
    /// No bridge of that name is there.
    BridgeMissing,
    /// No port or interface has this name.
    Free(String),
    /// Our port of this name is still there.
    PortThere(String),
}

/// Operations that are done together or not at all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Transaction {
    operations: Vec<Value>,
    /// Which operations are proofs.
    guards: Vec<(usize, Guard)>,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// What was taken for granted does not hold.
    Guard(Guard),
    /// The server's words.
    Server(String),
}

impl Transaction {
    /// One that only the holder of this lock may make.
    fn new(lock: &str) -> Self {
        let assert = json!({"op": "assert", "lock": lock});
        Self { operations: vec![assert], guards: vec![(0, Guard::Lock)] }
    }

    /// One that changes nothing, so that anybody may make it.
    fn reading() -> Self {
        Self { operations: Vec::new(), guards: Vec::new() }
    }

    fn guard(mut self, guard: Guard, operation: Value) -> Self {
        self.guards.push((self.operations.len(), guard));
        self.operations.push(operation);
        self
    }

    fn then(mut self, operation: Value) -> Self {
        self.operations.push(operation);
        self
    }

    /// Asks `ovs-vswitchd` to tell when it has followed.
    fn numbered(self) -> Self {
        self.then(json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]}))
    }

    pub(super) fn operations(&self) -> &[Value] {
        &self.operations
    }

    /// The row that was inserted under this name, by the results of all operations.
    pub(super) fn inserted(&self, results: &[Value], named: &str) -> Option<RowId> {
        let at = self.operations.iter().position(|operation| operation["uuid-name"] == named)?;
        results.get(at)?["uuid"][1].as_str().map(RowId::new)
    }

    /// Reads the answer: one result per operation, `null` after one that failed, and one more if the commit failed.
    ///
    /// # Errors
    /// The outer one if this is no such answer; the inner one if nothing was done.
    pub(super) fn outcome(&self, answer: &Value) -> Result<Result<Vec<Value>, Refusal>, Malformed> {
        let results = answer.as_array().ok_or_else(|| Malformed::new("results", answer))?;
        let failed = results.iter().position(|result| result.get("error").is_some_and(|error| !error.is_null()));
        match failed {
            Some(at) => Ok(Err(match self.guards.iter().find(|(index, _)| *index == at) {
                Some((_, guard)) => Refusal::Guard(guard.clone()),
                None => Refusal::Server(error_text(&results[at])),
            })),
            None if results.len() == self.operations.len() && results.iter().all(Value::is_object) => Ok(Ok(results.clone())),
            None => Err(Malformed::new("a result of each operation", answer)),
        }
    }
}

/// A proof that rows with this name are as given, without waiting for it.
fn wait(table: &str, name: &str, rows: Value) -> Value {
    json!({"op": "wait", "timeout": 0, "table": table, "where": [["name", "==", name]], "columns": ["name"], "until": "==", "rows": rows})
}

/// The lock of one agent: letters, digits and `_` only (RFC 7047, `<id>`).
pub(super) fn lock_name(label: &AgentLabel) -> String {
    let letter = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("_{byte:02x}") };
    format!("vnf_agent_{}", label.as_str().bytes().map(letter).collect::<String>())
}

/// Changes nothing: everything that was asked before it is done, and told, when it is answered.
pub(super) fn barrier(lock: &str) -> Transaction {
    Transaction::new(lock)
}

/// As [`barrier`], while another process of this label has the lock: what this one asked before on a connection that it has left finds the lock taken as well.
pub(super) fn barrier_without_lock() -> Transaction {
    Transaction::reading().then(json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]}))
}

/// Changes nothing but the number that `ovs-vswitchd` answers. The last result holds that number.
pub(super) fn number(lock: &str) -> Transaction {
    Transaction::new(lock).numbered().then(json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]}))
}

/// The number that [`number`] asked for.
pub(super) fn numbered(results: &[Value]) -> Option<i64> {
    results.last()?.get("rows")?.get(0)?.get("next_cfg")?.as_i64()
}

/// Makes the bridge with its own port.
pub(super) fn create_bridge(lock: &str, bridge: &str, datapath: Datapath) -> Transaction {
    let row = json!({
        "name": bridge, "datapath_type": datapath.as_str(),
        "protocols": set_to_json(PROTOCOLS.map(Value::from)), "ports": ["named-uuid", "p"],
    });
    Transaction::new(lock)
        .guard(Guard::BridgeMissing, wait("Bridge", bridge, json!([])))
        .guard(Guard::Free(bridge.to_owned()), wait("Port", bridge, json!([])))
        .guard(Guard::Free(bridge.to_owned()), wait("Interface", bridge, json!([])))
        .then(json!({"op": "insert", "table": "Interface", "uuid-name": "i", "row": {"name": bridge, "type": "internal"}}))
        .then(json!({"op": "insert", "table": "Port", "uuid-name": "p", "row": {"name": bridge, "interfaces": ["named-uuid", "i"]}}))
        .then(json!({"op": "insert", "table": "Bridge", "uuid-name": "b", "row": row}))
        .then(json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["bridges", "insert", ["named-uuid", "b"]]]}))
        .numbered()
}

/// Lets a bridge that speaks certain versions only speak ours as well.
pub(super) fn add_protocol(lock: &str, bridge: &str) -> Transaction {
    let operation = json!({
        "op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]], "mutations": [["protocols", "insert", OPENFLOW]],
    });
    Transaction::new(lock).guard(Guard::BridgeThere, wait("Bridge", bridge, json!([{"name": bridge}]))).then(operation).numbered()
}

/// What the rows of both ports are called in the transaction that makes them.
const HOST_PORT: &str = "hp";
const UPLINK_PORT: &str = "up";

/// The rows that [`create_pair`] made.
pub(super) fn created_rows(create: &Transaction, results: &[Value]) -> Option<PairRows> {
    Some(PairRows { host: create.inserted(results, HOST_PORT)?, uplink: create.inserted(results, UPLINK_PORT)? })
}

/// Makes both ports of a NIC.
pub(super) fn create_pair(lock: &str, label: &AgentLabel, bridge: &str, pair: &NewPair) -> Transaction {
    let (host, uplink) = (pair.host.as_str(), pair.uplink.as_str());
    let ids = |role, peer| ids_to_json(&ids::port_pairs(label, role, peer, &pair.notes));
    let internal = json!({"name": host, "type": "internal", "mac": pair.mac.to_string(), "mtu_request": pair.mtu});
    let port = |named: &str, name: &str, interface: &str, ids: Value| {
        let row = json!({"name": name, "interfaces": ["named-uuid", interface], "external_ids": ids});
        json!({"op": "insert", "table": "Port", "uuid-name": named, "row": row})
    };
    let both = set_to_json([HOST_PORT, UPLINK_PORT].map(|port| json!(["named-uuid", port])));
    let mut transaction = Transaction::new(lock).guard(Guard::BridgeThere, wait("Bridge", bridge, json!([{"name": bridge}])));
    for name in [host, uplink] {
        for table in ["Port", "Interface"] {
            transaction = transaction.guard(Guard::Free(name.to_owned()), wait(table, name, json!([])));
        }
    }
    transaction
        .then(json!({"op": "insert", "table": "Interface", "uuid-name": "ui", "row": {"name": uplink}}))
        .then(port(UPLINK_PORT, uplink, "ui", ids(Role::Uplink, host)))
        .then(json!({"op": "insert", "table": "Interface", "uuid-name": "hi", "row": internal}))
        .then(port(HOST_PORT, host, "hi", ids(Role::Host, uplink)))
        .then(json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]], "mutations": [["ports", "insert", both]]}))
        .numbered()
}

/// Removes ports from the bridge; their rows go with the last reference. Those that are gone do not matter.
pub(super) fn delete_ports(lock: &str, bridge: &str, ports: &[RowId]) -> Transaction {
    let ports = set_to_json(ports.iter().map(RowId::to_json));
    Transaction::new(lock)
        .then(json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]], "mutations": [["ports", "delete", ports]]}))
        .numbered()
}

/// Replaces the notes beside ports; ids of others stay. So does an owner, whoever it is: one that is missing is written.
pub(super) fn write_notes(lock: &str, label: &AgentLabel, pair: &PairView, notes: &Notes) -> Transaction {
    let name = |port: &Option<PortView>| port.as_ref().map(|port| port.name.clone());
    let (host, uplink) = (name(&pair.host), name(&pair.uplink));
    let ports = [(&pair.host, Role::Host, uplink), (&pair.uplink, Role::Uplink, host)];
    let there = ports.into_iter().filter_map(|(port, role, peer)| Some((port.as_ref()?, role, peer)));
    there.fold(Transaction::new(lock), |transaction, (port, role, peer)| {
        // An insert does not overwrite, so the old ones are deleted before.
        let mut keys = ids::NOTE_KEYS.to_vec();
        let mut pairs = ids::note_pairs(notes);
        if let Some(peer) = &peer {
            keys.extend(ids::PLACE_KEYS);
            pairs = ids::port_pairs(label, role, peer, notes);
        }
        let mutations = json!([
            ["external_ids", "delete", set_to_json(keys.into_iter().map(Value::from))],
            ["external_ids", "delete", map_to_json([ids::NO_OWNER].into_iter())],
            ["external_ids", "insert", ids_to_json(&pairs)],
        ]);
        let (name, row) = (&port.name, json!([["_uuid", "==", port.id.to_json()]]));
        let there = json!({
            "op": "wait", "timeout": 0, "table": "Port", "where": row, "columns": ["name"], "until": "==", "rows": [{"name": name}],
        });
        transaction
            .guard(Guard::PortThere(name.clone()), there)
            .then(json!({"op": "mutate", "table": "Port", "where": row, "mutations": mutations}))
    })
}

fn ids_to_json(pairs: &[(&'static str, String)]) -> Value {
    map_to_json(pairs.iter().map(|(key, value)| (*key, value.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovs::PortState;

    #[test]
    fn a_lock_of_ones_own() {
        let lock = |text| lock_name(&AgentLabel::new(text).unwrap());
        assert_eq!(lock("vpp1"), "vnf_agent_vpp1");
        assert_eq!(lock("a.b-c_d"), "vnf_agent_a_2eb_2dc_5fd");
        assert_ne!(lock("a.b"), lock("a_b"));
    }

    #[test]
    fn answers() {
        let transaction = create_bridge("l", "br-int", Datapath::System);
        let operations = transaction.operations().len();
        let done: Value = vec![json!({}); operations].into();
        assert_eq!(transaction.outcome(&done).unwrap().unwrap().len(), operations);
        let failed = |at: usize, error: &str| {
            let mut results = vec![json!({}); at];
            results.push(json!({"error": error, "details": "why"}));
            results.resize(operations.max(at + 1), Value::Null);
            transaction.outcome(&results.into()).unwrap().unwrap_err()
        };
        assert_eq!(failed(0, "not owner"), Refusal::Guard(Guard::Lock));
        assert_eq!(failed(1, "timed out"), Refusal::Guard(Guard::BridgeMissing));
        assert_eq!(failed(2, "timed out"), Refusal::Guard(Guard::Free("br-int".to_owned())));
        assert_eq!(failed(5, "syntax error"), Refusal::Server("syntax error: why".to_owned()));
        // Only at the commit: one more than there are operations.
        assert_eq!(failed(operations, "constraint violation"), Refusal::Server("constraint violation: why".to_owned()));
        for odd in [json!({}), json!([]), json!([{}]), Value::from(vec![Value::Null; operations])] {
            assert!(transaction.outcome(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn nothing_is_written_without_the_lock() {
        let label = AgentLabel::new("vpp1").unwrap();
        let pair = NewPair {
            host: HostIfName::new("eth0").unwrap(),
            uplink: HostIfName::new("eth0~").unwrap(),
            mac: MacAddr::new([2, 0, 0, 0, 0, 1]).unwrap(),
            mtu: 1400,
            notes: Notes::default(),
        };
        let port = PortView {
            id: RowId::new("1"),
            name: "eth0".to_owned(),
            state: PortState::Pending,
            mac_in_use: None,
            mtu: None,
            link_up: None,
        };
        let stands = PairView { host: Some(port.clone()), ..PairView::default() };
        for transaction in [
            barrier("l"),
            number("l"),
            create_bridge("l", "b", Datapath::Netdev),
            add_protocol("l", "b"),
            create_pair("l", &label, "b", &pair),
            delete_ports("l", "b", std::slice::from_ref(&port.id)),
            write_notes("l", &label, &stands, &Notes::default()),
        ] {
            assert_eq!(transaction.operations()[0], json!({"op": "assert", "lock": "l"}));
            assert_eq!(transaction.guards[0], (0, Guard::Lock));
        }
    }
}
