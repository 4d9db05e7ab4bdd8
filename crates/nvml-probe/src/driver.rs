//! The driver as the host shows it: which module is loaded, who uses it, which user-space libraries lie where.

pub mod directories;
mod ld_cache;

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use gpu_operator_common::version::Version;
use gpu_operator_crd::report::InstalledDriver;
pub use gpu_operator_crd::report::{CONTAINER_ROOT, DRIVER_ROOTS as ROOTS, GKE_ROOT, HOST_ROOT as HOST};

use crate::host::{HostRoot, present};

const LIBRARY: &str = "libnvidia-ml.so.";
const MODULES: &str = "/sys/module";
/// How an ELF file of 32 bits begins: a library that the probe cannot load, and that lies beside the other on many hosts.
const ELF_32: &[u8] = b"\x7fELF\x01";
/// What NVIDIA's driver container keeps in the host's `/run`, which does not outlive a reboot: it locks the first for as long
/// as it runs, and leaves both where the module stays loaded.
const OF_CONTAINER: [&str; 2] = ["/run/nvidia/nvidia-driver.pid", "/run/nvidia/nvidia-driver.state"];
/// The driver's modules that can be held by programs. Others that depend on `nvidia` are found as its holders.
const OWN_MODULES: [&str; 4] = ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"];

/// A fact about the driver could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} of the NVIDIA driver")]
pub struct DriverError {
    what: &'static str,
    source: io::Error,
}

fn unreadable(what: &'static str) -> impl FnOnce(io::Error) -> DriverError {
    move |source| DriverError { what, source }
}

/// The version of the NVIDIA kernel module that is loaded, if one is.
///
/// # Errors
/// When sysfs cannot be read.
pub fn loaded(host: &HostRoot) -> Result<Option<String>, DriverError> {
    let version = host.read_if_present(format!("{MODULES}/nvidia/version"));
    Ok(version.map_err(unreadable("the loaded module"))?.filter(|version| !version.is_empty()))
}

/// Tells one loading of the module from the next within one boot: sysfs gives each directory a number that it does not
/// give again. None where no module is loaded.
///
/// # Errors
/// When sysfs cannot be read.
pub fn load_id(host: &HostRoot) -> Result<Option<u64>, DriverError> {
    let unreadable = unreadable("the loaded module");
    let directory = present(host.resolve(format!("{MODULES}/nvidia")).and_then(fs::metadata));
    Ok(directory.map_err(unreadable)?.map(|directory| directory.ino()))
}

