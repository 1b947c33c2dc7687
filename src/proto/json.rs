//! The one JSON form of our messages: HTTP, `vnfctl -o json` and the agent's status key all show this.
//!
//! Names as in the proto file, every field always written, enums by name, every integer a number, moments as RFC 3339, what is not set `null`. (The
//! canonical mapping of protobuf writes 64-bit integers as strings and leaves out what is empty.)

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, Kind, ReflectMessage, Value as Field};
use serde_json::{Map, Value};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| DescriptorPool::decode(super::DESCRIPTORS).unwrap_or_default());

/// The JSON form of a message; `null` for a message that `proto/` does not describe.
#[must_use]
pub fn to_value<M: prost::Message + prost::Name>(message: &M) -> Value {
    let Some(descriptor) = POOL.get_message_by_name(&M::full_name()) else { return Value::Null };
    match DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()) {
        Ok(dynamic) => object(&dynamic),
        Err(_) => Value::Null,
    }
}

fn object(message: &DynamicMessage) -> Value {
    let descriptor = message.descriptor();
    if descriptor.full_name() == "google.protobuf.Timestamp" {
        return message.transcode_to::<prost_types::Timestamp>().map_or(Value::Null, |t| Value::String(t.to_string()));
    }
    let mut fields: Vec<_> = descriptor.fields().collect();
    // In the order of the file, which is that of the numbers: the map keeps it.
    fields.sort_by_key(prost_reflect::FieldDescriptor::number);
    let mut map = Map::new();
    for field in fields {
        let absent = field.supports_presence() && !message.has_field(&field);
        let value = if absent { Value::Null } else { one(&message.get_field(&field), &field.kind()) };
        map.insert(field.name().to_owned(), value);
    }
    Value::Object(map)
}

fn one(value: &Field, kind: &Kind) -> Value {
    match value {
        Field::Bool(b) => Value::Bool(*b),
        Field::I32(n) => Value::from(*n),
        Field::I64(n) => Value::from(*n),
        Field::U32(n) => Value::from(*n),
        Field::U64(n) => Value::from(*n),
        Field::F32(n) => Value::from(*n),
        Field::F64(n) => Value::from(*n),
        Field::String(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
        Field::EnumNumber(number) => match kind {
            // A number without a name comes from a newer agent; it is shown as it is.
            Kind::Enum(words) => words.get_value(*number).map_or_else(|| Value::from(*number), |v| Value::String(v.name().to_owned())),
            _ => Value::from(*number),
        },
        Field::Message(message) => object(message),
        Field::List(items) => items.iter().map(|item| one(item, kind)).collect(),
        // No message of ours has a map.
        Field::Map(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::agent as pb;

    #[test]
    fn everything_is_written() {
        let pass = pb::Pass { sequence: u64::MAX, started: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }), ..Default::default() };
        let text = to_value(&pass).to_string();
        let expected =
            r#"{"sequence":18446744073709551615,"started":"1970-01-01T00:00:00Z","elapsed_us":0,"triggers":[],"drift":[],"steps":[]}"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn enums_by_name_and_absent_messages_null() {
        let event = pb::StateCount { state: pb::State::Configured.into(), count: 2 };
        assert_eq!(to_value(&event).to_string(), r#"{"state":"CONFIGURED","count":2}"#);
        assert_eq!(
            to_value(&pb::WriteResult { key: "k".to_owned(), status: None, node: None }).to_string(),
            r#"{"key":"k","status":null,"node":null}"#
        );
    }
}
