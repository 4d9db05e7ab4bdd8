//! Docker's default runtime. On SIGHUP Docker reads its file again, but keeps a default that the file does not have any more, and whose program
//! may be removed: then no container can be created until Docker is restarted. It drops one only for another that the file names.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

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
    daemon::{Daemon, DaemonError, Runtime},
    daemon_json,
    entries::{FormatError, NvidiaEntries},
    restart::WaitLimits,
    state::{self, StateError},
};

/// The largest response, in bytes. Docker's information takes some kilobytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Why Docker's default runtime is not known, or stays.
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

/// What Docker has loaded.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    default_runtime: String,
    #[serde(default)]
    runtimes: BTreeMap<String, LoadedRuntime>,
}

#[derive(Deserialize)]
struct LoadedRuntime {
    #[serde(default)]
    path: String,
}

impl Info {
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
    let info = info(&daemon.socket, limits).await?;
    let Some(default) = info.default_of(entries) else { return Ok(()) };
    let found = state::read(file)?;
    let explicit = daemon_json::with_other_default(found.as_deref().unwrap_or_default());
    let Some(explicit) = explicit.map_err(|error| DockerError::Format(file.to_owned(), error))? else { return Ok(()) };
    tracing::info!(default, "Docker keeps its default runtime; naming another");
    state::write_all(&[(file.to_owned(), Some(explicit))].into())?;
    let dropped = reload(daemon, entries, limits).await;
    state::write_all(&[(file.to_owned(), found)].into())?;
    dropped
}

/// Has Docker read its file again, and waits until the default is another.
async fn reload(daemon: &Daemon, entries: &NvidiaEntries, limits: WaitLimits) -> Result<(), DockerError> {
    daemon.reload(daemon.process().await?).await?;
    let until = Instant::now() + limits.deadline;
    loop {
        let info = info(&daemon.socket, limits).await?;
        let Some(default) = info.default_of(entries) else { return Ok(()) };
        if Instant::now() >= until {
            return Err(DockerError::Kept(default.to_owned()));
        }
        sleep(limits.interval).await;
    }
}

async fn info(socket: &Path, limits: WaitLimits) -> Result<Info, DockerError> {
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
    Ok(Limited::new(response.into_body(), MAX_RESPONSE).collect().await?.to_bytes())
}
