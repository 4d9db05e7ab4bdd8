//! Where a node's driver comes from, once decided.

use gpu_operator_crd::report::{CONTAINER_ROOT, GKE_ROOT};
use serde::Serialize;

use crate::{catalogue::branch_of, revision};

/// Where a node's driver comes from, once decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum DriverChoice {
    /// NVIDIA's container.
    Container {
        /// Full version; of a precompiled driver the branch alone.
        version: String,
        /// Suffix of the image's tag, such as `ubuntu22.04`.
        os: String,
        /// Whether the open kernel modules are installed.
        open: bool,
        /// The kernel that it is compiled for already.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
        /// The ConfigMap with the parameters of the kernel modules: they count when the modules are loaded.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<String>,
    },
    /// Google's installer for COS.
    GkeCos {
        /// `default`, `latest` or a full version.
        flavour: String,
        /// Folder of the host that it is installed into.
        root: String,
    },
    /// Google's installer for Ubuntu.
    GkeUbuntu {
        /// Full version, where the policy says one; else the installer chooses.
        version: Option<String>,
        /// Folder of the host that it is installed into.
        root: String,
    },
    /// NVIDIA's `.run` file.
    RunFile {
        /// Full version, where it is known before.
        version: Option<String>,
        /// Where it is downloaded.
        url: String,
        /// Folder of the host that it is installed into.
        root: String,
    },
    /// The host's own.
    Preinstalled {
        /// Folder under which the host keeps it.
        root: String,
    },
}

impl DriverChoice {
    /// Folder under which the driver's libraries lie on the host.
    #[must_use]
    pub fn root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            Self::GkeCos { root, .. }
            | Self::GkeUbuntu { root, .. }
            | Self::RunFile { root, .. }
            | Self::Preinstalled { root } => root,
        }
    }

    /// Whether it lies in a folder of its own, which Google's device plugin hands to containers as it is.
    #[must_use]
    pub fn is_a_folder(&self) -> bool {
        match self {
            Self::Container { .. } => false,
            Self::GkeCos { .. } | Self::GkeUbuntu { .. } | Self::RunFile { .. } => true,
            Self::Preinstalled { root } => root == GKE_ROOT,
        }
    }

    /// Folder under which the driver's device nodes lie: only a container's root is a whole root file system.
    #[must_use]
    pub fn dev_root(&self) -> &str {
        match self {
            Self::Container { .. } => CONTAINER_ROOT,
            _ => "/",
        }
    }

    /// The version that must be loaded, or its branch, where we decide it and it is known before.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Container { version, .. } => Some(version),
            Self::GkeUbuntu { version, .. } | Self::RunFile { version, .. } => version.as_deref(),
            Self::GkeCos { flavour, .. } => branch_of(flavour).map(|_| flavour.as_str()),
            Self::Preinstalled { .. } => None,
        }
    }

    /// Whether a loaded version is the one that is wanted, as far as that is known.
    #[must_use]
    pub fn fits(&self, loaded: &str) -> bool {
        self.version().is_none_or(|wanted| {
            let rest = loaded.strip_prefix(wanted);
            rest.is_some_and(|rest| rest.is_empty() || !wanted.contains('.') && rest.starts_with('.'))
        })
    }

    /// Returns what NVIDIA's container compares with the digest that it wrote when it last loaded its modules: with the
    /// same it takes over a driver in use and installs only the libraries. Images, environment and resources are no part
    /// of it: they change nothing of what is loaded.
    #[must_use]
    pub fn digest(&self) -> String {
        revision::short(self, 16)
    }

    /// Whether the driver is ours to install.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        !matches!(self, Self::Preinstalled { .. })
    }
}
