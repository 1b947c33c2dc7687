//! Follows the statuses of an agent as any client does, and notes when each one came.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use tonic::Streaming;
use vnf_agent::proto::agent::interface_event::Kind;
use vnf_agent::proto::agent::status_service_client::StatusServiceClient;
use vnf_agent::proto::agent::{InterfaceEvent, InterfaceStatus, WatchRequest};

use crate::bed::LIMIT;

/// Begins to watch the interfaces, as soon as the agent's socket is there.
pub async fn watch(socket: &Path) -> Streaming<InterfaceEvent> {
    let start = Instant::now();
    loop {
        if let Ok(mut client) = StatusServiceClient::connect(format!("unix:{}", socket.display())).await
            && let Ok(stream) = client.watch_interfaces(WatchRequest::default()).await
        {
            return stream.into_inner();
        }
        assert!(start.elapsed() < LIMIT, "the agent does not answer on {}", socket.display());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The latest status of every interface.
pub struct Follower {
    events: Receiver<(Instant, InterfaceEvent)>,
    known: HashMap<String, InterfaceStatus>,
}

impl Follower {
    /// Follows the agent with this socket until that agent ends.
    pub fn start(socket: PathBuf) -> Self {
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || follow(&socket, &sender));
        Self { events, known: HashMap::new() }
    }

    fn take(&mut self, end: Instant) -> (Instant, String, Option<InterfaceStatus>) {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (at, event) = self.events.recv_timeout(left).expect("the agent tells of changes in time");
            match event.kind() {
                Kind::SnapshotBegin => self.known.clear(),
                Kind::SnapshotEnd => {}
                _ => {
                    let before = match event.status {
                        Some(status) => self.known.insert(event.name.clone(), status),
                        None => self.known.remove(&event.name),
                    };
                    return (at, event.name, before);
                }
            }
        }
    }

    /// Waits until the statuses of exactly so many interfaces are like this; returns when that became true.
    pub fn until_count(&mut self, wanted: usize, good: impl Fn(&InterfaceStatus) -> bool) -> Instant {
        let end = Instant::now() + LIMIT;
        let mut count = self.known.values().filter(|status| good(status)).count();
        let mut last = Instant::now();
        while count != wanted {
            let (at, name, before) = self.take(end);
            count += usize::from(self.known.get(&name).is_some_and(&good));
            count -= usize::from(before.is_some_and(|status| good(&status)));
            last = at;
        }
        last
    }
}

fn follow(socket: &Path, events: &Sender<(Instant, InterfaceEvent)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = watch(socket).await;
        while let Ok(Some(event)) = stream.message().await {
            if events.send((Instant::now(), event)).is_err() {
                return;
            }
        }
    });
}
