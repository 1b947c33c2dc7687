//! A proxy in front of the database's unix socket that loses single answers, holds single requests back, stalls, cuts, and splits.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use vnf_agent::model::OvsdbTarget;

/// What the proxy does at present.
#[derive(Default)]
pub struct Faults {
    /// The answer to the next request that contains this text is lost; the server performs it.
    pub lose_answer: Mutex<Option<String>>,
    /// The next request that contains this text is held back, its client cut off; [`Faults::release`] lets it go on to the server.
    pub hold_request: Mutex<Option<String>>,
    /// Nothing passes in either direction; connections stay open.
    pub stall: AtomicBool,
    /// Bytes pass one by one.
    pub split: AtomicBool,
    /// New connections are closed at once.
    pub refuse: AtomicBool,
    /// Answers that were lost.
    pub lost: AtomicUsize,
    /// Requests that are held back.
    pub held: AtomicUsize,
    /// Connections that were made.
    pub connections: AtomicUsize,
    /// Answers to requests that were held back.
    pub late_answers: Mutex<Vec<Value>>,
    released: AtomicBool,
    open: Mutex<Vec<UnixStream>>,
}

impl Faults {
    /// Cuts every connection, on both sides.
    pub fn cut(&self) {
        for stream in self.open.lock().expect("no panic in the proxy").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Holds the next request that contains this text back, until [`Faults::release`].
    pub fn hold(&self, text: &str) {
        self.released.store(false, Ordering::SeqCst);
        *self.hold_request.lock().expect("no panic in the proxy") = Some(text.to_owned());
    }

    /// Lets what was held back go on.
    pub fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }

    fn pass(&self, to: &mut UnixStream, bytes: &[u8]) -> bool {
        while self.stall.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let size = if self.split.load(Ordering::SeqCst) { 1 } else { bytes.len().max(1) };
        bytes.chunks(size).all(|part| to.write_all(part).is_ok())
    }
}

/// A running proxy.
pub struct OvsdbProxy {
    pub faults: Arc<Faults>,
    path: PathBuf,
}

impl OvsdbProxy {
    /// Listens on one socket, and connects to the other.
    pub fn start(path: PathBuf, server: PathBuf) -> Self {
        let faults = Arc::new(Faults::default());
        let listener = UnixListener::bind(&path).expect("bind the proxy");
        let shared = Arc::clone(&faults);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                serve(client, &server, &shared);
            }
        });
        Self { faults, path }
    }

    /// Where it listens.
    pub fn target(&self) -> OvsdbTarget {
        OvsdbTarget::Unix(self.path.clone())
    }
}

fn serve(client: UnixStream, server: &Path, faults: &Arc<Faults>) {
    faults.connections.fetch_add(1, Ordering::SeqCst);
    if faults.refuse.load(Ordering::SeqCst) {
        return;
    }
    let Ok(server) = UnixStream::connect(server) else { return };
    let copies = [&client, &server].map(|stream| stream.try_clone().expect("a descriptor"));
    faults.open.lock().expect("no panic in the proxy").extend(copies);
    let doomed = Arc::new(Mutex::new(Doomed::default()));
    let (to_client, from_server) = (client.try_clone().expect("a descriptor"), server.try_clone().expect("a descriptor"));
    for (from, to, requests) in [(client, server, true), (from_server, to_client, false)] {
        let (faults, doomed) = (Arc::clone(faults), Arc::clone(&doomed));
        std::thread::spawn(move || pump(from, to, &faults, &doomed, requests));
    }
}

/// Requests of one connection whose answers do not arrive.
#[derive(Default)]
struct Doomed {
    lost: HashSet<String>,
    held: HashSet<String>,
}

fn pump(mut from: UnixStream, mut to: UnixStream, faults: &Faults, doomed: &Mutex<Doomed>, requests: bool) {
    let (mut buffer, mut waiting) = (vec![0; 16 << 10], Vec::new());
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        waiting.extend_from_slice(&buffer[..count]);
        for message in complete(&mut waiting) {
            let passes = if requests { request(&message, &from, faults, doomed) } else { answer(&message, faults, doomed) };
            let passed = !passes || faults.pass(&mut to, message.to_string().as_bytes());
            // The server still has something to say about a request that was held back, though nobody hears it.
            if !passed && (requests || doomed.lock().expect("no panic in the proxy").held.is_empty()) {
                return;
            }
        }
    }
    // The server's side of a connection with a held request stays open.
    if !requests || doomed.lock().expect("no panic in the proxy").held.is_empty() {
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// Takes the complete messages out of what was read.
fn complete(waiting: &mut Vec<u8>) -> Vec<Value> {
    let mut stream = serde_json::Deserializer::from_slice(waiting).into_iter::<Value>();
    let messages: Vec<Value> = stream.by_ref().map_while(Result::ok).collect();
    let consumed = stream.byte_offset();
    waiting.drain(..consumed);
    messages
}

fn is_marked(marker: &Mutex<Option<String>>, message: &Value) -> bool {
    let mut marker = marker.lock().expect("no panic in the proxy");
    let hit = marker.as_ref().is_some_and(|text| message.to_string().contains(text.as_str()));
    if hit {
        *marker = None;
    }
    hit
}

fn request(message: &Value, client: &UnixStream, faults: &Faults, doomed: &Mutex<Doomed>) -> bool {
    let id = message["id"].to_string();
    if is_marked(&faults.lose_answer, message) {
        doomed.lock().expect("no panic in the proxy").lost.insert(id);
    } else if is_marked(&faults.hold_request, message) {
        doomed.lock().expect("no panic in the proxy").held.insert(id);
        faults.held.fetch_add(1, Ordering::SeqCst);
        let _ = client.shutdown(Shutdown::Both);
        while !faults.released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    true
}

fn answer(message: &Value, faults: &Faults, doomed: &Mutex<Doomed>) -> bool {
    let id = message["id"].to_string();
    let doomed = doomed.lock().expect("no panic in the proxy");
    if message.get("method").is_none() && doomed.held.contains(&id) {
        faults.late_answers.lock().expect("no panic in the proxy").push(message.clone());
        return false;
    }
    let lost = message.get("method").is_none() && doomed.lost.contains(&id);
    if lost {
        faults.lost.fetch_add(1, Ordering::SeqCst);
    }
    !lost
}

impl Drop for OvsdbProxy {
    fn drop(&mut self) {
        self.faults.stall.store(false, Ordering::SeqCst);
        self.faults.release();
        self.faults.cut();
    }
}
