//! `ConfigService`: writes to the store and reads of it. What is written comes back through the store's watch; nothing goes around it.

use std::sync::Arc;

use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Response, Status};

use crate::api::context::{Context, now};
use crate::api::convert;
use crate::api::grpc::settle::{self, Touched, node_status_of, settle, status_of};
use crate::api::grpc::status::page_size;
use crate::api::grpc::{Access, keys};
use crate::api::listen::Peer;
use crate::model::InterfaceStatus;
use crate::model::key::{AGENT_STATUS_KEY, ENTITY_STATUS_PREFIX, INTERFACE_STATUS_PREFIX, NODE_STATUS_PREFIX};
use crate::proto::agent as pb;
use crate::proto::agent::config_service_server::ConfigService;
use crate::proto::json::to_value;
use crate::store::{StoreError, Write};

/// Most bytes of values on one page, besides its first value: an answer stays within what clients take by default (4 MiB).
const PAGE_BYTES: usize = 2 << 20;

/// The service.
pub struct Service {
    /// What it works with.
    pub context: Arc<Context>,
    /// Whether this listener takes writes.
    pub access: Access,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ConfigService for Service {
    async fn put(&self, request: Request<pb::PutRequest>) -> Answer<pb::WriteResponse> {
        let peer = peer(&request);
        let pb::PutRequest { key, value, wait } = request.into_inner();
        self.write(&peer, vec![(key, Some(value))], wait).await
    }

    async fn delete(&self, request: Request<pb::DeleteRequest>) -> Answer<pb::WriteResponse> {
        let peer = peer(&request);
        let pb::DeleteRequest { key, wait } = request.into_inner();
        self.write(&peer, vec![(key, None)], wait).await
    }

    async fn apply(&self, request: Request<pb::ApplyRequest>) -> Answer<pb::WriteResponse> {
        let peer = peer(&request);
        let pb::ApplyRequest { puts, deletes, wait } = request.into_inner();
        let puts = puts.into_iter().map(|put| (put.key, Some(put.value)));
        self.write(&peer, puts.chain(deletes.into_iter().map(|key| (key, None))).collect(), wait).await
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Answer<pb::KeyValue> {
        let key = keys::relative(&self.context.label, &request.into_inner().key)?;
        let found = match self.own_status(&key) {
            Some(item) => Some(item),
            None => self.context.config.get(&key).await.map_err(|e| refused(&e))?.map(|v| pb::KeyValue {
                key: key.clone(),
                value: v.value,
                create_revision: v.create_revision,
                mod_revision: v.mod_revision,
            }),
        };
        found.map(Response::new).ok_or_else(|| Status::not_found(format!("the store has no key `{}`", key.escape_debug())))
    }

    async fn list(&self, request: Request<pb::ListRequest>) -> Answer<pb::ListResponse> {
        let request = request.into_inner();
        let prefix = keys::relative(&self.context.label, &request.prefix)?;
        let stored = self.context.config.list(&prefix).await.map_err(|e| refused(&e))?;
        let mut items: Vec<pb::KeyValue> = stored
            .into_iter()
            .map(|(key, v)| pb::KeyValue { key, value: v.value, create_revision: v.create_revision, mod_revision: v.mod_revision })
            .collect();
        items.extend(self.own_statuses(&prefix));
        items.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Response::new(page(items, &request.page_token, page_size(request.page_size))))
    }

    async fn resync(&self, request: Request<pb::ResyncRequest>) -> Answer<pb::ResyncResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let accept_removals = request.into_inner().accept_removals;
        tracing::info!(%peer, accept_removals, "resync asked for through the API");
        self.context.requests.resync(accept_removals);
        Ok(Response::new(pb::ResyncResponse {}))
    }

    async fn adopt(&self, request: Request<pb::AdoptRequest>) -> Answer<pb::AdoptResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let name = request.into_inner().name;
        if self.context.published.statuses.get(&name).is_none() {
            let name = name.escape_debug();
            return Err(Status::not_found(format!("no interface `{name}` is configured; write its key first, then adopt the link")));
        }
        tracing::info!(%peer, %name, "adoption asked for through the API");
        self.context.requests.adopt(&name);
        Ok(Response::new(pb::AdoptResponse {}))
    }
}

impl Service {
    async fn write(&self, peer: &Peer, changes: Vec<(String, Option<Vec<u8>>)>, wait: Option<pb::Wait>) -> Answer<pb::WriteResponse> {
        writes_allowed(self.access)?;
        let timeout = wait.as_ref().map(settle::timeout).transpose()?;
        let (mut touched, mut writes): (Vec<Touched>, Vec<Write>) = (Vec::new(), Vec::new());
        for (key, value) in changes {
            let key = if value.is_some() { keys::wish(&self.context.label, &key) } else { keys::writable(&self.context.label, &key) }?;
            touched.push(Touched { key: key.clone(), deleted: value.is_none() });
            writes.push(match value {
                Some(value) => Write::Put(key, value),
                None => Write::Delete(key),
            });
        }
        each_once(&touched)?;
        let revision = self.context.config.write(writes).await.map_err(|e| refused(&e))?;
        tracing::info!(%peer, revision, keys = touched.len(), first = %touched[0].key, "configuration written through the API");
        if let Some(timeout) = timeout {
            settle(&self.context, revision, &touched, timeout).await?;
        }
        let result = |t: Touched| {
            let status = status_of(&self.context, &t.key).map(|s| convert::interface(&s));
            let node = node_status_of(&self.context, &t.key).map(|s| convert::node(&s));
            pb::WriteResult { key: t.key, status, node }
        };
        Ok(Response::new(pb::WriteResponse { revision, results: touched.into_iter().map(result).collect() }))
    }

