//! A NIC that one process has for itself, against another one that would change it at the same time; and ending a holder that does not let go.
//!
//! The lock is the kernel's, on a file beside the journal: it ends with its holder, however that ends. Who holds it is asked of the kernel too, so that
//! nothing stale can be read, and nobody is ended for having a number that somebody else had before.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A NIC that is taken. It ends with the value and with the process.
pub struct NicLock {
    _file: Flock<File>,
}

/// Takes the lock on this file; waits while another one has it.
///
/// # Errors
/// `WouldBlock` when it is not free within the limit.
pub(super) fn take(path: &Path, limit: Duration) -> io::Result<NicLock> {
    let deadline = Instant::now() + limit;
    let mut file = open(path)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(NicLock { _file: locked }),
            Err((unlocked, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = unlocked,
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A file system that takes nothing any more must not keep anybody from giving a NIC back.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC);
    let mut writing = options.clone();
    writing.create(true).truncate(false).write(true).mode(0o600);
    writing.open(path).or_else(|error| options.read(true).open(path).map_err(|_| error))
}

/// Who holds the lock on this file; `None` when nobody does, or nobody whom this process can see.
fn holder(path: &Path) -> Option<i32> {
    let wanted = fs::metadata(path).ok()?;
    let has_it_open = |pid: &i32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|file| (file.dev(), file.ino()) == (wanted.dev(), wanted.ino()))
    };
    // File systems with volumes show devices there that files do not have, so the device is compared by the open files.
    holders(&fs::read_to_string("/proc/locks").ok()?, wanted.ino()).into_iter().find(has_it_open)
}

/// The processes that, by the text of `/proc/locks`, have an exclusive lock of this kind on a file of this number.
fn holders(locks: &str, inode: u64) -> Vec<i32> {
    let holds = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = words[..] else { return None };
        (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
    };
    locks.lines().filter_map(holds).filter(|pid| *pid > 1).collect()
}

/// Waits for the lock; a process that holds it all the time is ended. Its number, if that was done.
pub(super) fn make_way(path: &Path, limit: Duration) -> Option<i32> {
    let first = holder(path);
    if take(path, limit).is_ok() {
        return None;
    }
    let number = holder(path).filter(|now| first == Some(*now))?;
    let process = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    // Only now it is certain that the descriptor is the holder's: the number may have found another owner in between.
    if holder(path) != Some(number) {
        return None;
    }
    pidfd_send_signal(process, Signal::KILL).ok().map(|()| number)
}

/// The lock's file of a journal's path.
pub(super) fn path(journal: &Path) -> PathBuf {
    journal.with_extension("lock")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn what_the_kernel_tells_of_locks() {
        let text = "1: FLOCK  ADVISORY  WRITE 7093 fe:00:10027016 0 EOF\n2: POSIX  ADVISORY  WRITE 5 fe:00:10027016 0 EOF\n\
                    3: FLOCK  ADVISORY  READ 6 fe:00:10027016 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 8 fe:00:10027016 0 EOF\n\
                    4: FLOCK  ADVISORY  WRITE 9 fe:00:1 0 EOF\n5: FLOCK  ADVISORY  WRITE 0 00:2a:10027016 0 EOF\nnonsense\n";
        assert_eq!(holders(text, 10_027_016), [7093]);
        assert_eq!(holders(text, 1), [9]);
        assert_eq!(holders("", 1), [] as [i32; 0]);
    }

    #[test]
    fn a_holder_is_found_and_one_that_does_not_let_go_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth0.lock");
        assert_eq!((holder(&path), make_way(&path, SHORT)), (None, None));
        // The program that `flock` starts does not share its lock, and ends with it.
        let program = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", "echo held && exec sleep 600"];
        let mut stuck = Command::new("flock").arg("-o").arg(&path).args(program).stdout(Stdio::piped()).spawn().unwrap();
        io::Read::read_exact(stuck.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(take(&path, SHORT).is_err());
        let holder = holder(&path);
        assert_eq!(holder, i32::try_from(stuck.id()).ok());
        assert_eq!(make_way(&path, SHORT), holder);
        stuck.wait().unwrap();
        assert!(take(&path, Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn one_that_lets_go_in_time_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth0.lock");
        let held = take(&path, SHORT).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(SHORT);
                drop(held);
            });
            assert_eq!(make_way(&path, Duration::from_secs(60)), None);
        });
    }
}
