//! The reasons of policies and pools, and the findings of pod diagnosis.

use super::entry::{Entry, List};

pub const NO_MATCHING_NODES: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False",
    meaning: "No node with an NVIDIA GPU matches the policy, or another policy governs those that do \
               (`PolicyOverlap`).",
    action: "`kubectl get gpunodes` lists the discovered nodes; check `nodeSelector`, and whether a policy with a \
              higher `priority`, or an older one, governs the nodes.",
};

pub const NO_NODES: Entry = Entry {
    list: List::Policy,
    condition: "Ready=True",
    meaning: "No node with an NVIDIA GPU matches the policy, whose `readiness.minReadyNodes` is 0.",
    action: "",
};

pub const NODES_NOT_READY: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False, Reconciling=True",
    meaning: "Fewer nodes than `readiness.minReadyNodes` are ready, or nodes are in progress.",
    action: "`status.attention` lists the nodes that most need attention.",
};

pub const MINIMUM_NODES_READY: Entry = Entry {
    list: List::Policy,
    condition: "Ready=True, Reconciling=False",
    meaning: "Enough nodes are ready, but not all; others may be in progress.",
    action: "See `status.attention`.",
};

pub const ROLLING_OUT: Entry = Entry {
    list: List::Policy,
    condition: "Reconciling=True",
    meaning: "Nodes are being updated to a new revision, or their updates are pending. The message names what delays \
               them all, such as `rollout.maxUnavailable` or a node that became NotReady during its update.",
    action: "Nothing, or [what the message requires](../guides/rollouts.md#a-node-does-not-move-why).",
};

pub const ROLLOUT_HALTED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "`rollout.maxFailures` updates in the pool have failed, by default one; or updated nodes have rebooted \
               twice; or the new images [cannot be pulled](../concepts/revisions.md#preflight).",
    action: "Repair the node in the message, or restore the old settings. If the node no longer exists, change the \
              policy's annotation `gpu.nodestack.dev/retry`: see [Failures](../guides/rollouts.md#failures).",
};

pub const ROLLED_BACK: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "The nodes of the pool return, or have returned, to their previous revision after a failure, because of \
               `rollout.onFailure: RollBack`. The message contains the failure. Nothing is attempted again by itself.",
    action: "Set the earlier version in the policy, or correct its settings; or resolve the failure and change the \
              policy's annotation `gpu.nodestack.dev/retry`: see [Going back](../guides/rollouts.md#going-back).",
};

pub const ALL_GPUS_HEALTHY: Entry = Entry {
    list: List::Policy,
    condition: "Degraded=False, the Node's condition",
    meaning: "All GPUs are healthy.",
    action: "",
};

pub const DEVICE_PLUGIN_RESTARTED: Entry = Entry {
    list: List::Policy,
    condition: "Event of a Node",
    meaning: "The device plugin withheld GPUs that had recovered, and was restarted.",
    action: "",
};

pub const GPUS_REPLACED: Entry = Entry {
    list: List::Policy,
    condition: "Event of a Node",
    meaning: "After a reboot, all GPUs of the node are of other models than before. The node counts as another \
               machine, and only the new GPUs are expected.",
    action: "",
};

pub const OPERATOR_UNINSTALLED: Entry = Entry {
    list: List::Policy,
    condition: "all conditions Unknown",
    meaning: "The chart was uninstalled. What runs on the nodes keeps running, also after a reboot, but nothing is installed, updated or \
              reported.",
    action: "[Install the chart again](../operate/uninstall.md#installing-again), which also completes the deletion of policies.",
};

pub const SETTLED: Entry = Entry {
    list: List::Policy,
    condition: "Reconciling=False, Stalled=False",
    meaning: "Reconciliation is complete.",
    action: "",
};

pub const POLICY_ACCEPTED: Entry = Entry {
    list: List::Policy,
    condition: "Accepted=True",
    meaning: "Every part of the policy can be applied.",
    action: "",
};

pub const POLICY_OVERLAP: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "A policy with a higher `priority`, or an older one, governs every node that the policy selects.",
    action: "Narrow the `nodeSelector` of that policy, set `priority`, or delete one of the two.",
};

pub const INVALID_POLICY: Entry = Entry {
    list: List::Policy,
    condition: "Accepted=False, Stalled=True, pool",
    meaning: "A part of the policy cannot be applied to the existing nodes, or names an unknown time zone. The \
               affected pool is left unchanged, the others continue.",
    action: "The message names the pool and the fix.",
};

pub const UNKNOWN_MODEL: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "A model in a pool's `match.models` is neither in the catalogue nor on any node.",
    action: "Set the name in the message, or one that `kubectl get gpunodes` lists.",
};

