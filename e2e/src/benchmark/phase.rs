//! A phase of a measurement.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::time::{interval, sleep};

use crate::{audit::Requests, process::interrupted, progress::Step};

/// Shows that a phase goes on, and how far `detail` says it is; cuts it short when someone asks to stop.
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

/// A phase in which nothing is done.
pub(super) async fn pause(time: Duration) -> Result<()> {
    sleep(time).await;
    Ok(())
}

/// What was asked in a phase, by kind and by the objects that most of it was about.
pub(super) fn tell(requests: &Requests) {
    say!("      {requests}");
    let mut names: Vec<_> = requests.without_watches().by_name().into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let most: Vec<String> = names.iter().take(5).map(|(name, count)| format!("{count} {name:?}")).collect();
    say!("      of {} objects, most of: {}", names.len(), most.join(", "));
}
