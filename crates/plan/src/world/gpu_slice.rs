//! The nodes whose GPUs a DRA driver allocates, by its slices of devices: only a node's kubelet and its drivers write these.

use gpu_operator_crd::NodeName;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The name of the DRA driver that allocates GPUs. `compute-domain.nvidia.com` allocates channels between nodes.
pub const GPU_DRIVER: &str = "gpu.nvidia.com";

/// A slice without its devices, which make up most of it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default)]
#[kube(group = "resource.k8s.io", version = "v1", kind = "ResourceSlice", schema = "disabled")]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceSliceSpec {
    driver: String,
    node_name: Option<String>,
}

/// A slice of a node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuSlice {
    pub node: NodeName,
}

impl GpuSlice {
    /// Returns `None` for the slices of other drivers, and for those of devices that belong to no node.
    pub fn of(slice: &ResourceSlice) -> Option<Self> {
        let ResourceSliceSpec { driver, node_name } = &slice.spec;
        let node = node_name.as_deref().filter(|_| driver == GPU_DRIVER)?;
        Some(Self { node: node.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slices_of_a_nodes_gpus_count() {
        for (spec, node) in [
            ("{driver: gpu.nvidia.com, nodeName: a, pool: {name: a}, devices: [{name: gpu-0}]}", Some("a")),
            ("{driver: gpu.nvidia.com, allNodes: true}", None),
            ("{driver: compute-domain.nvidia.com, nodeName: a}", None),
            ("{driver: gpu.example.com, nodeName: a}", None),
        ] {
            let slice =
                format!("{{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {{name: s}}, spec: {spec}}}");
            let found = GpuSlice::of(&serde_yaml::from_str(&slice).unwrap());
            assert_eq!(found.map(|slice| slice.node), node.map(NodeName::from), "{spec}");
        }
    }
}
