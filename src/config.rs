//! The daemon's configuration: read once at the start, checked as a whole, then handed out as typed values.
//!
//! Precedence: flag, environment, file, default. Nothing is guessed: what cannot be read is an error that names the option, the value, its
//! source and the rule.

pub mod docs;
mod file;
pub mod options;
mod sources;
pub(crate) mod values;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::sources::Resolved;
use crate::model::{AgentLabel, BypassRule, BypassRuleError, Datapath, OvsdbTarget};
use crate::telemetry::LogFormat;

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The agent's label.
    pub label: AgentLabel,
    /// How etcd is reached; `None`: the embedded store is used.
    pub etcd: Option<EtcdConfig>,
    /// Directory of the embedded store and of what must be remembered.
    pub state_dir: PathBuf,
    /// The unix socket; `None`: off.
    pub socket: Option<PathBuf>,
    /// gRPC over TCP; `None`: off.
    pub grpc: Option<GrpcTcp>,
    /// HTTP; `None`: off.
    pub http_listen: Option<SocketAddr>,
    /// Path of Docker's socket; `None`: off.
    pub docker_socket: Option<PathBuf>,
    /// Directory of named namespaces.
    pub netns_dir: PathBuf,
    /// What happens when a named namespace is missing.
    pub named_netns: NamedNetns,
    /// Open vSwitch.
    pub ovs: OvsConfig,
    /// The external node.
    pub node: NodeConfig,
    /// Whether IPv6 addresses go through duplicate address detection.
    pub ipv6_dad: bool,
    /// What happens to addresses that others added.
    pub extra_addresses: ExtraAddresses,
    /// Whether unmarked pairs are taken over.
    pub adopt: Adopt,
    /// Filter of the log.
    pub log: String,
    /// Form of the log.
    pub log_format: LogFormat,
}

/// How etcd is reached. Files are read by who uses them, again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Endpoints, each with its scheme.
    pub endpoints: Vec<String>,
    /// Certificate authority.
    pub ca: Option<PathBuf>,
    /// Client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// User, and the file that holds the password.
    pub user: Option<(String, PathBuf)>,
}

/// gRPC over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTcp {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Certificates; `None`: plain text.
    pub tls: Option<TlsFiles>,
    /// Take writes from everybody who can reach the port.
    pub insecure_writes: bool,
}

/// Certificates of the TCP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authority of the clients' certificates; with it, only clients with a certificate are served.
    pub client_ca: Option<PathBuf>,
}

impl GrpcTcp {
    /// Whether clients prove who they are.
    #[must_use]
    pub fn knows_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// Whether writes are taken on this address.
    #[must_use]
    pub fn takes_writes(&self) -> bool {
        self.insecure_writes || self.knows_clients()
    }

    /// Refuses an address that others can reach unless clients show certificates.
    ///
    /// # Errors
    /// One sentence.
    pub fn refuse_exposure(&self) -> Result<(), String> {
        if self.listen.ip().is_loopback() || self.knows_clients() {
            return Ok(());
        }
        let listen = self.listen;
        Err(format!(
            "gRPC does not listen on {listen} without client certificates: give --tls-cert, --tls-key and --tls-client-ca, or a loopback address"
        ))
    }
}

/// What happens when a named namespace is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedNetns {
    /// It is created when its key is first seen.
    Create,
    /// It is waited for.
    Wait,
}

/// What happens to addresses that others added to our links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraAddresses {
    /// They stay and are listed.
    Keep,
    /// They are removed.
    Remove,
}

/// Whether unmarked pairs that stand as wished are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopt {
    /// While the state directory is new.
    FirstStart,
    /// Only when asked to.
    Never,
}

/// Open vSwitch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvsConfig {
    /// Where the database listens.
    pub db: OvsdbTarget,
    /// The bridge.
    pub bridge: String,
    /// Datapath of a bridge that is made.
    pub datapath: Datapath,
}

