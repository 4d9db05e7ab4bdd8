//! The GPUs that a kubelet publishes on its Node.

use gpu_operator_crd::keys;

/// The GPUs that a kubelet publishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Gpus {
    /// The number of pods that can have one.
    pub count: u32,
    /// Whether they are offered under the name of shared GPUs.
    pub renamed: bool,
}

/// Returns the patch of a Node's status with which kubelet publishes GPUs.
pub(super) fn patch(gpus: Gpus) -> serde_json::Value {
    let shared = format!("{}.shared", keys::GPU_RESOURCE);
    let (offered, withdrawn) =
        if gpus.renamed { (shared.as_str(), keys::GPU_RESOURCE) } else { (keys::GPU_RESOURCE, shared.as_str()) };
    // GPUs are offered under one of the names only.
    let resources = serde_json::json!({offered: gpus.count.to_string(), withdrawn: null});
    serde_json::json!({"status": {"allocatable": resources, "capacity": resources}})
}
