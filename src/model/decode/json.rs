//! JSON text as a tree that keeps what it says: keys that occur twice, and whole numbers apart from fractions.
//!
//! `serde_json::Value` keeps the last of two equal keys without a word; a wish that says two things must not be guessed at.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A JSON value, objects in the order of the text.
#[derive(Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A number without fraction or exponent that fits 64 bits.
    Whole(i128),
    /// Any other number.
    Fraction(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object; a key may occur more than once.
    Object(Vec<(String, Json)>),
}

/// Why a text is no JSON.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: {problem}")]
pub struct SyntaxError {
    /// Where, in bytes from the start of the value.
    pub offset: usize,
    /// What is wrong there.
    pub problem: String,
}

/// Reads one JSON value and nothing after it.
///
/// # Errors
/// [`SyntaxError`], also for invalid UTF-8 in strings and for more than 127 levels of nesting.
pub fn parse(text: &[u8]) -> Result<Json, SyntaxError> {
    serde_json::from_slice(text).map_err(|e| SyntaxError { offset: offset(text, &e), problem: problem(&e) })
}

impl Json {
    /// The kind with its article, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Whole(_) => "a number",
            Self::Fraction(_) => "a number with a fraction, or too large",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// What stands there, for messages; empty for lists and objects.
    #[must_use]
    pub fn excerpt(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(b) => b.to_string(),
            Self::Whole(n) => n.to_string(),
            Self::Fraction(n) => n.to_string(),
            Self::Text(t) => t.clone(),
            Self::List(_) | Self::Object(_) => String::new(),
        }
    }
}

/// `serde_json` counts lines from 1 and, in a line, bytes: the column is that of the byte at fault counted from 1, or 0 where that byte is the
/// line feed before the line.
fn offset(text: &[u8], error: &serde_json::Error) -> usize {
    if error.is_eof() {
        return text.len();
    }
    let before = error.line().saturating_sub(1);
    let feeds = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1);
    let line_start = if before == 0 { 0 } else { feeds.clone().nth(before - 1).unwrap_or(text.len()) };
    (line_start + error.column()).saturating_sub(1)
}

/// The message without its position, which we give in bytes.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Whole(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Whole(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Fraction(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_and_nothing_is_rounded() {
        let tree = parse(br#"{"b":1,"a":[1.0,-2,null],"b":18446744073709551615}"#).unwrap();
        let list = vec![Json::Fraction(1.0), Json::Whole(-2), Json::Null];
        let object = vec![("b".into(), Json::Whole(1)), ("a".into(), Json::List(list)), ("b".into(), Json::Whole(u64::MAX.into()))];
        assert_eq!(tree, Json::Object(object));
    }

    #[test]
    fn positions_are_bytes_from_the_start() {
        for (text, at) in [
            ("{", 1),
            ("{}}", 2),
            ("{\"ü\":x}", 6),
            ("{\"a\":1,\n\n  \"b\" 2}", 15),
            ("{\"a\":\"x\ny\"}", 7),
            ("{\"a\":1,}", 7),
            ("x", 0),
            ("{\n}\n\n]", 5),
            ("{\"a\":01}", 6),
            ("{\"a\":1e999}", 9),
            ("", 0),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.offset, at, "{text:?}: {error}");
            assert!(!error.problem.contains("line"), "{error}");
        }
        assert_eq!(parse(b"{\"a\":\"\xff\"}").unwrap_err().offset, 6);
    }

    #[test]
    fn depth_is_bounded() {
        for text in ["[".repeat(1_000_000), "{\"a\":".repeat(200_000)] {
            assert!(parse(text.as_bytes()).unwrap_err().problem.contains("recursion"));
        }
    }
}
