//! `NodeService`: what is told of external nodes, and what may be asked for them.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::config::{peer, writes_allowed};
use crate::api::context::Context;
use crate::api::convert;
use crate::api::grpc::Access;
use crate::external_node::controller::inbox::{DryRun, RollBack};
use crate::external_node::controller::published::{NodesView, OwnNode};
use crate::model::{ExternalEntityReference, Phase};
use crate::proto::agent as pb;
use crate::proto::agent::node_service_server::NodeService;

/// How long an answer may take: the controller may be at work on a NIC.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

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
        let follower = Follower { latest, stop: self.context.stop.clone(), told: Entities::new(), synced: false, waiting: VecDeque::new() };
        let events = stream::unfold(follower, |mut follower| async move { Some((Ok(follower.next().await?), follower)) });
        Ok(Response::new(Box::pin(events)))
    }

    async fn plan_node(&self, request: Request<pb::PlanNodeRequest>) -> Answer<pb::PlanNodeResponse> {
        let pb::PlanNodeRequest { name, value } = request.into_inner();
        if !value.is_empty() {
            return self.dry_run(name, value).await.map(|lines| Response::new(pb::PlanNodeResponse { lines }));
        }
        let view = self.known(&name)?;
        let lines = match (view.own.as_ref().filter(|own| own.name == name), view.nodes.get(&name)) {
            (Some(own), _) if !own.plan.is_empty() => own.plan.clone(),
            (_, Some(status)) if !status.message.is_empty() => vec![format!("nothing is done: {}", status.message)],
            _ => vec!["nothing is done: the agent has not looked yet".to_owned()],
        };
        Ok(Response::new(pb::PlanNodeResponse { lines }))
    }

    async fn confirm_node(&self, request: Request<pb::ConfirmNodeRequest>) -> Answer<pb::ConfirmNodeResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let name = request.into_inner().name;
        let own = self.own(&name)?;
        let already = own.unconfirmed.is_empty();
        if !already {
            tracing::info!(%peer, %name, "a node was confirmed through the API");
            self.context.nodes.inbox.confirm(&name);
        } else if !self.is_attached(&name) {
            let message = format!("nothing is to be confirmed: no NIC of `{}` is behind the bridge", name.escape_debug());
            return Err(Status::failed_precondition(message));
        }
        Ok(Response::new(pb::ConfirmNodeResponse { already }))
    }

    async fn rollback_node(&self, request: Request<pb::RollbackNodeRequest>) -> Answer<pb::RollbackNodeResponse> {
        writes_allowed(self.access)?;
        let peer = peer(&request);
        let name = request.into_inner().name;
        if self.own(&name)?.nics.is_empty() {
            let message = format!("nothing is to be given back: no NIC of `{}` is behind the bridge or on its way", name.escape_debug());
            return Err(Status::failed_precondition(message));
        }
        tracing::info!(%peer, %name, "a node is to be given back, asked for through the API");
        let (answer, told) = oneshot::channel();
        self.context.nodes.inbox.roll_back(RollBack { node: name, answer });
        answered(told, Status::internal).await.map(|()| Response::new(pb::RollbackNodeResponse {}))
    }
}

impl Service {
    fn known(&self, name: &str) -> Result<Arc<NodesView>, Status> {
        let view = self.context.nodes.published.view();
        if view.nodes.contains_key(name) {
            return Ok(view);
        }
        Err(Status::not_found(format!(
            "no node `{}` is configured; write its key, external/config/v1/node/<name>, first, or ask what a wish would do (`vnfctl node plan NAME -f FILE`)",
            name.escape_debug()
        )))
    }

    /// This host's node, if that is the one that is meant.
    fn own(&self, name: &str) -> Result<OwnNode, Status> {
        let view = self.known(name)?;
        let foreign = || {
            let why = view.nodes.get(name).map(|status| status.message.clone()).unwrap_or_default();
            Status::failed_precondition(format!("the node `{}` has no NIC here: {why}", name.escape_debug()))
        };
        view.own.clone().filter(|own| own.name == name).ok_or_else(foreign)
    }

    fn is_attached(&self, name: &str) -> bool {
        let view = self.context.nodes.published.view();
        view.nodes.get(name).is_some_and(|node| node.interfaces.iter().any(|interface| interface.phase == Phase::Attached))
    }

    async fn dry_run(&self, key: String, value: Vec<u8>) -> Result<Vec<String>, Status> {
        let (answer, told) = oneshot::channel();
        self.context.nodes.inbox.dry_run(DryRun { key, value, answer });
        answered(told, Status::invalid_argument).await
    }
}

/// What the controller answers; its refusals become statuses of this kind.
async fn answered<T>(told: oneshot::Receiver<Result<T, String>>, refusal: impl FnOnce(String) -> Status) -> Result<T, Status> {
    match tokio::time::timeout(ANSWER_WITHIN, told).await {
        Ok(Ok(told)) => told.map_err(refusal),
        Ok(Err(_)) => Err(Status::unavailable("the external node cannot be served; the agent's log says why")),
        Err(_) => Err(Status::deadline_exceeded("the agent is busy with a NIC, and takes this up when it is done; ask again")),
    }
}

type Entities = BTreeMap<String, Arc<ExternalEntityReference>>;

/// Follows the entities for one reader: only the latest view is kept for who is slow.
struct Follower {
    latest: watch::Receiver<Arc<NodesView>>,
    stop: CancellationToken,
    told: Entities,
    synced: bool,
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
            let view = self.latest.borrow_and_update().clone();
            self.waiting = events(&self.told, &view.entities);
            self.told.clone_from(&view.entities);
            if view.listed && !std::mem::replace(&mut self.synced, true) {
                self.waiting.push_back(pb::EntityEvent { kind: pb::entity_event::Kind::Synced.into(), entity: None });
            }
        }
    }
}

fn events(known: &Entities, now: &Entities) -> VecDeque<pb::EntityEvent> {
    let event = |kind: pb::entity_event::Kind, entity| pb::EntityEvent { kind: kind.into(), entity };
    let gone = known.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, entity)| {
        let bare = pb::ExternalEntity { name: entity.name.clone(), namespace: entity.namespace.clone(), ..Default::default() };
        event(pb::entity_event::Kind::Removed, Some(bare))
    });
    let set = now.iter().filter(|(key, entity)| known.get(*key) != Some(*entity));
    let set = set.map(|(_, entity)| event(pb::entity_event::Kind::Set, Some(convert::entity(entity))));
    gone.chain(set).collect()
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
    fn only_what_changes_is_told() {
        let kinds = |events: VecDeque<pb::EntityEvent>| -> Vec<(i32, String)> {
            events.into_iter().map(|event| (event.kind, event.entity.map(|entity| entity.name).unwrap_or_default())).collect()
        };
        let first: Entities = [entity("a", "10.0.0.1"), entity("b", "10.0.0.2")].into();
        assert_eq!(kinds(events(&Entities::new(), &first)), [(0, "a".into()), (0, "b".into())]);
        let second: Entities = [entity("a", "10.0.0.9"), entity("c", "10.0.0.3")].into();
        assert_eq!(kinds(events(&first, &second)), [(1, "b".into()), (0, "a".into()), (0, "c".into())]);
        assert!(events(&second, &second).is_empty());
    }
}
