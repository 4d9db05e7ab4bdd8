//! The host's file system as mounted in the container of this program, where links refer to the host's paths.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

/// The most links that are followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The most that is read of a file: all files of interest have a few lines.
const MAX_BYTES: u64 = 64 * 1024;

/// A directory that is the root of a file system of its own: the host's, or a driver container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// Creates a root that is at `path` for this process.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the root's path for this process.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file of that root for this process, with every link resolved inside the root.
    ///
    /// The host's links refer to the host's paths: resolved by the kernel, an absolute link would lead into the probe's
    /// own image, and a mount meant for reading one directory could be redirected to another.
    ///
    /// # Errors
    /// Returns an error if a component does not exist or cannot be read, or if the links form a loop.
    pub fn resolve(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let mut pending: Vec<PathBuf> = parts(path.as_ref());
        let mut inside: Vec<PathBuf> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == Path::new("..") {
                inside.pop();
                continue;
            }
            let here = self.0.join(inside.iter().collect::<PathBuf>()).join(&part);
            if !fs::symlink_metadata(&here)?.is_symlink() {
                inside.push(part);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::other(format!("too many symbolic links in path {}", path.as_ref().display())));
            }
            let target = fs::read_link(&here)?;
            if target.is_absolute() {
                inside.clear();
            }
            pending.extend(parts(&target));
        }
        Ok(self.0.join(inside.into_iter().collect::<PathBuf>()))
    }

    /// Returns the text of a small file of that root, trimmed.
    ///
    /// # Errors
    /// Returns an error if the file does not exist, cannot be read or is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut text = String::new();
        File::open(self.resolve(path)?)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    }

    /// Returns the first `most` bytes of a file of that root.
    ///
    /// # Errors
    /// Returns an error if the file does not exist or cannot be read.
    pub fn bytes(&self, path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.resolve(path)?)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::read`], but returns `None` for a file that does not exist or is removed meanwhile.
    ///
    /// # Errors
    /// As [`Self::read`], except for absence.
    pub fn read_if_present(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        present(self.read(path))
    }

    /// Returns the sorted names in a directory of that root; empty if it does not exist.
    ///
    /// # Errors
    /// Returns an error if it exists and cannot be read.
    pub fn names(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let Some(directory) = present(self.resolve(path))? else {
            return Ok(Vec::new());
        };
        let Some(entries) = present(fs::read_dir(directory))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Turns absence into `None`. A device or module that disappears while it is read is absent as well.
///
/// # Errors
/// Returns every other error unchanged.
pub fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
                || error.raw_os_error() == Some(nix::libc::ENODEV) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns the components of a path in reverse order, ready to be popped.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .rev()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, HostRoot) {
        let directory = tempfile::tempdir().unwrap();
        let root = HostRoot::new(directory.path());
        (directory, root)
    }

    #[test]
    fn an_absolute_link_refers_to_the_hosts_path() {
        let (directory, root) = root();
        fs::create_dir(directory.path().join("etc")).unwrap();
        fs::write(directory.path().join("etc/hostname"), "the host's\n").unwrap();
        symlink("/etc/hostname", directory.path().join("link")).unwrap();
        assert_eq!(root.read("/link").unwrap(), "the host's");
    }

    #[test]
    fn parent_components_never_leave_the_root() {
        let (directory, root) = root();
        fs::write(directory.path().join("secret"), "inside").unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        symlink("../../../../../../../secret", directory.path().join("sub/link")).unwrap();
        assert_eq!(root.read("sub/link").unwrap(), "inside");
        assert_eq!(root.read("../../../secret").unwrap(), "inside");
    }

    #[test]
    fn a_linked_directory_is_resolved_inside_the_root() {
        let (directory, root) = root();
        fs::create_dir_all(directory.path().join("usr/lib64")).unwrap();
        fs::write(directory.path().join("usr/lib64/file"), "x").unwrap();
        symlink("/usr/lib64", directory.path().join("lib64")).unwrap();
        assert_eq!(root.resolve("/lib64/file").unwrap(), directory.path().join("usr/lib64/file"));
        assert_eq!(root.names("/lib64").unwrap(), ["file"]);
    }

    #[test]
    fn a_loop_of_links_is_an_error() {
        let (directory, root) = root();
        symlink("b", directory.path().join("a")).unwrap();
        symlink("a", directory.path().join("b")).unwrap();
        assert!(root.resolve("a").is_err());
    }

    #[test]
    fn missing_files_are_absent() {
        let (_directory, root) = root();
        assert_eq!(root.read_if_present("no/such").unwrap(), None);
        assert!(root.names("no/such").unwrap().is_empty());
    }
}
