//! What a wish would do, before it is written.

use std::time::{Duration, Instant};

use super::NodeParts;
use super::status::way;
use super::wish::{Wishes, one};
use crate::external_node::handover::{HandoverError, Seen};
use crate::external_node::phase::{Goal, Rows};
use crate::model::decode_node;

/// How long a database that was not asked before may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The lines for people; nothing is touched.
///
/// # Errors
/// Why the value cannot be used, or the host not be read.
pub(super) fn run(parts: &mut NodeParts, wishes: &Wishes, key: &str, value: &[u8]) -> Result<Vec<String>, String> {
    let spec = decode_node(key, value).spec.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    if !wishes.is_for_us(&spec) {
        let identity = wishes.identity();
        return Ok(vec![format!(
            "nothing would be done: this agent is {identity}; the node {}/{} is another host's",
            spec.namespace, spec.name
        )]);
    }
    let (candidates, links) = parts.handover.candidates().map_err(|error| error.to_string())?;
    let mut lines = Vec::new();
    for selector in &spec.interfaces {
        match one(selector, &candidates, &links, &mut parts.handover, parts.allow_managed) {
            Ok(name) => {
                let seen = observe(parts, &name).map_err(|error| error.to_string())?;
                lines.extend(way(parts, &name, &seen, Goal::Attached, "behind the bridge"));
            }
            Err(unclear) => lines.push(format!("nothing would be done: {}", unclear.message)),
        }
    }
    Ok(lines)
}

fn observe(parts: &mut NodeParts, name: &str) -> Result<Seen, HandoverError> {
    let end = Instant::now() + ANSWERS_WITHIN;
    loop {
        let seen = parts.handover.observe(name)?;
        if !matches!(seen.observation.rows, Rows::Unknown | Rows::Dead) || Instant::now() > end {
            return Ok(seen);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
