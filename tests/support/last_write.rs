//! Kills an agent, or the process that stands by for it, instead of a chosen one of its writes: see `last_write.c`. Other than a trip wire across system
//! calls ([`Wire`](super::Wire)) it counts only what changes something, so the n-th write is the same one each time.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;

use super::Host;

/// The library that does it, and what it has told.
pub struct LastWrite {
    library: PathBuf,
    log: PathBuf,
}

impl LastWrite {
    /// Builds the library in the host's folder.
    pub fn new(host: &Host) -> Self {
        let (library, log) = (host.path("last_write.so"), host.path("writes.log"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/last_write.c");
        let built = Command::new("gcc").args(["-shared", "-fPIC", "-O1", source, "-ldl", "-o"]).arg(&library).status();
        assert!(built.expect("gcc starts").success(), "{source} cannot be built");
        Self { library, log }
    }

    /// The environment for the agent in which it dies instead of its `n`-th write, counted from one; for 0 all are only counted.
    pub fn of_agent(&self, n: usize) -> Vec<(String, String)> {
        self.environment("agent", n)
    }

    /// The environment for the agent in which it is frozen before its `n`-th write.
    pub fn of_frozen_agent(&self, n: usize) -> Vec<(String, String)> {
        let by = ("VNF_TEST_KILL_BY".to_owned(), (Signal::SIGSTOP as i32).to_string());
        self.of_agent(n).into_iter().chain([by]).collect()
    }

    /// The same as [`LastWrite::of_agent`] for the process that stands by.
    pub fn of_stand_by(&self, n: usize) -> Vec<(String, String)> {
        self.environment("stand-by", n)
    }

    fn environment(&self, of: &str, n: usize) -> Vec<(String, String)> {
        let _none_yet = std::fs::remove_file(&self.log);
        let (library, log) = (self.library.display().to_string(), self.log.display().to_string());
        let pairs =
            [("LD_PRELOAD", library), ("VNF_TEST_KILL_IN", of.into()), ("VNF_TEST_KILL_AT", n.to_string()), ("VNF_TEST_KILL_LOG", log)];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// The last write that was counted: the one that was not made, if the process was killed.
    pub fn last(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().last().unwrap_or("none").to_owned()
    }
}
