//! The pods of the driver's stage: NVIDIA's driver container, which loads the kernel modules and bind-mounts its root at
//! `/run/nvidia/driver`, and, in [`installer`], those that install a driver on the host.

pub mod installer;

use gpu_operator_crd::{
    policy::ConfigMapFiles,
    report::{CONTAINER_ROOT, WAITS_FILE},
};
use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, Container, KeyToPath, SecurityContext, Volume, VolumeMount};

use crate::{
    container_names::{DEVICE_NODES, GUARD},
    desired::driver::DriverChoice,
    manifests::pod::{
        self, DRIVER_PID_FILE, HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container,
        own_container, root_with,
    },
    settings::Settings,
};

pub fn pod(input: &PodInput<'_>) -> Option<PodParts> {
    let preloaded = input.spec.operand.image.as_ref().is_none_or(|image| image.repository.is_none());
    let version = input.key.driver.version();
    Some(match &input.key.driver {
        DriverChoice::Container { open, os, .. } => container_pod(input, version.unwrap_or_default(), os, *open),
        DriverChoice::GkeCos { flavour, root } => installer::gke_cos_pod(input, flavour, version, root, preloaded),
        DriverChoice::GkeUbuntu { root, .. } => installer::gke_ubuntu_pod(input, version, root, preloaded),
        DriverChoice::RunFile { url, sha256, root, .. } => installer::run_file_pod(input, version, url, sha256, root),
        DriverChoice::Preinstalled { .. } => return None,
    })
}

/// In which the driver's services end before it is unloaded.
const GRACE_SECONDS: i64 = 60;
const STATE_FILE: &str = "/run/nvidia/nvidia-driver.state";

