//! Restarts a runtime only if necessary, and restores its previous configuration if it does not come back.
//!
//! On SIGHUP Docker reads its file again, but keeps a default runtime that the file no longer has, and whose program may be
//! removed: then no container can be created until Docker is restarted. It drops a default only for another one that the file
//! names.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use gpu_host::process::error_chain;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{
    net::UnixStream,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    daemon::{Daemon, DaemonError, LoadedConfig, ProcessIdentity, Runtime},
    daemon_json,
    entries::{FormatError, NvidiaEntries},
    state::{self, StateError},
};

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

/// The largest response, in bytes. Docker's information takes some kilobytes.
const MAX_DOCKER_RESPONSE: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    #[error("{} does not answer requests to Docker's API", .0.display())]
    Info(PathBuf, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(transparent)]
    File(#[from] StateError),
    #[error("{} is not valid", .0.display())]
    Format(PathBuf, #[source] FormatError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error("Docker keeps {0} as its default runtime: restart Docker")]
    Kept(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerInfo {
    default_runtime: String,
    #[serde(default)]
    runtimes: BTreeMap<String, LoadedRuntime>,
}

#[derive(Deserialize)]
struct LoadedRuntime {
    #[serde(default)]
    path: String,
}

impl DockerInfo {
    /// Returns the default runtime, if it is this installation's. Docker keeps it as the default even if it has dropped the runtime itself.
    fn default_of(&self, entries: &NvidiaEntries) -> Option<&str> {
        let is_own = match self.runtimes.get(&self.default_runtime) {
            Some(runtime) => entries.is_program(&runtime.path),
            None => entries.is_name(&self.default_runtime),
        };
        is_own.then_some(&self.default_runtime)
    }
}

/// Has Docker drop NVIDIA's runtime as its default if its file names no default any more. The file names one while Docker reads it, and is as
/// before afterwards.
pub async fn drop_default(
    daemon: &Daemon,
    file: &Path,
    entries: &NvidiaEntries,
    limits: WaitLimits,
) -> Result<(), DockerError> {
    let info = docker_info(&daemon.socket, limits).await?;
    let Some(default) = info.default_of(entries) else { return Ok(()) };
    let found = state::read(file)?;
    let explicit = daemon_json::with_other_default(found.as_deref().unwrap_or_default());
    let Some(explicit) = explicit.map_err(|error| DockerError::Format(file.to_owned(), error))? else { return Ok(()) };
    tracing::info!(default, "Docker keeps its default runtime; naming another");
    state::write_all(&[(file.to_owned(), Some(explicit))].into())?;
    let dropped = reload_until_dropped(daemon, entries, limits).await;
    state::write_all(&[(file.to_owned(), found)].into())?;
    dropped
}

/// Has Docker read its file again, and waits until the default is another.
async fn reload_until_dropped(daemon: &Daemon, entries: &NvidiaEntries, limits: WaitLimits) -> Result<(), DockerError> {
    daemon.reload(daemon.process().await?).await?;
    let until = Instant::now() + limits.deadline;
    loop {
        let info = docker_info(&daemon.socket, limits).await?;
        let Some(default) = info.default_of(entries) else { return Ok(()) };
        if Instant::now() >= until {
            return Err(DockerError::Kept(default.to_owned()));
        }
        sleep(limits.interval).await;
    }
}

async fn docker_info(socket: &Path, limits: WaitLimits) -> Result<DockerInfo, DockerError> {
    let answer = timeout(limits.deadline, ask(socket)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
    let parsed = answer.and_then(|text| Ok(serde_json::from_slice(&text)?));
    parsed.map_err(|error| DockerError::Info(socket.to_owned(), error))
}

async fn ask(socket: &Path) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with this set, even if the request is cancelled.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = Request::get("/info").header("host", "docker").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        return Err(format!("status {}", response.status()).into());
    }
    Ok(Limited::new(response.into_body(), MAX_DOCKER_RESPONSE).collect().await?.to_bytes())
}

#[cfg(test)]
mod tests;
