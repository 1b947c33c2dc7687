//! `vnfctl`: asks one agent, prints what it says. Decides nothing, and touches neither etcd nor the kernel.

mod args;
mod client;
mod commands;
mod files;
mod json;
mod nodes;
mod out;
mod render;
mod table;
mod text;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::args::Cli;

/// Why a command ends without success.
#[derive(Debug)]
pub enum Failure {
    /// The agent said no, or did what was asked with a result that is none. Exit status 1.
    Refused(String),
    /// The command cannot be carried out as it was given. Exit status 2.
    Usage(String),
    /// The agent cannot be reached. Exit status 3.
    Unreachable(String),
    /// Nobody reads the output any more: a good end.
    Closed,
}

/// Runs one command line (its first word is the program's name) and returns the exit status.
pub async fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(usage) => {
            // Help to standard output, errors to standard error; who closed it does not want to know.
            let _ = usage.print();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
    };
    let (status, sentence) = match commands::execute(cli).await {
        Ok(()) | Err(Failure::Closed) => return ExitCode::SUCCESS,
        Err(Failure::Refused(sentence)) => (1, sentence),
        Err(Failure::Usage(sentence)) => (2, sentence),
        Err(Failure::Unreachable(sentence)) => (3, sentence),
    };
    if !sentence.is_empty() {
        let _ = writeln!(std::io::stderr(), "vnfctl: {}", text::safe(&sentence));
    }
    ExitCode::from(status)
}
