//! Namespaces of processes: a process is known by its descriptor, never by its number, which is used again within seconds.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

use super::bindings::ProcessMark;
use super::{OpenNetns, sys};

/// One process. The descriptor keeps neither the process nor its namespace alive.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
    started: u64,
    inode: u64,
}

/// What is found under a process number.
#[derive(Debug)]
pub enum Found {
    /// A process, possibly one that has ended and was not collected yet.
    Process(Process),
    /// Nothing.
    Nobody,
    /// A thread's number.
    Thread,
}

impl Process {
    /// Opens the process with this number.
    ///
    /// # Errors
    /// What the system says; it is then unknown whether there is one.
    pub fn find(pid: i32) -> io::Result<Found> {
        let pidfd = match sys::pidfd_open(pid) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                return match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ESRCH) => Ok(Found::Nobody),
                    // ENOENT since Linux 6.9, EINVAL before.
                    Some(Errno::ENOENT | Errno::EINVAL) => Ok(Found::Thread),
                    _ => Err(error),
                };
            }
        };
        let inode = fstat(&pidfd)?.st_ino;
        match start_time(pid) {
            // Only a process that is still there now, after the reading, was the one that was read about.
            Ok(started) if is_there(pidfd.as_fd())? => Ok(Found::Process(Self { pid, pidfd, started, inode })),
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(Found::Nobody),
        }
    }

    /// When it was started, in clock ticks since the boot.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// What tells it from every other process, together with this boot's id.
    pub fn mark(&self, boot: &str) -> ProcessMark {
        ProcessMark { started: self.started, inode: self.inode, boot: boot.to_owned() }
    }

    /// Whether a control group of it is named after this container, as those of Docker and Podman are (`…/docker/<id>`, `…/libpod-<id>.scope`).
    ///
    /// # Errors
    /// What the system says; `ESRCH` or `ENOENT` when it has ended.
    pub fn is_in_group_of(&self, container: &str) -> io::Result<bool> {
        let groups = fs::read(format!("/proc/{}/cgroup", self.pid))?;
        // Only a process that is still there now was the one whose groups were read.
        if is_there(self.pidfd())? { Ok(names_container(&groups, container)) } else { Err(Errno::ESRCH.into()) }
    }

    /// The descriptor; becomes readable when the process ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl OpenNetns for Process {
    /// `ESRCH` or `ENOENT` when it has ended.
    fn open(&self) -> io::Result<OwnedFd> {
        match sys::pidfd_netns(self.pidfd()) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOTTY as i32) => {
                let path = format!("/proc/{}/ns/net", self.pid);
                let file = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
                // Only a process that is still there now was the one whose namespace was opened.
                if is_there(self.pidfd())? { file.map_err(io::Error::from) } else { Err(Errno::ESRCH.into()) }
            }
            Err(error) if is_gone(&error) => Err(Errno::ESRCH.into()),
            answer => answer,
        }
    }
}

/// The machine's present boot: process start times and namespace cookies mean something only within one.
///
/// # Errors
/// What the system says.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Whether the error says that the process has ended.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::ESRCH | Errno::ENOENT))
}

fn is_there(pidfd: BorrowedFd<'_>) -> io::Result<bool> {
    match sys::pidfd_exists(pidfd) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        // No right to send it signals, but it is there.
        Err(error) if error.raw_os_error() == Some(Errno::EPERM as i32) => Ok(true),
        Err(error) => Err(error),
    }
}

fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    parse_start_time(&stat).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time")))
}

/// Field 22. The command in field 2 may hold anything, also blanks and brackets, so fields are counted from its last bracket.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let bracket = stat.iter().rposition(|b| *b == b')')?;
    std::str::from_utf8(&stat[bracket + 1..]).ok()?.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Whether the id is a whole word of a group's path: each line is `number:controllers:path`.
fn names_container(groups: &[u8], container: &str) -> bool {
    let paths = groups.split(|b| *b == b'\n').filter_map(|line| line.splitn(3, |b| *b == b':').nth(2));
    let mut words = paths.flat_map(|path| path.split(|b| !b.is_ascii_alphanumeric()));
    !container.is_empty() && words.any(|word| word == container.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_after_containers() {
        let id = "4f1d3a";
        for (groups, wanted) in [
            ("0::/docker/4f1d3a\n", true),
            ("0::/system.slice/docker-4f1d3a.scope\n", true),
            ("0::/machine.slice/libpod-4f1d3a.scope/container\n", true),
            ("2:cpu:/\n1:name=systemd:/docker/4f1d3a\n0::/\n", true),
            ("0::/../4f1d3a\n", true),
            ("0::/docker/4f1d3a/init.scope\n", true),
            ("0::/docker/4f1d3ab\n", false),
            ("1:name=4f1d3a:/\n0::/user.slice\n", false),
            ("", false),
        ] {
            assert_eq!(names_container(groups.as_bytes(), id), wanted, "{groups}");
        }
        assert!(!names_container(b"0::/", ""));
    }

    #[test]
    fn start_time_is_found_behind_any_command() {
        let stat = b"12 (a) b 1 (x)) S 1 12 12 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0";
        assert_eq!(parse_start_time(stat), Some(987));
        assert_eq!(parse_start_time(b"12 (a"), None);
    }
}
