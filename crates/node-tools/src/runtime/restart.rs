//! Restarts a runtime only if necessary, and restores its previous configuration if it does not come back.

use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use gpu_host::process::error_chain;
use tokio::time::{Instant, sleep};

use super::daemon::{DaemonError, LoadedConfig, ProcessIdentity, Runtime};

#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// The time after which it counts as down.
    pub deadline: Duration,
    pub interval: Duration,
}

#[derive(Clone, Debug)]
pub struct OnDisk {
    pub digest: String,
    /// When the last of them was written.
    pub written: Option<SystemTime>,
}

/// Why a runtime has not loaded the configuration on disk. The message starts with the node's reason.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    #[error(
        "RuntimeConfigRejected: the container runtime does not run with NVIDIA's runtime in its configuration, which was removed again: {0}"
    )]
    Rejected(String),
    #[error("RuntimeDown: the container runtime does not start, even with its previous configuration: {0}")]
    Down(String),
}

/// The longest time for which a file stays that a running process has not loaded: it might not start with it, and reloads within a second.
const LOAD_PATIENCE: Duration = Duration::from_secs(20);

/// Has the runtime load the configuration on disk unless it already has. If it does not come back, or `check` fails, `roll_back`
/// restores the previous configuration, and the runtime is restarted with that.
pub async fn load<R: Runtime, E: Error + From<DaemonError> + 'static>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&LoadedConfig>,
    limits: WaitLimits,
    check: impl AsyncFn() -> Result<(), E>,
    roll_back: impl FnOnce() -> Result<(), String>,
) -> Result<ProcessIdentity, RestartError> {
    let cause = match try_load(runtime, disk, known, limits, check).await {
        Ok(process) => return Ok(process),
        Err(error) => error_chain(&error),
    };
    tracing::warn!("{cause}");
    if let Err(error) = roll_back() {
        return Err(RestartError::Down(format!("{cause}; its files cannot be restored: {error}")));
    }
    match restart(runtime, limits).await {
        Ok(_) => Err(RestartError::Rejected(cause)),
        Err(error) => Err(RestartError::Down(error_chain(&error))),
    }
}

async fn try_load<R: Runtime, E: From<DaemonError>>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&LoadedConfig>,
    limits: WaitLimits,
    check: impl AsyncFn() -> Result<(), E>,
) -> Result<ProcessIdentity, E> {
    let process = wait_until_answering(runtime, None, limits).await?;
    if has_loaded(process, runtime.started(process)?, disk, known) && check().await.is_ok() {
        return Ok(process);
    }
    tracing::info!(pid = process.pid, "the container runtime's configuration has changed; restarting it");
    let process = reload(runtime, process, limits).await?;
    poll(WaitLimits { deadline: limits.deadline.min(LOAD_PATIENCE), ..limits }, check).await?;
    Ok(process)
}

/// Returns whether a process has loaded the configuration on disk, according to the record or else its start time. A
/// start in the second in which the files were written proves nothing.
fn has_loaded(process: ProcessIdentity, started: SystemTime, disk: &OnDisk, known: Option<&LoadedConfig>) -> bool {
    match known.filter(|known| known.process == process) {
        Some(known) => known.digest == disk.digest,
        None => disk.written.is_some_and(|written| written + Duration::from_secs(1) < started),
    }
}

/// Restarts a runtime, whatever it has loaded, and waits until it answers.
pub async fn restart<R: Runtime>(runtime: &R, limits: WaitLimits) -> Result<ProcessIdentity, DaemonError> {
    match runtime.process().await {
        Ok(process) => reload(runtime, process, limits).await,
        // Its supervisor keeps trying to start it.
        Err(_) => wait_until_answering(runtime, None, limits).await,
    }
}

async fn reload<R: Runtime>(
    runtime: &R,
    process: ProcessIdentity,
    limits: WaitLimits,
) -> Result<ProcessIdentity, DaemonError> {
    runtime.reload(process).await?;
    wait_until_answering(runtime, runtime.is_replaced().then_some(process), limits).await
}

/// Waits for a process that answers and is not the previous one.
pub async fn wait_until_answering<R: Runtime>(
    runtime: &R,
    before: Option<ProcessIdentity>,
    limits: WaitLimits,
) -> Result<ProcessIdentity, DaemonError> {
    let answers = async || match runtime.answering().await? {
        process if Some(process) == before => Err(DaemonError::Unmoved(process.pid)),
        process => Ok(process),
    };
    poll(limits, answers).await
}

/// Repeats an attempt until it succeeds, or returns its error at the deadline.
pub async fn poll<T, E>(limits: WaitLimits, attempt: impl AsyncFn() -> Result<T, E>) -> Result<T, E> {
    let until = Instant::now() + limits.deadline;
    loop {
        match attempt().await {
            Err(_) if Instant::now() < until => sleep(limits.interval).await,
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests;
