//! Restarts a runtime only if necessary, and restores its previous configuration if it does not come back.

use std::time::{Duration, SystemTime};

use gpu_host::process::error_chain;
use tokio::time::{Instant, sleep};

use super::{
    daemon::{DaemonError, ProcessIdentity, Runtime},
    loaded::LoadedConfig,
};

/// How long to wait for a runtime, and how often to check it.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// The time after which it counts as down.
    pub deadline: Duration,
    /// Pause between two checks.
    pub interval: Duration,
}

/// The configuration on disk.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// The digest of the files.
    pub digest: String,
    /// When the last of them was written.
    pub written: Option<SystemTime>,
}

/// Why a runtime has not loaded the configuration on disk. The message starts with the node's reason.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    #[error(
        "RuntimeConfigRejected: the container runtime does not start with NVIDIA's runtime in its configuration, which was removed again: {0}"
    )]
    Rejected(String),
    #[error("RuntimeDown: the container runtime does not start, even with its previous configuration: {0}")]
    Down(String),
}

/// Has the runtime load the configuration on disk unless it already has. If it does not come back, `roll_back` restores
/// the previous configuration, and the runtime is restarted with that.
pub async fn load<R: Runtime>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&LoadedConfig>,
    limits: WaitLimits,
    roll_back: impl FnOnce() -> Result<(), String>,
) -> Result<ProcessIdentity, RestartError> {
    let cause = match try_load(runtime, disk, known, limits).await {
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

async fn try_load<R: Runtime>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&LoadedConfig>,
    limits: WaitLimits,
) -> Result<ProcessIdentity, DaemonError> {
    let process = wait_until_answering(runtime, None, limits).await?;
    if has_loaded(process, runtime.started(process)?, disk, known) {
        return Ok(process);
    }
    tracing::info!(pid = process.pid, "the container runtime's configuration has changed; restarting it");
    reload(runtime, process, limits).await
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
async fn wait_until_answering<R: Runtime>(
    runtime: &R,
    before: Option<ProcessIdentity>,
    limits: WaitLimits,
) -> Result<ProcessIdentity, DaemonError> {
    let until = Instant::now() + limits.deadline;
    loop {
        let error = match runtime.answering().await {
            Ok(process) if Some(process) != before => return Ok(process),
            Ok(process) => DaemonError::Unmoved(process.pid),
            Err(error) => error,
        };
        if Instant::now() >= until {
            return Err(error);
        }
        sleep(limits.interval).await;
    }
}

#[cfg(test)]
mod tests;
