//! States, the reasons that go with them, and what is wrong with a value.

use std::fmt;

/// State of a configured value, in the words of the field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Never seen, or fully gone.
    Nonexistent,
    /// Was configured, found missing.
    Missing,
    /// Nothing handles it.
    Unimplemented,
    /// Just removed, or being removed.
    Removed,
    /// Applied: a read-back of the kernel equals the wish.
    Configured,
    /// Found, not configured by us.
    Obtained,
    /// Found in the kernel with our mark, not configured in this run.
    Discovered,
    /// Waits for something; not an error.
    Pending,
    /// The user must change it.
    Invalid,
    /// Failed; tried again when what it depends on changes.
    Failed,
    /// Failed; tried again by itself.
    Retrying,
}

impl State {
    /// All states, in the order of their definition.
    pub const ALL: [Self; 11] = [
        Self::Nonexistent,
        Self::Missing,
        Self::Unimplemented,
        Self::Removed,
        Self::Configured,
        Self::Obtained,
        Self::Discovered,
        Self::Pending,
        Self::Invalid,
        Self::Failed,
        Self::Retrying,
    ];

    /// The state's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Nonexistent => "NONEXISTENT",
            Self::Missing => "MISSING",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Removed => "REMOVED",
            Self::Configured => "CONFIGURED",
            Self::Obtained => "OBTAINED",
            Self::Discovered => "DISCOVERED",
            Self::Pending => "PENDING",
            Self::Invalid => "INVALID",
            Self::Failed => "FAILED",
            Self::Retrying => "RETRYING",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why a value is in its state: a stable word for programs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the words are the documentation; docs/keys.md explains each to users")]
pub enum Reason {
    BadEncoding,
    KeyMismatch,
    BadName,
    BadPeer,
    BadNamespace,
    OwnNamespace,
    BadAddress,
    BadMac,
    BadMtu,
    BadType,
    PeerMissing,
    PeerMismatch,
    NamespaceMissing,
    MicroserviceMissing,
    LinkMissing,
    NameConflict,
    ForeignLink,
    DuplicateLabel,
    KernelRefused,
    Timeout,
    Contended,
    BadSelection,
    NicUnsuitable,
    OvsUnreachable,
}

impl Reason {
    /// The reason's word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::BadEncoding => "BAD_ENCODING",
            Self::KeyMismatch => "KEY_MISMATCH",
            Self::BadName => "BAD_NAME",
            Self::BadPeer => "BAD_PEER",
            Self::BadNamespace => "BAD_NAMESPACE",
            Self::OwnNamespace => "OWN_NAMESPACE",
            Self::BadAddress => "BAD_ADDRESS",
            Self::BadMac => "BAD_MAC",
            Self::BadMtu => "BAD_MTU",
            Self::BadType => "BAD_TYPE",
            Self::PeerMissing => "PEER_MISSING",
            Self::PeerMismatch => "PEER_MISMATCH",
            Self::NamespaceMissing => "NAMESPACE_MISSING",
            Self::MicroserviceMissing => "MICROSERVICE_MISSING",
            Self::LinkMissing => "LINK_MISSING",
            Self::NameConflict => "NAME_CONFLICT",
            Self::ForeignLink => "FOREIGN_LINK",
            Self::DuplicateLabel => "DUPLICATE_LABEL",
            Self::KernelRefused => "KERNEL_REFUSED",
            Self::Timeout => "TIMEOUT",
            Self::Contended => "CONTENDED",
            Self::BadSelection => "BAD_SELECTION",
            Self::NicUnsuitable => "NIC_UNSUITABLE",
            Self::OvsUnreachable => "OVS_UNREACHABLE",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One thing that is wrong with a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldError {
    /// The reason that it gives to the status. Not part of the error's own JSON.
    pub reason: Reason,
    /// Path of the field, as in `ip_addresses[1]`; empty for the whole value.
    pub field: String,
    /// What stands there, shortened.
    pub value: String,
    /// The rule that it breaks, as a phrase.
    pub rule: String,
    /// What to do.
    pub hint: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, rule, hint, .. } = self;
        match (field.is_empty(), value.is_empty()) {
            (true, _) => write!(f, "the value {rule}")?,
            (false, true) => write!(f, "{field} {rule}")?,
            (false, false) => write!(f, "{field} `{}` {rule}", value.escape_debug())?,
        }
        if hint.is_empty() { Ok(()) } else { write!(f, "; {hint}") }
    }
}

impl serde::Serialize for FieldError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut s = serializer.serialize_struct("FieldError", 4)?;
        s.serialize_field("field", &self.field)?;
        s.serialize_field("value", &self.value)?;
        s.serialize_field("rule", &self.rule)?;
        s.serialize_field("hint", &self.hint)?;
        s.end()
    }
}
