//! What is known of the running cluster, on disk, so that every later command and test finds it.

use std::{fs, net::Ipv4Addr, path::PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{network, paths::Paths, process::Records};

/// As many real nodes as there can be.
pub(crate) const MOST: u8 = 9;
/// As many as there are unless somebody says how many.
pub(crate) const USUAL: u8 = 3;

/// A node, real or played by kwok, by its number: the first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u8);

impl NodeId {
    /// The only one where one is enough.
    pub(crate) const FIRST: Self = Self(1);

    /// So many nodes.
    pub(crate) fn first(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(Self)
    }

    /// The node that a hidden command was given.
    pub(crate) fn numbered(number: u8) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// The name of its Node.
    pub(crate) fn name(self) -> String {
        format!("gpu-node-{}", self.0)
    }

    /// Its address in the cluster's network.
    pub(crate) fn address(self) -> Ipv4Addr {
        network::address(self.0)
    }
}

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

/// What stands for the GPU nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Nodes {
    /// So many, each with containerd and kubelet.
    Real(u8),
    /// An entry in the API that kwok keeps Ready; no container ever runs.
    Kwok,
}

/// The running cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub purpose: Purpose,
    pub nodes: Nodes,
    /// This very program, for the commands that run in the node.
    pub xtask: PathBuf,
    pub etcd_port: u16,
    pub etcd_peer_port: u16,
    pub api_port: u16,
    pub controller_manager_port: u16,
    pub scheduler_port: u16,
    /// Where an operator listens that runs as a process of the machine.
    pub operator_port: u16,
}

impl Nodes {
    /// Whether containers run.
    pub(crate) fn is_real(self) -> bool {
        matches!(self, Self::Real(_))
    }

    /// The real nodes.
    pub(crate) fn real(self) -> impl Iterator<Item = NodeId> {
        NodeId::first(match self {
            Self::Real(count) => count,
            Self::Kwok => 0,
        })
    }
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
