//! Notices when `ovs-vswitchd` ends, hangs or starts, by a connection to the bridge's management socket that is held open.
//!
//! The database does not show a restart: all its columns stay as they are, and the flows are gone all the same. Of OpenFlow only the greeting and the
//! probes are spoken, which every version has in common; and where the switch can tell of changed flows, it is asked to.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::flows::{Cookie, OWNER_BITS};
use super::monitor;
use super::stream::Stream;
use super::view::{OvsEvent, OvsSink};
use crate::backoff::Backoff;
use crate::model::{OvsdbTarget, Owner};

/// So many silences of the length of the probe interval end a connection.
const SILENCES: u8 = 3;
/// Length of the header: version, type, length (2), number (4).
const HEADER: usize = 8;

const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
/// OpenFlow 1.0 to 1.5.
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=6;

/// The watching thread; dropping it ends the thread.
pub struct SwitchWatch(Arc<Shared>);

struct Shared {
    socket: PathBuf,
    probe_interval: Duration,
    /// What the cookies of our flows have in common.
    cookies: u64,
    sink: Arc<dyn OvsSink>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stream: Option<Arc<Stream>>,
    stop: bool,
}

impl SwitchWatch {
    /// Begins to watch the switch behind this management socket, and this owner's flows; it may be silent for three times `probe_interval`.
    ///
    /// # Errors
    /// No thread can be had. That the switch is not there is an event.
    pub fn start(socket: &Path, owner: &Owner, probe_interval: Duration, sink: Arc<dyn OvsSink>) -> io::Result<Self> {
        let (state, cookies) = (Mutex::default(), Cookie::ours(owner));
        let shared = Arc::new(Shared { socket: socket.to_owned(), probe_interval, cookies, sink, state, changed: Condvar::new() });
        let watcher = Arc::clone(&shared);
        thread::Builder::new().name("ovs-switch".to_owned()).spawn(move || watcher.run())?;
        Ok(Self(shared))
    }
}

impl Drop for SwitchWatch {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.stop = true;
        if let Some(stream) = &state.stream {
            stream.close();
        }
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut backoff = Backoff::new();
        let mut told = false;
        loop {
            let mut greeted = false;
            let problem = match self.watch(&mut greeted) {
                Ok(never) => match never {},
                Err(error) => error.to_string(),
            };
            if greeted {
                backoff.reset();
            }
            if self.lock().stop {
                return;
            }
            if greeted || !told {
                tracing::warn!(socket = %self.socket.display(), %problem, "ovs-vswitchd is not reachable");
                told = true;
            }
            // Each time: whoever has learned otherwise meanwhile, by another way, must hear that it is so again.
            self.sink.tell(OvsEvent::SwitchLost(problem));
            if self.pause(backoff.wait()) {
                return;
            }
        }
    }

    /// Waits before the next attempt; whether it is time to end.
    fn pause(&self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let mut state = self.lock();
        while !state.stop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn tells_of_flows(&self, received: &Received) -> bool {
        monitor::tells_of(&received.body, |cookie| cookie & OWNER_BITS == self.cookies)
    }

    /// One connection, up to its end.
    fn watch(&self, greeted: &mut bool) -> io::Result<std::convert::Infallible> {
        let target = OvsdbTarget::Unix(self.socket.clone());
        let stream = Arc::new(Stream::connect(&target, self.probe_interval, self.probe_interval)?);
        {
            let mut state = self.lock();
            if state.stop {
                return Err(io::Error::other("the watch has ended"));
            }
            state.stream = Some(Arc::clone(&stream));
        }
        let mut version = *VERSIONS.end();
        stream.send_bytes(&message(version, HELLO, [0; 4], &version_bitmap()))?;
        let (mut reader, mut waiting, mut buffer, mut silences) = (stream.reader(), Vec::new(), [0; 4096], 0);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other("it closed the connection")),
                Ok(count) => {
                    silences = 0;
                    waiting.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    silences += 1;
                    if silences >= SILENCES {
                        return Err(io::Error::other("it is silent"));
                    }
                    if *greeted {
                        stream.send_bytes(&message(version, ECHO_REQUEST, [0; 4], &[]))?;
                    }
                }
                Err(error) => return Err(error),
            }
            while let Some(received) = Received::take(&mut waiting)? {
                match received.kind {
                    HELLO if !*greeted => {
                        version = received.greeting();
                        *greeted = true;
                        if version >= monitor::SINCE {
                            // One that cannot do it refuses, and nothing else.
                            stream.send_bytes(&message(version, monitor::MULTIPART_REQUEST, [0, 0, 0, 1], &monitor::request()))?;
                        }
                        tracing::info!(socket = %self.socket.display(), "ovs-vswitchd answers");
                        self.sink.tell(OvsEvent::SwitchBack);
                    }
                    ECHO_REQUEST => stream.send_bytes(&message(version, ECHO_REPLY, received.number, &received.body))?,
                    monitor::MULTIPART_REPLY if self.tells_of_flows(&received) => self.sink.tell(OvsEvent::FlowsChanged),
                    _ => {}
                }
            }
        }
    }
}

