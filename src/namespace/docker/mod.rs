//! Microservices: containers with a label in their environment, as a runtime that speaks Docker's API tells of them.
//!
//! A follower on the async runtime asks and listens; it opens nothing. The tracker's thread keeps the book of what was told, opens namespaces, and
//! watches the kernel for their end. So a runtime that hangs holds up nobody, and one that is away takes nothing down.

mod book;
mod client;
mod env;
mod follow;
mod health;
mod memory;
mod pin;
mod port;
mod roster;

pub use follow::{Follower, Timing};
pub use health::{RuntimeCounters, RuntimeHealth};
pub use port::Port;

pub(super) use port::{Desk, News};
pub(super) use roster::Roster;

/// How people write where a runtime is.
#[must_use]
pub fn endpoint(socket: &std::path::Path) -> String {
    format!("unix://{}", socket.display())
}

/// Name and short id, as people know containers: `web (0123456789ab)`.
fn short(container: &book::Named) -> String {
    let id: String = container.id.chars().take(12).collect();
    if container.name.is_empty() { id } else { format!("{} ({id})", container.name.escape_debug()) }
}
