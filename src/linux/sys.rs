//! The two system calls that no crate wraps, and nothing else: a socket's namespace as a number and as a file.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

use crate::model::NetnsId;

/// `asm-generic/socket.h`: identity of the namespace in which a socket was made (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `linux/sockios.h`: a file of the socket's namespace.
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// Tells which namespace a socket lives in.
#[allow(unsafe_code, reason = "nix has the call but not this option")]
pub(super) fn netns_of(socket: &impl AsFd) -> io::Result<NetnsId> {
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed and so open; the kernel writes at most `length` bytes, the size of the value.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length) };
    Errno::result(result)?;
    NetnsId::new(cookie).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

/// Opens the namespace of a socket. It is the same one for as long as the socket lives, whatever became of names and processes.
#[allow(unsafe_code, reason = "the ioctl takes no argument and returns a new descriptor, which nobody else can own")]
pub(super) fn netns_file(socket: &impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is borrowed and so open; SIOCGSKNS reads and writes no memory of ours.
    let fd = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
