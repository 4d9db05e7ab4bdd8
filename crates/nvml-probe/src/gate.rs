//! The gates that a stage's pod passes before its containers start. Gates check facts of the node only, not marker
//! files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    device_nodes,
    driver::{self, DriverError},
    host::HostRoot,
    runtime::{
        files::{Loaded, Text, digest},
        record::Texts,
        state,
        steps::LOADED,
    },
    words::chain,
};

/// The toolkit's program through which the runtime gives a container its GPUs.
const CDI_HOOK: &str = "nvidia-cdi-hook";

/// The result of checking a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The gate is open, with the reason.
    Open(String),
    /// The gate is closed, with what it waits for.
    Waiting(String),
}

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
        configured: Option<Configured>,
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
        unless: Takeover,
    },
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
        /// The digest that the container carries.
        digest: String,
    },
}

/// The requirement that the container runtime has NVIDIA's runtime in its configuration and has loaded it.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The configuration files; one of them must contain NVIDIA's runtime.
    pub files: Vec<PathBuf>,
    /// The folder that records which configuration was loaded.
    pub loaded: PathBuf,
}

impl Gate {
    /// Checks the gate once. A fact that cannot be read keeps the gate closed.
    #[must_use]
    pub fn check(&self, host: &HostRoot) -> Answer {
        let answer = match self {
            Self::Driver { root, version, pid_file } => driver(host, root, version.as_deref(), pid_file.as_deref()),
            Self::Toolkit { install_dir, pid_file, configured } => {
                Ok(toolkit(host, install_dir, pid_file.as_deref(), configured.as_ref()))
            }
            Self::Mps { root } => Ok(mps(host, root)),
            Self::Guard { version, unless } => guard(host, version.as_deref(), unless),
        };
        answer.unwrap_or_else(|error| Answer::Waiting(chain(&error)))
    }

    /// Checks the gate every `interval` until it is open, and passes each changed status to `say`.
    pub async fn wait(&self, host: &HostRoot, interval: Duration, mut say: impl FnMut(&Answer)) {
        let mut last = None;
        loop {
            let answer = self.check(host);
            if last.as_ref() != Some(&answer) {
                say(&answer);
            }
            if matches!(answer, Answer::Open(_)) {
                return;
            }
            last = Some(answer);
            sleep(interval).await;
        }
    }
}

fn driver(host: &HostRoot, root: &str, version: Option<&str>, pid_file: Option<&Path>) -> Result<Answer, DriverError> {
    let wanted = version.map_or_else(|| "an NVIDIA driver".to_owned(), |version| format!("NVIDIA driver {version}"));
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(Answer::Waiting(format!("waiting for {wanted}: no NVIDIA kernel module is loaded")));
    };
    if version.is_some_and(|version| !is_of(&loaded, version)) {
        return Ok(Answer::Waiting(format!("waiting for {wanted}: {loaded} is loaded")));
    }
    let libraries = driver::libraries(host, root)?;
    if !libraries.iter().any(|library| library.version == loaded) {
        return Ok(Answer::Waiting(format!(
            "waiting for the libraries of NVIDIA driver {loaded}: there is no libnvidia-ml.so.{loaded} under {root}"
        )));
    }
    if let Some(file) = pid_file {
        if !is_locked(host, file) {
            let file = file.display();
            return Ok(Answer::Waiting(format!(
                "waiting for the driver's container: no running container locks {file}"
            )));
        }
        let missing = device_nodes::missing(host, &HostRoot::new("/"), root);
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Ok(Answer::Waiting(format!("waiting for the driver's device nodes: {root}/dev lacks {missing}")));
        }
    }
    Ok(Answer::Open(format!("NVIDIA driver {loaded} is loaded and its libraries are under {root}")))
}

/// Returns whether a process holds the lock of a file. A file that does not exist or cannot be opened counts as locked:
/// an image that locks another file is no reason to wait forever.
pub fn is_locked(host: &HostRoot, file: &Path) -> bool {
    let Ok(file) = host.resolve(file).and_then(fs::File::open) else { return true };
    // The lock is held only for this check, and only if nobody else holds it. The driver's container takes it without
    // waiting; in the worst case it is restarted once.
    matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
}

/// Returns whether a loaded version equals the wanted one or is of the wanted branch, which is all that is known of a
/// precompiled driver.
fn is_of(loaded: &str, wanted: &str) -> bool {
    loaded.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || !wanted.contains('.') && rest.starts_with('.'))
}

