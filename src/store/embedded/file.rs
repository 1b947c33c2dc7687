//! The file of the embedded store: one transaction per write, on the disk before it counts.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use super::Wishes;
use crate::store::{StoreError, StoreEvent, StoreIdentity, Versioned, WATCHED_PREFIXES, Write};

/// Name of the file in the state directory.
const FILE: &str = "store.redb";
/// Memory for pages of the file, bytes; the default of 1 GiB is more than a host should give.
const CACHE: usize = 16 << 20;
/// Largest request, bytes: as etcd, so that what one store takes the other takes too.
const REQUEST_LIMIT: usize = 1536 << 10;

/// Key -> (create revision, mod revision, value).
const VALUES: TableDefinition<'static, &str, (i64, i64, &[u8])> = TableDefinition::new("values");
/// The store's own numbers.
const NUMBERS: TableDefinition<'static, &str, u64> = TableDefinition::new("numbers");
const CLUSTER: &str = "cluster";
const REVISION: &str = "revision";

/// What a write did: its revision and events; without events nothing changed.
pub(super) struct Change {
    pub(super) revision: i64,
    pub(super) events: Vec<StoreEvent>,
}

/// The open file, or one that failed and is opened again when it is needed.
pub(super) struct StoreFile {
    directory: PathBuf,
    open: Option<Database>,
}

impl StoreFile {
    pub(super) fn open(directory: &Path) -> Result<Self, StoreError> {
        let mut file = Self { directory: directory.to_owned(), open: None };
        file.with("open", |_| Ok(()))?;
        Ok(file)
    }

    /// Which store this is, and its revision.
    pub(super) fn identity(&mut self) -> Result<StoreIdentity, StoreError> {
        self.with("read", |database| Ok(identity(&database.begin_read()?.open_table(NUMBERS)?)?))
    }

    /// Everything below the watched prefixes, at one revision.
    pub(super) fn wishes(&mut self) -> Result<Wishes, StoreError> {
        self.with("list", |database| {
            let snapshot = database.begin_read()?;
            let identity = identity(&snapshot.open_table(NUMBERS)?)?;
            let values = snapshot.open_table(VALUES)?;
            let mut wishes = Vec::new();
            for prefix in WATCHED_PREFIXES {
                below(&values, prefix, &mut wishes)?;
            }
            Ok((identity, wishes))
        })
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.with("read", |database| Ok(database.begin_read()?.open_table(VALUES)?.get(key)?.map(|value| versioned(value.value()))))
    }

    /// Keys below a prefix, sorted.
    pub(super) fn list(&mut self, prefix: &str) -> Result<Vec<(String, Versioned)>, StoreError> {
        self.with("list", |database| {
            let mut found = Vec::new();
            below(&database.begin_read()?.open_table(VALUES)?, prefix, &mut found)?;
            Ok(found)
        })
    }

    /// All writes at one revision, or none.
    pub(super) fn write(&mut self, writes: Vec<Write>) -> Result<Change, StoreError> {
        self.refuse_impossible(&writes)?;
        self.with("write to", |database| {
            let transaction = database.begin_write()?;
            let change = {
                let mut numbers = transaction.open_table(NUMBERS)?;
                let mut values = transaction.open_table(VALUES)?;
                let present = identity(&numbers)?.revision;
                let change = apply(&mut values, writes, present)?;
                numbers.insert(REVISION, change.revision.cast_unsigned())?;
                change
            };
            if change.events.is_empty() {
                transaction.abort()?;
            } else {
                transaction.commit()?;
            }
            Ok(change)
        })
    }

