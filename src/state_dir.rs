//! The state directory: one agent per directory, one agent per label and network namespace, and a small file of what must survive restarts.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;
use serde::{Deserialize, Serialize};

use crate::configurator::memory::{KnownStore, Memory, UsedNetns};
use crate::model::{AgentLabel, NetnsId, NetnsRef};

/// Folder of the label locks.
const LOCK_DIR: &str = "/run/vnf-agent";
/// How long the store's revision may run ahead of what is written of it.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// A file or folder.
    #[error("{attempted} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another agent has the directory.
    #[error("the state directory {} is in use by another agent (process {holder})", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// Another agent has the label.
    #[error("another agent with label `{label}` runs in this network namespace (process {holder})")]
    LabelInUse {
        /// The label.
        label: AgentLabel,
        /// Who.
        holder: i32,
    },
}

/// A locked state directory, and a locked label. Both are free again when the process ends, however it ends.
pub struct StateDir {
    path: PathBuf,
    remembered: Remembered,
    _directory_lock: Flock<File>,
    _label_lock: File,
}

impl StateDir {
    /// Makes the directory where it is missing (mode 0700), and takes both locks.
    ///
    /// # Errors
    /// [`StateDirError`]; who holds a lock is named.
    pub fn open(path: &Path, label: &AgentLabel, own: NetnsId) -> Result<Self, StateDirError> {
        let fail = |attempted| move |source| StateDirError::Io { attempted, path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(fail("create state directory"))?;
        let _directory_lock = lock_directory(path)?;
        let _label_lock = lock_label(label, own)?;
        let remembered = Remembered::load(path).map_err(fail("read memory.json in state directory"))?;
        Ok(Self { path: path.to_owned(), remembered, _directory_lock, _label_lock })
    }

    /// Namespaces that were in use in this boot, before the agent ended.
    #[must_use]
    pub fn used_netns(&self) -> Vec<UsedNetns> {
        self.remembered.netns.iter().filter_map(Reference::used).collect()
    }

    /// The part that the configurator writes.
    #[must_use]
    pub fn memory(&self) -> FileMemory {
        FileMemory { path: self.path.join("memory.json"), remembered: self.remembered.clone(), written: None, dirty: false, failing: false }
    }
}

fn lock_directory(path: &Path) -> Result<Flock<File>, StateDirError> {
    let lock_path = path.join("lock");
    let fail = |attempted| {
        let path = lock_path.clone();
        move |source| StateDirError::Io { attempted, path, source }
    };
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(&lock_path).map_err(fail("open"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut locked) => {
            let pid = std::process::id();
            let written = locked.set_len(0).and_then(|()| locked.rewind()).and_then(|()| writeln!(locked, "{pid}"));
            written.map_err(fail("write"))?;
            Ok(locked)
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "unknown".to_owned() } else { holder.trim().to_owned() };
            Err(StateDirError::InUse { path: path.to_owned(), holder })
        }
        Err((_, errno)) => Err(fail("lock")(errno.into())),
    }
}

/// One file per label; within it one byte per network namespace, at the offset of its cookie. So agents of other namespaces (other hosts, as far as links
/// are concerned) do not meet, and the kernel can name the holder, which it does for locks of this kind only.
fn lock_label(label: &AgentLabel, own: NetnsId) -> Result<File, StateDirError> {
    let path = Path::new(LOCK_DIR).join(format!("{label}.lock"));
    let fail = |attempted| {
        let path = path.clone();
        move |source| StateDirError::Io { attempted, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o750).create(LOCK_DIR).map_err(fail("create the folder of"))?;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(&path).map_err(fail("open"))?;
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::try_from(own.0.get()).unwrap_or(i64::MAX - 1),
        l_len: 1,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_SETLK(&range)) {
        Ok(_) => Ok(file),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
            fcntl(&file, FcntlArg::F_GETLK(&mut range)).map_err(|errno| fail("ask who locks")(errno.into()))?;
            Err(StateDirError::LabelInUse { label: label.clone(), holder: range.l_pid })
        }
        Err(errno) => Err(fail("lock")(errno.into())),
    }
}

