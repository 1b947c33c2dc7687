//! The only place that enters a namespace.
//!
//! A thread that called `setns` never comes back: it does one thing and ends, so no other work can ever run in a foreign namespace by
//! accident. What it hands out (a socket) stays bound to the namespace in which it was made.

use std::io;
use std::os::fd::BorrowedFd;
use std::thread;

use nix::sched::CloneFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::linux::sys;
use crate::model::NetnsId;

/// Runs a closure inside a namespace, on a thread of its own, and waits for it.
///
/// # Errors
/// What the closure or `setns` says; `EAGAIN` where no thread can be had (a limit of processes).
pub fn in_netns<T: Send>(netns: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let inside = move || {
            enter(netns)?;
            work()
        };
        // Not `scope.spawn`: that one panics where a thread cannot be had.
        let thread = thread::Builder::new().name("netns".into()).spawn_scoped(scope, inside)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside the namespace panicked")))
    })
}

#[allow(clippy::disallowed_methods, reason = "this is the place the rule points to")]
fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::sched::setns(netns, CloneFlags::CLONE_NEWNET)?)
}

/// The identity of the calling thread's namespace.
///
/// # Errors
/// What the system says; a kernel before 5.14 has no such identity.
pub fn own_cookie() -> io::Result<NetnsId> {
    let probe = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    sys::netns_of(&probe)
}
