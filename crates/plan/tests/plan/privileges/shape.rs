//! What a container may do on its node, as text.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::{Container, PodSpec, SeccompProfile, SecurityContext, Volume, VolumeMount};

/// The privileges of containers, apart from what their nodes' systems and runtimes require.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    container: String,
    pod: String,
    security: String,
}

impl Shape {
    /// Returns the privileges of a container of a pod. Containers of the operator's own image are marked.
    pub(super) fn of(pod: &str, spec: &PodSpec, container: &Container, own_image: &str) -> Self {
        let own = container.image.as_deref() == Some(own_image);
        Self {
            container: format!("{pod}/{}{}", container.name, if own { ", own image" } else { "" }),
            pod: access(spec),
            security: security(spec, container),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n  pod: {}\n  security: {}", self.container, self.pod, self.security)
    }
}

/// Returns the SELinux options and the mounts of a container, which depend on its node.
pub(super) fn uses(spec: &PodSpec, container: &Container) -> Vec<String> {
    let volumes: BTreeMap<&str, &Volume> =
        spec.volumes.iter().flatten().map(|volume| (volume.name.as_str(), volume)).collect();
    let mounts = container.volume_mounts.iter().flatten();
    let mut used: Vec<String> =
        mounts.map(|mount| mounted(mount, volumes.get(mount.name.as_str()).expect("the volume of a mount"))).collect();
    used.extend(container.volume_devices.iter().flatten().map(|device| format!("device: {}", device.device_path)));
    used.push(format!("SELinux: {}", selinux(spec, container)));
    used
}

fn access(spec: &PodSpec) -> String {
    let all = [("PID", spec.host_pid), ("network", spec.host_network), ("IPC", spec.host_ipc)];
    let used: Vec<&str> = all.iter().filter(|(_, on)| *on == Some(true)).map(|(name, _)| *name).collect();
    let used = if used.is_empty() { "none".to_owned() } else { used.join(", ") };
    // Kubernetes mounts the token of the service account by default.
    let token = if spec.automount_service_account_token == Some(false) { "not mounted" } else { "MOUNTED" };
    format!("namespaces of the host: {used}; API token: {token}")
}

/// Returns the effective security context: fields that the container does not set are those of its pod.
fn security(spec: &PodSpec, container: &Container) -> String {
    let own = container.security_context.clone().unwrap_or_default();
    let pod = spec.security_context.clone().unwrap_or_default();
    let id = |value: Option<i64>| value.map_or("of the image".to_owned(), |id| id.to_string());
    let switch = |on: Option<bool>, yes: &str, no: &str| if on == Some(true) { yes.to_owned() } else { no.to_owned() };
    let facts = [
        format!("user {}", id(own.run_as_user.or(pod.run_as_user))),
        format!("group {}", id(own.run_as_group.or(pod.run_as_group))),
        switch(own.privileged, "PRIVILEGED", "unprivileged"),
        format!("capabilities {}", capabilities(&own)),
        switch(own.allow_privilege_escalation.map(|on| !on), "no escalation", "escalation"),
        switch(own.read_only_root_filesystem, "root read-only", "root writable"),
        format!("seccomp {}", seccomp(own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref()))),
    ];
    facts.join(", ")
}

fn capabilities(context: &SecurityContext) -> String {
    let Some(capabilities) = &context.capabilities else { return "of the runtime".to_owned() };
    let signed = |sign: char, names: &Option<Vec<String>>| -> Vec<String> {
        let mut names = names.clone().unwrap_or_default();
        names.sort();
        names.iter().map(|name| format!("{sign}{name}")).collect()
    };
    [signed('-', &capabilities.drop), signed('+', &capabilities.add)].concat().join(" ")
}

fn seccomp(profile: Option<&SeccompProfile>) -> String {
    profile.map_or("of the runtime".to_owned(), |profile| {
        profile.localhost_profile.clone().map_or(profile.type_.clone(), |path| format!("{} {path}", profile.type_))
    })
}

fn selinux(spec: &PodSpec, container: &Container) -> String {
    let own = container.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let pod = spec.security_context.as_ref().and_then(|context| context.se_linux_options.as_ref());
    let Some(options) = own.or(pod) else { return "of the runtime".to_owned() };
    let part = |value: &Option<String>| value.clone().unwrap_or_else(|| "*".to_owned());
    [&options.user, &options.role, &options.type_, &options.level].map(part).join(":")
}

fn mounted(mount: &VolumeMount, volume: &Volume) -> String {
    let from = match (&volume.host_path, &volume.empty_dir, &volume.config_map, &volume.projected) {
        (Some(path), ..) => path.path.clone(),
        (_, Some(_), ..) => format!("({}: folder of the pod)", volume.name),
        (_, _, Some(map), _) => format!("(ConfigMap {})", map.name),
        (_, _, _, Some(_)) => format!("({}: projected)", volume.name),
        _ => panic!("a volume of another kind: {volume:?}"),
    };
    let mode = if mount.read_only == Some(true) { "read-only" } else { "WRITABLE" };
    let propagation = mount.mount_propagation.as_ref().map(|kind| format!(" {kind}")).unwrap_or_default();
    let part = mount.sub_path.as_ref().map(|path| format!("/{path}")).unwrap_or_default();
    let from = format!("{from}{part}");
    let to = if from == mount.mount_path { String::new() } else { format!(" -> {}", mount.mount_path) };
    format!("mount: {from}{to} {mode}{propagation}")
}