/// What the file holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Remembered {
    #[serde(default)]
    boot: String,
    store: Option<Store>,
    #[serde(default)]
    netns: Vec<Reference>,
    #[serde(default)]
    listing_applied: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Store {
    cluster: u64,
    revision: i64,
    #[serde(default)]
    hold: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reference {
    cookie: u64,
    kind: String,
    reference: String,
}

impl Reference {
    fn of(used: &UsedNetns) -> Self {
        Self { cookie: used.id.0.get(), kind: used.reference.kind().to_owned(), reference: used.reference.reference() }
    }

    fn used(&self) -> Option<UsedNetns> {
        let reference = match &*self.kind {
            "DEFAULT" => NetnsRef::Default,
            "NAMED" => NetnsRef::Named(self.reference.clone()),
            "PID" => NetnsRef::Pid(self.reference.parse().ok()?),
            "FILE" => NetnsRef::File(self.reference.clone().into()),
            "MICROSERVICE" => NetnsRef::Microservice(self.reference.clone()),
            _ => return None,
        };
        Some(UsedNetns { id: NetnsId::new(self.cookie)?, reference })
    }
}

impl Remembered {
    fn load(dir: &Path) -> io::Result<Self> {
        let boot = boot_id();
        let text = match fs::read(dir.join("memory.json")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { boot, ..Self::default() }),
            Err(error) => return Err(error),
        };
        let mut known: Self = match serde_json::from_slice(&text) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "memory.json in the state directory is damaged and is begun anew");
                // Not a first start: whatever was there, nothing is adopted on the strength of a damaged file.
                Self { listing_applied: true, ..Self::default() }
            }
        };
        if known.boot != boot {
            // Cookies are worth nothing after a reboot.
            known.netns.clear();
            known.boot = boot;
        }
        Ok(known)
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Memory in a file that is replaced as a whole. Not synced to disk: a crash of the process loses nothing, and after a crash of the machine the kernel's
/// links and namespaces are gone anyway.
pub struct FileMemory {
    path: PathBuf,
    remembered: Remembered,
    written: Option<Instant>,
    dirty: bool,
    failing: bool,
}

impl FileMemory {
    fn write(&mut self) {
        let written = serde_json::to_vec(&self.remembered).map_err(io::Error::other).and_then(|text| replace(&self.path, &text));
        self.written = Some(Instant::now());
        match written {
            Ok(()) => (self.dirty, self.failing) = (false, false),
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(%error, path = %self.path.display(), "cannot remember across restarts");
            }
            Err(_) => {}
        }
    }
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    fs::rename(&temporary, path)
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        if self.dirty {
            self.write();
        }
    }
}

impl Memory for FileMemory {
    fn known_store(&self) -> Option<KnownStore> {
        self.remembered.store.as_ref().map(|s| KnownStore { cluster: s.cluster, revision: s.revision, hold: s.hold.clone() })
    }

    fn remember_store(&mut self, store: &KnownStore) {
        let store = Store { cluster: store.cluster, revision: store.revision, hold: store.hold.clone() };
        let known = self.remembered.store.as_ref();
        let revision_only = known.is_some_and(|known| known.cluster == store.cluster && known.hold == store.hold);
        self.dirty |= known != Some(&store);
        self.remembered.store = Some(store);
        let due = self.written.is_none_or(|written| written.elapsed() >= WRITE_EVERY);
        if self.dirty && (!revision_only || due) {
            self.write();
        }
    }

    fn remember_netns(&mut self, used: &[UsedNetns]) {
        self.remembered.netns = used.iter().map(Reference::of).collect();
        self.write();
    }

    fn first_start(&self) -> bool {
        !self.remembered.listing_applied
    }

    fn listing_applied(&mut self) {
        if !self.remembered.listing_applied {
            self.remembered.listing_applied = true;
            self.write();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, label: &str) -> Result<StateDir, StateDirError> {
        // A cookie of no real namespace, so that no running agent is disturbed.
        let own = NetnsId::new(i64::MAX as u64 - u64::from(std::process::id())).unwrap();
        StateDir::open(path, &AgentLabel::new(label).unwrap(), own)
    }

    #[test]
    fn memory_survives_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let used = UsedNetns { id: NetnsId::new(77).unwrap(), reference: NetnsRef::Named("red".into()) };
        let store = KnownStore { cluster: u64::MAX, revision: 5, hold: Some("why".into()) };
        {
            let state = open(&path, "state-dir-test-a").unwrap();
            let mut memory = state.memory();
            assert!(memory.first_start());
            memory.remember_store(&store);
            memory.remember_netns(std::slice::from_ref(&used));
            memory.listing_applied();
            memory.remember_store(&KnownStore { revision: 9, ..store.clone() });
        }
        let state = open(&path, "state-dir-test-a").unwrap();
        let memory = state.memory();
        assert!(!memory.first_start());
        assert_eq!(memory.known_store(), Some(KnownStore { revision: 9, ..store }));
        assert_eq!(state.used_netns(), [used]);
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("memory.json"), mode("lock"), mode(".")), (0o600, 0o600, 0o700));
    }

    #[test]
    fn another_boot_or_a_damaged_file() {
        let dir = tempfile::tempdir().unwrap();
        let other_boot = r#"{"boot":"x","store":null,"netns":[{"cookie":7,"kind":"NAMED","reference":"red"}],"listing_applied":true}"#;
        fs::write(dir.path().join("memory.json"), other_boot).unwrap();
        assert!(open(dir.path(), "state-dir-test-b").unwrap().used_netns().is_empty());
        fs::write(dir.path().join("memory.json"), "{").unwrap();
        assert!(!open(dir.path(), "state-dir-test-b").unwrap().memory().first_start());
    }

    #[test]
    fn a_second_agent_is_told_who_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _held = open(dir.path(), "state-dir-test-c").unwrap();
        let Err(StateDirError::InUse { holder, .. }) = open(dir.path(), "state-dir-test-d") else { panic!("refused") };
        assert_eq!(holder, std::process::id().to_string());
    }
}
