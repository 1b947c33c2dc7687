//! Reads wishes from etcd for as long as the agent lives: lists, watches, doubts, and lists again. It never ends by itself, whatever
//! etcd does, and asks [`Core`] what each message means.

use std::sync::Arc;

use etcd_client::{Client, GetOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::core::{Core, Verdict};
use super::error::{Failure, Kind, within};
use super::heart::{Beat, Counts, Heart, Pulse};
use super::options::{CALL_LIMIT, Fingerprint};
use super::pager::{DECODE_LIMIT, Pager, range_end};
use super::versions::known_faults;
use super::{Access, Timing};
use crate::backoff::{Backoff, chance};
use crate::store::health::Reporter;
use crate::store::{StoreEvent, StoreIdentity, StoreSink};

/// An open connection to one endpoint.
struct Connection {
    client: Client,
    endpoint: String,
    files: Fingerprint,
}

/// Why to list again on a connection that still works.
enum Again {
    /// It was time, or somebody asked.
    Planned,
    /// What the watch says cannot be trusted.
    Doubt(String),
    /// The token ran out.
    Token(String),
}

/// The reader of one agent's prefixes.
pub(super) struct Source {
    access: Arc<Access>,
    timing: Timing,
    core: Core,
    sink: Arc<dyn StoreSink>,
    health: Reporter,
    resync: Arc<Notify>,
    backoff: Backoff,
    /// Which endpoint is tried next.
    turn: usize,
    /// An outage has been logged and is not over.
    troubled: bool,
    /// A doubt has been logged since the last sign of life.
    doubted: bool,
    /// The server version whose faults were logged.
    version: String,
}

impl Source {
    pub(super) fn new(
        access: Arc<Access>,
        timing: Timing,
        prefixes: &[String],
        sink: Arc<dyn StoreSink>,
        health: Reporter,
        resync: Arc<Notify>,
    ) -> Self {
        let core = Core::new(&access.prefix, prefixes);
        // A fleet must not meet at the first endpoint of its common list.
        let turn = chance(access.options.endpoints.len());
        let backoff = Backoff::new();
        Self { access, timing, core, sink, health, resync, backoff, turn, troubled: false, doubted: false, version: String::new() }
    }

    /// Reads until the token is cancelled.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let failure = tokio::select! {
                () = shutdown.cancelled() => return,
                failure = self.session() => failure,
            };
            if failure.kind == Kind::Renew {
                info!(reason = failure.cause, "connecting to etcd anew");
                continue;
            }
            self.trouble(&failure);
            self.turn = (self.turn + 1) % self.access.options.endpoints.len();
            let wait = self.backoff.wait();
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.resync.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// One connection from beginning to end; returns why it ended.
    async fn session(&mut self) -> Failure {
        match self.read().await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    /// Lists and follows, again and again, as long as the connection is of use.
    async fn read(&mut self) -> Result<std::convert::Infallible, Failure> {
        let connection = self.connect().await?;
        loop {
            let again = match self.list(&connection).await {
                Ok(identity) => self.follow(&connection, identity).await?,
                Err(failure) if failure.kind == Kind::Compacted => Again::Doubt(failure.to_string()),
                Err(failure) => return Err(failure),
            };
            match again {
                Again::Planned => debug!(endpoint = connection.endpoint, "listing again"),
                Again::Doubt(why) => {
                    self.doubt(&connection, &why);
                    tokio::time::sleep(self.backoff.wait()).await;
                }
                Again::Token(why) => {
                    debug!(endpoint = connection.endpoint, error = why, "asking for a new token");
                    within(CALL_LIMIT, "ask etcd for a new token", connection.client.refresh_token()).await?;
                    // A token that is not accepted although it is new must not become a tight loop.
                    tokio::time::sleep(self.backoff.wait()).await;
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<Connection, Failure> {
        let options = &self.access.options;
        let endpoint = options.endpoints[self.turn].clone();
        let files = options.fingerprint();
        let client = options.connect(&endpoint).await?;
        let connection = Connection { client, endpoint, files };
        self.greet(&connection).await?;
        Ok(connection)
    }

    /// Reads everything at one revision. `Init` is only said when a first page proves that etcd can be read.
    async fn list(&mut self, connection: &Connection) -> Result<StoreIdentity, Failure> {
        let prefixes: Vec<String> = self.core.prefixes().map(str::to_owned).collect();
        let mut begun: Option<StoreIdentity> = None;
        for (index, prefix) in prefixes.iter().enumerate() {
            let mut pager = Pager::new(&connection.client, prefix, begun.map_or(0, |identity| identity.revision));
            let mut next = pager.next().await?;
            while let Some((identity, page)) = next {
                self.health.heard();
                match begun {
                    None => {
                        begun = Some(identity);
                        self.core.begin(identity);
                        self.sink.deliver(vec![StoreEvent::Init]).await;
                    }
                    Some(first) if first.cluster != identity.cluster => {
                        // Two halves of different truths: to be begun again, like one whose history went away meanwhile.
                        let why = Failure::unreachable(&format!("list {prefix}"), "another etcd cluster answers than before");
                        return Err(Failure { kind: Kind::Compacted, ..why });
                    }
                    Some(_) => {}
                }
                let events = self.core.page(index, page);
                // Asked for before this page is read, so that etcd works meanwhile.
                let (following, ()) = tokio::join!(pager.next(), self.sink.deliver(events));
                next = following?;
            }
        }
        let identity = begun.ok_or_else(|| Failure::unreachable("list", "etcd answered nothing"))?;
        self.sink.deliver(vec![StoreEvent::InitDone(identity)]).await;
        self.health.read_up_to(identity.revision);
        Ok(identity)
    }

    /// Follows the changes after a listing until it must be repeated (`Ok`) or the connection is of no more use (`Err`).
    async fn follow(&mut self, connection: &Connection, identity: StoreIdentity) -> Result<Again, Failure> {
        let attempted = format!("watch {}", self.access.prefix);
        let mut watch = self.open_watch(connection, identity.revision + 1, &attempted).await?;
        let resync = Arc::clone(&self.resync);
        let relist = tokio::time::sleep(self.timing.next_listing());
        tokio::pin!(relist);
        let mut heart = Heart::new(&self.timing);
        loop {
            let verdict = tokio::select! {
                message = watch.message() => match message {
                    Ok(Some(message)) => self.core.watch(message.0),
                    Ok(None) => return Err(Failure::unreachable(&attempted, "etcd closed the watch")),
                    Err(error) => return Err(Failure::new(&attempted, &error)),
                },
                pulse = heart.next() => match self.feel(connection, &mut heart, pulse)? {
                    Some(verdict) => verdict,
                    None => continue,
                },
                () = &mut relist => return Ok(Again::Planned),
                () = resync.notified() => return Ok(Again::Planned),
            };
            if let Some(again) = self.obey(connection, verdict, &attempted).await? {
                return Ok(again);
            }
        }
    }

    async fn obey(&mut self, connection: &Connection, verdict: Verdict, attempted: &str) -> Result<Option<Again>, Failure> {
        match verdict {
            Verdict::Deliver(groups) => {
                self.health.heard();
                let changed = !groups.is_empty();
                for group in groups {
                    self.sink.deliver(group).await;
                }
                if changed {
                    self.health.read_up_to(self.core.delivered());
                }
                self.recovered(connection);
                Ok(None)
            }
            Verdict::ListAgain(why) => Ok(Some(Again::Doubt(why))),
            Verdict::NewToken(why) => Ok(Some(Again::Token(why))),
            Verdict::Leave(why) => Err(Failure::unreachable(attempted, why)),
        }
    }

    /// Asks the next question, or judges the answer to the last one.
    fn feel(&mut self, connection: &Connection, heart: &mut Heart, pulse: Pulse) -> Result<Option<Verdict>, Failure> {
        let (floor, answer) = match pulse {
            Pulse::Answered(floor, answer) => (floor, answer),
            Pulse::Due => {
                if connection.files != self.access.options.fingerprint() {
                    let why = Failure::unreachable("keep the connection to etcd", "the certificate or password files have changed");
                    return Err(Failure { kind: Kind::Renew, ..why });
                }
                heart.beat(self.core.known(), count(connection.client.clone(), self.core.prefixes()));
                return Ok(None);
            }
        };
        let Some(Counts(header, counts)) = heart.judge(answer)? else { return Ok(None) };
        if !self.core.watching() {
            return Err(Failure::unreachable("watch", "etcd answers, but did not confirm the watch"));
        }
        // A connection that lived for a beat is progress; one that only let itself be opened is not.
        self.backoff.reset();
        self.doubted = false;
        Ok(Some(self.core.counts(floor, header.as_ref(), &counts)))
    }

    async fn open_watch(&self, connection: &Connection, revision: i64, attempted: &str) -> Result<WatchStream, Failure> {
        let mut client = connection.client.watch_client().max_decoding_message_size(DECODE_LIMIT);
        let options = |id: i64, prefix: &str| {
            let range = WatchOptions::new().with_range(range_end(prefix)).with_start_revision(revision);
            // Without fragments one large revision is more than any message may hold, at every new attempt again.
            Some(range.with_watch_id(id).with_fragment())
        };
        let mut watches = (1..).zip(self.core.prefixes());
        let Some((id, first)) = watches.next() else {
            return Err(Failure { kind: Kind::Refused, ..Failure::unreachable(attempted, "there is nothing to watch") });
        };
        let mut stream = within(CALL_LIMIT, attempted, client.watch(first, options(id, first))).await?;
        for (id, prefix) in watches {
            within(CALL_LIMIT, attempted, stream.watch(prefix, options(id, prefix))).await?;
        }
        Ok(stream)
    }

    /// Listed and all watches confirmed: says so, once.
    fn recovered(&mut self, connection: &Connection) {
        if !self.core.watching() {
            return;
        }
        let endpoint = &connection.endpoint;
        if self.health.live(format!("watching etcd at {endpoint}")) {
            let (revision, keys) = (self.core.delivered(), self.core.keys());
            info!(endpoint, revision, keys, "reading wishes from etcd");
        }
        self.troubled = false;
    }

    fn trouble(&mut self, failure: &Failure) {
        let endpoint = &self.access.options.endpoints[self.turn];
        let message = format!("{failure} ({endpoint})");
        if self.troubled {
            debug!(endpoint, error = %failure, "etcd is still not readable");
        } else {
            warn!(endpoint, revision = self.core.delivered(), error = %failure, "etcd is not readable; going on with what is known");
        }
        self.troubled = true;
        self.health.down(message);
    }

    fn doubt(&mut self, connection: &Connection, why: &str) {
        let endpoint = &connection.endpoint;
        self.health.explain(format!("{why} ({endpoint})"));
        if std::mem::replace(&mut self.doubted, true) {
            debug!(endpoint, error = why, "listing again");
        } else {
            warn!(endpoint, revision = self.core.delivered(), error = why, "listing again");
        }
    }

    /// The first question on a connection: its failure tells most about certificates. Warns of the known faults of the server's version.
    async fn greet(&mut self, connection: &Connection) -> Result<(), Failure> {
        let mut client = connection.client.maintenance_client();
        let status = match within(CALL_LIMIT, "connect to etcd", client.status()).await {
            Ok(status) => status,
            Err(failure) if matches!(failure.kind, Kind::Unreachable | Kind::Silent) => return Err(self.access.options.explain(failure)),
            // Not everybody may ask; reading does not depend on it.
            Err(_) => return Ok(()),
        };
        let (endpoint, version) = (&connection.endpoint, status.version());
        let faults = if self.version == version { Vec::new() } else { known_faults(version) };
        if !faults.is_empty() {
            warn!(endpoint, version, faults = faults.join("; "), "this etcd version has known faults; upgrade it");
        }
        version.clone_into(&mut self.version);
        Ok(())
    }
}

/// Counts the keys of all prefixes at one revision. Linearizable: only a member that hears the majority can answer.
fn count<'a>(client: Client, prefixes: impl Iterator<Item = &'a str>) -> Beat {
    let operations: Vec<TxnOp> =
        prefixes.map(|prefix| TxnOp::get(prefix, Some(GetOptions::new().with_range(range_end(prefix)).with_count_only()))).collect();
    Box::pin(async move {
        let mut kv = client.kv_client();
        let answer = within(CALL_LIMIT, "ask etcd for a sign of life", kv.txn(Txn::new().and_then(operations))).await?;
        let count = |response: TxnOpResponse| if let TxnOpResponse::Get(range) = response { range.count() } else { 0 };
        let counts = answer.op_responses().into_iter().map(count).collect();
        Ok(Counts(answer.0.header, counts))
    })
}
