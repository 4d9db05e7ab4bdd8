//! What an init container leaves for the containers after it: files from its arguments, and links to what programs need of
//! a driver. So neither a `ConfigMap` nor a shell is needed.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{driver::directories, host::HostRoot};

/// What MPS needs of a driver. A whole root's libraries are no path to look in: its C library would come along.
const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];
const PROGRAMS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
/// Where drivers have them: Debian's the server among the programs of administrators.
const PROGRAM_DIRECTORIES: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// Something could not be left for the next container.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// A file, folder or link could not be written.
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    /// The driver's folders could not be read.
    #[error("cannot read the driver's folders under {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The driver lacks it.
    #[error("the driver under {0} has no {1}")]
    Missing(PathBuf, &'static str),
}

fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> PrepareError {
    let path = path.to_owned();
    move |source| PrepareError::Write(path, source)
}

/// Writes a file.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), PrepareError> {
    fs::write(path, text).map_err(unwritten(path))
}

/// Links libraries into `into/lib` and programs into `into/bin`.
///
/// # Errors
/// When the driver lacks one, its folders cannot be read, or a link cannot be made.
pub fn link(root: &Path, into: &Path) -> Result<(), PrepareError> {
    let libraries = directories::of(&HostRoot::new(root), LIBRARIES[0]);
    let libraries = libraries.map_err(|source| PrepareError::Read(root.to_owned(), source))?;
    link_all(root, &libraries, &LIBRARIES, &into.join("lib"))?;
    link_all(root, &PROGRAM_DIRECTORIES.map(PathBuf::from), &PROGRAMS, &into.join("bin"))
}

fn link_all(root: &Path, folders: &[PathBuf], names: &[&'static str], into: &Path) -> Result<(), PrepareError> {
    fs::create_dir_all(into).map_err(unwritten(into))?;
    let inside = HostRoot::new(root);
    for name in names {
        // A link of the driver's root leads within that root, where the link made here would lead into the container's.
        let found = folders.iter().find_map(|folder| inside.resolve(folder.join(name)).ok());
        let target = found.ok_or_else(|| PrepareError::Missing(root.to_owned(), name))?;
        let link = into.join(name);
        // A container that is started again finds its own links.
        match symlink(&target, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(unwritten(&link))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_as_told_and_over_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvidia.json");
        write(&path, "old and longer").unwrap();
        write(&path, "{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        let error = write(&folder.path().join("no/such"), "{}").unwrap_err();
        assert!(error.to_string().contains("no/such"), "{error}");
    }

    #[test]
    fn what_mps_needs_of_a_driver_is_linked_from_where_the_driver_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let (root, into) = (folder.path().join("root"), folder.path().join("links"));
        for file in ["usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1", "usr/bin/nvidia-cuda-mps-control"] {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let error = link(&root, &into).unwrap_err();
        assert!(error.to_string().ends_with("has no nvidia-cuda-mps-server"), "{error}");
        fs::write(root.join("usr/bin/nvidia-cuda-mps-server"), "").unwrap();
        for _ in 0..2 {
            link(&root, &into).unwrap();
        }
        assert_eq!(fs::read_link(into.join("lib/libcuda.so.1")).unwrap(), root.join("usr/lib64/libcuda.so.1"));
        assert!(into.join("bin/nvidia-cuda-mps-control").exists());
    }

    #[test]
    fn debians_links_are_followed_within_the_drivers_root_and_its_programs_found() {
        let folder = tempfile::tempdir().unwrap();
        let (root, into) = (folder.path().join("root"), folder.path().join("links"));
        let current = "usr/lib/x86_64-linux-gnu/nvidia/current";
        let files = ["libcuda.so.535.261.03", "libnvidia-ml.so.535.261.03"].map(|name| format!("{current}/{name}"));
        let programs = ["usr/bin/nvidia-cuda-mps-control", "usr/sbin/nvidia-cuda-mps-server"].map(str::to_owned);
        for file in files.iter().chain(&programs) {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        fs::create_dir_all(root.join("etc/alternatives")).unwrap();
        for (name, file) in LIBRARIES.into_iter().zip(&files) {
            symlink(format!("/{file}"), root.join("etc/alternatives").join(name)).unwrap();
            symlink(format!("/etc/alternatives/{name}"), root.join("usr/lib/x86_64-linux-gnu").join(name)).unwrap();
        }
        link(&root, &into).unwrap();
        assert_eq!(fs::read_link(into.join("lib/libcuda.so.1")).unwrap(), root.join(&files[0]));
        assert_eq!(fs::read_link(into.join("lib/libnvidia-ml.so.1")).unwrap(), root.join(&files[1]));
        for (name, file) in PROGRAMS.into_iter().zip(&programs) {
            assert_eq!(fs::read_link(into.join("bin").join(name)).unwrap(), root.join(file));
        }
    }
}
