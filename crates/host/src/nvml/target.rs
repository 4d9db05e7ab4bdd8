//! Selects the driver that the NVML child queries.

use std::path::{Path, PathBuf};

use crate::{
    observe::driver::{CONTAINER_ROOT, HOST_ROOT, Library},
    root::HostRoot,
};

/// The driver that is queried. A child serves one target; if any field changes, it is replaced by another child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the host's root is for this process.
    pub host_root: PathBuf,
    /// The root that the child changes into; `None` if the library is loaded from its place on the host.
    pub chroot: Option<PathBuf>,
    /// The library's path inside that root.
    pub library: PathBuf,
    /// The version of the loaded module and of the library.
    pub version: String,
    /// The boot in which the module is loaded.
    pub boot_id: String,
}

impl Target {
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
