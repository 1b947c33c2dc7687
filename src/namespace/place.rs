//! Namespaces that are referred to by a path: looked at from outside, and opened only when they are what they should be.
//!
//! A path may lead to anything: a FIFO that blocks who opens it, a device that acts on being opened, a link that leads out of a
//! container. So a path is first only pointed at (`O_PATH`, no links on the way), and opened when it is a network namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::libc;
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use super::{OpenNetns, sys};

const NSFS: FsType = FsType(0x6e73_6673);
/// Answer `EAGAIN` rather than wait for a disk, a server or a user's file system (`RESOLVE_CACHED`, Linux 5.12).
const RESOLVE_CACHED: libc::c_ulonglong = 0x20;

/// Where a namespace file is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    /// The operator's folder and the name in it; its path is trusted, the name is not.
    in_folder: Option<(PathBuf, String)>,
    /// A plain file here is a namespace in the making, or what is left of one.
    stubs: bool,
    /// Below one of the folders in which namespace files are accepted.
    accepted: bool,
}

/// What stands at a place.
#[derive(Debug)]
pub enum Sight {
    /// A network namespace, opened, and the unique id of its mount where the kernel tells it.
    Netns(OwnedFd, Option<u64>),
    /// Nothing.
    Missing,
    /// A plain file in a folder of namespaces on which nothing is mounted (yet).
    Stub,
    /// Something that can never be used: `is a directory, …`.
    Useless(String),
    /// It cannot be told at the moment.
    Unknown(io::Error),
}

