//! Docker's own answer: what it has loaded, and the flags with which it does not load a file.
//!
//! A key that is both a flag and in `daemon.json` ends Docker's start, and a reload leaves everything as it was. On SIGHUP Docker
//! reads its file again, but keeps a default runtime that the file no longer has, and whose program may be removed: then no
//! container can be created until Docker is restarted. It drops a default only for another one that the file names.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use gpu_host::observe::dockerd::{self, Flags, Info};

use super::{
    daemon::{Daemon, DaemonError, Runtime},
    daemon_json,
    entries::{FormatError, NvidiaEntries},
    restart::{WaitLimits, poll, wait_until_answering},
    state::{self, StateError},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// The first release that merges the runtimes of its flags and of its file.
const MERGES_RUNTIMES: (u32, u32) = (18, 9);

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
    #[error("Docker has no runtime {handler} with a program in {install_dir}{}", started(.flags))]
    NoRuntime { handler: String, install_dir: String, flags: Vec<String> },
    #[error("Docker's default runtime is {is} instead of {handler}{}", started(.flags))]
    OtherDefault { is: String, handler: String, flags: Vec<String> },
    /// The message starts with the node's reason.
    #[error(
        "RuntimeConfigRejected: dockerd was started with {}, with which it does not load NVIDIA's runtime from {}, so the file does not contain it; {}{}",
        .flags.join(" and "), .file.display(), remove(.flags),
        if *.by_default { ", or write toolkit.setAsDefault: false" } else { "" }
    )]
    Flags {
        flags: Vec<String>,
        file: PathBuf,
        /// Whether they hinder only because NVIDIA's runtime would be the default.
        by_default: bool,
    },
}

fn started(flags: &[String]) -> String {
    if flags.is_empty() {
        return String::new();
    }
    format!("; dockerd was started with {}: {}", flags.join(" and "), remove(flags))
}

fn remove(flags: &[String]) -> String {
    let them = if flags.len() == 1 { "the flag" } else { "the flags" };
    format!("remove {them} from dockerd's unit (systemctl cat docker) and restart Docker")
}

/// Returns the default runtime, if it is this installation's. Docker keeps it as the default even if it has dropped the runtime itself.
fn default_of<'i>(info: &'i Info, entries: &NvidiaEntries) -> Option<&'i str> {
    let is_own = match info.runtimes.get(&info.default_runtime) {
        Some(runtime) => entries.is_program(&runtime.path),
        None => entries.is_name(&info.default_runtime),
    };
    is_own.then_some(&info.default_runtime)
}

fn merges_runtimes(info: &Info) -> bool {
    let mut parts = info.server_version.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= MERGES_RUNTIMES,
        _ => false,
    }
}

/// What Docker should have loaded.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub file: &'a Path,
    pub entries: &'a NvidiaEntries,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
}

/// Fails if Docker's flags keep it from loading its file with NVIDIA's runtime.
pub async fn check_flags(daemon: &Daemon, wanted: Wanted<'_>, limits: WaitLimits) -> Result<(), DockerError> {
    let process = wait_until_answering(daemon, None, limits).await?;
    let flags = Flags::parse(&daemon.command_line(process.pid)?);
    if flags.runtimes.is_empty() && flags.default.is_none() {
        return Ok(());
    }
    let info = info(&daemon.socket, limits).await?;
    let hindering = |default| hindering(&flags, &info, &wanted.entries.handler, default);
    let found = hindering(wanted.default);
    if found.is_empty() {
        return Ok(());
    }
    let by_default = wanted.default && hindering(false).is_empty();
    Err(DockerError::Flags { flags: found, file: wanted.file.to_owned(), by_default })
}

/// Returns the flags with which Docker does not load NVIDIA's runtime from its file.
fn hindering(flags: &Flags, info: &Info, handler: &str, default: bool) -> Vec<String> {
    let runtimes = (!merges_runtimes(info)).then(|| runtime_flags(flags)).into_iter().flatten();
    // Without NVIDIA's runtime as the default, the flag may still name it. And a reload drops the runtimes of flags: without its default
    // Docker 20.10 ends.
    let hinders =
        |name: &&String| default || *name == handler || flags.runtimes.iter().any(|(other, _)| other == *name);
    runtimes.chain(default_flag(flags.default.as_ref().filter(hinders))).collect()
}

fn runtime_flags(flags: &Flags) -> impl Iterator<Item = String> {
    flags.runtimes.iter().map(|(name, program)| format!("--add-runtime={name}={program}"))
}

fn default_flag(default: Option<&String>) -> Option<String> {
    default.map(|name| format!("--default-runtime={name}"))
}

/// Fails unless Docker has loaded NVIDIA's runtime, and its default if it is one.
pub async fn check_loaded(daemon: &Daemon, wanted: Wanted<'_>, limits: WaitLimits) -> Result<(), DockerError> {
    let Wanted { entries, default, .. } = wanted;
    let info = info(&daemon.socket, limits).await?;
    let NvidiaEntries { handler, install_dir } = entries.clone();
    // The flags only explain it.
    let flags = || async {
        let process = daemon.process().await.ok();
        let line = process.and_then(|process| daemon.command_line(process.pid).ok()).unwrap_or_default();
        let flags = Flags::parse(&line);
        let file = flags.config_file.as_ref().map(|file| format!("--config-file={file}"));
        runtime_flags(&flags).chain(default_flag(flags.default.as_ref())).chain(file).collect()
    };
    if !info.runtimes.get(&handler).is_some_and(|runtime| entries.is_program(&runtime.path)) {
        return Err(DockerError::NoRuntime { handler, install_dir, flags: flags().await });
    }
    if default && info.default_runtime != handler {
        return Err(DockerError::OtherDefault { is: info.default_runtime, handler, flags: flags().await });
    }
    Ok(())
}

/// Has Docker drop NVIDIA's runtime as its default if its file names no default any more. The file names one while Docker reads it, and is as
/// before afterwards.
pub async fn drop_default(
    daemon: &Daemon,
    file: &Path,
    entries: &NvidiaEntries,
    limits: WaitLimits,
) -> Result<(), DockerError> {
    wait_until_answering(daemon, None, limits).await?;
    let loaded = info(&daemon.socket, limits).await?;
    let Some(default) = default_of(&loaded, entries) else { return Ok(()) };
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
    let dropped = async || match default_of(&info(&daemon.socket, limits).await?, entries) {
        None => Ok(()),
        Some(default) => Err(DockerError::Kept(default.to_owned())),
    };
    poll(limits, dropped).await
}

async fn info(socket: &Path, limits: WaitLimits) -> Result<Info, DockerError> {
    let answer = dockerd::info(socket, limits.deadline.min(PATIENCE)).await;
    answer.map_err(|error| DockerError::Info(socket.to_owned(), error))
}

#[cfg(test)]
mod tests;
