//! Stands between an agent and Docker: holds back what is asked or answered, cuts connections, or lets everything through.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// A proxy for one socket. Dropped, it is gone and all connections with it.
pub struct Proxy {
    path: PathBuf,
    shared: Arc<Shared>,
}

/// What is held back.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Answers to inspections of containers.
    inspections: bool,
    /// Everything else, requests included.
    rest: bool,
}

#[derive(Default)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
    /// New connections are closed at once.
    refusing: AtomicBool,
    over: AtomicBool,
    streams: Mutex<Vec<UnixStream>>,
    accepted: AtomicUsize,
    /// Answers to inspections that are being held back.
    waiting: AtomicUsize,
}

impl Proxy {
    /// Listens at `path` for what is meant for `target`.
    pub fn new(path: PathBuf, target: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).expect("a socket in the host's folder");
        listener.set_nonblocking(true).expect("a socket");
        let shared = Arc::new(Shared::default());
        let (all, target) = (shared.clone(), Arc::new(target));
        thread::spawn(move || {
            while !all.over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) if !all.refusing.load(Ordering::Relaxed) => {
                        all.accepted.fetch_add(1, Ordering::Relaxed);
                        let (all, target) = (all.clone(), target.clone());
                        thread::spawn(move || all.serve(client, &target));
                    }
                    Ok(_) => {}
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { path, shared }
    }

    /// Where an agent finds it: for `--docker-host`.
    pub fn url(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Holds back whatever is sent in either direction, as a server that hangs.
    pub fn hold(&self) {
        self.shared.change(|held| *held = Held { inspections: true, rest: true });
    }

    /// Holds back answers to inspections of containers.
    pub fn hold_inspections(&self) {
        self.shared.change(|held| held.inspections = true);
    }

    /// Lets answers to inspections through, and goes on holding back what else it does.
    pub fn release_inspections(&self) {
        self.shared.change(|held| held.inspections = false);
    }

    /// Lets everything through again, also what was held back.
    pub fn release(&self) {
        self.shared.refusing.store(false, Ordering::Relaxed);
        self.shared.change(|held| *held = Held::default());
    }

    /// Ends all connections and refuses new ones.
    pub fn cut(&self) {
        self.shared.refusing.store(true, Ordering::Relaxed);
        self.shared.cut();
    }

    /// How many connections were accepted.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many answers to inspections are being held back.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn serve(self: Arc<Self>, client: UnixStream, target: &Path) {
        self.wait(false);
        let Ok(server) = UnixStream::connect(target) else { return };
        let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { return };
        if let (Ok(a), Ok(b)) = (client.try_clone(), server.try_clone()) {
            self.streams.lock().expect("a lock").extend([a, b]);
        }
        let inspecting = Arc::new(AtomicBool::new(false));
        let (back, inspecting_too) = (self.clone(), inspecting.clone());
        thread::spawn(move || {
            back.carry(server_too, client_too, |_| back.wait(inspecting_too.load(Ordering::Relaxed)));
        });
        self.carry(client, server, |request| {
            self.wait(false);
            inspecting.store(is_inspection(request), Ordering::Relaxed);
        });
    }

    fn carry(&self, mut from: UnixStream, mut to: UnixStream, before: impl Fn(&[u8])) {
        let mut buffer = [0; 65536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            before(&buffer[..count]);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    /// Waits while this is held back.
    fn wait(&self, inspection: bool) {
        let held = self.held.lock().expect("a lock");
        self.waiting.fetch_add(usize::from(inspection && held.inspections), Ordering::Relaxed);
        drop(self.changed.wait_while(held, |held| if inspection { held.inspections } else { held.rest }).expect("a lock"));
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.held.lock().expect("a lock");
        change(&mut held);
        if !held.inspections {
            self.waiting.store(0, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }

    fn cut(&self) {
        for stream in self.streams.lock().expect("a lock").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Whether a request is `GET [/version]/containers/<id>/json`.
fn is_inspection(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let path = text.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    text.starts_with("GET ") && path.ends_with("/json") && path.contains("/containers/") && !path.ends_with("/containers/json")
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.shared.cut();
        self.shared.change(|held| *held = Held::default());
    }
}
