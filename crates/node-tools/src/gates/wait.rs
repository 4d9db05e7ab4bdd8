//! The gates that a stage's pod passes before its containers start, among them the guard, which keeps an installer from replacing
//! a driver that programs use. Gates check facts of the node only, not marker files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use gpu_host::{
    observe::{
        device_nodes,
        driver::{self, DriverError},
    },
    process::error_chain,
    root::HostRoot,
};
use gpu_operator_common::version::is_release_of;
use rustix::{
    fs::{Mode, mkdir, rmdir},
    io::Errno,
    mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_move, unmount},
};
use tokio::time::sleep;

use crate::runtime::{
    config_files::{Text, Texts, digest},
    daemon::{self, LoadedConfig},
    state,
};

/// The toolkit's program through which the runtime gives a container its GPUs.
const CDI_HOOK: &str = "nvidia-cdi-hook";

/// Its facts are read again for each check.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Open once the driver is loaded and its libraries are installed where they are used.
    Driver {
        root: String,
        /// The version that must be loaded, or only its branch; `None` accepts any version.
        version: Option<String>,
        /// The file that the driver's container keeps locked while it runs, if a container installs the driver. The
        /// root then counts only while that container is alive and the device nodes that programs open exist.
        pid_file: Option<PathBuf>,
    },
    Toolkit {
        install_dir: PathBuf,
        /// The file that the installer keeps while it runs, if it must be running.
        pid_file: Option<PathBuf>,
        /// The required configuration of the container runtime, if any.
        configured: Option<RuntimeRequirement>,
    },
    /// Open while the MPS control daemons run.
    Mps {
        /// The host's folder in which the daemons meet their clients.
        root: PathBuf,
    },
    /// Open while no program uses a driver that an installation would replace.
    Guard {
        /// The version to be installed, or only its branch; `None` if it is not known in advance.
        version: Option<String>,
        /// The condition under which an installer may start although a driver is in use.
        takeover: Takeover,
    },
}

/// The requirement that the container runtime has NVIDIA's runtime in its configuration and has loaded it.
#[derive(Clone, Debug)]
pub struct RuntimeRequirement {
    /// The configuration files; one of them must contain NVIDIA's runtime.
    pub files: Vec<PathBuf>,
    /// The folder that records which configuration was loaded.
    pub loaded: PathBuf,
}

impl Gate {
    /// Checks the gate once. A fact that cannot be read keeps the gate closed.
    pub fn check(&self, host: &HostRoot) -> GateStatus {
        let status = match self {
            Self::Driver { root, version, pid_file } => driver(host, root, version.as_deref(), pid_file.as_deref()),
            Self::Toolkit { install_dir, pid_file, configured } => {
                Ok(toolkit(host, install_dir, pid_file.as_deref(), configured.as_ref()))
            }
            Self::Mps { root } => Ok(mps(host, root)),
            Self::Guard { version, takeover } => guard(host, version.as_deref(), takeover),
        };
        status.unwrap_or_else(|error| GateStatus::Waiting(error_chain(&error)))
    }

    /// Checks the gate every `interval` until it is open, and passes each changed status to `notify`.
    pub async fn wait(&self, host: &HostRoot, interval: Duration, mut notify: impl FnMut(&GateStatus)) {
        let mut last = None;
        loop {
            let status = self.check(host);
            if last.as_ref() != Some(&status) {
                notify(&status);
            }
            if matches!(status, GateStatus::Open(_)) {
                return;
            }
            last = Some(status);
            sleep(interval).await;
        }
    }
}

fn driver(
    host: &HostRoot,
    root: &str,
    version: Option<&str>,
    pid_file: Option<&Path>,
) -> Result<GateStatus, DriverError> {
    let wanted = version.map_or_else(|| "an NVIDIA driver".to_owned(), |version| format!("NVIDIA driver {version}"));
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(GateStatus::Waiting(format!("waiting for {wanted}: no NVIDIA kernel module is loaded")));
    };
    if version.is_some_and(|version| !is_release_of(&loaded, version)) {
        return Ok(GateStatus::Waiting(format!("waiting for {wanted}: {loaded} is loaded")));
    }
    let libraries = driver::libraries(host, root)?;
    if !libraries.iter().any(|library| library.version == loaded) {
        return Ok(GateStatus::Waiting(format!(
            "waiting for the libraries of NVIDIA driver {loaded}: there is no libnvidia-ml.so.{loaded} under {root}"
        )));
    }
    if let Some(file) = pid_file {
        if !is_locked(host, file) {
            let file = file.display();
            return Ok(GateStatus::Waiting(format!(
                "waiting for the driver's container: no running container locks {file}"
            )));
        }
        let missing = device_nodes::missing(host, &HostRoot::new("/"), root);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Ok(GateStatus::Waiting(format!(
                "waiting for the driver's device nodes: {root}/dev lacks {missing}"
            )));
        }
    }
    Ok(GateStatus::Open(format!("NVIDIA driver {loaded} is loaded and its libraries are under {root}")))
}

