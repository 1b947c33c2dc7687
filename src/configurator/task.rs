//! The configurator's thread: takes what came in, runs a pass under the lock, sleeps until something comes or is due.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::inbox::Inbox;
use super::{Configurator, Now};
use crate::heap;

/// Longest sleep: the heartbeat tells the watchdog that the thread lives.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Runs passes on a thread of its own, since the kernel's work blocks, until the inbox is stopped. The step in hand is finished. What is returned is
/// closed when the thread has ended, however it ended.
///
/// # Errors
/// When no thread can be started.
pub fn spawn(configurator: Arc<Mutex<Configurator>>, inbox: Arc<Inbox>) -> io::Result<oneshot::Receiver<()>> {
    let (alive, ended) = oneshot::channel();
    thread::Builder::new().name("configurator".to_owned()).spawn(move || {
        // Dropped with the thread, by a panic as well.
        let _alive: oneshot::Sender<()> = alive;
        let mut due = Instant::now();
        loop {
            let batch = inbox.take(due.min(Instant::now() + HEARTBEAT));
            if batch.stop {
                return;
            }
            let now = Now { instant: Instant::now(), wall: SystemTime::now().into() };
            let mut agent = configurator.lock().unwrap_or_else(PoisonError::into_inner);
            due = agent.pass(batch, now);
            // Not before what follows at once.
            if due > now.instant && agent.was_large() {
                heap::give_back();
            }
        }
    })?;
    Ok(ended)
}
