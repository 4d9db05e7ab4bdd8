//! What every command of a program on the node needs: termination, errors, durations and retries.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Pauses that double with each failure in a row.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Backoff {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, retry_at: None }
    }

    /// Returns whether another attempt is due: immediately if nothing has failed since the last success.
    pub fn is_due(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|at| now >= at)
    }

    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    pub fn failed(&mut self, now: Instant) -> Duration {
        let pause = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.checked_add(pause);
        pause
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.retry_at = None;
    }
}

/// Parses a duration such as `250ms`, `10s` or `5m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let value: u64 = number.parse().map_err(|_| format!("invalid duration {text}: write 500ms, 10s or 5m"))?;
    let duration = match &text[number.len()..] {
        "ms" => Duration::from_millis(value),
        "s" => Duration::from_secs(value),
        "m" => Duration::from_secs(value.saturating_mul(60)),
        _ => return Err(format!("duration {text} has no unit: write 500ms, 10s or 5m")),
    };
    if duration.is_zero() { Err("the duration must be greater than zero".to_owned()) } else { Ok(duration) }
}

/// Returns an error with all its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors include their cause in their own text.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[derive(Debug, thiserror::Error)]
#[error("cannot start {0}")]
pub struct ExecError(String, #[source] io::Error);

/// Becomes another program. Returns only on failure.
pub fn become_program(command: &[String]) -> ExecError {
    let Some((program, args)) = command.split_first() else {
        return ExecError(String::new(), io::ErrorKind::InvalidInput.into());
    };
    ExecError(program.clone(), Command::new(program).args(args).exec())
}

/// The exit code that a shell reports for a process ended by SIGTERM. A gate that is terminated is not open and must
/// not exit 0.
pub const EXIT_TERMINATED: u8 = 128 + 15;

/// Waits for SIGTERM or SIGINT. A container's first process receives neither without a handler, so this is created
/// before anything else.
#[derive(Debug)]
pub struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs an asynchronous command on the calling thread, which must be the first of the process: the NVML child is tied
/// to the thread that starts it, so that thread must live as long as the process.
pub fn run_on_this_thread<T, E: From<io::Error>>(
    command: impl AsyncFnOnce(&mut Shutdown) -> Result<T, E>,
) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { command(&mut Shutdown::listen()?).await })
}

/// Writes the text that Kubernetes shows once the container has ended.
pub fn write_termination_log(termination_log: &Path, text: &str) {
    if let Err(error) = fs::write(termination_log, text) {
        tracing::debug!(%error, "cannot write {}", termination_log.display());
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

    #[test]
    fn durations_need_a_unit_and_a_value() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_mins(5)));
        for wrong in ["10", "s", "", "1h30", "0s", "-1s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot start")]
    struct CannotStart(#[source] io::Error);

    #[test]
    fn each_cause_of_an_error_is_included_once() {
        let error = CannotStart(io::Error::other("why"));
        assert_eq!(error_chain(&error), "cannot start: why");
    }
}
