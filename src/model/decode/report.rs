//! How a bad value is told: bounded in number and length, so that no value can blow up the status that answers it.

use crate::model::{FieldError, Reason};

/// Longest excerpt of a value in a status, in characters.
pub const SHOWN_MAX: usize = 64;
/// Most errors, and most warnings, that one value gets; the rest is counted.
pub const LISTED_MAX: usize = 64;

/// The text, cut after [`SHOWN_MAX`] characters. Not escaped: that is for whoever renders it.
#[must_use]
pub fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The text as part of a sentence: shortened, escaped, in backticks.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("`{}`", shorten(text).escape_debug())
}

/// One error; the value is shortened.
pub fn error(reason: Reason, field: impl Into<String>, value: &str, rule: impl Into<String>, hint: impl Into<String>) -> FieldError {
    FieldError { reason, field: field.into(), value: shorten(value), rule: rule.into(), hint: hint.into() }
}

/// A list that keeps its first [`LISTED_MAX`] entries and counts the others without making them.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T> {
    kept: Vec<T>,
    more: usize,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), more: 0 }
    }
}

impl<T> Listed<T> {
    /// Adds what `make` returns, or only counts it.
    pub fn push_with(&mut self, make: impl FnOnce() -> T) {
        if self.kept.len() < LISTED_MAX {
            self.kept.push(make());
        } else {
            self.more += 1;
        }
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl Listed<String> {
    /// The warnings; the last one says how many more there are.
    #[must_use]
    pub fn into_warnings(mut self) -> Vec<String> {
        if self.more > 0 {
            self.kept.push(format!("{} more warnings", self.more));
        }
        self.kept
    }
}

impl Listed<FieldError> {
    /// The errors; the last one says how many more there are.
    #[must_use]
    pub fn into_errors(mut self) -> Vec<FieldError> {
        if let (true, Some(last)) = (self.more > 0, self.kept.last()) {
            self.kept.push(error(last.reason, "", "", format!("has {} more errors", self.more), "correct those that are listed"));
        }
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(shorten(&"ü".repeat(64)), "ü".repeat(64));
        assert_eq!(shorten(&"ü".repeat(65)), format!("{}…", "ü".repeat(64)));
        assert_eq!(quoted("a\u{1b}[31m\u{202e}"), "`a\\u{1b}[31m\\u{202e}`");
    }

    #[test]
    fn long_lists_are_counted() {
        let mut warnings = Listed::default();
        for i in 0..LISTED_MAX + 3 {
            warnings.push_with(|| i.to_string());
        }
        let texts = warnings.into_warnings();
        assert_eq!(texts.len(), LISTED_MAX + 1);
        assert_eq!(texts.last().map(String::as_str), Some("3 more warnings"));
    }
}