impl Place {
    /// The place of a named namespace.
    ///
    /// # Errors
    /// Why the name is none, as a phrase.
    pub fn named(folder: &Path, name: &str) -> Result<Self, String> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) || name.len() > 255 {
            return Err("is no name of a namespace: 1 to 255 bytes, without `/`, not `.` or `..`".to_owned());
        }
        let folder = normalised(folder);
        let path = folder.join(name);
        Ok(Self { path, in_folder: Some((folder, name.to_owned())), stubs: true, accepted: true })
    }

    /// The place of a namespace file. `folders` hold namespaces and the stubs of those that are being made; files are accepted there and
    /// below `roots`.
    ///
    /// # Errors
    /// Why the path is not accepted, as a phrase.
    pub fn file(path: &Path, folders: &[PathBuf], roots: &[PathBuf]) -> Result<Self, String> {
        if !path.is_absolute() {
            return Err("is not an absolute path".to_owned());
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err("has `..` in its path".to_owned());
        }
        let path = normalised(path);
        let stubs = folders.iter().any(|folder| path.parent() == Some(&normalised(folder)));
        let accepted = stubs || roots.iter().any(|root| path.starts_with(normalised(root)));
        Ok(Self { path, in_folder: None, stubs, accepted })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks, and opens what is a network namespace. Never waits for what stands there.
    pub fn look(&self) -> Sight {
        let sight = match self.point_at() {
            Ok(file) => self.identify(&file).unwrap_or_else(Sight::Unknown),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Sight::Missing,
            Err(Errno::ELOOP) => Sight::Useless("leads through a symbolic link; write the real path".to_owned()),
            Err(Errno::ENAMETOOLONG) => Sight::Useless("is a path that is too long".to_owned()),
            Err(Errno::EXDEV) => Sight::Useless("leads out of its folder".to_owned()),
            Err(Errno::EINVAL) => Sight::Useless("is no legal path".to_owned()),
            Err(errno) => Sight::Unknown(errno.into()),
        };
        match sight {
            Sight::Useless(what) => Sight::Useless(what),
            _ if !self.accepted => Sight::Useless("is not below `/run` or `/var/run`, where namespace files are accepted".to_owned()),
            sight => sight,
        }
    }

    /// Whether the mount with this unique id still stands there: then it is the same namespace, for a mount never changes its own.
    pub fn still_shows(&self, mount: u64) -> bool {
        matches!(sys::mount_id_at(&self.path), Ok(Some(now)) if now == mount)
    }

    fn point_at(&self) -> Result<OwnedFd, Errno> {
        let mut resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        if let Some((folder, name)) = &self.in_folder {
            let folder = open(folder, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
            resolve |= ResolveFlag::RESOLVE_BENEATH;
            return openat2(folder, name.as_str(), OpenHow::new().flags(flags).resolve(resolve));
        }
        if !self.accepted {
            // It will be refused anyway; this only finds the words for it, and must not wait for some user's file system.
            resolve |= ResolveFlag::from_bits_retain(RESOLVE_CACHED);
        }
        openat2(AT_FDCWD, &self.path, OpenHow::new().flags(flags).resolve(resolve))
    }

    fn identify(&self, file: &OwnedFd) -> io::Result<Sight> {
        if fstatfs(file)?.filesystem_type() != NSFS {
            return Ok(self.describe(SFlag::from_bits_truncate(fstat(file)?.st_mode) & SFlag::S_IFMT));
        }
        let mount = sys::mount_id_of(file.as_fd())?;
        let ns = reopen(file)?;
        match sys::namespace_type(ns.as_fd())? {
            libc::CLONE_NEWNET => Ok(Sight::Netns(ns, mount)),
            other => Ok(Sight::Useless(format!("is a {} namespace, not a network namespace", kind_word(other)))),
        }
    }

    fn describe(&self, kind: SFlag) -> Sight {
        let what = match kind {
            SFlag::S_IFREG if self.stubs => return Sight::Stub,
            SFlag::S_IFREG => "plain file",
            SFlag::S_IFDIR => "directory",
            SFlag::S_IFIFO => "FIFO",
            SFlag::S_IFSOCK => "socket",
            SFlag::S_IFLNK => "symbolic link",
            SFlag::S_IFBLK => "block device",
            SFlag::S_IFCHR => "character device",
            _ => "file of an unknown kind",
        };
        Sight::Useless(format!("is a {what}, not a network namespace"))
    }
}

impl OpenNetns for Place {
    fn open(&self) -> io::Result<OwnedFd> {
        match self.look() {
            Sight::Netns(file, _) => Ok(file),
            Sight::Missing | Sight::Stub => Err(Errno::ENOENT.into()),
            Sight::Useless(_) => Err(Errno::ESTALE.into()),
            Sight::Unknown(error) => Err(error),
        }
    }
}

/// Opens for reading what so far is only pointed at.
fn reopen(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// The path without `.` and double slashes, and with `/run` for `/var/run`, which is a link to it on every current system.
pub fn normalised(path: &Path) -> PathBuf {
    let clean: PathBuf = path.components().filter(|part| *part != Component::CurDir).collect();
    match clean.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => clean,
    }
}

fn kind_word(flag: i32) -> &'static str {
    match flag {
        libc::CLONE_NEWUTS => "UTS",
        libc::CLONE_NEWIPC => "IPC",
        libc::CLONE_NEWPID => "PID",
        libc::CLONE_NEWNS => "mount",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWCGROUP => "cgroup",
        0x80 => "time",
        _ => "foreign",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised() {
        for (given, want) in
            [("/var/run/netns/a", "/run/netns/a"), ("/run//netns/./a/", "/run/netns/a"), ("/var/runner/a", "/var/runner/a")]
        {
            assert_eq!(normalised(Path::new(given)), Path::new(want));
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a/b", "../a", "/a", "a\0b", &"x".repeat(256)] {
            assert!(Place::named(Path::new("/run/netns"), name).is_err(), "{name:?}");
        }
        assert!(Place::named(Path::new("/run/netns"), &"x".repeat(255)).is_ok());
    }

    #[test]
    fn files_must_be_absolute_and_direct() {
        let roots = [PathBuf::from("/run")];
        assert!(Place::file(Path::new("run/a"), &[], &roots).is_err());
        assert!(Place::file(Path::new("/run/../etc/a"), &[], &roots).is_err());
        assert!(Place::file(Path::new("/var/run/a/b"), &[], &roots).unwrap().accepted);
        assert!(!Place::file(Path::new("/runner/a"), &[], &roots).unwrap().accepted);
        assert!(Place::file(Path::new("/run/netns/a"), &["/var/run/netns".into()], &[]).unwrap().stubs);
    }
}
