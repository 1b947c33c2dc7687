//! What to do about each message of etcd: pure, so that every odd message can be tried without a server.
//!
//! It knows which keys the listing and the watch have delivered, and never says that something is gone on the strength of a doubt: a
//! doubt means listing again.

use std::collections::BTreeSet;

use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader, PbWatchResponse};

use super::error::is_token;
use crate::store::{StoreEvent, StoreIdentity, Versioned};

/// How often in a row the count may differ before the watch counts as deaf: once can be a slow watch.
const STRIKES: u8 = 2;

/// What to do after a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Hand these over, one group per revision; none when the message changed nothing.
    Deliver(Vec<Vec<StoreEvent>>),
    /// List again on this connection, because of this.
    ListAgain(String),
    /// Ask for a new token, then list again.
    NewToken(String),
    /// Leave this connection, because of this.
    Leave(String),
}

/// One watched prefix.
#[derive(Debug, Default)]
struct Watched {
    /// The whole prefix, as in etcd.
    prefix: String,
    /// Keys that are there, as far as listing and watch say.
    keys: BTreeSet<Vec<u8>>,
    /// Parts of a revision whose rest is still to come.
    fragments: Vec<PbEvent>,
    /// etcd confirmed the watch.
    created: bool,
    /// A count that etcd gave at a revision, until the watch has told us as much.
    counted: Option<(i64, usize)>,
    /// How often in a row the count differed.
    strikes: u8,
}

/// The state of reading one agent's prefixes.
#[derive(Debug)]
pub(super) struct Core {
    root: String,
    watched: Vec<Watched>,
    cluster: u64,
    /// Revision of the listing.
    listed: i64,
    /// No answer to a question that is asked from now on may be older than this revision.
    known: i64,
    /// Everything up to this revision has been handed over; counts do not raise it.
    delivered: i64,
}

impl Core {
    /// For an agent's prefix and the relative prefixes below it.
    pub(super) fn new(root: &str, prefixes: &[String]) -> Self {
        let watched = prefixes.iter().map(|relative| Watched { prefix: format!("{root}{relative}"), ..Watched::default() }).collect();
        Self { root: root.to_owned(), watched, cluster: 0, listed: 0, known: 0, delivered: 0 }
    }

