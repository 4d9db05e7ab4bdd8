//! Finds a library or program of the driver, and rejects one that another user than root could have written or could replace: the
//! process that loads it is root on the node.
//!
//! Each component of the path is opened without following links, checked, and held open. A folder that only root may write to is one
//! in which only root can replace the next component, so a path whose components all pass still leads to the same file when the
//! library is loaded.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Stat, fstat},
    process::{chroot, fchdir, geteuid},
};

use crate::root::{Found, file_type_name, open_root, walk};

/// The permissions of others than the owner to write. A sticky folder is no exception: others can create what does not exist yet.
const WRITABLE: u32 = 0o022;

/// NixOS keeps all software here, in folders of root. The group that builds packages may create others beside them, which the sticky
/// bit keeps from replacing those of root.
const NIX_STORE: (&str, u32) = ("/nix/store", 0o1775);

/// Why no library is loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("{} is not below {}", path.display(), root.display())]
    Outside { path: PathBuf, root: PathBuf },
    #[error("cannot load {}: {source}", path.display())]
    Refused {
        /// The path on the host.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    #[error("cannot change root into {}: {source}", path.display())]
    Enter {
        /// The root.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// The root below which a library is searched.
#[derive(Debug)]
pub struct LibraryRoot {
    root: OwnedFd,
    /// Its path for this process.
    path: PathBuf,
    on_host: PathBuf,
}

/// A library that is safe to load.
#[derive(Debug)]
pub struct TrustedLibrary {
    /// Its path for this process, without links.
    pub path: PathBuf,
    /// Kept open while the library is loaded.
    _file: OwnedFd,
}

impl LibraryRoot {
    /// Opens the host's root and, if a root to enter is given, enters that.
    pub fn open(host: &Path, enter: Option<&Path>) -> Result<Self, LibraryError> {
        let refused = |source| LibraryError::Refused { path: host.to_owned(), source };
        let root = open_root(host).map_err(refused)?;
        let Some(path) = enter else {
            return Ok(Self { root, path: host.to_owned(), on_host: PathBuf::from("/") });
        };
        let inside = path.strip_prefix(host);
        let inside = inside.map_err(|_| LibraryError::Outside { path: path.to_owned(), root: host.to_owned() })?;
        let on_host = Path::new("/").join(inside);
        let Found { file, path: found } = walk(root, inside, |at, stat| check(at, at, stat))
            .map_err(|source| LibraryError::Refused { path: on_host.clone(), source })?;
        fchdir(&file)
            .and_then(|()| chroot("."))
            .map_err(|error| LibraryError::Enter { path: on_host, source: error.into() })?;
        Ok(Self { root: file, path: PathBuf::from("/"), on_host: found })
    }

    /// Finds a library below this root.
    pub fn find(&self, library: &Path) -> Result<TrustedLibrary, LibraryError> {
        let outside = |_| LibraryError::Outside { path: library.to_owned(), root: self.path.clone() };
        let inside = library.strip_prefix(&self.path).map_err(outside)?;
        let refused = |source| LibraryError::Refused { path: self.on_host.join(inside), source };
        let root = self.root.try_clone().map_err(refused)?;
        let on_host = |at: &Path| self.on_host.join(at.strip_prefix("/").unwrap_or(at));
        let found = walk(root, inside, |at, stat| check(at, &on_host(at), stat)).map_err(refused)?;
        match fstat(&found.file).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile) => {}
            Ok(other) => return Err(refused(io::Error::other(format!("it is {}", file_type_name(other))))),
            Err(error) => return Err(refused(error.into())),
        }
        let path = self.path.join(found.path.strip_prefix("/").unwrap_or(&found.path));
        Ok(TrustedLibrary { path, _file: found.file })
    }
}

/// Returns an error if another user could have created a component of a path or could replace what is in it. A user that is not root
/// may load its own libraries: that gives it nothing.
fn check(path: &Path, on_host: &Path, found: &Stat) -> io::Result<()> {
    let shown = on_host.display();
    let owner = found.st_uid;
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(io::Error::other(format!("{shown} belongs to user {owner}; it must belong to root")));
    }
    // The permissions of a link have no meaning.
    let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
    let permissions = found.st_mode & 0o7777;
    if is_link || permissions & WRITABLE == 0 || (path == Path::new(NIX_STORE.0) && permissions == NIX_STORE.1) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "users other than root may write to {shown} (mode {permissions:o}); remove that permission with chmod go-w"
    )))
}

#[cfg(test)]
mod tests;
