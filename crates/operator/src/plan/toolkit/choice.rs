//! What a node's container runtime needs, so that containers get at the driver.

use gpu_operator_crd::policy::Toolkit;
use serde::Serialize;

use super::{super::variant::Fault, runtime};
use crate::world::NodeFacts;

/// What is installed for a node's container runtime, once decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ToolkitChoice {
    /// The runtime takes CDI devices by itself: NVIDIA's hooks are installed and nothing is configured.
    Cdi,
    /// None of ours: the device plugin needs none, or somebody else installs it.
    None,
}

/// Decides what a node's container runtime needs.
///
/// # Errors
/// A [`Fault`] where the policy asks for what this node cannot have.
pub fn choose(_toolkit: &Toolkit, node: &NodeFacts) -> Result<ToolkitChoice, Fault> {
    runtime::check(&node.runtime)?;
    Ok(ToolkitChoice::Cdi)
}
