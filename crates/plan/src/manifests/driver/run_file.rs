//! NVIDIA's `.run` file, by version or address: for GPUs, systems and networks without a driver container.

use crate::manifests::{
    driver::installer::{self, Installer},
    pod::{HostNamespaces, PodInput, PodParts, env},
};

pub fn pod(input: &PodInput<'_>, version: Option<&str>, url: &str, sha256: &str, install_dir: &str) -> PodParts {
    let mut environment = vec![env("NVIDIA_DRIVER_DOWNLOAD_URL", url), env("NVIDIA_DRIVER_SHA256", sha256)];
    environment.extend(version.map(|version| env("NVIDIA_DRIVER_VERSION", version)));
    let installer = Installer {
        version,
        install_dir,
        env: environment,
        command: None,
        args: Vec::new(),
        folders: Vec::new(),
        preloaded: false,
        host: HostNamespaces::None,
        unloads_nouveau: true,
    };
    installer::pod(input, installer)
}