/// A message of the switch.
#[derive(Debug, PartialEq, Eq)]
struct Received {
    version: u8,
    kind: u8,
    number: [u8; 4],
    body: Vec<u8>,
}

impl Received {
    /// Takes the first message out of what was read, if it is complete. The length has 16 bits, so no message is large.
    fn take(waiting: &mut Vec<u8>) -> io::Result<Option<Self>> {
        let [version, kind, high, low, a, b, c, d, ..] = *waiting.as_slice() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length < HEADER {
            return Err(io::Error::other("it does not speak OpenFlow"));
        }
        if waiting.len() < length {
            return Ok(None);
        }
        let body = waiting[HEADER..length].to_vec();
        waiting.drain(..length);
        Ok(Some(Self { version, kind, number: [a, b, c, d], body }))
    }

    /// The version that both sides speak, from a greeting: the highest one of its bitmap (element type 1), else its own.
    fn greeting(&self) -> u8 {
        let bitmap = match self.body.as_slice() {
            [0, 1, _, _, a, b, c, d, ..] => u32::from_be_bytes([*a, *b, *c, *d]),
            _ => 0,
        };
        let own = self.version.clamp(*VERSIONS.start(), *VERSIONS.end());
        VERSIONS.rev().find(|version| bitmap >> version & 1 == 1).unwrap_or(own)
    }
}

fn message(version: u8, kind: u8, number: [u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[version, kind], length.as_slice(), &number, body].concat()
}

fn version_bitmap() -> [u8; 8] {
    let bits: u32 = VERSIONS.map(|version| 1 << version).sum();
    let [a, b, c, d] = bits.to_be_bytes();
    [0, 1, 0, 8, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_come_whole() {
        let hello = message(4, HELLO, [0, 0, 0, 9], &[0, 1, 0, 8, 0, 0, 0, 0x52]);
        let echo = message(6, ECHO_REQUEST, [1, 2, 3, 4], b"x");
        let mut waiting = [hello.clone(), echo].concat();
        let first = Received::take(&mut waiting).unwrap().unwrap();
        assert_eq!((first.kind, first.number, first.greeting()), (HELLO, [0, 0, 0, 9], 6));
        let second = Received::take(&mut waiting).unwrap().unwrap();
        assert_eq!((second.kind, second.body.as_slice()), (ECHO_REQUEST, b"x".as_slice()));
        assert_eq!(Received::take(&mut waiting).unwrap(), None);
        let mut half = hello[..hello.len() - 1].to_vec();
        assert_eq!(Received::take(&mut half).unwrap(), None);
    }

    #[test]
    fn versions() {
        let greeting = |version, body: &[u8]| Received { version, kind: HELLO, number: [0; 4], body: body.to_vec() }.greeting();
        assert_eq!(greeting(1, &[]), 1);
        assert_eq!(greeting(9, &[]), 6);
        assert_eq!(greeting(6, &[0, 1, 0, 8, 0, 0, 0, 0x12]), 4);
        assert_eq!(version_bitmap(), [0, 1, 0, 8, 0, 0, 0, 0x7e]);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut waiting = bytes;
            while let Ok(Some(received)) = Received::take(&mut waiting) {
                prop_assert!(VERSIONS.contains(&received.greeting()));
            }
        }
    }
}
