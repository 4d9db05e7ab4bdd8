//! Starts another image's program behind this program's guard. An init container runs once in a pod's lifetime; what
//! must hold before every start of a container requires this program to be the container's first program, whatever its
//! image contains.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::mount::{UnmountFlags, unmount};
use tokio::time::sleep;

use crate::{gate::is_locked, host::HostRoot};

/// The dynamic loader among the unpacked files.
const LOADER: &str = "ld.so";
/// More mounts at one place than crashed containers leave.
const MOST_LAYERS: usize = 64;

/// This program could not be unpacked, or another image's program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A part of this process cannot be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// A copy cannot be written.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    /// No loader is mapped: the program is linked statically, which the container's command does not expect.
    #[error("this program has no dynamic loader")]
    NoLoader,
    /// A dead container's root cannot be unmounted.
    #[error("cannot unmount {0}")]
    Unmount(PathBuf, #[source] rustix::io::Errno),
    /// The other image's program cannot be started.
    #[error("cannot start {0}")]
    Exec(String, #[source] io::Error),
}

/// Copies this program, its loader and its libraries into a folder, from which it runs in any image: `ld.so
/// --library-path FOLDER FOLDER/nvml-probe …`.
///
/// # Errors
/// Returns an error if a file cannot be read or written.
pub fn unpack(into: &Path) -> Result<(), StartError> {
    let maps = Path::new("/proc/self/maps");
    let maps = fs::read_to_string(maps).map_err(|error| StartError::Read(maps.to_owned(), error))?;
    let mut loader = None;
    for library in libraries(&maps) {
        for name in names(&library)? {
            if name.starts_with("ld-") || name == "ld.so" {
                loader = Some(library.clone());
            }
            copy(&library, &into.join(name))?;
        }
    }
    copy(&loader.ok_or(StartError::NoLoader)?, &into.join(LOADER))?;
    copy(Path::new("/proc/self/exe"), &into.join(env!("CARGO_PKG_NAME")))
}

/// Returns the shared libraries that a process has mapped, including the loader.
fn libraries(maps: &str) -> Vec<PathBuf> {
    let path = |line: &str| line.find('/').map(|at| PathBuf::from(line.get(at..).unwrap_or_default()));
    let mut found: Vec<PathBuf> = maps.lines().filter_map(path).filter(|path| is_library(path)).collect();
    found.sort();
    found.dedup();
    found
}

fn is_library(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.contains(".so"))
}

/// Returns the names of a library in its folder: the mapped path is the file, while programs may request a link to it.
fn names(library: &Path) -> Result<Vec<String>, StartError> {
    let unreadable = |error| StartError::Read(library.to_owned(), error);
    let folder = library.parent().unwrap_or(Path::new("/"));
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        if is_library(&entry) && entry.canonicalize().is_ok_and(|real| real == library) {
            names.extend(entry.file_name().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    Ok(names)
}

fn copy(from: &Path, to: &Path) -> Result<(), StartError> {
    // If the pod's sandbox is recreated, the earlier copies exist and may be running.
    let new = to.with_extension("new");
    fs::copy(from, &new).and_then(|_| fs::rename(&new, to)).map_err(|error| StartError::Write(to.to_owned(), error))
}

/// Waits until no process holds the lock of a file, and removes the file: without an owner, it would only make gates
/// wait.
pub async fn until_unlocked(file: &Path, interval: Duration) {
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
pub fn unmount_all(place: &Path) -> Result<(), StartError> {
    for _ in 0..MOST_LAYERS {
        match unmount(place, UnmountFlags::DETACH) {
            Ok(()) => {}
            // Nothing is mounted there, or the folder does not exist yet.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(error) => return Err(StartError::Unmount(place.to_owned(), error)),
        }
    }
    Err(StartError::Unmount(place.to_owned(), rustix::io::Errno::BUSY))
}

/// Becomes another program. Returns only on failure.
#[must_use]
pub fn become_program(command: &[String]) -> StartError {
    let Some((program, args)) = command.split_first() else {
        return StartError::Exec(String::new(), io::ErrorKind::InvalidInput.into());
    };
    StartError::Exec(program.clone(), Command::new(program).args(args).exec())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_libraries_of_a_process_are_those_that_it_has_mapped() {
        let maps = "\
55d0-55d1 r--p 00000000 08:01 1 /usr/local/bin/nvml-probe
7f00-7f01 r-xp 00000000 08:01 2                          /usr/lib/x86_64-linux-gnu/libc.so.6
7f02-7f03 r--p 00000000 08:01 2                          /usr/lib/x86_64-linux-gnu/libc.so.6
7f04-7f05 r--p 00000000 08:01 3                          /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]
";
        let folder = Path::new("/usr/lib/x86_64-linux-gnu");
        assert_eq!(libraries(maps), [folder.join("ld-linux-x86-64.so.2"), folder.join("libc.so.6")]);
    }

    /// The test's own program stands in for the probe: its unpacked copy lists its tests.
    #[test]
    fn what_is_unpacked_runs_without_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path();
        for _ in 0..2 {
            unpack(into).unwrap();
        }
        let mut unpacked = Command::new(into.join(LOADER));
        unpacked.env_clear().arg("--library-path").arg(into).arg(into.join("nvml-probe")).arg("--list");
        let output = unpacked.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("what_is_unpacked_runs"), "{output:?}");
    }

    #[test]
    fn unmounting_a_path_without_a_mount_is_not_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(unmount_all(&folder.path().join("none")).is_ok());
    }
}
