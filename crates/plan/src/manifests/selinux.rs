//! `SELinux` options of containers that use files of the host, on systems that may enforce SELinux. They are those of
//! NVIDIA's operator, and tested only by golden files.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, SELinuxOptions, Volume};

use crate::manifests::pod::PodParts;

/// The type of an unconfined container. `container_t`, the default, may not read most of the host's files.
const UNCONFINED: &str = "spc_t";
/// The level without categories. Files that a container creates on the host have the level of its process, and with the
/// categories of one container no other container could read them.
const LEVEL: &str = "s0";

/// The folder of the host whose label, `sysfs_t`, every container may read.
const READABLE: &str = "/sys";

/// Sets the options of a pod's containers that use more of the host than every container may: the level for all of them, and the type
/// for those that are not privileged, which runtimes otherwise confine.
pub fn allow_host_files(parts: &mut PodParts) {
    let of_host: BTreeMap<&str, &str> = parts.volumes.iter().filter_map(host_path).collect();
    for container in parts.init.iter_mut().chain([&mut parts.main]) {
        if !uses_more(container, &of_host) {
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

/// Returns the name and path of a volume of the host.
fn host_path(volume: &Volume) -> Option<(&str, &str)> {
    volume.host_path.as_ref().map(|source| (volume.name.as_str(), source.path.as_str()))
}

/// Returns whether a container uses the host in a way that the default type does not permit.
fn uses_more(container: &Container, of_host: &BTreeMap<&str, &str>) -> bool {
    let capabilities = container.security_context.as_ref().and_then(|context| context.capabilities.as_ref());
    let is_capable = capabilities.and_then(|capabilities| capabilities.add.as_ref()).is_some_and(|add| !add.is_empty());
    container.volume_mounts.iter().flatten().any(|mount| {
        let path = of_host.get(mount.name.as_str());
        path.is_some_and(|path| is_capable || *path != READABLE || mount.read_only != Some(true))
    })
}
