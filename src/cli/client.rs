//! The one connection to the agent, and what its answers mean for the exit status.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};

use crate::cli::Failure;
use crate::cli::args::{AGENT_DEFAULT, Cli};
use crate::proto::agent::config_service_client::ConfigServiceClient;
use crate::proto::agent::node_service_client::NodeServiceClient;
use crate::proto::agent::status_service_client::StatusServiceClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An agent that gives no sign of life for both together (it was stopped, or the network is gone) counts as unreachable.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(8);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Largest answer, bytes: a page, whose first value may be large.
const ANSWER_LIMIT: usize = 64 << 20;

/// An agent's address and how to get there.
pub struct Agent {
    address: String,
    endpoint: Endpoint,
    /// Whether we show a certificate.
    shows_certificate: bool,
}

/// A connected agent.
pub struct Client {
    /// Statuses.
    pub status: StatusServiceClient<Channel>,
    /// Configuration.
    pub config: ConfigServiceClient<Channel>,
    /// External nodes.
    pub node: NodeServiceClient<Channel>,
}

impl Agent {
    /// Reads the address and the certificates.
    pub fn new(cli: &Cli) -> Result<Self, Failure> {
        // An empty environment variable counts as unset.
        let address = if cli.agent.is_empty() { AGENT_DEFAULT.to_owned() } else { cli.agent.clone() };
        let form = || Failure::Usage(format!("--agent `{address}` must be `unix:/path`, `https://host:port` or `http://host:port`"));
        if !["unix:/", "https://", "http://"].iter().any(|scheme| address.starts_with(scheme)) {
            return Err(form());
        }
        let mut endpoint = Endpoint::from_shared(address.clone()).map_err(|_| form())?;
        if address.starts_with("https://") {
            endpoint =
                endpoint.tls_config(tls(cli)?).map_err(|e| Failure::Usage(format!("the certificates cannot be used: {}", causes(&e))))?;
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok(Self { address, endpoint, shows_certificate: cli.cert.is_some() })
    }

    /// Connects.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let channel = self.endpoint.connect().await.map_err(|e| self.unreachable(&e))?;
        Ok(Client {
            status: StatusServiceClient::new(channel.clone()).max_decoding_message_size(ANSWER_LIMIT),
            config: ConfigServiceClient::new(channel.clone()).max_decoding_message_size(ANSWER_LIMIT),
            node: NodeServiceClient::new(channel).max_decoding_message_size(ANSWER_LIMIT),
        })
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> Failure {
        let hint = match io_kind(error) {
            Some(std::io::ErrorKind::PermissionDenied) => "run as root or as a member of the socket's group",
            _ if self.address.starts_with("https://") && !self.shows_certificate => {
                "is vnf-agent running, and does it want a certificate (--cert and --key)?"
            }
            _ => "is vnf-agent running? --agent or VNF_AGENT tells where else to look",
        };
        Failure::Unreachable(format!("cannot reach the agent at {}: {}; {hint}", self.address, causes(error)))
    }

    /// What an answer that is no success means.
    pub fn failure(&self, status: &Status) -> Failure {
        // An answer that came over the wire carries no cause; one that was made on this side does.
        match status.source() {
            Some(cause) => self.unreachable(cause),
            // The transport's own words when the answer is plain HTTP.
            None if status.message().starts_with("grpc-status header missing") => {
                Failure::Unreachable(format!("{} answers, but is no agent's gRPC address (by default 127.0.0.1:9111)", self.address))
            }
            None if status.message().is_empty() => Failure::Refused(describe(status.code())),
            None => Failure::Refused(status.message().to_owned()),
        }
    }
}

fn describe(code: Code) -> String {
    match code {
        Code::Unimplemented => "the agent does not know this request: it is older than this vnfctl".to_owned(),
        other => format!("the agent refused: {other:?}"),
    }
}

fn tls(cli: &Cli) -> Result<ClientTlsConfig, Failure> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|e| Failure::Usage(format!("{} cannot be read: {e}", path.display())));
    // An empty environment variable counts as unset.
    let given = |path: &Option<PathBuf>| path.clone().filter(|p| !p.as_os_str().is_empty());
    let Some(ca) = given(&cli.ca) else {
        return Err(Failure::Usage("an https:// address needs --ca, the certificate authority of the agent".to_owned()));
    };
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&ca)?));
    match (given(&cli.cert), given(&cli.tls_key)) {
        (Some(cert), Some(key)) => Ok(config.identity(Identity::from_pem(read(&cert)?, read(&key)?))),
        _ => Ok(config),
    }
}

/// The innermost causes say what happened; the layers above only name themselves.
fn causes(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn io_kind(error: &(dyn Error + 'static)) -> Option<std::io::ErrorKind> {
    chain(error).find_map(|e| e.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn Error + 'static)| (*e).source())
}
