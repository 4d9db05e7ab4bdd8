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

use crate::{
    catalogue::Catalogue,
    inventory::{Inventory, UnmanagedNode},
    world::World,
};

/// The fleet with the desired state of every node.
#[derive(Debug)]
pub struct DesiredFleet<'w> {
    /// What was observed.
    pub world: &'w World,
    /// The catalogue, with the models that policies add.
    pub catalogue: &'w Catalogue,
    /// Nodes that a policy governs.
    pub nodes: Vec<DesiredNode<'w>>,
    /// Nodes that no policy governs.
    pub unmanaged: Vec<UnmanagedNode<'w>>,
    /// The variants that nodes need.
    pub variants: Variants<'w>,
}

/// Resolves the desired state of every governed node.
#[must_use]
pub fn resolve(inventory: Inventory<'_>) -> DesiredFleet<'_> {
    let Inventory { world, catalogue, governed, unmanaged } = inventory;
    let mut variants = Variants::default();
    let nodes = governed.into_iter().map(|node| node::resolve(node, catalogue, world, &mut variants)).collect();
    DesiredFleet { world, catalogue, nodes, unmanaged, variants }
}
