//! The gates that a stage's pod passes before its containers start. Gates check facts of the node only, not marker
//! files.

use std::{
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
use tokio::time::sleep;

use super::{
    guard::{Takeover, guard},
    previous_container::is_locked,
    status::GateStatus,
};
use crate::runtime::{
    loaded::{self, LoadedConfig},
    state,
    texts::{Text, Texts, digest},
};

/// The toolkit's program through which the runtime gives a container its GPUs.
const CDI_HOOK: &str = "nvidia-cdi-hook";

/// A gate. Its facts are read again for each check.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Open once the driver is loaded and its libraries are installed where they are used.
    Driver {
        /// The driver's root on the host.
        root: String,
        /// The version that must be loaded, or only its branch; `None` accepts any version.
        version: Option<String>,
        /// The file that the driver's container keeps locked while it runs, if a container installs the driver. The
        /// root then counts only while that container is alive and the device nodes that programs open exist.
        pid_file: Option<PathBuf>,
    },
    /// Open once the container toolkit is installed.
    Toolkit {
        /// The toolkit's directory on the host.
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
        text(host, &configured.loaded.join(loaded::FILE_NAME))?.and_then(|text| serde_json::from_str(&text).ok());
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