    fn refuse_impossible(&self, writes: &[Write]) -> Result<(), StoreError> {
        let refuse = |cause: &str| Err(self.refused("write to", cause.to_owned()));
        let mut keys: Vec<&str> = writes.iter().map(|(Write::Put(key, _) | Write::Delete(key))| key.as_str()).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return refuse("duplicate key in one write");
        }
        let size = |write: &Write| if let Write::Put(key, value) = write { key.len() + value.len() } else { 0 };
        if writes.iter().map(size).sum::<usize>() > REQUEST_LIMIT {
            return refuse("request is too large");
        }
        Ok(())
    }

    /// Works on the open database. After an error of the disk the library refuses everything, so the file is opened again next time.
    fn with<T>(&mut self, doing: &str, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = match self.open.take() {
            Some(database) => database,
            None => self.open_file()?,
        };
        match work(&database) {
            Ok(done) => {
                self.open = Some(database);
                Ok(done)
            }
            Err(error) => Err(StoreError::Unreachable { attempted: self.attempted(doing), cause: error.to_string() }),
        }
    }

    fn open_file(&self) -> Result<Database, StoreError> {
        let path = self.directory.join(FILE);
        let failed = |error: std::io::Error| StoreError::Unreachable { attempted: self.attempted("open"), cause: error.to_string() };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(failed)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
        let database = FileBackend::new(file).and_then(|backend| builder.create_with_backend(backend)).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                self.refused("open", format!("another agent uses the state directory {}", self.directory.display()))
            }
            DatabaseError::Storage(redb::StorageError::Io(error)) => failed(error),
            damaged => self.refused("open", format!("{damaged}; move the file away to begin with an empty store")),
        })?;
        // The file itself is safe only when its name is.
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        prepare(&database).map_err(|error| self.refused("prepare", error.to_string()))?;
        Ok(database)
    }

    fn refused(&self, doing: &str, cause: String) -> StoreError {
        StoreError::Refused { attempted: self.attempted(doing), cause }
    }

    fn attempted(&self, doing: &str) -> String {
        format!("{doing} {}", self.directory.join(FILE).display())
    }
}

/// Gives a new store its identity. Like etcd, it begins with revision 1.
fn prepare(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let known = {
        transaction.open_table(VALUES)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let known = numbers.get(CLUSTER)?.is_some();
        if !known {
            numbers.insert(CLUSTER, random().map_err(redb::Error::Io)?)?;
            numbers.insert(REVISION, 1)?;
        }
        known
    };
    if known {
        transaction.abort()?
    } else {
        transaction.commit()?
    }
    Ok(())
}

fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn identity(numbers: &impl ReadableTable<&'static str, u64>) -> Result<StoreIdentity, redb::StorageError> {
    let number = |name| Ok::<u64, redb::StorageError>(numbers.get(name)?.map_or(0, |number| number.value()));
    Ok(StoreIdentity { cluster: number(CLUSTER)?, revision: number(REVISION)?.cast_signed() })
}

fn below(
    values: &impl ReadableTable<&'static str, (i64, i64, &'static [u8])>,
    prefix: &str,
    found: &mut Vec<(String, Versioned)>,
) -> Result<(), redb::StorageError> {
    for entry in values.range(prefix..)? {
        let (key, value) = entry?;
        if !key.value().starts_with(prefix) {
            break;
        }
        found.push((key.value().to_owned(), versioned(value.value())));
    }
    Ok(())
}

fn apply(
    values: &mut redb::Table<'_, &'static str, (i64, i64, &'static [u8])>,
    writes: Vec<Write>,
    present: i64,
) -> Result<Change, redb::StorageError> {
    let next = present + 1;
    let mut events = Vec::with_capacity(writes.len());
    for write in writes {
        match write {
            Write::Put(key, value) => {
                let create_revision = values.get(key.as_str())?.map_or(next, |old| old.value().0);
                values.insert(key.as_str(), (create_revision, next, value.as_slice()))?;
                events.push(StoreEvent::Apply(key, Versioned { value, create_revision, mod_revision: next }));
            }
            Write::Delete(key) => {
                if values.remove(key.as_str())?.is_some() {
                    events.push(StoreEvent::Delete(key, next));
                }
            }
        }
    }
    Ok(Change { revision: if events.is_empty() { present } else { next }, events })
}

fn versioned((create_revision, mod_revision, value): (i64, i64, &[u8])) -> Versioned {
    Versioned { value: value.to_vec(), create_revision, mod_revision }
}
