//! The NIC's whole configuration on disk, from before it is touched until it is plain again.
//!
//! One file per NIC, replaced as a whole: written beside, synced, renamed, and the folder synced. Whatever moment a crash hits, the file is the old
//! one or the new one. Nobody else writes there; the state directory belongs to one agent.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::external_node::lock::{self, NicLock};
use crate::model::nic::{Given, NicConfig, NicLink};
use crate::ovs::PairRows;

/// Version of the form below. A journal of another version is not guessed at.
const VERSION: u32 = 1;
/// The folder below the state directory.
const FOLDER: &str = "nic";
/// What a journal's file name ends in; while it is being written, [`UNFINISHED`].
const FINISHED: &str = "json";
const UNFINISHED: &str = "new";
/// What the file name of one that could not be read any more ends in, once it was replaced.
const DAMAGED: &str = "damaged";
/// What the file name of one ends in whose NIC another agent has.
const ASIDE: &str = "aside";
/// What the file name of one ends in whose NIC was gone when everything else of it was given up.
const AWAY: &str = "away";

/// Which way a NIC goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Intent {
    /// Behind the bridge.
    Attaching,
    /// It is there, and that was read back.
    Attached,
    /// Back.
    Detaching,
}

/// Everything that is needed to finish or to undo, with nothing else at hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Which way.
    pub intent: Intent,
    /// The boot in which it was written: indexes and the kernel's state are of this boot.
    pub boot_id: String,
    /// The uplink's name.
    pub uplink: String,
    /// The bridge.
    pub bridge: String,
    /// Name of the external node that wishes it.
    pub node: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Which attachment it is: one that begins has a new name, and is not confirmed.
    #[serde(default)]
    pub attachment: String,
    /// Whether it was confirmed that the host can still reach its store. What is not confirmed in time is undone.
    pub confirmed: bool,
    /// Until when it must be confirmed, seconds since boot.
    pub confirm_until: u64,
    /// Whether frames of the uplink are kept from the host's own stack while it is attached.
    pub guard: bool,
    /// Whether the NIC was seen to be gone since: whatever comes back is to be put behind the bridge anew.
    #[serde(default)]
    pub gone: bool,
    /// The rows of its ports, which are known by them when somebody empties their ids.
    #[serde(default)]
    pub ports: Option<PairRows>,
    /// The NIC itself, as it was found.
    pub nic: NicLink,
    /// The configuration that the host must have, wherever it stands. Its `link` is the one that it was read from.
    pub config: NicConfig,
    /// What others gave to the port while it is attached, as it was seen last.
    #[serde(default)]
    pub given: Given,
}

impl Journal {
    /// The NIC's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.nic.name
    }
}

/// The file's form.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    journal: T,
}

/// Why a journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system.
    #[error("{attempted} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It does not say what a journal says.
    #[error("the journal {} cannot be read ({problem}); it is left as it is", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The journals of all NICs.
#[derive(Clone, Debug)]
pub struct JournalFolder(PathBuf);

impl JournalError {
    /// The file or folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::Damaged { path, .. } => path,
        }
    }
}