fn toolkit(
    host: &HostRoot,
    install_dir: &Path,
    pid_file: Option<&Path>,
    configured: Option<&RuntimeRequirement>,
) -> GateStatus {
    let hook = install_dir.join(CDI_HOOK);
    let shown = hook.display();
    let waiting = |what: &str| GateStatus::Waiting(format!("waiting for the container toolkit: {what}"));
    match host.metadata(&hook) {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => return waiting(&format!("{shown} is not an executable file")),
        Err(error) => return waiting(&format!("{shown}: {error}")),
    }
    if let Some(file) = pid_file.filter(|file| host.metadata(file).is_err()) {
        return waiting(&format!("its installer is not running: {} does not exist", file.display()));
    }
    match configured.map(|configured| check_runtime(host, install_dir, configured)) {
        Some(Err(what)) => waiting(&what),
        Some(Ok(())) => {
            GateStatus::Open(format!("{shown} is installed, and the container runtime has loaded its configuration"))
        }
        None => GateStatus::Open(format!("{shown} is installed")),
    }
}

/// The daemon writes this file once it has started a daemon for every GPU, and removes it before it stops them.
fn mps(host: &HostRoot, root: &Path) -> GateStatus {
    let ready = root.join(".ready");
    let shown = ready.display();
    match host.metadata(&ready) {
        Ok(_) => GateStatus::Open(format!("{shown} exists: the MPS control daemons are running")),
        Err(error) => GateStatus::Waiting(format!("waiting for the MPS control daemons: {shown}: {error}")),
    }
}

/// Returns an error unless the container runtime has loaded the configuration on disk and NVIDIA's runtime is in it.
fn check_runtime(host: &HostRoot, install_dir: &Path, configured: &RuntimeRequirement) -> Result<(), String> {
    let texts = configured.files.iter().map(|path| Ok((path.clone(), text(host, path)?)));
    let texts = texts.collect::<Result<Texts, String>>()?;
    let program = format!("{}/nvidia-container-runtime", install_dir.display());
    if !texts.values().flatten().any(|text| text.contains(&program)) {
        return Err("NVIDIA's runtime is not in the container runtime's configuration".to_owned());
    }
    let known: Option<LoadedConfig> =
        text(host, &configured.loaded.join(daemon::LOADED_FILE))?.and_then(|text| serde_json::from_str(&text).ok());
    let digest = digest(texts.iter().map(|(path, text)| (path.as_path(), text)));
    if known.is_none_or(|known| known.digest != digest) {
        return Err("the container runtime has not loaded its configuration yet".to_owned());
    }
    Ok(())
}

fn text(host: &HostRoot, path: &Path) -> Result<Text, String> {
    let Ok(found) = host.resolve(path) else { return Ok(None) };
    state::read(&found).map_err(|error| error_chain(&error))
}

/// The condition under which an installer may start while the driver that it would install is loaded and in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// The installer keeps a loaded module if it has the wanted version, or, if no version is wanted, if the installer
    /// itself installed it.
    Loaded {
        /// The host's folder that the installer installs into.
        install_dir: Option<String>,
    },
    /// NVIDIA's container keeps a loaded module if this file holds the digest of the container's configuration. An
    /// image without support for the digest never writes the file, and reinstalls on every start.
    Digest {
        /// The file, as the installer sees it.
        file: PathBuf,
        digest: String,
    },
}

impl Takeover {
    /// Returns whether the condition holds for a loaded driver that has the wanted version (`same`), or if any version
    /// is accepted (`any`).
    fn holds(&self, host: &HostRoot, same: bool, any: Option<&String>) -> Result<bool, DriverError> {
        Ok(match (self, any) {
            (Self::Loaded { install_dir: Some(folder) }, Some(loaded)) => {
                driver::libraries(host, folder)?.iter().any(|library| library.version == *loaded)
            }
            (Self::Loaded { .. }, _) => same,
            // NVIDIA's script compares the file's text as the shell reads it, without the trailing newline.
            (Self::Digest { file, digest }, _) => {
                let text = fs::read_to_string(file).unwrap_or_default();
                same && !digest.is_empty() && text.trim_end() == digest
            }
        })
    }
}

