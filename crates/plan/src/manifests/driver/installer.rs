//! The common parts of installers that install a driver on the host: the installer runs as an init container, and the
//! pod stays to show its success. The installer itself detects what is already installed; it keeps a cache in its
//! install folder.

use k8s_openapi::api::core::v1::{Container, EnvVar, SecurityContext, Volume, VolumeMount};

use crate::{
    container_names::{GUARD, INSTALLER},
    manifests::{
        driver::nouveau,
        pod::{HostNamespaces, Mode, PodInput, PodParts, env, host_path, mount, operand_container, own_container},
    },
};

/// The install folder in the installers' containers.
const INSTALL_DIR_IN_CONTAINER: &str = "/usr/local/nvidia";
/// The host's root in the installers' containers.
const ROOT_IN_CONTAINER: &str = "/root";

/// The differences between installers.
pub struct Installer<'a> {
    /// The version that will be loaded, or its branch, if known before the installation.
    pub version: Option<&'a str>,
    /// The install folder on the host.
    pub install_dir: &'a str,
    /// Environment variables in addition to the paths.
    pub env: Vec<EnvVar>,
    /// The command, if not the image's own.
    pub command: Option<Vec<String>>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Further folders of the host: volume, path on the host and path in the container.
    pub folders: Vec<(&'static str, String, &'static str)>,
    /// Whether the image is preloaded on the node and in no registry.
    pub preloaded: bool,
    /// The namespaces of the host that the pod uses.
    pub host: HostNamespaces,
    /// Whether the system may have loaded nouveau, which Google's systems do not include.
    pub unloads_nouveau: bool,
}

pub fn pod(input: &PodInput<'_>, installer: Installer<'_>) -> PodParts {
    let Installer { version, install_dir, env: more, command, args, folders, preloaded, host, unloads_nouveau } =
        installer;
    let mut variables = vec![
        env("NVIDIA_INSTALL_DIR_HOST", install_dir),
        env("NVIDIA_INSTALL_DIR_CONTAINER", INSTALL_DIR_IN_CONTAINER),
        env("ROOT_MOUNT_DIR", ROOT_IN_CONTAINER),
        // The runtime must not inject a driver into the container that installs it.
        env("NVIDIA_VISIBLE_DEVICES", "void"),
    ];
    variables.extend(more);
    let container = operand_container(input, INSTALLER, variables, args);
    let mut mounts: Vec<VolumeMount> = vec![
        mount("install", INSTALL_DIR_IN_CONTAINER, Mode::Writable),
        mount("dev", "/dev", Mode::Writable),
        mount("root", ROOT_IN_CONTAINER, Mode::Writable),
    ];
    mounts.extend(folders.iter().map(|(volume, _, inside)| mount(volume, inside, Mode::Writable)));
    let install = Container {
        command,
        image_pull_policy: if preloaded { Some("Never".to_owned()) } else { container.image_pull_policy.clone() },
        // Privileged: it loads kernel modules, creates device nodes and builds in the host's root.
        security_context: Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() }),
        volume_mounts: Some(mounts),
        ..container
    };
    let mut volumes: Vec<Volume> = vec![
        host_path("sys", "/sys", None),
        host_path("install", install_dir, Some("DirectoryOrCreate")),
        host_path("dev", "/dev", None),
        host_path("root", "/", None),
    ];
    volumes.extend(folders.iter().map(|(volume, path, _)| host_path(volume, path, Some("DirectoryOrCreate"))));
    let unload = unloads_nouveau.then(|| nouveau::container(input.settings));
    let init = [guard(input, version, install_dir)].into_iter().chain(unload).chain([install]).collect();
    PodParts { init, main: own_container(input.settings, "driver", &["hold"], vec![]), volumes, host, grace_seconds: 5 }
}

/// Returns the guard. These installers keep a loaded module, so the guard only checks that a loaded driver has the
/// desired version. If the installer chooses the version, a loaded driver counts as its own if the driver's libraries
/// are in the install folder.
fn guard(input: &PodInput<'_>, version: Option<&str>, install_dir: &str) -> Container {
    let mut args = vec!["guard", "--host-root", "/host"];
    let mut mounts = vec![mount("sys", "/host/sys", Mode::ReadOnly)];
    if let Some(version) = version {
        args.extend(["--version", version]);
    } else {
        args.extend(["--install-dir", install_dir]);
        mounts.push(mount("install", &format!("/host{install_dir}"), Mode::ReadOnly));
    }
    own_container(input.settings, GUARD, &args, mounts)
}
