//! The supported container runtimes, and NVIDIA's entries in their configuration.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Identifies NVIDIA's entries of this installer among those of others.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct NvidiaEntries {
    /// The name under which NVIDIA's runtime is configured.
    pub handler: String,
    /// On the host.
    pub install_dir: String,
}

impl NvidiaEntries {
    /// Returns whether the installer configures a runtime under this name.
    pub fn is_name(&self, name: &str) -> bool {
        name == self.handler || ["nvidia-cdi", "nvidia-legacy"].contains(&name)
    }

    /// Returns whether the installer has installed this program; an `nvidia` runtime with another program is
    /// third-party.
    pub fn is_program(&self, path: &str) -> bool {
        path.strip_prefix(&self.install_dir).is_some_and(|rest| rest.starts_with("/nvidia-container-runtime"))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("is not a text file")]
    NotText,
    #[error("is not a JSON object")]
    Json(#[source] serde_json::Error),
    #[error("is not valid TOML")]
    Toml(#[source] toml_edit::TomlError),
}

/// A container runtime.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// containerd.
    Containerd,
    /// Docker, behind cri-dockerd.
    Docker,
    /// CRI-O.
    #[value(name = "crio")]
    CriO,
}
