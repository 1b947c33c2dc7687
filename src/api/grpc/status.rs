//! `StatusService`: reads of the published state.

use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::api::context::{Context, now};
use crate::api::convert;
use crate::api::grpc::watch::{Event, follow};
use crate::configurator::published::IndexEntry;
use crate::model::InterfaceStatus;
use crate::proto::agent as pb;
use crate::proto::agent::status_service_server::StatusService;

const PAGE_DEFAULT: u32 = 500;
const PAGE_LIMIT: u32 = 1000;
const HISTORY_DEFAULT: u32 = 50;

/// The service.
pub struct Service(pub Arc<Context>);

type Events<E> = Pin<Box<dyn Stream<Item = Result<E, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// The number of entries for a page, from what was asked (0: the default).
pub fn page_size(asked: u32) -> usize {
    let size = if asked == 0 { PAGE_DEFAULT } else { asked.min(PAGE_LIMIT) };
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Cuts off what was read beyond a page; the token of the next page is the last key of this one.
pub fn cut<T>(entries: &mut Vec<T>, size: usize, key: impl Fn(&T) -> &str) -> String {
    if entries.len() <= size {
        return String::new();
    }
    entries.truncate(size);
    entries.last().map(|e| key(e).to_owned()).unwrap_or_default()
}

fn token(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[tonic::async_trait]
impl StatusService for Service {
    type WatchInterfacesStream = Events<pb::InterfaceEvent>;
    type WatchIndexStream = Events<pb::IndexEvent>;

    async fn get_agent(&self, _: Request<pb::GetAgentRequest>) -> Answer<pb::AgentStatus> {
        Ok(Response::new(self.0.agent_status(now())))
    }

    async fn get_interface(&self, request: Request<pb::GetInterfaceRequest>) -> Answer<pb::InterfaceStatus> {
        let name = request.into_inner().name;
        match self.0.published.statuses.get(&name) {
            Some(status) => Ok(Response::new(convert::interface(&status))),
            None => Err(Status::not_found(format!("no interface `{}` is configured", name.escape_debug()))),
        }
    }

    async fn list_interfaces(&self, request: Request<pb::ListInterfacesRequest>) -> Answer<pb::ListInterfacesResponse> {
        let request = request.into_inner();
        let states: Vec<pb::State> = request.states().collect();
        let filter = request.namespace.clone().unwrap_or_default();
        let keep = |s: &InterfaceStatus| {
            let n = &s.namespace;
            (states.is_empty() || states.contains(&convert::state(s.state))) && convert::passes(&filter, n.kind, &n.reference, n.inode)
        };
        let size = page_size(request.page_size);
        let mut found = self.0.published.statuses.page(&request.prefix, token(&request.page_token), size + 1, keep);
        let next_page_token = cut(&mut found, size, |(name, _)| name);
        let interfaces = found.iter().map(|(_, status)| convert::interface(status)).collect();
        Ok(Response::new(pb::ListInterfacesResponse { interfaces, next_page_token }))
    }

    async fn watch_interfaces(&self, request: Request<pb::WatchRequest>) -> Answer<Self::WatchInterfacesStream> {
        let run_id = self.0.run_id.clone();
        let events = follow(self.0.clone(), |p| &p.statuses, request.get_ref());
        Ok(Response::new(Box::pin(events.map(move |event| event.map(|e| interface_event(&run_id, e))))))
    }

    async fn list_namespaces(&self, _: Request<pb::ListNamespacesRequest>) -> Answer<pb::ListNamespacesResponse> {
        let (_, entries) = self.0.published.namespaces.snapshot();
        let namespaces = entries.iter().map(|(_, entry)| convert::namespace(entry)).collect();
        Ok(Response::new(pb::ListNamespacesResponse { namespaces }))
    }

    async fn lookup_index(&self, request: Request<pb::LookupIndexRequest>) -> Answer<pb::IndexEntry> {
        use pb::lookup_index_request::By;
        match request.into_inner().by {
            Some(By::Name(name)) => match self.0.published.index.get(&name) {
                Some(entry) => Ok(Response::new(convert::index_entry(&name, &entry))),
                None => Err(Status::not_found(format!("no link of the interface `{}` stands in the kernel", name.escape_debug()))),
            },
            Some(By::Link(link)) => self.lookup_link(&link).map(Response::new),
            None => Err(Status::invalid_argument("give a name, or a namespace and an if_index")),
        }
    }

    async fn list_index(&self, request: Request<pb::ListIndexRequest>) -> Answer<pb::ListIndexResponse> {
        let request = request.into_inner();
        let filter = request.namespace.unwrap_or_default();
        let keep =
            |e: &IndexEntry| (request.microservice.is_empty() || convert::in_microservice(e, &request.microservice)) && lies_in(e, &filter);
        let size = page_size(request.page_size);
        let mut found = self.0.published.index.page("", token(&request.page_token), size + 1, keep);
        let next_page_token = cut(&mut found, size, |(name, _)| name);
        let entries = found.iter().map(|(name, entry)| convert::index_entry(name, entry)).collect();
        Ok(Response::new(pb::ListIndexResponse { entries, next_page_token }))
    }

    async fn watch_index(&self, request: Request<pb::WatchRequest>) -> Answer<Self::WatchIndexStream> {
        let run_id = self.0.run_id.clone();
        let events = follow(self.0.clone(), |p| &p.index, request.get_ref());
        Ok(Response::new(Box::pin(events.map(move |event| event.map(|e| index_event(&run_id, e))))))
    }

    async fn list_history(&self, request: Request<pb::ListHistoryRequest>) -> Answer<pb::ListHistoryResponse> {
        let asked = request.into_inner().limit;
        let limit = if asked == 0 { HISTORY_DEFAULT } else { asked.min(PAGE_LIMIT) };
        let passes = self.0.published.history(usize::try_from(limit).unwrap_or(usize::MAX)).into_iter().map(convert::pass).collect();
        Ok(Response::new(pb::ListHistoryResponse { passes }))
    }
}

impl Service {
    /// The entry with this index in the one namespace that the request names.
    fn lookup_link(&self, link: &pb::lookup_index_request::Link) -> Result<pb::IndexEntry, Status> {
        let filter = link.namespace.clone().unwrap_or_default();
        if filter.inode == 0 && filter.kind.is_empty() {
            return Err(Status::invalid_argument(
                "an if_index counts within one namespace: give the namespace's inode, or its kind and reference",
            ));
        }
        let keep = |e: &IndexEntry| e.link.ifindex.get() == link.if_index && lies_in(e, &filter);
        match self.0.published.index.page("", None, 1, keep).pop() {
            Some((name, entry)) => Ok(convert::index_entry(&name, &entry)),
            None => Err(Status::not_found(format!("no link of ours with index {} stands in that namespace", link.if_index))),
        }
    }
}

fn lies_in(entry: &IndexEntry, filter: &pb::NamespaceFilter) -> bool {
    convert::passes(filter, entry.spec.netns.kind(), &entry.spec.netns.reference(), entry.inode)
}

fn interface_event(run_id: &str, event: Event<InterfaceStatus>) -> pb::InterfaceEvent {
    use pb::interface_event::Kind;
    let (kind, sequence, name, status) = match event {
        Event::Begin => (Kind::SnapshotBegin, 0, String::new(), None),
        Event::Entry(name, status) => (Kind::Added, 0, name.to_string(), Some(status)),
        Event::Complete(sequence) => (Kind::SnapshotEnd, sequence, String::new(), None),
        Event::Change(c) => {
            let kind = match (&c.value, c.known_before) {
                (Some(_), false) => Kind::Added,
                (Some(_), true) => Kind::Changed,
                (None, _) => Kind::Removed,
            };
            (kind, c.sequence, c.key.to_string(), c.value)
        }
    };
    let status = status.map(|s| convert::interface(&s));
    pb::InterfaceEvent { kind: kind.into(), run_id: run_id.to_owned(), sequence, name, status }
}

fn index_event(run_id: &str, event: Event<IndexEntry>) -> pb::IndexEvent {
    use pb::index_event::Kind;
    let (kind, sequence, name, entry) = match event {
        Event::Begin => (Kind::SnapshotBegin, 0, String::new(), None),
        Event::Entry(name, entry) => (Kind::Registered, 0, name.to_string(), Some(entry)),
        Event::Complete(sequence) => (Kind::SnapshotEnd, sequence, String::new(), None),
        Event::Change(c) => {
            let kind = match (&c.value, c.known_before) {
                (Some(_), false) => Kind::Registered,
                (Some(_), true) => Kind::Updated,
                (None, _) => Kind::Unregistered,
            };
            (kind, c.sequence, c.key.to_string(), c.value)
        }
    };
    let entry = entry.map(|e| convert::index_entry(&name, &e));
    pb::IndexEvent { kind: kind.into(), run_id: run_id.to_owned(), sequence, name, entry }
}
