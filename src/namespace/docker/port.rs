//! What goes between the follower, which talks to the runtime, and the tracker's thread, which keeps the book and opens namespaces.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::book::Facts;
use crate::namespace::tracker::{Request, Requests};

/// What the runtime told.
#[derive(Debug)]
pub enum News {
    /// A complete listing of the containers that run, and how much of the book was written when it was asked for.
    Listed(u64, BTreeSet<String>),
    /// An inspection, likewise; `None`: there is no such container.
    Inspected(u64, String, Option<Facts>),
    /// An inspection without an answer.
    Unanswered(String),
    /// An event: something about this container has changed.
    Touched(String),
    /// An event: a run of this container ended at this moment (nanoseconds since 1970, by the runtime's clock).
    Ended(String, i64),
    /// The connection stands, and what it takes to keep the book was listed.
    Connected,
    /// The runtime cannot be asked, for this reason.
    Away(String),
}

/// The follower's end.
pub struct Port {
    requests: Requests,
    desk: Arc<Desk>,
}

/// What the tracker's thread leaves for the follower.
#[derive(Debug, Default)]
pub struct Desk {
    /// Containers to be inspected: each once, however often it was asked for.
    asked: Mutex<BTreeSet<String>>,
    bell: Notify,
    /// How much of the book is written.
    clock: AtomicU64,
}

impl Port {
    pub(in crate::namespace) fn new(requests: Requests, desk: Arc<Desk>) -> Self {
        Self { requests, desk }
    }

    /// Hands over what the runtime told.
    pub(super) fn tell(&self, news: News) {
        self.requests.put(Request::Runtime(news));
    }

    /// How much of the book is written; to be read before a question is sent.
    pub(super) fn clock(&self) -> u64 {
        self.desk.clock.load(Ordering::Acquire)
    }

    /// Waits until inspections are asked for, and takes them. May be dropped half way.
    pub(super) async fn asked(&self) -> BTreeSet<String> {
        loop {
            let bell = self.desk.bell.notified();
            let asked = std::mem::take(&mut *self.desk.asked.lock().unwrap_or_else(PoisonError::into_inner));
            if !asked.is_empty() {
                return asked;
            }
            bell.await;
        }
    }
}

impl Desk {
    /// Asks for inspections.
    pub(super) fn ask(&self, ids: BTreeSet<String>) {
        if !ids.is_empty() {
            self.asked.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
            self.bell.notify_one();
        }
    }

    /// Says how much of the book is written.
    pub(super) fn set_clock(&self, clock: u64) {
        self.clock.store(clock, Ordering::Release);
    }
}
