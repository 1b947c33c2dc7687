//! One look at the database by who does not stay: it takes no lock, so nobody who writes is disturbed, and leaves nothing behind.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::OvsError;
use super::frame::Framer;
use super::message::{self, Message};
use super::rows::{FOLLOWED, Rows};
use super::stream::Stream;
use super::view::{self, KnownRows, PairView};
use crate::model::{AgentLabel, OvsdbTarget};

/// Number of the only request.
const LISTING: u64 = 1;
/// Size of one reading (bytes).
const READ_SIZE: usize = 64 * 1024;

/// The pairs of the agent of this label: by bridge, and there by the name of the host port. What it shows may be over when this returns.
///
/// # Errors
/// [`OvsError::Unreachable`] when the server cannot be reached, or has not answered within the limit.
pub fn pairs_of(
    target: &OvsdbTarget,
    label: &AgentLabel,
    limit: Duration,
) -> Result<BTreeMap<String, BTreeMap<String, PairView>>, OvsError> {
    let rows = listing(target, limit).map_err(|cause| OvsError::Unreachable {
        attempted: "look for ports of this agent".to_owned(),
        cause: format!("{target}: {cause}"),
    })?;
    let names = rows.bridges.values().map(|bridge| bridge.name.clone());
    let pairs = names.map(|name| {
        let pairs = view::ours(&rows, label, &name, &KnownRows::new()).pairs;
        (name, pairs)
    });
    Ok(pairs.filter(|(_, pairs)| !pairs.is_empty()).collect())
}

fn listing(target: &OvsdbTarget, limit: Duration) -> Result<Rows, String> {
    let deadline = Instant::now() + limit;
    let stream = Stream::connect(target, limit, limit).map_err(|error| error.to_string())?;
    stream.send(&message::monitor(LISTING, FOLLOWED)).map_err(|error| error.to_string())?;
    let (mut framer, mut buffer, mut reader) = (Framer::default(), vec![0; READ_SIZE], stream.reader());
    while Instant::now() < deadline {
        let count = reader.read(&mut buffer).map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("it closed the connection".to_owned());
        }
        for bytes in framer.push(&buffer[..count]).map_err(|error| error.to_string())? {
            if let Message::Answer { id: LISTING, result } = message::read(&bytes).map_err(|error| error.to_string())? {
                return rows(&result?);
            }
        }
    }
    Err(format!("no answer within {} ms", limit.as_millis()))
}

fn rows(tables: &Value) -> Result<Rows, String> {
    let mut rows = Rows::default();
    rows.take(tables).map_err(|error| error.to_string())?;
    Ok(rows)
}
