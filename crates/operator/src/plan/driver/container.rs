//! NVIDIA's driver container, which loads the kernel modules and binds its root into `/run/nvidia/driver`.

use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, Container, SecurityContext, Volume, VolumeMount};

use super::{
    super::{
        daemon_set::{
            HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container,
        },
        pool,
    },
    GUARD,
};

/// Unloading waits for the driver's own services to end.
const GRACE_SECONDS: i64 = 60;

/// Where the container looks for a file of parameters for each kernel module.
const PARAMETERS: &str = "/drivers";
/// The files that it looks for there.
const PARAMETER_FILES: [&str; 4] = ["nvidia.conf", "nvidia-uvm.conf", "nvidia-modeset.conf", "nvidia-peermem.conf"];

/// The folders of package repositories and of trusted certificates, by the beginning of a system's name. NVIDIA's images
/// and its operator have them there; that of SUSE is general knowledge, unverified.
const FOLDERS: [(&str, &str, &str); 3] = [
    ("ubuntu", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    ("sle", "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
    ("", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
];

/// The driver's pod.
#[must_use]
pub fn pod(input: &PodInput<'_>, version: &str, os: &str, open: bool) -> PodParts {
    let kind = if open { "open" } else { "proprietary" };
    let container = operand_container(
        input,
        "driver",
        vec![
            env("KERNEL_MODULE_TYPE", kind),
            // What drivers before 570 understand of the same question.
            env("OPEN_KERNEL_MODULES_ENABLED", if open { "true" } else { "false" }),
            // The runtime must not inject a driver into the container that installs it.
            env("NVIDIA_VISIBLE_DEVICES", "void"),
        ],
        vec!["init".to_owned()],
    );
    let mut mounts = vec![
        mount("run-nvidia", "/run/nvidia", Mode::Share),
        mount("run-fabricmanager", "/run/nvidia-fabricmanager", Mode::Writable),
        mount("run-topologyd", "/run/nvidia-topologyd", Mode::Writable),
        mount("var-log", "/var/log", Mode::Writable),
        mount("os-release", "/host-etc/os-release", Mode::ReadOnly),
        mount("firmware-search-path", "/sys/module/firmware_class/parameters/path", Mode::Writable),
        mount("firmware", "/lib/firmware", Mode::Writable),
    ];
    let files = files(input, os);
    mounts.extend(files.iter().flat_map(|(_, mounts)| mounts.iter().cloned()));
    let main = Container {
        command: Some(vec!["nvidia-driver".to_owned()]),
        // Privileged: it loads kernel modules, and its mount of the driver root must reach the host.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..container
    };
    // Before: an image that reinstalls on every start must not be let at a driver that is in use.
    let guard = own_container(
        input.settings,
        GUARD,
        &["guard", "--host-root", "/host", "--version", version],
        vec![mount("sys", "/host/sys", Mode::ReadOnly), mount("run-nvidia", "/host/run/nvidia", Mode::Follow)],
    );
    let mut volumes = vec![
        host_path("sys", "/sys", None),
        host_path("run-nvidia", "/run/nvidia", Some("DirectoryOrCreate")),
        host_path("run-fabricmanager", "/run/nvidia-fabricmanager", Some("DirectoryOrCreate")),
        host_path("run-topologyd", "/run/nvidia-topologyd", Some("DirectoryOrCreate")),
        host_path("var-log", "/var/log", None),
        host_path("os-release", "/etc/os-release", None),
        host_path("firmware-search-path", "/sys/module/firmware_class/parameters/path", None),
        // GSP firmware is read by the kernel from the host, so it lies where the host sees the driver's root.
        host_path("firmware", "/run/nvidia/driver/lib/firmware", Some("DirectoryOrCreate")),
    ];
    volumes.extend(files.into_iter().map(|(volume, _)| volume));
    PodParts { init: vec![guard], main, volumes, host: HostNamespaces::Pid, grace_seconds: GRACE_SECONDS }
}

/// The user's files: volumes, and where each is mounted.
fn files(input: &PodInput<'_>, os: &str) -> Vec<(Volume, Vec<VolumeMount>)> {
    let maps = pool::driver_of(input.policy, input.key).config_maps;
    let mut files = Vec::new();
    if let Some(name) = &maps.kernel_modules {
        // File by file, because the folder holds the driver itself. Of a key that the ConfigMap lacks comes an empty
        // folder, which the container takes for no file.
        let mounts = PARAMETER_FILES.map(|file| VolumeMount {
            sub_path: Some(file.to_owned()),
            ..mount("parameters", &format!("{PARAMETERS}/{file}"), Mode::ReadOnly)
        });
        files.push((config_map("parameters", name), mounts.into()));
    }
    let folders = FOLDERS.iter().find(|(system, _, _)| os.starts_with(system));
    let (repositories, certificates) =
        folders.map_or(("", ""), |(_, repositories, certificates)| (repositories, certificates));
    for (volume, name, folder) in
        [("repositories", &maps.repositories, repositories), ("certificates", &maps.certificates, certificates)]
    {
        if let Some(name) = name {
            files.push((config_map(volume, name), vec![mount(volume, folder, Mode::ReadOnly)]));
        }
    }
    files
}

fn config_map(volume: &str, name: &str) -> Volume {
    let source = ConfigMapVolumeSource { name: name.to_owned(), ..ConfigMapVolumeSource::default() };
    Volume { name: volume.to_owned(), config_map: Some(source), ..Volume::default() }
}
