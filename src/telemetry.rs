//! The log: one record per event on standard error, as text or JSON.
//!
//! Writers never wait: lines go through a bounded queue to a thread of their own, so a pipe that nobody reads stalls the log and not the agent.
//! What does not fit is counted. Texts from outside cannot break a record or steer a terminal: control and bidirectional characters are escaped.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that wait for standard error at most.
const QUEUE: usize = 4096;

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("log filter: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Someone else set up a log in this process.
    #[error("log: {0}")]
    Taken(#[from] tracing_subscriber::util::TryInitError),
    /// No thread.
    #[error("log thread: {0}")]
    Thread(#[from] io::Error),
}

static RUNNING: OnceLock<Telemetry> = OnceLock::new();

/// Lines that this process's log has dropped so far.
#[must_use]
pub fn dropped_lines() -> u64 {
    RUNNING.get().map_or(0, Telemetry::dropped)
}

/// The running log.
#[derive(Clone, Debug)]
pub struct Telemetry {
    queue: LineQueue,
}

impl Telemetry {
    /// Lines that were dropped because standard error did not take them in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything logged so far has been written, but not longer than `limit`. For the end of the process.
    pub fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.queue.pending.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Starts the log of this process on standard error.
///
/// # Errors
/// [`TelemetryError`]; the log is not running then.
pub fn init(filter: &str, format: LogFormat) -> Result<Telemetry, TelemetryError> {
    let filter = EnvFilter::try_new(filter)?;
    let queue = LineQueue::start(io::stderr(), format)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(queue.clone());
    match format {
        LogFormat::Text => builder.with_target(true).finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(RUNNING.get_or_init(|| Telemetry { queue }).clone())
}

/// Whether a character from outside could mislead a reader or steer a terminal: controls (C0, DEL, C1), line and paragraph separators,
/// bidirectional and invisible formatting.
#[must_use]
pub fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A bounded queue of lines before a writer that may block.
#[derive(Clone, Debug)]
struct LineQueue {
    lines: SyncSender<Vec<u8>>,
    pending: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    format: LogFormat,
}

impl LineQueue {
    fn start(writer: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        let (lines, queue) = sync_channel(QUEUE);
        let this = Self { lines, pending: Arc::default(), dropped: Arc::default(), format };
        let (pending, dropped) = (this.pending.clone(), this.dropped.clone());
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&queue, writer, &pending, &dropped))?;
        Ok(this)
    }

    fn push(&self, line: Vec<u8>) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(line) {
            self.pending.fetch_sub(1, Ordering::AcqRel);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_lines(queue: &Receiver<Vec<u8>>, mut writer: impl Write, pending: &AtomicU64, dropped: &AtomicU64) {
    while let Ok(line) = queue.recv() {
        // A closed standard error cannot be reported anywhere; it is counted like a full queue.
        if writer.write_all(&line).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = Record<'a>;
    fn make_writer(&'a self) -> Self::Writer {
        Record { queue: self, bytes: Vec::new() }
    }
}

/// One event on its way into the queue.
struct Record<'a> {
    queue: &'a LineQueue,
    bytes: Vec<u8>,
}

impl Write for Record<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            self.queue.push(one_line(&self.bytes, self.queue.format));
        }
    }
}

/// The record with everything that misleads escaped, and the one line feed at its end.
fn one_line(record: &[u8], format: LogFormat) -> Vec<u8> {
    let text = String::from_utf8_lossy(record);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let mut line = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        // In JSON the serializer has escaped C0 already, and `\u202e` is the only form that keeps the rest valid. All of them are
        // in the basic plane, so four digits do. Writing to a string cannot fail.
        match (misleads(c), format) {
            (false, _) => line.push(c),
            (true, LogFormat::Json) => drop(write!(line, "\\u{:04x}", u32::from(c))),
            (true, LogFormat::Text) => line.extend(c.escape_default()),
        }
    }
    line.push('\n');
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// A pipe that takes nothing until it is opened.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Shared>);

    #[derive(Default)]
    struct Shared {
        state: Mutex<(bool, Vec<u8>)>,
        opened: Condvar,
    }

    impl Pipe {
        fn open(&self) {
            self.0.state.lock().unwrap().0 = true;
            self.0.opened.notify_all();
        }
        fn text(&self) -> String {
            String::from_utf8(self.0.state.lock().unwrap().1.clone()).unwrap()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.opened.wait_while(self.0.state.lock().unwrap(), |(open, _)| !*open).unwrap();
            state.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_pipe_stalls_nobody_and_drops_are_counted() {
        let pipe = Pipe::default();
        let telemetry = Telemetry { queue: LineQueue::start(pipe.clone(), LogFormat::Text).unwrap() };
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(telemetry.queue.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..QUEUE + 100 {
                tracing::info!(n, "line");
            }
        });
        // One line is in the writer's hands, the queue is full.
        assert!((98..=100).contains(&telemetry.dropped()), "{}", telemetry.dropped());
        pipe.open();
        telemetry.flush(Duration::from_secs(10));
        assert_eq!(pipe.text().lines().count() as u64 + telemetry.dropped(), QUEUE as u64 + 100);
    }

    #[test]
    fn one_record_per_event() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let pipe = Pipe::default();
            pipe.open();
            let telemetry = Telemetry { queue: LineQueue::start(pipe.clone(), format).unwrap() };
            let builder = tracing_subscriber::fmt().with_ansi(false).with_writer(telemetry.queue.clone());
            let evil = "a\nERROR forged\x1b[31m\u{9b}1m\u{202e}b";
            let log = || tracing::warn!(key = %evil, "about {evil}");
            match format {
                LogFormat::Text => tracing::subscriber::with_default(builder.finish(), log),
                LogFormat::Json => tracing::subscriber::with_default(builder.json().flatten_event(true).finish(), log),
            }
            telemetry.flush(Duration::from_secs(10));
            let text = pipe.text();
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            assert!(!text.trim_end_matches('\n').contains(misleads), "{text:?}");
            if format == LogFormat::Json {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(value["key"], evil);
            }
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_said() {
        assert!(matches!(init("info,=,=", LogFormat::Text), Err(TelemetryError::Filter(_))));
    }
}
