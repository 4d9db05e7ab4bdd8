//! The files and folders of the local cluster, all of them in `target/e2e` of this checkout.

use std::path::{Path, PathBuf};

use super::node_id::NodeId;

/// The folders and files of the local cluster.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The checkout.
    pub root: PathBuf,
    /// `target/e2e`.
    pub base: PathBuf,
    /// The folder of the cluster: `target/e2e`, or a folder in it.
    pub state: PathBuf,
}

impl Paths {
    /// Returns the paths of this checkout.
    pub fn new() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf();
        let base = root.join("target/e2e");
        Self { state: base.clone(), root, base }
    }

    /// Returns the paths of a second cluster, of simulated nodes, with the same tools. Tests run in both at the same time.
    pub fn simulated() -> Self {
        let paths = Self::new();
        Self { state: paths.base.join("simulated"), ..paths }
    }

    /// Returns the folder of the cluster's tools: the first of the caches, which survive `down`.
    pub fn bin(&self) -> PathBuf {
        self.base.join("bin")
    }
    /// Returns the folder of the oldest supported Kubernetes.
    pub fn kubernetes_oldest(&self) -> PathBuf {
        self.base.join("kubernetes-oldest")
    }
    /// Returns the folder of NVIDIA's container toolkit.
    pub fn nvidia(&self) -> PathBuf {
        self.base.join("nvidia")
    }
    /// Returns the folder of NVIDIA's device plugin.
    pub fn nvidia_plugin(&self) -> PathBuf {
        self.base.join("nvidia-plugin")
    }
    /// Returns the folder of the older containerd.
    pub fn containerd_1(&self) -> PathBuf {
        self.base.join("containerd-1")
    }
    /// Returns the folder into which Debian packages are unpacked.
    pub fn debian(&self) -> PathBuf {
        self.base.join("debian")
    }
    /// Returns the folder of the files that show whether a cache is current.
    pub fn stamps(&self) -> PathBuf {
        self.base.join("stamps")
    }
    /// Returns the folder of the images and of buildah's storage.
    pub fn images(&self) -> PathBuf {
        self.base.join("images")
    }

    /// Returns the folder with the state of the running control plane; `down` removes it.
    pub fn cluster(&self) -> PathBuf {
        self.state.join("cluster")
    }
    /// Returns the folder of the logs; `down` keeps them.
    pub fn logs(&self) -> PathBuf {
        self.state.join("logs")
    }
    /// Returns the folder with the state of the nodes; `down` removes it.
    pub fn nodes(&self) -> PathBuf {
        self.state.join("nodes")
    }
    /// Returns the folder of a node.
    pub fn node(&self, node: NodeId) -> PathBuf {
        self.nodes().join(node.name())
    }
    /// Returns the folder whose files control a node's stand-ins.
    pub fn standin(&self, node: NodeId) -> PathBuf {
        self.node(node).join("standin")
    }

    /// Returns the kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }
    pub fn tool(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }
    /// Returns the path of a log of tests. A cluster that starts removes the logs of the last one, but not these.
    pub fn test_log(&self, name: &str) -> PathBuf {
        self.base.join("test-logs").join(format!("{name}.log"))
    }
}
