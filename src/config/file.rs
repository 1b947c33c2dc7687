//! The configuration file: the options of the table, and the bypass rules of external nodes. A key that is not known is an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::Problem;
use crate::config::options::OPTIONS;
use crate::config::sources::{Source, Sourced};

const NODE_TABLE: &str = "external_node";
const RULES: &str = "policy_bypass_rules";
const RULE_KEYS: [&str; 4] = ["direction", "protocol", "cidr", "port"];

/// What a file says.
#[derive(Debug, Default)]
pub struct FileValues {
    /// Values by flag.
    pub values: BTreeMap<&'static str, Sourced>,
    /// Bypass rules, in the order of the file.
    pub rules: Vec<RuleTable>,
}

/// One `[[external_node.policy_bypass_rules]]`, as text.
#[derive(Debug, Clone)]
pub struct RuleTable {
    /// Its values by key.
    pub values: BTreeMap<&'static str, String>,
    /// Where it stands.
    pub source: Source,
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    problems: Vec<Problem>,
}

/// Reads a file's text.
///
/// # Errors
/// Every problem, each with its line.
pub fn parse(path: &Path, text: &str) -> Result<FileValues, Vec<Problem>> {
    let mut reader = Reader { path, text, problems: Vec::new() };
    let mut file = FileValues::default();
    match DeTable::parse(text) {
        Ok(table) => reader.top(table.get_ref(), &mut file),
        Err(e) => reader.complain(e.span().unwrap_or(0..0), &format!("this is no TOML: {}", e.message().trim())),
    }
    if reader.problems.is_empty() { Ok(file) } else { Err(reader.problems) }
}

impl Reader<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1
    }

    fn source(&self, span: &Range<usize>) -> Source {
        Source::File(self.path.to_owned(), self.line(span))
    }

    fn complain(&mut self, span: Range<usize>, what: &str) {
        self.problems.push(Problem(format!("{}, line {}: {what}", self.path.display(), self.line(&span))));
    }

    fn unknown(&mut self, span: Range<usize>, key: &str, known: &[String]) {
        let hint = nearest(key, known).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        self.complain(span, &format!("unknown key `{}`{hint}", key.escape_debug()));
    }

    fn top(&mut self, table: &DeTable<'_>, file: &mut FileValues) {
        let mut known: Vec<String> = OPTIONS.iter().map(super::options::OptionSpec::file_key).collect();
        known.push(NODE_TABLE.to_owned());
        for (key, value) in table {
            let name: &str = key.get_ref();
            if name == NODE_TABLE {
                self.node(value, file);
            } else if let Some(option) = OPTIONS.iter().find(|o| o.file_key() == name) {
                if let Some(text) = self.text_of(name, value, option.value == "LIST") {
                    file.values.insert(option.flag, Sourced { text, source: self.source(&key.span()) });
                }
            } else {
                self.unknown(key.span(), name, &known);
            }
        }
    }

    fn node(&mut self, value: &Spanned<DeValue<'_>>, file: &mut FileValues) {
        let DeValue::Table(table) = value.get_ref() else {
            return self.complain(value.span(), &format!("`{NODE_TABLE}` must be a table"));
        };
        for (key, value) in table {
            let name: &str = key.get_ref();
            match value.get_ref() {
                DeValue::Array(rules) if name == RULES => {
                    for rule in rules {
                        self.rule(rule, file);
                    }
                }
                _ if name == RULES => self.complain(value.span(), &format!("`{RULES}` must be a list of tables")),
                _ => self.unknown(key.span(), name, &[RULES.to_owned()]),
            }
        }
    }

    fn rule(&mut self, rule: &Spanned<DeValue<'_>>, file: &mut FileValues) {
        let DeValue::Table(table) = rule.get_ref() else {
            return self.complain(rule.span(), &format!("each of `{RULES}` must be a table"));
        };
        let mut values = BTreeMap::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            match RULE_KEYS.iter().find(|known| **known == name) {
                Some(known) => values.extend(self.text_of(name, value, false).map(|text| (*known, text))),
                None => self.unknown(key.span(), name, &RULE_KEYS.map(str::to_owned)),
            }
        }
        file.rules.push(RuleTable { values, source: self.source(&rule.span()) });
    }

    /// The text of a scalar, or of a list of strings where one is taken.
    fn text_of(&mut self, key: &str, value: &Spanned<DeValue<'_>>, list: bool) -> Option<String> {
        match value.get_ref() {
            DeValue::String(text) => return Some(text.to_string()),
            DeValue::Integer(number) => return Some(number.to_string()),
            DeValue::Boolean(switch) => return Some(switch.to_string()),
            DeValue::Array(items) if list => {
                let texts: Option<Vec<&str>> = items.iter().map(|item| item.get_ref().as_str()).collect();
                if let Some(texts) = texts {
                    return Some(texts.join(","));
                }
            }
            _ => {}
        }
        let form = if list { "a string or a list of strings" } else { "a string, a number or a boolean" };
        self.complain(value.span(), &format!("`{key}` must be {form}"));
        None
    }
}

/// The known word that differs least, when it differs little.
fn nearest<'a>(word: &str, known: &'a [String]) -> Option<&'a String> {
    let distance = |other: &str| {
        let other: Vec<char> = other.chars().collect();
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (i, a) in word.chars().enumerate() {
            let mut diagonal = std::mem::replace(&mut row[0], i + 1);
            for (j, b) in other.iter().enumerate() {
                let substituted = diagonal + usize::from(a != *b);
                diagonal = row[j + 1];
                row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
            }
        }
        row[other.len()]
    };
    known.iter().map(|k| (distance(k), k)).filter(|(d, _)| *d <= 3.min(word.chars().count() / 2)).min_by_key(|(d, _)| *d).map(|(_, k)| k)
}
