//! Binary protobuf: refuses what only happens to decode, and names what it does not know.

use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value};

use super::message::{Findings, Path};

/// Reads a binary message.
///
/// # Errors
/// A phrase with the byte at which decoding stopped, or that says that nothing in it is known.
pub fn parse(known: &MessageDescriptor, bytes: &[u8]) -> Result<DynamicMessage, String> {
    let mut message = DynamicMessage::new(known.clone());
    let mut rest = bytes;
    if let Err(error) = message.merge(&mut rest) {
        let text = error.to_string();
        let why = text.rsplit_once("Protobuf message: ").map_or(&*text, |(_, why)| why);
        return Err(format!("at byte {}: {why}", bytes.len() - rest.len()));
    }
    if message.fields().next().is_none() {
        return Err("no field in it is known".to_owned());
    }
    Ok(message)
}

/// Notes unknown fields as warnings and unknown enum values as errors.
pub fn check(message: &DynamicMessage, path: &Path<'_>, findings: &mut Findings) {
    for field in message.unknown_fields() {
        let number = field.number().to_string();
        findings.warnings.push_with(|| format!("field `{}` (by its number) is not known and was ignored", Path::Field(path, &number)));
    }
    for (field, value) in message.fields() {
        check_value(&field.kind(), value, &Path::Field(path, field.name()), findings);
    }
}

fn check_value(kind: &Kind, value: &Value, path: &Path<'_>, findings: &mut Findings) {
    match (value, kind) {
        (Value::EnumNumber(number), Kind::Enum(known)) if known.get_value(*number).is_none() => {
            findings.unknown_enum(path, &number.to_string(), known);
        }
        (Value::Message(message), _) => check(message, path, findings),
        (Value::List(items), _) => {
            items.iter().enumerate().for_each(|(i, item)| check_value(kind, item, &Path::Item(path, i), findings));
        }
        (Value::Map(map), Kind::Message(entry)) if entry.is_map_entry() => {
            let kind = entry.map_entry_value_field().kind();
            map.values().for_each(|value| check_value(&kind, value, path, findings));
        }
        _ => {}
    }
}

/// The message as the generated type; both come from one descriptor, so they always fit.
pub fn typed<T: Message + Default>(message: &DynamicMessage) -> Result<T, String> {
    message.transcode_to().map_err(|e| format!("does not fit {}: {e}", message.descriptor().full_name()))
}
