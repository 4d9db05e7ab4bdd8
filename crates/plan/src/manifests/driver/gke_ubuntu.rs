//! Google's installer for Ubuntu, as GKE's nodes have it preloaded.

use crate::manifests::{
    driver::installer::{self, Installer},
    pod::{HostNamespaces, PodInput, PodParts, env},
};

/// The pod. Google's own manifest names no version.
#[must_use]
pub fn pod(input: &PodInput<'_>, version: Option<&str>, install_dir: &str, preloaded: bool) -> PodParts {
    let installer = Installer {
        version,
        install_dir,
        env: version.map(|version| env("NVIDIA_DRIVER_VERSION", version)).into_iter().collect(),
        command: None,
        args: Vec::new(),
        // It looks there for what the kernel was built with.
        folders: vec![("boot", "/boot".to_owned(), "/boot")],
        preloaded,
        host: HostNamespaces::None,
        unloads_nouveau: false,
    };
    installer::pod(input, installer)
}
