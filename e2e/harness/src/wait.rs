//! Waiting until something has happened: [`poll`] blocks, [`eventually`] is `async`.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::interrupts::pause;

const PAUSE: Duration = Duration::from_millis(200);

/// Calls `attempt` until it succeeds and returns its result. `what` names the expected event.
pub async fn eventually<T, F, Attempt>(deadline: Duration, what: &str, mut attempt: F) -> Result<T>
where
    F: FnMut() -> Attempt,
    Attempt: Future<Output = Result<T>>,
{
    let end = Instant::now() + deadline;
    loop {
        // An attempt that hangs must not outlive the deadline either.
        let left = end.saturating_duration_since(Instant::now()).max(PAUSE);
        let last = match tokio::time::timeout(left, attempt()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(elapsed) => elapsed.into(),
        };
        if Instant::now() >= end {
            return Err(last).with_context(|| format!("{what}: not within {} s; last seen", deadline.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Calls `attempt` until it returns `Ok(Ok(answer))`, and returns the answer. `Ok(Err(state))` means not yet. After `deadline`
/// the error has `what` and the last state.
pub fn poll<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        match attempt()? {
            Ok(answer) => return Ok(answer),
            Err(state) if Instant::now() > end => {
                bail!("{what}: not within {} s; last seen: {state}", deadline.as_secs())
            }
            Err(_) => pause(Duration::from_millis(100))?,
        }
    }
}