/// The external node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The dead man's timer of an attach.
    pub confirm_timeout: Duration,
    /// Its name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Whether NICs may be taken from DHCP clients and network managers.
    pub allow_managed: bool,
    /// Traffic that no policy may stop.
    pub bypass_rules: Vec<BypassRule>,
    /// Rules for such traffic that say something impossible; the others are used all the same.
    pub refused_rules: Vec<Problem>,
}

/// One thing that is wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(pub String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The command line cannot be read, or asks for help or the version: the caller prints it and exits as clap says.
    Usage(clap::Error),
    /// Values that cannot be used; all of them at once.
    Invalid(Vec<Problem>),
}

impl From<clap::Error> for ConfigError {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => error.fmt(f),
            Self::Invalid(problems) => {
                let lines: Vec<&str> = problems.iter().map(|p| p.0.as_str()).collect();
                f.write_str(&lines.join("\n"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads the process's command line and environment, and the file that they name.
    ///
    /// # Errors
    /// [`ConfigError`]; the caller prints it and exits with status 2.
    pub fn load() -> Result<Self, ConfigError> {
        Self::from_sources(std::env::args_os().collect(), |variable| std::env::var(variable).ok())
    }

    /// Reads the given command line (the first word is the program's name) and environment.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_sources(arguments: Vec<OsString>, environment: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader { resolved: sources::resolve(arguments, environment)?, problems: Vec::new() };
        let config = reader.config();
        match config {
            Some(config) if reader.problems.is_empty() => Ok(config),
            _ => Err(ConfigError::Invalid(reader.problems)),
        }
    }
}

/// Reads values one after the other and remembers every problem.
struct Reader {
    resolved: Resolved,
    problems: Vec<Problem>,
}

impl Reader {
    /// The value of an option that has a default.
    fn get<T>(&mut self, flag: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let sourced = self.resolved.values.get(flag)?;
        match read(&sourced.text) {
            Ok(value) => Some(value),
            Err(rule) => {
                let text = sourced.text.escape_debug();
                self.problems.push(Problem(format!("option `{flag}`: value `{text}` ({}) {rule}", sourced.source)));
                None
            }
        }
    }

    /// Whether somebody set the option.
    fn is_set(&self, flag: &str) -> bool {
        self.resolved.values.contains_key(flag)
    }

    /// Options that make sense only together.
    fn together(&mut self, first: &'static str, second: &'static str) {
        for (given, missing) in [(first, second), (second, first)] {
            if let (Some(sourced), false) = (self.resolved.values.get(given), self.is_set(missing)) {
                let source = &sourced.source;
                self.problems.push(Problem(format!("option `{given}` ({source}) needs option `{missing}` beside it")));
            }
        }
    }

    fn config(&mut self) -> Option<Config> {
        let label = self.get("label", values::label);
        let etcd = self.etcd();
        let state_dir = self.get("state-dir", values::path);
        let socket = self.get("socket", |text| values::or_off(text, values::unix_path));
        let grpc = self.grpc();
        let http_listen = self.get("http-listen", |text| values::or_off(text, values::address));
        let docker_socket = self.get("docker-host", |text| values::or_off(text, values::docker_host));
        let netns_dir = self.get("netns-dir", values::path);
        let named_netns = self.get("named-netns", |t| values::word(t, &[("create", NamedNetns::Create), ("wait", NamedNetns::Wait)]));
        let ovs = self.ovs();
        let node = self.node(label.as_ref());
        let ipv6_dad = self.get("ipv6-dad", |t| values::word(t, &[("off", false), ("on", true)]));
        let extra = [("keep", ExtraAddresses::Keep), ("remove", ExtraAddresses::Remove)];
        let extra_addresses = self.get("extra-addresses", |t| values::word(t, &extra));
        let adopt = self.get("adopt", |t| values::word(t, &[("first-start", Adopt::FirstStart), ("never", Adopt::Never)]));
        let log = self.get("log", values::log_filter);
        let log_format = self.get("log-format", |t| values::word(t, &[("text", LogFormat::Text), ("json", LogFormat::Json)]));
        Some(Config {
            label: label?,
            etcd,
            state_dir: state_dir?,
            socket: socket?,
            grpc,
            http_listen: http_listen?,
            docker_socket: docker_socket?,
            netns_dir: netns_dir?,
            named_netns: named_netns?,
            ovs: ovs?,
            node: node?,
            ipv6_dad: ipv6_dad?,
            extra_addresses: extra_addresses?,
            adopt: adopt?,
            log: log?,
            log_format: log_format?,
        })
    }

    fn etcd(&mut self) -> Option<EtcdConfig> {
        self.together("etcd-cert", "etcd-key");
        self.together("etcd-user", "etcd-password-file");
        let tls = self.is_set("etcd-ca") || self.is_set("etcd-cert");
        let endpoints = self.get("etcd-endpoints", |text| values::endpoints(text, tls));
        let ca = self.get("etcd-ca", values::path);
        let identity = self.get("etcd-cert", values::path).zip(self.get("etcd-key", values::path));
        let user = self.get("etcd-user", values::some_text).zip(self.get("etcd-password-file", values::path));
        Some(EtcdConfig { endpoints: endpoints?, ca, identity, user })
    }

    fn grpc(&mut self) -> Option<GrpcTcp> {
        self.together("tls-cert", "tls-key");
        if self.is_set("tls-client-ca") && !self.is_set("tls-cert") {
            self.problems.push(Problem("option `tls-client-ca` needs options `tls-cert` and `tls-key` beside it".to_owned()));
        }
        let listen = self.get("grpc-listen", |text| values::or_off(text, values::address));
        let insecure_writes = self.get("grpc-insecure-writes", |t| values::word(t, &[("true", true), ("false", false)]));
        let client_ca = self.get("tls-client-ca", values::path);
        let files = self.get("tls-cert", values::path).zip(self.get("tls-key", values::path));
        let tls = files.map(|(cert, key)| TlsFiles { cert, key, client_ca });
        let grpc = GrpcTcp { listen: listen??, tls, insecure_writes: insecure_writes? };
        if let Err(sentence) = grpc.refuse_exposure() {
            self.problems.push(Problem(sentence));
        }
        Some(grpc)
    }

    fn ovs(&mut self) -> Option<OvsConfig> {
        let db = self.get("ovs-db", |text| OvsdbTarget::parse(text).map_err(|rule| rule.to_string()));
        let bridge = self.get("ovs-bridge", values::link_name);
        let datapath = self.get("ovs-datapath", |t| values::word(t, &[("system", Datapath::System), ("netdev", Datapath::Netdev)]));
        Some(OvsConfig { db: db?, bridge: bridge?, datapath: datapath? })
    }

    fn node(&mut self, label: Option<&AgentLabel>) -> Option<NodeConfig> {
        let confirm_timeout = self.get("node-confirm-timeout", values::duration);
        let name = if self.is_set("node-name") { self.get("node-name", values::object_name) } else { label.map(ToString::to_string) };
        let namespace = self.get("node-namespace", values::object_name);
        let allow_managed = self.get("node-managed-nic", |t| values::word(t, &[("refuse", false), ("allow", true)]));
        let (mut bypass_rules, mut refused_rules) = (Vec::new(), Vec::new());
        for (index, table) in std::mem::take(&mut self.resolved.rules).iter().enumerate() {
            match values::bypass_rule(table) {
                Ok(rule) => bypass_rules.push(rule),
                // One bad rule must not keep the agent, and with it the other rules, from working.
                Err(BypassRuleError { field, value, rule }) => {
                    let (value, source) = (value.escape_debug(), &table.source);
                    let option = format!("external_node.policy_bypass_rules[{index}].{field}");
                    refused_rules.push(Problem(format!("option `{option}`: value `{value}` ({source}) {rule}; the rule is left out")));
                }
            }
        }
        let (confirm_timeout, name, namespace, allow_managed) = (confirm_timeout?, name?, namespace?, allow_managed?);
        Some(NodeConfig { confirm_timeout, name, namespace, allow_managed, bypass_rules, refused_rules })
    }
}

#[cfg(test)]
mod tests;
