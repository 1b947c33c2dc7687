//! Waits until what was written has been worked on and the statuses say so.
//!
//! Settled means: the configurator has worked on the store up to the write's revision, and the status of every key that was put answers that write or
//! a later one, after a first attempt; the status of a key that was deleted is gone, or belongs to a later write. A node has settled when its NICs
//! are where they shall be, or the agent says what is in the way.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use crate::api::context::Context;
use crate::model::key::{INTERFACE_CONFIG_PREFIX, NODE_CONFIG_PREFIX};
use crate::model::{InterfaceStatus, NodeStatus, State};
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
    let mut nodes = context.nodes.published.subscribe();
    // What is neither interface nor node has no status: nothing of it is to be waited for. Neither is what changed nothing (revision 0).
    let told = |t: &&Touched| [INTERFACE_CONFIG_PREFIX, NODE_CONFIG_PREFIX].iter().any(|prefix| t.key.starts_with(prefix));
    let mut open: Vec<&Touched> = touched.iter().filter(told).collect();
    if open.is_empty() || revision == 0 {
        return Ok(());
    }
    loop {
        // Marked as seen before looking, so that a change during the look wakes at once.
        let applied_now = *applied.borrow_and_update();
        statuses.borrow_and_update();
        let nodes_now = nodes.borrow_and_update().applied;
        open.retain(|t| match t.key.starts_with(NODE_CONFIG_PREFIX) {
            true => nodes_now < revision || !is_node_settled(context, revision..=nodes_now, t),
            false => applied_now < revision || !is_settled(context, revision..=applied_now, t),
        });
        if open.is_empty() {
            return Ok(());
        }
        // All arms only wait; the loop looks at everything again. The senders live as long as `context`.
        tokio::select! {
            _ = applied.changed() => {}
            _ = statuses.changed() => {}
            _ = nodes.changed() => {}
            () = context.stop.cancelled() => return Err(Status::unavailable(format!("the agent stops; revision {revision} stands in the store"))),
            () = tokio::time::sleep_until(deadline) => {
                return Err(Status::deadline_exceeded(explain(context, revision, applied_now.max(nodes_now), &open, timeout)));
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

/// A node that waits without a reason is on its way.
fn is_node_settled(context: &Context, answers: RangeInclusive<i64>, touched: &Touched) -> bool {
    let Some(status) = node_status_of(context, &touched.key) else {
        return touched.deleted;
    };
    let under_way = status.state == State::Pending && status.reason.is_none();
    answers.contains(&status.revision) && (touched.deleted || !under_way)
}

/// What the agent says of the config key of a node.
pub fn node_status_of(context: &Context, key: &str) -> Option<std::sync::Arc<NodeStatus>> {
    context.nodes.published.view().nodes.get(key.strip_prefix(NODE_CONFIG_PREFIX)?).cloned()
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
    let did_not = |state: State, revision: i64| match first.deleted {
        true => format!("{stands}, but within {timeout:?} the removal of `{key}`{more} did not end: {state}"),
        false => format!("{stands}, but within {timeout:?} the status of `{key}`{more} did not settle: {state} of revision {revision}"),
    };
    match (status_of(context, &first.key), node_status_of(context, &first.key)) {
        (None, None) if first.key.starts_with(NODE_CONFIG_PREFIX) => {
            format!(
                "{stands}, but within {timeout:?} the agent has not come to `{key}`{more}: it is busy with a NIC, or Open vSwitch does not answer (its log says)"
            )
        }
        (None, None) => format!("{stands}, but within {timeout:?} no status of `{key}`{more} appeared"),
        (Some(s), _) => did_not(s.state, s.revision),
        (None, Some(s)) if s.message.is_empty() => did_not(s.state, s.revision),
        (None, Some(s)) => format!("{}: {}", did_not(s.state, s.revision), s.message),
    }
}