    /// The embedded store keeps no statuses; they are answered from where they come from. In etcd they stand where they are read.
    fn own_status(&self, key: &str) -> Option<pb::KeyValue> {
        if !self.is_embedded() {
            return None;
        }
        if key == AGENT_STATUS_KEY {
            return Some(self.agent_status());
        }
        if let Some(name) = key.strip_prefix(INTERFACE_STATUS_PREFIX) {
            return self.context.published.statuses.get(name).map(|status| status_item(name, &status));
        }
        self.node_items().into_iter().find(|item| item.key == key)
    }

    fn node_items(&self) -> Vec<pb::KeyValue> {
        let view = self.context.nodes.published.view();
        let item = |prefix: &str, name: &str, value: serde_json::Result<Vec<u8>>| pb::KeyValue {
            key: format!("{prefix}{name}"),
            value: value.unwrap_or_default(),
            create_revision: 0,
            mod_revision: 0,
        };
        let nodes = view.nodes.iter().map(|(name, status)| item(NODE_STATUS_PREFIX, name, serde_json::to_vec(&**status)));
        let entities = view.entities.iter().map(|(name, entity)| item(ENTITY_STATUS_PREFIX, name, serde_json::to_vec(&**entity)));
        nodes.chain(entities).collect()
    }

    fn own_statuses(&self, prefix: &str) -> Vec<pb::KeyValue> {
        if !self.is_embedded() {
            return Vec::new();
        }
        let (_, statuses) = self.context.published.statuses.snapshot();
        let items = statuses.iter().map(|(name, status)| status_item(name, status));
        items.chain([self.agent_status()]).chain(self.node_items()).filter(|item| item.key.starts_with(prefix)).collect()
    }

    fn is_embedded(&self) -> bool {
        self.context.store.borrow().kind == "embedded"
    }

    fn agent_status(&self) -> pb::KeyValue {
        let value = to_value(&self.context.agent_status(now())).to_string().into_bytes();
        pb::KeyValue { key: AGENT_STATUS_KEY.to_owned(), value, create_revision: 0, mod_revision: 0 }
    }
}

/// Refuses what changes something, where this listener takes no writes.
pub(super) fn writes_allowed(access: Access) -> Result<(), Status> {
    match access {
        Access::ReadWrite => Ok(()),
        Access::ReadOnly => Err(Status::permission_denied(
            "this port is read-only: use the agent's unix socket, or start the agent with client certificates (--tls-client-ca) or --grpc-insecure-writes",
        )),
    }
}

pub(super) fn peer<T>(request: &Request<T>) -> Peer {
    let through_tls = || request.extensions().get::<TlsConnectInfo<Peer>>().map(|tls| tls.get_ref().clone());
    request.extensions().get::<Peer>().cloned().or_else(through_tls).unwrap_or(Peer::Unknown)
}

fn status_item(name: &str, status: &InterfaceStatus) -> pb::KeyValue {
    let value = serde_json::to_vec(status).unwrap_or_default();
    pb::KeyValue { key: format!("{INTERFACE_STATUS_PREFIX}{name}"), value, create_revision: 0, mod_revision: 0 }
}

/// Two writes of one key in one transaction have no order.
fn each_once(touched: &[Touched]) -> Result<(), Status> {
    let mut keys: Vec<&str> = touched.iter().map(|t| t.key.as_str()).collect();
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Status::invalid_argument(format!("key `{}` occurs twice in one request", pair[0].escape_debug()))),
        None if keys.is_empty() => Err(Status::invalid_argument("the request writes nothing")),
        None => Ok(()),
    }
}

fn page(items: Vec<pb::KeyValue>, token: &str, size: usize) -> pb::ListResponse {
    let mut rest = items.into_iter().skip_while(|item| !token.is_empty() && item.key.as_str() <= token).peekable();
    let (mut page, mut bytes): (Vec<pb::KeyValue>, usize) = (Vec::new(), 0);
    while let Some(item) = rest.next_if(|item| page.len() < size && (page.is_empty() || bytes + item.value.len() <= PAGE_BYTES)) {
        bytes += item.value.len();
        page.push(item);
    }
    let last = page.last().filter(|_| rest.peek().is_some());
    let next_page_token = last.map(|item| item.key.clone()).unwrap_or_default();
    pb::ListResponse { items: page, next_page_token }
}

fn refused(error: &StoreError) -> Status {
    match error {
        StoreError::Unreachable { .. } => Status::unavailable(error.to_string()),
        StoreError::Refused { .. } => Status::failed_precondition(error.to_string()),
    }
}
