//! Where the API listens and for whom: sockets and their modes, certificates, health, reflection, the end.
#![allow(clippy::unwrap_used, reason = "a test may end here")]

mod api_support;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use api_support::{Host, MemoryStore, PREFIX, Recorder, configured, eventually, parts, run};
use tonic::Code;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use vnf_agent::api::{ApiError, ApiOptions, ListenError, serve};
use vnf_agent::config::{GrpcTcp, TlsFiles};
use vnf_agent::configurator::published::{Hold, Published};
use vnf_agent::model::Timestamp;
use vnf_agent::proto::agent as pb;
use vnf_agent::proto::agent::config_service_client::ConfigServiceClient;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

async fn try_serve(options: ApiOptions) -> Result<(), ApiError> {
    let (_health, context) =
        parts(&Arc::new(Published::default()), &Arc::new(MemoryStore::default()), &Arc::new(Recorder::default()), "etcd");
    serve(options, context).await.map(|_| ())
}

fn on_socket(path: &Path) -> ApiOptions {
    ApiOptions { socket: Some(path.to_owned()), ..ApiOptions::default() }
}

#[tokio::test]
async fn the_socket_is_for_its_group_only() {
    let host = Host::start().await;
    assert_eq!(mode(&host.socket), 0o660);
    assert_eq!(mode(host.socket.parent().unwrap()), 0o750);
    let socket = host.socket.clone();
    let _dir = host.stop().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_nothing_else() {
    let host = Host::start().await;
    let error = try_serve(on_socket(&host.socket)).await.unwrap_err();
    assert!(matches!(&error, ApiError::Listen(ListenError::InUse(_))), "{error}");
    assert!(host.status().await.get_agent(pb::GetAgentRequest {}).await.is_ok(), "the first one still answers");

    let stale = host.dir.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    try_serve(on_socket(&stale)).await.unwrap();

    let file = host.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = try_serve(on_socket(&file)).await.unwrap_err();
    assert!(matches!(&error, ApiError::Listen(ListenError::NoSocket(_))), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn nothing_listens_for_strangers_without_certificates() {
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let files = |client_ca: Option<&str>| TlsFiles { cert: "/none".into(), key: "/none".into(), client_ca: client_ca.map(Into::into) };
    for (listen, tls) in [(any, None), (any, Some(files(None))), ("[::]:0".parse().unwrap(), None)] {
        let grpc = Some(GrpcTcp { listen, tls, insecure_writes: true });
        let error = try_serve(ApiOptions { grpc, ..ApiOptions::default() }).await.unwrap_err();
        assert!(matches!(&error, ApiError::Listen(ListenError::Exposed(_))), "{error}");
    }
    let grpc = Some(GrpcTcp { listen: any, tls: Some(files(Some("/none"))), insecure_writes: false });
    let error = try_serve(ApiOptions { grpc, ..ApiOptions::default() }).await.unwrap_err();
    assert_eq!(error.to_string(), "certificate file /none cannot be read: No such file or directory (os error 2)");
}

/// A certificate authority with a server's and a client's certificate, and a stranger's.
fn certificates(dir: &Path) {
    let script = r#"
        set -e
        ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" -keyout $1.key -out $1.pem \
               -addext "basicConstraints=critical,CA:TRUE"; }
        leaf() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout $1.key -out $1.csr
                 printf "subjectAltName=IP:127.0.0.1\n" > $1.ext
                 openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }
        ca ca; ca other; leaf server ca; leaf client ca; leaf stranger other
    "#;
    let output = Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn clients_with_certificates_may_write() {
    let certs = tempfile::tempdir().unwrap();
    certificates(certs.path());
    let file = |name: &str| certs.path().join(name);
    let tls = TlsFiles { cert: file("server.pem"), key: file("server.key"), client_ca: Some(file("ca.pem")) };
    let host =
        Host::with("etcd", |o| o.grpc = Some(GrpcTcp { listen: "127.0.0.1:0".parse().unwrap(), tls: Some(tls), insecure_writes: false }))
            .await;
    host.publish([configured("veth1")]);
    let agent = format!("https://{}", host.serving.grpc_addr.unwrap());
    let read = |name: &str| std::fs::read(certs.path().join(name)).unwrap();
    let call = async |who: Option<&str>| {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read("ca.pem")));
        if let Some(who) = who {
            tls = tls.identity(Identity::from_pem(read(&format!("{who}.pem")), read(&format!("{who}.key"))));
        }
        let channel = Endpoint::from_shared(agent.clone()).unwrap().tls_config(tls).unwrap().connect_lazy();
        let put = pb::PutRequest { key: format!("{PREFIX}a"), value: b"{}".to_vec(), wait: None };
        ConfigServiceClient::new(channel).put(put).await
    };
    assert!(call(Some("client")).await.is_ok());
    assert!(call(Some("stranger")).await.is_err());
    assert!(call(None).await.is_err());
    assert_eq!(host.store.writes.lock().unwrap().len(), 1);

    let path = |name: &str| file(name).display().to_string();
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    let seen = run(&agent, &["--ca", &ca, "--cert", &cert, "--key", &key, "status", "veth1", "-o", "json"], b"").await;
    assert_eq!((seen.code, seen.json()["state"].as_str()), (Some(0), Some("CONFIGURED")), "{seen:?}");
    let refused = run(&agent, &["--ca", &ca, "status"], b"").await;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let usage = run(&agent, &["status"], b"").await;
    assert_eq!((usage.code, usage.err.contains("needs --ca")), (Some(2), true), "{usage:?}");
}

#[tokio::test]
async fn health_follows_readiness() {
    let host = Host::start().await;
    let client = HealthClient::new(host.channel().await);
    let serving = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        client.clone().check(request).await.unwrap().into_inner().status().as_str_name()
    };
    for service in ["", "vnfagent.v1.StatusService", "vnfagent.v1.ConfigService"] {
        eventually("SERVING", async || serving(service).await == "SERVING").await;
    }
    let hold = Hold { why: "another store".to_owned(), since: Timestamp(0), kept: Vec::new() };
    host.published.hold.send_replace(Some(hold));
    eventually("NOT_SERVING", async || serving("").await == "NOT_SERVING").await;
    host.published.hold.send_replace(None);
    eventually("SERVING again", async || serving("").await == "SERVING").await;
    let unknown = client.clone().check(HealthCheckRequest { service: "x".to_owned() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_in_both_generations() {
    let host = Host::start().await;
    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version as wire;
            let request = wire::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(wire::server_reflection_request::MessageRequest::ListServices(String::new())),
            };
            let mut client = wire::server_reflection_client::ServerReflectionClient::new(host.channel().await);
            let mut answers = client.server_reflection_info(futures::stream::iter([request])).await.unwrap().into_inner();
            match answers.message().await.unwrap().unwrap().message_response.unwrap() {
                wire::server_reflection_response::MessageResponse::ListServicesResponse(list) => {
                    list.service.into_iter().map(|s| s.name).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    for names in [services!(v1), services!(v1alpha)] {
        for service in ["vnfagent.v1.StatusService", "vnfagent.v1.ConfigService", "grpc.health.v1.Health"] {
            assert!(names.iter().any(|n| n == service), "{names:?}");
        }
    }
}

#[tokio::test]
async fn nobody_keeps_the_agent_from_stopping() {
    let host = Host::with("etcd", |o| {
        o.http_listen = Some("127.0.0.1:0".parse().unwrap());
        o.grpc = Some(GrpcTcp { listen: "127.0.0.1:0".parse().unwrap(), tls: None, insecure_writes: false });
    })
    .await;
    let _silent = tokio::net::UnixStream::connect(&host.socket).await.unwrap();
    let _silent_http = tokio::net::TcpStream::connect(host.serving.http_addr.unwrap()).await.unwrap();
    let _idle = host.channel().await;
    let mut watcher = host.status().await;
    let _unread = watcher.watch_interfaces(pb::WatchRequest::default()).await.unwrap();
    let mut waiter = host.config().await;
    let put = pb::PutRequest { key: format!("{PREFIX}a"), value: b"{}".to_vec(), wait: api_support::wait(60) };
    let waiting = tokio::spawn(async move { waiter.put(put).await });
    host.store.revision.subscribe().wait_for(|r| *r == 1).await.unwrap();
    // Each of them could hold it up for ever.
    tokio::time::timeout(std::time::Duration::from_secs(50), host.stop()).await.expect("it stops");
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn connections_are_limited() {
    let host = Host::start().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::UnixStream::connect(&host.socket).await.unwrap());
    }
    // The next one waits in the kernel's queue; it is served as soon as one of the others ends.
    let channel = Endpoint::from_shared(host.agent()).unwrap().connect_lazy();
    let mut client = vnf_agent::proto::agent::status_service_client::StatusServiceClient::new(channel);
    let waiting = tokio::spawn(async move { client.get_agent(pb::GetAgentRequest {}).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    drop(silent.pop());
    assert!(waiting.await.unwrap().is_ok());
}
