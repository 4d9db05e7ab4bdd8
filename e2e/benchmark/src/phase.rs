//! Phases of a measurement.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result, bail};
use cluster_client::audit::Requests;
use harness::{interrupts::interrupted, outln, progress::Step};
use tokio::time::{interval, sleep};

/// Runs a phase and prints its progress, described by `detail`. Fails early when a stop is requested.
pub(super) async fn step<T>(
    what: &str,
    detail: impl Fn() -> String,
    phase: impl Future<Output = Result<T>>,
) -> Result<T> {
    let step = Step::start(what);
    let mut phase = std::pin::pin!(phase);
    let mut seconds = interval(Duration::from_secs(1));
    let outcome = loop {
        tokio::select! {
            outcome = &mut phase => break outcome.with_context(|| what.to_owned())?,
            _ = seconds.tick() => {
                if interrupted() {
                    bail!("interrupted");
                }
                step.tick(&detail());
            }
        }
    };
    step.done();
    Ok(outcome)
}

/// Runs a phase in which nothing is done.
pub(super) async fn pause(time: Duration) -> Result<()> {
    sleep(time).await;
    Ok(())
}

/// Prints the requests of a phase by kind, and the objects with the most requests.
pub(super) fn print_requests(requests: &Requests) {
    outln!("      {requests}");
    let mut names: Vec<_> = requests.without_watches().by_name().into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most: Vec<String> = names.iter().take(5).map(|(name, count)| format!("{count} {name:?}")).collect();
    outln!("      {} objects, most requests: {}", names.len(), most.join(", "));
}
