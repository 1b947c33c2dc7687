//! HTTP: probes and their rules, metrics, the status, and requests that are not for us.
#![allow(clippy::unwrap_used, reason = "a test may end here")]

mod api_support;

use std::sync::atomic::Ordering;

use api_support::{Host, configured, healthy, pending};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use vnf_agent::api::context::now;
use vnf_agent::configurator::published::Hold;
use vnf_agent::model::Timestamp;
use vnf_agent::store::StoreHealth;

struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn start(kind: &'static str) -> Host {
    Host::with(kind, |o| o.http_listen = Some("127.0.0.1:0".parse().unwrap())).await
}

async fn get(host: &Host, path: &str) -> Answer {
    get_as(host, path, "localhost").await
}

async fn get_as(host: &Host, path: &str, name: &str) -> Answer {
    let mut stream = tokio::net::TcpStream::connect(host.serving.http_addr.unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_lowercase(), body: body.to_owned() }
}

async fn not_ready(host: &Host) -> String {
    let answer = get(host, "/readiness").await;
    assert_eq!(answer.code, 503);
    assert!(!answer.json()["message"].as_str().unwrap().is_empty());
    answer.json()["reason"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn readiness() {
    let host = start("etcd").await;
    assert_eq!(get(&host, "/readiness").await.code, 200);
    host.published.first_listing_applied.send_replace(false);
    assert_eq!(not_ready(&host).await, "NOT_LISTED");
    host.published.first_listing_applied.send_replace(true);
    let ago = |millis| Some(Timestamp(now().0 - millis));
    // A connection that is lost for a moment is no reason; silence is, whatever the connection looks like.
    host.health.send_replace(StoreHealth { live: false, last_heard: ago(15_000), ..healthy("etcd") });
    assert_eq!(get(&host, "/readiness").await.code, 200);
    for live in [true, false] {
        host.health.send_replace(StoreHealth { live, last_heard: ago(21_000), ..healthy("etcd") });
        assert_eq!(not_ready(&host).await, "STORE_SILENT");
    }
    host.health.send_replace(healthy("etcd"));
    host.published.hold.send_replace(Some(Hold { why: "w".to_owned(), since: now(), kept: Vec::new() }));
    assert_eq!(not_ready(&host).await, "HOLD");
    host.published.hold.send_replace(None);
    // Single objects do not count.
    host.publish([pending("a")]);
    assert_eq!(get(&host, "/readiness").await.code, 200);
}

#[tokio::test]
async fn an_embedded_store_is_never_silent() {
    let host = start("embedded").await;
    host.health.send_replace(StoreHealth { last_heard: None, since: Timestamp(0), ..healthy("embedded") });
    assert_eq!(get(&host, "/readiness").await.code, 200);
    host.health.send_replace(StoreHealth { live: false, last_heard: None, since: Timestamp(0), ..healthy("embedded") });
    assert_eq!(not_ready(&host).await, "STORE_SILENT");
}

#[tokio::test]
async fn liveness_knows_only_the_heartbeat() {
    let host = start("etcd").await;
    host.health.send_replace(StoreHealth { live: false, last_heard: None, since: Timestamp(0), ..healthy("etcd") });
    assert_eq!(get(&host, "/liveness").await.code, 200);
    host.published.heartbeat.store(now().0 - 50_000, Ordering::Release);
    assert_eq!(get(&host, "/liveness").await.code, 200);
    host.published.heartbeat.store(now().0 - 61_000, Ordering::Release);
    let dead = get(&host, "/liveness").await;
    assert_eq!((dead.code, dead.json()["alive"].as_bool()), (503, Some(false)));
}

#[tokio::test]
async fn metrics() {
    let host = start("etcd").await;
    host.publish([configured("secretname"), pending("b"), pending("c")]);
    host.published.count_pass(std::time::Duration::from_millis(1500));
    host.published.counters.steps_failed.store(4, Ordering::Relaxed);
    host.published.kernel.lock().unwrap().writes = 9;
    let answer = get(&host, "/metrics").await;
    assert!(answer.head.contains("application/openmetrics-text"), "{}", answer.head);
    for line in [
        "vnf_agent_passes_total 1",
        "vnf_agent_pass_seconds_total 1.5",
        "vnf_agent_steps_total{outcome=\"failed\"} 4",
        "vnf_agent_interfaces{state=\"PENDING\"} 2.0",
        "vnf_agent_interfaces{state=\"FAILED\"} 0.0",
        "vnf_agent_kernel_writes_total 9",
        "vnf_agent_store_live 1.0",
        "vnf_agent_ready 1.0",
        "vnf_agent_hold 0.0",
        "# EOF",
    ] {
        assert!(answer.body.lines().any(|l| l == line), "{line} in\n{}", answer.body);
    }
    assert!(answer.body.contains("vnf_agent_process_open_fds "), "{}", answer.body);
    assert!(!answer.body.contains("secretname"));
}

#[tokio::test]
async fn status_is_what_grpc_and_etcd_say() {
    let host = start("etcd").await;
    host.publish([configured("a"), pending("b")]);
    let answer = get(&host, "/status").await;
    let json = answer.json();
    assert_eq!(json["interfaces"][1], serde_json::to_value(pending("b")).unwrap());
    assert_eq!((json["agent"]["label"].as_str(), json["agent"]["state"].as_str()), (Some("vpp1"), Some("OK")));
    for header in ["x-content-type-options: nosniff", "content-security-policy: default-src 'none'", "cache-control: no-store"] {
        assert!(answer.head.contains(header), "{}", answer.head);
    }
}

#[tokio::test]
async fn other_hosts_names_are_refused() {
    let host = start("etcd").await;
    for ours in ["127.0.0.1", "localhost:9191", "[::1]:1"] {
        assert_eq!(get_as(&host, "/liveness", ours).await.code, 200, "{ours}");
    }
    for other in ["evil.example", "evil.example:9191", "10.1.1.1"] {
        let answer = get_as(&host, "/status", other).await;
        assert_eq!((answer.code, answer.body.contains("vpp1")), (421, false), "{other}");
        assert!(answer.head.contains("nosniff"));
    }
    assert_eq!(get(&host, "/").await.code, 404);
}
