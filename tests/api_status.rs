//! `StatusService` through a real client: shapes, pages, filters, watches that resume.
#![allow(clippy::unwrap_used, reason = "a test may end here")]

mod api_support;

use std::sync::Arc;

use api_support::{Host, configured, index_entry, pending};
use serde_json::json;
use tonic::Code;
use vnf_agent::configurator::published::{Hold, NamespaceEntry, PassRecord, StepRecord};
use vnf_agent::model::{FieldError, InterfaceStatus, Reason, State, Timestamp};
use vnf_agent::proto::agent as pb;
use vnf_agent::proto::agent::interface_event::Kind;
use vnf_agent::proto::json::to_value;

fn name(n: usize) -> String {
    format!("veth{n:04}")
}

#[tokio::test]
async fn a_status_has_the_contracts_shape() {
    let host = Host::start().await;
    host.publish([configured("veth1")]);
    let mut client = host.status().await;
    let status = client.get_interface(pb::GetInterfaceRequest { name: "veth1".to_owned() }).await.unwrap().into_inner();
    let expected = json!({
        "name": "veth1", "state": "CONFIGURED", "reason": "", "message": "",
        "host_if_name": "eth1", "if_index": 7, "namespace": {"kind": "MICROSERVICE", "reference": "ms1", "inode": 4026532301_u64},
        "admin": "UP", "oper": "UP", "mtu": 1500, "phys_address": "02:00:00:00:00:01",
        "ip_addresses": ["10.0.0.1/24"], "peer": "veth2",
        "extra_addresses": [], "waits_for": [], "warnings": [], "errors": [],
        "attempt": 0, "next_retry": null, "revision": 812, "since": "2026-01-01T00:00:00Z"
    });
    // As text, so that the order of the fields counts too.
    assert_eq!(to_value(&status).to_string(), expected.to_string());
    let missing = client.get_interface(pb::GetInterfaceRequest { name: "a\nb".to_owned() }).await.unwrap_err();
    assert_eq!((missing.code(), missing.message()), (Code::NotFound, r"no interface `a\nb` is configured"));
}

#[tokio::test]
async fn grpc_and_etcd_show_the_same() {
    let error = FieldError {
        reason: Reason::BadMtu,
        field: "mtu".to_owned(),
        value: "10".to_owned(),
        rule: "68 to 65535".to_owned(),
        hint: "choose 1500".to_owned(),
    };
    let everything = InterfaceStatus {
        reason: Some(Reason::BadMtu),
        message: "mtu".to_owned(),
        errors: vec![error],
        warnings: vec!["w".to_owned()],
        extra_addresses: vec![api_support::address("fd00::1/64")],
        attempt: 3,
        next_retry: Some(Timestamp(1_767_225_600_250)),
        ..pending("a/b")
    };
    let host = Host::start().await;
    let mut client = host.status().await;
    for state in State::ALL {
        let status = InterfaceStatus { state, ..everything.clone() };
        host.publish([status.clone()]);
        let answer = client.get_interface(pb::GetInterfaceRequest { name: "a/b".to_owned() }).await.unwrap().into_inner();
        assert_eq!(to_value(&answer).to_string(), serde_json::to_string(&status).unwrap());
    }
}