    /// The whole prefixes, in the order of their watch ids, which begin with 1.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.watched.iter().map(|watched| watched.prefix.as_str())
    }

    /// The revision that no later answer may fall below.
    pub(super) fn known(&self) -> i64 {
        self.known
    }

    /// The revision of the listing or of the latest change since.
    pub(super) fn delivered(&self) -> i64 {
        self.delivered
    }

    /// How many keys are there.
    pub(super) fn keys(&self) -> usize {
        self.watched.iter().map(|watched| watched.keys.len()).sum()
    }

    /// All watches are confirmed.
    pub(super) fn watching(&self) -> bool {
        self.watched.iter().all(|watched| watched.created)
    }

    /// A listing begins at this identity; what was known counts no more.
    pub(super) fn begin(&mut self, identity: StoreIdentity) {
        self.cluster = identity.cluster;
        self.listed = identity.revision;
        self.known = identity.revision;
        self.delivered = identity.revision;
        for watched in &mut self.watched {
            let prefix = std::mem::take(&mut watched.prefix);
            *watched = Watched { prefix, ..Watched::default() };
        }
    }

    /// A page of the listing of the prefix with this index.
    pub(super) fn page(&mut self, index: usize, page: Vec<PbKeyValue>) -> Vec<StoreEvent> {
        let Some(watched) = self.watched.get_mut(index) else { return Vec::new() };
        let mut events = Vec::with_capacity(page.len());
        for pair in page {
            let key = relative(&self.root, &pair.key);
            watched.keys.insert(pair.key);
            let (create_revision, mod_revision) = (pair.create_revision, pair.mod_revision);
            events.push(StoreEvent::InitApply(key, Versioned { value: pair.value, create_revision, mod_revision }));
        }
        events
    }

    /// A message of the watch stream.
    pub(super) fn watch(&mut self, message: PbWatchResponse) -> Verdict {
        if message.canceled {
            return cancelled(&message);
        }
        // Events carry the revision at which they were sent, which a count may have overtaken; only the first message must be up to date.
        if let Some(doubt) = self.doubt(message.header.as_ref(), if message.created { self.listed } else { 0 }) {
            return Verdict::ListAgain(doubt);
        }
        let index = usize::try_from(message.watch_id - 1).unwrap_or(usize::MAX);
        let Some(watched) = self.watched.get_mut(index) else {
            return Verdict::Leave(format!("etcd speaks of a watch {} that was never asked for", message.watch_id));
        };
        watched.created |= message.created;
        watched.fragments.extend(message.events);
        if message.fragment {
            return Verdict::Deliver(Vec::new());
        }
        let events = std::mem::take(&mut watched.fragments);
        let mut groups: Vec<(i64, Vec<StoreEvent>)> = Vec::new();
        for event in events {
            let Some((revision, event)) = watched.take_up(&self.root, event) else {
                return Verdict::ListAgain("etcd sent an event that this version does not know".to_owned());
            };
            self.known = self.known.max(revision);
            self.delivered = self.delivered.max(revision);
            match groups.last_mut() {
                Some((last, group)) if *last == revision => group.push(event),
                _ => groups.push((revision, vec![event])),
            }
        }
        match watched.deaf() {
            Some(why) => Verdict::ListAgain(why),
            None => Verdict::Deliver(groups.into_iter().map(|(_, group)| group).collect()),
        }
    }

    /// The answer to a linearizable count of each prefix that was asked when `floor` was the known revision.
    pub(super) fn counts(&mut self, floor: i64, header: Option<&PbResponseHeader>, counts: &[i64]) -> Verdict {
        if let Some(doubt) = self.doubt(header, floor) {
            return Verdict::ListAgain(doubt);
        }
        let revision = header.map_or(0, |header| header.revision);
        self.known = self.known.max(revision);
        for (watched, count) in self.watched.iter_mut().zip(counts) {
            watched.settle();
            watched.counted = Some((revision, usize::try_from(*count).unwrap_or(0)));
            if let Some(why) = watched.deaf() {
                return Verdict::ListAgain(why);
            }
        }
        Verdict::Deliver(Vec::new())
    }

    /// Whether an answer comes from another history than the listing. etcd keeps its cluster id when its data is wiped; the revision tells.
    fn doubt(&self, header: Option<&PbResponseHeader>, floor: i64) -> Option<String> {
        let header = header?;
        if header.cluster_id != self.cluster {
            return Some(format!("etcd cluster {:x} answers instead of {:x}", header.cluster_id, self.cluster));
        }
        (header.revision < floor).then(|| format!("etcd's revision went back from {floor} to {}", header.revision))
    }
}

impl Watched {
    /// Notes an event's effect; `None` for a kind of event that we do not know.
    fn take_up(&mut self, root: &str, event: PbEvent) -> Option<(i64, StoreEvent)> {
        let pair = event.kv?;
        let revision = pair.mod_revision;
        if self.counted.is_some_and(|(counted, _)| revision > counted) {
            self.settle();
        }
        let key = relative(root, &pair.key);
        // 0 and 1 are etcd's PUT and DELETE; the client's own accessor panics on all others.
        match event.r#type {
            0 => {
                self.keys.insert(pair.key);
                let versioned = Versioned { value: pair.value, create_revision: pair.create_revision, mod_revision: revision };
                Some((revision, StoreEvent::Apply(key, versioned)))
            }
            1 => {
                self.keys.remove(&pair.key);
                Some((revision, StoreEvent::Delete(key, revision)))
            }
            _ => None,
        }
    }

    /// Everything up to the counted revision should have been told by now: compares.
    fn settle(&mut self) {
        if let Some((_, count)) = self.counted.take() {
            self.strikes = if count == self.keys.len() { 0 } else { self.strikes + 1 };
        }
    }

    fn deaf(&self) -> Option<String> {
        let told = self.keys.len();
        (self.strikes >= STRIKES).then(|| format!("the watch lost changes below {}: it knows {told} keys, etcd has others", self.prefix))
    }
}

fn cancelled(message: &PbWatchResponse) -> Verdict {
    let reason = &message.cancel_reason;
    match message.compact_revision {
        0 if is_token(reason) => Verdict::NewToken(reason.clone()),
        0 if reason.is_empty() => Verdict::Leave("etcd ended the watch".to_owned()),
        0 => Verdict::Leave(reason.clone()),
        compacted => Verdict::ListAgain(format!("etcd compacted its history up to revision {compacted}")),
    }
}

/// The key below the agent's prefix. A key that is no UTF-8 is no legal name in any case; it is shown with replacement characters.
pub(super) fn relative(root: &str, key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(root.as_bytes()).unwrap_or(key)).into_owned()
}

#[cfg(test)]
mod tests;
