//! `status --watch`: what is there, then changes as they come, over restarts of the agent.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crate::cli::client::{Agent, Client};
use crate::cli::out::Out;
use crate::cli::{Failure, render, text};
use crate::proto::agent as pb;
use crate::proto::agent::interface_event::Kind;
use crate::proto::json::to_value;

/// How long to wait before the agent is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What has been printed, and where to go on.
struct Watch<'a> {
    out: Out,
    names: &'a [String],
    known: BTreeMap<String, pb::InterfaceStatus>,
    /// Names that a snapshot has not shown yet: at its end they are gone.
    unseen: Option<BTreeMap<String, pb::InterfaceStatus>>,
    resume: pb::WatchRequest,
}

/// Prints until nobody reads any more. Only a first connection that fails is an error; later ones are made again.
pub async fn watch(agent: &Agent, out: Out, names: &[String]) -> Result<(), Failure> {
    let mut watch = Watch { out, names, known: BTreeMap::new(), unseen: None, resume: pb::WatchRequest::default() };
    let mut client = Some(agent.connect().await?);
    let mut said = false;
    loop {
        let ended = match client.take() {
            Some(connected) => {
                said = false;
                watch.follow(connected, agent).await
            }
            None => agent.connect().await.map(|connected| client = Some(connected)),
        };
        match ended {
            Ok(()) => continue,
            Err(Failure::Unreachable(why) | Failure::Refused(why)) if !said => {
                said = true;
                // Standard output belongs to the statuses.
                let _ = writeln!(std::io::stderr(), "vnfctl: {}; trying again", text::safe(&why));
            }
            Err(Failure::Unreachable(_) | Failure::Refused(_)) => {}
            Err(other) => return Err(other),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Watch<'_> {
    /// Follows one stream to its end.
    async fn follow(&mut self, mut client: Client, agent: &Agent) -> Result<(), Failure> {
        let mut events = client.status.watch_interfaces(self.resume.clone()).await.map_err(|s| agent.failure(&s))?.into_inner();
        loop {
            match events.message().await {
                Ok(Some(event)) => self.event(event)?,
                Ok(None) => return Err(Failure::Unreachable("the agent ended the watch".to_owned())),
                Err(status) => {
                    if status.code() == tonic::Code::Aborted {
                        self.resume = pb::WatchRequest::default();
                    }
                    return Err(agent.failure(&status));
                }
            }
        }
    }

    fn event(&mut self, event: pb::InterfaceEvent) -> Result<(), Failure> {
        match event.kind() {
            Kind::SnapshotBegin => self.unseen = Some(self.known.clone()),
            Kind::SnapshotEnd => {
                for name in self.unseen.take().unwrap_or_default().into_keys() {
                    self.removed(&name, &event)?;
                }
            }
            Kind::Added | Kind::Changed => self.changed(&event)?,
            Kind::Removed => self.removed(&event.name.clone(), &event)?,
            Kind::Unspecified => {}
        }
        self.resume = pb::WatchRequest { run_id: event.run_id, sequence: event.sequence };
        Ok(())
    }

    fn changed(&mut self, event: &pb::InterfaceEvent) -> Result<(), Failure> {
        let Some(status) = &event.status else { return Ok(()) };
        if let Some(unseen) = &mut self.unseen {
            unseen.remove(&event.name);
        }
        let known = self.known.insert(event.name.clone(), status.clone());
        // After a restart the snapshot repeats what has been printed.
        if known.as_ref() == Some(status) || !self.wanted(&event.name) {
            return Ok(());
        }
        self.out.next(|| to_value(event), |out| render::change(out, &event.name, Some(status)))
    }

    fn removed(&mut self, name: &str, event: &pb::InterfaceEvent) -> Result<(), Failure> {
        self.known.remove(name);
        if !self.wanted(name) {
            return Ok(());
        }
        let event = pb::InterfaceEvent { kind: Kind::Removed.into(), name: name.to_owned(), status: None, ..event.clone() };
        self.out.next(|| to_value(&event), |out| render::change(out, name, None))
    }

    fn wanted(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|n| n == name)
    }
}
