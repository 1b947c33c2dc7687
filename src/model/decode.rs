//! From the bytes of a value to a validated wish, or to everything that is wrong with it.
//!
//! Owns: telling JSON from binary protobuf, the lenient and the strict sides of the JSON mapping, positions of errors. It refuses to guess:
//! what says two things, or something of another type, is an error. What the fields mean is in [`super::validate`].

mod binary;
pub mod json;
mod message;
mod nearest;
pub mod report;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use self::json::Json;
use self::message::{Findings, Path};
use self::report::Listed;
use crate::model::{FieldError, InterfaceSpec, NodeSpec, Reason, validate};
use crate::proto;

/// Built once: it takes longer than a thousand values.
static POOL: LazyLock<Result<DescriptorPool, String>> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).map_err(|e| format!("descriptors of our own models: {e}")));

/// Everything that a value says, decoded and validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The wish; or all errors, never none, the most telling first.
    pub spec: Result<InterfaceSpec, Vec<FieldError>>,
    /// What is odd about the value although it can be used.
    pub warnings: Vec<String>,
    /// What can be said of it either way.
    pub outline: Outline,
}

/// What can be read even of an invalid value, for its status: best effort, texts of a wrong value shortened.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outline {
    /// Wished name of the link; empty when the value cannot be decoded.
    pub host_if_name: String,
    /// Kind of the namespace reference as in the status; empty when the value cannot be decoded.
    pub namespace_kind: &'static str,
    /// Text of the namespace reference.
    pub namespace_reference: String,
    /// Logical name of the other end of a veth pair.
    pub peer: String,
}

/// Reads the value of `linux/config/v1/interface/<key_last_part>`, JSON or binary.
#[must_use]
pub fn decode_interface(key_last_part: &str, value: &[u8]) -> Decoded {
    let read = decode_message::<proto::ligato::Interface>(value);
    match read.message {
        Some(wish) if read.errors.is_empty() => validate::interface(key_last_part, &wish, read.warnings),
        wish => {
            let outline = wish.map(|w| validate::outline(key_last_part, &w)).unwrap_or_default();
            Decoded { spec: Err(read.errors), warnings: read.warnings.into_warnings(), outline }
        }
    }
}

/// Everything that the value of an external node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedNode {
    /// The wish; or all errors, never none, the most telling first.
    pub spec: Result<NodeSpec, Vec<FieldError>>,
    /// What is odd about the value although it can be used.
    pub warnings: Vec<String>,
}

/// Reads the value of `external/config/v1/node/<key_last_part>`, JSON or binary.
#[must_use]
pub fn decode_node(key_last_part: &str, value: &[u8]) -> DecodedNode {
    let read = decode_message::<proto::external::ExternalNode>(value);
    match read.message {
        Some(wish) if read.errors.is_empty() => validate::node(key_last_part, &wish, read.warnings),
        _ => DecodedNode { spec: Err(read.errors), warnings: read.warnings.into_warnings() },
    }
}

/// A decoded message of any of our models.
#[derive(Clone, Debug, PartialEq)]
pub struct Read<T> {
    /// The message; with `errors`, what could be read of it, `None` if nothing could.
    pub message: Option<T>,
    /// Each BAD_ENCODING.
    pub errors: Vec<FieldError>,
    /// Unknown fields.
    pub warnings: Listed<String>,
}

/// Reads a message, JSON or binary, told apart by content.
#[must_use]
pub fn decode_message<T: Message + Name + Default>(value: &[u8]) -> Read<T> {
    let mut findings = Findings::default();
    let message = read(&T::full_name(), value, &mut findings).and_then(|m| binary::typed(&m).map_err(|e| undecodable(value, 0, e)));
    let (message, fatal) = message.map_or_else(|e| (None, vec![e]), |m| (Some(m), Vec::new()));
    let errors = if fatal.is_empty() { findings.errors.into_errors() } else { fatal };
    Read { message, errors, warnings: findings.warnings }
}

/// A `{` as first byte would be a group, which proto3 does not have: that is JSON. After white space it may also be the first character of a
/// name whose length and tag (0x0a) read as white space: JSON is tried first, then binary.
fn read(name: &str, value: &[u8], findings: &mut Findings) -> Result<DynamicMessage, FieldError> {
    let known = descriptor(name).map_err(|e| undecodable(value, 0, e))?;
    let start = text_start(value)?;
    let first = value.get(start).copied().unwrap_or_default();
    if first == b'{' {
        match json::parse(value) {
            Ok(Json::Object(entries)) => return Ok(findings.read(&known, entries, &Path::Root)),
            Ok(_) => {}
            Err(e) if start == 0 || binary::parse(&known, value).is_err() => {
                return Err(undecodable(value, e.offset, format!("is no JSON {e}")));
            }
            Err(_) => {}
        }
    }
    let message = binary::parse(&known, value).map_err(|why| neither(value, start, &why))?;
    binary::check(&message, &Path::Root, findings);
    Ok(message)
}

fn descriptor(name: &str) -> Result<MessageDescriptor, String> {
    let pool = POOL.as_ref().map_err(Clone::clone)?;
    pool.get_message_by_name(name).ok_or_else(|| format!("is of the unknown model {name}"))
}

/// The first byte that is not white space; refuses what is no text of ours and no protobuf either.
fn text_start(value: &[u8]) -> Result<usize, FieldError> {
    let encoding = match value {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{', 0, ..] | [0, b'{', ..] => Some("is UTF-16 text at byte 0"),
        [0xef, 0xbb, 0xbf, ..] => Some("starts with a byte order mark at byte 0"),
        _ => None,
    };
    if let Some(rule) = encoding {
        return Err(report::error(Reason::BadEncoding, "", "", rule, "write it as UTF-8 without a byte order mark"));
    }
    let blank = if value.is_empty() { "is empty (byte 0)".to_owned() } else { format!("is blank (bytes 0 to {})", value.len() - 1) };
    let start = value.iter().position(|b| !b.is_ascii_whitespace());
    start.ok_or_else(|| report::error(Reason::BadEncoding, "", "", blank, "write a JSON object, or delete the key"))
}

/// The error of a value that does not start like an object and is no protobuf.
fn neither(value: &[u8], start: usize, why: &str) -> FieldError {
    let rule = match json::parse(value) {
        Ok(other) => format!("must be a JSON object, not {} (at byte {start})", other.kind()),
        Err(e) => format!("is neither JSON ({e}) nor binary protobuf ({why})"),
    };
    undecodable(value, start, rule)
}

/// An error of the whole value, with an excerpt from `offset` on.
fn undecodable(value: &[u8], offset: usize, rule: impl Into<String>) -> FieldError {
    let from = offset.min(value.len());
    let excerpt = value.get(from..value.len().min(from + 4 * report::SHOWN_MAX)).unwrap_or_default();
    report::error(Reason::BadEncoding, "", &String::from_utf8_lossy(excerpt), rule, "write a JSON object or a binary message of the model")
}
