//! The keys of all labels, annotations and finalizers of this project.

use std::collections::BTreeMap;

/// The prefix of the operator's own keys. It writes other keys only if a policy requests them.
pub const PREFIX: &str = "gpu.nodestack.dev/";

/// Node label: the canonical name of the node's accelerator model, such as `nvidia-tesla-p100`.
pub const MODEL: &str = "gpu.nodestack.dev/model";
/// Node label: the pool that governs the node.
pub const POOL: &str = "gpu.nodestack.dev/pool";
/// Label of DaemonSets and node label: the revision of the driver; see [`crate::stage::Stage::key`].
pub const DRIVER: &str = "gpu.nodestack.dev/driver";
/// Like [`DRIVER`], for the container toolkit.
pub const TOOLKIT: &str = "gpu.nodestack.dev/toolkit";
/// Like [`DRIVER`], for the MPS control daemon.
pub const MPS: &str = "gpu.nodestack.dev/mps";
/// Like [`DRIVER`], for the device plugin.
pub const DEVICE_PLUGIN: &str = "gpu.nodestack.dev/device-plugin";
/// The key of a DRA driver in `GpuNode.status.foreign`, whose other keys are the names of stages.
pub const DRA_DRIVER: &str = "dra-driver";

/// Node label: the highest CUDA version that the node's driver supports, such as `13.0`. Absent if the driver's
/// installer chooses the version; `GpuNode.status.cuda` has it in any case.
pub const CUDA_VERSION: &str = "gpu.nodestack.dev/cuda-version";

/// Node label: [`CLIENTS_PAUSED`] while the GPUs of the node are being released and its driver is being replaced. A DaemonSet whose pods
/// use the driver without a GPU of their own gives way with a required node affinity for nodes that lack this value.
pub const CLIENTS: &str = "gpu.nodestack.dev/clients";
/// The value of [`CLIENTS`].
pub const CLIENTS_PAUSED: &str = "paused";

/// Node label: `true` on a node with NVIDIA GPUs, whether or not a policy governs it, and `false` on a node that has had some and has none
/// any more. The chart's probe runs on the nodes with `true`.
pub const PRESENT: &str = "gpu.nodestack.dev/present";

/// All node labels with the operator's prefix that it sets for a policy. A node that no policy governs has none of them.
pub const NODE_LABELS: [&str; 8] = [CLIENTS, CUDA_VERSION, MODEL, POOL, DRIVER, TOOLKIT, MPS, DEVICE_PLUGIN];

/// Node label set by users: the model of the node, regardless of its hardware and of other labels.
pub const MODEL_OVERRIDE: &str = "gpu.nodestack.dev/model-override";
/// Node label set by users: any value but `true` excludes the node from every policy.
pub const MANAGED: &str = "gpu.nodestack.dev/managed";
/// Node annotation set by users: the number of GPUs that the node has from now on, which replaces the most GPUs ever
/// seen.
pub const GPU_COUNT: &str = "gpu.nodestack.dev/gpu-count";

/// Label of DaemonSets and their pods: `driver`, `toolkit`, `mps` or `device-plugin`. On a validation pod:
/// [`VALIDATION`]. On a preflight pod: [`PREFLIGHT`].
pub const STAGE: &str = "gpu.nodestack.dev/stage";
/// The value of [`STAGE`] on a validation pod, and the prefix of its name.
pub const VALIDATION: &str = "validation";
/// The value of [`STAGE`] on a pod that pulls the images of a revision before nodes move to it, and the prefix of its name.
pub const PREFLIGHT: &str = "preflight";
/// The chart's priority class of validation and preflight pods. It has the lowest priority and never preempts.
pub const VALIDATION_PRIORITY: &str = "validation.gpu.nodestack.dev";
/// Label of DaemonSets and their pods: the policy that they belong to.
pub const POLICY: &str = "gpu.nodestack.dev/policy";

/// Annotation of DaemonSets: a hash of the applied object, which avoids applying it again.
pub const APPLIED: &str = "gpu.nodestack.dev/applied";

/// Annotation of a RuntimeClass: the names of the policies that use it, separated by commas. They are not its owners: if
/// a policy were deleted in the foreground, the API server would reject pods that name the class while its nodes are
/// still in use.
pub const POLICIES: &str = "gpu.nodestack.dev/policies";

/// Finalizer of a [`crate::ClusterGpuPolicy`]. It is needed because node labels are not garbage-collected.
pub const FINALIZER: &str = "gpu.nodestack.dev/node-labels";

