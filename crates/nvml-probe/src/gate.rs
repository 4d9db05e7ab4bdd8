//! The gates: what a stage's pod waits for before its containers start. Facts of the node only, no marker files.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    cli::chain,
    driver::{self, DriverError},
    host::HostRoot,
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
        /// The version that must be loaded; any where none is named.
        version: Option<String>,
    },
    /// Until the container toolkit is installed.
    Toolkit {
        /// Its directory on the host.
        install_dir: PathBuf,
    },
    /// Until the control daemons of MPS run.
    Mps {
        /// The folder in which they meet their clients, on the host.
        root: PathBuf,
    },
    /// Until installing a driver would take none from under a program.
    Guard {
        /// The version to be installed.
        version: String,
        /// The file by which a driver image knows that what is loaded is its own and needs no reload.
        state_file: PathBuf,
    },
}

impl Gate {
    /// Looks once. A fact that cannot be read is waited for.
    #[must_use]
    pub fn check(&self, host: &HostRoot) -> Answer {
        let answer = match self {
            Self::Driver { root, version } => driver(host, root, version.as_deref()),
            Self::Toolkit { install_dir } => Ok(toolkit(host, install_dir)),
            Self::Mps { root } => Ok(mps(host, root)),
            Self::Guard { version, state_file } => guard(host, version, state_file),
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
    if version.is_some_and(|version| version != loaded) {
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

fn toolkit(host: &HostRoot, install_dir: &Path) -> Answer {
    let hook = install_dir.join(CDI_HOOK);
    let shown = hook.display();
    match host.resolve(&hook).and_then(std::fs::metadata) {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {
            Answer::Open(format!("{shown} is installed"))
        }
        Ok(_) => Answer::Waiting(format!("waiting for the container toolkit: {shown} is no executable file")),
        Err(error) => Answer::Waiting(format!("waiting for the container toolkit: {shown}: {error}")),
    }
}

/// The daemon writes this file once it has started one of its own for every GPU, and takes it away before it ends them.
fn mps(host: &HostRoot, root: &Path) -> Answer {
    let ready = root.join(".ready");
    let shown = ready.display();
    match host.resolve(&ready).and_then(std::fs::metadata) {
        Ok(_) => Answer::Open(format!("{shown} says that the MPS control daemons run")),
        Err(error) => Answer::Waiting(format!("waiting for the MPS control daemons: {shown}: {error}")),
    }
}

fn guard(host: &HostRoot, version: &str, state_file: &Path) -> Result<Answer, DriverError> {
    let Some(loaded) = driver::loaded(host)? else {
        return Ok(Answer::Open("no NVIDIA kernel module is loaded".to_owned()));
    };
    if !driver::in_use(host)? {
        return Ok(Answer::Open(format!("NVIDIA driver {loaded} is loaded and not in use")));
    }
    let shown = state_file.display();
    let same = loaded == version;
    if same && host.resolve(state_file).is_ok() {
        return Ok(Answer::Open(format!(
            "NVIDIA driver {loaded} is loaded and in use, and {shown} lets it be taken over without a reload"
        )));
    }
    let why = if same {
        format!("{loaded} is the wanted version, but without {shown} its image would reload it")
    } else {
        format!("{version} is wanted")
    };
    Ok(Answer::Waiting(format!(
        "DriverInUse: NVIDIA driver {loaded} is loaded and in use; {why}. It is left alone until nothing on this node \
         uses it: end the pods and programs that hold GPUs (`fuser -v /dev/nvidia*` on the node names them), or reboot \
         the node"
    )))
}
