//! Where an option's value comes from: flag, environment, file, default, in this order of precedence.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use crate::config::file::{self, FileValues, RuleTable};
use crate::config::options::{OPTIONS, OptionSpec};
use crate::config::{ConfigError, Problem};

/// Environment variable of `--config`.
pub const CONFIG_ENV: &str = "VNF_AGENT_CONFIG";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag.
    Flag(&'static str),
    /// An environment variable.
    Environment(&'static str),
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// Nobody set it.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag --{flag}"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::File(path, line) => write!(f, "{}, line {line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value as text, with its source.
#[derive(Clone, Debug)]
pub struct Sourced {
    /// The text.
    pub text: String,
    /// Its source.
    pub source: Source,
}

/// Everything that was said, before it is understood.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Values by flag; options that nobody set and that have no default are left out.
    pub values: BTreeMap<&'static str, Sourced>,
    /// The bypass rules of the file.
    pub rules: Vec<RuleTable>,
}

/// The daemon's command line.
#[must_use]
pub fn command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("PATH")
        .help(format!("Configuration file (TOML): every option below, with `_` for `-` [env: {CONFIG_ENV}]"));
    let about = "Keeps a Linux host's veth pairs as etcd says, across namespaces, and reports per key what it did";
    Command::new("vnf-agent").version(env!("CARGO_PKG_VERSION")).about(about).arg(config).args(OPTIONS.iter().map(argument))
}

fn argument(option: &'static OptionSpec) -> Arg {
    let mut help = format!("{} [env: {}]", option.help, option.env.join(", else "));
    if let Some(default) = option.default {
        help.push_str(&format!(" [default: {default}]"));
    }
    let argument = Arg::new(option.flag).long(option.flag).value_name(option.value).help(help);
    // A switch may be given without its value.
    if option.value == "BOOL" { argument.num_args(0..=1).require_equals(true).default_missing_value("true") } else { argument }
}

/// Reads all sources. An environment variable that is empty counts as unset.
///
/// # Errors
/// What clap says (also for `--help` and `--version`), and every problem of the file.
pub fn resolve(arguments: Vec<OsString>, environment: impl Fn(&str) -> Option<String>) -> Result<Resolved, ConfigError> {
    let flags = command().try_get_matches_from(arguments)?;
    let environment = |variable: &str| environment(variable).filter(|text| !text.is_empty());
    let path = flags.get_one::<String>("config").cloned().or_else(|| environment(CONFIG_ENV));
    let mut file = match path {
        Some(path) => read(&PathBuf::from(path))?,
        None => FileValues::default(),
    };
    let mut resolved = Resolved { rules: std::mem::take(&mut file.rules), ..Resolved::default() };
    for option in &OPTIONS {
        let found = from_flag(&flags, option)
            .or_else(|| from_environment(option, &environment))
            .or_else(|| file.values.remove(option.flag))
            .or_else(|| option.default.map(|text| Sourced { text: text.to_owned(), source: Source::Default }));
        if let Some(found) = found {
            resolved.values.insert(option.flag, found);
        }
    }
    Ok(resolved)
}

fn from_flag(flags: &ArgMatches, option: &OptionSpec) -> Option<Sourced> {
    flags.get_one::<String>(option.flag).map(|text| Sourced { text: text.clone(), source: Source::Flag(option.flag) })
}

fn from_environment(option: &OptionSpec, environment: &impl Fn(&str) -> Option<String>) -> Option<Sourced> {
    let found = option.env.iter().find_map(|variable| environment(variable).map(|text| (*variable, text)));
    found.map(|(variable, text)| Sourced { text, source: Source::Environment(variable) })
}

fn read(path: &PathBuf) -> Result<FileValues, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| ConfigError::Invalid(vec![Problem(format!("configuration file {} cannot be read: {e}", path.display()))]))?;
    file::parse(path, &text).map_err(ConfigError::Invalid)
}
