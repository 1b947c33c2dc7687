//! Follows one container runtime for as long as the agent lives: lists, follows events, lists again, and comes back after every outage.
//!
//! The listing is the truth and events make it fast: a runtime replays 256 of them at most, and a stream may stall without a word. So every listing also
//! opens the stream of events anew, from the last event on.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::book::Facts;
use super::client::{Client, Event, Events, Failure};
use super::health::{Reporter, RuntimeHealth};
use super::port::{News, Port};
use crate::backoff::{Backoff, chance};

/// So many inspections at once: a runtime that starts thousands of containers has other work, too.
const AT_ONCE: usize = 8;
/// How far before the first listing events are taken from: what happens between the two is told twice rather than never.
const OVERLAP: i64 = 2_000_000_000;

/// A connection that lived so long is progress; one that breaks off at once, again and again, is not.
const PROGRESS: Duration = Duration::from_secs(10);

/// When things happen by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How often everything is listed, give or take a fifth.
    pub listing: Duration,
    /// How soon it is listed again when a container could not be inspected, or events cannot be followed.
    pub doubt: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { listing: Duration::from_secs(30), doubt: Duration::from_secs(5) }
    }
}

impl Timing {
    fn next_listing(&self) -> Duration {
        let permille = 800 + u32::try_from(chance(401)).unwrap_or(200);
        self.listing * permille / 1000
    }
}

/// An inspection that is under way, or to be sent.
#[derive(PartialEq, Eq)]
enum Errand {
    Waiting,
    Sent,
    /// Sent, and asked for again since: its answer may be older than what was asked.
    SentAndWanted,
}

type Answer = (u64, String, Result<Option<Facts>, Failure>);

/// The follower.
pub struct Follower {
    socket: PathBuf,
    port: Port,
    timing: Timing,
    health: Reporter,
    /// Up to when events are known, nanoseconds since 1970 by the runtime's clock.
    seen: Option<i64>,
    /// Why events cannot be followed though the runtime answers.
    eventless: Option<String>,
    /// An outage was logged and is not over.
    troubled: bool,
}

impl Follower {
    /// Follows the runtime behind this socket.
    pub fn new(socket: PathBuf, port: Port, timing: Timing, health: watch::Sender<RuntimeHealth>) -> Self {
        Self { socket, port, timing, health: Reporter(health), seen: None, eventless: None, troubled: false }
    }

