//! The host's file system as the probe sees it: mounted under some directory, with links that mean the host's paths.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

/// Links that may be followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// More than this is read of no file: everything asked for is a line or a few.
const MAX_BYTES: u64 = 64 * 1024;

/// A directory that is the root of a file system of its own: the host's, or a driver container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// The root that lies at `path` for this process.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where the root lies for this process.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Where `path` of that root lies for this process, with every link followed inside the root.
    ///
    /// The host's links are the host's: followed by the kernel, an absolute one would lead into the probe's own
    /// image, and a mount made for reading one directory could be led to another.
    ///
    /// # Errors
    /// When a component does not exist or cannot be read, or the links form a loop.
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
                return Err(io::Error::other(format!("too many links on the way to {}", path.as_ref().display())));
            }
            let target = fs::read_link(&here)?;
            if target.is_absolute() {
                inside.clear();
            }
            pending.extend(parts(&target));
        }
        Ok(self.0.join(inside.into_iter().collect::<PathBuf>()))
    }

    /// The text of a small file of that root, without white space around it.
    ///
    /// # Errors
    /// When it does not exist, cannot be read or is not UTF-8.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut text = String::new();
        File::open(self.resolve(path)?)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    }

    /// The first bytes of a file of that root, `most` of them at most.
    ///
    /// # Errors
    /// When it does not exist or cannot be read.
    pub fn bytes(&self, path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.resolve(path)?)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::read`], with nothing for a file that does not exist, or no longer.
    ///
    /// # Errors
    /// As [`Self::read`], but for absence.
    pub fn read_if_present(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        present(self.read(path))
    }

    /// The names in a directory of that root, sorted; none where it does not exist.
    ///
    /// # Errors
    /// When it exists and cannot be read.
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

/// Turns absence into `None`. A device or module that goes away while it is read is absent, too.
///
/// # Errors
/// Every other error, as it is.
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

/// The parts of a path in reverse, ready to be popped.
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
    fn an_absolute_link_means_the_hosts_path() {
        let (directory, root) = root();
        fs::create_dir(directory.path().join("etc")).unwrap();
        fs::write(directory.path().join("etc/hostname"), "the host's\n").unwrap();
        symlink("/etc/hostname", directory.path().join("link")).unwrap();
        assert_eq!(root.read("/link").unwrap(), "the host's");
    }

    #[test]
    fn no_number_of_parent_steps_leaves_the_root() {
        let (directory, root) = root();
        fs::write(directory.path().join("secret"), "inside").unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        symlink("../../../../../../../secret", directory.path().join("sub/link")).unwrap();
        assert_eq!(root.read("sub/link").unwrap(), "inside");
        assert_eq!(root.read("../../../secret").unwrap(), "inside");
    }

    #[test]
    fn a_link_to_a_directory_on_the_way_is_followed_inside() {
        let (directory, root) = root();
        fs::create_dir_all(directory.path().join("usr/lib64")).unwrap();
        fs::write(directory.path().join("usr/lib64/file"), "x").unwrap();
        symlink("/usr/lib64", directory.path().join("lib64")).unwrap();
        assert_eq!(root.resolve("/lib64/file").unwrap(), directory.path().join("usr/lib64/file"));
        assert_eq!(root.names("/lib64").unwrap(), ["file"]);
    }

    #[test]
    fn a_loop_of_links_is_an_error_and_not_a_hang() {
        let (directory, root) = root();
        symlink("b", directory.path().join("a")).unwrap();
        symlink("a", directory.path().join("b")).unwrap();
        assert!(root.resolve("a").is_err());
    }

    #[test]
    fn what_does_not_exist_is_absent_and_not_an_error() {
        let (_directory, root) = root();
        assert_eq!(root.read_if_present("no/such").unwrap(), None);
        assert!(root.names("no/such").unwrap().is_empty());
    }
}
