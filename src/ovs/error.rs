//! Why Open vSwitch did not do what was asked.

use std::time::Duration;

/// What was attempted, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OvsError {
    /// Nothing was asked, so nothing was done.
    #[error("{attempted}: the Open vSwitch database is not reachable: {cause}")]
    Unreachable {
        /// What was attempted.
        attempted: String,
        /// Why it cannot be reached.
        cause: String,
    },
    /// It was asked, and no answer came. What holds has to be read; once that succeeds, the answer is final: nothing comes after it.
    #[error("{attempted}: whether the Open vSwitch database did it is not known: {cause}")]
    Unknown {
        /// What was attempted.
        attempted: String,
        /// What happened instead of an answer.
        cause: String,
    },
    /// The database said no; nothing was done.
    #[error("{attempted}: the Open vSwitch database refused: {cause}")]
    Refused {
        /// What was attempted.
        attempted: String,
        /// Its words.
        cause: String,
    },
    /// A port or interface of that name is there already, on this or another bridge; nothing was done.
    #[error("{attempted}: Open vSwitch has a port or interface `{name}` already")]
    Taken {
        /// What was attempted.
        attempted: String,
        /// The name.
        name: String,
    },
    /// The bridge is not there; nothing was done.
    #[error("{attempted}: there is no bridge `{bridge}`")]
    NoBridge {
        /// What was attempted.
        attempted: String,
        /// Its name.
        bridge: String,
    },
    /// None of our ports has that name; nothing was done.
    #[error("{attempted}: there is no port `{port}` of ours")]
    NoPort {
        /// What was attempted.
        attempted: String,
        /// Its name.
        port: String,
    },
    /// Open vSwitch has the port and cannot use its device.
    #[error("{attempted}: Open vSwitch cannot use `{port}`: {cause}")]
    PortFailed {
        /// What was attempted.
        attempted: String,
        /// The port.
        port: String,
        /// The words of Open vSwitch.
        cause: String,
    },
    /// It did not come about in time; it still may.
    #[error("{attempted}: not within {} ms: {last}", limit.as_millis())]
    NotYet {
        /// What was attempted.
        attempted: String,
        /// How long was waited.
        limit: Duration,
        /// What was seen last.
        last: String,
    },
}

impl OvsError {
    /// Whether a port failed because the switch itself still has another device open under its name: it says so in the system's words for `EEXIST`.
    #[must_use]
    pub fn is_name_in_use(&self) -> bool {
        matches!(self, Self::PortFailed { cause, .. } if cause.contains("File exists"))
    }
}