    /// Follows until the token is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new();
        loop {
            let begun = Instant::now();
            let failure = tokio::select! {
                () = stop.cancelled() => return,
                failure = self.session() => failure,
            };
            if begun.elapsed() > PROGRESS {
                backoff.reset();
            }
            self.trouble(&failure);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.wait()) => {}
            }
        }
    }

    /// Asks one runtime until it does not answer any more; returns why.
    async fn session(&mut self) -> Failure {
        match self.converse().await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    async fn converse(&mut self) -> Result<std::convert::Infallible, Failure> {
        let client = Client::connect(&self.socket).await?;
        loop {
            let mut events = client.events(&self.since());
            let begun = self.port.clock();
            let running = client.list().await?;
            self.health.count(|counters| &counters.listings);
            self.port.tell(News::Listed(begun, running));
            self.well();
            self.follow(&client, &mut events).await?;
        }
    }

    /// Follows events and answers what is asked, until it is time to list again.
    async fn follow(&mut self, client: &Client, events: &mut Events) -> Result<(), Failure> {
        let mut errands: BTreeMap<String, Errand> = BTreeMap::new();
        let mut queue: VecDeque<String> = VecDeque::new();
        let mut under_way: FuturesUnordered<BoxFuture<'static, Answer>> = FuturesUnordered::new();
        let next = tokio::time::sleep(self.timing.next_listing());
        tokio::pin!(next);
        let mut following = true;
        loop {
            while under_way.len() < AT_ONCE
                && let Some(id) = queue.pop_front()
            {
                errands.insert(id.clone(), Errand::Sent);
                under_way.push(inspect(client.clone(), self.port.clock(), id));
            }
            tokio::select! {
                event = events.next(), if following => match event {
                    Some(Ok((event, at))) => self.event(event, at),
                    Some(Err(failure)) => following = self.without_events(failure, next.as_mut())?,
                    None => return Err(Failure::closed()),
                },
                asked = self.port.asked() => for id in asked {
                    match errands.get_mut(&id) {
                        Some(errand @ Errand::Sent) => *errand = Errand::SentAndWanted,
                        Some(_) => {}
                        None => {
                            errands.insert(id.clone(), Errand::Waiting);
                            queue.push_back(id);
                        }
                    }
                },
                Some((begun, id, answer)) = under_way.next() => {
                    if errands.remove(&id) == Some(Errand::SentAndWanted) {
                        errands.insert(id.clone(), Errand::Waiting);
                        queue.push_back(id.clone());
                    }
                    if self.answered(begun, id, answer)? {
                        let soon = next.deadline().min(tokio::time::Instant::now() + self.timing.doubt);
                        next.as_mut().reset(soon);
                    }
                }
                // What is under way is finished first: the next listing would ask for it again.
                () = &mut next, if queue.is_empty() && under_way.is_empty() => {
                    if following {
                        self.eventless = None;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn event(&mut self, event: Event, at: i64) {
        self.health.count(|counters| &counters.events);
        self.seen = self.seen.max(Some(at));
        self.eventless = None;
        match event {
            Event::Touched(id) => self.port.tell(News::Touched(id)),
            Event::Ended(id, at) => self.port.tell(News::Ended(id, at)),
            Event::Other => {}
        }
    }

    /// A runtime that refuses to tell events is followed by listings alone; one that breaks off is connected to anew.
    fn without_events(&mut self, failure: Failure, mut next: std::pin::Pin<&mut tokio::time::Sleep>) -> Result<bool, Failure> {
        if !failure.refused {
            return Err(failure);
        }
        if self.eventless.is_none() {
            tracing::warn!(error = %failure, "the container runtime tells no events; listing its containers every few seconds");
        }
        self.eventless = Some(failure.to_string());
        // An event that cannot be read would be met again; the next listing tells what follows it.
        self.seen = Some(now());
        self.well();
        next.as_mut().reset(tokio::time::Instant::now() + self.timing.doubt);
        Ok(false)
    }

    /// Hands on the answer to an inspection; true when it is in doubt.
    fn answered(&mut self, begun: u64, id: String, answer: Result<Option<Facts>, Failure>) -> Result<bool, Failure> {
        self.health.count(|counters| &counters.inspections);
        match answer {
            Ok(facts) => {
                self.port.tell(News::Inspected(begun, id, facts));
                Ok(false)
            }
            Err(failure) if failure.refused => {
                tracing::debug!(container = %id, error = %failure, "a container could not be inspected");
                self.port.tell(News::Unanswered(id));
                Ok(true)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Where events are to be taken up. A clock that was set back must not hide what comes now.
    fn since(&self) -> String {
        let now = now();
        let from = self.seen.map_or(now - OVERLAP, |seen| (seen + 1).min(now));
        format!("{}.{:09}", from.div_euclid(1_000_000_000), from.rem_euclid(1_000_000_000))
    }

    fn well(&mut self) {
        let socket = self.socket.display();
        let message = match &self.eventless {
            None => format!("following containers at unix://{socket}"),
            Some(why) => format!("listing containers at unix://{socket} every few seconds: {why}"),
        };
        if self.health.turn(true, &message) {
            tracing::info!(socket = %socket, "following the containers of the runtime");
        }
        self.troubled = false;
        self.port.tell(News::Connected);
    }

    fn trouble(&mut self, failure: &Failure) {
        let (socket, error) = (self.socket.display(), failure);
        self.health.count(|counters| &counters.failures);
        self.health.turn(false, &failure.to_string());
        if std::mem::replace(&mut self.troubled, true) {
            tracing::debug!(socket = %socket, %error, "the container runtime is still not reachable");
        } else {
            tracing::warn!(socket = %socket, %error, "the container runtime is not reachable; what is known of its containers stays");
        }
        self.port.tell(News::Away(failure.to_string()));
    }
}

fn inspect(client: Client, begun: u64, id: String) -> BoxFuture<'static, Answer> {
    Box::pin(async move {
        let answer = client.inspect(&id).await;
        (begun, id, answer)
    })
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
}
