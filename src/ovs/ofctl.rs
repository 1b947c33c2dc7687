//! [`FlowSink`] by running `ovs-ofctl`. It gets words of ours only, no shell, and its flows on standard input.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::dump;
use super::flows::{Cookie, FlowSet, OWNER_BITS, Standing, ZONES};
use super::transaction::OPENFLOW;
use super::view::OfPort;
use crate::model::Owner;
use crate::program::{self, Failure};

/// Why flows are not as they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The program could not be run; nothing was done.
    #[error("{attempted}: ovs-ofctl cannot be run: {cause}")]
    NotRun {
        /// What was attempted.
        attempted: String,
        /// The system's words.
        cause: String,
    },
    /// There was no answer in time; whether it was done is not known until it is read.
    #[error("{attempted}: Open vSwitch did not answer within {} ms; whether it did it is not known", limit.as_millis())]
    NoAnswer {
        /// What was attempted.
        attempted: String,
        /// How long was waited.
        limit: Duration,
    },
    /// Open vSwitch said no, or could not be reached; nothing was done.
    #[error("{attempted}: {cause}")]
    Refused {
        /// What was attempted.
        attempted: String,
        /// Its own words.
        cause: String,
    },
    /// A flow of somebody else matches exactly what one of ours matches; nothing was done.
    #[error("{attempted}: a flow of somebody else stands in the way: `{flow}`")]
    InTheWay {
        /// What was attempted.
        attempted: String,
        /// That flow.
        flow: String,
    },
}

/// The flow tables of one bridge, as far as flows with our cookie go, and its ports, as far as they let flows work.
pub trait FlowSink: Send + Sync + 'static {
    /// Puts these flows in the place of all that are ours, in one step: each packet meets the old ones or the new ones. Flows of others stay.
    ///
    /// # Errors
    /// [`FlowError`].
    fn replace(&self, flows: &FlowSet) -> Result<(), FlowError>;

    /// Removes flows of ours by their cookies. Nothing else is looked at: what stands in the way of other flows does not keep these.
    ///
    /// # Errors
    /// [`FlowError`].
    fn remove(&self, cookies: &[Cookie]) -> Result<(), FlowError>;

    /// The flows that are ours and stand, as they are printed: to be held against what is wanted, by [`FlowSet::compare`].
    ///
    /// # Errors
    /// [`FlowError`].
    fn standing(&self) -> Result<BTreeSet<Standing>, FlowError>;

    /// The ports of the bridge that were told to take no packets, or to send none (`OFPPC_NO_RECV`, `OFPPC_NO_FWD`): no flow helps there.
    ///
    /// # Errors
    /// [`FlowError`].
    fn closed_ports(&self) -> Result<BTreeSet<OfPort>, FlowError>;

    /// Lets a port take packets and send them.
    ///
    /// # Errors
    /// [`FlowError`].
    fn open_port(&self, port: OfPort) -> Result<(), FlowError>;

    /// Forgets what is known of connections in our zones: each is new when its next packet comes. A connection that went on elsewhere for a while is
    /// outside of the window that was tracked, and invalid for good.
    ///
    /// # Errors
    /// [`FlowError`].
    fn forget_connections(&self) -> Result<(), FlowError>;
}

/// How long a call may take while it is known that the switch does not answer: the host is cut off meanwhile.
const WHILE_AWAY: Duration = Duration::from_secs(1);

/// The real [`FlowSink`].
#[derive(Clone, Debug)]
pub struct Ofctl {
    program: PathBuf,
    /// `unix:` and the bridge's management socket.
    bridge: String,
    owner: u64,
    limit: Duration,
    /// False while it is known that the switch does not answer.
    alive: Arc<AtomicBool>,
}

/// Where the management socket of a bridge is, in the folder where Open vSwitch has its sockets.
#[must_use]
pub fn management_socket(run_dir: &Path, bridge: &str) -> PathBuf {
    run_dir.join(format!("{bridge}.mgmt"))
}