fn container_pod(input: &PodInput<'_>, version: &str, os: &str, open: bool) -> PodParts {
    let kind = if open { "open" } else { "proprietary" };
    let digest = input.key.driver.digest();
    let container = operand_container(
        input,
        "driver",
        vec![
            env("KERNEL_MODULE_TYPE", kind),
            // The equivalent for drivers before 570.
            env("OPEN_KERNEL_MODULES_ENABLED", if open { "true" } else { "false" }),
            // The runtime must not inject a driver into the container that installs it.
            env("NVIDIA_VISIBLE_DEVICES", "void"),
            // With this a restarted container recognizes the driver that it has loaded.
            env(DriverChoice::DIGEST_VARIABLE, &digest),
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
        mount("sys", "/host/sys", Mode::ReadOnly),
        pod::guard_mount(),
    ];
    let (files, mounted) = host_files(input, os);
    mounts.extend(mounted);
    let main = Container {
        command: Some(guarded("nvidia-driver", version, &digest)),
        // Privileged: it loads kernel modules, and its mount of the driver root must reach the host.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..container
    };
    // A pod that waits in this container shows it in its status; later starts are guarded by `guarded`.
    let guard = own_container(
        input.settings,
        GUARD,
        &["guard", "--host-root", "/host", "--version", version, "--digest", &digest],
        vec![mount("sys", "/host/sys", Mode::ReadOnly), mount("run-nvidia", "/host/run/nvidia", Mode::Follow)],
    );
    let mut volumes = vec![
        pod::guard_volume(),
        host_path("sys", "/sys", None),
        host_path("run-nvidia", "/run/nvidia", Some("DirectoryOrCreate")),
        host_path("run-fabricmanager", "/run/nvidia-fabricmanager", Some("DirectoryOrCreate")),
        host_path("run-topologyd", "/run/nvidia-topologyd", Some("DirectoryOrCreate")),
        host_path("var-log", "/var/log", None),
        host_path("os-release", "/etc/os-release", None),
        host_path("firmware-search-path", "/sys/module/firmware_class/parameters/path", None),
        // The kernel reads GSP firmware from the host, so it is stored in the driver's root on the host.
        host_path("firmware", "/run/nvidia/driver/lib/firmware", Some("DirectoryOrCreate")),
    ];
    volumes.extend(device_nodes_volumes());
    volumes.extend(files);
    PodParts {
        init: vec![
            guard,
            installer::unload_nouveau(input.settings),
            pod::unpack_guard(input.settings),
            device_nodes_container(input.settings),
        ],
        main,
        volumes,
        host: HostNamespaces::Pid,
        grace_seconds: GRACE_SECONDS,
    }
}

/// Starts the driver's own program after the guard. Kubelet restarts a failed container without its pod's init containers, and an image
/// that reloads the driver on every start would fail while a program uses it. Mounts of the failed container are removed first: a gate
/// would take them for the new container's.
fn guarded(program: &str, version: &str, digest: &str) -> Vec<String> {
    pod::guard_command(&[
        "guard",
        "--host-root",
        "/host",
        "--version",
        version,
        "--digest",
        digest,
        "--state-file",
        STATE_FILE,
        "--waits-file",
        WAITS_FILE,
        "--unmount",
        CONTAINER_ROOT,
        "--pid-file",
        DRIVER_PID_FILE,
        "--",
        program,
    ])
}

/// The sidecar creates the device nodes that NVIDIA's container does not, those of unified memory, mode setting and MIG's capabilities, and
/// the links by which systemd finds them. It runs as long as the driver, because nodes must be created after every load.
fn device_nodes_container(settings: &Settings) -> Container {
    let mounts = vec![
        mount("sys", "/host/sys", Mode::ReadOnly),
        mount("run-nvidia", "/host/run/nvidia", Mode::FollowWritable),
        mount("device-numbers", "/host/proc/devices", Mode::ReadOnly),
        mount("dev-char", "/host/dev/char", Mode::Writable),
    ];
    Container {
        restart_policy: Some("Always".to_owned()),
        // Root, because root owns the driver's root and the host's /dev, with only the capability that creates nodes.
        security_context: Some(root_with(&["MKNOD"])),
        ..own_container(settings, DEVICE_NODES, &["device-nodes", "--host-root", "/host"], mounts)
    }
}

/// Without those that the driver's container also has.
fn device_nodes_volumes() -> [Volume; 2] {
    [
        host_path("device-numbers", "/proc/devices", Some("File")),
        host_path("dev-char", "/dev/char", Some("DirectoryOrCreate")),
    ]
}

/// Where the container looks for parameters of kernel modules.
const PARAMETERS: &str = "/drivers";

/// Folders of package repositories and trusted certificates, by prefix of a system's name, as in NVIDIA's images and its operator; those of
/// SUSE are unverified.
const FOLDERS: [(&str, &str, &str); 3] = [
    ("ubuntu", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    ("sl", "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
    ("", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
];

struct HostFile {
    volume: &'static str,
    host: &'static str,
    container: &'static str,
    is_file: bool,
}

/// The paths in a container are those of Red Hat's images.
const RHEL: [HostFile; 3] = [
    HostFile {
        volume: "subscription-entitlement",
        host: "/etc/pki/entitlement",
        container: "/run/secrets/etc-pki-entitlement",
        is_file: false,
    },
    HostFile { volume: "subscription-rhsm", host: "/etc/rhsm", container: "/run/secrets/rhsm", is_file: false },
    HostFile {
        volume: "subscription-repositories",
        host: "/etc/yum.repos.d/redhat.repo",
        container: "/run/secrets/redhat.repo",
        is_file: true,
    },
];

const SUSE: [HostFile; 2] = [
    HostFile {
        volume: "subscription-credentials",
        host: "/etc/zypp/credentials.d",
        container: "/etc/zypp/credentials.d",
        is_file: false,
    },
    HostFile { volume: "subscription-server", host: "/etc/SUSEConnect", container: "/etc/SUSEConnect", is_file: true },
];

/// Files that are not in the image: from the user's ConfigMaps, the host's subscription to package repositories, and drivers of network
/// cards. `os` is the system's name in the tags of driver images.
fn host_files(input: &PodInput<'_>, os: &str) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut files = (Vec::new(), Vec::new());
    for (volume, mounts) in
        [devices(), mellanox()].into_iter().chain(config_maps(input, os)).chain(subscription(input, os))
    {
        files.0.push(volume);
        files.1.extend(mounts);
    }
    files
}

/// The kernel shows memory of GPUs that are NUMA nodes of the host here, which must be set online (GH200, GB200). `/dev/log` is not
/// mounted, although the driver's daemons would write to it: where it is missing, container runtimes would create a folder that blocks the
/// log on the host.
fn devices() -> (Volume, Vec<VolumeMount>) {
    let path = "/sys/devices/system";
    (host_path("system-devices", path, None), vec![mount("system-devices", path, Mode::Writable)])
}

/// A container of Mellanox's network drivers stores its sources and modules here, before or after this pod is created. With
/// `GPU_DIRECT_RDMA_ENABLED` NVIDIA's container adds a link to their headers.
fn mellanox() -> (Volume, Vec<VolumeMount>) {
    let path = "/run/mellanox/drivers";
    let volume = host_path("mellanox-drivers", path, Some("DirectoryOrCreate"));
    (volume, vec![mount("mellanox-drivers", path, Mode::FollowWritable)])
}

/// Each file is mounted individually, because a volume over a folder hides the image's files in it: the bundle of public authorities, and
/// the distribution's own repositories.
fn config_maps(input: &PodInput<'_>, os: &str) -> Vec<(Volume, Vec<VolumeMount>)> {
    let maps = &input.pool.driver.container.config_maps;
    let folders = FOLDERS.iter().find(|(system, _, _)| os.starts_with(system));
    let (repositories, certificates) =
        folders.map_or(("", ""), |(_, repositories, certificates)| (repositories, certificates));
    [
        ("parameters", &maps.kernel_modules, PARAMETERS),
        ("repositories", &maps.repositories, repositories),
        ("certificates", &maps.certificates, certificates),
    ]
    .into_iter()
    .filter_map(|(volume, from, folder)| Some(listed(volume, from.as_ref()?, folder)))
    .collect()
}

/// Each key has its own mount, so that other files in the folder stay visible. Kubelet waits for a listed key that is missing, and reports
/// it in an Event.
fn listed(name: &str, from: &ConfigMapFiles, folder: &str) -> (Volume, Vec<VolumeMount>) {
    let items = from.keys.iter().map(|key| KeyToPath { key: key.clone(), path: key.clone(), mode: None });
    let source = ConfigMapVolumeSource {
        name: from.name.clone(),
        items: Some(items.collect()),
        ..ConfigMapVolumeSource::default()
    };
    let mount_key = |key: &String| VolumeMount {
        sub_path: Some(key.clone()),
        ..mount(name, &format!("{folder}/{key}"), Mode::ReadOnly)
    };
    let mounts = from.keys.iter().map(mount_key).collect();
    (Volume { name: name.to_owned(), config_map: Some(source), ..Volume::default() }, mounts)
}

/// Without the subscription, packages of RHEL and SLES cannot be downloaded. Missing files are created empty: otherwise the pod would not
/// start, with a message on the mount and not on missing kernel headers.
fn subscription(input: &PodInput<'_>, os: &str) -> impl Iterator<Item = (Volume, Vec<VolumeMount>)> + use<> {
    let files: &[HostFile] = match os {
        _ if !input.key.host.subscription => &[],
        os if os.starts_with("rhel") => &RHEL,
        _ => &SUSE,
    };
    files.iter().map(|file| {
        let kind = if file.is_file { "FileOrCreate" } else { "DirectoryOrCreate" };
        (host_path(file.volume, file.host, Some(kind)), vec![mount(file.volume, file.container, Mode::ReadOnly)])
    })
}
