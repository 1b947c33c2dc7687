//! Makes named namespaces, in the way of `ip netns add`. Never removes one: whoever else uses it would lose it.

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, open, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat, write};

use super::place::{Place, Sight};
use crate::linux::netns_thread::in_new_netns;

/// How long a bare file of someone else may wait for its mount before we say what is there. `ip netns add` needs up to 6 ms.
const STUB_GRACE: Duration = Duration::from_millis(130);
/// What we write into the file before the mount covers it: killed in between, the file tells that it is ours. Bare files of others are waited for.
const OUR_STUB: &[u8] = b"made by vnf-agent, waits for its mount\n";
/// How long we wait for another agent that is creating; after that it is taken as stuck.
const LOCK_GRACE: Duration = Duration::from_secs(2);
const NOTHING: Option<&str> = None;

/// Makes the namespace unless it is there. True: it was made here.
///
/// # Errors
/// What was attempted and what the system says; nothing half-made stays.
pub fn create(folder: &Path, name: &str) -> io::Result<bool> {
    let place = Place::named(folder, name).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("`{name}` {why}")))?;
    let shown = folder.display();
    attempt(format_args!("make the folder {shown}"), DirBuilder::new().recursive(true).mode(0o755).create(folder))?;
    // Two agents that make one name must not mount one over the other.
    let _turn = attempt(format_args!("lock {shown}"), take_turn(folder))?;
    attempt(format_args!("make {shown} a shared mount"), share(folder))?;
    // Opened after that: the mount may be a new one.
    let dir = open(folder, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    match make_stub(&dir, name) {
        Ok(()) => mount_new(&dir, name).inspect_err(|_| {
            // Made a moment ago by us, and nothing is mounted on it.
            let _ = unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir);
        })?,
        Err(Errno::EEXIST) if is_our_stub(&place, &dir, name)? => mount_new(&dir, name)?,
        Err(Errno::EEXIST) => return Ok(false),
        Err(errno) => return attempt(format_args!("make a file in {shown}"), Err(errno)),
    }
    Ok(true)
}

fn attempt<T>(what: fmt::Arguments<'_>, outcome: Result<T, impl Into<io::Error>>) -> io::Result<T> {
    outcome.map_err(|error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("cannot {what}: {error}"))
    })
}

/// Makes the file to mount on, with our words in it from its first moment: a kill in between leaves nothing, or what is known as ours.
fn make_stub(dir: &OwnedFd, name: &str) -> nix::Result<()> {
    let mode = Mode::from_bits_truncate(0o444);
    let write = |file: OwnedFd| {
        write(&file, OUR_STUB)?;
        Ok(file)
    };
    match openat(dir, ".", OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC, mode).and_then(write) {
        Ok(file) => linkat(AT_FDCWD, format!("/proc/self/fd/{}", file.as_raw_fd()).as_str(), dir, name, AtFlags::AT_SYMLINK_FOLLOW),
        // A filesystem without nameless files; `/run` is never one.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR) => {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
            openat(dir, name, flags, mode).and_then(write).map(drop)
        }
        Err(errno) => Err(errno),
    }
}

/// Whether the file is a bare one that we made and were killed over. A bare file of someone else is given a moment for its mount, and never used.
fn is_our_stub(place: &Place, dir: &OwnedFd, name: &str) -> io::Result<bool> {
    let deadline = Instant::now() + STUB_GRACE;
    loop {
        match place.look() {
            Sight::Stub if says_ours(dir, name)? => return Ok(true),
            Sight::Stub if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
            Sight::Stub | Sight::Netns(..) => return Ok(false),
            Sight::Missing => return Err(Errno::ENOENT.into()),
            Sight::Useless(_) => return Err(Errno::EEXIST.into()),
            Sight::Unknown(error) => return Err(error),
        }
    }
}

fn says_ours(dir: &OwnedFd, name: &str) -> io::Result<bool> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut written = Vec::new();
    File::from(openat(dir, name, flags, Mode::empty())?).take(OUR_STUB.len() as u64 + 1).read_to_end(&mut written)?;
    Ok(written == OUR_STUB)
}

/// Mounts a new namespace on the file. Its loopback stays down, as with `ip netns add`.
fn mount_new(dir: &OwnedFd, name: &str) -> io::Result<()> {
    let file = openat(dir, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    let target = format!("/proc/self/fd/{}", file.as_raw_fd());
    let bind = || mount(Some("/proc/thread-self/ns/net"), target.as_str(), NOTHING, MsFlags::MS_BIND, NOTHING);
    attempt(format_args!("make a namespace and mount it"), in_new_netns(|| Ok(bind()?)))
}

/// Lets mounts in the folder reach the other mount namespaces (containers, services), as `ip netns add` does.
fn share(folder: &Path) -> io::Result<()> {
    let shared = || mount(NOTHING, folder, NOTHING, MsFlags::MS_SHARED | MsFlags::MS_REC, NOTHING);
    match shared() {
        Err(Errno::EINVAL) => {
            // Not a mount point yet: only those can be shared.
            mount(Some(folder), folder, NOTHING, MsFlags::MS_BIND | MsFlags::MS_REC, NOTHING)?;
            Ok(shared()?)
        }
        answer => Ok(answer?),
    }
}

fn take_turn(folder: &Path) -> io::Result<Option<Flock<OwnedFd>>> {
    let deadline = Instant::now() + LOCK_GRACE;
    let mut dir = open(folder, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    while Instant::now() < deadline {
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => dir = back,
            Err((_, errno)) => return Err(errno.into()),
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(None)
}
