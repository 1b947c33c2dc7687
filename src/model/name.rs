//! Two kinds of names that must never be mixed up: the logical name of a wish and the name of a link in the kernel.

use std::fmt;
use std::sync::Arc;

/// Longest name of a link in bytes (`IFNAMSIZ` less the closing NUL).
pub const HOST_IF_NAME_MAX: usize = 15;
/// Longest logical name in bytes.
pub const INTERFACE_NAME_MAX: usize = 253;

/// Why a text is no name; the text says the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("must not be empty")]
    Empty,
    /// Too many bytes.
    #[error("is {length} bytes long, at most {limit} are allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The most that is allowed, in bytes.
        limit: usize,
    },
    /// A character that the kernel refuses, or that would mislead a reader.
    #[error("must not contain {0}")]
    Character(&'static str),
    /// A whole name that the kernel keeps for itself.
    #[error("is reserved by the kernel")]
    Reserved(&'static str),
}

/// The logical name of an interface: unique per agent, last part of its key. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceName(Arc<str>);

impl InterfaceName {
    /// Checks and wraps a logical name.
    ///
    /// # Errors
    /// [`NameError`] when it is empty, holds a `/` or a control character (a NUL would cut an alias short), or is longer than
    /// [`INTERFACE_NAME_MAX`] bytes.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.contains('/') {
            return Err(NameError::Character("a slash"));
        }
        if text.contains(char::is_control) {
            return Err(NameError::Character("a control character"));
        }
        if text.len() > INTERFACE_NAME_MAX {
            return Err(NameError::TooLong { length: text.len(), limit: INTERFACE_NAME_MAX });
        }
        Ok(Self(text.into()))
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a link in the kernel: what `dev_valid_name()` takes, less what would mislead people and programs.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostIfName(Box<str>);

impl HostIfName {
    /// Checks and wraps a link name.
    ///
    /// The kernel refuses `/`, `:`, white space, `.`, `..` and names over 15 bytes, expands `%d`, and has no sysctl folder for a
    /// link called `all` or `default`. Control and bidirectional characters it takes; we do not.
    ///
    /// # Errors
    /// [`NameError`] naming the rule.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > HOST_IF_NAME_MAX {
            return Err(NameError::TooLong { length: text.len(), limit: HOST_IF_NAME_MAX });
        }
        for reserved in [".", "..", "all", "default"] {
            if text == reserved {
                return Err(NameError::Reserved(reserved));
            }
        }
        match text.chars().find_map(forbidden) {
            Some(what) => Err(NameError::Character(what)),
            None => Ok(Self(text.into())),
        }
    }

    /// The name's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn forbidden(c: char) -> Option<&'static str> {
    match c {
        '/' => Some("a slash"),
        ':' => Some("a colon"),
        '%' => Some("a percent sign"),
        c if c.is_control() => Some("a control character"),
        c if c.is_whitespace() => Some("a blank"),
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some("a bidirectional control character")
        }
        _ => None,
    }
}

macro_rules! text_traits {
    ($name:ty) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}
text_traits!(InterfaceName);
text_traits!(HostIfName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_at_the_edge() {
        assert!(HostIfName::new("123456789012345").is_ok());
        assert_eq!(HostIfName::new("1234567890123456"), Err(NameError::TooLong { length: 16, limit: 15 }));
        // Bytes count, not characters.
        assert_eq!(HostIfName::new("üüüüüüüü"), Err(NameError::TooLong { length: 16, limit: 15 }));
        assert!(HostIfName::new("eth0.100-x_y").is_ok());
    }

    #[test]
    fn host_names_that_are_refused() {
        for bad in ["", ".", "..", "all", "default", "a/b", "a:b", "a b", "a\tb", "a\u{7f}", "rl%d", "x\u{202e}y", "a\u{a0}b"] {
            assert!(HostIfName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn logical_names() {
        assert!(InterfaceName::new(&"x".repeat(253)).is_ok());
        assert!(InterfaceName::new(&"x".repeat(254)).is_err());
        assert!(InterfaceName::new("").is_err());
        assert!(InterfaceName::new("a/b").is_err());
        assert!(InterfaceName::new("a\0b").is_err());
        assert!(InterfaceName::new("a b:c").is_ok());
    }
}
