//! The result of checking a pod that waits.

use std::time::Duration;

use crate::finding::{Mistake, NO_PLACE_GRACE, START_GRACE};

/// The result of checking a pod that waits.
pub enum Verdict {
    /// There is nothing to report.
    NoMistake,
    /// A mistake and its message.
    Mistake(Mistake, String),
    /// The pod's Events must be read first, once it has waited for the grace period.
    ReadEvents { grace: Duration },
}

impl Verdict {
    /// Returns how long the pod must have waited before this is acted upon.
    pub fn grace(&self) -> Duration {
        match self {
            Self::NoMistake => Duration::ZERO,
            Self::Mistake(Mistake::RuntimeHandlerMissing, _) => START_GRACE,
            Self::Mistake(..) => NO_PLACE_GRACE,
            Self::ReadEvents { grace } => *grace,
        }
    }
}
