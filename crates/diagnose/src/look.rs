//! What a look at a waiting pod finds.

use std::time::Duration;

use crate::finding::{Mistake, NO_PLACE_GRACE, START_GRACE};

/// The result of checking a pod that waits.
pub enum Look {
    /// There is nothing to report.
    Nothing,
    /// A mistake and its message.
    Found(Mistake, String),
    /// The pod's Events must be read first, once it has waited for the grace period.
    Ask { grace: Duration },
}

impl Look {
    /// Returns how long the pod must have waited before this is acted upon.
    pub fn grace(&self) -> Duration {
        match self {
            Self::Nothing => Duration::ZERO,
            Self::Found(Mistake::RuntimeHandlerMissing, _) => START_GRACE,
            Self::Found(..) => NO_PLACE_GRACE,
            Self::Ask { grace } => *grace,
        }
    }
}
