//! The files and folders of the local cluster, all of them in `target/e2e` of this checkout.

use std::path::{Path, PathBuf};

use super::node_id::NodeId;

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

    /// Returns the folder of the cluster's tools: the first of the caches, which survive `down`.
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

    /// Returns the folder with the state of the running control plane; `down` removes it.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.base.join("cluster")
    }
    pub(crate) fn logs(&self) -> PathBuf {
        self.base.join("logs")
    }
    /// Returns the folder with the state of the nodes; `down` removes it.
    pub(crate) fn nodes(&self) -> PathBuf {
        self.base.join("nodes")
    }
    pub(crate) fn node(&self, node: NodeId) -> PathBuf {
        self.nodes().join(node.name())
    }
    /// Returns the folder whose files control a node's stand-ins.
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
