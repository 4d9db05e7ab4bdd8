//! The machines of clusters for people: different models, as in a fleet that has grown over time.

use anyhow::Result;
use harness::{node_id::NodeId, paths::Paths};

use super::{
    node::real_node::{HostDriver, RealNode},
    state::State,
};
use crate::standin::{Gpu, Standin};

/// The hardware of a machine, and the driver of its operating system image.
struct Machine {
    gpus: Vec<Gpu>,
    host_driver: Option<&'static str>,
}

fn machine(node: NodeId) -> Machine {
    match node.number() % 3 {
        1 => Machine { gpus: Gpu::h100(8), host_driver: None },
        2 => Machine { gpus: Gpu::several(4, "NVIDIA A100-SXM4-80GB", 0x20b2, 81_920), host_driver: None },
        // Its operating system image has a driver.
        _ => Machine { gpus: Gpu::several(1, "Tesla T4", 0x1eb8, 15_360), host_driver: Some("580.173.02") },
    }
}

/// Adds the GPUs to a machine before it boots.
pub fn add_gpus(paths: &Paths, node: NodeId) -> Result<()> {
    Standin::new(paths.standin(node)).plug(&machine(node).gpus)
}

/// Installs the driver of the machine's operating system image after it has booted. The programs must have been built.
pub fn install_host_driver(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let Some(version) = machine(node).host_driver else { return Ok(()) };
    let node = RealNode::new(paths.clone(), state.clone(), node);
    node.set_host_driver(&HostDriver::Loaded(version.to_owned()))
}
