//! Waits until what was written has been worked on and the statuses say so.
//!
//! Settled means: the configurator has worked on the store up to the write's revision, and the status of every key that was put answers that write or
//! a later one, after a first attempt; the status of a key that was deleted is gone, or belongs to a later write.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::api::context::Context;
use crate::model::key::INTERFACE_CONFIG_PREFIX;
use crate::model::{InterfaceStatus, State};
use crate::proto::agent as pb;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const TIMEOUT_LIMIT: Duration = Duration::from_secs(600);

/// A key that was written.
#[derive(Clone, Debug)]
pub struct Touched {
    /// Relative to the agent's prefix.
    pub key: String,
    /// Deleted rather than put.
    pub deleted: bool,
}

/// How long a request wants to wait.
pub fn timeout(wait: &pb::Wait) -> Result<Duration, Status> {
    let Some(asked) = wait.timeout else { return Ok(TIMEOUT_DEFAULT) };
    let bad = || Status::invalid_argument("the timeout of a wait must be between 0 and 600 s");
    let asked = Duration::try_from(asked).map_err(|_| bad())?;
    if asked > TIMEOUT_LIMIT { Err(bad()) } else { Ok(asked) }
}

/// Waits until all touched keys have settled.
pub async fn settle(context: &Context, revision: i64, touched: &[Touched], timeout: Duration) -> Result<(), Status> {
    let deadline = Instant::now() + timeout;
    let mut applied = context.published.applied_revision.subscribe();
    let mut statuses = context.published.statuses.subscribe();
    // What is no interface has no status: nothing of it is to be waited for. Neither is what changed nothing (revision 0).
    let mut open: Vec<&Touched> = touched.iter().filter(|t| t.key.starts_with(INTERFACE_CONFIG_PREFIX)).collect();
    if open.is_empty() || revision == 0 {
        return Ok(());
    }
    loop {
        // Marked as seen before looking, so that a change during the look wakes at once.
        let applied_now = *applied.borrow_and_update();
        statuses.borrow_and_update();
        if applied_now >= revision {
            open.retain(|t| !is_settled(context, revision..=applied_now, t));
            if open.is_empty() {
                return Ok(());
            }
        }
        // All arms only wait; the loop looks at everything again. The senders live as long as `context`.
        tokio::select! {
            _ = applied.changed() => {}
            _ = statuses.changed() => {}
            () = context.stop.cancelled() => return Err(Status::unavailable(format!("the agent stops; revision {revision} stands in the store"))),
            () = tokio::time::sleep_until(deadline) => {
                return Err(Status::deadline_exceeded(explain(context, revision, applied_now, &open, timeout)));
            }
        }
    }
}

/// `answers` are the revisions from the write to what has been worked on. A status above them is of another history: the store was exchanged for one
/// that counts from lower numbers.
fn is_settled(context: &Context, answers: RangeInclusive<i64>, touched: &Touched) -> bool {
    let Some(status) = status_of(context, &touched.key) else {
        return touched.deleted;
    };
    let tried = status.state != State::Retrying || status.attempt > 0;
    answers.contains(&status.revision) && (touched.deleted || tried)
}

/// What the agent says of a config key.
pub fn status_of(context: &Context, key: &str) -> Option<std::sync::Arc<InterfaceStatus>> {
    context.published.statuses.get(key.strip_prefix(INTERFACE_CONFIG_PREFIX)?)
}

fn explain(context: &Context, revision: i64, applied: i64, open: &[&Touched], timeout: Duration) -> String {
    let stands = format!("revision {revision} stands in the store");
    if applied < revision {
        let store = context.store.borrow().message.clone();
        return format!(
            "{stands}, but within {timeout:?} the agent has worked up to revision {applied} only (its view of the store: {store})"
        );
    }
    let Some(first) = open.first() else { return stands };
    let more = if open.len() > 1 { format!(" (and {} more)", open.len() - 1) } else { String::new() };
    let key = first.key.escape_debug();
    match status_of(context, &first.key) {
        None => format!("{stands}, but within {timeout:?} no status of `{key}`{more} appeared"),
        Some(s) => {
            format!("{stands}, but within {timeout:?} the status of `{key}`{more} did not settle: {} of revision {}", s.state, s.revision)
        }
    }
}
