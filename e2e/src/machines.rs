//! What each node's machine is where no test says so: different ones, as in a fleet that has grown.

use anyhow::Result;

use crate::{
    paths::Paths,
    standin::{Gpu, Standin},
    state::NodeId,
};

/// The GPUs of a machine.
fn gpus(node: NodeId) -> Vec<Gpu> {
    match node.number() % 3 {
        1 => Gpu::h100(8),
        2 => Gpu::several(4, "NVIDIA A100-SXM4-80GB", 0x20b2, 81_920),
        _ => Gpu::several(1, "Tesla T4", 0x1eb8, 15_360),
    }
}

/// Puts a machine's GPUs into it.
pub(crate) fn plug(paths: &Paths, node: NodeId) -> Result<()> {
    Standin::new(paths.standin(node)).plug(&gpus(node))
}
