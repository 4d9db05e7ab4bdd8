//! Times on the clocks of other machines, which may differ from this operator's by minutes.

use std::cmp::Ordering;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

/// A time that another machine reported. Order follows the reporting clocks; elapsed time is measured by this operator's clock, from
/// [`Self::local`].
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(into = "Timestamp")]
pub struct ObservedTime {
    reported: Timestamp,
    local: Timestamp,
}

impl ObservedTime {
    pub fn reported(self) -> Timestamp {
        self.reported
    }

    /// The time on this operator's clock when it first observed the reported time; at most the reported time if it was not running then.
    pub fn local(self) -> Timestamp {
        self.local
    }

    /// Sets the local time: that of an equal time observed `before`, or else `now`. Without an earlier observation, as at a start of the
    /// operator, the clocks are assumed to agree, except for times in the future.
    pub fn observe(&mut self, now: Timestamp, before: Option<&[Self]>) {
        self.local = match before {
            None => now.min(self.reported),
            Some(before) => before.iter().find(|known| *known == self).map_or(now, |same| same.local),
        };
    }
}

/// For a time on a clock that agrees with this operator's.
impl From<Timestamp> for ObservedTime {
    fn from(time: Timestamp) -> Self {
        Self { reported: time, local: time }
    }
}

impl From<ObservedTime> for Timestamp {
    fn from(time: ObservedTime) -> Self {
        time.reported
    }
}

impl PartialEq for ObservedTime {
    fn eq(&self, other: &Self) -> bool {
        self.reported == other.reported
    }
}

impl Eq for ObservedTime {}

impl PartialOrd for ObservedTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObservedTime {
    fn cmp(&self, other: &Self) -> Ordering {
        self.reported.cmp(&other.reported)
    }
}
