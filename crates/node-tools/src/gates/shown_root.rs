//! The root of the driver's container, which NVIDIA's script mounts on the host by `mount --rbind / /run/nvidia/driver`.

use std::path::{Path, PathBuf};

use rustix::{
    fs::{Mode, mkdir, rmdir},
    io::Errno,
    mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_move, unmount},
};

/// More mounts at one place than crashed containers leave.
const MAX_LAYERS: usize = 64;

/// A mount of the driver's container, or a folder for it, cannot be changed.
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
