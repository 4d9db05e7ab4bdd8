//! Waiting until the policies are ready.

use std::{pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};

use crate::{
    context::Outcome,
    read::ReadError,
    status::{
        facts::Facts,
        report::{Progress, progress},
    },
};

/// Waits until the policies are ready, one of them cannot become ready by itself, or the time is over. Returns the last facts.
pub async fn until_ready(
    changes: impl Stream<Item = Result<Facts, ReadError>>,
    most: Duration,
) -> Result<(Facts, Outcome), ReadError> {
    let mut changes = pin!(changes);
    let mut last = Facts::default();
    let end = Instant::now() + most;
    while let Ok(Some(facts)) = timeout_at(end, changes.next()).await {
        last = facts?;
        match progress(&last) {
            Progress::Ready => return Ok((last, Outcome::Good)),
            Progress::Stuck => return Ok((last, Outcome::Bad)),
            Progress::Moving => {}
        }
    }
    Ok((last, Outcome::TimedOut))
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use gpu_operator_crd::ClusterGpuPolicy;
    use serde_json::json;

    use super::*;

    /// A policy with this generation of which this one is observed, and with these conditions that are true or false.
    fn facts(generation: i64, observed: i64, conditions: &[(&str, bool)]) -> Facts {
        let condition = |(kind, is): &(&str, bool)| {
            let status = if *is { "True" } else { "False" };
            json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        let policy: ClusterGpuPolicy = serde_json::from_value(json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "ClusterGpuPolicy",
            "metadata": {"name": "all", "generation": generation}, "spec": {},
            "status": {"observedGeneration": observed, "conditions": conditions},
        }))
        .expect("a policy");
        Facts { policies: vec![policy], ..Facts::default() }
    }

    async fn awaited(steps: Vec<Facts>) -> Outcome {
        let changes = stream::iter(steps.into_iter().map(Ok)).chain(stream::pending());
        until_ready(changes, Duration::from_mins(30)).await.expect("facts").1
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_a_policy_is_ready_or_stuck_or_too_late() {
        let (ready, stuck) = ([("Ready", true)], [("Ready", false), ("Stalled", true)]);
        let moving = [("Ready", true), ("Reconciling", true)];
        for (steps, outcome) in [
            (vec![facts(1, 1, &[("Ready", false)]), facts(1, 1, &ready)], Outcome::Good),
            // An earlier generation was ready, or stuck.
            (vec![facts(2, 1, &ready)], Outcome::TimedOut),
            (vec![facts(2, 1, &stuck), facts(2, 2, &ready)], Outcome::Good),
            (vec![facts(1, 1, &moving)], Outcome::TimedOut),
            (vec![facts(1, 1, &stuck), facts(1, 1, &ready)], Outcome::Bad),
            (vec![facts(1, 1, &[("Ready", true), ("Accepted", false)])], Outcome::Bad),
            // No policy yet.
            (vec![Facts::default()], Outcome::TimedOut),
            (vec![], Outcome::TimedOut),
        ] {
            assert_eq!(awaited(steps.clone()).await, outcome, "{steps:?}");
        }
        let missing = stream::iter([Err(ReadError::Forbidden("list policies".into()))]);
        assert!(until_ready(missing, Duration::from_mins(1)).await.is_err());
    }
}
