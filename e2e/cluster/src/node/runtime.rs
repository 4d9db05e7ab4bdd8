//! The container runtime of a node: containerd, or Docker beside it.

use anyhow::Result;
use harness::{node_id::NodeId, paths::Paths};

use super::{
    containerd::{self, Containerd},
    docker,
};

/// The container runtime of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// containerd 2, which supports CDI devices by default.
    Containerd2,
    /// containerd 1.7, which supports them only if configured; here it is not.
    Containerd1,
    /// Docker, behind a stand-in for cri-dockerd.
    Docker,
}

/// A program of the container runtime. The node's init system starts it again whenever it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Containerd(Containerd),
    Docker,
    /// The stand-in for cri-dockerd.
    CriDockerd,
}

impl Runtime {
    /// Returns the runtime of a node, in clusters for people as well as for tests. Small clusters have no older ones, which take time to build.
    pub fn of(node: NodeId) -> Self {
        match node.number() {
            5 => Self::Containerd1,
            6 => Self::Docker,
            _ => Self::Containerd2,
        }
    }

    /// Returns its programs, in the order in which they are started.
    pub fn services(self) -> &'static [Service] {
        const OLDER: Service = Service::Containerd(Containerd::One);
        match self {
            Self::Containerd2 => &[Service::Containerd(Containerd::Two)],
            Self::Containerd1 => &[OLDER],
            Self::Docker => &[OLDER, Service::Docker, Service::CriDockerd],
        }
    }

    /// Returns the path of the socket in its node at which it serves the CRI.
    pub fn socket(self) -> &'static str {
        match self {
            Self::Containerd2 | Self::Containerd1 => containerd::SOCKET,
            Self::Docker => docker::CRI_SOCKET,
        }
    }

    fn containerd(self) -> Containerd {
        match self {
            Self::Containerd2 => Containerd::Two,
            Self::Containerd1 | Self::Docker => Containerd::One,
        }
    }

    /// Returns the `PATH` of a node that runs it.
    pub fn search_path(self, paths: &Paths) -> String {
        self.containerd().search_path(paths)
    }

    /// Writes its configuration to the node's disk.
    pub fn configure(self, paths: &Paths, node: NodeId) -> Result<()> {
        let disk = paths.node(node).join("upper");
        let creates_containers = match self {
            Self::Containerd2 | Self::Containerd1 => paths.tool("runc"),
            Self::Docker => docker::configure(paths, node, &disk)?,
        };
        self.containerd().configure(&disk, &creates_containers)
    }
}

impl Service {
    /// Starts it in the node whose first process this is, and returns its process id.
    pub fn start(self, paths: &Paths, node: NodeId) -> Result<u32> {
        match self {
            Self::Containerd(version) => version.start(paths, node),
            Self::Docker => docker::start(paths, node),
            Self::CriDockerd => docker::start_cri(paths, node),
        }
    }
}
