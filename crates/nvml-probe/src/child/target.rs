//! Which driver the NVML child is to ask.

use std::path::{Path, PathBuf};

use crate::{
    driver::{CONTAINER_ROOT, HOST, Library},
    host::HostRoot,
};

/// The driver that is asked. A child serves one; with any of this changed it is ended and another one started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The root that the child changes into; none where the library is loaded from where it lies.
    pub chroot: Option<PathBuf>,
    /// The library, inside that root.
    pub library: PathBuf,
    /// The version of the loaded module and of the library.
    pub version: String,
    /// The boot in which it is loaded.
    pub boot_id: String,
}

impl Target {
    /// The driver to ask, where a module is loaded and one of the libraries, given in order of preference, is of its
    /// version.
    ///
    /// With `chroot` unset the library is loaded from under the host root without a change of root, so that it meets
    /// this process' own /dev.
    ///
    /// # Errors
    /// Why there is nothing to ask, in a sentence; none where no module is loaded.
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
        // An installer's directory is no root file system. The library works from the host's root, where its /dev is.
        let (root, path) = if library.root != HOST && library.root != CONTAINER_ROOT {
            (
                host.as_path().to_owned(),
                Path::new(&library.root).join(library.path.strip_prefix(HOST).unwrap_or(&library.path)),
            )
        } else {
            (root, library.path.clone())
        };
        let (chroot, library) = if chroot && root != Path::new(HOST) {
            (Some(root), path)
        } else {
            let real =
                HostRoot::new(root).resolve(&path).map_err(|error| Some(format!("{}: {error}", path.display())))?;
            (None, real)
        };
        Ok(Self { chroot, library, version: loaded.to_owned(), boot_id: boot_id.to_owned() })
    }
}