/// Whether NVIDIA's driver container has run since the node booted, so that the loaded module may be one that it left without
/// its libraries.
///
/// # Errors
/// When the host's `/run` cannot be read.
pub fn container_ran(host: &HostRoot) -> Result<bool, DriverError> {
    for path in OF_CONTAINER {
        let found = present(host.resolve(path)).map_err(unreadable("the state of the driver's container"))?;
        if found.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether anything but the driver's own modules uses the module, so that it cannot be unloaded.
///
/// A module's reference count holds one for each module that depends on it (its holders) and one for each other
/// use, such as an open device. A kernel that shows no count cannot unload modules: in use.
///
/// # Errors
/// When sysfs cannot be read.
pub fn in_use(host: &HostRoot) -> Result<bool, DriverError> {
    if loaded(host)?.is_none() {
        return Ok(false);
    }
    let mut pending: Vec<String> = OWN_MODULES.map(str::to_owned).into();
    let mut seen = BTreeSet::new();
    while let Some(module) = pending.pop() {
        if !seen.insert(module.clone()) {
            continue;
        }
        let holders = host.names(format!("{MODULES}/{module}/holders")).map_err(unreadable("a module's holders"))?;
        let count = host.read_if_present(format!("{MODULES}/{module}/refcnt"));
        match count.map_err(unreadable("a module's use count"))? {
            Some(count) => {
                // The kernel writes -1 for a module that is being unloaded.
                let count: i64 = count.parse().unwrap_or(i64::MAX);
                if count > i64::try_from(holders.len()).unwrap_or(i64::MAX) {
                    return Ok(true);
                }
            }
            None if module == "nvidia" => return Ok(true),
            None => {}
        }
        pending.extend(holders);
    }
    Ok(false)
}

/// Whether NVIDIA's container would refuse to unload the module: it counts three of its own modules as no use, as long as
/// nothing uses those, and every other one, such as `nvidia_drm` or `nvidia_fs`, as one.
///
/// # Errors
/// When sysfs cannot be read.
pub fn is_kept_loaded(host: &HostRoot) -> Result<bool, DriverError> {
    let count = |module: &str| -> Result<Option<i64>, DriverError> {
        let count = host.read_if_present(format!("{MODULES}/{module}/refcnt"));
        Ok(count.map_err(unreadable("a module's use count"))?.map(|count| count.parse().unwrap_or(i64::MAX)))
    };
    let mut loaded = 0;
    for dependant in ["nvidia_modeset", "nvidia_uvm", "nvidia_peermem"] {
        match count(dependant)? {
            Some(users) if users > 0 => return Ok(true),
            Some(_) => loaded += 1,
            None => {}
        }
    }
    Ok(count("nvidia")?.is_some_and(|users| users > loaded))
}

/// A `libnvidia-ml.so.<version>` on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The root it belongs to: one of [`ROOTS`], or as asked for.
    pub root: String,
    /// Its version, from its name: what it is linked as says only `1`.
    pub version: String,
    /// Its path inside that root.
    pub path: PathBuf,
}

/// The libraries under one root of the host, by version. Those of the host's own root are not those of the other roots,
/// which its dynamic linker's cache may name as well.
///
/// # Errors
/// When a directory exists and cannot be read.
pub fn libraries(host: &HostRoot, root: &str) -> Result<Vec<Library>, DriverError> {
    let others: &[&str] = if root == HOST { &[CONTAINER_ROOT, GKE_ROOT] } else { &[] };
    libraries_but(host, root, others)
}

/// The same without what lies under `others`.
fn libraries_but(host: &HostRoot, root: &str, others: &[&str]) -> Result<Vec<Library>, DriverError> {
    let Some(path) = present(host.resolve(root)).map_err(unreadable("a root"))? else {
        return Ok(Vec::new());
    };
    let inside = HostRoot::new(path);
    let mut found: Vec<Library> = Vec::new();
    for directory in directories::of(&inside, LIBRARY).map_err(unreadable("where libraries are"))? {
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

/// The libraries under every root, the preferred root's first: `own`, where an installer was told to put them, goes
/// before those that are looked at anyway.
///
/// # Errors
/// As [`libraries`].
pub fn all_libraries(host: &HostRoot, own: Option<&str>) -> Result<Vec<Library>, DriverError> {
    let own = own.filter(|own| !ROOTS.contains(own));
    let others: Vec<&str> = own.into_iter().chain([CONTAINER_ROOT, GKE_ROOT]).collect();
    let mut all = Vec::new();
    for root in own.into_iter().chain(ROOTS) {
        all.extend(libraries_but(host, root, if root == HOST { &others } else { &[] })?);
    }
    Ok(all)
}

impl From<&Library> for InstalledDriver {
    fn from(library: &Library) -> Self {
        Self { root: library.root.clone(), version: library.version.clone(), missing_devices: Vec::new() }
    }
}

/// Whether a path leads to a file outside of `others` that is no library of 32 bits.
fn is_loadable(root: &HostRoot, path: &Path, others: &[&str]) -> bool {
    let Ok(file) = root.resolve(path) else { return false };
    let inside = Path::new("/").join(file.strip_prefix(root.as_path()).unwrap_or(&file));
    file.is_file()
        && !others.iter().any(|other| inside.starts_with(other))
        && root.bytes(path, 5).is_ok_and(|beginning| beginning != ELF_32)
}

/// `580.173.02`, and not the `1` of the link.
fn is_version(text: &str) -> bool {
    text.contains('.') && text.parse::<Version>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn module(root: &Path, name: &str, count: &str, holders: &[&str]) {
        write(root, &format!("sys/module/{name}/refcnt"), &format!("{count}\n"));
        for holder in holders {
            fs::create_dir_all(root.join(format!("sys/module/{name}/holders/{holder}"))).unwrap();
        }
    }

    #[test]
    fn the_loaded_version_is_sysfs() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert_eq!(loaded(&host).unwrap(), None);
        write(directory.path(), "sys/module/nvidia/version", "580.173.02\n");
        assert_eq!(loaded(&host).unwrap().as_deref(), Some("580.173.02"));
    }

    #[test]
    fn a_module_is_in_use_when_its_count_exceeds_its_holders() {
        type Modules<'a> = &'a [(&'a str, &'a str, &'a [&'a str])];
        let cases: &[(Modules<'_>, bool, &str)] = &[
            (&[("nvidia", "0", &[])], false, "idle"),
            (&[("nvidia", "1", &[])], true, "an open device"),
            (&[("nvidia", "2", &["nvidia_uvm", "nvidia_modeset"])], false, "its own modules only"),
            (&[("nvidia", "3", &["nvidia_uvm", "nvidia_modeset"])], true, "its own modules and an open device"),
            (&[("nvidia", "1", &["nvidia_uvm"]), ("nvidia_uvm", "2", &[])], true, "a CUDA program"),
            (
                &[("nvidia", "1", &["nvidia_modeset"]), ("nvidia_modeset", "1", &["nvidia_drm"])],
                false,
                "modeset held by drm alone",
            ),
            (
                &[
                    ("nvidia", "1", &["nvidia_modeset"]),
                    ("nvidia_modeset", "1", &["nvidia_drm"]),
                    ("nvidia_drm", "4", &[]),
                ],
                true,
                "a display server",
            ),
            (&[("nvidia", "1", &["gdrdrv"]), ("gdrdrv", "1", &[])], true, "a user of a module that depends on it"),
            (&[("nvidia", "-1", &[])], false, "being unloaded"),
        ];
        for (modules, expected, what) in cases {
            let directory = tempfile::tempdir().unwrap();
            write(directory.path(), "sys/module/nvidia/version", "580.173.02");
            for (name, count, holders) in *modules {
                module(directory.path(), name, count, holders);
            }
            assert_eq!(in_use(&HostRoot::new(directory.path())).unwrap(), *expected, "{what}");
        }
    }

    #[test]
    fn nvidias_container_unloads_its_own_modules_and_those_of_nobody_else() {
        type Modules<'a> = &'a [(&'a str, &'a str)];
        let cases: &[(Modules<'_>, bool, &str)] = &[
            (&[("nvidia", "0")], false, "idle"),
            (&[("nvidia", "1")], true, "an open device, or a module that is not its own"),
            (&[("nvidia", "2"), ("nvidia_uvm", "0"), ("nvidia_modeset", "0")], false, "its own modules"),
            (&[("nvidia", "1"), ("nvidia_uvm", "1")], true, "a CUDA program"),
            (&[("nvidia", "1"), ("nvidia_modeset", "1"), ("nvidia_drm", "0")], true, "modeset held by drm"),
            (&[], false, "nothing loaded"),
        ];
        for (modules, expected, what) in cases {
            let directory = tempfile::tempdir().unwrap();
            for (name, count) in *modules {
                module(directory.path(), name, count, &[]);
            }
            assert_eq!(is_kept_loaded(&HostRoot::new(directory.path())).unwrap(), *expected, "{what}");
        }
    }

    #[test]
    fn a_module_without_a_count_cannot_be_unloaded_and_an_absent_one_is_not_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert!(!in_use(&host).unwrap());
        write(directory.path(), "sys/module/nvidia/version", "580.173.02");
        assert!(in_use(&host).unwrap());
    }

    #[test]
    fn libraries_are_found_under_every_root_and_named_by_their_file() {
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
    fn a_folder_that_the_operator_names_is_searched_before_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/libnvidia-ml.so.470.256.02", "");
        write(root, "opt/nvidia/lib64/libnvidia-ml.so.535.309.01", "");
        let found = all_libraries(&HostRoot::new(root), Some("/opt/nvidia")).unwrap();
        let roots: Vec<_> = found.iter().map(|library| library.root.as_str()).collect();
        assert_eq!(roots, ["/opt/nvidia", "/"]);
        assert_eq!(all_libraries(&HostRoot::new(root), Some(HOST)).unwrap().len(), 1, "each once");
    }

    #[test]
    fn links_without_a_version_and_links_to_nothing_are_no_library() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/libnvidia-ml.so.1", "");
        write(root, "usr/lib64/libnvidia-ml.so.old", "");
        write(root, "usr/lib64/libnvidia-ml.so.580..2", "");
        symlink("libnvidia-ml.so.9.9.gone", root.join("usr/lib64/libnvidia-ml.so.9.9")).unwrap();
        assert!(libraries(&HostRoot::new(root), HOST).unwrap().is_empty());
    }

    #[test]
    fn a_directory_reached_twice_counts_once_and_a_link_means_the_hosts_path() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        write(root, "usr/lib64/real-580", "");
        symlink("/usr/lib64/real-580", root.join("usr/lib64/libnvidia-ml.so.580.173.02")).unwrap();
        symlink("/usr/lib64", root.join("lib64")).unwrap();
        assert_eq!(libraries(&HostRoot::new(root), HOST).unwrap().len(), 1);
    }
}
