//! HTTP for probes, Prometheus and people with curl. Reads only.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::api::context::{Context, now};
use crate::api::metrics;
use crate::model::InterfaceStatus;
use crate::proto::json::to_value;

/// Nothing here is a page: browsers shall show it to no one else, run nothing, keep nothing.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// All paths, for a listener at this address.
pub fn router(context: Arc<Context>, bound: SocketAddr) -> Router {
    Router::new()
        .route("/liveness", get(liveness))
        .route("/readiness", get(readiness))
        .route("/metrics", get(scrape))
        .route("/status", get(status))
        .layer(middleware::from_fn(move |request, next| guard(bound.ip(), request, next)))
        .with_state(context)
}

/// Refuses requests for other hosts (a page of an attacker whose name leads here), and adds the headers to every answer.
async fn guard(bound: IpAddr, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|h| h.to_str().unwrap_or("\u{fffd}").to_owned());
    let mut response = match host {
        Some(host) if !is_ours(&host, bound) => {
            let error = "the Host header names neither this machine's loopback nor the address that the agent listens on";
            (StatusCode::MISDIRECTED_REQUEST, Json(json!({ "error": error }))).into_response()
        }
        _ => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a Host header means us. A numeric address cannot be re-bound, so on a wildcard address any is taken.
fn is_ours(host: &str, bound: IpAddr) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name);
    match name.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback() || ip == bound || bound.is_unspecified(),
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    }
}

async fn liveness(State(context): State<Arc<Context>>) -> Response {
    match context.liveness(now()) {
        Ok(()) => Json(json!({ "alive": true, "message": "" })).into_response(),
        Err(message) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "alive": false, "message": message }))).into_response(),
    }
}

async fn readiness(State(context): State<Arc<Context>>) -> Response {
    match context.readiness(now()) {
        Ok(()) => Json(json!({ "ready": true, "reason": "", "message": "" })).into_response(),
        Err(n) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "reason": n.reason, "message": n.message }))).into_response()
        }
    }
}

async fn status(State(context): State<Arc<Context>>) -> Json<Value> {
    let (_, statuses) = context.published.statuses.snapshot();
    let interfaces: Vec<&InterfaceStatus> = statuses.iter().map(|(_, s)| &**s).collect();
    Json(json!({ "agent": to_value(&context.agent_status(now())), "interfaces": interfaces }))
}

async fn scrape(State(context): State<Arc<Context>>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(context) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_host_it_is() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        for ours in ["localhost", "LOCALHOST:9191", "127.0.0.1:9191", "127.0.0.1", "[::1]:9191", "[::1]"] {
            assert!(is_ours(ours, loopback), "{ours}");
        }
        for other in ["evil.example", "localhost.evil.example", "10.0.0.1:9191", "127.0.0.1.evil.example:80", "", "\u{fffd}"] {
            assert!(!is_ours(other, loopback), "{other}");
        }
        assert!(is_ours("10.0.0.1:9191", "10.0.0.1".parse().unwrap()));
        assert!(is_ours("10.0.0.1:9191", "0.0.0.0".parse().unwrap()));
        assert!(!is_ours("evil.example", "0.0.0.0".parse().unwrap()));
    }
}
