//! Files that an init container prepares for the containers after it: this program, and files from the arguments, so that no
//! `ConfigMap` is needed.
//!
//! An init container runs once in a pod's lifetime. A check before every start of a container therefore requires this program to
//! be the container's first program, whatever its image contains.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const LOADER: &str = "ld.so";

const PROGRAM: &str = "nvml-probe";

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {0}")]
    Write(PathBuf, #[source] io::Error),
    #[error("this program has no dynamic loader")]
    NoLoader,
}

/// Copies this program, its loader and its libraries into a folder, from which it runs in any image: `ld.so
/// --library-path FOLDER FOLDER/nvml-probe …`.
pub fn unpack(into: &Path) -> Result<(), UnpackError> {
    let maps = Path::new("/proc/self/maps");
    let maps = fs::read_to_string(maps).map_err(|error| UnpackError::Read(maps.to_owned(), error))?;
    let mut loader = None;
    for library in libraries(&maps) {
        for name in names(&library)? {
            if name.starts_with("ld-") || name == "ld.so" {
                loader = Some(library.clone());
            }
            copy(&library, &into.join(name))?;
        }
    }
    copy(&loader.ok_or(UnpackError::NoLoader)?, &into.join(LOADER))?;
    copy(Path::new("/proc/self/exe"), &into.join(PROGRAM))
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
fn names(library: &Path) -> Result<Vec<String>, UnpackError> {
    let unreadable = |error| UnpackError::Read(library.to_owned(), error);
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

fn copy(from: &Path, to: &Path) -> Result<(), UnpackError> {
    // If the pod's sandbox is recreated, the earlier copies exist and may be running.
    let new = to.with_extension("new");
    fs::copy(from, &new).and_then(|_| fs::rename(&new, to)).map_err(|error| UnpackError::Write(to.to_owned(), error))
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write {0}")]
pub struct WriteFileError(PathBuf, #[source] io::Error);

pub fn write(path: &Path, text: &str) -> Result<(), WriteFileError> {
    fs::write(path, text).map_err(|source| WriteFileError(path.to_owned(), source))
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
        unpacked.env_clear().arg("--library-path").arg(into).arg(into.join(PROGRAM)).arg("--list");
        let output = unpacked.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("what_is_unpacked_runs"), "{output:?}");
    }

    #[test]
    fn a_file_is_written_and_an_older_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvidia.json");
        write(&path, "old and longer").unwrap();
        write(&path, "{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        let error = write(&folder.path().join("no/such"), "{}").unwrap_err();
        assert!(error.to_string().contains("no/such"), "{error}");
    }
}
