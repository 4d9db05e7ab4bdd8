//! The guard: keeps an installer from replacing a driver that programs use.

use std::{fs, path::PathBuf};

use gpu_host::{
    observe::driver::{self, DriverError},
    root::HostRoot,
};
use gpu_operator_common::version::is_release_of;

use super::status::GateStatus;

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
pub(super) fn guard(host: &HostRoot, version: Option<&str>, takeover: &Takeover) -> Result<GateStatus, DriverError> {
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
