//! Which process each written PID was bound to, kept over restarts in one small file.
//!
//! Without it, an agent that restarts would bind a key to whatever process has the number by then.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::model::netns::proc_pid;
use crate::model::{NetnsRef, NetnsSlot};

/// Name of the file in the state directory.
pub const FILE_NAME: &str = "pid-bindings.json";

/// A PID as it was written: the number and the revision of the writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Writing {
    /// The number.
    pub pid: u32,
    /// Mod revision of the key.
    pub written_at: i64,
}

impl Writing {
    /// The writing that this slot stands for, if it refers to a process.
    pub fn of(slot: &NetnsSlot) -> Option<Self> {
        let pid = match &slot.reference {
            NetnsRef::Pid(pid) => Some(*pid),
            NetnsRef::File(path) => proc_pid(path),
            _ => None,
        };
        pid.map(|pid| Self { pid, written_at: slot.written_at })
    }
}

/// A process, in a way that is still true after a restart of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMark {
    /// Start time, field 22 of `/proc/<pid>/stat`, in clock ticks since the boot. Two processes can share one tick (10 ms).
    pub started: u64,
    /// Inode of its pidfd: never used twice in one boot since Linux 6.9, the same for all processes before.
    pub inode: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
}

/// All bindings, in memory and on disk.
#[derive(Debug)]
pub struct Bindings {
    file: Option<PathBuf>,
    known: BTreeMap<Writing, ProcessMark>,
    dirty: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    pid: u32,
    written_at: i64,
    started: u64,
    inode: u64,
    boot: String,
}

impl Bindings {
    /// Reads the file in the state directory; a missing one is an empty one. Without a directory nothing is kept. A damaged one is put
    /// aside as `….damaged`: written PIDs are then bound anew, which is said in the log.
    ///
    /// # Errors
    /// When it cannot be read or put aside.
    pub fn load(state_dir: Option<&Path>) -> io::Result<Self> {
        let file = state_dir.map(|dir| dir.join(FILE_NAME));
        let records = file.as_deref().map(read_records).transpose()?.unwrap_or_default();
        let known = records
            .into_iter()
            .map(|r| (Writing { pid: r.pid, written_at: r.written_at }, ProcessMark { started: r.started, inode: r.inode, boot: r.boot }))
            .collect();
        Ok(Self { file, known, dirty: false })
    }

    /// The process that this writing is bound to.
    pub fn get(&self, writing: Writing) -> Option<&ProcessMark> {
        self.known.get(&writing)
    }

    /// Binds a writing.
    pub fn insert(&mut self, writing: Writing, mark: ProcessMark) {
        self.known.insert(writing, mark);
        self.dirty = true;
    }

    /// Forgets all writings but these.
    pub fn retain(&mut self, keep: impl Fn(Writing) -> bool) {
        let before = self.known.len();
        self.known.retain(|writing, _| keep(*writing));
        self.dirty |= self.known.len() != before;
    }

    /// Writes the file if anything changed since. All or nothing: a new file takes the old one's place.
    ///
    /// # Errors
    /// What the system says; the next call tries again.
    pub fn save(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.dirty) else { return Ok(()) };
        let records: Vec<Record> = self
            .known
            .iter()
            .map(|(&Writing { pid, written_at }, mark)| Record {
                pid,
                written_at,
                started: mark.started,
                inode: mark.inode,
                boot: mark.boot.clone(),
            })
            .collect();
        replace(file, &serde_json::to_vec_pretty(&records)?)?;
        self.dirty = false;
        Ok(())
    }
}

fn read_records(file: &Path) -> io::Result<Vec<Record>> {
    let text = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        answer => answer?,
    };
    match serde_json::from_slice(&text) {
        Ok(records) => Ok(records),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "PID bindings are damaged: PIDs that are written now are bound anew");
            fs::rename(file, file.with_extension("json.damaged"))?;
            Ok(Vec::new())
        }
    }
}

fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = file.with_extension("json.new");
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    out.write_all(content)?;
    out.sync_all()?;
    fs::rename(&new, file)?;
    // The rename itself is on disk only when the directory is.
    file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn survives_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        let written = |pid, written_at| Writing { pid, written_at };
        let mark = |n| ProcessMark { started: n, inode: n, boot: "b".to_owned() };
        let mut bindings = Bindings::load(Some(dir.path())).unwrap();
        bindings.insert(written(5, 9), mark(1));
        bindings.insert(written(5, 10), mark(2));
        bindings.save().unwrap();
        assert_eq!(fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode() & 0o777, 0o600);

        let mut again = Bindings::load(Some(dir.path())).unwrap();
        assert_eq!((again.get(written(5, 9)), again.get(written(5, 10)), again.get(written(6, 9))), (Some(&mark(1)), Some(&mark(2)), None));
        again.retain(|writing| writing.written_at == 10);
        again.save().unwrap();
        let last = Bindings::load(Some(dir.path())).unwrap();
        assert_eq!((last.get(written(5, 9)), last.get(written(5, 10))), (None, Some(&mark(2))));
    }

    #[test]
    fn rubbish_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE_NAME), "[{").unwrap();
        assert!(Bindings::load(Some(dir.path())).unwrap().known.is_empty());
        assert_eq!(fs::read_to_string(dir.path().join("pid-bindings.json.damaged")).unwrap(), "[{");
    }
}
