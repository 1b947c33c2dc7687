//! The agent's outside: gRPC on a unix socket and on TCP, probes and metrics over HTTP. Reads what the configurator publishes; writes
//! go to the store and nowhere else.

pub mod context;
pub mod convert;
pub mod grpc;
mod http;
mod listen;
mod metrics;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic_health::server::HealthReporter;

pub use crate::api::context::{Context, Nodes, Surroundings};
pub use crate::api::listen::ListenError;

use crate::api::grpc::Access;
use crate::api::listen::{Accept, Limited};
use crate::config::{GrpcTcp, TlsFiles};

/// How long open calls may take to end after the agent was told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// Where the API is offered.
#[derive(Clone, Debug, Default)]
pub struct ApiOptions {
    /// The unix socket with all services.
    pub socket: Option<PathBuf>,
    /// gRPC over TCP.
    pub grpc: Option<GrpcTcp>,
    /// HTTP.
    pub http_listen: Option<SocketAddr>,
}

/// Why the API cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A certificate file.
    #[error("certificate file {path} cannot be read: {source}")]
    Certificate {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The certificates as a whole.
    #[error("the certificates of the gRPC address cannot be used: {0:?}")]
    Tls(tonic::transport::Error),
    /// The descriptors.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The API while it is offered.
pub struct Serving {
    /// The TCP address of gRPC, with the real port.
    pub grpc_addr: Option<SocketAddr>,
    /// The address of HTTP, with the real port.
    pub http_addr: Option<SocketAddr>,
    socket: Option<PathBuf>,
    tasks: JoinSet<()>,
    context: Arc<Context>,
}

/// Opens all listeners and serves until the context's `stop` is cancelled.
///
/// # Errors
/// [`ApiError`] when one of the listeners cannot be opened; none is served then.
pub async fn serve(options: ApiOptions, context: Arc<Context>) -> Result<Serving, ApiError> {
    if let Some(grpc) = &options.grpc {
        grpc.refuse_exposure().map_err(ListenError::Exposed)?;
    }
    let tls = match options.grpc.as_ref().and_then(|grpc| grpc.tls.as_ref()) {
        Some(files) => Some(tls_config(files)?),
        None => None,
    };
    let mut serving = Serving { grpc_addr: None, http_addr: None, socket: None, tasks: JoinSet::new(), context: context.clone() };
    let reporter = HealthReporter::new();
    if let Some(grpc) = &options.grpc {
        let listener = listen::tcp(grpc.listen).await?;
        serving.grpc_addr = listener.local_addr().ok();
        let access = if grpc.takes_writes() { Access::ReadWrite } else { Access::ReadOnly };
        serving.grpc(listener, access, tls, &reporter)?;
    }
    if let Some(address) = options.http_listen {
        let listener = listen::tcp(address).await?;
        serving.http_addr = listener.local_addr().ok();
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "metrics and statuses can be read without encryption by everybody who reaches this address");
        }
        let stop = context.stop.clone();
        let router = http::router(context.clone(), serving.http_addr.unwrap_or(address));
        serving.tasks.spawn(async move {
            let server = axum::serve(Limited::new(listener), router).with_graceful_shutdown(async move { stop.cancelled().await });
            if let Err(error) = server.await {
                tracing::error!(%error, "HTTP ended");
            }
        });
    }
    // Last, because a socket that stands tells clients that the agent is there.
    if let Some(path) = options.socket {
        let listener: UnixListener = listen::unix(&path).await?;
        serving.socket = Some(path);
        serving.grpc(listener, Access::ReadWrite, None, &reporter)?;
    }
    serving.tasks.spawn(grpc::report_health(context, reporter));
    Ok(serving)
}

impl Serving {
    fn grpc<L: Accept>(
        &mut self,
        listener: L,
        access: Access,
        tls: Option<ServerTlsConfig>,
        reporter: &HealthReporter,
    ) -> Result<(), ApiError> {
        let routes = grpc::routes(&self.context, access, reporter.clone())?;
        let mut server = grpc::server();
        if let Some(tls) = tls {
            server = server.tls_config(tls).map_err(ApiError::Tls)?;
        }
        let stop = self.context.stop.clone();
        self.tasks.spawn(async move {
            let connections = Box::pin(Limited::new(listener).stream());
            let served = server.add_routes(routes).serve_with_incoming_shutdown(connections, async move { stop.cancelled().await });
            if let Err(error) = served.await {
                tracing::error!(?error, "gRPC ended");
            }
        });
        Ok(())
    }

    /// Waits until the context's `stop` is cancelled and all calls have ended (or three seconds later), then removes the socket.
    pub async fn stopped(mut self) {
        self.context.stop.cancelled().await;
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_LIMIT, ended).await.is_err() {
            self.tasks.shutdown().await;
        }
        if let Some(path) = &self.socket {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn tls_config(files: &TlsFiles) -> Result<ServerTlsConfig, ApiError> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|source| ApiError::Certificate { path: path.clone(), source });
    let config = ServerTlsConfig::new().identity(Identity::from_pem(read(&files.cert)?, read(&files.key)?));
    match &files.client_ca {
        Some(ca) => Ok(config.client_ca_root(Certificate::from_pem(read(ca)?))),
        None => Ok(config),
    }
}