#[tokio::test]
async fn pages_and_filters() {
    let host = Host::start().await;
    host.publish((0..1200).map(|n| if n % 2 == 0 { configured(&name(n)) } else { pending(&name(n)) }));
    host.publish([configured("other")]);
    let mut client = host.status().await;
    let mut request = pb::ListInterfacesRequest { prefix: "veth".to_owned(), page_size: 500, ..Default::default() };
    let (mut names, mut sizes) = (Vec::new(), Vec::new());
    loop {
        let page = client.list_interfaces(request.clone()).await.unwrap().into_inner();
        sizes.push(page.interfaces.len());
        names.extend(page.interfaces.into_iter().map(|s| s.name));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(sizes, [500, 500, 200]);
    assert_eq!(names, (0..1200).map(name).collect::<Vec<_>>());
    let states = vec![pb::State::Pending.into()];
    let page =
        client.list_interfaces(pb::ListInterfacesRequest { states, page_size: 5000, ..Default::default() }).await.unwrap().into_inner();
    assert_eq!(page.interfaces.len(), 600);
    let namespace = Some(pb::NamespaceFilter { kind: "microservice".to_owned(), reference: "ms1".to_owned(), inode: 0 });
    let request = pb::ListInterfacesRequest { namespace, page_size: 5000, ..Default::default() };
    assert_eq!(client.list_interfaces(request).await.unwrap().into_inner().interfaces.len(), 601);
    // An exact end is not followed by an empty page.
    let request = pb::ListInterfacesRequest { prefix: "other".to_owned(), page_size: 1, ..Default::default() };
    assert_eq!(client.list_interfaces(request).await.unwrap().into_inner().next_page_token, "");
}

type Seen = (Kind, u64, String);

async fn take(events: &mut tonic::Streaming<pb::InterfaceEvent>, count: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let e = tokio::time::timeout(std::time::Duration::from_secs(60), events.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(e.status.is_some(), matches!(e.kind(), Kind::Added | Kind::Changed));
        seen.push((e.kind(), e.sequence, e.name));
    }
    seen
}

fn seen(kind: Kind, sequence: u64, name: &str) -> Seen {
    (kind, sequence, name.to_owned())
}

#[tokio::test]
async fn a_watch_resumes_and_notices_a_restart() {
    let host = Host::start().await;
    host.publish([configured("a"), configured("b")]);
    let mut client = host.status().await;
    let mut events = client.watch_interfaces(pb::WatchRequest::default()).await.unwrap().into_inner();
    let snapshot = [seen(Kind::SnapshotBegin, 0, ""), seen(Kind::Added, 0, "a"), seen(Kind::Added, 0, "b"), seen(Kind::SnapshotEnd, 2, "")];
    assert_eq!(take(&mut events, 4).await, snapshot);
    host.publish([pending("a"), configured("c")]);
    host.remove("b");
    let changes = [seen(Kind::Changed, 3, "a"), seen(Kind::Added, 4, "c"), seen(Kind::Removed, 5, "b")];
    assert_eq!(take(&mut events, 3).await, changes);

    let run_id = host.context.run_id.clone();
    let mut events = client.watch_interfaces(pb::WatchRequest { run_id, sequence: 3 }).await.unwrap().into_inner();
    assert_eq!(take(&mut events, 3).await, [seen(Kind::SnapshotEnd, 3, ""), changes[1].clone(), changes[2].clone()]);

    let other = pb::WatchRequest { run_id: "another run".to_owned(), sequence: 3 };
    let mut events = client.watch_interfaces(other).await.unwrap().into_inner();
    assert_eq!(take(&mut events, 2).await, [seen(Kind::SnapshotBegin, 0, ""), seen(Kind::Added, 0, "a")]);

    let future = pb::WatchRequest { run_id: host.context.run_id.clone(), sequence: 99 };
    let mut events = client.watch_interfaces(future).await.unwrap().into_inner();
    assert_eq!(take(&mut events, 1).await, [seen(Kind::SnapshotBegin, 0, "")]);

    host.stop().await;
    take(&mut events, 3).await;
    let end = events.message().await.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable, "{end}");
}

#[tokio::test]
async fn a_watch_that_falls_behind_is_told_so() {
    let host = Host::start().await;
    let mut client = host.status().await;
    let mut events = client.watch_interfaces(pb::WatchRequest::default()).await.unwrap().into_inner();
    // Far more than the log and the buffers of the connection hold.
    for _ in 0..40 {
        host.publish((0..10_000).map(|_| configured("a")));
    }
    let end = loop {
        match events.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::Aborted, "{end}");
    assert!(end.message().contains("watch again"), "{end}");
}

