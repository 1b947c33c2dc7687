//! Standard output: written in one piece, in the form that was asked for. A reader who left is no error.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::cli::args::Form;
use crate::cli::{Failure, text};
use crate::telemetry::misleads;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// The form.
    pub form: Form,
    /// Columns of the terminal; `None` when it is none.
    pub width: Option<u16>,
    /// Whether colours help.
    pub colour: bool,
}

impl Out {
    /// Looks at standard output and at `NO_COLOR`.
    pub fn new(form: Form) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten().map(|size| size.ws_col).filter(|w| *w > 0);
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { form, width, colour }
    }

    /// Whether standard output shows what it gets to a person.
    pub fn terminal() -> bool {
        io::stdout().is_terminal()
    }

    /// Writes bytes as they are.
    pub fn raw(bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Closed),
            Err(e) => Err(Failure::Refused(format!("standard output: {e}"))),
        }
    }

    /// Writes the value as JSON or YAML, or what `table` makes for people.
    pub fn show(&self, value: impl FnOnce() -> Value, table: impl FnOnce(&Self) -> String) -> Result<(), Failure> {
        let text = match self.form {
            Form::Table => table(self),
            Form::Json => json(&value()),
            Form::Yaml => yaml(&value())?,
        };
        Self::raw(text.as_bytes())
    }

    /// Writes one of a series of values, so that a program can tell them apart: JSON on one line each, YAML as documents.
    pub fn next(&self, value: impl FnOnce() -> Value, line: impl FnOnce(&Self) -> String) -> Result<(), Failure> {
        let text = match self.form {
            Form::Table => line(self),
            Form::Json => text::safe_json(&value().to_string()) + "\n",
            Form::Yaml => format!("---\n{}", yaml(&value())?),
        };
        Self::raw(text.as_bytes())
    }
}

fn json(value: &Value) -> String {
    // `{:#}` of a value is its indented JSON.
    text::safe_json(&format!("{value:#}")) + "\n"
}

fn yaml(value: &Value) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).map_err(|e| Failure::Refused(format!("the answer cannot be written as YAML: {e}")))?;
    // The writer leaves bidirectional characters as they are, and outside of quotes there is no escape for them. JSON is YAML too.
    if text.contains(|c| c != '\n' && misleads(c)) { Ok(json(value)) } else { Ok(text) }
}
