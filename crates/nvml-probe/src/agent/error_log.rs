//! Logs repeated errors once, and paces the retries.

use std::time::{Duration, Instant};

use gpu_host::process::{Backoff, error_chain};

/// The last error and the pause that follows it. An error that repeats is logged once.
pub(super) struct ErrorLog {
    backoff: Backoff,
    last: String,
}

impl ErrorLog {
    /// Creates a log whose pauses start with `first` and do not exceed `longest`.
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { backoff: Backoff::new(first, longest), last: String::new() }
    }

    /// Logs an error unless it repeats. Returns the pause before the next attempt.
    pub(super) fn record(&mut self, what: &str, error: &dyn std::error::Error) -> Duration {
        let pause = self.backoff.failed(Instant::now());
        let text = error_chain(error);
        if self.last != text {
            tracing::warn!(error = text, "{what}; retrying");
            self.last = text;
        }
        pause
    }

    /// Records a success.
    pub(super) fn clear(&mut self) {
        self.backoff.succeeded();
        self.last.clear();
    }
}
