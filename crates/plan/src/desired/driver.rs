//! The driver of a node: its source, images of precompiled drivers, and addresses of `.run` files.

pub mod choose;

use gpu_operator_common::version::is_release_of;
use gpu_operator_crd::{
    policy::{ConfigMapFiles, Driver, Images},
    report::{CONTAINER_ROOT, DRIVER_ROOTS, GKE_ROOT, Report},
};
use serde::Serialize;

use crate::{
    catalogue::{Accelerator, Catalogue, branch_of},
    desired::images,
    inventory::gpus::Discovery,
    revision,
    world::NodeFacts,
};

/// Returns whether the probe inspects a driver's root by default.
pub fn is_known_root(root: &str) -> bool {
    DRIVER_ROOTS.contains(&root)
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DriverChoice {
    Container {
        /// Full version, or the branch of a precompiled driver.
        version: String,
        /// Suffix of the image's tag, such as `ubuntu22.04`.
        os: String,
        open: bool,
        /// The kernel for which it is precompiled.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
        /// The ConfigMap with module parameters, which apply when the modules are loaded.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<ConfigMapFiles>,
    },
    GkeCos {
        /// `default`, `latest` or a full version.
        flavour: String,
        root: String,
    },
    GkeUbuntu {
        /// If the policy sets one; else the installer chooses.
        version: Option<String>,
        root: String,
    },
    RunFile {
        /// If known before the installation.
        version: Option<String>,
        url: String,
        sha256: String,
        root: String,
    },
    /// The host's own driver.
    Preinstalled { root: String },
}

impl DriverChoice {
    pub fn root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            Self::GkeCos { root, .. }
            | Self::GkeUbuntu { root, .. }
            | Self::RunFile { root, .. }
            | Self::Preinstalled { root } => root,
        }
    }

    /// Whether it is in a folder that Google's device plugin can mount into containers.
    pub fn is_a_folder(&self) -> bool {
        matches!(self, Self::RunFile { .. }) || self.is_for_googles_plugin()
    }

    /// Whether it is where Google's device plugin expects it: that plugin is the default, and needs no toolkit.
    pub fn is_for_googles_plugin(&self) -> bool {
        matches!(self, Self::GkeCos { .. } | Self::GkeUbuntu { .. }) || self.root() == GKE_ROOT
    }

    /// Returns the folder of the device nodes: only a container's root is a complete root file system.
    pub fn dev_root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            _ => "/",
        }
    }

    /// Returns the version to load, or its branch, if this operator chooses it and it is known before the installation.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Container { version, .. } => Some(version),
            Self::GkeUbuntu { version, .. } | Self::RunFile { version, .. } => version.as_deref(),
            Self::GkeCos { flavour, .. } => branch_of(flavour).map(|_| flavour.as_str()),
            Self::Preinstalled { .. } => None,
        }
    }

    /// Whether a loaded version is the desired one, as far as known.
    pub fn fits(&self, loaded: &str) -> bool {
        self.version().is_none_or(|wanted| is_release_of(loaded, wanted))
    }

    /// The variable by which NVIDIA's container gets its [`Self::digest`].
    pub const DIGEST_VARIABLE: &'static str = "DRIVER_CONFIG_DIGEST";
    /// The variable of an installer with its folder on the host.
    pub const INSTALL_DIR_VARIABLE: &str = "NVIDIA_INSTALL_DIR_HOST";
    /// The variable of an installer with the address of a `.run` file.
    pub const RUN_FILE_URL_VARIABLE: &str = "NVIDIA_DRIVER_DOWNLOAD_URL";

    /// Returns the digest that NVIDIA's container stores when it loads its modules. A container with the same digest keeps a driver in use
    /// and installs only the libraries, so images, environment and resources are not included.
    pub fn digest(&self) -> String {
        revision::short(self, 16)
    }

    /// Whether the image contains modules for the node's kernel.
    pub fn is_precompiled(&self) -> bool {
        matches!(self, Self::Container { kernel: Some(_), .. })
    }

    /// Whether this operator installs it.
    pub fn is_managed(&self) -> bool {
        !matches!(self, Self::Preinstalled { .. })
    }
}

/// The inputs of the choice besides the policy.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub catalogue: &'a Catalogue,
    pub images: &'a Images,
    pub node: &'a NodeFacts,
    /// Whether it has a driver of this operator.
    pub has_driver: bool,
    pub discovery: &'a Discovery<'a>,
    pub report: &'a Report,
    /// The precompiled image that is known to be missing.
    pub missing_image: Option<&'a str>,
}

/// Returns the precompiled image of a choice, or the one that the choice replaces.
pub fn wants_precompiled(driver: &Driver, on: &Subject<'_>, choice: &DriverChoice) -> Option<String> {
    let DriverChoice::Container { version, os, .. } = choice else {
        return None;
    };
    precompiled_image(driver, on, branch_of(version)?, os)
}

