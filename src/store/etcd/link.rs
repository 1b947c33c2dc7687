//! The connection for writes and single reads: opened when needed, to an endpoint that proved that it hears the majority.

use std::sync::Arc;

use etcd_client::{Client, Error, GetOptions};
use tokio::sync::Mutex;

use super::Access;
use super::error::{Failure, Kind, within};
use super::options::{CALL_LIMIT, Fingerprint};

/// A connection that replaces itself.
pub(super) struct Link {
    access: Arc<Access>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    open: Option<(Client, Fingerprint)>,
    /// Which endpoint is tried next.
    turn: usize,
}

impl Link {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self { access, slot: Mutex::default() }
    }

    /// Makes one call with a deadline. After silence or an error of the transport, the next call goes to another endpoint.
    pub(super) async fn call<T, F>(&self, attempted: &str, call: impl FnOnce(Client) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let client = self.client(attempted).await?;
        let answer = within(CALL_LIMIT, attempted, call(client)).await;
        if let Err(failure) = &answer {
            self.note(failure).await;
        }
        answer
    }

    /// A connection for a longer conversation; its failures are to be noted.
    pub(super) async fn client(&self, attempted: &str) -> Result<Client, Failure> {
        let mut last = None;
        let found = tokio::time::timeout(CALL_LIMIT, async {
            let mut slot = self.slot.lock().await;
            let files = self.access.options.fingerprint();
            if let Some((client, _)) = slot.open.as_ref().filter(|(_, known)| *known == files) {
                return Ok(client.clone());
            }
            slot.open = None;
            for _ in &self.access.options.endpoints {
                match self.open_next(&mut slot).await {
                    Ok(client) => {
                        slot.open = Some((client.clone(), files));
                        return Ok(client);
                    }
                    Err(failure) => last = Some(failure),
                }
            }
            Err(())
        });
        match found.await {
            Ok(Ok(client)) => Ok(client),
            _ => {
                let cause = last.map_or_else(|| format!("no answer within {} s", CALL_LIMIT.as_secs()), |failure| failure.cause);
                Err(Failure::unreachable(attempted, cause))
            }
        }
    }

    /// Leaves the connection after a failure that another one might not have.
    pub(super) async fn note(&self, failure: &Failure) {
        if matches!(failure.kind, Kind::Unreachable | Kind::Silent) {
            self.slot.lock().await.open = None;
        }
    }

    async fn open_next(&self, slot: &mut Slot) -> Result<Client, Failure> {
        let endpoints = &self.access.options.endpoints;
        let endpoint = &endpoints[slot.turn % endpoints.len()];
        // Before the attempt: when it is given up half way, the next one begins elsewhere.
        slot.turn += 1;
        let client = self.access.options.connect(endpoint).await?;
        // Linearizable, so a member that is cut off from the others does not pass; whether it lets us read this key does not matter.
        let probe = client.kv_client().get(self.access.prefix.as_str(), Some(GetOptions::new().with_count_only())).await;
        match probe.map_err(|error| Failure::new("connect to etcd", &error)) {
            Err(failure) if failure.kind != Kind::Refused => Err(failure),
            _ => Ok(client),
        }
    }
}
