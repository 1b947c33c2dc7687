//! Messages of JSON-RPC 1.0 as RFC 7047 uses them.

use serde_json::{Map, Value, json};

use super::value::Malformed;

/// The database that all of this is about.
pub(super) const DATABASE: &str = "Open_vSwitch";
/// Name of our monitor.
const MONITOR: &str = "ports";

/// What the server says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// The answer to a request of ours.
    Answer {
        /// Which.
        id: u64,
        /// The result, or the error as the server words it.
        result: Result<Value, String>,
    },
    /// The answer to one of our probes.
    ProbeAnswer,
    /// It probes us; this is to be sent back.
    Echo(Value),
    /// Rows of monitored tables changed.
    Update(Value),
    /// Another session took our lock.
    Stolen,
    /// Whoever had taken our lock has ended, and it is ours again.
    Locked,
    /// Something that needs no answer from us.
    Other,
}

/// Reads one message.
///
/// # Errors
/// What is no JSON, or no message.
pub(super) fn read(bytes: &[u8]) -> Result<Message, Malformed> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| Malformed::because(format!("a message that is no JSON ({error})")))?;
    let Value::Object(mut fields) = value else { return Err(Malformed::new("an object", &value)) };
    match fields.get("method").and_then(Value::as_str) {
        Some("echo") => Ok(Message::Echo(echo(&mut fields))),
        Some("update2") => update(&mut fields),
        Some("stolen") => Ok(Message::Stolen),
        Some("locked") => Ok(Message::Locked),
        Some(_) => Ok(Message::Other),
        None => answer(&mut fields),
    }
}

fn echo(fields: &mut Map<String, Value>) -> Value {
    let params = fields.remove("params").unwrap_or_else(|| json!([]));
    let id = fields.remove("id").unwrap_or(Value::Null);
    json!({"result": params, "error": null, "id": id})
}

fn update(fields: &mut Map<String, Value>) -> Result<Message, Malformed> {
    let params = fields.remove("params").unwrap_or_default();
    match params {
        Value::Array(mut params) if params.len() == 2 && params[0] == MONITOR => Ok(Message::Update(params.pop().unwrap_or_default())),
        other => Err(Malformed::new("an update of our monitor", &other)),
    }
}

fn answer(fields: &mut Map<String, Value>) -> Result<Message, Malformed> {
    let id = fields.get("id").cloned().unwrap_or_default();
    if id == PROBE {
        return Ok(Message::ProbeAnswer);
    }
    let Some(id) = id.as_u64() else { return Err(Malformed::new("the number of a request", &id)) };
    let error = fields.remove("error").unwrap_or_default();
    let result = if error.is_null() { Ok(fields.remove("result").unwrap_or_default()) } else { Err(error_text(&error)) };
    Ok(Message::Answer { id, result })
}

/// An error of the server in its own words.
pub(super) fn error_text(error: &Value) -> String {
    let part = |name: &str| error.get(name).and_then(Value::as_str);
    match (part("error").or(error.as_str()), part("details")) {
        (Some(error), Some(details)) => format!("{error}: {details}"),
        (Some(error), None) => error.to_owned(),
        _ => error.to_string(),
    }
}

/// Whether an error of the server says that it has no such database (RFC 7047, section 4.1).
pub(super) fn is_unknown_database(error: &str) -> bool {
    error.starts_with("unknown database")
}

/// `id` of our probes.
const PROBE: &str = "probe";

/// Are you there?
pub(super) fn probe() -> Value {
    json!({"method": "echo", "params": [], "id": PROBE})
}

/// Do these operations, all or none.
pub(super) fn transact(id: u64, operations: &[Value]) -> Value {
    let params: Vec<Value> = std::iter::once(json!(DATABASE)).chain(operations.iter().cloned()).collect();
    json!({"method": "transact", "params": params, "id": id})
}

/// Give us this lock, also if another session holds it.
pub(super) fn steal(id: u64, lock: &str) -> Value {
    json!({"method": "steal", "params": [lock], "id": id})
}

/// We do not wait for this lock any more: without that, one that was stolen from us cannot be taken again.
pub(super) fn unlock(id: u64, lock: &str) -> Value {
    json!({"method": "unlock", "params": [lock], "id": id})
}

/// Tell us these columns, now and whenever they change.
pub(super) fn monitor(id: u64, columns: &[(&str, &[&str])]) -> Value {
    let tables: Map<String, Value> = columns.iter().map(|(table, columns)| ((*table).to_owned(), json!([{"columns": columns}]))).collect();
    json!({"method": "monitor_cond", "params": [DATABASE, MONITOR, tables], "id": id})
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(value: &Value) -> Result<Message, Malformed> {
        read(value.to_string().as_bytes())
    }

    #[test]
    fn each_kind() {
        let answer = |id, result| Ok(Message::Answer { id, result });
        assert_eq!(said(&json!({"id": 3, "result": [{}], "error": null})), answer(3, Ok(json!([{}]))));
        // As real servers word it.
        assert_eq!(said(&json!({"id": 8, "error": "unknown method"})), answer(8, Err("unknown method".to_owned())));
        let error = json!({"id": 9, "error": {"error": "unknown database", "details": "no Nodb"}});
        assert_eq!(said(&error), answer(9, Err("unknown database: no Nodb".to_owned())));
        assert!(is_unknown_database("unknown database: no Nodb") && !is_unknown_database("unknown method"));
        let echo = said(&json!({"method": "echo", "params": ["x"], "id": "echo"}));
        assert_eq!(echo, Ok(Message::Echo(json!({"result": ["x"], "error": null, "id": "echo"}))));
        assert_eq!(said(&json!({"id": "probe", "result": [], "error": null})), Ok(Message::ProbeAnswer));
        assert_eq!(said(&json!({"id": null, "method": "stolen", "params": ["l"]})), Ok(Message::Stolen));
        assert_eq!(said(&json!({"id": null, "method": "locked", "params": ["l"]})), Ok(Message::Locked));
        assert_eq!(
            said(&json!({"id": null, "method": "update2", "params": ["ports", {"Port": {}}]})),
            Ok(Message::Update(json!({"Port": {}})))
        );
        assert_eq!(said(&json!({"id": null, "method": "something_new", "params": []})), Ok(Message::Other));
    }

    #[test]
    fn what_is_no_message() {
        for bad in [json!({"id": "x", "result": 1}), json!({}), json!({"method": "update2", "params": ["other", {}]})] {
            assert!(said(&bad).is_err(), "{bad}");
        }
        assert!(read(b"{\"a\":").is_err());
        // Deeper than the parser follows: an error, no overflow of the stack.
        assert!(read(format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = read(&bytes);
        }
    }
}
