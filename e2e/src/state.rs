//! What is known of the running cluster, on disk, so that every later command and test finds it.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{paths::Paths, process::Records};

/// The name of the one node.
pub(crate) const NODE_NAME: &str = "gpu-node-1";

/// Why a cluster was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// A person wants to work with it.
    Up,
    /// The demo; nothing of worth is in it.
    Demo,
    /// The tests or the benchmark; nothing of worth is in it.
    Test,
}

/// What stands for a GPU node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NodeKind {
    /// containerd and kubelet.
    Real,
    /// An entry in the API that kwok keeps Ready; no container ever runs.
    Kwok,
}

/// The running cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub purpose: Purpose,
    pub node: NodeKind,
    /// This very program, for the commands that run in the node.
    pub xtask: PathBuf,
    pub etcd_port: u16,
    pub etcd_peer_port: u16,
    pub api_port: u16,
    pub controller_manager_port: u16,
    pub scheduler_port: u16,
    pub kubelet_port: u16,
    pub kubelet_health_port: u16,
    pub operator_port: u16,
    pub probe_port: u16,
}

impl State {
    pub(crate) fn load(paths: &Paths) -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::file(paths)).ok()?).ok()
    }

    pub(crate) fn save(&self, paths: &Paths) -> Result<()> {
        fs::create_dir_all(paths.cluster())?;
        fs::write(Self::file(paths), serde_json::to_vec_pretty(self)?).context("writing the cluster's state")
    }

    fn file(paths: &Paths) -> PathBuf {
        paths.cluster().join("state.json")
    }
}

/// The processes of the cluster.
pub(crate) fn records(paths: &Paths) -> Records {
    Records::new(paths.cluster().join("pids"))
}
