//! The driver's kernel module: whether it is loaded and in use.

use std::{collections::BTreeSet, io, os::unix::fs::MetadataExt};

use crate::root::{HostRoot, present};

const MODULES: &str = "/sys/module";

/// Files that NVIDIA's driver container keeps in the host's `/run`, which does not survive a reboot: the container
/// locks the first for as long as it runs, and leaves both if the module stays loaded.
const CONTAINER_FILES: [&str; 2] = ["/run/nvidia/nvidia-driver.pid", STATE_FILE];

/// The file in which the container stores the digest of its configuration when it loads the modules.
const STATE_FILE: &str = "/run/nvidia/nvidia-driver.state";

/// The folder of the fabric manager that runs in the container on machines with `NVSwitch`es.
const FABRIC_MANAGER: &str = "/run/nvidia-fabricmanager";

/// The driver's modules that programs can hold. Other modules that depend on `nvidia` are found as its holders.
const OWN_MODULES: [&str; 4] = ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"];

/// Returns the loaded module's version.
pub fn loaded(host: &HostRoot) -> Result<Option<String>, DriverError> {
    let version = host.read_if_present(format!("{MODULES}/nvidia/version"));
    Ok(version.map_err(unreadable("the loaded module"))?.filter(|version| !version.is_empty()))
}

/// Returns a number that identifies one load of the module within a boot: sysfs never reuses a directory's inode
/// number. `None` if no module is loaded.
pub fn load_id(host: &HostRoot) -> Result<Option<u64>, DriverError> {
    let unreadable = unreadable("the loaded module");
    let directory = present(host.metadata(format!("{MODULES}/nvidia")));
    Ok(directory.map_err(unreadable)?.map(|directory| directory.ino()))
}

/// Whether NVIDIA's driver container has run since the node booted. The loaded module may be one that it left without
/// its libraries.
pub fn container_ran(host: &HostRoot) -> Result<bool, DriverError> {
    for path in CONTAINER_FILES {
        let found = present(host.metadata(path)).map_err(unreadable("the state of the driver's container"))?;
        if found.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the digest of the configuration with which NVIDIA's driver container has loaded the module, so that a container with the
/// same digest can replace it while programs use the module. `None` if it stores no digest or that cannot be read, or if a fabric
/// manager has run in it: CUDA programs end with that.
pub fn config_digest(host: &HostRoot) -> Option<String> {
    let has_fabric_manager = host.names(FABRIC_MANAGER).map_or(true, |files| !files.is_empty());
    let stored = host.read_if_present(STATE_FILE).ok().flatten();
    stored.filter(|digest| !digest.is_empty() && !has_fabric_manager)
}

/// Returns whether anything other than the driver's own modules uses the module, so that it cannot be unloaded.
///
/// A module's reference count includes one for each module that depends on it (its holders) and one for each other use,
/// such as an open device. A kernel that shows no count cannot unload modules, so the module counts as in use.
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

/// Returns whether NVIDIA's container would not unload the module. The container ignores three of its own
/// modules as long as they are unused, and counts every other one, such as `nvidia_drm` or `nvidia_fs`, as a user.
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

#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} of the NVIDIA driver")]
pub struct DriverError {
    what: &'static str,
    source: io::Error,
}

/// Returns a function that wraps an I/O error of reading `what`.
pub(super) fn unreadable(what: &'static str) -> impl FnOnce(io::Error) -> DriverError {
    move |source| DriverError { what, source }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::{super::test_files::write, *};

    fn module(root: &Path, name: &str, count: &str, holders: &[&str]) {
        write(root, &format!("sys/module/{name}/refcnt"), &format!("{count}\n"));
        for holder in holders {
            fs::create_dir_all(root.join(format!("sys/module/{name}/holders/{holder}"))).unwrap();
        }
    }

    #[test]
    fn the_loaded_version_comes_from_sysfs() {
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
    fn nvidias_container_unloads_its_own_modules_only() {
        type Modules<'a> = &'a [(&'a str, &'a str)];
        let cases: &[(Modules<'_>, bool, &str)] = &[
            (&[("nvidia", "0")], false, "idle"),
            (&[("nvidia", "1")], true, "an open device, or a module of another package"),
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
    fn the_digest_is_known_if_only_the_driver_runs_in_its_container() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        let digest = || config_digest(&host);
        assert_eq!(digest(), None);
        write(directory.path(), "run/nvidia/nvidia-driver.state", "\n");
        assert_eq!(digest(), None);
        write(directory.path(), "run/nvidia/nvidia-driver.state", "abc\n");
        fs::create_dir_all(directory.path().join("run/nvidia-fabricmanager")).unwrap();
        assert_eq!(digest().as_deref(), Some("abc"));
        write(directory.path(), "run/nvidia-fabricmanager/nv-fabricmanager.pid", "7\n");
        assert_eq!(digest(), None);
    }

    #[test]
    fn a_module_without_a_count_is_in_use_and_an_absent_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let host = HostRoot::new(directory.path());
        assert!(!in_use(&host).unwrap());
        write(directory.path(), "sys/module/nvidia/version", "580.173.02");
        assert!(in_use(&host).unwrap());
    }
}
