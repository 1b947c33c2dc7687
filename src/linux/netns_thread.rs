//! The only place that enters a namespace: threads that go in, do one thing and end.
//!
//! A thread that called `setns` or `unshare` never comes back, so no other work can ever run in a foreign namespace by accident. What it hands out (a
//! socket) stays bound to the namespace in which it was made.

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
    #[allow(clippy::disallowed_methods, reason = "this is the place that the rule points to")]
    let enter = move || nix::sched::setns(netns, CloneFlags::CLONE_NEWNET);
    on_own_thread(move || {
        enter()?;
        work()
    })
}

/// Runs a closure inside a namespace that is made for it. The namespace lives on only if the closure pins it (mounts it somewhere).
///
/// # Errors
/// As [`in_netns`]; `ENOSPC` when the host may have no more namespaces.
pub fn in_new_netns<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    #[allow(clippy::disallowed_methods, reason = "this is the place that the rule points to")]
    let enter = || nix::sched::unshare(CloneFlags::CLONE_NEWNET);
    on_own_thread(move || {
        enter()?;
        work()
    })
}

/// The identity of the namespace behind this file.
///
/// # Errors
/// As [`in_netns`].
pub fn cookie_of(netns: BorrowedFd<'_>) -> io::Result<NetnsId> {
    in_netns(netns, own_cookie)
}

/// The identity of the calling thread's namespace.
///
/// # Errors
/// What the system says; a kernel before 5.14 has no such identity.
pub fn own_cookie() -> io::Result<NetnsId> {
    // Sockets of every family know their namespace; this one needs no driver and no permission.
    let probe = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    sys::netns_of(&probe)
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        // Not `scope.spawn`: that one panics where a thread cannot be had.
        let thread = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside the namespace panicked")))
    })
}
