//! Which containers held which labels, kept over restarts in one small file: an agent that starts while the runtime is away finds the namespaces again
//! by the processes that are still there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::namespace::bindings::ProcessMark;

/// Name of the file in the state directory.
const FILE_NAME: &str = "microservices.json";
/// At most this share of the time is spent on writing: one part in twenty.
const WRITE_SHARE: u32 = 20;

/// A run whose first process is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub label: String,
    pub id: String,
    pub name: String,
    pub started: Option<i64>,
    pub pid: i32,
    pub sandbox: Option<PathBuf>,
    /// Identity of the namespace, of worth within one boot.
    pub cookie: u64,
    /// Start time, pidfd's inode and boot of the process; see [`ProcessMark`].
    pub process: (u64, u64, String),
}

impl Record {
    /// The process that it was.
    pub fn mark(&self) -> ProcessMark {
        let (started, inode, boot) = self.process.clone();
        ProcessMark { started, inode, boot }
    }

    /// How a process is written.
    pub fn process(mark: ProcessMark) -> (u64, u64, String) {
        (mark.started, mark.inode, mark.boot)
    }
}

/// The file. Not synced to disk: a crash of the process loses nothing, and after one of the machine the containers' processes are gone anyway.
#[derive(Debug)]
pub struct Memory {
    file: Option<PathBuf>,
    dirty: bool,
    failing: bool,
    next: Instant,
}

impl Memory {
    /// The file in this state directory; without one nothing is kept.
    pub fn new(state_dir: Option<&Path>) -> Self {
        Self { file: state_dir.map(|dir| dir.join(FILE_NAME)), dirty: false, failing: false, next: Instant::now() }
    }

    /// What an earlier run left. A file that cannot be read is as good as none.
    pub fn load(&self) -> Vec<Record> {
        let Some(file) = &self.file else { return Vec::new() };
        let read = fs::read(file).and_then(|text| Ok(serde_json::from_slice(&text)?));
        match read {
            Ok(records) => records,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "which containers held which labels cannot be read; the container runtime will tell");
                Vec::new()
            }
        }
    }

    /// What is written is not true any more.
    pub fn touch(&mut self) {
        self.dirty = self.file.is_some();
    }

    /// When it is to be written, if it is.
    pub fn due(&self) -> Option<Instant> {
        self.dirty.then_some(self.next)
    }

    /// Writes the file if that is due. All or nothing: a new file takes the old one's place.
    pub fn save(&mut self, records: impl FnOnce() -> Vec<Record>) {
        let begun = Instant::now();
        let Some(file) = self.file.as_ref().filter(|_| self.dirty && begun >= self.next) else { return };
        let written = serde_json::to_vec(&records()).map_err(io::Error::other).and_then(|text| replace(file, &text));
        let end = Instant::now();
        match written {
            Ok(()) => {
                (self.dirty, self.failing) = (false, false);
                self.next = end + end.duration_since(begun) * WRITE_SHARE;
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(file = %file.display(), %error, "cannot remember which containers hold which labels");
                }
                self.next = end + Duration::from_secs(1);
            }
        }
    }
}

fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let new = file.with_extension("json.new");
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?.write_all(text)?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_rubbish_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let process = (1, 2, "boot".to_owned());
        let record = Record {
            label: "ms1".to_owned(),
            id: "c".to_owned(),
            name: "web".to_owned(),
            started: Some(5),
            pid: 7,
            sandbox: Some("/run/x".into()),
            cookie: 9,
            process,
        };
        let mut memory = Memory::new(Some(dir.path()));
        assert_eq!((memory.load(), memory.due()), (Vec::new(), None));
        memory.save(|| panic!("nothing is to be written"));
        memory.touch();
        memory.save(|| vec![record.clone()]);
        assert_eq!((memory.load(), memory.due()), (vec![record], None));
        fs::write(dir.path().join(FILE_NAME), "[{").unwrap();
        assert_eq!(memory.load(), Vec::new());
        let mut nowhere = Memory::new(None);
        nowhere.touch();
        assert_eq!(nowhere.due(), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_tried_again_later() {
        let mut memory = Memory::new(Some(Path::new("/proc/nowhere")));
        memory.touch();
        memory.save(Vec::new);
        assert!(memory.due().is_some_and(|due| due > Instant::now()));
    }
}
