//! The supported container runtimes.

use clap::ValueEnum;

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
