//! Readers of single values. Each error is the rule, as a phrase that follows the value.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tonic::codegen::http::Uri;

use crate::config::file::RuleTable;
use crate::model::{AgentLabel, BypassRule, BypassRuleError, HostIfName};

type Rule<T> = Result<T, String>;

/// `None` for the word `off`.
pub fn or_off<T>(text: &str, read: impl Fn(&str) -> Rule<T>) -> Rule<Option<T>> {
    if text == "off" { Ok(None) } else { read(text).map(Some).map_err(|rule| format!("{rule}, or `off`")) }
}

/// One of a few words.
pub fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Rule<T> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        format!("must be one of {}", known.join(", "))
    })
}

/// An agent's label.
pub fn label(text: &str) -> Rule<AgentLabel> {
    AgentLabel::new(text).map_err(|_| "must match [A-Za-z0-9][A-Za-z0-9_.-]{0,62}".to_owned())
}

/// An absolute path.
pub fn path(text: &str) -> Rule<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("must be an absolute path".to_owned()) }
}

/// The path of a unix socket: an absolute path, with or without `unix:` or `unix://` before it.
pub fn unix_path(text: &str) -> Rule<PathBuf> {
    let bare = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    path(bare).map_err(|_| "must be a unix socket, as in `unix:///absolute/path`".to_owned())
}

/// The path of a container runtime's socket: as [`unix_path`], with a word on what else `DOCKER_HOST` may be.
pub fn docker_host(text: &str) -> Rule<PathBuf> {
    unix_path(text).map_err(|rule| match text.split_once("://") {
        Some(("tcp" | "http" | "https" | "ssh" | "fd", _)) => {
            format!("{rule}: containers are followed on this host only, for their namespaces are here")
        }
        _ => rule,
    })
}

/// An address and port.
pub fn address(text: &str) -> Rule<SocketAddr> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric
        .as_deref()
        .unwrap_or(text)
        .parse()
        .map_err(|_| "must be an IP address with a port, as in `127.0.0.1:9111` or `[::1]:9111`".to_owned())
}

/// A duration with its unit.
pub fn duration(text: &str) -> Rule<Duration> {
    let rule = || "must be a duration between 1s and 24h with its unit (ms, s, m, h), as in `60s`".to_owned();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| rule())?;
    let millis = word(unit, &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]).map_err(|_| rule())?;
    let duration = Duration::from_millis(number.saturating_mul(millis));
    let sane = Duration::from_secs(1)..=Duration::from_secs(86_400);
    if sane.contains(&duration) { Ok(duration) } else { Err(rule()) }
}

/// Endpoints of etcd, each with a scheme afterwards: what has none gets `https` where certificates are configured, else `http`.
pub fn endpoints(text: &str, tls: bool) -> Rule<Vec<String>> {
    let endpoints: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if endpoints.is_empty() {
        return Err("must name at least one endpoint, as in `10.0.0.1:2379,10.0.0.2:2379`".to_owned());
    }
    endpoints.into_iter().map(|part| endpoint(part, tls)).collect()
}

fn endpoint(text: &str, tls: bool) -> Rule<String> {
    let whole = match (text.contains("://"), tls) {
        (true, _) => text.to_owned(),
        (false, true) => format!("https://{text}"),
        (false, false) => format!("http://{text}"),
    };
    let rule = || {
        format!("must hold endpoints of the form `host:port`, `http://host:port` or `https://host:port`; `{}` is none", text.escape_debug())
    };
    let uri: Uri = whole.parse().map_err(|_| rule())?;
    let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
    let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
    let authority = uri.authority().is_some_and(|a| a.port_u16().is_some() && !a.host().is_empty() && !a.as_str().contains('@'));
    if scheme && bare && authority { Ok(whole.trim_end_matches('/').to_owned()) } else { Err(rule()) }
}

/// Names of a link.
pub fn link_name(text: &str) -> Rule<String> {
    HostIfName::new(text).map(|name| name.as_str().to_owned()).map_err(|e| e.to_string())
}

/// A name in the manner of Kubernetes: it becomes part of a key.
pub fn object_name(text: &str) -> Rule<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let ok = !text.is_empty() && text.len() <= 253 && text.chars().all(legal) && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if ok {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 253 letters, digits, `-`, `.` or `_` that begin with a letter or digit".to_owned())
    }
}

/// Text that is not empty.
pub fn some_text(text: &str) -> Rule<String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// A log filter. The old agent's words are taken too.
pub fn log_filter(text: &str) -> Rule<String> {
    let text = match text {
        "fatal" | "panic" => "error",
        "warning" => "warn",
        other => other,
    };
    let rule = "must be a level (error, warn, info, debug, trace, off) or a filter such as `info,vnf_agent::store=debug`";
    // A lone word that is no level would be read as the name of a module, and everything else would go silent.
    let lone_word = text.bytes().all(|b| b.is_ascii_alphanumeric());
    if lone_word && text.parse::<tracing_subscriber::filter::LevelFilter>().is_err() {
        return Err(rule.to_owned());
    }
    tracing_subscriber::EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|e| format!("{rule} ({e})"))
}

/// A bypass rule; the error names the field at fault.
pub fn bypass_rule(table: &RuleTable) -> Result<BypassRule, BypassRuleError> {
    let get = |key: &str| table.values.get(key).map(String::as_str).unwrap_or_default();
    BypassRule::parse(get("direction"), get("protocol"), get("cidr"), get("port"))
}
