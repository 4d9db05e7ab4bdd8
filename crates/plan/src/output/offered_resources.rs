//! The resource names under which pods may have been given GPUs of a node, other than NVIDIA's. They are remembered, because pods
//! outlive the policy that named them.

use gpu_operator_crd::GpuNodeStatus;

use crate::world::NodeFacts;

/// The maximum number of names, as in the schema.
const MAX_NAMES: usize = 16;

/// Returns the names, with the one that the policy names now as the last. An earlier name is dropped only once the Node does not
/// list it any more, even if no pod holds it and none is allocatable: kubelet lists a name with amount zero while its device plugin
/// restarts, and for as long as a container may still hold one of its devices.
pub fn remembered(node: &NodeFacts, before: Option<&GpuNodeStatus>, offered: Option<&str>) -> Vec<String> {
    let is_listed = |name: &String| node.allocatable.names().any(|listed| listed == name.as_str());
    let known = before.map(|before| before.offered_resources.as_slice()).unwrap_or_default();
    let known = known.iter().filter(|name| Some(name.as_str()) != offered && is_listed(name));
    let mut names: Vec<String> = known.cloned().chain(offered.map(str::to_owned)).collect();
    names.drain(..names.len().saturating_sub(MAX_NAMES));
    names
}
