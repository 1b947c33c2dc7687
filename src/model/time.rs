//! Wall-clock moments as values: taken at the edge, carried and written here.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment of wall-clock time, in milliseconds since 1970 (UTC). For people only: no decision depends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Whole seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// This moment moved on by a duration.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self(millis(since)),
            Err(before) => Self(-millis(before.duration())),
        }
    }
}

impl From<Timestamp> for prost_types::Timestamp {
    fn from(t: Timestamp) -> Self {
        let nanos = i32::try_from(t.0.rem_euclid(1000)).unwrap_or(0) * 1_000_000;
        Self { seconds: t.seconds(), nanos }
    }
}

/// RFC 3339, UTC, with milliseconds where there are any.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        prost_types::Timestamp::from(*self).fmt(f)
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_rfc_3339() {
        assert_eq!(Timestamp(1_767_225_600_000).to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(Timestamp(1_767_225_600_250).to_string(), "2026-01-01T00:00:00.250Z");
    }
}
