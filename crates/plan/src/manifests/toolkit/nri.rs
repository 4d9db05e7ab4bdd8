//! NVIDIA's NRI plugin: the installer stays and answers the runtime. No runtime is configured or restarted.

use k8s_openapi::api::core::v1::Container;

use crate::manifests::{
    gates::{driver_gate, driver_gate_volumes},
    pod::{HostNamespaces, Mode, PodInput, PodParts, host_path, mount},
    toolkit::installer::{PID_DIR, install_volume, installer},
};

/// Where the container finds the folder of the socket: the runtime makes the socket anew when it starts, which a mount of
/// the socket itself would not follow.
const SOCKET_DIR: &str = "/run/nri-host";

/// The toolkit's pod.
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
        // The host's: the gate before the device plugin looks for a plugin that runs.
        host_path("pid-file", PID_DIR, Some("DirectoryOrCreate")),
        // Not made where it is missing: then NRI is switched off in the runtime, and the pod's Event says what is not there.
        host_path("nri-socket", folder, Some("Directory")),
    ]);
    PodParts { init: vec![driver_gate(input)], main, volumes, host: HostNamespaces::None, grace_seconds: 30 }
}