/// Checks whether a driver can be installed without taking a driver away from a running program. `version` is the
/// version to install.
fn guard(host: &HostRoot, version: Option<&str>, takeover: &Takeover) -> Result<GateStatus, DriverError> {
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(GateStatus::Open("no NVIDIA kernel module is loaded".to_owned()));
    };
    // The modules of one kernel are unloaded together with all that depend on them.
    let by_script = matches!(takeover, Takeover::Digest { .. }) && version.is_some_and(|version| version.contains('.'));
    let in_use = driver::in_use(host)? || by_script && driver::is_kept_loaded(host)?;
    if !in_use {
        return Ok(GateStatus::Open(format!("NVIDIA driver {loaded} is loaded and not in use")));
    }
    let same = version.is_some_and(|version| is_release_of(&loaded, version));
    if takeover.holds(host, same, version.is_none().then_some(&loaded))? {
        return Ok(GateStatus::Open(format!(
            "NVIDIA driver {loaded} is loaded and in use, and is taken over without a reload"
        )));
    }
    let why = match version {
        Some(_) if same => format!("{loaded} is the wanted version, but this driver image would reload it"),
        Some(version) => format!("{version} is wanted"),
        None => "the version to be installed is not known in advance".to_owned(),
    };
    Ok(GateStatus::Waiting(format!(
        "DriverInUse: NVIDIA driver {loaded} is loaded and in use; {why}. The driver is left unchanged until nothing on \
         this node uses it: end the pods and programs that use GPUs (`fuser -v /dev/nvidia*` on the node lists them), \
         or reboot the node"
    )))
}

/// Returns whether a process holds the lock of a file. A file that does not exist or cannot be opened counts as locked:
/// an image that locks another file is no reason to wait forever.
fn is_locked(host: &HostRoot, file: &Path) -> bool {
    let Ok(file) = host.resolve(file).and_then(fs::File::open) else { return true };
    // The lock is held only for this check, and only if no other process holds it. The driver's container does not
    // wait for the lock; in the worst case, it fails to get the lock and is restarted once.
    matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
}

/// Waits until no process holds the lock of a file, and removes the file: without an owner, it would only make gates
/// wait.
pub async fn wait_until_unlocked(file: &Path, interval: Duration) {
    let own = HostRoot::new("/");
    while file.exists() && is_locked(&own, file) {
        tracing::info!("waiting for the previous container to exit: a process locks {}", file.display());
        sleep(interval).await;
    }
    if let Err(error) = fs::remove_file(file) {
        tracing::debug!(%error, "cannot remove {}", file.display());
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateStatus {
    /// With the reason.
    Open(String),
    Waiting(String),
}

/// More mounts at one place than crashed containers leave.
const MAX_LAYERS: usize = 64;

#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct MountError {
    action: &'static str,
    path: PathBuf,
    source: Errno,
}

/// Unmounts what a dead container left mounted. Its files exist until the runtime collects it, and until then a gate
/// would take them for those of the starting container.
pub fn unmount_all(place: &Path) -> Result<(), MountError> {
    for _ in 0..MAX_LAYERS {
        match unmount(place, UnmountFlags::DETACH) {
            Ok(()) => {}
            // Nothing is mounted there, or the folder does not exist yet.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(source) => return Err(failed("unmount", place)(source)),
        }
    }
    Err(failed("unmount", place)(Errno::BUSY))
}

/// Excludes a mount that is shared with the host from recursive binds of this container's root. A bind of it would be
/// shared too: unmounting the bind would unmount on the host what is mounted below the original, such as the shared
/// memory of MPS below `/run/nvidia`.
pub fn exclude_from_binds(folder: &Path) -> Result<(), MountError> {
    // A shared mount cannot be unbindable, so an unbindable one is put between it and the root.
    let aside = folder.with_extension("aside");
    mkdir(&aside, Mode::RWXU).map_err(failed("create", &aside))?;
    // The runtime shares the root with its own copy of it, and a mount on a shared mount cannot be moved.
    let root = Path::new("/");
    mount_change(root, MountPropagationFlags::PRIVATE).map_err(failed("make private", root))?;
    mount_move(folder, &aside).map_err(failed("move", folder))?;
    mount_bind(folder, folder).map_err(failed("bind", folder))?;
    mount_change(folder, MountPropagationFlags::UNBINDABLE).map_err(failed("make unbindable", folder))?;
    mount_move(&aside, folder).map_err(failed("move", &aside))?;
    rmdir(&aside).map_err(failed("remove", &aside))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> MountError {
    let path = path.to_owned();
    move |source| MountError { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmounting_a_path_without_a_mount_is_not_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(unmount_all(&folder.path().join("none")).is_ok());
    }
}
