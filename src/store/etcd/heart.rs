//! The steady question whether etcd is still there, and for how long it has not answered.

use std::pin::Pin;
use std::time::{Duration, Instant};

use etcd_client::proto::PbResponseHeader;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

use super::Timing;
use super::error::{Failure, Kind};

/// How many keys each watched prefix has, and at which revision.
pub(super) struct Counts(pub(super) Option<PbResponseHeader>, pub(super) Vec<i64>);

/// A question on its way.
pub(super) type Beat = Pin<Box<dyn Future<Output = Result<Counts, Failure>> + Send>>;

/// What the heart reports.
pub(super) enum Pulse {
    /// The next question is due.
    Due,
    /// An answer to the question that was asked when this revision was known.
    Answered(i64, Result<Counts, Failure>),
}

/// Asks one question at a time.
pub(super) struct Heart {
    ticks: Interval,
    asked: Option<(i64, Beat)>,
    silent_since: Option<Instant>,
    patience: Duration,
}

impl Heart {
    /// Beats at the given pace, for the first time when the watch has had one period to begin.
    pub(super) fn new(timing: &Timing) -> Self {
        let mut ticks = interval_at(tokio::time::Instant::now() + timing.heartbeat, timing.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, asked: None, silent_since: None, patience: timing.silence }
    }

    /// Waits for whatever comes next. Nothing is lost when the wait is given up.
    pub(super) async fn next(&mut self) -> Pulse {
        match &mut self.asked {
            None => {
                self.ticks.tick().await;
                Pulse::Due
            }
            Some((floor, beat)) => {
                let (floor, answer) = (*floor, beat.await);
                self.asked = None;
                Pulse::Answered(floor, answer)
            }
        }
    }

    /// Asks.
    pub(super) fn beat(&mut self, floor: i64, beat: Beat) {
        self.silent_since.get_or_insert_with(Instant::now);
        self.asked = Some((floor, beat));
    }

    /// An answer that is late is forgiven until the patience is over: a starved machine is no dead one.
    pub(super) fn judge(&mut self, answer: Result<Counts, Failure>) -> Result<Option<Counts>, Failure> {
        match answer {
            Ok(counts) => {
                self.silent_since = None;
                Ok(Some(counts))
            }
            Err(failure) if failure.kind == Kind::Silent => {
                let silent = self.silent_since.map_or(Duration::ZERO, |since| since.elapsed());
                if silent < self.patience {
                    return Ok(None);
                }
                Err(Failure { cause: format!("no answer for {} s", silent.as_secs()), ..failure })
            }
            Err(failure) => Err(failure),
        }
    }
}