fn toolkit(host: &HostRoot, install_dir: &Path, pid_file: Option<&Path>, configured: Option<&Configured>) -> Answer {
    let hook = install_dir.join(CDI_HOOK);
    let shown = hook.display();
    let waiting = |what: &str| Answer::Waiting(format!("waiting for the container toolkit: {what}"));
    match host.resolve(&hook).and_then(fs::metadata) {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {}
        Ok(_) => return waiting(&format!("{shown} is no executable file")),
        Err(error) => return waiting(&format!("{shown}: {error}")),
    }
    if let Some(file) = pid_file.filter(|file| host.resolve(file).is_err()) {
        return waiting(&format!("its installer is not running: {} does not exist", file.display()));
    }
    match configured.map(|configured| loaded(host, install_dir, configured)) {
        Some(Err(what)) => waiting(&what),
        Some(Ok(())) => {
            Answer::Open(format!("{shown} is installed, and the container runtime has loaded its configuration"))
        }
        None => Answer::Open(format!("{shown} is installed")),
    }
}

/// The daemon writes this file once it has started a daemon for every GPU, and removes it before it stops them.
fn mps(host: &HostRoot, root: &Path) -> Answer {
    let ready = root.join(".ready");
    let shown = ready.display();
    match host.resolve(&ready).and_then(fs::metadata) {
        Ok(_) => Answer::Open(format!("{shown} exists: the MPS control daemons are running")),
        Err(error) => Answer::Waiting(format!("waiting for the MPS control daemons: {shown}: {error}")),
    }
}

/// Returns an error unless the container runtime has loaded the configuration on disk and NVIDIA's runtime is in it.
fn loaded(host: &HostRoot, install_dir: &Path, configured: &Configured) -> Result<(), String> {
    let texts = configured.files.iter().map(|path| Ok((path.clone(), text(host, path)?)));
    let texts = texts.collect::<Result<Texts, String>>()?;
    let program = format!("{}/nvidia-container-runtime", install_dir.display());
    if !texts.values().flatten().any(|text| text.contains(&program)) {
        return Err("NVIDIA's runtime is not in the container runtime's configuration".to_owned());
    }
    let known: Option<Loaded> =
        text(host, &configured.loaded.join(LOADED))?.and_then(|text| serde_json::from_str(&text).ok());
    let digest = digest(texts.iter().map(|(path, text)| (path.as_path(), text)));
    if known.is_none_or(|known| known.digest != digest) {
        return Err("the container runtime has not loaded its configuration yet".to_owned());
    }
    Ok(())
}

fn text(host: &HostRoot, path: &Path) -> Result<Text, String> {
    let Ok(found) = host.resolve(path) else { return Ok(None) };
    state::read(&found).map_err(|error| chain(&error))
}

fn guard(host: &HostRoot, version: Option<&str>, unless: &Takeover) -> Result<Answer, DriverError> {
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(Answer::Open("no NVIDIA kernel module is loaded".to_owned()));
    };
    // The modules of one kernel are unloaded together with all that depend on them.
    let by_script = matches!(unless, Takeover::Digest { .. }) && version.is_some_and(|version| version.contains('.'));
    let in_use = driver::in_use(host)? || by_script && driver::is_kept_loaded(host)?;
    if !in_use {
        return Ok(Answer::Open(format!("NVIDIA driver {loaded} is loaded and not in use")));
    }
    let same = version.is_some_and(|version| is_of(&loaded, version));
    if unless.holds(host, same, version.is_none().then_some(&loaded))? {
        return Ok(Answer::Open(format!(
            "NVIDIA driver {loaded} is loaded and in use, and is taken over without a reload"
        )));
    }
    let why = match version {
        Some(_) if same => format!("{loaded} is the wanted version, but this driver image would reload it"),
        Some(version) => format!("{version} is wanted"),
        None => "the version to be installed is not known in advance".to_owned(),
    };
    Ok(Answer::Waiting(format!(
        "DriverInUse: NVIDIA driver {loaded} is loaded and in use; {why}. It is left alone until nothing on this node \
         uses it: end the pods and programs that hold GPUs (`fuser -v /dev/nvidia*` on the node names them), or reboot \
         the node"
    )))
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