impl Ofctl {
    /// For the bridge with this management socket; each call ends within `limit`.
    #[must_use]
    pub fn new(socket: &Path, owner: &Owner, limit: Duration) -> Self {
        let bridge = format!("unix:{}", socket.display());
        Self { program: "ovs-ofctl".into(), bridge, owner: Cookie::ours(owner), limit, alive: Arc::new(AtomicBool::new(true)) }
    }

    /// With another program in the place of `ovs-ofctl`.
    #[must_use]
    pub fn with_program(self, program: PathBuf) -> Self {
        Self { program, ..self }
    }

    /// A call has no more than a second while this is false, one that is under way included.
    #[must_use]
    pub fn as_long_as(self, alive: Arc<AtomicBool>) -> Self {
        Self { alive, ..self }
    }

    fn patience(&self) -> Duration {
        if self.alive.load(Ordering::Relaxed) { self.limit } else { self.limit.min(WHILE_AWAY) }
    }

    fn dump(&self, attempted: &str) -> Result<Vec<Standing>, FlowError> {
        let text = self.run(attempted, &["--no-stats", "--no-names", "dump-flows", &self.bridge], String::new())?;
        Ok(dump::read(&text))
    }

    /// Runs the program to its end, or to that of our patience.
    fn run(&self, attempted: &str, words: &[&str], input: String) -> Result<String, FlowError> {
        let words: Vec<&str> = ["-O", OPENFLOW].into_iter().chain(words.iter().copied()).collect();
        program::run(&self.program, &words, input, &|| self.patience()).map_err(|failure| match failure {
            Failure::NotRun(cause) => FlowError::NotRun { attempted: attempted.to_owned(), cause },
            Failure::NoAnswer => FlowError::NoAnswer { attempted: attempted.to_owned(), limit: self.patience() },
            Failure::Refused(cause) => FlowError::Refused { attempted: attempted.to_owned(), cause },
        })
    }
}

impl FlowSink for Ofctl {
    fn replace(&self, flows: &FlowSet) -> Result<(), FlowError> {
        let attempted = "install the flows";
        if let Some(stranger) = dump::in_the_way(&self.dump(attempted)?, self.owner, flows) {
            let flow = format!("cookie={},{}", stranger.cookie, stranger.flow);
            return Err(FlowError::InTheWay { attempted: attempted.to_owned(), flow });
        }
        let mut text = format!("delete cookie={:#x}/{OWNER_BITS:#x}\n", self.owner);
        for (cookie, flow) in flows.iter() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "add cookie={cookie},{flow}");
        }
        self.run(attempted, &["--bundle", "add-flows", &self.bridge, "-"], text).map(drop)
    }

    fn remove(&self, cookies: &[Cookie]) -> Result<(), FlowError> {
        let text: String = cookies.iter().map(|cookie| format!("delete cookie={cookie}/-1\n")).collect();
        self.run("remove flows", &["--bundle", "add-flows", &self.bridge, "-"], text).map(drop)
    }

    fn standing(&self) -> Result<BTreeSet<Standing>, FlowError> {
        Ok(dump::ours(self.dump("read the flows")?, self.owner))
    }

    fn closed_ports(&self) -> Result<BTreeSet<OfPort>, FlowError> {
        let text = self.run("read how ports are set", &["--no-names", "dump-ports-desc", &self.bridge], String::new())?;
        Ok(dump::closed_ports(&text))
    }

    fn open_port(&self, port: OfPort) -> Result<(), FlowError> {
        for opens in ["receive", "forward"] {
            self.run("open a port", &["mod-port", &self.bridge, &port.to_string(), opens], String::new())?;
        }
        Ok(())
    }

    fn forget_connections(&self) -> Result<(), FlowError> {
        for zone in ZONES {
            self.run("forget connections", &["ct-flush-zone", &self.bridge, &zone.to_string()], String::new())?;
        }
        Ok(())
    }
}
