//! The conversation with the database server: one thread that reads, reconnects and keeps the rows; callers that ask and wait.
//!
//! A connection counts only once our lock was held and the first listing has arrived. Whoever waits for an answer when a connection ends is
//! told that the outcome is not known. Nobody waits longer than its limit, whatever the server does.
//!
//! The lock is the label's, and a NIC's agent and the process that stands by have the same one. Who is robbed of it goes on reading and takes it back only
//! when it has something to write: what they write is in turn by the NIC's own lock, and between that they must not rob each other without end.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::frame::Framer;
use super::message::{self, Message};
use super::rows::{FOLLOWED, Rows};
use super::stream::Stream;
use super::value::Malformed;
use super::view::OvsEvent;
use crate::backoff::Backoff;
use crate::model::OvsdbTarget;

/// Size of one reading (bytes).
const READ_SIZE: usize = 64 * 1024;
/// Number of the request for the lock, on every connection.
const STEAL: u64 = 0;
/// Number of the request for the listing.
const MONITOR: u64 = 1;
/// How long a caller waits for a connection that was lost to come back: whoever asks then has something to save meanwhile.
const BACK_WITHIN: Duration = Duration::from_secs(1);
/// How long a reading waits for a server that has left the request before without an answer, and has said nothing since.
const SILENT_WITHIN: Duration = Duration::from_millis(300);
/// So many silences of the length of the probe interval end a connection.
const SILENCES: u8 = 3;

/// Where the server is, and how patient we are.
#[derive(Clone, Debug)]
pub(super) struct SessionOptions {
    pub(super) target: OvsdbTarget,
    pub(super) lock: String,
    /// How long a server may be silent before it is asked whether it is there.
    pub(super) probe_interval: Duration,
    /// How long a connection may take to come about, and one writing.
    pub(super) connect_limit: Duration,
}

/// What becomes of the rows. Called on the session's thread.
pub(super) trait SessionSink: Send + 'static {
    /// The rows are complete; or some of them changed.
    fn rows(&mut self, rows: &Rows, first: bool) -> Vec<OvsEvent>;
    /// Tells of what was found, or that the connection is lost.
    fn tell(&mut self, events: Vec<OvsEvent>);
}

/// Whether a request needs our lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It changes something: the lock is taken where another process has it.
    Write,
    /// It does not.
    Read,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// It was not asked.
    Unreachable(String),
    /// It was asked and did not answer.
    Unknown(String),
    /// It answered with an error of the protocol: the request was not understood, so not performed.
    Refused(String),
}

/// The handle. When it is dropped the connection is closed, and the thread ends.
pub(super) struct Session(Arc<Shared>);

struct Shared {
    options: SessionOptions,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Since the connection stands.
    stream: Option<Arc<Stream>>,
    /// The lock was held and the rows are complete.
    live: bool,
    /// It was so once.
    was_live: bool,
    /// A connection is being made; else the next attempt is waited for.
    connecting: bool,
    /// An attempt has failed.
    has_failed: bool,
    /// Nobody has robbed us of the lock, or it is ours again.
    locked: bool,
    /// Number of the last request for the lock on this connection.
    steal: u64,
    /// A request was not answered in time, and nothing was heard since.
    silent: bool,
    rows: Rows,
    /// Requests that wait; those that were answered hold the answer until it is fetched.
    pending: HashMap<u64, Option<Result<Value, CallError>>>,
    next_id: u64,
    /// Why it is not live.
    problem: String,
    stop: bool,
}

impl State {
    /// How long a caller waits for a connection that counts.
    fn patience(&self, limit: Duration) -> Duration {
        match (self.was_live, self.has_failed, self.connecting) {
            // It was never reached: nobody is kept waiting for the next attempt.
            (false, true, false) => Duration::ZERO,
            (false, false, _) => limit,
            (true, ..) | (false, true, true) => BACK_WITHIN.min(limit),
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change; `None` when the time is over.
    fn wait<'s>(&self, state: MutexGuard<'s, State>, deadline: Instant) -> (MutexGuard<'s, State>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return (state, false);
        }
        let (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        (state, true)
    }
}

impl Session {
    /// Starts the thread, which connects at once.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn start(options: SessionOptions, sink: impl SessionSink) -> io::Result<Self> {
        let problem = "not connected yet".to_owned();
        let state = Mutex::new(State { problem, next_id: MONITOR + 1, connecting: true, ..State::default() });
        let shared = Arc::new(Shared { options, state, changed: Condvar::new() });
        let reader = Reader { shared: Arc::clone(&shared), sink };
        thread::Builder::new().name("ovsdb".to_owned()).spawn(move || reader.run())?;
        Ok(Self(shared))
    }

