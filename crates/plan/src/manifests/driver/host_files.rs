//! Files that NVIDIA's driver container takes from elsewhere than its image: from ConfigMaps of the user's, from the host's
//! subscription to package repositories, and from drivers of the host's network cards.

use gpu_operator_crd::policy::ConfigMapFiles;
use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, KeyToPath, Volume, VolumeMount};

use crate::{
    desired::effective_spec,
    manifests::pod::{Mode, PodInput, host_path, mount},
};

/// Where the container looks for a file of parameters for each kernel module.
const PARAMETERS: &str = "/drivers";
/// The files that it looks for there.
const PARAMETER_FILES: [&str; 4] = ["nvidia.conf", "nvidia-uvm.conf", "nvidia-modeset.conf", "nvidia-peermem.conf"];

/// The folders of package repositories and of trusted certificates, by the beginning of a system's name. NVIDIA's images
/// and its operator have them there; that of SUSE is general knowledge, unverified.
const FOLDERS: [(&str, &str, &str); 3] = [
    ("ubuntu", "/etc/apt/sources.list.d", "/usr/local/share/ca-certificates"),
    ("sl", "/etc/zypp/repos.d", "/etc/pki/trust/anchors"),
    ("", "/etc/yum.repos.d", "/etc/pki/ca-trust/extracted/pem"),
];

/// A path of the host, where the container finds it, and whether it is a file.
struct HostFile {
    volume: &'static str,
    host: &'static str,
    container: &'static str,
    is_file: bool,
}

/// The subscription of a RHEL host, where Red Hat's images look for it in a container.
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

/// The subscription of a host of SUSE's.
const SUSE: [HostFile; 2] = [
    HostFile {
        volume: "subscription-credentials",
        host: "/etc/zypp/credentials.d",
        container: "/etc/zypp/credentials.d",
        is_file: false,
    },
    HostFile { volume: "subscription-server", host: "/etc/SUSEConnect", container: "/etc/SUSEConnect", is_file: true },
];

/// The volumes, and where each is mounted, for a system by its name in the tags of driver images.
#[must_use]
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

/// Where the kernel shows memory of GPUs that are NUMA nodes of the host, which has to be set online (GH200, GB200).
///
/// `/dev/log` is left out, though the driver's daemons would write to it: it is a socket, or a link to one, that a host
/// without a system log does not have, and container runtimes make a folder of a path that is not there, which would take
/// the log's place on the host. The daemons go on without it.
fn devices() -> (Volume, Vec<VolumeMount>) {
    let path = "/sys/devices/system";
    (host_path("system-devices", path, None), vec![mount("system-devices", path, Mode::Writable)])
}

/// Where a container of Mellanox' network drivers puts its sources and its modules, before or after this pod is made.
fn mellanox() -> (Volume, Vec<VolumeMount>) {
    let path = "/run/mellanox/drivers";
    let volume = host_path("mellanox-drivers", path, Some("DirectoryOrCreate"));
    (volume, vec![mount("mellanox-drivers", path, Mode::Follow)])
}

/// The user's files. Each is mounted by itself, because a volume that is mounted over a folder hides what the image has
/// there: the bundle of public authorities, and the distribution's own repositories.
fn config_maps(input: &PodInput<'_>, os: &str) -> Vec<(Volume, Vec<VolumeMount>)> {
    let maps = effective_spec::driver_of(input.policy, input.key).config_maps;
    let mut files = Vec::new();
    if let Some(name) = &maps.kernel_modules {
        // Of a key that the ConfigMap lacks comes an empty folder, which the container takes for no file: the names are
        // given, and nobody needs parameters for all modules.
        let source = ConfigMapVolumeSource { name: name.clone(), ..ConfigMapVolumeSource::default() };
        files.push((config_map("parameters", source), by_key("parameters", PARAMETERS, PARAMETER_FILES)));
    }
    let folders = FOLDERS.iter().find(|(system, _, _)| os.starts_with(system));
    let (repositories, certificates) =
        folders.map_or(("", ""), |(_, repositories, certificates)| (repositories, certificates));
    for (volume, from, folder) in
        [("repositories", &maps.repositories, repositories), ("certificates", &maps.certificates, certificates)]
    {
        if let Some(from) = from {
            let keys = from.keys.iter().map(String::as_str);
            files.push((config_map(volume, listed(from)), by_key(volume, folder, keys)));
        }
    }
    files
}

/// The listed keys of a ConfigMap. kubelet waits for a key that is listed and not there, and names it in an Event.
fn listed(from: &ConfigMapFiles) -> ConfigMapVolumeSource {
    let items = from.keys.iter().map(|key| KeyToPath { key: key.clone(), path: key.clone(), mode: None });
    ConfigMapVolumeSource { name: from.name.clone(), items: Some(items.collect()), ..ConfigMapVolumeSource::default() }
}

fn config_map(volume: &str, source: ConfigMapVolumeSource) -> Volume {
    Volume { name: volume.to_owned(), config_map: Some(source), ..Volume::default() }
}

/// A mount for each key of a volume, beside what else is in the folder.
fn by_key<'k>(volume: &str, folder: &str, keys: impl IntoIterator<Item = &'k str>) -> Vec<VolumeMount> {
    let mount_key = |key: &str| VolumeMount {
        sub_path: Some(key.to_owned()),
        ..mount(volume, &format!("{folder}/{key}"), Mode::ReadOnly)
    };
    keys.into_iter().map(mount_key).collect()
}

/// The host's subscription, without which packages of RHEL and SLES cannot be downloaded. What a host without one lacks is
/// made, empty: a pod that mounts a file which is not there would not start, and its message would be about the mount and
/// not about kernel headers that cannot be had.
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
