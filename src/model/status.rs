//! What the agent says about one interface. The same value goes to etcd, gRPC, HTTP and the log.

use crate::model::{FieldError, InterfaceAddress, Reason, State, Timestamp};

/// Status of one interface: every field is always written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct InterfaceStatus {
    /// Last part of the config key, verbatim.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Why; `None` (written as an empty string) when there is nothing to explain.
    #[serde(serialize_with = "reason_or_empty")]
    pub reason: Option<Reason>,
    /// One sentence for people; empty when all is well.
    pub message: String,
    /// Name of the link, wished or real.
    pub host_if_name: String,
    /// Index of the link in its namespace; 0 when there is none.
    pub if_index: u32,
    /// Where it is wished.
    pub namespace: NamespaceStatus,
    /// UP or DOWN as seen; empty when there is no link.
    pub admin: &'static str,
    /// Operational state as seen; empty when there is no link.
    pub oper: &'static str,
    /// MTU as seen, bytes; 0 when there is no link.
    pub mtu: u32,
    /// Hardware address as seen; empty when there is no link.
    pub phys_address: String,
    /// Addresses seen on the link, without the kernel's own link-locals.
    #[serde(serialize_with = "as_texts")]
    pub ip_addresses: Vec<InterfaceAddress>,
    /// Logical name of the other end; empty where there is none.
    pub peer: String,
    /// Those of `ip_addresses` that nobody wished.
    #[serde(serialize_with = "as_texts")]
    pub extra_addresses: Vec<InterfaceAddress>,
    /// What it waits for, as references that people know.
    pub waits_for: Vec<String>,
    /// What is odd about the wish or the link, though it works.
    pub warnings: Vec<String>,
    /// Everything that is wrong with the value.
    pub errors: Vec<FieldError>,
    /// How often in a row it failed.
    pub attempt: u32,
    /// When it is tried again.
    pub next_retry: Option<Timestamp>,
    /// Mod revision of the value that this status answers.
    pub revision: i64,
    /// Since when it is in this state.
    pub since: Timestamp,
}

/// Where an interface is wished, and the namespace that was found.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct NamespaceStatus {
    /// DEFAULT, NAMED, PID, FILE or MICROSERVICE.
    pub kind: &'static str,
    /// Name, number, path or label.
    pub reference: String,
    /// Inode of the namespace, as `ls -i` and `lsns` show it; 0 when it is not there.
    pub inode: u64,
}

impl InterfaceStatus {
    /// Whether two statuses say the same, leaving out the moments.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        *self == Self { since: self.since, next_retry: self.next_retry, ..other.clone() }
    }
}

pub(super) fn reason_or_empty<S: serde::Serializer>(reason: &Option<Reason>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.map_or("", Reason::word))
}

fn as_texts<S: serde::Serializer>(addresses: &[InterfaceAddress], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(ToString::to_string))
}
