//! The system calls about namespaces and processes that nix lacks, each behind a safe function. No policy here.
#![allow(unsafe_code, reason = "nix 0.31 has none of these; each call is wrapped here once")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::NixPath;
use nix::libc;

/// Unique for as long as the machine runs, unlike the plain mount id (Linux 6.8).
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
/// `_IOR(0xb7, 13, __u64)`: a namespace's number, for a network namespace the same as its cookie (Linux 6.18).
const NS_GET_ID: libc::Ioctl = 0x8008_b70d;
/// `_IO(0xff, 4)` (Linux 6.11).
const PIDFD_GET_NET_NAMESPACE: libc::Ioctl = 0xff04;

/// Opens a process; close-on-exec. `ESRCH`: no such process; `ENOENT` or `EINVAL`: the number is a thread's.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a non-negative answer is a descriptor that nobody else owns.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        owned(i32::try_from(fd).map_err(io::Error::other)?)
    }
}

/// Whether the process still runs; a zombie does not count as running for [`pidfd_netns`], but does here.
pub fn pidfd_exists(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a null `siginfo` is allowed; signal 0 only checks.
    let answer = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens the network namespace of a process. `ESRCH`: it has ended; `ENOTTY`: the kernel cannot.
pub fn pidfd_netns(pidfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: this ioctl takes no argument; its answer is a descriptor that nobody else owns.
    unsafe { owned(libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_NET_NAMESPACE, 0)) }
}

/// The `CLONE_NEW…` flag that tells what kind of namespace this is.
pub fn namespace_type(ns: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: this ioctl takes no argument.
    let answer = unsafe { libc::ioctl(ns.as_raw_fd(), libc::NS_GET_NSTYPE) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The namespace's number, where the kernel tells it.
pub fn namespace_id(ns: BorrowedFd<'_>) -> io::Result<u64> {
    let mut id = 0_u64;
    // SAFETY: the kernel writes one u64 where the pointer leads.
    let answer = unsafe { libc::ioctl(ns.as_raw_fd(), NS_GET_ID, &raw mut id) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

/// The unique id of the mount that this path leads to; `None` where the kernel has none. Does not follow a link at the end.
pub fn mount_id_at(path: &Path) -> io::Result<Option<u64>> {
    path.with_nix_path(|path| statx_mount_id(libc::AT_FDCWD, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT))?
}

/// As [`mount_id_at`], of an open file.
pub fn mount_id_of(file: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    statx_mount_id(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH)
}

fn statx_mount_id(dir: i32, path: *const libc::c_char, flags: i32) -> io::Result<Option<u64>> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: `path` is a C string that lives during the call, and the answer has the size the kernel knows; zeroes are a legal statx.
    let (result, answer) = unsafe {
        let result = libc::statx(dir, path, flags | libc::AT_STATX_DONT_SYNC, STATX_MNT_ID_UNIQUE, answer.as_mut_ptr());
        (result, answer.assume_init())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((answer.stx_mask & STATX_MNT_ID_UNIQUE != 0).then_some(answer.stx_mnt_id))
}

/// # Safety
/// `fd` is the answer of a call that makes a descriptor.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: as the caller promises.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}
