//! That a node's NICs were given back on request: on disk, since it holds until the wish changes, whatever becomes of the agent meanwhile.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::external_node::journal::replace;

/// The file in the state directory.
const FILE: &str = "rollback.json";

/// What was wished when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wished {
    /// Revision of the wish's last write. Writing the same again is another wish.
    pub revision: i64,
    /// Its value: a store that began anew counts its revisions from the beginning.
    pub value: String,
}

/// A request that holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollback {
    /// What was wished; `None` while the store has not told.
    pub wished: Option<Wished>,
}

/// What becomes of a request that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    /// It holds.
    Holds,
    /// It holds for this wish, which was not known before.
    Binds,
    /// It has ended.
    Ended,
}

impl Rollback {
    /// What becomes of it now that the store says this; `None`: that there is no wish.
    #[must_use]
    pub fn review(&self, now: Option<&Wished>) -> Review {
        match (&self.wished, now) {
            (_, None) => Review::Ended,
            (None, Some(_)) => Review::Binds,
            (Some(then), Some(now)) if then == now => Review::Holds,
            (Some(_), Some(_)) => Review::Ended,
        }
    }
}

/// Where it is kept.
#[derive(Clone, Debug)]
pub struct RollbackFile(PathBuf);

impl RollbackFile {
    /// That of a state directory.
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self(state_dir.join(FILE))
    }

    /// The request that holds, if there is one. A file that cannot be read was a request: to leave a NIC where it is is the lesser evil.
    #[must_use]
    pub fn read(&self) -> Option<Rollback> {
        let read = match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        match read {
            Ok(rollback) => Some(rollback),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(%error, "{} cannot be read; the node's NICs are given back until their wish changes", self.0.display());
                Some(Rollback::default())
            }
        }
    }

    /// Keeps a request. When this returns, it is on disk.
    ///
    /// # Errors
    /// When it is not.
    pub fn write(&self, rollback: &Rollback) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(rollback)?;
        replace(&self.0, &self.0.with_extension("new"), &text)?;
        self.sync()
    }

    /// Drops it; one that is not there is dropped already.
    ///
    /// # Errors
    /// When it is still there.
    pub fn drop(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wished(revision: i64, value: &str) -> Wished {
        Wished { revision, value: value.to_owned() }
    }

    #[test]
    fn it_holds_until_the_wish_is_written_again_or_goes() {
        let asked = Rollback { wished: Some(wished(7, "{}")) };
        let now = [Some(wished(7, "{}")), Some(wished(8, "{}")), Some(wished(7, "{ }")), None];
        let holds = now.each_ref().map(|now| asked.review(now.as_ref()));
        assert_eq!(holds, [Review::Holds, Review::Ended, Review::Ended, Review::Ended]);
        let early = Rollback::default();
        assert_eq!(now.map(|now| early.review(now.as_ref())), [Review::Binds, Review::Binds, Review::Binds, Review::Ended]);
    }

    #[test]
    fn it_is_found_again_and_a_damaged_one_still_holds() {
        let dir = tempfile::tempdir().unwrap();
        let file = RollbackFile::of(dir.path());
        assert_eq!(file.read(), None);
        let asked = Rollback { wished: Some(wished(7, "{}")) };
        file.write(&asked).unwrap();
        assert_eq!(RollbackFile::of(dir.path()).read(), Some(asked.clone()));
        let whole = fs::read(&file.0).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file.0, &whole[..cut]).unwrap();
            assert_eq!(file.read(), Some(Rollback::default()), "cut at {cut}");
        }
        file.write(&asked).unwrap();
        assert_eq!(file.read(), Some(asked));
        file.drop().unwrap();
        file.drop().unwrap();
        assert_eq!(file.read(), None);
    }
}
