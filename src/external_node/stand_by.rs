//! The dead man's switch: a process of its own that gives the NIC back if the agent does not confirm in time that the host can still reach its store.
//!
//! It is started before the NIC is touched, and knows nothing but the journal: confirmed or dropped, it ends; past its time, it takes the NIC for itself
//! (and ends an agent that holds it and does not let go) and goes the way back.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use serde::{Deserialize, Serialize};

use crate::external_node::handover::{Handover, Outcome, Purpose};
use crate::external_node::journal::{Intent, Journal, JournalFolder};
use crate::external_node::phase::Goal;
use crate::linux::nic::NicKernel;

/// The first argument of the agent's program that makes it stand by; the second is the order.
pub const ARGUMENT: &str = "--stand-by-for-nic";
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How much longer than the agent itself it waits, seconds: an agent that lives undoes it in order and says why.
const GRACE: u64 = 5;
/// How long a journal may take to appear: it is started before that is written.
const JOURNAL_WITHIN: Duration = Duration::from_secs(30);
/// How long an agent that holds the NIC may take to let go.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);
/// How long, and how often, the way back is tried.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);
const TRY_EVERY: Duration = Duration::from_secs(2);

/// What to stand by for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The NIC's own name.
    pub nic: String,
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

/// What the journal says of the time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Go on watching.
    Wait,
    /// All is well.
    End,
    /// Give the NIC back.
    TakeOver,
}

fn verdict(journal: Option<&Journal>, boot_id: &str, uptime: u64) -> Verdict {
    match journal {
        None => Verdict::End,
        Some(journal) if journal.confirmed || journal.boot_id != boot_id => Verdict::End,
        Some(journal) if uptime >= journal.confirm_until.saturating_add(GRACE) => Verdict::TakeOver,
        Some(_) => Verdict::Wait,
    }
}

/// Stands by until the attachment is confirmed, undone, or undone by this process. `make` is called when it takes over.
///
/// # Errors
/// One sentence, when the NIC could not be given back.
pub fn run(order: &Order, boot_id: &str, make: impl FnOnce(JournalFolder) -> Result<Handover, String>) -> Result<(), String> {
    let agent = getppid();
    let journals = JournalFolder::open(&order.state_dir).map_err(|error| error.to_string())?;
    if !await_journal(&journals, &order.nic) {
        return Ok(());
    }
    loop {
        // One that cannot be read is looked at again: it is replaced as a whole.
        match journals.load(&order.nic) {
            Ok(journal) => match verdict(journal.as_ref(), boot_id, NicKernel::uptime()) {
                Verdict::End => return Ok(()),
                Verdict::TakeOver => break,
                Verdict::Wait => {}
            },
            Err(error) => tracing::warn!(%error, "the journal cannot be read"),
        }
        std::thread::sleep(LOOK_EVERY);
    }
    tracing::warn!(nic = %order.nic, "the attachment was not confirmed in time: the NIC is given back");
    make_way(&journals, &order.nic, agent);
    let mut handover = make(journals)?;
    give_back(&mut handover, &order.nic)
}

fn await_journal(journals: &JournalFolder, nic: &str) -> bool {
    let end = Instant::now() + JOURNAL_WITHIN;
    while Instant::now() < end {
        if journals.path(nic).exists() {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    false
}

/// An agent that holds the NIC past its time does not work any more; it is ended so that it cannot undo what follows.
fn make_way(journals: &JournalFolder, nic: &str, agent: Pid) {
    if journals.lock(nic, LET_GO_WITHIN).is_ok() || agent != getppid() || agent.as_raw() <= 1 {
        return;
    }
    tracing::warn!(pid = agent.as_raw(), "the agent holds the NIC and does not let go: it is ended");
    let _gone_already = kill(agent, Signal::SIGKILL);
}

fn give_back(handover: &mut Handover, nic: &str) -> Result<(), String> {
    let end = Instant::now() + GIVE_UP_AFTER;
    loop {
        let last = match handover.drive(nic, Goal::Plain, &Purpose::default(), |_, _| true) {
            Ok(Some(Outcome::Done(_))) => return Ok(()),
            Ok(Some(Outcome::Wait(wait, _))) => wait.to_string(),
            Ok(None) => "it was stopped".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(nic, %last, "the NIC is not given back yet");
        if Instant::now() > end {
            return Err(format!("give back {nic}: {last}"));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Whether a journal speaks of an attachment whose time ran out.
#[must_use]
pub fn is_overdue(journal: &Journal, uptime: u64) -> bool {
    !journal.confirmed && journal.intent != Intent::Detaching && uptime >= journal.confirm_until
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
