//! Times, and arithmetic with timestamps.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A time on a clock that never goes back: the time since the operator started.
pub type Uptime = Duration;

/// Returns the time `by` after `since`, or the latest representable time.
pub fn later(since: Timestamp, by: Duration) -> Timestamp {
    add(since, SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX))
}

pub fn add(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}
