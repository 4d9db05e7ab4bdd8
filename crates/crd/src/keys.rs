//! Every label, annotation and finalizer key of this project, in one place.

/// What all keys of ours begin with. The operator writes no key outside it but those that a policy names or asks for.
pub const PREFIX: &str = "gpu.nodestack.dev/";

/// Node label: canonical name of the node's accelerator model, such as `nvidia-tesla-p100`.
pub const MODEL: &str = "gpu.nodestack.dev/model";
/// Node label: the pool that governs the node.
pub const POOL: &str = "gpu.nodestack.dev/pool";
/// Label of children and node label: see [`crate::policy::Stage::key`].
pub const DRIVER: &str = "gpu.nodestack.dev/driver";
/// Like [`DRIVER`], for the container toolkit.
pub const TOOLKIT: &str = "gpu.nodestack.dev/toolkit";
/// Like [`DRIVER`], for the control daemon of CUDA's MPS.
pub const MPS: &str = "gpu.nodestack.dev/mps";
/// Like [`DRIVER`], for the device plugin.
pub const DEVICE_PLUGIN: &str = "gpu.nodestack.dev/device-plugin";
/// The name under which `GpuNode.status.foreign` has a DRA driver, among the names of stages.
pub const DRA_DRIVER: &str = "dra-driver";

/// Node label: the highest CUDA version that the node's driver serves, such as `13.0`. Absent where
/// the driver's installer chooses the version itself; `GpuNode.status.cuda` has it.
pub const CUDA_VERSION: &str = "gpu.nodestack.dev/cuda-version";

/// Every node label of ours; on a node that no policy governs there is none of them.
pub const NODE_LABELS: [&str; 7] = [CUDA_VERSION, MODEL, POOL, DRIVER, TOOLKIT, MPS, DEVICE_PLUGIN];

/// Node label that a user sets: the model that the node counts as, whatever clouds and hardware say.
pub const MODEL_OVERRIDE: &str = "gpu.nodestack.dev/model-override";
/// Node label that a user sets: any value but `true` takes the node out of every policy.
pub const MANAGED: &str = "gpu.nodestack.dev/managed";
/// Node annotation that a user sets: how many GPUs the node has from now on. What was seen on it before is forgotten.
pub const GPU_COUNT: &str = "gpu.nodestack.dev/gpu-count";

/// Label of a DaemonSet and its pods: `driver`, `toolkit`, `mps` or `device-plugin`; and of a pod that validates a node:
/// [`VALIDATION`].
pub const STAGE: &str = "gpu.nodestack.dev/stage";
/// Value of [`STAGE`] on a pod that validates a node, and beginning of its name.
pub const VALIDATION: &str = "validation";
/// The chart's priority class of such pods: theirs is lower than anybody's, and they preempt nobody.
pub const VALIDATION_PRIORITY: &str = "validation.gpu.nodestack.dev";
/// Label of a DaemonSet and its pods: the policy they belong to.
pub const POLICY: &str = "gpu.nodestack.dev/policy";

/// Annotation of a DaemonSet: hash of what was applied, so that what is there already is not applied again.
pub const APPLIED: &str = "gpu.nodestack.dev/applied";

/// Annotation of a device plugin's DaemonSet: what it makes of GPUs, where that is not one resource to a GPU. So a node
/// that waits for its turn is measured by what it has, and not by what it is yet to get.
pub const OFFER: &str = "gpu.nodestack.dev/offer";

/// Finalizer of a [`crate::ClusterGpuPolicy`]: node labels cannot be garbage-collected.
pub const FINALIZER: &str = "gpu.nodestack.dev/node-labels";

/// The standard label that marks children of this operator, with the value [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The operator's name: value of [`MANAGED_BY`] and field manager of what it applies.
pub const MANAGER: &str = "gpu-operator";
/// Field manager of the labels on Nodes: its own, so that the applied set is exactly the owned set.
pub const LABEL_MANAGER: &str = "gpu-operator/labels";
/// Field manager of `GpuNode.status.report`.
pub const PROBE_MANAGER: &str = "nvml-probe";

/// Taint (`NoSchedule`) of a node with an unhealthy GPU, where its policy wants it.
pub const UNHEALTHY_TAINT: &str = "gpu.nodestack.dev/unhealthy";
/// Condition of a Node: whether its GPUs are healthy. There from the first trouble on.
pub const HEALTH_CONDITION: &str = "gpu.nodestack.dev/GpuHealthy";
/// Field manager of that condition: its own, so that it can be taken off again.
pub const HEALTH_MANAGER: &str = "gpu-operator/health";

/// What the names of NVIDIA's extended resources begin with.
pub const RESOURCES: &str = "nvidia.com/";
/// The extended resource by which a GPU is requested and counted.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// Node label by which charts select nodes with GPUs, as NVIDIA's operator writes it.
pub const GPU_PRESENT: &str = "nvidia.com/gpu.present";

/// The labels, after [`RESOURCES`], that NVIDIA's GPU feature discovery writes, but for its timestamp, and [`GPU_PRESENT`].
const DISCOVERED: [&str; 15] = [
    "gpu.present",
    "gpu.product",
    "gpu.count",
    "gpu.replicas",
    "gpu.sharing-strategy",
    "gpu.memory",
    "gpu.family",
    "gpu.machine",
    "gpu.mode",
    "gpu.clique",
    "gpu.multiprocessors",
    "mig.capable",
    "mig.strategy",
    "mps.capable",
    "vgpu.present",
];
/// What others of them begin with.
const DISCOVERED_FAMILIES: [&str; 6] =
    ["gpu.compute.", "gpu.slices.", "gpu.engines.", "mig-", "cuda.", "vgpu.host-driver-"];

/// Whether a label is one of those that [`crate::policy::CompatibleLabels::Gfd`] stands for.
#[must_use]
pub fn is_discovered(key: &str) -> bool {
    key.strip_prefix(RESOURCES).is_some_and(|name| {
        DISCOVERED.contains(&name) || DISCOVERED_FAMILIES.iter().any(|family| name.starts_with(family))
    })
}
