//! Google's installer for Ubuntu, as GKE's nodes have it preloaded.

use super::{
    super::daemon_set::{HostNamespaces, PodInput, PodParts, env},
    installer::{self, Installer},
};

/// The pod.
#[must_use]
pub fn pod(input: &PodInput<'_>, version: &str, install_dir: &str, preloaded: bool) -> PodParts {
    let installer = Installer {
        version: Some(version),
        install_dir,
        env: vec![env("NVIDIA_DRIVER_VERSION", version)],
        command: None,
        args: Vec::new(),
        // It looks there for what the kernel was built with.
        folders: vec![("boot", "/boot".to_owned(), "/boot")],
        preloaded,
        host: HostNamespaces::None,
    };
    installer::pod(input, installer)
}
