//! Tells how a source stands. Times are for people; no decision is taken from them.

use std::time::SystemTime;

use tokio::sync::watch;

use super::StoreHealth;
use crate::model::Timestamp;

/// The one writer of a source's [`StoreHealth`].
#[derive(Debug)]
pub(super) struct Reporter(pub(super) watch::Sender<StoreHealth>);

impl Reporter {
    /// The store answered something.
    pub(super) fn heard(&self) {
        self.0.send_modify(|health| health.last_heard = Some(now()));
    }

    /// Everything up to this revision has been read; a listing may also take it back.
    pub(super) fn read_up_to(&self, revision: i64) {
        self.0.send_modify(|health| {
            health.last_heard = Some(now());
            health.revision = revision;
        });
    }

    /// The source is listed and watching; true when it was not so before.
    pub(super) fn live(&self, message: String) -> bool {
        self.turn(true, message)
    }

    /// The source cannot do its work; true when it could before.
    pub(super) fn down(&self, message: String) -> bool {
        self.turn(false, message)
    }

    /// A new reason, if it is down.
    pub(super) fn explain(&self, message: String) {
        if !self.0.borrow().live {
            self.turn(false, message);
        }
    }

    fn turn(&self, live: bool, message: String) -> bool {
        let mut turned = false;
        self.0.send_if_modified(|health| {
            turned = health.live != live;
            if turned {
                health.live = live;
                health.since = now();
            }
            let changed = turned || health.message != message;
            health.message = message;
            changed
        });
        turned
    }
}

fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_moves_only_when_live_turns() {
        let (sender, receiver) = watch::channel(StoreHealth { since: Timestamp(1), ..StoreHealth::starting("etcd") });
        let reporter = Reporter(sender);
        assert!(!reporter.down("connection refused".to_owned()));
        assert_eq!(receiver.borrow().since, Timestamp(1));
        assert_eq!(receiver.borrow().message, "connection refused");
        assert!(reporter.live("watching".to_owned()));
        assert!(receiver.borrow().since > Timestamp(1));
        assert!(!reporter.live("watching".to_owned()));
        reporter.read_up_to(7);
        assert_eq!(receiver.borrow().revision, 7);
        assert!(receiver.borrow().last_heard.is_some());
        reporter.explain("compacted".to_owned());
        assert_eq!(receiver.borrow().message, "watching");
        assert!(reporter.down("no leader".to_owned()));
        reporter.explain("compacted".to_owned());
        assert_eq!(receiver.borrow().message, "compacted");
    }
}
