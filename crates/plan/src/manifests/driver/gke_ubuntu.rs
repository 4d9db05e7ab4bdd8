//! Google's installer for Ubuntu, which is preloaded on GKE's nodes.

use crate::manifests::{
    driver::installer::{self, Installer},
    pod::{HostNamespaces, PodInput, PodParts, env},
};

/// Returns the pod. Google's own manifest sets no version.
pub fn pod(input: &PodInput<'_>, version: Option<&str>, install_dir: &str, preloaded: bool) -> PodParts {
    let installer = Installer {
        version,
        install_dir,
        env: version.map(|version| env("NVIDIA_DRIVER_VERSION", version)).into_iter().collect(),
        command: None,
        args: Vec::new(),
        // The installer reads the kernel's build configuration there.
        folders: vec![("boot", "/boot".to_owned(), "/boot")],
        preloaded,
        host: HostNamespaces::None,
        unloads_nouveau: false,
    };
    installer::pod(input, installer)
}