pub const POOL_SHADOWED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "Earlier pools match every node that a pool matches, so it can have no nodes.",
    action: "Move the pool above those in the message, or narrow their `match`.",
};

pub const POOL_MATCHES_OWN_LABEL: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "A pool's `match.nodeSelector` contains a label that the policy itself publishes, or one of this \
               operator's own. Such a label is ignored for matching: otherwise nodes would move between pools because \
               of labels that the operator writes.",
    action: "Match by `models` or by another label, or remove the key from `nodeLabels`.",
};

pub const APPLY_FAILED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "A write to the API server failed. It is retried.",
    action: "The message contains the API server's error: usually a quota, an admission policy or missing \
              permissions. For the chart's own admission policy it names the image that is from no registry in the \
              chart's value `admission.allowedRegistries`, or has no digest.",
};

pub const MANAGER_CONFLICT: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "Another field manager keeps changing an object of the operator, such as a DaemonSet. It is restored \
               less and less often, as described for [nodes](#warnings); everything else continues. A webhook that \
               changes a DaemonSet on admission is no conflict. Or another namespace has components of the operator.",
    action: "The message names the object and, if `metadata.managedFields` does, the other manager. Make it leave the \
              object unchanged.",
};

pub const DELETING: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False, Reconciling=True",
    meaning: "The policy is being deleted: labels are being removed from the nodes.",
    action: "Wait. The operator must be running.",
};

pub const LEGACY_GPU_RESOURCE: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod requests `alpha.kubernetes.io/nvidia-gpu`, the GPU resource of early Kubernetes (removed in \
               1.10). No node offers it, so the pod stays pending.",
    action: "Request `limits: {nvidia.com/gpu: 1}`, and remove the volumes of driver libraries that were used with \
              it.",
};

pub const HOST_DRIVER_MOUNTED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod mounts the driver's libraries, binaries or device nodes from its host, such as \
               `/usr/lib64/nvidia`, `/home/kubernetes/bin/nvidia` or `/dev/nvidia0`. It has access to every GPU of the \
               node, including those of other pods, it is not counted by the scheduler, and the next driver update \
               breaks it. Pods of DaemonSets and of the `system-…` priority classes are exempt.",
    action: "Request `limits: {nvidia.com/gpu: 1}` and remove these volumes, and `privileged` with them: the driver \
              is injected into the container.",
};

pub const GPU_NOT_REQUESTED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "A container sets `NVIDIA_VISIBLE_DEVICES`, and no container of the pod requests a GPU. It gets no GPU, \
               or GPUs that other pods use. Privileged pods, pods of DaemonSets and pods with resource claims are \
               exempt.",
    action: "Request `limits: {nvidia.com/gpu: 1}` and remove the variable.",
};

pub const RUNTIME_CLASS_NOT_NAMED: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod runs on a node whose containers get their GPUs through NVIDIA's runtime, which is not the \
               default there (`toolkit.setAsDefault: false`, or k3s and RKE2), but sets no RuntimeClass, so another \
               runtime runs it. It starts and finds no driver: `libcuda.so.1: cannot open shared object file`, \
               `nvidia-smi: not found`, or NVML's `Unknown Error`.",
    action: "Set `runtimeClassName: nvidia`, or remove `toolkit.setAsDefault: false` from the policy.",
};

pub const RUNTIME_HANDLER_MISSING: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The pod is assigned to a node whose container runtime has no handler configured for its RuntimeClass.",
    action: "Remove `runtimeClassName` if GPUs are injected by CDI. Otherwise check the progress of the node's \
              toolkit: `kubectl get gpunode NODE -o wide`.",
};

pub const CUDA_TOO_NEW: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The image needs a later CUDA version than the driver of its node supports or, before the pod is \
               scheduled, than any eligible node supports; or `NVIDIA_REQUIRE_CUDA` in the pod's spec requires such a \
               version; or NVIDIA's runtime did not start the container and reported `unsatisfied condition: cuda>=…`.",
    action: "Use an image for the CUDA version in the message or an earlier one, or update the node's driver.",
};

pub const NO_NODE_FITS: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "No node can ever run the pod: it requests more GPUs than any node has, a model that no node has, or \
               shares or MIG devices that no node offers.",
    action: "The message lists what is available.",
};

pub const GPU_NODES_NOT_READY: Entry = Entry {
    list: List::Pod,
    condition: "",
    meaning: "The nodes that could run the pod do not offer their GPUs yet.",
    action: "The message has the progress of the nearest node; [Phases and reasons](../reference/reasons.md) explains \
              its reason.",
};
