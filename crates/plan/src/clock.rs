//! The time of a plan. Times are compared with it only, so that it knows when the plan has to be made again even if nothing changes.

use std::{cell::Cell, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    settings::ASK_AGAIN,
    time::{add, later},
};

#[derive(Debug)]
pub struct Clock {
    now: Timestamp,
    /// The first time at which a comparison would turn out differently.
    next: Cell<Option<Timestamp>>,
    /// Whether something that no watch reports is awaited.
    asks_again: Cell<bool>,
}

impl Clock {
    pub fn at(now: Timestamp) -> Self {
        Self { now, next: Cell::new(None), asks_again: Cell::new(false) }
    }

    /// For records of the present. What depends on the time asks [`Self::reached`] or [`Self::passed`].
    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn reached(&self, at: Timestamp) -> bool {
        let reached = self.now >= at;
        if !reached {
            self.plan_again(at);
        }
        reached
    }

    /// Returns whether a duration has passed since a time.
    pub fn passed(&self, since: Timestamp, by: Duration) -> bool {
        self.reached(later(since, by))
    }

    /// Returns whether a duration that begins now has passed at a time.
    pub fn ends_by(&self, duration: Duration, at: Timestamp) -> bool {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let last = at.checked_sub(duration).unwrap_or(Timestamp::MIN);
        !self.reached(add(last, SignedDuration::from_nanos(1)))
    }

    /// Returns how long it is until a time; zero if it has passed.
    pub fn until(&self, at: Timestamp) -> Duration {
        Duration::try_from(at.duration_since(self.now)).unwrap_or_default()
    }

    /// Returns the time when a duration that begins now has passed.
    pub fn later(&self, by: Duration) -> Timestamp {
        later(self.now, by)
    }

    /// Something that no watch reports is awaited.
    pub fn ask_again(&self) {
        self.asks_again.set(true);
        self.plan_again(self.later(ASK_AGAIN));
    }

    pub fn asks_again(&self) -> bool {
        self.asks_again.get()
    }

    /// A part of the plan, which had a clock of its own or is still valid, has to be made again at this time.
    pub fn join(&self, next: Option<Timestamp>) {
        if let Some(next) = next {
            self.plan_again(next);
        }
    }

    /// Returns when the plan has to be made again even if nothing changes.
    pub fn next(&self) -> Option<Timestamp> {
        self.next.get().filter(|next| *next < Timestamp::MAX)
    }

    fn plan_again(&self, at: Timestamp) {
        self.next.set(self.next.get().into_iter().chain([at]).min());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_the_first_that_was_not_reached() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let clock = Clock::at(at(100));
        assert!(clock.reached(at(100)) && clock.passed(at(10), Duration::from_secs(90)));
        assert!(!clock.passed(at(10), Duration::MAX));
        assert_eq!(clock.next(), None);
        assert!(!clock.reached(at(130)) && !clock.passed(at(100), Duration::from_secs(20)) && !clock.reached(at(125)));
        assert_eq!(clock.next(), Some(at(120)));
        clock.ask_again();
        assert_eq!(clock.next(), Some(at(120).min(clock.later(ASK_AGAIN))));
    }

    #[test]
    fn a_time_that_has_passed_is_not_ahead() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let clock = Clock::at(at(100));
        assert_eq!([90, 100, 130].map(|second| clock.until(at(second)).as_secs()), [0, 0, 30]);
    }
}
