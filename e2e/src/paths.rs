//! Where everything lies: all of it under `target/e2e` of this checkout.

use std::path::{Path, PathBuf};

use crate::state::NodeId;

/// The folders and files of the local cluster.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    /// The checkout.
    pub root: PathBuf,
    /// `target/e2e`.
    pub base: PathBuf,
}

impl Paths {
    pub(crate) fn new() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().unwrap_or(manifest).to_path_buf();
        let base = root.join("target/e2e");
        Self { root, base }
    }

    /// Caches that survive `down`.
    pub(crate) fn bin(&self) -> PathBuf {
        self.base.join("bin")
    }
    pub(crate) fn nvidia(&self) -> PathBuf {
        self.base.join("nvidia")
    }
    pub(crate) fn nvidia_plugin(&self) -> PathBuf {
        self.base.join("nvidia-plugin")
    }
    pub(crate) fn containerd_1(&self) -> PathBuf {
        self.base.join("containerd-1")
    }
    pub(crate) fn debian(&self) -> PathBuf {
        self.base.join("debian")
    }
    pub(crate) fn stamps(&self) -> PathBuf {
        self.base.join("stamps")
    }
    pub(crate) fn images(&self) -> PathBuf {
        self.base.join("images")
    }

    /// State of the running control plane; removed by `down`.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.base.join("cluster")
    }
    pub(crate) fn logs(&self) -> PathBuf {
        self.base.join("logs")
    }
    /// State of the nodes; removed by `down`.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.base.join("nodes")
    }
    pub(crate) fn node(&self, node: NodeId) -> PathBuf {
        self.nodes().join(node.name())
    }
    /// What tests steer a node's stand-ins with.
    pub(crate) fn standin(&self, node: NodeId) -> PathBuf {
        self.node(node).join("standin")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.base.join("kubeconfig")
    }
    pub(crate) fn tool(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }
}
