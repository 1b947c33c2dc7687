//! From a JSON tree to a protobuf message, by the message's descriptor. It refuses what it would have to guess.
//!
//! The JSON mapping of `prost-reflect` is not used for reading: it keeps the last of two equal keys, takes `1500.0` for an integer, drops
//! unknown enum names together with unknown fields, and does not say which field is wrong.

use std::collections::HashSet;
use std::fmt;

use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::json::Json;
use super::nearest::nearest;
use super::report::{self, Listed, quoted};
use crate::model::{FieldError, Reason};

/// Where something stands in a message, written as in `namespace.pid` or `ip_addresses[1]`.
#[derive(Clone, Copy)]
pub enum Path<'a> {
    /// The message itself.
    Root,
    /// A field of a message.
    Field(&'a Path<'a>, &'a str),
    /// An element of a list.
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(&report::shorten(name)),
            Self::Field(parent, name) => write!(f, "{parent}.{}", report::shorten(name)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// What was found on the way: errors make the message useless, warnings do not.
#[derive(Debug, Default)]
pub struct Findings {
    /// Everything of a wrong type, unknown enum values, ambiguous keys.
    pub errors: Listed<FieldError>,
    /// Fields that nobody knows.
    pub warnings: Listed<String>,
}

impl Findings {
    fn error(&mut self, path: &Path<'_>, value: &str, rule: impl Into<String>, hint: impl Into<String>) {
        self.errors.push_with(|| report::error(Reason::BadEncoding, path.to_string(), value, rule, hint));
    }

    /// Notes an enum value that is none.
    pub fn unknown_enum(&mut self, path: &Path<'_>, value: &str, known: &EnumDescriptor) {
        let values: Vec<String> = known.values().map(|v| format!("{} ({})", v.name(), v.number())).collect();
        self.error(path, value, format!("must be one of {}", values.join(", ")), "write one of these names or numbers");
    }

    /// Reads an object as a message: what is right is set, what is wrong is noted.
    pub fn read(&mut self, known: &MessageDescriptor, object: Vec<(String, Json)>, path: &Path<'_>) -> DynamicMessage {
        let mut message = DynamicMessage::new(known.clone());
        let mut seen: Vec<(FieldDescriptor, String)> = Vec::new();
        let mut unknown = HashSet::new();
        for (key, json) in object {
            let Some(field) = find(known, &key) else {
                self.unknown_field(known, &key, &json, &Path::Field(path, &key));
                if let Some(key) = unknown.replace(key) {
                    self.twice(&Path::Field(path, &key), &key, &key);
                }
                continue;
            };
            let here = Path::Field(path, field.name());
            if let Some((_, first)) = seen.iter().find(|(f, _)| *f == field) {
                self.twice(&here, first, &key);
            } else if let Some(value) = self.value(&field, json, &here) {
                message.set_field(&field, value);
            }
            seen.push((field.clone(), key));
        }
        message
    }

    fn twice(&mut self, path: &Path<'_>, first: &str, second: &str) {
        let rule = if first == second {
            "is given twice".to_owned()
        } else {
            format!("is given twice, as {} and as {}", quoted(first), quoted(second))
        };
        self.error(path, second, rule, "write it once");
    }

    fn unknown_field(&mut self, known: &MessageDescriptor, key: &str, json: &Json, path: &Path<'_>) {
        self.warnings.push_with(|| {
            let like = nearest(key, known.fields().map(|f| f.name().to_owned()));
            let like = like.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            format!("field {} is not known and was ignored{like}", quoted(&path.to_string()))
        });
        self.keys_once(json, path);
    }

    /// Ambiguous is ambiguous, also where it would be ignored.
    fn keys_once(&mut self, json: &Json, path: &Path<'_>) {
        match json {
            Json::Object(entries) => {
                let mut seen = HashSet::new();
                for (key, json) in entries {
                    let here = Path::Field(path, key);
                    if !seen.insert(key) {
                        self.twice(&here, key, key);
                    }
                    self.keys_once(json, &here);
                }
            }
            Json::List(items) => items.iter().enumerate().for_each(|(i, item)| self.keys_once(item, &Path::Item(path, i))),
            _ => {}
        }
    }

    /// The value of a field; `None` where it is not set or was refused.
    fn value(&mut self, field: &FieldDescriptor, json: Json, path: &Path<'_>) -> Option<Value> {
        match json {
            Json::Null => None,
            Json::Object(entries) if field.is_map() => self.map(field, entries, path),
            Json::List(items) if field.is_list() => {
                let kind = field.kind();
                let items = items.into_iter().enumerate();
                let values: Vec<Value> = items.filter_map(|(i, item)| self.scalar(&kind, item, &Path::Item(path, i))).collect();
                Some(Value::List(values))
            }
            other if field.is_map() => self.mistyped(path, &other, "an object"),
            other if field.is_list() => self.mistyped(path, &other, "a list"),
            other => self.scalar(&field.kind(), other, path),
        }
    }

    /// Maps with string keys, the only ones that our models have.
    fn map(&mut self, field: &FieldDescriptor, entries: Vec<(String, Json)>, path: &Path<'_>) -> Option<Value> {
        let Kind::Message(entry) = field.kind() else { return None };
        let kind = entry.map_entry_value_field().kind();
        let mut map = std::collections::HashMap::new();
        for (key, json) in entries {
            let here = Path::Field(path, &key);
            if map.contains_key(&MapKey::String(key.clone())) {
                self.twice(&here, &key, &key);
            } else if let Some(value) = self.scalar(&kind, json, &here) {
                map.insert(MapKey::String(key), value);
            }
        }
        Some(Value::Map(map))
    }

    fn scalar(&mut self, kind: &Kind, json: Json, path: &Path<'_>) -> Option<Value> {
        match (kind, json) {
            (Kind::Bool, Json::Bool(b)) => Some(Value::Bool(b)),
            (Kind::Bool, other) => self.mistyped(path, &other, "true or false without quotes"),
            (Kind::String, Json::Text(text)) => Some(Value::String(text)),
            (Kind::String, other) => self.mistyped(path, &other, "a string in quotes"),
            (Kind::Message(known), Json::Object(entries)) => Some(Value::Message(self.read(known, entries, path))),
            (Kind::Message(_), other) => self.mistyped(path, &other, "an object"),
            (Kind::Enum(known), json) => self.enumeration(known, &json, path),
            (Kind::Uint32 | Kind::Fixed32, json) => self.integer(&json, path, u32::MIN, u32::MAX).map(Value::U32),
            (Kind::Uint64 | Kind::Fixed64, json) => self.integer(&json, path, u64::MIN, u64::MAX).map(Value::U64),
            (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, json) => self.integer(&json, path, i32::MIN, i32::MAX).map(Value::I32),
            (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, json) => self.integer(&json, path, i64::MIN, i64::MAX).map(Value::I64),
            (Kind::Float | Kind::Double | Kind::Bytes, json) => self.mistyped(path, &json, "left out: it has no JSON form here"),
        }
    }

    fn enumeration(&mut self, known: &EnumDescriptor, json: &Json, path: &Path<'_>) -> Option<Value> {
        let number = match json {
            Json::Text(name) => known.values().find(|v| v.name().eq_ignore_ascii_case(name)).map(|v| v.number()),
            Json::Whole(number) => i32::try_from(*number).ok().filter(|n| known.get_value(*n).is_some()),
            _ => None,
        };
        if number.is_none() {
            self.unknown_enum(path, &json.excerpt(), known);
        }
        number.map(Value::EnumNumber)
    }

    fn integer<N: TryFrom<i128> + fmt::Display>(&mut self, json: &Json, path: &Path<'_>, least: N, most: N) -> Option<N> {
        let number = match json {
            Json::Whole(number) => Some(*number),
            Json::Text(text) if is_integer(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.and_then(|n| N::try_from(n).ok());
        if number.is_none() {
            let wanted = format!("a whole number from {least} to {most}");
            match json {
                Json::Whole(_) | Json::Text(_) => self.error(path, &json.excerpt(), format!("must be {wanted}"), "correct the number"),
                _ => drop(self.mistyped(path, json, &wanted)),
            }
        }
        number
    }

    fn mistyped(&mut self, path: &Path<'_>, json: &Json, wanted: &str) -> Option<Value> {
        self.error(path, &json.excerpt(), format!("must be {wanted}, not {}", json.kind()), "correct the type");
        None
    }
}

/// Both spellings of the protobuf JSON mapping, and both without regard to case, as the old agent's decoder read them.
fn find(known: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    let alike = |f: &FieldDescriptor| f.name().eq_ignore_ascii_case(key) || f.json_name().eq_ignore_ascii_case(key);
    known.get_field_by_name(key).or_else(|| known.get_field_by_json_name(key)).or_else(|| known.fields().find(alike))
}

/// Digits with at most a minus before them; no plus, blanks or leading zeros, which `parse` would take.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0')) && text != "-0"
}