impl JournalFolder {
    /// Makes the folder below the state directory where it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(state_dir: &Path) -> Result<Self, JournalError> {
        let path = state_dir.join(FOLDER);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path).and_then(|()| File::open(state_dir)?.sync_all());
        made.map_err(failed("make the folder", &path))?;
        Ok(Self(path))
    }

    /// The file of a NIC's journal.
    #[must_use]
    pub fn path(&self, nic: &str) -> PathBuf {
        self.0.join(format!("{nic}.{FINISHED}"))
    }

    /// All journals, sorted by file name; each that cannot be read is an error of its own.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn all(&self) -> Result<Vec<Result<Journal, JournalError>>, JournalError> {
        self.ending_in(FINISHED)
    }

    fn ending_in(&self, ending: &str) -> Result<Vec<Result<Journal, JournalError>>, JournalError> {
        let list = || fs::read_dir(&self.0)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>();
        let mut paths = list().map_err(failed("list", &self.0))?;
        paths.retain(|path| path.extension().is_some_and(|has| has == ending));
        paths.sort();
        Ok(paths.iter().map(|path| read(path)).collect())
    }

    /// A NIC's journal, if it has one.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn load(&self, nic: &str) -> Result<Option<Journal>, JournalError> {
        match read(&self.path(nic)) {
            Ok(journal) => Ok(Some(journal)),
            Err(JournalError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a journal. When this returns, it is on disk.
    ///
    /// # Errors
    /// When it is not; then the former one is still there.
    pub fn write(&self, journal: &Journal) -> Result<(), JournalError> {
        let path = self.path(journal.name());
        let unfinished = path.with_extension(UNFINISHED);
        let text = serde_json::to_vec_pretty(&Versioned { version: VERSION, journal }).map_err(io::Error::other);
        let written = text.and_then(|text| replace(&path, &unfinished, &text)).and_then(|()| self.sync());
        if written.is_err() {
            // On a disk that is full it would only take room.
            let _ = fs::remove_file(&unfinished);
        }
        written.map_err(failed("write the journal", &path))
    }

    /// Replaces a journal that cannot be read any more, which is kept beside it.
    ///
    /// # Errors
    /// When the new one is not on disk.
    pub fn replace_damaged(&self, journal: &Journal) -> Result<(), JournalError> {
        let path = self.path(journal.name());
        // Where even that is impossible, writing says why.
        let _ = fs::rename(&path, path.with_extension(DAMAGED));
        self.write(journal)
    }

    /// Takes a NIC for oneself, against another process that would change it at the same time; waits while another one has it. It ends with the value
    /// and with the process.
    ///
    /// # Errors
    /// `WouldBlock` when it is not free within the limit.
    pub fn lock(&self, nic: &str, limit: Duration) -> Result<NicLock, JournalError> {
        let path = lock::path(&self.path(nic));
        // Whoever removed the folder must not keep anybody from giving a NIC back. Where it cannot be made, the lock says why.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        lock::take(&path, limit).map_err(failed("lock", &path))
    }

    /// Waits until nobody has a NIC any more; a process that holds it all that time is ended. Its number, if that was done.
    #[must_use]
    pub fn make_way(&self, nic: &str, limit: Duration) -> Option<i32> {
        lock::make_way(&lock::path(&self.path(nic)), limit)
    }

    /// Drops a NIC's journal; one that is not there is dropped already.
    ///
    /// # Errors
    /// When it is still there.
    pub fn drop(&self, nic: &str) -> Result<(), JournalError> {
        let path = self.path(nic);
        let dropped = match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        };
        dropped.map_err(failed("drop the journal", &path))
    }

    /// Puts a NIC's journal aside, for people: nothing reads it any more.
    ///
    /// # Errors
    /// When it is still there.
    pub fn set_aside(&self, nic: &str) -> Result<(), JournalError> {
        self.set_beside(nic, ASIDE)
    }

    /// Drops a NIC's journal, and keeps it beside for the case that the NIC comes back as it went: under the uplink's name, and with nothing on it.
    ///
    /// # Errors
    /// When it is still there.
    pub fn put_away(&self, nic: &str) -> Result<(), JournalError> {
        self.set_beside(nic, AWAY)
    }

    /// The journals that were put away; those that cannot be read are no use any more.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn away(&self) -> Result<Vec<Journal>, JournalError> {
        Ok(self.ending_in(AWAY)?.into_iter().flatten().collect())
    }

    /// Whether any journal is here, of a NIC that is away too.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn has_some(&self) -> Result<bool, JournalError> {
        Ok(!self.all()?.is_empty() || !self.ending_in(AWAY)?.is_empty())
    }

    /// Drops a journal that was put away.
    ///
    /// # Errors
    /// When it is still there.
    pub fn forget(&self, nic: &str) -> Result<(), JournalError> {
        let path = self.path(nic).with_extension(AWAY);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("drop the journal", &path)(error)),
            _ => Ok(()),
        }
    }

    fn set_beside(&self, nic: &str, ending: &str) -> Result<(), JournalError> {
        let path = self.path(nic);
        let moved = match fs::rename(&path, path.with_extension(ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        };
        moved.map_err(failed("put the journal aside", &path))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

/// Replaces a file by what is written beside it first. It is on disk when its folder is synced as well.
pub(super) fn replace(path: &Path, unfinished: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC);
    let mut file = options.open(unfinished)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

fn read(path: &Path) -> Result<Journal, JournalError> {
    let damaged = |problem: String| JournalError::Damaged { path: path.to_owned(), problem };
    let text = fs::read(path).map_err(failed("read the journal", path))?;
    let read: Versioned<serde_json::Value> = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if read.version != VERSION {
        return Err(damaged(format!("version {}, this agent knows version {VERSION}", read.version)));
    }
    let journal: Journal = serde_json::from_value(read.journal).map_err(|error| damaged(error.to_string()))?;
    if path.file_stem() != Some(journal.name().as_ref()) {
        return Err(damaged(format!("it is the one of {}", journal.name())));
    }
    Ok(journal)
}

fn failed<'a>(attempted: &'static str, path: &'a Path) -> impl Fn(io::Error) -> JournalError + 'a {
    move |source| JournalError::Io { attempted, path: path.to_owned(), source }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::nic::{Attribute, Message, NicAddress, NicNexthop, NicRoute};

    pub(crate) fn journal() -> Journal {
        let address = Message { header: vec![2, 24, 128, 0, 2, 0, 0, 0], attributes: vec![Attribute(2, vec![192, 0, 2, 5])] };
        let route =
            Message { header: vec![2, 0, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0], attributes: vec![Attribute(4, 2u32.to_ne_bytes().to_vec())] };
        let nexthop = Message { header: vec![2, 0, 0, 0, 0, 0, 0, 0], attributes: vec![Attribute(1, vec![7, 0, 0, 0])] };
        let link = NicLink {
            mac: "02:00:00:00:00:01".into(),
            permanent_mac: "02:00:00:00:00:01".into(),
            mtu: 1400,
            flags: 0x1043,
            altnames: vec!["enp0s3".into()],
            ..NicLink::of_test(2, "eth0.7-x")
        };
        let config = NicConfig {
            link,
            sysctls: [("ipv4/rp_filter".to_owned(), "1".to_owned())].into(),
            addresses: vec![NicAddress::new(address).unwrap()],
            nexthops: vec![NicNexthop::new(nexthop).unwrap()],
            routes: vec![NicRoute::new(route.clone()).unwrap()],
            leading: Vec::new(),
            neighbours: vec![route],
            rules: Vec::new(),
            taken_at: 77,
        };
        Journal {
            intent: Intent::Attaching,
            boot_id: "b".into(),
            uplink: "eth0~".into(),
            bridge: "br-int".into(),
            node: "host1".into(),
            namespace: "default".into(),
            attachment: "a1".into(),
            confirmed: false,
            confirm_until: 137,
            guard: true,
            gone: false,
            ports: None,
            nic: config.link.clone(),
            config,
            given: Given::default(),
        }
    }

    #[test]
    fn written_read_replaced_and_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(dir.path()).unwrap();
        assert!(folder.all().unwrap().is_empty() && folder.load("eth0.7-x").unwrap().is_none());
        folder.write(&journal()).unwrap();
        assert_eq!(folder.load("eth0.7-x").unwrap(), Some(journal()));
        let back = Journal { intent: Intent::Detaching, ..journal() };
        folder.write(&back).unwrap();
        assert_eq!(JournalFolder::open(dir.path()).unwrap().all().unwrap().pop().unwrap().unwrap(), back);
        folder.drop("eth0.7-x").unwrap();
        folder.drop("eth0.7-x").unwrap();
        assert!(folder.all().unwrap().is_empty());
        folder.write(&back).unwrap();
        folder.set_aside("eth0.7-x").unwrap();
        folder.set_aside("eth0.7-x").unwrap();
        assert!(folder.all().unwrap().is_empty() && folder.load("eth0.7-x").unwrap().is_none());
    }

    #[test]
    fn put_away_and_taken_up_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(dir.path()).unwrap();
        assert!(!folder.has_some().unwrap());
        folder.write(&journal()).unwrap();
        folder.put_away("eth0.7-x").unwrap();
        assert!(folder.all().unwrap().is_empty() && folder.load("eth0.7-x").unwrap().is_none());
        assert_eq!((folder.away().unwrap(), folder.has_some().unwrap()), (vec![journal()], true));
        folder.forget("eth0.7-x").unwrap();
        folder.forget("eth0.7-x").unwrap();
        assert!(folder.away().unwrap().is_empty() && !folder.has_some().unwrap());
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(&dir.path().join("state")).unwrap();
        fs::remove_dir_all(dir.path().join("state")).unwrap();
        let _lock = folder.lock("eth0.7-x", Duration::from_secs(60)).unwrap();
        folder.write(&journal()).unwrap();
        assert_eq!(folder.load("eth0.7-x").unwrap(), Some(journal()));
    }

    #[test]
    fn people_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(dir.path()).unwrap();
        folder.write(&journal()).unwrap();
        let text = fs::read_to_string(folder.path("eth0.7-x")).unwrap();
        for says in [r#""intent": "ATTACHING""#, "192.0.2.5/24", "default table 254 proto 4", r#""ipv4/rp_filter": "1""#] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    /// A crash while a journal is being written leaves any beginning of it beside the one that stands.
    #[test]
    fn a_crash_at_any_byte_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(dir.path()).unwrap();
        folder.write(&journal()).unwrap();
        let path = folder.path("eth0.7-x");
        let whole = fs::read(&path).unwrap();
        for cut in (0..=whole.len()).step_by(7) {
            fs::write(path.with_extension(UNFINISHED), &whole[..cut]).unwrap();
            let all: Vec<Journal> = folder.all().unwrap().into_iter().map(Result::unwrap).collect();
            assert_eq!(all, [journal()], "cut at {cut}");
        }
        // And the next writing is not hindered by it.
        let back = Journal { intent: Intent::Detaching, ..journal() };
        folder.write(&back).unwrap();
        assert_eq!(folder.load("eth0.7-x").unwrap(), Some(back));
    }

    #[test]
    fn a_damaged_one_is_told_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = JournalFolder::open(dir.path()).unwrap();
        folder.write(&journal()).unwrap();
        let path = folder.path("eth0.7-x");
        let whole = fs::read_to_string(&path).unwrap();
        let mut bad: Vec<String> = (0..whole.len() - 1).step_by(97).map(|cut| whole[..cut].to_owned()).collect();
        bad.push(whole.replace("\"version\": 1", "\"version\": 2"));
        bad.push(whole.replace("\"name\": \"eth0.7-x\"", "\"name\": \"eth1\""));
        bad.push(whole.replace("\"confirmed\": false,", ""));
        bad.push(whole.replace("c0000205", "c00002"));
        for text in bad {
            assert_ne!(text, whole);
            fs::write(&path, &text).unwrap();
            let error = folder.load("eth0.7-x").expect_err(&text);
            assert!(matches!(error, JournalError::Damaged { .. }), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let last = fs::read(&path).unwrap();
        folder.replace_damaged(&journal()).unwrap();
        assert_eq!((folder.load("eth0.7-x").unwrap(), folder.all().unwrap().len()), (Some(journal()), 1));
        assert_eq!(fs::read(path.with_extension(DAMAGED)).unwrap(), last);
    }
}
