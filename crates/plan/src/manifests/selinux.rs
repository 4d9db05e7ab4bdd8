//! `SELinux` options of containers that work with files of the host, on systems that may enforce it. As NVIDIA's operator
//! has them; shown by golden files only.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, SELinuxOptions, Volume};

use crate::manifests::pod::PodParts;

/// The type of a container that is not confined. `container_t`, the default, may not read most of a host's files.
const UNCONFINED: &str = "spc_t";
/// The level without categories. Files that a container puts onto the host have the level of its process, and with the
/// categories of one container no other could read them.
const LEVEL: &str = "s0";

/// Sets the options of a pod's containers: the type for those that mount folders of the host without being privileged, which
/// runtimes confine otherwise; and the level for these and for privileged ones, which are not confined.
pub fn allow_host_files(parts: &mut PodParts) {
    let of_host: BTreeSet<&str> = parts.volumes.iter().filter_map(name_of_host_path).collect();
    for container in parts.init.iter_mut().chain([&mut parts.main]) {
        if !mounts_any(container, &of_host) {
            continue;
        }
        let Some(context) = &mut container.security_context else { continue };
        let confined = context.privileged != Some(true);
        context.se_linux_options = Some(SELinuxOptions {
            level: Some(LEVEL.to_owned()),
            type_: confined.then(|| UNCONFINED.to_owned()),
            ..SELinuxOptions::default()
        });
    }
}

fn name_of_host_path(volume: &Volume) -> Option<&str> {
    volume.host_path.as_ref().map(|_| volume.name.as_str())
}

fn mounts_any(container: &Container, volumes: &BTreeSet<&str>) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| volumes.contains(mount.name.as_str()))
}
