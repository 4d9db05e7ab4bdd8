//! Selects the driver whose library the NVML child loads, and finds that library or another file of the driver. What another user
//! than root could have written or could replace is rejected: the process that loads it is root on the node.
//!
//! Each component of the path is opened without following links, checked, and held open. A folder that only root may write to is
//! one in which only root can replace the next component, so a path whose components all pass still leads to the same file when
//! the library is loaded.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Stat, fstat},
    process::{chroot, fchdir, geteuid},
};

use crate::{
    observe::driver::{CONTAINER_ROOT, HOST_ROOT, Library},
    root::{Found, HostRoot, file_type_name, open_root, walk},
};

/// The permissions of others than the owner to write. A sticky folder is no exception: others can create what does not exist yet.
const WRITABLE: u32 = 0o022;

/// NixOS keeps all software here, in folders of root. The group that builds packages may create others beside them; the
/// sticky bit keeps it from replacing root's.
const NIX_STORE: (&str, u32) = ("/nix/store", 0o1775);

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("{} is not below {}", path.display(), root.display())]
    Outside { path: PathBuf, root: PathBuf },
    #[error("cannot load {}: {source}", path.display())]
    Refused { path: PathBuf, source: io::Error },
    #[error("cannot change root into {}: {source}", path.display())]
    Enter { path: PathBuf, source: io::Error },
}

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

/// Fails if another user could have created a component of the path, or could replace its content. A user that is not
/// root may load its own libraries: that gives it nothing.
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

/// The driver that is queried. A child serves one target; if any field changes, it is replaced by another child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the host's root is for this process.
    pub host_root: PathBuf,
    /// The root that the child changes into; `None` if the library is loaded from its place on the host.
    pub chroot: Option<PathBuf>,
    /// The library's path inside that root.
    pub library: PathBuf,
    /// Of the loaded module and of the library.
    pub version: String,
    pub boot_id: String,
}

impl Target {
    /// Returns the path of CUDA's library inside the root: a driver installs its libraries in one folder.
    pub fn cuda(&self) -> PathBuf {
        self.library.with_file_name(format!("libcuda.so.{}", self.version))
    }

    /// Returns the driver to query, if a module is loaded and one of the libraries, given in order of preference, has
    /// its version.
    ///
    /// If `chroot` is false, the library is loaded from under the host root without changing root, so that it uses this
    /// process' own /dev.
    pub fn choose(
        host: &HostRoot,
        chroot: bool,
        boot_id: &str,
        loaded: Option<&str>,
        libraries: &[Library],
    ) -> Result<Self, Option<String>> {
        let loaded = loaded.ok_or(None)?;
        let library = libraries.iter().find(|library| library.version == loaded).ok_or_else(|| {
            Some(format!("the module of version {loaded} is loaded; no libnvidia-ml.so.{loaded} is on the host"))
        })?;
        let root = host.resolve(&library.root).map_err(|error| Some(format!("{}: {error}", library.root)))?;
        // An installer's directory is not a root file system. Its library works from the host's root, where /dev is.
        let (root, path) = if library.root != HOST_ROOT && library.root != CONTAINER_ROOT {
            (
                host.as_path().to_owned(),
                Path::new(&library.root).join(library.path.strip_prefix(HOST_ROOT).unwrap_or(&library.path)),
            )
        } else {
            (root, library.path.clone())
        };
        let (chroot, library) = if chroot && root != Path::new(HOST_ROOT) {
            (Some(root), path)
        } else {
            let real =
                HostRoot::new(root).resolve(&path).map_err(|error| Some(format!("{}: {error}", path.display())))?;
            (None, real)
        };
        Ok(Self {
            host_root: host.as_path().to_owned(),
            chroot,
            library,
            version: loaded.to_owned(),
            boot_id: boot_id.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
