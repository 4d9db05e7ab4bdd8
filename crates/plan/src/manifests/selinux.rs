//! `SELinux` options of containers that use files of the host, on systems that may enforce SELinux. They are those of
//! NVIDIA's operator, and tested only by golden files.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, SELinuxOptions, Volume};

use crate::manifests::pod::PodParts;

/// The type of an unconfined container. `container_t`, the default, may not read most of the host's files.
const UNCONFINED: &str = "spc_t";
/// The level without categories. Files that a container creates on the host have the level of its process, and with the
/// categories of one container no other container could read them.
const LEVEL: &str = "s0";

/// Sets the options of a pod's containers that mount folders of the host: the level for all of them, and the type for
/// those that are not privileged, which runtimes otherwise confine.
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
