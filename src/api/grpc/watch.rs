//! Follows a book: a snapshot, then changes in order, from wherever the reader left off.
//!
//! Nothing is queued for a reader: each batch is taken from the book when the reader has room for it. One who falls behind the book's log is told to
//! begin again.

use std::sync::Arc;

use futures::stream::{self, Stream, StreamExt};
use tokio::sync::watch;
use tonic::Status;

use crate::api::context::Context;
use crate::configurator::book::{Book, Change, Entries, Next};
use crate::configurator::published::Published;
use crate::proto::agent as pb;

/// How much is taken from a book at a time.
const BATCH: usize = 256;

/// What a follower sees.
pub enum Event<V> {
    /// Everything known is void; the whole follows.
    Begin,
    /// An entry of the whole.
    Entry(Arc<str>, Arc<V>),
    /// The whole is complete, or the reader took up where it left off; the number to resume from.
    Complete(u64),
    /// A change.
    Change(Change<V>),
}

enum Stage<V> {
    Begin,
    Snapshot { rest: std::vec::IntoIter<(Arc<str>, Arc<V>)>, sequence: u64 },
    Follow(u64),
    Ended,
}

struct Follower<V> {
    context: Arc<Context>,
    book: fn(&Published) -> &Book<V>,
    latest: watch::Receiver<u64>,
    stage: Stage<V>,
}

type Batch<V> = Vec<Result<Event<V>, Status>>;

/// The events of a book for one reader.
pub fn follow<V: Send + Sync + 'static>(
    context: Arc<Context>,
    book: fn(&Published) -> &Book<V>,
    request: &pb::WatchRequest,
) -> impl Stream<Item = Result<Event<V>, Status>> + Send + use<V> {
    let latest = book(&context.published).subscribe();
    // A number of another run means nothing here, and 0 is what the entries of a snapshot carry.
    let resumable = request.sequence > 0
        && request.run_id == context.run_id
        && matches!(book(&context.published).since(request.sequence, 0), Next::Changes(_));
    let first: Batch<V> = if resumable { vec![Ok(Event::Complete(request.sequence))] } else { Vec::new() };
    let stage = if resumable { Stage::Follow(request.sequence) } else { Stage::Begin };
    let follower = Follower { context, book, latest, stage };
    let batches = stream::unfold(follower, |mut follower| async move { Some((follower.next_batch().await?, follower)) });
    stream::iter(first).chain(batches.flat_map(stream::iter))
}

impl<V: Send + Sync + 'static> Follower<V> {
    /// The next events; `None` after the last.
    async fn next_batch(&mut self) -> Option<Batch<V>> {
        match &mut self.stage {
            Stage::Begin => {
                let (sequence, entries): (u64, Entries<V>) = (self.book)(&self.context.published).snapshot();
                self.stage = Stage::Snapshot { rest: entries.into_iter(), sequence };
                Some(vec![Ok(Event::Begin)])
            }
            Stage::Snapshot { rest, sequence } => {
                let mut batch: Batch<V> = rest.take(BATCH).map(|(key, value)| Ok(Event::Entry(key, value))).collect();
                if rest.as_slice().is_empty() {
                    batch.push(Ok(Event::Complete(*sequence)));
                    self.stage = Stage::Follow(*sequence);
                }
                Some(batch)
            }
            Stage::Follow(sequence) => {
                let after = *sequence;
                Some(self.changes(after).await)
            }
            Stage::Ended => None,
        }
    }

    async fn changes(&mut self, after: u64) -> Batch<V> {
        loop {
            // Marked as seen before looking, so that a change during the look wakes at once.
            self.latest.borrow_and_update();
            match (self.book)(&self.context.published).since(after, BATCH) {
                Next::TooOld => {
                    self.stage = Stage::Ended;
                    return vec![Err(Status::aborted("this watch fell too far behind the changes; watch again without a sequence number"))];
                }
                Next::Changes(changes) => {
                    if let Some(last) = changes.last() {
                        self.stage = Stage::Follow(last.sequence);
                        return changes.into_iter().map(|change| Ok(Event::Change(change))).collect();
                    }
                }
            }
            // Both arms only wait.
            tokio::select! {
                _ = self.latest.changed() => {}
                () = self.context.stop.cancelled() => {
                    self.stage = Stage::Ended;
                    return vec![Err(Status::unavailable("the agent stops; watch again with the last run id and sequence number"))];
                }
            }
        }
    }
}
