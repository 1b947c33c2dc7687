//! Network namespaces: how people refer to them, and how we know them.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

/// The environment variable that makes a container a microservice, and names it.
pub const MICROSERVICE_VARIABLE: &str = "MICROSERVICE_LABEL";
/// Longest label of a microservice in bytes.
pub const MICROSERVICE_LABEL_MAX: usize = 253;

/// A namespace's identity: its cookie (`SO_NETNS_COOKIE`), never used twice between two boots. Names, paths, PIDs and inodes only
/// refer to namespaces; inodes and PIDs are used again within seconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NetnsId(pub NonZeroU64);

impl NetnsId {
    /// Wraps a cookie; zero is none.
    #[must_use]
    pub fn new(cookie: u64) -> Option<Self> {
        NonZeroU64::new(cookie).map(Self)
    }
}

impl fmt::Display for NetnsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How a wish refers to a namespace.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum NetnsRef {
    /// The agent's own.
    Default,
    /// A name in the netns folder (`/var/run/netns`), without `/`, not `.` or `..`.
    Named(String),
    /// The namespace of a process.
    Pid(u32),
    /// An absolute path of a namespace file.
    File(PathBuf),
    /// The namespace of the container with this `MICROSERVICE_LABEL`.
    Microservice(String),
}

impl NetnsRef {
    /// The kind's word in the status: DEFAULT, NAMED, PID, FILE, MICROSERVICE.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "DEFAULT",
            Self::Named(_) => "NAMED",
            Self::Pid(_) => "PID",
            Self::File(_) => "FILE",
            Self::Microservice(_) => "MICROSERVICE",
        }
    }

    /// The reference's text in the status: name, number, path or label; empty for the default namespace.
    #[must_use]
    pub fn reference(&self) -> String {
        match self {
            Self::Default => String::new(),
            Self::Named(name) | Self::Microservice(name) => name.clone(),
            Self::Pid(pid) => pid.to_string(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

impl fmt::Display for NetnsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the agent's own namespace"),
            Self::Named(name) => write!(f, "namespace `{}`", name.escape_debug()),
            Self::Pid(pid) => write!(f, "namespace of process {pid}"),
            Self::File(path) => write!(f, "namespace file `{}`", path.display().to_string().escape_debug()),
            Self::Microservice(label) => write!(f, "microservice `{}`", label.escape_debug()),
        }
    }
}

/// One binding of a reference to a namespace.
///
/// A PID is bound when its key is first resolved and does not follow the number to another process; only writing the key again
/// binds it anew. So a PID's slot carries the revision of the writing; all other references share one slot (revision 0).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NetnsSlot {
    /// What is referred to.
    pub reference: NetnsRef,
    /// Mod revision of the key that wrote a PID; 0 for every other kind.
    pub written_at: i64,
}

impl NetnsSlot {
    /// The slot that a key written at `revision` uses for `reference`.
    #[must_use]
    pub fn new(reference: NetnsRef, revision: i64) -> Self {
        let by_process = matches!(&reference, NetnsRef::Pid(_)) || matches!(&reference, NetnsRef::File(p) if proc_pid(p).is_some());
        Self { reference, written_at: if by_process { revision } else { 0 } }
    }
}

/// The PID in a path of the form `/proc/<pid>/ns/net`.
#[must_use]
pub fn proc_pid(path: &std::path::Path) -> Option<u32> {
    let text = path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/ns/net")?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_paths() {
        assert_eq!(proc_pid(std::path::Path::new("/proc/12/ns/net")), Some(12));
        for other in ["/proc/self/ns/net", "/proc/1/ns/ipc", "/run/netns/a", "/proc//ns/net", "/proc/1/task/1/ns/net"] {
            assert_eq!(proc_pid(std::path::Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn only_processes_are_bound_to_a_writing() {
        assert_eq!(NetnsSlot::new(NetnsRef::Pid(5), 9).written_at, 9);
        assert_eq!(NetnsSlot::new(NetnsRef::File("/proc/5/ns/net".into()), 9).written_at, 9);
        assert_eq!(NetnsSlot::new(NetnsRef::File("/run/netns/a".into()), 9).written_at, 0);
        assert_eq!(NetnsSlot::new(NetnsRef::Named("a".into()), 9).written_at, 0);
    }
}
