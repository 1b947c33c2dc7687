//! Panics are defects: each is logged as one record, and one on a thread of the agent's own ends the agent, which would only seem to work without it.
//!
//! Tasks of the async runtime are left out: a call that fails so ends alone, and those that must not end are waited for by `agent`.

use std::panic;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Name of the async runtime's threads.
pub const ASYNC_THREADS: &str = "async";
/// Name of the threads that enter a namespace: whoever started one takes its panic as a failure.
const IN_NETNS: &str = "netns";

/// Panics on threads that must not end.
pub struct Panics(UnboundedReceiver<String>);

/// Logs every panic of this process from now on.
#[must_use]
pub fn watch() -> Panics {
    let (sender, panics) = unbounded_channel();
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!(thread = name, %panic, "a defect of the agent");
        if is_vital(name) {
            // Fails only when nobody waits any more, because the agent stops.
            let _ = sender.send(name.to_owned());
        }
    }));
    Panics(panics)
}

impl Panics {
    /// Waits for a panic; returns the thread's name.
    pub async fn next(&mut self) -> String {
        match self.0.recv().await {
            Some(thread) => thread,
            // Somebody else's hook took the place of ours.
            None => std::future::pending().await,
        }
    }
}

fn is_vital(thread: &str) -> bool {
    ![ASYNC_THREADS, IN_NETNS].contains(&thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_thread_is_told_unless_somebody_takes_it_as_a_failure() {
        let before = panic::take_hook();
        let mut panics = watch();
        for name in [ASYNC_THREADS, IN_NETNS, "reaper-test"] {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(|| panic::panic_any(1)).unwrap();
            assert!(thread.join().is_err());
        }
        // Other tests may panic at the same time, as they should.
        while panics.next().await != "reaper-test" {}
        assert!(!std::iter::from_fn(|| panics.0.try_recv().ok()).any(|name| !is_vital(&name)));
        panic::set_hook(before);
    }
}
