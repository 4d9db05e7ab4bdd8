//! Waits until the previous container of a pod has exited.

use std::{fs, path::Path, time::Duration};

use gpu_host::root::HostRoot;
use tokio::time::sleep;

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
