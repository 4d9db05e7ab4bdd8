//! The host's file system as mounted in the container of this program, where links refer to the host's paths.

mod open;
mod walk;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

pub(crate) use open::{name as file_type_name, open_root};
pub(crate) use walk::{Found, walk};

/// The most that is read of a file: all files of interest have a few lines.
const MAX_BYTES: u64 = 64 * 1024;

/// A directory that is the root of a file system of its own: the host's, or a driver container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    /// Creates a root that is at `path` for this process.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the root's path for this process.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file of that root for this process, with every link resolved inside the root.
    ///
    /// The host's links refer to the host's paths: resolved by the kernel, an absolute link would lead into the probe's
    /// own image, and a mount meant for reading one directory could be redirected to another. A component may be replaced by the time
    /// the path is used: what is only inspected or read is found by the other functions, which hold it open.
    pub fn resolve(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let found = walk(open_root(&self.0)?, path.as_ref(), |_, _| Ok(()))?;
        Ok(self.0.join(found.path.strip_prefix("/").unwrap_or(&found.path)))
    }

    /// Returns the facts of a file of that root, or of the file that a link leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<fs::Metadata> {
        File::from(open::find(&self.0, path.as_ref())?).metadata()
    }

    /// Returns the text of a small file of that root, trimmed.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut text = String::new();
        open::read_regular(&open::find(&self.0, path.as_ref())?)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    }

    /// Returns the first `most` bytes of a file of that root.
    pub fn bytes(&self, path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open::read_regular(&open::find(&self.0, path.as_ref())?)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::read`], but returns `None` for a file that does not exist or is removed meanwhile.
    pub fn read_if_present(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        present(self.read(path))
    }

    /// Returns the sorted names in a directory of that root; empty if it does not exist.
    pub fn names(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let Some(directory) = present(open::find(&self.0, path.as_ref()))? else {
            return Ok(Vec::new());
        };
        let Some(entries) = present(fs::read_dir(open::by_descriptor(&directory)))? else {
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

#[cfg(test)]
mod tests;
