//! Remembers what Open vSwitch's clients tell.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vnf_agent::ovs::{OvsEvent, OvsSink};

use super::eventually_ok;

/// The events so far.
#[derive(Default)]
pub struct OvsEvents(Mutex<Vec<OvsEvent>>);

impl OvsSink for OvsEvents {
    fn tell(&self, event: OvsEvent) {
        self.lock().push(event);
    }
}

impl OvsEvents {
    fn lock(&self) -> MutexGuard<'_, Vec<OvsEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many such events have come.
    pub fn count(&self, wanted: impl Fn(&OvsEvent) -> bool) -> usize {
        self.lock().iter().filter(|event| wanted(event)).count()
    }

    /// Waits for such an event.
    pub fn wait(&self, what: &str, wanted: impl Fn(&OvsEvent) -> bool) {
        self.wait_then(what, wanted, |_| {});
    }

    /// Waits for such an event, and forgets all up to now.
    pub fn wait_and_forget(&self, what: &str, wanted: impl Fn(&OvsEvent) -> bool) {
        self.wait_then(what, wanted, Vec::clear);
    }

    /// Waits for this event.
    pub fn wait_for(&self, event: &OvsEvent) {
        self.wait(&format!("{event:?}"), |seen| seen == event);
    }

    /// Forgets all up to now.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn wait_then(&self, what: &str, wanted: impl Fn(&OvsEvent) -> bool, then: impl Fn(&mut Vec<OvsEvent>)) {
        eventually_ok(what, || {
            let mut events = self.lock();
            if !events.iter().any(&wanted) {
                return Err(format!("{events:?}"));
            }
            then(&mut events);
            Ok(())
        });
    }
}