    /// Performs one request and waits for its answer, after waiting for a connection that counts.
    pub(super) fn call(&self, purpose: Purpose, request: impl FnOnce(u64) -> Value, limit: Duration) -> Result<Value, CallError> {
        let begun = Instant::now();
        let mut state = self.0.lock();
        let stream = loop {
            if let (true, Some(stream)) = (state.live, &state.stream) {
                break Arc::clone(stream);
            }
            let connected_by = begun + state.patience(limit);
            let in_time;
            (state, in_time) = self.0.wait(state, connected_by);
            if !in_time {
                return Err(CallError::Unreachable(state.problem.clone()));
            }
        };
        let limit = if state.silent && purpose == Purpose::Read { SILENT_WITHIN.min(limit) } else { limit };
        let mut messages = Vec::new();
        if purpose == Purpose::Write && !state.locked {
            let (unlock, steal) = (state.take_id(), state.take_id());
            state.steal = steal;
            let lock = &self.0.options.lock;
            messages.extend([message::unlock(unlock, lock), message::steal(steal, lock)]);
        }
        let id = state.take_id();
        state.pending.insert(id, None);
        drop(state);
        messages.push(request(id));
        // In one piece: nobody else's request comes between the lock and what needs it.
        let text: String = messages.iter().map(Value::to_string).collect();
        if let Err(error) = stream.send_bytes(text.as_bytes()) {
            // Some of it may be on its way, and nothing after it would be understood.
            stream.close();
            self.0.lock().pending.remove(&id);
            return Err(CallError::Unknown(format!("the request could not be sent: {error}")));
        }
        self.answer(id, begun + limit, limit)
    }

    /// Whether the lock is ours, as far as is known.
    pub(super) fn is_locked(&self) -> bool {
        self.0.lock().locked
    }

    fn answer(&self, id: u64, deadline: Instant, limit: Duration) -> Result<Value, CallError> {
        let mut state = self.0.lock();
        loop {
            if let Some(Some(_)) = state.pending.get(&id) {
                return state.pending.remove(&id).flatten().unwrap_or_else(|| Err(CallError::Unknown("the answer was lost".to_owned())));
            }
            let in_time;
            (state, in_time) = self.0.wait(state, deadline);
            if !in_time {
                state.pending.remove(&id);
                state.silent = state.live;
                return Err(CallError::Unknown(format!("no answer within {} ms", limit.as_millis())));
            }
        }
    }

    /// The rows as they are now; `Err` with the reason while there is no connection that counts.
    pub(super) fn rows<T>(&self, read: impl FnOnce(&Rows) -> T) -> Result<T, String> {
        let state = self.0.lock();
        if state.live { Ok(read(&state.rows)) } else { Err(state.problem.clone()) }
    }

