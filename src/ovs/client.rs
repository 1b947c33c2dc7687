//! [`Switch`] on a real database: what is asked in which transaction, and what its answer means.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::message;
use super::rows::Rows;
use super::session::{CallError, Purpose, Session, SessionOptions, SessionSink};
use super::transaction::{self, Guard, NewPair, OPENFLOW, Refusal, Transaction};
use super::view::{self, BridgeView, KnownRows, OfPort, OvsEvent, OvsSink, PairRows, PairView, PortState, PortView, SwitchView};
use super::{Failing, Notes, OvsError, RowId, Switch};
use crate::model::{AgentLabel, Datapath, MacAddr, OvsdbTarget};

/// What is said of a request that lost our lock on its way.
const ROBBED: &str = "another process of this label writes to it";
/// So often a request is repeated for that.
const ROBBED_MOST: u32 = 3;

/// How the database is reached, and what of it is ours.
#[derive(Clone, Debug)]
pub struct OvsOptions {
    /// Where the server listens.
    pub target: OvsdbTarget,
    /// Whose ports they are.
    pub label: AgentLabel,
    /// The bridge.
    pub bridge: String,
    /// How long an answer may take, and a connection to come about.
    pub call_limit: Duration,
    /// How long the server may be silent before it is asked whether it is there; it counts as lost after three times that.
    pub probe_interval: Duration,
}

impl OvsOptions {
    /// With the usual patience: 5 s each.
    #[must_use]
    pub fn new(target: OvsdbTarget, label: AgentLabel, bridge: String) -> Self {
        let usual = Duration::from_secs(5);
        Self { target, label, bridge, call_limit: usual, probe_interval: usual }
    }
}

/// The real [`Switch`]. Dropping it closes the connection; nothing in Open vSwitch changes by that.
pub struct OvsClient {
    session: Session,
    options: OvsOptions,
    lock: String,
    known: Mutex<KnownRows>,
}

impl OvsClient {
    /// Begins to connect, and to tell events to `sink`.
    ///
    /// # Errors
    /// No thread can be had. That the database is not reachable is an event.
    pub fn start(options: OvsOptions, sink: Arc<dyn OvsSink>) -> io::Result<Self> {
        let lock = transaction::lock_name(&options.label);
        let session = SessionOptions {
            target: options.target.clone(),
            lock: lock.clone(),
            probe_interval: options.probe_interval,
            connect_limit: options.call_limit,
        };
        let follower =
            Follower { label: options.label.clone(), bridge: options.bridge.clone(), last: SwitchView::default(), internal: None, sink };
        Ok(Self { session: Session::start(session, follower)?, options, lock, known: Mutex::default() })
    }

    /// Makes a transaction that changes something.
    fn transact(&self, attempted: &str, transaction: &Transaction) -> Result<Vec<Value>, OvsError> {
        let mut robbed = 0;
        loop {
            match self.transact_once(attempted, Purpose::Write, transaction, self.options.call_limit) {
                // Another process came between, and nothing was done.
                Err(OvsError::Refused { cause, .. }) if cause == ROBBED && robbed < ROBBED_MOST => robbed += 1,
                outcome => return outcome,
            }
        }
    }

    fn transact_once(&self, attempted: &str, purpose: Purpose, transaction: &Transaction, limit: Duration) -> Result<Vec<Value>, OvsError> {
        let attempted = || attempted.to_owned();
        let request = |id| message::transact(id, transaction.operations());
        let answer = self.session.call(purpose, request, limit).map_err(|error| match error {
            CallError::Unreachable(cause) => OvsError::Unreachable { attempted: attempted(), cause },
            CallError::Unknown(cause) => OvsError::Unknown { attempted: attempted(), cause },
            CallError::Refused(cause) => OvsError::Refused { attempted: attempted(), cause },
        })?;
        let outcome = transaction.outcome(&answer).map_err(|odd| OvsError::Unknown { attempted: attempted(), cause: odd.to_string() })?;
        outcome.map_err(|refusal| match refusal {
            Refusal::Guard(Guard::Free(name)) => OvsError::Taken { attempted: attempted(), name },
            Refusal::Guard(Guard::BridgeThere) => OvsError::NoBridge { attempted: attempted(), bridge: self.options.bridge.clone() },
            Refusal::Guard(Guard::BridgeMissing) => OvsError::Taken { attempted: attempted(), name: self.options.bridge.clone() },
            Refusal::Guard(Guard::PortThere(port)) => OvsError::NoPort { attempted: attempted(), port },
            Refusal::Guard(Guard::Lock) => OvsError::Refused { attempted: attempted(), cause: ROBBED.to_owned() },
            Refusal::Server(cause) => OvsError::Refused { attempted: attempted(), cause },
        })
    }

