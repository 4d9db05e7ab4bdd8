//! Files of NVIDIA's driver container that are not in its image: from the user's ConfigMaps, from the host's
//! subscription to package repositories, and from drivers of the host's network cards.

use gpu_operator_crd::policy::ConfigMapFiles;
use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, KeyToPath, Volume, VolumeMount};

use crate::{
    desired::effective_spec,
    manifests::pod::{Mode, PodInput, host_path, mount},
};

/// The folder in which the container looks for files with parameters of kernel modules.
const PARAMETERS: &str = "/drivers";

/// The folders of package repositories and of trusted certificates, by prefix of a system's name, as in NVIDIA's images
/// and its operator; those of SUSE are unverified.
const FOLDERS: [(&str, &str, &str); 3] = [
    ("ubuntu", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    ("sl", "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
    ("", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
];

/// A path of the host, its path in the container, and whether it is a file.
struct HostFile {
    volume: &'static str,
    host: &'static str,
    container: &'static str,
    is_file: bool,
}

/// The subscription of a RHEL host, at the paths that Red Hat's images use in a container.
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

/// The subscription of a SUSE host.
const SUSE: [HostFile; 2] = [
    HostFile {
        volume: "subscription-credentials",
        host: "/etc/zypp/credentials.d",
        container: "/etc/zypp/credentials.d",
        is_file: false,
    },
    HostFile { volume: "subscription-server", host: "/etc/SUSEConnect", container: "/etc/SUSEConnect", is_file: true },
];

/// Returns the volumes and their mounts for a system by its name in the tags of driver images.
pub fn of(input: &PodInput<'_>, os: &str) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mut files = (Vec::new(), Vec::new());
    for (volume, mounts) in
        [devices(), mellanox()].into_iter().chain(config_maps(input, os)).chain(subscription(input, os))
    {
        files.0.push(volume);
        files.1.extend(mounts);
    }
    files
}

/// Returns the folder in which the kernel shows memory of GPUs that are NUMA nodes of the host, which must be set
/// online (GH200, GB200).
///
/// `/dev/log` is not mounted, although the driver's daemons would write to it: it is a socket, or a link to one, that
/// is missing on a host without a system log, and container runtimes create a folder for a missing path, which would
/// block the log on the host. The daemons work without it.
fn devices() -> (Volume, Vec<VolumeMount>) {
    let path = "/sys/devices/system";
    (host_path("system-devices", path, None), vec![mount("system-devices", path, Mode::Writable)])
}

/// Returns the folder in which a container of Mellanox's network drivers stores its sources and modules, before or
/// after this pod is created. With `GPU_DIRECT_RDMA_ENABLED` NVIDIA's container adds a link to their headers.
fn mellanox() -> (Volume, Vec<VolumeMount>) {
    let path = "/run/mellanox/drivers";
    let volume = host_path("mellanox-drivers", path, Some("DirectoryOrCreate"));
    (volume, vec![mount("mellanox-drivers", path, Mode::FollowWritable)])
}

/// Returns the user's files. Each is mounted individually, because a volume that is mounted over a folder hides the
/// image's files in it: the bundle of public authorities, and the distribution's own repositories.
fn config_maps(input: &PodInput<'_>, os: &str) -> Vec<(Volume, Vec<VolumeMount>)> {
    let maps = effective_spec::driver(input.policy, effective_spec::pool_of(input.policy, input.key)).config_maps;
    let folders = FOLDERS.iter().find(|(system, _, _)| os.starts_with(system));
    let (repositories, certificates) =
        folders.map_or(("", ""), |(_, repositories, certificates)| (repositories, certificates));
    [
        ("parameters", maps.kernel_modules, PARAMETERS),
        ("repositories", maps.repositories, repositories),
        ("certificates", maps.certificates, certificates),
    ]
    .into_iter()
    .filter_map(|(volume, from, folder)| Some(listed(volume, &from?, folder)))
    .collect()
}

/// Returns the listed keys of a ConfigMap, with a mount for each, so that other files in the folder stay visible. Kubelet
/// waits for a listed key that is missing, and reports it in an Event.
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

/// Returns the host's subscription, without which packages of RHEL and SLES cannot be downloaded. Missing files and
/// folders are created empty: a pod that mounts a missing file would not start, and its message would be about the
/// mount and not about missing kernel headers.
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
