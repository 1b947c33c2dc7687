//! Values of the database as they stand in JSON (RFC 7047, section 5.1), read and written in this file only.
//!
//! A set with exactly one element is written bare, so "one" and "a set of one" are the same text; each reader here takes both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is not as the protocol says, in a few words. The connection that told it is left: what it said before may be wrong as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not what the protocol says: {0}")]
pub(super) struct Malformed(String);

impl Malformed {
    /// With a piece of what came, cut to a readable length.
    pub(super) fn new(expected: &str, found: &Value) -> Self {
        let text: String = found.to_string().chars().take(200).collect();
        Self(format!("expected {expected}, found {text}"))
    }

    pub(super) fn because(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// Identity of a row. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct RowId(Arc<str>);

impl From<String> for RowId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<RowId> for String {
    fn from(id: RowId) -> Self {
        id.to_string()
    }
}

impl RowId {
    /// As the database writes it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// As an atom of the database.
    pub(super) fn to_json(&self) -> Value {
        json!(["uuid", &*self.0])
    }
}

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an atom is read into.
pub(super) trait Atom: Ord + Sized {
    fn read(atom: &Value) -> Option<Self>;
}

impl Atom for String {
    fn read(atom: &Value) -> Option<Self> {
        atom.as_str().map(str::to_owned)
    }
}

impl Atom for i64 {
    fn read(atom: &Value) -> Option<Self> {
        atom.as_i64()
    }
}

impl Atom for RowId {
    fn read(atom: &Value) -> Option<Self> {
        match atom.as_array()?.as_slice() {
            [Value::String(tag), Value::String(id)] if tag == "uuid" => Some(Self::new(id)),
            _ => None,
        }
    }
}

/// The elements behind a tag (`set`, `map`).
fn tagged<'v>(value: &'v Value, tag: &str) -> Option<&'v Vec<Value>> {
    match value.as_array()?.as_slice() {
        [Value::String(found), Value::Array(elements)] if found == tag => Some(elements),
        _ => None,
    }
}

/// One atom.
pub(super) fn atom<T: Atom>(value: &Value) -> Result<T, Malformed> {
    T::read(value).ok_or_else(|| Malformed::new("one value", value))
}

/// A set.
pub(super) fn set<T: Atom>(value: &Value) -> Result<BTreeSet<T>, Malformed> {
    match tagged(value, "set") {
        Some(elements) => elements.iter().map(atom).collect(),
        None => Ok(BTreeSet::from([atom(value)?])),
    }
}

/// A set of at most one.
pub(super) fn optional<T: Atom>(value: &Value) -> Result<Option<T>, Malformed> {
    let mut found = set(value)?;
    match found.len() {
        0 | 1 => Ok(found.pop_first()),
        _ => Err(Malformed::new("at most one value", value)),
    }
}

/// A map of texts.
pub(super) fn map(value: &Value) -> Result<BTreeMap<String, String>, Malformed> {
    let pair = |pair: &Value| match pair.as_array().map(Vec::as_slice) {
        Some([key, value]) => Ok((atom(key)?, atom(value)?)),
        _ => Err(Malformed::new("a pair", pair)),
    };
    tagged(value, "map").ok_or_else(|| Malformed::new("a map", value))?.iter().map(pair).collect()
}

/// A map of texts, to be written.
pub(super) fn map_to_json<'t>(map: impl IntoIterator<Item = (&'t str, &'t str)>) -> Value {
    let pairs: Vec<Value> = map.into_iter().map(|(key, value)| json!([key, value])).collect();
    json!(["map", pairs])
}

/// A set, to be written.
pub(super) fn set_to_json(elements: impl IntoIterator<Item = Value>) -> Value {
    json!(["set", elements.into_iter().collect::<Vec<_>>()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_a_set_of_one_are_the_same() {
        for value in [json!(5), json!(["set", [5]])] {
            assert_eq!(optional::<i64>(&value), Ok(Some(5)));
            assert_eq!(set::<i64>(&value), Ok([5].into()));
        }
        assert_eq!(optional::<i64>(&json!(["set", []])), Ok(None));
        assert!(optional::<i64>(&json!(["set", [1, 2]])).is_err());
        let id = RowId::new("1-2");
        assert_eq!(set::<RowId>(&json!(["uuid", "1-2"])), Ok([id.clone()].into()));
        assert_eq!(set::<RowId>(&set_to_json([id.to_json()])), Ok([id].into()));
    }

    #[test]
    fn maps_come_back_as_they_were_written() {
        let text = map_to_json([("a", "1"), ("b", "")]);
        assert_eq!(map(&text), Ok([("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())].into()));
        for bad in [json!({}), json!(["map", [["a"]]]), json!(["map", [["a", 1]]]), json!(["set", []])] {
            assert!(map(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_types_are_refused() {
        for bad in [json!(null), json!("5"), json!(["uuid", "x"]), json!(["set", ["5"]]), json!({"a": 1})] {
            assert!(set::<i64>(&bad).is_err(), "{bad}");
        }
        assert!(set::<RowId>(&json!("x")).is_err());
    }
}
