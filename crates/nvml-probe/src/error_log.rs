//! Logs repeated errors once, and paces the retries.

use std::time::{Duration, Instant};

use gpu_host::process::{Backoff, error_chain};

/// The last error and the pause that follows it. An error that repeats is logged once.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    backoff: Backoff,
    /// The last error; empty after a success.
    pub(crate) last: String,
}

impl ErrorLog {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { backoff: Backoff::new(first, longest), last: String::new() }
    }

    /// Logs an error unless it repeats. Returns the pause before the next attempt.
    pub(crate) fn record(&mut self, what: &str, error: &dyn std::error::Error) -> Duration {
        let pause = self.backoff.failed(Instant::now());
        let text = error_chain(error);
        if self.last != text {
            tracing::warn!(error = text, "{what}; retrying");
            self.last = text;
        }
        pause
    }

    pub(crate) fn clear(&mut self) {
        self.backoff.succeeded();
        self.last.clear();
    }
}
