//! The driver's user-space libraries on the host.

use std::path::{Path, PathBuf};

use gpu_operator_common::version::Version;
use gpu_operator_crd::report::{CONTAINER_ROOT, DRIVER_ROOTS, GKE_ROOT, HOST_ROOT, InstalledDriver};

use super::{
    kernel_module::{DriverError, unreadable},
    library_directories,
};
use crate::root::{HostRoot, present};

const LIBRARY: &str = "libnvidia-ml.so.";
/// The first bytes of a 32-bit ELF file: the probe cannot load such a library, and many hosts have
/// both kinds.
const ELF_32: &[u8] = b"\x7fELF\x01";

/// A `libnvidia-ml.so.<version>` on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The root it belongs to: one of [`DRIVER_ROOTS`], or the requested one.
    pub root: String,
    /// Its version, taken from its file name: the link to it names only `1`.
    pub version: String,
    /// Inside that root.
    pub path: PathBuf,
}

/// Returns the libraries under one root of the host, sorted by version. The host's own root excludes those of the other
/// roots, which its dynamic linker's cache may list as well.
pub fn libraries(host: &HostRoot, root: &str) -> Result<Vec<Library>, DriverError> {
    let others: &[&str] = if root == HOST_ROOT { &[CONTAINER_ROOT, GKE_ROOT] } else { &[] };
    libraries_but(host, root, others)
}

/// Returns the libraries under a root, except those below `others`.
fn libraries_but(host: &HostRoot, root: &str, others: &[&str]) -> Result<Vec<Library>, DriverError> {
    let Some(path) = present(host.resolve(root)).map_err(unreadable("a root"))? else {
        return Ok(Vec::new());
    };
    let inside = HostRoot::new(path);
    let mut found: Vec<Library> = Vec::new();
    for directory in library_directories::of(&inside, LIBRARY).map_err(unreadable("where libraries are"))? {
        for name in inside.names(&directory).map_err(unreadable("a library directory"))? {
            let Some(version) = name.strip_prefix(LIBRARY).filter(|version| is_version(version)) else {
                continue;
            };
            let path = PathBuf::from("/").join(&directory).join(&name);
            let known = found.iter().any(|library| library.version == version);
            if !known && is_loadable(&inside, &path, others) {
                found.push(Library { root: root.to_owned(), version: version.to_owned(), path });
            }
        }
    }
    found.sort_by(|one, other| one.version.cmp(&other.version));
    Ok(found)
}

/// Returns the libraries under every root, in order of preference: `own`, an installer's configured folder, comes
/// before the roots that are always searched.
pub fn all_libraries(host: &HostRoot, own: Option<&str>) -> Result<Vec<Library>, DriverError> {
    let own = own.filter(|own| !DRIVER_ROOTS.contains(own));
    let others: Vec<&str> = own.into_iter().chain([CONTAINER_ROOT, GKE_ROOT]).collect();
    let mut all = Vec::new();
    for root in own.into_iter().chain(DRIVER_ROOTS) {
        all.extend(libraries_but(host, root, if root == HOST_ROOT { &others } else { &[] })?);
    }
    Ok(all)
}

impl From<&Library> for InstalledDriver {
    fn from(library: &Library) -> Self {
        Self { root: library.root.clone(), version: library.version.clone(), ..Self::default() }
    }
}

/// Returns whether a path leads to a file outside `others` that is not a 32-bit library.
fn is_loadable(root: &HostRoot, path: &Path, others: &[&str]) -> bool {
    let Ok(file) = root.resolve(path) else { return false };
    let inside = Path::new("/").join(file.strip_prefix(root.as_path()).unwrap_or(&file));
    file.is_file()
        && !others.iter().any(|other| inside.starts_with(other))
        && root.bytes(path, 5).is_ok_and(|beginning| beginning != ELF_32)
}

/// Matches `580.173.02`, but not the `1` of the link.
fn is_version(text: &str) -> bool {
    text.contains('.') && text.parse::<Version>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{super::test_files::write, *};

    #[test]
    fn libraries_are_found_in_every_root_and_versioned_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/libnvidia-ml.so.470.256.02", "");
        write(root, "run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.173.02", "");
        write(root, "home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.535.309.01", "");
        let found: Vec<_> = all_libraries(&HostRoot::new(root), None)
            .unwrap()
            .into_iter()
            .map(|library| format!("{} {} {}", library.root, library.version, library.path.display()))
            .collect();
        assert_eq!(
            found,
            [
                "/run/nvidia/driver 580.173.02 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.173.02",
                "/ 470.256.02 /usr/lib64/libnvidia-ml.so.470.256.02",
                "/home/kubernetes/bin/nvidia 535.309.01 /lib64/libnvidia-ml.so.535.309.01",
            ]
        );
    }

    #[test]
    fn a_folder_named_by_the_operator_is_searched_first() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/libnvidia-ml.so.470.256.02", "");
        write(root, "opt/nvidia/lib64/libnvidia-ml.so.535.309.01", "");
        let found = all_libraries(&HostRoot::new(root), Some("/opt/nvidia")).unwrap();
        let roots: Vec<_> = found.iter().map(|library| library.root.as_str()).collect();
        assert_eq!(roots, ["/opt/nvidia", "/"]);
        assert_eq!(
            all_libraries(&HostRoot::new(root), Some(HOST_ROOT)).unwrap().len(),
            1,
            "each library is listed once"
        );
    }

    #[test]
    fn links_without_a_version_and_dangling_links_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/libnvidia-ml.so.1", "");
        write(root, "usr/lib64/libnvidia-ml.so.old", "");
        write(root, "usr/lib64/libnvidia-ml.so.580..2", "");
        symlink("libnvidia-ml.so.9.9.gone", root.join("usr/lib64/libnvidia-ml.so.9.9")).unwrap();
        assert!(libraries(&HostRoot::new(root), HOST_ROOT).unwrap().is_empty());
    }

    #[test]
    fn a_directory_counts_once_and_links_stay_inside_the_host() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/real-580", "");
        symlink("/usr/lib64/real-580", root.join("usr/lib64/libnvidia-ml.so.580.173.02")).unwrap();
        symlink("/usr/lib64", root.join("lib64")).unwrap();
        assert_eq!(libraries(&HostRoot::new(root), HOST_ROOT).unwrap().len(), 1);
    }
}
