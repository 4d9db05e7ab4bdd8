//! The container runtime's process: which one it is, since when it runs, and how it is told to read its configuration.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

use super::{cri, files::Kind, unit};

/// Ticks of a process' times to a second: the kernel's promise to programs on every architecture that is supported here.
const TICKS: u64 = 100;

/// One life of a process: its number may come again, its number and start together do not.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number, as the host counts.
    pub pid: i32,
    /// When it started, in ticks since the kernel did.
    pub start: u64,
}

/// Why the runtime cannot be found or told.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Its socket takes no connection.
    #[error("{} does not answer", .0.display())]
    Socket(PathBuf, #[source] io::Error),
    /// It takes connections and does not answer for containers.
    #[error("{} does not answer for containers", .0.display())]
    Cri(PathBuf, #[source] cri::CriError),
    /// No process of it.
    #[error("no process {0} is to be found, or more than one")]
    NoProcess(&'static str),
    /// What the kernel tells of it cannot be read.
    #[error("cannot read {}", .0.display())]
    Proc(PathBuf, #[source] io::Error),
    /// It cannot be signalled.
    #[error("cannot signal process {0}")]
    Signal(i32, #[source] nix::Error),
    /// It goes on as it was.
    #[error("process {0} goes on and does not read its configuration anew")]
    Unmoved(i32),
    /// It cannot be restarted.
    #[error("cannot restart it")]
    Unit(#[source] unit::UnitError),
}

/// A runtime: where it listens and where the kernel tells of its process.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// What it is.
    pub kind: Kind,
    /// Its socket.
    pub socket: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
}

/// What restarts need of a runtime.
pub trait Runtime {
    /// The process that listens now, whether or not it can run anything.
    ///
    /// # Errors
    /// Where none does.
    fn process(&self) -> impl Future<Output = Result<Identity, DaemonError>>;

    /// The process that answers now.
    ///
    /// # Errors
    /// Where none does.
    fn answering(&self) -> impl Future<Output = Result<Identity, DaemonError>>;

    /// Tells it to read its configuration, by whatever it understands.
    ///
    /// # Errors
    /// Where that cannot be said.
    fn reload(&self, process: Identity) -> impl Future<Output = Result<(), DaemonError>>;

    /// Whether another process takes its place when it reads its configuration.
    fn is_replaced(&self) -> bool;

    /// When a process started.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    fn started(&self, process: Identity) -> Result<SystemTime, DaemonError>;
}

impl Runtime for Daemon {
    async fn process(&self) -> Result<Identity, DaemonError> {
        self.peer(&self.connect().await?)
    }

    async fn answering(&self) -> Result<Identity, DaemonError> {
        let stream = self.connect().await?;
        let process = self.peer(&stream)?;
        // Docker answers at once, and is all that it was; the others listen before they can run anything.
        if self.kind != Kind::Docker {
            cri::ask(stream).await.map_err(|error| DaemonError::Cri(self.socket.clone(), error))?;
        }
        Ok(process)
    }

    async fn reload(&self, process: Identity) -> Result<(), DaemonError> {
        match self.kind {
            // containerd ends by it, and is started again by whoever started it; Docker reads its file and runs on.
            Kind::Containerd | Kind::Docker => kill(Pid::from_raw(process.pid), Signal::SIGHUP)
                .map_err(|error| DaemonError::Signal(process.pid, error)),
            Kind::CriO => unit::restart(&self.proc, "crio.service").await.map_err(DaemonError::Unit),
        }
    }

    fn is_replaced(&self) -> bool {
        self.kind != Kind::Docker
    }

    fn started(&self, process: Identity) -> Result<SystemTime, DaemonError> {
        let path = self.proc.join("stat");
        let text = fs::read_to_string(&path).map_err(|error| DaemonError::Proc(path.clone(), error))?;
        let boot = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
        let boot = boot.ok_or_else(|| DaemonError::Proc(path, io::ErrorKind::InvalidData.into()))?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(boot) + Duration::from_millis(process.start * 1000 / TICKS))
    }
}

impl Daemon {
    async fn connect(&self) -> Result<UnixStream, DaemonError> {
        UnixStream::connect(&self.socket).await.map_err(|error| DaemonError::Socket(self.socket.clone(), error))
    }

    /// Who listens at the other end.
    fn peer(&self, stream: &UnixStream) -> Result<Identity, DaemonError> {
        let peer = stream.peer_cred().map_err(|error| DaemonError::Socket(self.socket.clone(), error))?;
        match peer.pid() {
            // systemd made the socket, and passed it on.
            None | Some(..=1) => self.by_name(),
            Some(pid) => self.identity(pid),
        }
    }

    /// The process of a number.
    fn identity(&self, pid: i32) -> Result<Identity, DaemonError> {
        let path = self.proc.join(pid.to_string()).join("stat");
        let text = fs::read_to_string(&path).map_err(|error| DaemonError::Proc(path.clone(), error))?;
        let start = fields(&text).and_then(|mut fields| fields.nth(19)?.parse().ok());
        let start = start.ok_or_else(|| DaemonError::Proc(path, io::ErrorKind::InvalidData.into()))?;
        Ok(Identity { pid, start })
    }

    /// The one process of the runtime's name that the host's first process has started.
    fn by_name(&self) -> Result<Identity, DaemonError> {
        let name = match self.kind {
            Kind::Containerd => "containerd",
            Kind::Docker => "dockerd",
            Kind::CriO => "crio",
        };
        let folders = fs::read_dir(&self.proc).map_err(|error| DaemonError::Proc(self.proc.clone(), error))?;
        let pids = folders.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut found = pids.filter(|pid| self.is_service(*pid, name));
        match (found.next(), found.next()) {
            (Some(pid), None) => self.identity(pid),
            _ => Err(DaemonError::NoProcess(name)),
        }
    }

    fn is_service(&self, pid: i32, name: &str) -> bool {
        let folder = self.proc.join(pid.to_string());
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let parent = || fields(&read("stat")).and_then(|mut fields| fields.nth(1).map(str::to_owned));
        read("comm").trim_end() == name && parent().as_deref() == Some("1")
    }
}

/// The fields of `/proc/PID/stat` from the third on: the second, a name, may hold anything, brackets included.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace())
}

/// The host's `/proc`, which a container that sees the host's processes sees as its own.
#[must_use]
pub fn proc() -> PathBuf {
    Path::new("/proc").to_owned()
}
