//! The source of the driver that is chosen for a node.

use gpu_operator_common::version::is_release_of;
use gpu_operator_crd::{
    policy::ConfigMapFiles,
    report::{CONTAINER_ROOT, GKE_ROOT},
};
use serde::Serialize;

use crate::{catalogue::branch_of, revision};

/// The source of the driver that is chosen for a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DriverChoice {
    /// NVIDIA's driver container.
    Container {
        /// Full version, or the branch of a precompiled driver.
        version: String,
        /// Suffix of the image's tag, such as `ubuntu22.04`.
        os: String,
        /// Whether the open kernel modules are installed.
        open: bool,
        /// The kernel for which it is precompiled.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
        /// The ConfigMap with the parameters of the kernel modules, which apply when the modules are loaded.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<ConfigMapFiles>,
    },
    /// Google's installer for COS.
    GkeCos {
        /// `default`, `latest` or a full version.
        flavour: String,
        /// Folder of the host into which it is installed.
        root: String,
    },
    /// Google's installer for Ubuntu.
    GkeUbuntu {
        /// Full version, if the policy sets one; else the installer chooses.
        version: Option<String>,
        /// Folder of the host into which it is installed.
        root: String,
    },
    /// NVIDIA's `.run` file.
    RunFile {
        /// Full version, if known before the installation.
        version: Option<String>,
        /// The address from which it is downloaded.
        url: String,
        /// The SHA-256 checksum of the file, in hexadecimal digits.
        sha256: String,
        /// Folder of the host into which it is installed.
        root: String,
    },
    /// The host's own driver.
    Preinstalled {
        /// Folder of the host that contains it.
        root: String,
    },
}

impl DriverChoice {
    /// Returns the folder of the host that contains the driver's libraries.
    pub fn root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            Self::GkeCos { root, .. }
            | Self::GkeUbuntu { root, .. }
            | Self::RunFile { root, .. }
            | Self::Preinstalled { root } => root,
        }
    }

    /// Returns whether it is in a folder of its own, which Google's device plugin can mount into containers.
    pub fn is_a_folder(&self) -> bool {
        matches!(self, Self::RunFile { .. }) || self.is_for_googles_plugin()
    }

    /// Returns whether it is where Google's device plugin expects it: that plugin is the default, and needs no toolkit.
    pub fn is_for_googles_plugin(&self) -> bool {
        matches!(self, Self::GkeCos { .. } | Self::GkeUbuntu { .. }) || self.root() == GKE_ROOT
    }

    /// Returns the folder that contains the driver's device nodes: only a container's root is a complete root file
    /// system.
    pub fn dev_root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            _ => "/",
        }
    }

    /// Returns the version that must be loaded, or its branch, if this operator chooses it and it is known before the
    /// installation.
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Container { version, .. } => Some(version),
            Self::GkeUbuntu { version, .. } | Self::RunFile { version, .. } => version.as_deref(),
            Self::GkeCos { flavour, .. } => branch_of(flavour).map(|_| flavour.as_str()),
            Self::Preinstalled { .. } => None,
        }
    }

    /// Returns whether a loaded version is the desired one, as far as that is known.
    pub fn fits(&self, loaded: &str) -> bool {
        self.version().is_none_or(|wanted| is_release_of(loaded, wanted))
    }

    /// The variable by which NVIDIA's container gets its [`Self::digest`].
    pub const DIGEST_VARIABLE: &'static str = "DRIVER_CONFIG_DIGEST";

    /// Returns the digest that NVIDIA's container stores when it loads its modules. If the stored digest is the same,
    /// the container keeps a driver in use and installs only the libraries. Images, environment and resources are not
    /// included: they do not affect what is loaded.
    pub fn digest(&self) -> String {
        revision::short(self, 16)
    }

    /// Returns whether its image contains kernel modules for the node's kernel.
    pub fn is_precompiled(&self) -> bool {
        matches!(self, Self::Container { kernel: Some(_), .. })
    }

    /// Returns whether this operator installs the driver.
    pub fn is_managed(&self) -> bool {
        !matches!(self, Self::Preinstalled { .. })
    }
}
