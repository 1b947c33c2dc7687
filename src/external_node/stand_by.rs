//! The dead man's switch: a process of its own that gives the NIC back if the agent does not confirm in time that the host can still reach its store.
//!
//! It is started before the NIC is touched, for one attachment, and knows nothing but the journal: that attachment confirmed or dropped, or another one in
//! its place, it ends; past its time, it takes the NIC for itself (and ends whoever holds it and does not let go) and goes the way back. Before each
//! step it looks again whether that attachment is still the one that stands: an agent that was only slow may have come before it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::getppid;
use serde::{Deserialize, Serialize};

use crate::external_node::attachment::{Verdict, verdict};
use crate::external_node::handover::{Handover, Outcome, Purpose, Seen};
use crate::external_node::journal::{Journal, JournalError, JournalFolder};
use crate::external_node::phase::Goal;
use crate::linux::nic::NicKernel;

/// The first argument of the agent's program that makes it stand by; the second is the order.
pub const ARGUMENT: &str = "--stand-by-for-nic";
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a journal may take to speak of the attachment: the process is started before that is written. An agent that takes longer starts another one.
const JOURNAL_WITHIN: Duration = Duration::from_secs(30);
/// How long somebody who holds the NIC may take to let go.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);
/// How long, and how often, the way back is tried.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);
const TRY_EVERY: Duration = Duration::from_secs(2);

/// What to stand by for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The NIC's own name.
    pub nic: String,
    /// The attachment.
    pub attachment: String,
    /// Where the journals are.
    pub state_dir: PathBuf,
    /// The Open vSwitch database, as in the configuration.
    pub ovs_db: String,
    /// The bridge.
    pub bridge: String,
    /// The agent's label.
    pub label: String,
    /// `system` or `netdev`.
    pub netdev: bool,
    /// The bypass rules as they are written: other NICs of the bridge keep theirs.
    pub bypass_rules: Vec<[String; 4]>,
}

/// Starts the process. It goes on when the agent ends, however that ends.
///
/// # Errors
/// When the order cannot be written or the program not started.
pub fn start(order: &Order) -> std::io::Result<Child> {
    let text = serde_json::to_string(order).map_err(std::io::Error::other)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(ARGUMENT).arg(text).stdin(Stdio::null()).stdout(Stdio::null());
    // Not in the agent's group of processes: what ends the agent by its terminal must not end this one.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn()
}

/// Stands by until the attachment is confirmed, undone, or undone by this process. `make` is called when it takes over.
///
/// # Errors
/// One sentence, when the NIC could not be given back.
pub fn run(order: &Order, make: impl FnOnce(JournalFolder) -> Result<Handover, String>) -> Result<(), String> {
    let journals = JournalFolder::open(&order.state_dir).map_err(|error| error.to_string())?;
    let Some(first) = await_journal(&journals, order) else { return Ok(()) };
    tracing::info!(nic = %order.nic, attachment = %order.attachment, "standing by");
    let Some(last) = watch(&journals, order, first) else { return Ok(()) };
    tracing::warn!(nic = %order.nic, "the attachment was not confirmed in time: the NIC is given back");
    if let Some(pid) = journals.make_way(&order.nic, LET_GO_WITHIN) {
        tracing::warn!(pid, "it held the NIC and did not let go: it was ended");
    }
    let mut handover = make(journals)?;
    give_back(&mut handover, order, &last)
}

/// The journal as soon as it speaks of this attachment; `None` when it does not in time, or the agent ended before it did.
fn await_journal(journals: &JournalFolder, order: &Order) -> Option<Journal> {
    let (agent, end) = (getppid(), Instant::now() + JOURNAL_WITHIN);
    while Instant::now() < end {
        let nobody_writes_it = getppid() != agent;
        // It may hold another attachment until then, of an earlier boot or one that turned round.
        if let Ok(Some(journal)) = journals.load(&order.nic)
            && journal.attachment == order.attachment
        {
            return Some(journal);
        }
        if nobody_writes_it {
            return None;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    None
}

/// Watches until it is time to take over: the last journal that could be read then.
fn watch(journals: &JournalFolder, order: &Order, mut last: Journal) -> Option<Journal> {
    loop {
        let now = match journals.load(&order.nic) {
            Ok(journal) => journal,
            // It is replaced as a whole, so what was read last is still true.
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be read");
                Some(last.clone())
            }
        };
        match verdict(now.as_ref(), &order.attachment, NicKernel::uptime()) {
            Verdict::End => return None,
            Verdict::TakeOver => return Some(now.unwrap_or(last)),
            Verdict::Watch => last = now.unwrap_or(last),
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn give_back(handover: &mut Handover, order: &Order, journal: &Journal) -> Result<(), String> {
    let end = Instant::now() + GIVE_UP_AFTER;
    let nic = &order.nic;
    loop {
        if let Err(JournalError::Damaged { problem, .. }) = handover.journals().load(nic) {
            tracing::warn!(nic, %problem, "the journal is damaged: it is replaced by what was read before");
            if let Err(error) = handover.journals().replace_damaged(journal) {
                tracing::warn!(nic, %error, "the journal could not be replaced");
            }
        }
        let still = |seen: &Seen| verdict(seen.journal.as_ref(), &order.attachment, NicKernel::uptime()) == Verdict::TakeOver;
        let outcome = handover.drive(nic, Goal::Plain, &Purpose::default(), |_, seen| still(seen));
        let last = match outcome {
            Ok(Some(Outcome::Done(_))) => return Ok(()),
            Ok(None) => {
                tracing::info!(nic, "the attachment was confirmed or undone by the agent after all");
                return Ok(());
            }
            Ok(Some(Outcome::Wait(wait, _))) => wait.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(nic, %last, "the NIC is not given back yet");
        if Instant::now() > end {
            return Err(format!("give back {nic}: {last}"));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Where a process that stands by finds its order among its arguments.
///
/// # Errors
/// When there is one and it cannot be read.
pub fn order_of(arguments: &[String]) -> Option<Result<Order, String>> {
    let at = arguments.iter().position(|word| word == ARGUMENT).filter(|at| *at == 1)?;
    let text = arguments.get(at + 1).map_or("", String::as_str);
    Some(serde_json::from_str(text).map_err(|error| format!("the order to stand by cannot be read: {error}")))
}

/// Where programs keep their state.
#[must_use]
pub fn run_dir() -> &'static Path {
    Path::new("/run")
}
