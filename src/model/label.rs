//! The label under which one agent owns its keys in the store and its links in the kernel.

use std::fmt;

/// An agent's label: `[A-Za-z0-9][A-Za-z0-9_.-]{0,62}`. It is part of every key, alias and lock file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentLabel(String);

/// Why a text is no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label `{}` must match [A-Za-z0-9][A-Za-z0-9_.-]{{0,62}}", .0.escape_debug())]
pub struct LabelError(String);

impl AgentLabel {
    /// Checks and wraps a label.
    ///
    /// # Errors
    /// [`LabelError`] when the text does not match the label's grammar.
    pub fn new(text: &str) -> Result<Self, LabelError> {
        let bytes = text.as_bytes();
        let legal = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let ok = (1..=63).contains(&bytes.len()) && bytes[0].is_ascii_alphanumeric() && bytes.iter().all(legal);
        if ok { Ok(Self(text.to_owned())) } else { Err(LabelError(text.to_owned())) }
    }

    /// The label's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefix of all of this agent's keys, with the closing slash that keeps `vpp1` apart from `vpp10`.
    #[must_use]
    pub fn key_prefix(&self) -> String {
        format!("/vnf-agent/{}/", self.0)
    }
}

impl fmt::Display for AgentLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AgentLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar() {
        for good in ["vpp1", "a", "0-x_y.z", &"a".repeat(63)] {
            assert!(AgentLabel::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a/b", "a b", "ü", &"a".repeat(64)] {
            assert!(AgentLabel::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prefix_ends_in_a_slash() {
        assert_eq!(AgentLabel::new("vpp1").map(|l| l.key_prefix()), Ok("/vnf-agent/vpp1/".to_owned()));
    }
}