    /// Waits until the probe finds something in the rows; `None` when it does not within the limit. A connection that is lost may come back
    /// meanwhile.
    pub(super) fn wait<T>(&self, limit: Duration, mut probe: impl FnMut(&Rows) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut state = self.0.lock();
        loop {
            let found = if state.live { probe(&state.rows) } else { None };
            if found.is_some() {
                return found;
            }
            let in_time;
            (state, in_time) = self.0.wait(state, deadline);
            if !in_time {
                return None;
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.stop = true;
        if let Some(stream) = &state.stream {
            stream.close();
        }
        self.0.changed.notify_all();
    }
}

/// The thread.
struct Reader<S> {
    shared: Arc<Shared>,
    sink: S,
}

impl<S: SessionSink> Reader<S> {
    fn run(mut self) {
        let mut backoff = Backoff::new();
        let mut told = String::new();
        loop {
            let problem = match self.serve(&mut backoff, &mut told) {
                Ok(()) => return,
                Err(problem) => problem,
            };
            self.lost(&problem);
            // `ovs-vswitchd` hears the same, and does not go on with what it knows as it does without a connection: it forwards nothing but now and then. Each
            // time, as whoever has learned otherwise by its socket must hear that it is so.
            if message::is_unknown_database(&problem) {
                self.sink.tell(vec![OvsEvent::SwitchLost(problem.clone())]);
            }
            if told != problem {
                tracing::warn!(server = %self.shared.options.target, %problem, "the Open vSwitch database is not reachable");
                self.sink.tell(vec![OvsEvent::DatabaseLost(problem.clone())]);
                told = problem;
            }
            if self.pause(backoff.wait()) {
                return;
            }
        }
    }

    /// Forgets the connection.
    fn lost(&self, problem: &str) {
        let mut state = self.shared.lock();
        state.stream = None;
        (state.connecting, state.has_failed, state.silent) = (false, true, false);
        for answer in state.pending.values_mut().filter(|answer| answer.is_none()) {
            *answer = Some(Err(CallError::Unknown(format!("the connection ended: {problem}"))));
        }
        problem.clone_into(&mut state.problem);
        state.live = false;
        self.shared.changed.notify_all();
    }

    /// Waits before the next attempt; whether it is time to end.
    fn pause(&self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.lock();
        loop {
            let in_time;
            if state.stop {
                return true;
            }
            (state, in_time) = self.shared.wait(state, deadline);
            if !in_time {
                return state.stop;
            }
        }
    }

    /// One connection, from its beginning to its end. `Ok` when the session is to end.
    fn serve(&mut self, backoff: &mut Backoff, told: &mut String) -> Result<(), String> {
        let options = &self.shared.options;
        self.shared.lock().connecting = true;
        let stream = Stream::connect(&options.target, options.connect_limit, options.probe_interval)
            .map_err(|error| format!("connect to {}: {error}", options.target))?;
        let stream = Arc::new(stream);
        {
            let mut state = self.shared.lock();
            if state.stop {
                return Ok(());
            }
            state.stream = Some(Arc::clone(&stream));
            (state.locked, state.steal) = (false, STEAL);
        }
        let ask = |request: &Value| stream.send(request).map_err(|error| error.to_string());
        ask(&message::steal(STEAL, &options.lock))?;
        ask(&message::monitor(MONITOR, FOLLOWED))?;
        let (mut framer, mut buffer, mut silences) = (Framer::default(), vec![0; READ_SIZE], 0);
        let begun = Instant::now();
        loop {
            match stream.reader().read(&mut buffer) {
                Ok(0) => return self.ended("it closed the connection"),
                Ok(count) => {
                    silences = 0;
                    self.heard();
                    for bytes in framer.push(&buffer[..count]).map_err(|error| error.to_string())? {
                        let message = message::read(&bytes).map_err(|error| error.to_string())?;
                        if self.take(&stream, message)? {
                            backoff.reset();
                            told.clear();
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    silences += 1;
                    if silences >= SILENCES || (!self.shared.lock().live && begun.elapsed() > self.shared.options.connect_limit) {
                        return self.ended("it is silent");
                    }
                    ask(&message::probe())?;
                }
                Err(error) => return self.ended(&error.to_string()),
            }
        }
    }

    /// The server says something: whoever gave up on it hears of that.
    fn heard(&mut self) {
        if std::mem::take(&mut self.shared.lock().silent) {
            self.sink.tell(vec![OvsEvent::DatabaseBack]);
        }
    }

    fn ended(&self, problem: &str) -> Result<(), String> {
        if self.shared.lock().stop { Ok(()) } else { Err(problem.to_owned()) }
    }

    /// Does what the message asks for; whether the connection counts from now on.
    fn take(&mut self, stream: &Stream, message: Message) -> Result<bool, String> {
        match message {
            Message::Answer { id: STEAL, result } if result.clone()?.get("locked") != Some(&Value::Bool(true)) => {
                return Err("it does not give us our lock".to_owned());
            }
            Message::Answer { id: STEAL, .. } | Message::Locked => self.shared.lock().locked = true,
            Message::ProbeAnswer | Message::Other => {}
            Message::Answer { id: MONITOR, result } => {
                self.listed(&result?).map_err(|error| error.to_string())?;
                return Ok(true);
            }
            Message::Answer { id, result } => {
                let mut state = self.shared.lock();
                if id == state.steal {
                    state.locked = result.as_ref().is_ok_and(|lock| lock.get("locked") == Some(&Value::Bool(true)));
                }
                // Nobody waits any more for an answer that came too late.
                if let Some(answer) = state.pending.get_mut(&id) {
                    *answer = Some(result.map_err(CallError::Refused));
                    self.shared.changed.notify_all();
                }
            }
            Message::Update(tables) => self.updated(&tables).map_err(|error| error.to_string())?,
            Message::Echo(answer) => stream.send(&answer).map_err(|error| error.to_string())?,
            Message::Stolen => {
                tracing::info!(server = %self.shared.options.target, "another process of this label writes to the Open vSwitch database");
                self.shared.lock().locked = false;
            }
        }
        Ok(false)
    }

    /// The answer to the lock came before this one, so from here on the connection counts.
    fn listed(&mut self, tables: &Value) -> Result<(), Malformed> {
        let mut rows = Rows::default();
        rows.take(tables)?;
        tracing::info!(server = %self.shared.options.target, "the Open vSwitch database is read");
        let events = self.sink.rows(&rows, true);
        let mut state = self.shared.lock();
        state.rows = rows;
        (state.live, state.was_live) = (true, true);
        state.problem.clear();
        self.shared.changed.notify_all();
        drop(state);
        self.sink.tell(events);
        Ok(())
    }

    fn updated(&mut self, tables: &Value) -> Result<(), Malformed> {
        let mut state = self.shared.lock();
        if let Err(malformed) = state.rows.take(tables) {
            // Half of the change may be in them.
            state.live = false;
            return Err(malformed);
        }
        let events = self.sink.rows(&state.rows, false);
        self.shared.changed.notify_all();
        drop(state);
        self.sink.tell(events);
        Ok(())
    }
}
