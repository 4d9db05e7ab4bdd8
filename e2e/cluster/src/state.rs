//! The state of the running cluster. It is stored on disk for later commands and tests.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use harness::{node_id::NodeId, paths::Paths, tools::Kubernetes};
use serde::{Deserialize, Serialize};

/// The purpose for which a cluster was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// A person works with it.
    Up,
    /// The demo; it may be deleted at any time.
    Demo,
    /// The tests or the benchmark; it may be deleted at any time.
    Test,
}

/// The GPU nodes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nodes {
    /// This number of nodes, each with containerd and kubelet.
    Real(u8),
    /// One Node object that kwok keeps Ready; containers never run. Only here is there a choice, because only the newest kubelet is built.
    Kwok(Kubernetes),
}

/// The running cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The purpose for which it was started.
    pub purpose: Purpose,
    /// Its GPU nodes.
    pub nodes: Nodes,
    /// A copy of this program, for the commands that run in nodes.
    pub(crate) program: PathBuf,
    pub(crate) etcd_port: u16,
    pub(crate) etcd_peer_port: u16,
    /// The port of the API server.
    pub api_port: u16,
    pub(crate) controller_manager_port: u16,
    pub(crate) scheduler_port: u16,
    /// The port of an operator that runs as a process of this machine.
    pub operator_port: u16,
    /// The port of a second one.
    pub standby_port: u16,
}

impl Nodes {
    /// Returns whether the nodes run containers.
    pub fn is_real(self) -> bool {
        matches!(self, Self::Real(_))
    }

    pub fn real(self) -> impl Iterator<Item = NodeId> {
        NodeId::first(match self {
            Self::Real(count) => count,
            Self::Kwok(_) => 0,
        })
    }

    /// Returns the release of Kubernetes of the control plane, and of kubelet.
    pub fn kubernetes(self) -> Kubernetes {
        match self {
            Self::Real(_) => Kubernetes::Newest,
            Self::Kwok(kubernetes) => kubernetes,
        }
    }
}

impl State {
    /// Returns the state of the cluster of this checkout, if there is one.
    pub fn load(paths: &Paths) -> Option<Self> {
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
