//! Restarting a runtime only if it has to be, and giving it back what it had if it does not come back.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::{
    daemon::{DaemonError, Identity, Runtime},
    files::Loaded,
};
use crate::words::chain;

/// How long is waited for a runtime, and how often it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// After so long it counts as gone.
    pub deadline: Duration,
    /// Pause between two looks.
    pub interval: Duration,
}

/// What is on disk.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// What the files are, in a word.
    pub digest: String,
    /// When the last of them was written.
    pub written: Option<SystemTime>,
}

/// Why a runtime does not have what is on disk. The first word is the node's reason.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// It came back with what it had before.
    #[error(
        "RuntimeConfigRejected: the container runtime does not come back with NVIDIA's runtime in its configuration, which was taken out again: {0}"
    )]
    Rejected(String),
    /// It did not come back.
    #[error(
        "RuntimeDown: the container runtime does not come back, even with the configuration that it had before: {0}"
    )]
    Down(String),
}

/// Has the runtime load what is on disk, unless it has. Where it does not come back, `roll_back` gives it what it had, and
/// it is restarted with that.
///
/// # Errors
/// Where it does not have what is on disk; what it had is on disk again then.
pub async fn load<R: Runtime>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&Loaded>,
    patience: Patience,
    roll_back: impl FnOnce() -> Result<(), String>,
) -> Result<Identity, RestartError> {
    let words = match try_load(runtime, disk, known, patience).await {
        Ok(process) => return Ok(process),
        Err(error) => chain(&error),
    };
    tracing::warn!("{words}");
    if let Err(error) = roll_back() {
        return Err(RestartError::Down(format!("{words}; its files cannot be put back: {error}")));
    }
    match restart(runtime, patience).await {
        Ok(_) => Err(RestartError::Rejected(words)),
        Err(error) => Err(RestartError::Down(chain(&error))),
    }
}

async fn try_load<R: Runtime>(
    runtime: &R,
    disk: &OnDisk,
    known: Option<&Loaded>,
    patience: Patience,
) -> Result<Identity, DaemonError> {
    let process = come_back(runtime, None, patience).await?;
    if has_loaded(process, runtime.started(process)?, disk, known) {
        return Ok(process);
    }
    tracing::info!(pid = process.pid, "the container runtime's configuration has changed; it is restarted");
    reload(runtime, process, patience).await
}

/// Whether a process has loaded what is on disk: by what was recorded of it, else by when it started. A look at its files
/// that fell into the second in which they were written proves nothing.
fn has_loaded(process: Identity, started: SystemTime, disk: &OnDisk, known: Option<&Loaded>) -> bool {
    match known.filter(|known| known.process == process) {
        Some(known) => known.digest == disk.digest,
        None => disk.written.is_some_and(|written| written + Duration::from_secs(1) < started),
    }
}

/// Restarts a runtime, whatever it has loaded, and waits until it answers.
///
/// # Errors
/// Where it does not come back.
pub async fn restart<R: Runtime>(runtime: &R, patience: Patience) -> Result<Identity, DaemonError> {
    match runtime.process().await {
        Ok(process) => reload(runtime, process, patience).await,
        // Whoever starts it keeps trying.
        Err(_) => come_back(runtime, None, patience).await,
    }
}

async fn reload<R: Runtime>(runtime: &R, process: Identity, patience: Patience) -> Result<Identity, DaemonError> {
    runtime.reload(process).await?;
    come_back(runtime, runtime.is_replaced().then_some(process), patience).await
}

/// Waits for a process that answers and is not the one before.
async fn come_back<R: Runtime>(
    runtime: &R,
    before: Option<Identity>,
    patience: Patience,
) -> Result<Identity, DaemonError> {
    let until = Instant::now() + patience.deadline;
    loop {
        let error = match runtime.answering().await {
            Ok(process) if Some(process) != before => return Ok(process),
            Ok(process) => DaemonError::Unmoved(process.pid),
            Err(error) => error,
        };
        if Instant::now() >= until {
            return Err(error);
        }
        sleep(patience.interval).await;
    }
}

#[cfg(test)]
#[path = "tests/restart.rs"]
mod tests;
