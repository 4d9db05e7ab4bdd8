//! The key of a variant, and its resolved stages.

use gpu_operator_crd::{
    PolicyName, PoolName,
    policy::{Operand, Stage},
};
use serde::Serialize;

use super::{
    device_plugin::choice::PluginChoice, driver::choice::DriverChoice, host_traits::HostTraits,
    toolkit::choice::ToolkitChoice,
};

/// Everything on which a variant depends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantKey {
    pub policy: PolicyName,
    pub pool: PoolName,
    /// Whether it is a pool of the policy: such a pool may have the name of a model, whose implicit pool is another
    /// one.
    pub named: bool,
    /// The node's driver.
    pub driver: DriverChoice,
    /// What is installed for its container runtime.
    pub toolkit: ToolkitChoice,
    /// The folder of the host in which the toolkit is installed, if not the default.
    pub toolkit_folder: Option<String>,
    /// The device plugin.
    pub plugin: PluginChoice,
    /// Further properties of its host.
    pub host: HostTraits,
    /// Kubelet's root directory, if it is not the default and the plugin reads it.
    pub kubelet_root: Option<&'static str>,
    /// Processor architecture.
    pub arch: String,
}

/// One resolved stage of a variant: the settings with which its container starts. Changing one of them is disruptive,
/// so they are part of the revision; other settings (resources, tolerations, …) are not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSpec {
    pub stage: Stage,
    /// Image reference.
    pub image: String,
    /// The user's environment, arguments and resources; resources are not part of the revision.
    #[serde(serialize_with = "without_resources")]
    pub operand: Operand,
}

fn without_resources<S: serde::Serializer>(operand: &Operand, serializer: S) -> Result<S::Ok, S::Error> {
    Operand { resources: None, ..operand.clone() }.serialize(serializer)
}
