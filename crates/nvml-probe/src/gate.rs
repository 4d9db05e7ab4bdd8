//! The gates: what a stage's pod waits for before its containers start. Facts of the node only, no marker files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
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

/// The toolkit's binary by which the runtime gives a container its GPUs.
const CDI_HOOK: &str = "nvidia-cdi-hook";

/// What a gate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The way is free, and what makes it so.
    Open(String),
    /// It is not, and what is waited for.
    Waiting(String),
}

/// A gate: read anew each time.
#[derive(Clone, Debug)]
pub enum Gate {
    /// Until the driver runs and its libraries lie where they are used from.
    Driver {
        /// The driver's root on the host.
        root: String,
        /// The version that must be loaded, or its branch alone; any where none is named.
        version: Option<String>,
    },
    /// Until the container toolkit is installed.
    Toolkit {
        /// Its directory on the host.
        install_dir: PathBuf,
        /// The file that its installer keeps while it runs, where it has to.
        pid_file: Option<PathBuf>,
        /// How the container runtime must be configured, where it has to be.
        configured: Option<Configured>,
    },
    /// Until the control daemons of MPS run.
    Mps {
        /// The folder in which they meet their clients, on the host.
        root: PathBuf,
    },
    /// Until installing a driver would take none from under a program.
    Guard {
        /// The version to be installed, or its branch alone; nothing where it is not known before.
        version: Option<String>,
        /// The file by which a driver image knows that what is loaded is its own and needs no reload.
        state_file: PathBuf,
    },
}

/// A container runtime that has NVIDIA's runtime in its configuration, and has loaded that.
#[derive(Clone, Debug)]
pub struct Configured {
    /// The files, in one of which it is entered.
    pub files: Vec<PathBuf>,
    /// The folder that says what of them was loaded.
    pub loaded: PathBuf,
}

impl Gate {
    /// Looks once. A fact that cannot be read is waited for.
    #[must_use]
    pub fn check(&self, host: &HostRoot) -> Answer {
        let answer = match self {
            Self::Driver { root, version } => driver(host, root, version.as_deref()),
            Self::Toolkit { install_dir, pid_file, configured } => {
                Ok(toolkit(host, install_dir, pid_file.as_deref(), configured.as_ref()))
            }
            Self::Mps { root } => Ok(mps(host, root)),
            Self::Guard { version, state_file } => guard(host, version.as_deref(), state_file),
        };
        answer.unwrap_or_else(|error| Answer::Waiting(chain(&error)))
    }

    /// Looks every `interval` until the gate is open; says what is waited for each time that changes.
    pub async fn wait(&self, host: &HostRoot, interval: Duration, mut say: impl FnMut(&str)) {
        let mut last = None;
        loop {
            let answer = self.check(host);
            let (Answer::Open(text) | Answer::Waiting(text)) = &answer;
            if last.as_ref() != Some(&answer) {
                say(text);
            }
            if matches!(answer, Answer::Open(_)) {
                return;
            }
            last = Some(answer);
            sleep(interval).await;
        }
    }
}

fn driver(host: &HostRoot, root: &str, version: Option<&str>) -> Result<Answer, DriverError> {
    let wanted = version.map_or_else(|| "an NVIDIA driver".to_owned(), |version| format!("NVIDIA driver {version}"));
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(Answer::Waiting(format!("waiting for {wanted}: no NVIDIA kernel module is loaded")));
    };
    if version.is_some_and(|version| !is_of(&loaded, version)) {
        return Ok(Answer::Waiting(format!("waiting for {wanted}: {loaded} is loaded")));
    }
    let libraries = driver::libraries(host, root)?;
    if libraries.iter().any(|library| library.version == loaded) {
        return Ok(Answer::Open(format!("NVIDIA driver {loaded} is loaded and its libraries are under {root}")));
    }
    Ok(Answer::Waiting(format!(
        "waiting for the libraries of NVIDIA driver {loaded}: there is no libnvidia-ml.so.{loaded} under {root}"
    )))
}

/// Whether a loaded version is the wanted one, or of the wanted branch: of a precompiled driver only that is known.
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
        return waiting(&format!("its installer does not run: there is no {}", file.display()));
    }
    match configured.map(|configured| loaded(host, install_dir, configured)) {
        Some(Err(what)) => waiting(&what),
        Some(Ok(())) => {
            Answer::Open(format!("{shown} is installed, and the container runtime has loaded its configuration"))
        }
        None => Answer::Open(format!("{shown} is installed")),
    }
}

/// The daemon writes this file once it has started one of its own for every GPU, and takes it away before it ends them.
fn mps(host: &HostRoot, root: &Path) -> Answer {
    let ready = root.join(".ready");
    let shown = ready.display();
    match host.resolve(&ready).and_then(fs::metadata) {
        Ok(_) => Answer::Open(format!("{shown} says that the MPS control daemons run")),
        Err(error) => Answer::Waiting(format!("waiting for the MPS control daemons: {shown}: {error}")),
    }
}

/// Whether the container runtime has loaded what is on disk, and NVIDIA's runtime is in it.
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

fn guard(host: &HostRoot, version: Option<&str>, state_file: &Path) -> Result<Answer, DriverError> {
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(Answer::Open("no NVIDIA kernel module is loaded".to_owned()));
    };
    if !driver::in_use(host)? {
        return Ok(Answer::Open(format!("NVIDIA driver {loaded} is loaded and not in use")));
    }
    let shown = state_file.display();
    let same = version.is_some_and(|version| is_of(&loaded, version));
    if same && host.resolve(state_file).is_ok() {
        return Ok(Answer::Open(format!(
            "NVIDIA driver {loaded} is loaded and in use, and {shown} lets it be taken over without a reload"
        )));
    }
    let why = match version {
        Some(_) if same => format!("{loaded} is the wanted version, but without {shown} its image would reload it"),
        Some(version) => format!("{version} is wanted"),
        None => "which version is to be installed is not known before".to_owned(),
    };
    Ok(Answer::Waiting(format!(
        "DriverInUse: NVIDIA driver {loaded} is loaded and in use; {why}. It is left alone until nothing on this node \
         uses it: end the pods and programs that hold GPUs (`fuser -v /dev/nvidia*` on the node names them), or reboot \
         the node"
    )))
}
