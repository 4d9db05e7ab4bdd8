//! The toolkit with NVIDIA's NRI plugin: the installer keeps running and answers the runtime. No runtime is configured
//! or restarted.

use k8s_openapi::api::core::v1::Container;

use crate::manifests::{
    gates::{driver_gate, driver_gate_volumes},
    pod::{HostNamespaces, Mode, PodInput, PodParts, host_path, mount},
    toolkit::installer::{PID_DIR, install_volume, installer},
};

/// The folder of the socket in the container. The runtime recreates the socket when it starts, which would not be
/// visible through a mount of the socket itself.
const SOCKET_DIR: &str = "/run/nri-host";

/// Returns the toolkit's pod.
pub fn pod(input: &PodInput<'_>, socket: &str) -> PodParts {
    let (folder, name) = socket.rsplit_once('/').unwrap_or(("", socket));
    let args = [
        "--enable-nri-plugin".to_owned(),
        format!("--nri-namespace={}", input.settings.namespace),
        format!("--nri-socket={SOCKET_DIR}/{name}"),
    ];
    let installer = installer(input, args.into());
    let mut mounts = installer.volume_mounts.unwrap_or_default();
    mounts.push(mount("nri-socket", SOCKET_DIR, Mode::Writable));
    let main = Container { name: "toolkit".to_owned(), volume_mounts: Some(mounts), ..installer };
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([
        install_volume(input),
        // A folder of the host, because the device plugin's gate checks that the NRI plugin runs.
        host_path("pid-file", PID_DIR, Some("DirectoryOrCreate")),
        // Not created if missing: then NRI is disabled in the runtime, and the pod's Event names the missing folder.
        host_path("nri-socket", folder, Some("Directory")),
    ]);
    PodParts { init: vec![driver_gate(input)], main, volumes, host: HostNamespaces::None, grace_seconds: 30 }
}
