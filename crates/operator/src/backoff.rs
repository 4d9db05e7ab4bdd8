//! Pauses between attempts of writes that fail. A write that fails again and again is attempted less and less often, whatever wakes
//! the loop, while all others go on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_plan::world::{Concern, RefusedWrite};
use tokio::time::Instant;

use crate::error::{Class, Error};

/// The maximum pause between two attempts.
const MOST: Duration = Duration::from_mins(5);

/// The writes that failed when they were last attempted, by action and object.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: BTreeMap<String, Failure>,
}

#[derive(Debug)]
struct Failure {
    concerns: Concern,
    class: Class,
    error: String,
    pause: Duration,
    until: Instant,
}

impl Backoff {
    /// Returns whether a write is not to be attempted yet.
    #[must_use]
    pub fn holds(&self, write: &impl ToString, now: Instant) -> bool {
        !self.failures.is_empty() && self.failures.get(&write.to_string()).is_some_and(|failure| now < failure.until)
    }

    /// Records a failed attempt. The pause doubles with each.
    pub fn failed(&mut self, write: &impl ToString, concerns: Concern, error: &Error, now: Instant) {
        let before = self.failures.get(&write.to_string());
        let pause = before.map_or_else(|| error.retry_after(), |before| (before.pause * 2).min(MOST));
        let (class, error) = (error.class(), error.to_string());
        let failure = Failure { concerns, class, error, pause, until: now + pause };
        self.failures.insert(write.to_string(), failure);
    }

    /// Records a success.
    pub fn succeeded(&mut self, write: &impl ToString) {
        if !self.failures.is_empty() {
            self.failures.remove(&write.to_string());
        }
    }

    /// Removes writes that the last plan does not contain: they are not needed any more.
    pub fn keep<W: ToString>(&mut self, planned: impl IntoIterator<Item = W>) {
        if !self.failures.is_empty() {
            let planned: BTreeSet<_> = planned.into_iter().map(|write| write.to_string()).collect();
            self.failures.retain(|write, _| planned.contains(write));
        }
    }

    /// Returns the time of the next attempt.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.failures.values().map(|failure| failure.until).min()
    }

    /// Returns rejected writes to report: errors that do not resolve by themselves.
    #[must_use]
    pub fn refused(&self) -> Vec<RefusedWrite> {
        let lasting = |failure: &&Failure| matches!(failure.class, Class::Forbidden | Class::Invalid);
        let refused = self.failures.values().filter(lasting);
        let refused =
            refused.map(|failure| RefusedWrite { concerns: failure.concerns.clone(), error: failure.error.clone() });
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden() -> Error {
        let status = kube::core::Status::failure("no", "Forbidden").with_code(403);
        Error::Failed { what: "label node a".into(), source: kube::Error::Api(Box::new(status)) }
    }

    #[test]
    fn the_pause_of_a_write_doubles_until_it_succeeds_or_is_not_needed_any_more() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backoff.failed(&"label node a", Concern::Node("a".into()), &forbidden(), now);
            assert!(backoff.holds(&"label node a", now) && !backoff.holds(&"label node b", now));
            let next = backoff.next().unwrap();
            assert!(!backoff.holds(&"label node a", next));
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
        assert_eq!(backoff.refused()[0].concerns, Concern::Node("a".into()));
        backoff.keep(["label node a"]);
        assert!(backoff.next().is_some());
        backoff.keep(["label node b"]);
        assert_eq!((backoff.next(), backoff.refused().len()), (None, 0));
        backoff.failed(&"label node a", Concern::Fleet, &forbidden(), now);
        backoff.succeeded(&"label node a");
        assert_eq!(backoff.next(), None);
    }
}