#[tokio::test]
async fn the_index() {
    let host = Host::start().await;
    let entry = |name: &str, cookie, ifindex, ms: &str| (Arc::from(name), Some(index_entry(name, cookie, ifindex, ms)));
    host.published.index.publish([entry("a", 1, 5, "ms1"), entry("b", 2, 5, "ms2"), entry("c", 2, 6, "ms2")]);
    let mut client = host.status().await;
    let by_name = |name: &str| pb::LookupIndexRequest { by: Some(pb::lookup_index_request::By::Name(name.to_owned())) };
    let a = client.lookup_index(by_name("a")).await.unwrap().into_inner();
    assert_eq!((a.if_index, a.host_if_name.as_str(), a.netns_cookie, a.peer.as_str()), (5, "eth0", 1, "peer"));
    assert_eq!(client.lookup_index(by_name("x")).await.unwrap_err().code(), Code::NotFound);
    let by_link = |kind: &str, reference: &str, inode, if_index| {
        let namespace = Some(pb::NamespaceFilter { kind: kind.to_owned(), reference: reference.to_owned(), inode });
        pb::LookupIndexRequest { by: Some(pb::lookup_index_request::By::Link(pb::lookup_index_request::Link { namespace, if_index })) }
    };
    assert_eq!(client.lookup_index(by_link("", "", 4_026_532_002, 5)).await.unwrap().into_inner().name, "b");
    assert_eq!(client.lookup_index(by_link("MICROSERVICE", "ms2", 0, 6)).await.unwrap().into_inner().name, "c");
    assert_eq!(client.lookup_index(by_link("MICROSERVICE", "ms1", 0, 6)).await.unwrap_err().code(), Code::NotFound);
    // An index alone says nothing: it counts within one namespace.
    assert_eq!(client.lookup_index(by_link("", "", 0, 5)).await.unwrap_err().code(), Code::InvalidArgument);
    let list = pb::ListIndexRequest { microservice: "ms2".to_owned(), page_size: 1, ..Default::default() };
    let page = client.list_index(list).await.unwrap().into_inner();
    assert_eq!((page.entries[0].name.as_str(), page.next_page_token.as_str()), ("b", "b"));

    let mut events = client.watch_index(pb::WatchRequest::default()).await.unwrap().into_inner();
    host.published.index.publish([entry("a", 1, 9, "ms1"), (Arc::from("b"), None), entry("d", 1, 10, "ms1")]);
    let mut kinds = Vec::new();
    while kinds.len() < 8 {
        let event = events.message().await.unwrap().unwrap();
        kinds.push((event.kind().as_str_name(), event.name));
    }
    let tail: Vec<_> = kinds[5..].iter().map(|(k, n)| (*k, n.as_str())).collect();
    assert_eq!(kinds[0].0, "SNAPSHOT_BEGIN");
    assert_eq!(kinds[4].0, "SNAPSHOT_END");
    assert_eq!(tail, [("UPDATED", "a"), ("UNREGISTERED", "b"), ("REGISTERED", "d")]);
}

#[tokio::test]
async fn namespaces_history_and_the_agent() {
    let host = Host::start().await;
    let namespace = NamespaceEntry {
        kind: "NAMED",
        reference: "red".to_owned(),
        state: "MISSING",
        message: "there is no /var/run/netns/red".to_owned(),
        cookie: 0,
        inode: 0,
        since: Timestamp(1_767_225_600_000),
        interfaces: 2,
        replaced: 1,
        container_id: "c0ffee".to_owned(),
        container_name: "web".to_owned(),
        container_started: Some(Timestamp(1_767_225_600_000)),
        other_containers: vec!["decaf".to_owned()],
    };
    host.published.namespaces.publish([("NAMED red".into(), Some(namespace.clone()))]);
    let mut client = host.status().await;
    let list = client.list_namespaces(pb::ListNamespacesRequest {}).await.unwrap().into_inner().namespaces;
    assert_eq!(to_value(&list[0]), serde_json::to_value(&namespace).unwrap());

    let pass = |sequence| PassRecord {
        sequence,
        started: Timestamp(1_767_225_600_000),
        elapsed_us: 1200,
        triggers: vec!["store"],
        drift: vec!["veth1: mtu 1500 -> 1400".to_owned()],
        steps: vec![StepRecord { step: "create veth".into(), outcome: "done".into() }],
    };
    (1..=60).for_each(|n| host.published.record(pass(n)));
    let passes = client.list_history(pb::ListHistoryRequest { limit: 2 }).await.unwrap().into_inner().passes;
    assert_eq!(passes.iter().map(|p| p.sequence).collect::<Vec<_>>(), [60, 59]);
    assert_eq!(to_value(&passes[0]), serde_json::to_value(pass(60)).unwrap());
    assert_eq!(client.list_history(pb::ListHistoryRequest::default()).await.unwrap().into_inner().passes.len(), 50);

    host.publish([configured("a"), pending("b"), pending("c")]);
    host.published.applied_revision.send_replace(12);
    let agent = client.get_agent(pb::GetAgentRequest {}).await.unwrap().into_inner();
    assert!(agent.ready && agent.hold.is_none(), "{agent:?}");
    assert_eq!((agent.label.as_str(), agent.state().as_str_name(), agent.applied_revision, agent.namespaces), ("vpp1", "OK", 12, 1));
    assert_eq!(agent.run_id, host.context.run_id);
    let counts: Vec<_> = agent.interfaces.iter().map(|c| (c.state().as_str_name(), c.count)).collect();
    assert_eq!(counts, [("CONFIGURED", 1), ("PENDING", 2)]);
    let hold = Hold { why: "the store is another one".to_owned(), since: Timestamp(1000), kept: vec!["x".to_owned()] };
    host.published.hold.send_replace(Some(hold));
    let agent = client.get_agent(pb::GetAgentRequest {}).await.unwrap().into_inner();
    assert_eq!((agent.ready, agent.reason.as_str(), agent.state().as_str_name()), (false, "HOLD", "ERROR"));
    assert_eq!(agent.hold.unwrap().kept, ["x"]);
}