/// The standard label of objects that the operator manages, with the value [`MANAGER`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The operator's name: the value of [`MANAGED_BY`], and the field manager of the objects that it applies.
pub const MANAGER: &str = "gpu-operator";
/// The standard label by which the chart's objects of one component are found: its workload, its pods, and the operator's Lease.
pub const NAME: &str = "app.kubernetes.io/name";
/// The label of all objects of the chart, and its value.
pub const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "gpu-operator");
/// The value of [`NAME`] of the operator's objects.
pub const OPERATOR_NAME: &str = "nodestack-gpu-operator";
/// The value of [`NAME`] of the probe's objects.
pub const PROBE_NAME: &str = "nvml-probe";
/// The value of [`NAME`] of the detector's objects.
pub const DETECTOR_NAME: &str = "gpu-detector";
/// Field manager of labels on Nodes. It owns nothing else, so that the owned labels are exactly the applied ones.
pub const LABEL_MANAGER: &str = "gpu-operator/labels";
/// Field manager of the label [`PRESENT`], which does not depend on policies.
pub const PRESENCE_MANAGER: &str = "gpu-operator/presence";
/// Field manager of the finalizers of policies: the next apply by [`MANAGER`] would otherwise remove them.
pub const FINALIZER_MANAGER: &str = "gpu-operator/finalizer";
/// Field manager of the ledger in the status of policies: it is written under another condition than the rest.
pub const LEDGER_MANAGER: &str = "gpu-operator/ledger";
/// Field manager of the cordons of Nodes, with their record.
pub const CORDON_MANAGER: &str = "gpu-operator/cordon";
/// Node annotation: the operator has cordoned the node. It is written together with the cordon, so that the operator removes its own
/// cordon, and no other one.
pub const CORDON: &str = "gpu.nodestack.dev/cordon";
/// Annotation of a policy, set by users: with another value, updates that failed are attempted again.
pub const RETRY: &str = "gpu.nodestack.dev/retry";
/// Field manager of GpuNodes that the detector creates.
pub const DETECTOR_MANAGER: &str = "gpu-detector";
/// Field manager of `GpuNode.status.report`.
pub const PROBE_MANAGER: &str = "nvml-probe";

/// The default key of the taint of nodes with an unhealthy GPU, if their policy requests one.
pub const UNHEALTHY_TAINT: &str = "gpu.nodestack.dev/unhealthy";
/// Node annotation: that taint, as `key:effect`. It is written together with the taint, so that the operator removes its
/// own taint, and no other one, after the policy has changed.
pub const OWN_TAINT: &str = "gpu.nodestack.dev/taint";
/// The key of startup taints, unless a policy names another one.
pub const STARTUP_TAINT: &str = "gpu.nodestack.dev/startup";
/// The beginning of the keys that Cluster Autoscaler regards as startup taints.
pub const AUTOSCALER_STARTUP_PREFIX: &str = "startup-taint.cluster-autoscaler.kubernetes.io/";
/// Condition of a Node: whether its GPUs are healthy. It is added when the first problem occurs.
pub const HEALTH_CONDITION: &str = "gpu.nodestack.dev/GpuHealthy";
/// Condition of a Node, if its policy requests it: whether its GPUs are ready, as the condition Ready of its GpuNode.
pub const READY_CONDITION: &str = "gpu.nodestack.dev/GpuReady";
/// All conditions of Nodes that this operator sets.
pub const NODE_CONDITIONS: [&str; 2] = [HEALTH_CONDITION, READY_CONDITION];
/// Field manager of these conditions, and of taints. It owns nothing else of the status, so that the conditions can be removed again.
pub const HEALTH_MANAGER: &str = "gpu-operator/health";

/// The prefix of NVIDIA's extended resources.
pub const RESOURCES: &str = "nvidia.com/";
/// The extended resource for GPUs.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// The name of the DRA driver that allocates GPUs. `compute-domain.nvidia.com` allocates channels between nodes.
pub const GPU_DRIVER: &str = "gpu.nvidia.com";

/// Node label that charts use to select nodes with GPUs, as set by NVIDIA's operator.
pub const GPU_PRESENT: &str = "nvidia.com/gpu.present";

/// The labels of NVIDIA's GPU feature discovery after [`RESOURCES`], except its timestamp, and [`GPU_PRESENT`].
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
/// The prefixes of its other labels.
const DISCOVERED_FAMILIES: [&str; 6] =
    ["gpu.compute.", "gpu.slices.", "gpu.engines.", "mig-", "cuda.", "vgpu.host-driver-"];

/// Returns whether a label is part of [`crate::policy::CompatibleLabels::Gfd`].
pub fn is_discovered(key: &str) -> bool {
    key.strip_prefix(RESOURCES).is_some_and(|name| {
        DISCOVERED.contains(&name) || DISCOVERED_FAMILIES.iter().any(|family| name.starts_with(family))
    })
}

/// Returns the selector of objects by [`NAME`].
pub fn selector(name: &str) -> String {
    format!("{NAME}={name}")
}

/// Returns whether labels contain this value of [`NAME`].
pub fn are_of(labels: &BTreeMap<String, String>, name: &str) -> bool {
    labels.get(NAME).is_some_and(|found| found == name)
}
