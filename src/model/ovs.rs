//! What configuration and Open vSwitch share: where the database is, and which datapath a bridge has.

use std::fmt;
use std::path::PathBuf;

/// Where an OVSDB server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OvsdbTarget {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP, without encryption.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Why a text is no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `unix:/absolute/path` or `tcp:host:port`")]
pub struct OvsdbTargetError;

impl OvsdbTarget {
    /// Reads `unix:/path`, `unix:///path`, `/path`, or `tcp:host:port` (an IPv6 address in brackets).
    ///
    /// # Errors
    /// [`OvsdbTargetError`], the rule.
    pub fn parse(text: &str) -> Result<Self, OvsdbTargetError> {
        if let Some(rest) = text.strip_prefix("tcp:") {
            let (host, port) = rest.rsplit_once(':').ok_or(OvsdbTargetError)?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            let port = port.parse().ok().filter(|port| *port > 0).ok_or(OvsdbTargetError)?;
            let legal = !host.is_empty() && !host.contains(['/', '[', ']']) && !host.contains(char::is_whitespace);
            return if legal { Ok(Self::Tcp { host: host.to_owned(), port }) } else { Err(OvsdbTargetError) };
        }
        let bare = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        let path = PathBuf::from(bare);
        if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(OvsdbTargetError) }
    }
}

impl fmt::Display for OvsdbTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Datapath of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datapath {
    /// The kernel's.
    System,
    /// User space.
    Netdev,
}

impl Datapath {
    /// The word of the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Netdev => "netdev",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for (text, shown) in [
            ("unix:/run/db.sock", "unix:/run/db.sock"),
            ("unix:///run/db.sock", "unix:/run/db.sock"),
            ("/run/db.sock", "unix:/run/db.sock"),
            ("tcp:127.0.0.1:6640", "tcp:127.0.0.1:6640"),
            ("tcp:[::1]:6640", "tcp:[::1]:6640"),
            ("tcp:ovs.example:6640", "tcp:ovs.example:6640"),
        ] {
            assert_eq!(OvsdbTarget::parse(text).map(|target| target.to_string()), Ok(shown.to_owned()));
        }
        for bad in
            ["", "unix:", "unix:run/db", "db.sock", "tcp:", "tcp:host", "tcp:host:0", "tcp:host:70000", "tcp::1", "tcp:a b:1", "ssl:h:1"]
        {
            assert_eq!(OvsdbTarget::parse(bad), Err(OvsdbTargetError), "{bad}");
        }
    }
}
