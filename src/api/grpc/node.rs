//! `NodeService`: what is told of external nodes, and what may be asked for them.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use futures::stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::config::{peer, writes_allowed};
use crate::api::context::Context;
use crate::api::convert;
use crate::api::grpc::Access;
use crate::external_node::controller::published::NodesView;
use crate::model::ExternalEntityReference;
use crate::proto::agent as pb;
use crate::proto::agent::node_service_server::NodeService;

/// The service.
pub struct Service {
    /// What it works with.
    pub context: Arc<Context>,
    /// Whether this listener takes writes.
    pub access: Access,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl NodeService for Service {
    type WatchEntitiesStream = Pin<Box<dyn Stream<Item = Result<pb::EntityEvent, Status>> + Send>>;

    async fn list_nodes(&self, _: Request<pb::ListNodesRequest>) -> Answer<pb::ListNodesResponse> {
        let nodes = self.context.nodes.published.view().nodes.values().map(|status| convert::node(status)).collect();
        Ok(Response::new(pb::ListNodesResponse { nodes }))
    }

    async fn watch_entities(&self, _: Request<pb::WatchEntitiesRequest>) -> Answer<Self::WatchEntitiesStream> {
        let mut latest = self.context.nodes.published.subscribe();
        latest.mark_changed();
        let follower = Follower { latest, stop: self.context.stop.clone(), told: None, waiting: VecDeque::new() };
        let events = stream::unfold(follower, |mut follower| async move { Some((Ok(follower.next().await?), follower)) });
        Ok(Response::new(Box::pin(events)))
    }

    async fn plan_node(&self, request: Request<pb::PlanNodeRequest>) -> Answer<pb::PlanNodeResponse> {
        let name = request.into_inner().name;
        let view = self.known(&name)?;
        Ok(Response::new(pb::PlanNodeResponse { lines: view.plans.get(&name).cloned().unwrap_or_default() }))
    }

    async fn confirm_node(&self, request: Request<pb::ConfirmNodeRequest>) -> Answer<pb::ConfirmNodeResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let name = request.into_inner().name;
        self.known(&name)?;
        tracing::info!(%peer, %name, "a node was confirmed through the API");
        self.context.nodes.inbox.confirm(&name);
        Ok(Response::new(pb::ConfirmNodeResponse {}))
    }

    async fn rollback_node(&self, request: Request<pb::RollbackNodeRequest>) -> Answer<pb::RollbackNodeResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let name = request.into_inner().name;
        self.known(&name)?;
        tracing::info!(%peer, %name, "a node is to be given back, asked for through the API");
        self.context.nodes.inbox.roll_back(&name);
        Ok(Response::new(pb::RollbackNodeResponse {}))
    }
}

impl Service {
    fn known(&self, name: &str) -> Result<Arc<NodesView>, Status> {
        let view = self.context.nodes.published.view();
        if view.nodes.contains_key(name) {
            return Ok(view);
        }
        Err(Status::not_found(format!(
            "no node `{}` is configured; write its key, external/config/v1/node/<name>, first",
            name.escape_debug()
        )))
    }
}

type Entities = BTreeMap<String, Arc<ExternalEntityReference>>;

/// Follows the entities for one reader: only the latest view is kept for who is slow.
struct Follower {
    latest: watch::Receiver<Arc<NodesView>>,
    stop: CancellationToken,
    told: Option<Entities>,
    waiting: VecDeque<pb::EntityEvent>,
}

impl Follower {
    /// The next event; `None` after the last.
    async fn next(&mut self) -> Option<pb::EntityEvent> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            // Both arms only wait.
            tokio::select! {
                changed = self.latest.changed() => changed.ok()?,
                () = self.stop.cancelled() => return None,
            }
            let now = self.latest.borrow_and_update().entities.clone();
            self.waiting = events(self.told.as_ref(), &now);
            self.told = Some(now);
        }
    }
}

fn events(before: Option<&Entities>, now: &Entities) -> VecDeque<pb::EntityEvent> {
    let event = |kind: pb::entity_event::Kind, entity| pb::EntityEvent { kind: kind.into(), entity };
    let nothing = Entities::new();
    let known = before.unwrap_or(&nothing);
    let gone = known.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, entity)| {
        let bare = pb::ExternalEntity { name: entity.name.clone(), namespace: entity.namespace.clone(), ..Default::default() };
        event(pb::entity_event::Kind::Removed, Some(bare))
    });
    let set = now.iter().filter(|(key, entity)| known.get(*key) != Some(*entity));
    let set = set.map(|(_, entity)| event(pb::entity_event::Kind::Set, Some(convert::entity(entity))));
    let synced = before.is_none().then(|| event(pb::entity_event::Kind::Synced, None));
    gone.chain(set).chain(synced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(name: &str, ip: &str) -> (String, Arc<ExternalEntityReference>) {
        let reference = ExternalEntityReference {
            name: name.into(),
            namespace: "default".into(),
            external_node: "host1".into(),
            interface: "eth0".into(),
            ips: vec![ip.into()],
            labels: [("app".to_owned(), "db".to_owned())].into(),
        };
        (format!("default/{name}"), Arc::new(reference))
    }

    #[test]
    fn a_whole_and_then_what_changes() {
        let kinds = |events: VecDeque<pb::EntityEvent>| -> Vec<(i32, String)> {
            events.into_iter().map(|event| (event.kind, event.entity.map(|entity| entity.name).unwrap_or_default())).collect()
        };
        let first: Entities = [entity("a", "10.0.0.1"), entity("b", "10.0.0.2")].into();
        assert_eq!(kinds(events(None, &first)), [(0, "a".into()), (0, "b".into()), (2, String::new())]);
        let second: Entities = [entity("a", "10.0.0.9"), entity("c", "10.0.0.3")].into();
        assert_eq!(kinds(events(Some(&first), &second)), [(1, "b".into()), (0, "a".into()), (0, "c".into())]);
        assert!(events(Some(&second), &second).is_empty());
    }
}
