//! Pauses between attempts at something that has failed. Time is an argument, so nothing here waits.

use std::time::{Duration, Instant};

/// Pauses that double with each failure in a row.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Backoff {
    /// Creates a backoff that starts with `first`, doubles with each failure and never exceeds `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, retry_at: None }
    }

    /// Returns whether another attempt is due: immediately if nothing has failed since the last success.
    pub fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|at| now >= at)
    }

    /// Returns whether anything has failed since the last success.
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Records a failure and returns the pause that follows it.
    pub fn failed(&mut self, now: Instant) -> Duration {
        let pause = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.checked_add(pause);
        pause
    }

    /// Records a success, so that the next failure counts as the first.
    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_reset_after_a_success() {
        let now = Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(10));
        assert!(backoff.is_due(now));
        let pauses: Vec<u64> = (0..5).map(|_| backoff.failed(now).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 10, 10]);
        assert!(!backoff.is_due(now + Duration::from_secs(9)));
        assert!(backoff.is_due(now + Duration::from_secs(10)));
        backoff.succeeded();
        assert!(backoff.is_due(now));
        assert_eq!(backoff.failed(now).as_secs(), 2);
    }

    #[test]
    fn a_thousand_failures_do_not_overflow() {
        let now = Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(5));
        for _ in 0..1000 {
            assert!(backoff.failed(now) <= Duration::from_mins(5));
        }
    }
}
