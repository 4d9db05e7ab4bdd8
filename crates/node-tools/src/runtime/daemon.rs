//! The container runtime's process: which one it is, when it started, whether it serves the CRI, and how to have it read its
//! configuration.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command as Program,
    time::{Duration, SystemTime},
};

use gpu_host::{
    grpc::{self, GrpcError},
    observe::processes::MAX_COMMAND_LINE,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, chdir, chroot},
};
use serde::{Deserialize, Serialize};
use tokio::{net::UnixStream, process::Command};

use super::entries::RuntimeKind;

/// Ticks per second of process times: fixed by the kernel for programs on every supported architecture.
const TICKS: u64 = 100;

/// One lifetime of a process: the process id may be reused, but not together with the start time.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The process id on the host.
    pub pid: i32,
    /// The start time, in ticks since the boot.
    pub start: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("{} does not answer", .0.display())]
    Socket(PathBuf, #[source] io::Error),
    #[error("{} does not serve the CRI", .0.display())]
    Cri(PathBuf, #[source] CriError),
    #[error("found no process {0}, or more than one")]
    NoProcess(&'static str),
    #[error("cannot read {}", .0.display())]
    Proc(PathBuf, #[source] io::Error),
    #[error("cannot signal process {0}")]
    Signal(i32, #[source] nix::Error),
    #[error("process {0} keeps running and does not reload its configuration")]
    Unmoved(i32),
    #[error("cannot restart it")]
    Unit(#[source] UnitError),
}

/// A container runtime: its socket and its process.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub kind: RuntimeKind,
    pub socket: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
}

/// The operations that a restart needs.
pub trait Runtime {
    /// Returns the process that listens, whether or not it can run containers.
    fn process(&self) -> impl Future<Output = Result<ProcessIdentity, DaemonError>>;

    /// Returns the process that serves requests.
    fn answering(&self) -> impl Future<Output = Result<ProcessIdentity, DaemonError>>;

    fn reload(&self, process: ProcessIdentity) -> impl Future<Output = Result<(), DaemonError>>;

    /// Returns whether reloading the configuration replaces the process.
    fn is_replaced(&self) -> bool;

    fn started(&self, process: ProcessIdentity) -> Result<SystemTime, DaemonError>;
}

impl Runtime for Daemon {
    async fn process(&self) -> Result<ProcessIdentity, DaemonError> {
        self.peer(&self.connect().await?)
    }

    async fn answering(&self) -> Result<ProcessIdentity, DaemonError> {
        let stream = self.connect().await?;
        let process = self.peer(&stream)?;
        // Docker serves requests as soon as it listens, and is asked for what it has loaded; the others listen before they can run containers.
        if self.kind != RuntimeKind::Docker {
            check_cri(stream).await.map_err(|error| DaemonError::Cri(self.socket.clone(), error))?;
        }
        Ok(process)
    }

    async fn reload(&self, process: ProcessIdentity) -> Result<(), DaemonError> {
        match self.kind {
            // containerd exits on SIGHUP and is restarted by its supervisor; Docker rereads its file and keeps running.
            RuntimeKind::Containerd | RuntimeKind::Docker => kill(Pid::from_raw(process.pid), Signal::SIGHUP)
                .map_err(|error| DaemonError::Signal(process.pid, error)),
            RuntimeKind::CriO => restart_unit(&self.proc, "crio.service").await.map_err(DaemonError::Unit),
        }
    }

    fn is_replaced(&self) -> bool {
        self.kind != RuntimeKind::Docker
    }

    fn started(&self, process: ProcessIdentity) -> Result<SystemTime, DaemonError> {
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

    fn peer(&self, stream: &UnixStream) -> Result<ProcessIdentity, DaemonError> {
        let peer = stream.peer_cred().map_err(|error| DaemonError::Socket(self.socket.clone(), error))?;
        match peer.pid() {
            // systemd created the socket, and passed it on.
            None | Some(..=1) => self.by_name(),
            Some(pid) => self.identity(pid),
        }
    }

    fn identity(&self, pid: i32) -> Result<ProcessIdentity, DaemonError> {
        let path = self.proc.join(pid.to_string()).join("stat");
        let text = fs::read_to_string(&path).map_err(|error| DaemonError::Proc(path.clone(), error))?;
        let start = fields(&text).and_then(|mut fields| fields.nth(19)?.parse().ok());
        let start = start.ok_or_else(|| DaemonError::Proc(path, io::ErrorKind::InvalidData.into()))?;
        Ok(ProcessIdentity { pid, start })
    }

    /// Returns a process' arguments, each ended by a zero byte.
    pub fn command_line(&self, pid: i32) -> Result<Vec<u8>, DaemonError> {
        let path = self.proc.join(pid.to_string()).join("cmdline");
        let mut line = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_COMMAND_LINE).read_to_end(&mut line));
        read.map_err(|error| DaemonError::Proc(path, error))?;
        Ok(line)
    }

    /// Returns the single process with the runtime's name that was started by the host's first process.
    fn by_name(&self) -> Result<ProcessIdentity, DaemonError> {
        let name = match self.kind {
            RuntimeKind::Containerd => "containerd",
            RuntimeKind::Docker => "dockerd",
            RuntimeKind::CriO => "crio",
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

/// Returns the fields of `/proc/PID/stat` from the third on: the second, a name, may contain anything, including
/// brackets.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace())
}

/// Returns the host's `/proc`, which a container in the host's PID namespace sees as its own.
pub fn proc() -> PathBuf {
    Path::new("/proc").to_owned()
}

const CRI_PATIENCE: Duration = Duration::from_secs(5);
/// The largest response, in bytes. A version takes less than a hundred.
const MAX_CRI_RESPONSE: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum CriError {
    #[error("it does not serve the CRI: its configuration may be invalid")]
    Unknown,
    #[error(transparent)]
    Request(GrpcError),
}

/// Requests the runtime's version, the simplest of all requests.
async fn check_cri(stream: UnixStream) -> Result<(), CriError> {
    match grpc::call(stream, "/runtime.v1.RuntimeService/Version", &[], MAX_CRI_RESPONSE, CRI_PATIENCE).await {
        Ok(version) if !version.is_empty() => Ok(()),
        Ok(_) => Err(CriError::Unknown),
        Err(error) if error.is_unimplemented() => Err(CriError::Unknown),
        Err(error) => Err(CriError::Request(error)),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error("cannot start systemctl")]
    Start(#[source] io::Error),
    #[error("systemctl restart {unit}: {output}")]
    Failed {
        unit: String,
        /// Of `systemctl`.
        output: String,
    },
}

/// Restarts a service. The host's root is reached through its first process, so it does not have to be mounted.
async fn restart_unit(proc: &Path, unit: &str) -> Result<(), UnitError> {
    let own = std::env::current_exe().map_err(UnitError::Start)?;
    let mut command = Command::new(own);
    command.args(["runtime", "systemctl", "--host-root"]).arg(proc.join("1/root")).arg(unit).kill_on_drop(true);
    let result = command.output().await.map_err(UnitError::Start)?;
    if result.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&result.stderr).trim().to_owned();
    Err(UnitError::Failed { unit: unit.to_owned(), output })
}

/// Becomes the host's `systemctl restart`. This is a process of its own because it leaves this root permanently.
/// Returns only on failure, with the error.
pub fn become_systemctl(host_root: &Path, unit: &str) -> io::Error {
    if let Err(error) = chroot(host_root).and_then(|()| chdir("/")) {
        return error.into();
    }
    Program::new("systemctl").args(["restart", unit]).exec()
}

/// The name of the file with this record, in the folder for state that does not survive a reboot.
pub const LOADED_FILE: &str = "loaded.json";

/// The configuration that the runtime is known to have loaded.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    pub process: ProcessIdentity,
    /// The digest of the files at that time.
    pub digest: String,
}
