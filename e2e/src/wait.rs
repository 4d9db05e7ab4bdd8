//! Waiting for what a cluster does in its own time.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

const PAUSE: Duration = Duration::from_millis(200);

/// Tries `attempt` until it succeeds and returns what it returned.
///
/// # Errors
/// After `deadline`, the last error of `attempt`, under `what` that should have come about: let it say what was seen.
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

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[tokio::test]
    async fn a_late_success_is_a_success() {
        let mut tries = 0;
        let answer = eventually(Duration::from_secs(5), "three tries", || {
            tries += 1;
            let now = tries;
            async move {
                if now < 3 {
                    bail!("try {now}")
                }
                Ok(now)
            }
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_failure_tells_what_was_seen_last() {
        let attempt = || async { bail!("phase is Pending") };
        let error = eventually::<(), _, _>(Duration::ZERO, "a running pod", attempt).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("a running pod") && text.contains("phase is Pending"), "{text}");
    }
}