/// Returns the image with modules for the node's kernel; `None` if the kernel's name is invalid in a tag.
pub fn precompiled_image(driver: &Driver, on: &Subject<'_>, branch: u16, os: &str) -> Option<String> {
    let kernel = on.node.kernel.as_str();
    let in_tags = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let tag = precompiled_tag(&branch.to_string(), kernel, os);
    let can_be = driver.container.precompiled.unwrap_or_default() && !kernel.is_empty() && tag.len() <= 128;
    (can_be && kernel.chars().all(in_tags))
        .then(|| images::reference(on.images, driver.operand.image.as_ref(), images::DRIVER, &tag))
}

pub fn precompiled_tag(branch: &str, kernel: &str, os: &str) -> String {
    format!("{branch}-{kernel}-{os}")
}

const SITE: &str = "https://us.download.nvidia.com";

/// The folder is `tesla` for data-center GPUs and `XFree86` for others. (Unverified.)
pub fn run_file_url(version: &str, accelerators: &[&Accelerator], arch: &str) -> String {
    let machine = if arch == "arm64" { "aarch64" } else { "x86_64" };
    let place = match (accelerators.iter().any(|model| model.desktop), machine) {
        (false, _) => "tesla".to_owned(),
        (true, "aarch64") => "XFree86/aarch64".to_owned(),
        (true, machine) => format!("XFree86/Linux-{machine}"),
    };
    format!("{SITE}/{place}/{version}/NVIDIA-Linux-{machine}-{version}.run")
}

/// Returns the version in a file name: NVIDIA's own, or that of a CUDA bundle (`cuda_8.0.61_375.26_linux.run`, or with a dash before
/// `run`).
pub fn run_file_version(url: &str) -> Option<&str> {
    let file = url.split(['?', '#']).next()?.rsplit('/').next()?;
    let stem = file.strip_suffix(".run").or_else(|| file.strip_suffix("-run"))?;
    let version = match stem.strip_prefix("NVIDIA-Linux-") {
        Some(rest) => rest.split('-').nth(1)?,
        None => stem.strip_prefix("cuda_")?.split('_').nth(1)?,
    };
    branch_of(version).filter(|_| version.contains('.')).map(|_| version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    #[test]
    fn an_address_contains_the_version_in_its_file_name() {
        for (url, version) in [
            ("https://mirror.example.com/NVIDIA-Linux-x86_64-470.256.02.run", Some("470.256.02")),
            ("http://10.0.0.1/a/NVIDIA-Linux-x86_64-384.111.run?x=1", Some("384.111")),
            ("https://m.example.com/NVIDIA-Linux-x86_64-470.256.02-no-compat32.run", Some("470.256.02")),
            ("https://m.example.com/cuda_8.0.61_375.26_linux.run", Some("375.26")),
            ("https://m.example.com/cuda_8.0.61_375.26_linux-run", Some("375.26")),
            ("https://m.example.com/cuda_8.0.61.2_linux.run", None),
            ("https://m.example.com/driver.run", None),
            ("https://m.example.com/470.256.02/", None),
        ] {
            assert_eq!(run_file_version(url), version, "{url}");
        }
    }

    #[test]
    fn the_public_site_has_a_folder_for_desktop_gpus() {
        let catalogue = Catalogue::builtin().unwrap();
        for (model, version, arch, url) in [
            (
                "nvidia-tesla-k80",
                "470.256.02",
                "amd64",
                "https://us.download.nvidia.com/tesla/470.256.02/NVIDIA-Linux-x86_64-470.256.02.run",
            ),
            (
                "nvidia-quadro-k620",
                "460.56",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/460.56/NVIDIA-Linux-x86_64-460.56.run",
            ),
            (
                "nvidia-geforce-gtx-1080-ti",
                "580.173.02",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/580.173.02/NVIDIA-Linux-x86_64-580.173.02.run",
            ),
            (
                "nvidia-rtx-2080-ti",
                "595.91.07",
                "amd64",
                "https://us.download.nvidia.com/XFree86/Linux-x86_64/595.91.07/NVIDIA-Linux-x86_64-595.91.07.run",
            ),
            (
                "nvidia-rtx-pro-6000",
                "595.91.07",
                "amd64",
                "https://us.download.nvidia.com/tesla/595.91.07/NVIDIA-Linux-x86_64-595.91.07.run",
            ),
            (
                "nvidia-h100-80gb",
                "580.173.02",
                "arm64",
                "https://us.download.nvidia.com/tesla/580.173.02/NVIDIA-Linux-aarch64-580.173.02.run",
            ),
        ] {
            let model = catalogue.model(model).unwrap();
            assert_eq!(run_file_url(version, &[model], arch), url);
        }
    }
}
