//! The only place that enters a namespace: threads that go in, do one thing and end.
//!
//! Owns `setns` and `unshare`. Refuses to bring a thread back: one that was elsewhere never touches the agent's own namespace again,
//! so no failure on the way back can make later work happen in the wrong namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::thread;

use nix::libc;
use nix::sched::CloneFlags;

use crate::model::NetnsId;

/// Runs `f` on a new thread inside the namespace `ns`; the thread ends with it.
///
/// # Errors
/// When the thread cannot be started, when the namespace cannot be entered, and what `f` says.
pub fn in_netns<T: Send>(ns: BorrowedFd<'_>, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    #[allow(clippy::disallowed_methods, reason = "the thread ends here and never goes back")]
    let enter = move || nix::sched::setns(ns, CloneFlags::CLONE_NEWNET);
    on_own_thread(move || {
        enter()?;
        f()
    })
}

/// Runs `f` on a new thread inside a namespace that is made for it. The namespace lives on only if `f` pins it (mounts it somewhere).
///
/// # Errors
/// As [`in_netns`]; `ENOSPC` when the host may have no more namespaces.
pub fn in_new_netns<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    #[allow(clippy::disallowed_methods, reason = "the thread ends here and never goes back")]
    let enter = || nix::sched::unshare(CloneFlags::CLONE_NEWNET);
    on_own_thread(move || {
        enter()?;
        f()
    })
}

/// The cookie of the namespace behind this file: its identity, never used twice between two boots.
///
/// # Errors
/// As [`in_netns`].
pub fn cookie_of(ns: BorrowedFd<'_>) -> io::Result<NetnsId> {
    in_netns(ns, own_cookie)
}

/// The identity of the namespace that the calling thread is in.
///
/// # Errors
/// When no socket can be opened, or the kernel knows no cookies (before 5.14).
pub fn own_cookie() -> io::Result<NetnsId> {
    // Sockets of every family know their namespace; this one needs no driver and no permission.
    let cookie = socket_cookie(&UnixDatagram::unbound()?)?;
    NetnsId::new(cookie).ok_or_else(|| io::Error::other("the kernel says 0 for the namespace's cookie"))
}

#[allow(unsafe_code, reason = "nix has no SO_NETNS_COOKIE")]
fn socket_cookie(socket: &UnixDatagram) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut size = libc::socklen_t::try_from(size_of::<u64>()).map_err(io::Error::other)?;
    // SAFETY: the pointers lead to a u64 and to its size, both live for the whole call.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast::<libc::c_void>(),
            &raw mut size,
        )
    };
    if answer == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

fn on_own_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        // `Builder`, not `thread::spawn`: that one panics when the process may have no more threads.
        let thread = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread inside the namespace panicked")))
    })
}