    /// Something of the rows, as they are after everything that was asked before.
    fn fresh<T>(&self, attempted: &str, read: impl FnOnce(&Rows) -> T) -> Result<T, OvsError> {
        self.fresh_within(self.options.call_limit, attempted, read)
    }

    fn fresh_within<T>(&self, limit: Duration, attempted: &str, read: impl FnOnce(&Rows) -> T) -> Result<T, OvsError> {
        let unreachable = |cause| OvsError::Unreachable { attempted: attempted.to_owned(), cause };
        let ask = |barrier: &Transaction| self.transact_once(attempted, Purpose::Read, barrier, limit);
        let locked = self.session.is_locked().then(|| ask(&transaction::barrier(&self.lock)));
        let asked = match locked {
            Some(Err(OvsError::Refused { cause, .. })) if cause == ROBBED => ask(&transaction::barrier_without_lock()),
            Some(outcome) => outcome,
            None => ask(&transaction::barrier_without_lock()),
        };
        asked.map_err(|error| match error {
            // A reading that was not answered changed nothing.
            OvsError::Unknown { cause, .. } => unreachable(cause),
            other => other,
        })?;
        // The server tells changes before it answers.
        self.session.rows(read).map_err(unreachable)
    }

    fn view(&self, rows: &Rows) -> SwitchView {
        view::view(rows, &self.options.label, &self.options.bridge, &self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ours(&self, rows: &Rows) -> SwitchView {
        view::ours(rows, &self.options.label, &self.options.bridge, &self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn pair(&self, attempted: &str, host: &str) -> Result<PairView, OvsError> {
        self.fresh(attempted, |rows| self.ours(rows).pairs.remove(host).unwrap_or_default())
    }

    fn create_bridge(&self, attempted: &str, datapath: Datapath) -> Result<(), OvsError> {
        let made = self.transact(attempted, &transaction::create_bridge(&self.lock, &self.options.bridge, datapath));
        match made {
            Err(OvsError::Taken { attempted, name }) => {
                // Somebody else may have made this very bridge just now.
                let there = self.fresh(&attempted, |rows| rows.bridge(&self.options.bridge).is_some())?;
                if there { Ok(()) } else { Err(OvsError::Taken { attempted, name }) }
            }
            other => other.map(drop),
        }
    }

    /// Waits for `probe`; its `Err` says what it still waits for.
    fn wait<T>(&self, attempted: &str, limit: Duration, mut probe: impl FnMut(&Rows) -> Waiting<T>) -> Result<T, OvsError> {
        let mut last = Waiting::For("nothing was seen".to_owned());
        self.session.wait(limit, |rows| {
            last = probe(rows);
            (!matches!(last, Waiting::For(_))).then_some(())
        });
        match (last, self.session.rows(|_| ())) {
            (Waiting::For(_), Err(cause)) => Err(OvsError::Unreachable { attempted: attempted.to_owned(), cause }),
            (last, _) => last.into_result(attempted.to_owned(), limit),
        }
    }
}

/// What a waiting probe found.
pub(super) enum Waiting<T> {
    /// What was waited for.
    Done(T),
    /// It will not come.
    Ended(OvsError),
    /// Not yet; this is missing.
    For(String),
}

impl<T> Waiting<T> {
    /// What it means when the time is over.
    pub(super) fn into_result(self, attempted: String, limit: Duration) -> Result<T, OvsError> {
        match self {
            Self::Done(value) => Ok(value),
            Self::Ended(error) => Err(error),
            Self::For(last) => Err(OvsError::NotYet { attempted, limit, last }),
        }
    }
}

impl Switch for OvsClient {
    fn read(&self) -> Result<SwitchView, OvsError> {
        self.read_within(self.options.call_limit)
    }

    fn read_within(&self, limit: Duration) -> Result<SwitchView, OvsError> {
        self.fresh_within(limit.min(self.options.call_limit), "read the ports", |rows| self.view(rows))
    }

    fn know(&self, host: &str, rows: Option<&PairRows>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match rows {
            Some(rows) => drop(known.insert(host.to_owned(), rows.clone())),
            None => drop(known.remove(host)),
        }
    }

    fn ensure_bridge(&self, datapath: Datapath) -> Result<BridgeView, OvsError> {
        let bridge = &self.options.bridge;
        let attempted = format!("make the bridge `{bridge}`");
        let (empty, there) = self.fresh(&attempted, |rows| (rows.progress().is_none(), rows.bridge(bridge).is_some()))?;
        if empty {
            let cause = "it has not been initialised (`ovs-vsctl init` does that)".to_owned();
            return Err(OvsError::Refused { attempted, cause });
        }
        if !there {
            self.create_bridge(&attempted, datapath)?;
        }
        let missing = || OvsError::NoBridge { attempted: attempted.clone(), bridge: bridge.clone() };
        let found = self.fresh(&attempted, |rows| self.ours(rows).bridge)?.ok_or_else(missing)?;
        if found.protocols.is_empty() || found.protocols.contains(OPENFLOW) {
            return Ok(found);
        }
        let attempted = format!("let the bridge `{bridge}` speak {OPENFLOW}");
        self.transact(&attempted, &transaction::add_protocol(&self.lock, bridge))?;
        self.fresh(&attempted, |rows| self.ours(rows).bridge)?.ok_or_else(missing)
    }

    fn create_pair(&self, pair: &NewPair) -> Result<PairRows, OvsError> {
        let attempted = format!("make the ports `{}` and `{}`", pair.host, pair.uplink);
        let create = transaction::create_pair(&self.lock, &self.options.label, &self.options.bridge, pair);
        let results = self.transact(&attempted, &create)?;
        let nameless = || OvsError::Unknown { attempted, cause: "the answer does not name their rows".to_owned() };
        transaction::created_rows(&create, &results).ok_or_else(nameless)
    }

    fn delete_pair(&self, host: &str) -> Result<(), OvsError> {
        let attempted = format!("remove the ports of `{host}`");
        let ports: Vec<RowId> = ports(&self.pair(&attempted, host)?).map(|port| port.id.clone()).collect();
        if ports.is_empty() {
            return Ok(());
        }
        self.transact(&attempted, &transaction::delete_ports(&self.lock, &self.options.bridge, &ports)).map(drop)
    }

    fn write_notes(&self, host: &str, notes: &Notes) -> Result<(), OvsError> {
        let attempted = format!("write down what belongs to the ports of `{host}`");
        let pair = self.pair(&attempted, host)?;
        if ports(&pair).next().is_none() {
            return Err(OvsError::NoPort { attempted, port: host.to_owned() });
        }
        self.transact(&attempted, &transaction::write_notes(&self.lock, &self.options.label, &pair, notes)).map(drop)
    }

    fn wait_ready(&self, host: &str, mac: MacAddr, failing: Failing, limit: Duration) -> Result<(OfPort, OfPort), OvsError> {
        let attempted = format!("wait for the ports of `{host}`");
        self.wait(&attempted, limit, |rows| ready(&attempted, host, self.ours(rows).pairs.get(host), mac, failing))
    }

    fn wait_gone(&self, host: &str, limit: Duration) -> Result<(), OvsError> {
        let attempted = format!("wait until the ports of `{host}` are gone");
        self.wait(&attempted, limit, |rows| {
            let view = self.ours(rows);
            match (view.pairs.contains_key(host), view.followed) {
                (false, true) => Waiting::Done(()),
                (true, _) => Waiting::For("the database has them".to_owned()),
                (false, false) => Waiting::For("ovs-vswitchd has not followed".to_owned()),
            }
        })
    }

    fn wait_followed(&self, limit: Duration) -> Result<(), OvsError> {
        let attempted = "wait for ovs-vswitchd";
        let begun = Instant::now();
        let results = self.transact(attempted, &transaction::number(&self.lock))?;
        let number = transaction::numbered(&results).ok_or_else(|| OvsError::Refused {
            attempted: attempted.to_owned(),
            cause: "it has not been initialised (`ovs-vsctl init` does that)".to_owned(),
        })?;
        self.wait(attempted, limit.saturating_sub(begun.elapsed()), |rows| match rows.progress() {
            Some((cur, _)) if cur >= number => Waiting::Done(()),
            Some((cur, _)) => Waiting::For(format!("it has followed up to change {cur} of {number}")),
            None => Waiting::For("the database is empty".to_owned()),
        })
    }
}

fn ports(pair: &PairView) -> impl Iterator<Item = &PortView> {
    [&pair.host, &pair.uplink].into_iter().flatten()
}

/// Whether both ports work and the internal one has its address.
pub(super) fn ready(attempted: &str, host: &str, pair: Option<&PairView>, mac: MacAddr, failing: Failing) -> Waiting<(OfPort, OfPort)> {
    let Some(PairView { host: Some(port), uplink: Some(uplink), .. }) = pair else {
        return Waiting::Ended(OvsError::NoPort { attempted: attempted.to_owned(), port: host.to_owned() });
    };
    let mut numbers = Vec::new();
    for port in [port, uplink] {
        match (&port.state, failing) {
            (PortState::Ready(number), _) => numbers.push(*number),
            (PortState::Pending, _) => return Waiting::For(format!("ovs-vswitchd has not taken over `{}`", port.name)),
            (PortState::Failed(cause), Failing::MayPass) => return Waiting::For(format!("`{}`: {cause}", port.name)),
            (PortState::Failed(cause), Failing::Ends) => {
                let (attempted, cause) = (attempted.to_owned(), cause.clone());
                return Waiting::Ended(OvsError::PortFailed { attempted, port: port.name.clone(), cause });
            }
        }
    }
    match (port.mac_in_use, numbers.as_slice()) {
        (Some(found), [host, uplink]) if found == mac => Waiting::Done((*host, *uplink)),
        (found, _) => {
            let found = found.map_or("no address".to_owned(), |found| found.to_string());
            Waiting::For(format!("`{host}` has {found} instead of {mac}"))
        }
    }
}

/// Turns changes of the rows into events.
struct Follower {
    label: AgentLabel,
    bridge: String,
    last: SwitchView,
    /// The internal ports that were told last.
    internal: Option<BTreeMap<String, String>>,
    sink: Arc<dyn OvsSink>,
}

impl SessionSink for Follower {
    fn rows(&mut self, rows: &Rows, first: bool) -> Vec<OvsEvent> {
        // By what they say alone: who empties their ids is heard of as one who removes them.
        let now = view::ours(rows, &self.label, &self.bridge, &KnownRows::new());
        let mut events = view::events(&self.last, &now);
        if first {
            events.insert(0, OvsEvent::DatabaseBack);
        }
        self.last = now;
        let internal = view::internal_ports(rows);
        if self.internal.as_ref() != Some(&internal) {
            // The switch hears of them at this moment too, and makes their devices: whoever must not take those hears of it before anything else.
            events.insert(0, OvsEvent::InternalPorts(internal.clone()));
            self.internal = Some(internal);
        }
        events
    }

    fn tell(&mut self, events: Vec<OvsEvent>) {
        events.into_iter().for_each(|event| self.sink.tell(event));
    }
}
