//! The desired state: the driver, toolkit and device plugin of each kind of node.

pub mod container_runtime;
pub mod device_plugin;
pub mod distribution;
pub mod driver;
pub mod effective_spec;
pub mod expected_resources;
pub mod fault;
pub mod host_traits;
pub mod images;
pub mod key;
pub mod mig_layout;
pub mod node;
pub mod toolkit;
pub mod variant;
pub mod variants;

use node::DesiredNode;
use variants::Variants;

use crate::inventory::{Fleet, GovernedNode, foreign_stacks::ForeignStacks};

/// Resolves the desired state of every governed node, and the variants that nodes need. `namespace` is that of this operator.
pub fn resolve<'w>(fleet: Fleet<'w, GovernedNode<'w>>, namespace: &str) -> (Fleet<'w, DesiredNode<'w>>, Variants<'w>) {
    let Fleet { world, catalogue, governed, unmanaged } = fleet;
    let mut variants = Variants::default();
    let stacks = ForeignStacks::of(world, namespace);
    let resolve = |node| node::resolve(node, catalogue, world, &stacks, &mut variants);
    let governed = governed.into_iter().map(resolve).collect();
    (Fleet { world, catalogue, governed, unmanaged }, variants)
}
