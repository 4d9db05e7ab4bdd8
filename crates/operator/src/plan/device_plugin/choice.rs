//! Who tells kubelet of a node's GPUs.

use gpu_operator_crd::policy::DevicePlugin;
use serde::Serialize;

use super::super::variant::Fault;
use crate::world::NodeFacts;

/// Who tells kubelet of a node's GPUs, once decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PluginChoice {
    /// NVIDIA's device plugin.
    Nvidia,
}

/// Decides who tells kubelet of a node's GPUs.
///
/// # Errors
/// A [`Fault`] where the policy asks for what this node cannot have.
#[allow(clippy::unnecessary_wraps, reason = "the choices that can fail come beside it")]
pub fn choose(_plugin: &DevicePlugin, _node: &NodeFacts) -> Result<PluginChoice, Fault> {
    Ok(PluginChoice::Nvidia)
}
