//! Restarts a systemd service of the host.

use std::{io, os::unix::process::CommandExt, path::Path, process::Command as Program};

use nix::unistd::{chdir, chroot};
use tokio::process::Command;

/// Why a service cannot be restarted.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error("cannot start systemctl")]
    Start(#[source] io::Error),
    #[error("systemctl restart {unit}: {output}")]
    Failed {
        /// The service.
        unit: String,
        /// The output of `systemctl`.
        output: String,
    },
}

/// Restarts a service. The host's root is reached through its first process, so it does not have to be mounted.
pub async fn restart(proc: &Path, unit: &str) -> Result<(), UnitError> {
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
