//! gRPC: the two services, health and reflection, the same on every listener except for who may write.

mod config;
mod keys;
mod node;
mod settle;
mod status;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::context::{Context, now};
use crate::proto::REQUEST_LIMIT;
use crate::proto::agent::config_service_server::{ConfigServiceServer, SERVICE_NAME as CONFIG_SERVICE};
use crate::proto::agent::node_service_server::{NodeServiceServer, SERVICE_NAME as NODE_SERVICE};
use crate::proto::agent::status_service_server::{SERVICE_NAME as STATUS_SERVICE, StatusServiceServer};

/// Calls at a time on one connection; each watch is one.
const STREAMS_PER_CONNECTION: u32 = 64;
/// Largest header list, bytes.
const HEADER_LIMIT: u32 = 16 << 10;
/// A connection without a sign of life for this long is asked for one, and closed when none comes.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How often readiness is looked at for the health service.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);

/// Whether a listener takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Nothing that changes the configuration or asks the agent to act.
    ReadOnly,
}

/// A server with this project's limits; TLS is the caller's.
pub fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_LIMIT)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}

/// All services for one listener.
///
/// # Errors
/// When the descriptors cannot be served by reflection.
pub fn routes(context: &Arc<Context>, access: Access, health: HealthReporter) -> Result<Routes, tonic_reflection::server::Error> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let status = StatusServiceServer::new(status::Service(context.clone())).max_decoding_message_size(REQUEST_LIMIT);
    let config = ConfigServiceServer::new(config::Service { context: context.clone(), access }).max_decoding_message_size(REQUEST_LIMIT);
    let node = NodeServiceServer::new(node::Service { context: context.clone(), access }).max_decoding_message_size(REQUEST_LIMIT);
    let health = tonic_health::pb::health_server::HealthServer::new(tonic_health::server::HealthService::from_health_reporter(health));
    // Clients of both generations are about: grpcurl before 1.9 asks for v1alpha only.
    let builder = Routes::new(status)
        .add_service(config)
        .add_service(node)
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(builder)
}

/// Keeps the health service's answers equal to readiness, until the agent stops.
pub async fn report_health(context: Arc<Context>, reporter: HealthReporter) {
    let mut period = tokio::time::interval(HEALTH_PERIOD);
    loop {
        let serving = context.readiness(now()).is_ok() && !context.stop.is_cancelled();
        let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in ["", STATUS_SERVICE, CONFIG_SERVICE, NODE_SERVICE] {
            reporter.set_service_status(service, status).await;
        }
        if context.stop.is_cancelled() {
            return;
        }
        // Both arms only wait: nothing is lost when one is dropped.
        tokio::select! {
            _ = period.tick() => {}
            () = context.stop.cancelled() => {}
        }
    }
}
