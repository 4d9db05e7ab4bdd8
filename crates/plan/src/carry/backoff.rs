//! Pauses between attempts of writes that fail. A write that fails again and again is attempted less and less often, whatever wakes
//! the loop, while all others go on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::reason::Reason;

use super::failure::Failure;
use crate::{
    output::writes::Write,
    time::Uptime,
    world::{Concern, HeldWrite},
};

/// The maximum pause between two attempts.
const MAX_BACKOFF: Duration = Duration::from_mins(5);

/// The writes that failed when they were last attempted, by action and object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Backoff {
    failed: BTreeMap<String, Failed>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Failed {
    concerns: Concern,
    failure: Failure,
    pause: Duration,
    until: Uptime,
}

impl Backoff {
    /// Returns whether a write is not to be attempted yet.
    #[must_use]
    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        !self.failed.is_empty() && self.failed.get(&write.to_string()).is_some_and(|failed| now < failed.until)
    }

    /// Records a failed attempt. The pause doubles with each.
    pub fn failed(&mut self, write: &Write, failure: Failure, now: Uptime) {
        let before = self.failed.get(&write.to_string());
        let pause = before.map_or_else(|| failure.class.retry_after(), |before| (before.pause * 2).min(MAX_BACKOFF));
        let failed = Failed { concerns: write.concerns(), failure, pause, until: now + pause };
        self.failed.insert(write.to_string(), failed);
    }

    /// Records a success. Returns whether the write had failed before.
    pub fn succeeded(&mut self, write: &Write) -> bool {
        !self.failed.is_empty() && self.failed.remove(&write.to_string()).is_some()
    }

    /// Removes writes that a new plan does not contain: they are not needed any more. Returns whether there were any.
    pub fn keep<'p>(&mut self, planned: impl Iterator<Item = &'p Write>) -> bool {
        let before = self.failed.len();
        if before > 0 {
            let planned: BTreeSet<_> = planned.map(ToString::to_string).collect();
            self.failed.retain(|write, _| planned.contains(write));
        }
        self.failed.len() < before
    }

    /// Returns the time of the next attempt.
    #[must_use]
    pub fn next(&self) -> Option<Uptime> {
        self.failed.values().map(|failed| failed.until).min()
    }

    /// Returns rejected writes to report: errors that do not resolve by themselves.
    #[must_use]
    pub fn refused(&self) -> Vec<HeldWrite> {
        let refused = self.failed.values().filter(|failed| failed.failure.class.lasts());
        let refused = refused.map(|failed| HeldWrite {
            concerns: failed.concerns.clone(),
            reason: Reason::ApplyFailed,
            message: failed.failure.message.clone(),
        });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carry::failure::Class;

    #[test]
    fn the_pause_of_a_write_doubles_until_it_succeeds_or_is_not_needed_any_more() {
        let forbidden = || Failure { class: Class::Forbidden, message: "failed to label node a: no".into() };
        let (a, b) = (Write::Taint("a".into(), None), Write::Taint("b".into(), None));
        let (mut backoff, mut now) = (Backoff::default(), Uptime::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backoff.failed(&a, forbidden(), now);
            assert!(backoff.holds(&a, now) && !backoff.holds(&b, now));
            let next = backoff.next().unwrap();
            assert!(!backoff.holds(&a, next));
            pauses.push(next.saturating_sub(now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
        assert_eq!(backoff.refused()[0].concerns, Concern::Node("a".into()));
        backoff.keep([&a].into_iter());
        assert!(backoff.next().is_some());
        backoff.keep([&b].into_iter());
        assert_eq!((backoff.next(), backoff.refused().len()), (None, 0));
        backoff.failed(&a, forbidden(), now);
        backoff.succeeded(&a);
        assert_eq!(backoff.next(), None);
    }
}
