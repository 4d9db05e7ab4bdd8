//! What a variant depends on, and what a stage of it is resolved to.

use gpu_operator_crd::policy::{Operand, Stage};
use serde::Serialize;

use super::{
    device_plugin::choice::PluginChoice, driver::choice::DriverChoice, host_traits::HostTraits,
    toolkit::choice::ToolkitChoice,
};

/// All that a variant depends on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantKey {
    /// The policy's name.
    pub policy: String,
    /// The pool's name.
    pub pool: String,
    /// Whether the user named it: a pool may bear the name of a model, whose implicit pool is another one.
    pub named: bool,
    /// The node's driver.
    pub driver: DriverChoice,
    /// What its container runtime needs.
    pub toolkit: ToolkitChoice,
    /// Under which folder of the host the toolkit is installed, where that is not the usual one.
    pub toolkit_folder: Option<String>,
    /// Who tells kubelet of its GPUs.
    pub plugin: PluginChoice,
    /// What else of its host pods depend on.
    pub host: HostTraits,
    /// Kubelet's folder, where its distribution has another one than the usual, and the plugin looks there.
    pub kubelet_root: Option<&'static str>,
    /// Processor architecture.
    pub arch: String,
}

/// One stage of a variant, resolved: what its container is started with. All of it is disruptive to change, and so
/// goes into the revision; what is not (resources, tolerations, …) is not here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSpec {
    /// The stage.
    pub stage: Stage,
    /// Image reference.
    pub image: String,
    /// The user's environment, arguments and resources; resources are left out of the revision.
    #[serde(serialize_with = "without_resources")]
    pub operand: Operand,
}

fn without_resources<S: serde::Serializer>(operand: &Operand, serializer: S) -> Result<S::Ok, S::Error> {
    Operand { resources: None, ..operand.clone() }.serialize(serializer)
}
