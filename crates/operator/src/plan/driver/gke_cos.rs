//! Google's installer for Container-Optimized OS, as GKE's nodes have it preloaded.

use super::{
    super::daemon_set::{HostNamespaces, PodInput, PodParts, env},
    installer::{self, Installer},
};

/// The word by which the installer takes the version that goes with the release of COS.
pub const DEFAULT: &str = "default";

/// The pod. `flavour` is `default`, `latest` or a full version.
#[must_use]
pub fn pod(input: &PodInput<'_>, flavour: &str, version: Option<&str>, install_dir: &str, preloaded: bool) -> PodParts {
    let vulkan = format!("{install_dir}/vulkan/icd.d");
    let environment = vec![
        env("VULKAN_ICD_DIR_HOST", &vulkan),
        env("VULKAN_ICD_DIR_CONTAINER", "/etc/vulkan/icd.d"),
        env("COS_TOOLS_DIR_HOST", "/var/lib/cos-tools"),
        env("COS_TOOLS_DIR_CONTAINER", "/build/cos-tools"),
    ];
    let installer = Installer {
        version,
        install_dir,
        env: environment,
        // Where the program lies in the image is general knowledge, unverified.
        command: Some(vec!["/cos-gpu-installer".to_owned()]),
        args: vec!["install".to_owned(), format!("--version={flavour}")],
        folders: vec![
            ("vulkan", vulkan, "/etc/vulkan/icd.d"),
            ("cos-tools", "/var/lib/cos-tools".to_owned(), "/build/cos-tools"),
            ("nvidia-config", "/etc/nvidia".to_owned(), "/etc/nvidia"),
        ],
        preloaded,
        // It downloads before the node has a network for pods, and by the same way out as the node.
        host: HostNamespaces::PidAndNetwork,
    };
    installer::pod(input, installer)
}
