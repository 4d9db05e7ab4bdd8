//! Moments: what lies so much later, and what lies so far back.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A moment so much later; the end of time where there is none.
#[must_use]
pub fn later(since: Timestamp, by: Duration) -> Timestamp {
    add(since, SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX))
}

/// A moment later on; the end of time where there is none.
#[must_use]
pub fn add(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Whether a moment lies further back than a duration.
#[must_use]
pub fn older(since: Timestamp, than: Duration, now: Timestamp) -> bool {
    SignedDuration::try_from(than).is_ok_and(|than| now.duration_since(since) >= than)
}
