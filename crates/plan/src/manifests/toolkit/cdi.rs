//! The toolkit for runtimes that support CDI devices: the installer runs once, and no runtime is configured or
//! restarted.

use gpu_operator_crd::keys;

use crate::manifests::{
    gates::{driver_gate, driver_gate_volumes},
    pod::{HostNamespaces, PodInput, PodParts, own_container},
    toolkit::installer::{install_volume, installer, own_pid_volume},
};

/// Returns the toolkit's pod. It stays after the installer has ended, to show that the toolkit is ready.
pub fn pod(input: &PodInput<'_>) -> PodParts {
    let installer = installer(input, vec!["--no-daemon".to_owned(), "--no-runtime-config".to_owned()]);
    let mut volumes = driver_gate_volumes(input);
    volumes.extend([install_volume(input), own_pid_volume()]);
    PodParts {
        init: vec![driver_gate(input), installer],
        main: own_container(input.settings, keys::TOOLKIT.trim_start_matches(keys::PREFIX), &["hold"], vec![]),
        volumes,
        host: HostNamespaces::None,
        grace_seconds: 5,
    }
}
