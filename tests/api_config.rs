//! `ConfigService` through a real client: writes, whose keys they are, waits, who may write.
#![allow(clippy::unwrap_used, reason = "a test may end here")]

mod api_support;

use std::time::Duration;

use api_support::{Host, PREFIX, configured, wait};
use tonic::Code;
use tonic::transport::Endpoint;
use vnf_agent::config::GrpcTcp;
use vnf_agent::model::{Reason, State};
use vnf_agent::proto::agent as pb;
use vnf_agent::proto::agent::config_service_client::ConfigServiceClient;
use vnf_agent::proto::agent::status_service_client::StatusServiceClient;

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn put(name: &str, wait: Option<pb::Wait>) -> pb::PutRequest {
    pb::PutRequest { key: key(name), value: format!("{{\"name\":\"{name}\"}}").into_bytes(), wait }
}

#[tokio::test]
async fn what_is_written_can_be_read() {
    let host = Host::start().await;
    let mut client = host.config().await;
    let answer = client.put(put("a", None)).await.unwrap().into_inner();
    assert_eq!((answer.revision, answer.results[0].key.as_str()), (1, "linux/config/v1/interface/a"));
    let whole = pb::PutRequest { key: format!("/vnf-agent/vpp1/{}", key("b")), value: vec![10, 1, b'b'], wait: None };
    assert_eq!(client.put(whole).await.unwrap().into_inner().results[0].key, key("b"));
    let b = client.get(pb::GetRequest { key: format!("/vnf-agent/vpp1/{}", key("b")) }).await.unwrap().into_inner();
    assert_eq!((b.key, b.value, b.mod_revision), (key("b"), vec![10, 1, b'b'], 2));
    let list = client.list(pb::ListRequest { page_size: 1, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!((list.items[0].key.as_str(), list.next_page_token), (key("a").as_str(), key("a")));
    let rest = client.list(pb::ListRequest { page_token: key("a"), ..Default::default() }).await.unwrap().into_inner();
    assert_eq!((rest.items.len(), rest.next_page_token.as_str()), (1, ""));
    let apply = pb::ApplyRequest {
        puts: vec![pb::apply_request::Put { key: key("c"), value: b"{}".to_vec() }],
        deletes: vec![key("a"), key("b")],
        wait: None,
    };
    let answer = client.apply(apply).await.unwrap().into_inner();
    let touched: Vec<&str> = answer.results.iter().map(|r| r.key.as_str()).collect();
    assert_eq!((answer.revision, touched), (3, vec![key("c").as_str(), key("a").as_str(), key("b").as_str()]));
    assert_eq!(client.get(pb::GetRequest { key: key("a") }).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(host.store.writes.lock().unwrap().len(), 3, "one transaction per request");
}

#[tokio::test]
async fn large_values_make_short_pages() {
    let host = Host::start().await;
    let mut client = host.config().await;
    for name in ["a", "b", "c"] {
        let value = vec![b'x'; 1_200_000];
        client.put(pb::PutRequest { key: key(name), value, wait: None }).await.unwrap();
    }
    let page = client.list(pb::ListRequest::default()).await.unwrap().into_inner();
    assert_eq!((page.items.len(), page.next_page_token), (1, key("a")));
    let too_large = pb::PutRequest { key: key("d"), value: vec![b'x'; 5 << 20], wait: None };
    let refused = client.put(too_large).await.unwrap_err();
    assert!(matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted), "{refused}");
}

#[tokio::test]
async fn what_may_not_be_written() {
    let host = Host::start().await;
    let mut client = host.config().await;
    for other in ["/vnf-agent/vpp10/linux/config/v1/interface/a", "linux/status/v1/interface/a", "check/status/v1/agent", "a", ""] {
        let refused = client.put(pb::PutRequest { key: other.to_owned(), value: b"{}".to_vec(), wait: None }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{other}: {refused}");
        assert!(client.delete(pb::DeleteRequest { key: other.to_owned(), wait: None }).await.is_err());
    }
    let twice = pb::apply_request::Put { key: key("a"), value: b"{}".to_vec() };
    let refused = client.apply(pb::ApplyRequest { puts: vec![twice], deletes: vec![key("a")], wait: None }).await.unwrap_err();
    assert!(refused.message().contains("occurs twice"), "{refused}");
    assert_eq!(client.apply(pb::ApplyRequest::default()).await.unwrap_err().code(), Code::InvalidArgument);
    let late = Some(pb::Wait { timeout: Some(prost_types::Duration { seconds: 601, nanos: 0 }) });
    assert_eq!(client.put(put("a", late)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(host.store.writes.lock().unwrap().len(), 0);
    *host.store.refuse.lock().unwrap() = Some("connection refused");
    let refused = client.put(put("a", None)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, "write 1 keys: the store is not reachable: connection refused"));
}

#[tokio::test]
async fn a_wait_ends_when_the_key_has_settled() {
    let host = Host::start().await;
    let mut client = host.config().await;
    host.publish([configured("a")]);
    let waiting = tokio::spawn(async move { client.put(put("a", wait(30))).await });
    // The write has arrived: revision 1; the status is an old one (of revision 0 here).
    host.store.revision.subscribe().wait_for(|r| *r == 1).await.unwrap();
    let publish = |revision, state, attempt| {
        let mut s = configured("a");
        (s.revision, s.state, s.attempt) = (revision, state, attempt);
        s.reason = (state == State::Retrying).then_some(Reason::KernelRefused);
        host.publish([s]);
    };
    publish(0, State::Configured, 0);
    host.published.applied_revision.send_replace(1);
    publish(1, State::Retrying, 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "an old status and one before the first attempt have not settled");
    publish(1, State::Retrying, 1);
    let answer = waiting.await.unwrap().unwrap().into_inner();
    let status = answer.results[0].status.as_ref().unwrap();
    assert_eq!((status.state(), status.attempt, status.revision), (pb::State::Retrying, 1, 1));
}

#[tokio::test]
async fn a_wait_does_not_believe_a_status_before_the_pass() {
    let host = Host::start().await;
    let mut client = host.config().await;
    // As after a restart of the store: a status with a higher revision must not end the wait.
    host.publish([configured("a")]);
    let late = client.put(put("a", wait(1))).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(late.message().contains("revision 1 stands in the store") && late.message().contains("revision 0 only"), "{late}");
    host.published.applied_revision.send_replace(2);
    let late = client.put(put("a", wait(1))).await.unwrap_err();
    assert!(late.message().contains("did not settle: CONFIGURED of revision 812"), "{late}");
    host.published.applied_revision.send_replace(3);
    let late = client.put(put("b", wait(1))).await.unwrap_err();
    assert!(late.message().contains("no status of `linux/config/v1/interface/b`"), "{late}");
}

#[tokio::test]
async fn waits_for_deletes_and_for_many() {
    let host = Host::start().await;
    host.configure_everything();
    let mut client = host.config().await;
    let puts = (0..200).map(|n| pb::apply_request::Put { key: key(&format!("v{n}")), value: b"{}".to_vec() }).collect();
    let answer = client.apply(pb::ApplyRequest { puts, deletes: vec![key("none")], wait: wait(30) }).await.unwrap().into_inner();
    assert_eq!(answer.results.iter().filter(|r| r.status.is_some()).count(), 200);
    let answer = client.delete(pb::DeleteRequest { key: key("v7"), wait: wait(30) }).await.unwrap().into_inner();
    assert!(answer.results[0].status.is_none());
    // What has no status of its own settles when it has been worked on.
    let vpp = pb::PutRequest { key: "vpp/config/v1/interface/t".to_owned(), value: b"{}".to_vec(), wait: wait(30) };
    assert!(client.put(vpp).await.is_ok());
}

#[tokio::test]
async fn requests_reach_the_configurator() {
    let host = Host::start().await;
    let mut client = host.config().await;
    client.resync(pb::ResyncRequest { accept_removals: false }).await.unwrap();
    client.resync(pb::ResyncRequest { accept_removals: true }).await.unwrap();
    assert_eq!(client.adopt(pb::AdoptRequest { name: "a".to_owned() }).await.unwrap_err().code(), Code::NotFound);
    host.publish([configured("a")]);
    client.adopt(pb::AdoptRequest { name: "a".to_owned() }).await.unwrap();
    assert_eq!(*host.requests.0.lock().unwrap(), ["resync false", "resync true", "adopt a"]);
}

#[tokio::test]
async fn statuses_of_the_embedded_store_can_be_read_as_keys() {
    for (kind, there) in [("embedded", true), ("etcd", false)] {
        let host = Host::with(kind, |_| {}).await;
        let mut client = host.config().await;
        client.put(put("a", None)).await.unwrap();
        host.publish([configured("a"), configured("b")]);
        let list = client.list(pb::ListRequest::default()).await.unwrap().into_inner();
        let keys: Vec<&str> = list.items.iter().map(|i| i.key.as_str()).collect();
        let found = client.get(pb::GetRequest { key: "linux/status/v1/interface/b".to_owned() }).await;
        assert_eq!(found.is_ok(), there);
        if there {
            let own = ["linux/config/v1/interface/a", "linux/status/v1/interface/a", "linux/status/v1/interface/b"];
            assert_eq!((keys[0], &keys[1..]), ("check/status/v1/agent", &own[..]));
            assert_eq!(found.unwrap().into_inner().value, serde_json::to_vec(&configured("b")).unwrap());
        } else {
            assert_eq!(keys, ["linux/config/v1/interface/a"]);
        }
    }
}

fn plain(insecure_writes: bool) -> Option<GrpcTcp> {
    Some(GrpcTcp { listen: "127.0.0.1:0".parse().unwrap(), tls: None, insecure_writes })
}

#[tokio::test]
async fn tcp_is_read_only_unless_said_otherwise() {
    for insecure in [false, true] {
        let host = Host::with("etcd", |o| o.grpc = plain(insecure)).await;
        let channel = Endpoint::from_shared(format!("http://{}", host.serving.grpc_addr.unwrap())).unwrap().connect().await.unwrap();
        assert!(StatusServiceClient::new(channel.clone()).get_agent(pb::GetAgentRequest {}).await.is_ok());
        let mut client = ConfigServiceClient::new(channel);
        assert!(client.list(pb::ListRequest::default()).await.is_ok());
        host.publish([configured("a")]);
        let answers = [
            client.put(put("a", None)).await.map(|_| ()),
            client.delete(pb::DeleteRequest { key: key("a"), wait: None }).await.map(|_| ()),
            client.apply(pb::ApplyRequest { deletes: vec![key("a")], ..Default::default() }).await.map(|_| ()),
            client.resync(pb::ResyncRequest::default()).await.map(|_| ()),
            client.adopt(pb::AdoptRequest { name: "a".to_owned() }).await.map(|_| ()),
        ];
        for answer in answers {
            match answer {
                Ok(()) => assert!(insecure),
                Err(status) => assert!(!insecure && status.code() == Code::PermissionDenied, "{status}"),
            }
        }
        assert_eq!(host.store.writes.lock().unwrap().is_empty(), !insecure);
    }
}
