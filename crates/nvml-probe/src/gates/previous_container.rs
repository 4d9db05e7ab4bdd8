//! Cleans up after the previous container of a pod: waits until it has exited, and unmounts its root.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::mount::{UnmountFlags, unmount};
use tokio::time::sleep;

use crate::host::HostRoot;

/// More mounts at one place than crashed containers leave.
const MOST_LAYERS: usize = 64;

/// A dead container's root cannot be unmounted.
#[derive(Debug, thiserror::Error)]
#[error("cannot unmount {0}")]
pub struct UnmountError(PathBuf, #[source] rustix::io::Errno);

/// Returns whether a process holds the lock of a file. A file that does not exist or cannot be opened counts as locked:
/// an image that locks another file is no reason to wait forever.
pub fn is_locked(host: &HostRoot, file: &Path) -> bool {
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

/// Unmounts what a dead container left mounted. Its files exist until the runtime collects it, and until then a gate
/// would take them for those of the starting container.
///
/// # Errors
/// Returns an error if it stays mounted.
pub fn unmount_all(place: &Path) -> Result<(), UnmountError> {
    for _ in 0..MOST_LAYERS {
        match unmount(place, UnmountFlags::DETACH) {
            Ok(()) => {}
            // Nothing is mounted there, or the folder does not exist yet.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(UnmountError(place.to_owned(), error)),
        }
    }
    Err(UnmountError(place.to_owned(), rustix::io::Errno::BUSY))
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
