//! The machines of a cluster that is there to be looked at: different ones, as in a fleet that has grown.

use anyhow::Result;

use crate::{
    containerd::Containerd,
    paths::Paths,
    real_node::{HostDriver, RealNode},
    standin::{Gpu, Standin},
    state::{NodeId, State},
};

/// What a machine brings.
struct Machine {
    gpus: Vec<Gpu>,
    host_driver: Option<&'static str>,
}

fn machine(node: NodeId) -> Machine {
    match node.number() % 3 {
        1 => Machine { gpus: Gpu::h100(8), host_driver: None },
        2 => Machine { gpus: Gpu::several(4, "NVIDIA A100-SXM4-80GB", 0x20b2, 81_920), host_driver: None },
        // Whoever made its image has put a driver into it.
        _ => Machine { gpus: Gpu::several(1, "Tesla T4", 0x1eb8, 15_360), host_driver: Some("580.173.02") },
    }
}

/// Which containerd a node runs, of a cluster to look at as of one for tests: the second is one of an older time.
pub(crate) fn containerd(node: NodeId) -> Containerd {
    if node.number() == 2 { Containerd::One } else { Containerd::Two }
}

/// Puts the GPUs into a machine, before it is switched on.
pub(crate) fn plug(paths: &Paths, node: NodeId) -> Result<()> {
    Standin::new(paths.standin(node)).plug(&machine(node).gpus)
}

/// Installs what the machine's system brings, once it is on. The programs must have been built.
pub(crate) fn furnish(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let Some(version) = machine(node).host_driver else { return Ok(()) };
    let node = RealNode::new(paths.clone(), state.clone(), node);
    node.set_host_driver(&HostDriver::Loaded(version.to_owned()))
}
