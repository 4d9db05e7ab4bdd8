//! The reasons of nodes that are ready, in progress or excluded, those of warnings about nodes, and those that are only in
//! conditions.

use super::entry::{Entry, List};

pub const ALL_GPUS_ALLOCATABLE: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "Allocatable matches the expected resources. Also the reason of a policy whose nodes are all ready.",
    action: "",
};

pub const FOREIGN_DEVICE_PLUGIN: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "A third-party device plugin serves the node, so none is placed: the node is ready by its allocatable GPUs. \
               If no name identifies it, the node waits in phase `DevicePlugin` until they have been allocatable for two minutes.",
    action: "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md).",
};

pub const FOREIGN_STACK: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "Third-party DaemonSets install more of the node's GPU stack than the device plugin, or a pod that \
               belongs to no DaemonSet installs a driver there. This operator does not replace any of it; beside such \
               a pod it places nothing at all.",
    action: "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md). The message \
              names the pod and the command that deletes it.",
};

pub const FOREIGN_DRA_DRIVER: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "A third-party DRA driver allocates the node's GPUs to resource claims: the message names its DaemonSet. \
               No device plugin is placed beside it; the node offers no `nvidia.com/gpu`, stays in phase \
               `DevicePlugin`, and counts as `excluded`, like a cordoned node; its GPUs are not expected. A policy \
               with only such nodes has no node that could be ready, and reports `NodesNotReady`.",
    action: "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md).",
};

pub const GPUS_PASSED_THROUGH: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "Some of the node's GPUs are passed through to virtual machines, and not counted; all others are allocatable.",
    action: "Nothing. To use them in containers, bind them to NVIDIA's driver.",
};

pub const ROLLOUT_PENDING: Entry = Entry {
    list: List::Normal,
    condition: "",
    meaning: "The node is at another revision than the policy, and its update is pending. The message names what it \
               is pending for: a limit, a window, a pause, the canary nodes, or a rollout that is halted or was rolled \
               back.",
    action: "Nothing, or [what the message requires](../guides/rollouts.md#a-node-does-not-move-why).",
};

pub const NO_POLICY: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "No policy governs the node.",
    action: "Apply a policy, or widen the `nodeSelector` of an existing one.",
};

pub const LEAVING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "No policy governs the node any more: its policy is being deleted or no longer selects it, or the label \
               `gpu.nodestack.dev/managed` excludes it. Its components and labels are kept for a minute, and then \
               until no pod uses a GPU; `status.waitsOn` lists the pods. Policies count it as `nodes.leaving`.",
    action: "Nothing. If the node should not leave, undo the cause: nothing has changed on the node. To speed it up, \
              cordon and drain the node, or set `deletionPolicy: Now`.",
};

pub const OPTED_OUT: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The node's label `gpu.nodestack.dev/managed` is not `true`, which excludes it from every policy. No \
               component of this operator runs on it; policies count it as `nodes.optedOut`.",
    action: "Nothing, or remove the label.",
};

pub const WAITING_FOR_REPORT: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The probe has not reported yet, or not since the node was booted: `status.report.bootID` of the GpuNode \
               differs from `status.nodeInfo.bootID` of the Node. Until then the node's labels, its update and what is \
               known of its GPUs stay.",
    action: "Wait: after a minute the reason becomes `ProbeMissing`.",
};

pub const POD_STARTING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The pod of the stage does not exist yet, or is starting; the message names its current container.",
    action: "Wait. Pulling a driver image for the first time can take minutes.",
};

pub const DRIVER_INSTALLING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The driver's container is installing, or a third-party DaemonSet is installing a driver, or a module is \
               loaded whose libraries do not exist yet, or GKE is installing a driver according to the node label \
               `cloud.google.com/gke-gpu-driver-version`.",
    action: "Wait. To follow the installation, [read the \
              log](../guides/drivers.md#reading-the-log-of-an-installation) of the pod in the message.",
};

pub const FABRIC_STARTING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The NVLink fabric is starting, or `nv-fabricmanager` is. After ten minutes it is `FabricNotReady`.",
    action: "Wait, if the node has just been booted. Otherwise take the action in the message.",
};

pub const TOOLKIT_INSTALLING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The container toolkit's installer is running, or kubelet does not list NVIDIA's runtime yet.",
    action: "Wait.",
};

pub const RUNTIME_TURN_PENDING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The container runtime has to be restarted; restarts happen on one node of a pool at a time. No deadline \
               applies.",
    action: "Wait. If another node of the pool has failed in its toolkit phase (the policy reports `RolloutHalted` \
              and names it), repair that node.",
};

pub const RUNTIME_CONFIG_DRIFTED: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "NVIDIA's runtime was removed from the container runtime's configuration, or the configuration was \
               changed after the runtime was added. The toolkit's pod is recreated, which adds the runtime again.",
    action: "Nothing. If it recurs, find out which program rewrites the file in the message.",
};

pub const WAITING_FOR_ALLOCATABLE: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The device plugin runs; kubelet has not published all of the node's GPUs yet.",
    action: "Wait. If the message reports more registered than allocatable GPUs, the device plugin reports the others \
              as unhealthy: read the log of its pod.",
};

pub const VALIDATING: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The pod that tests a GPU of the node is starting, is running, is waiting for a GPU that other pods use, \
               or has terminated and its log has not been read yet.",
    action: "Wait: if no GPU becomes free within two minutes, the node continues without the test.",
};

pub const GPU_PODS_IN_USE: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "A new driver or MIG layout is pending until no pod uses a GPU of this node. `status.waitsOn` lists the \
               pods. A node that is cordoned meanwhile stays so until the time in the message at the latest.",
    action: "Let them finish, or delete them: [none of them is evicted](disruption.md). For a node that is always \
              busy, see [Updating a busy node](#updating-a-busy-node).",
};

pub const EVICTING_PODS: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The node is cordoned, and the pods that use its GPUs are being evicted: `gpuPods: {mode: Evict}`.",
    action: "Wait; see [how pods are evicted](../guides/eviction.md).",
};

pub const EVICTION_BLOCKED: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "A pod that uses a GPU of the node cannot be evicted at present. The message has the API server's \
               answer, such as the PodDisruptionBudget that forbids it, or the finalizers of a pod that should be \
               gone. Evictions are attempted again within a minute.",
    action: "Wait, add replicas, or change the budget. Two budgets that select the same pod forbid its eviction for \
              good: remove one.",
};

pub const GPUS_HELD: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "A new driver revision is pending, because programs use the driver without a pod that requests a GPU: a \
               monitoring agent, a process of the host. `status.waitsOn` lists them.",
    action: "Stop them. A DaemonSet that uses the driver on every node, such as dcgm-exporter, can [give way by \
              itself](#daemonsets-that-use-the-driver).",
};

pub const RELEASING_GPUS: Entry = Entry {
    list: List::InProgress,
    condition: "",
    meaning: "The GPUs are being released, so that the driver, the MIG layout or the MPS daemon can be replaced.",
    action: "Wait.",
};

pub const NODE_NOT_READY: Entry = Entry {
    list: List::Excluded,
    condition: "",
    meaning: "The Kubernetes Node is not Ready, or kubelet does not report a version of its container runtime (it does not answer).",
    action: "Check the conditions of the Node (`kubectl describe node`).",
};

pub const NODE_DELETING: Entry =
    Entry { list: List::Excluded, condition: "", meaning: "The Kubernetes Node is being deleted.", action: "" };

pub const GPU_DEGRADED: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A GPU works but has a problem, or is recovering.",
    action: "The message contains the GPU, the cause and the required action.",
};

pub const HEALTH_UNKNOWN: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The health of the node's GPUs is unknown: its probe is missing or does not answer, or the GPUs could \
               not be read recently.",
    action: "Check the probe's pod and its log.",
};

pub const MANAGER_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "Another field manager, or a mutating webhook, keeps changing what the operator writes to the node: its \
               labels, its condition or its taint. They are restored less and less often: five times at once, then at \
               intervals of 90 seconds to 10 minutes. The node may be not ready because of it.",
    action: "The message names what is changed and, if `metadata.managedFields` does, the other manager. Make it \
              leave that unchanged. The warning disappears within 10 minutes.",
};

pub const LABEL_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A label key that the policy publishes already has another value on the node. That value is kept; all \
               other labels are written.",
    action: "Remove the label from the node, or the key from the policy; for keys of GPU feature discovery see \
              [Labels on nodes](../guides/labels.md).",
};

pub const LABEL_MISMATCH: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A label of the cloud or of NFD names another model than the one on the PCI bus. The model's name \
               follows the label, the driver follows the bus.",
    action: "Correct the label, or set the node's label `gpu.nodestack.dev/model-override`.",
};

pub const MIG_LAYOUT_DIFFERS: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The MIG layout of the node's GPUs was changed manually and differs from `devicePlugin.mig`, and pods \
               use them (`status.waitsOn`).",
    action: "Let the pods finish: the layout is then restored. Or set the current layout, or `mode: Unmanaged`, in \
              the policy.",
};

pub const PRECOMPILED_IMAGE_MISSING: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The policy sets a precompiled driver, and there is none for the node's kernel and operating system: the \
               driver is compiled on the node. The GpuNode's `status.missingImage` contains the image.",
    action: "Nothing, or mirror the image. It is checked again once the kernel or the driver's branch changes.",
};

pub const MIXED_MODELS: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The node has GPUs of several models. Its model is `mixed`, it gets one driver that supports them all, \
               and pods cannot select one of its models.",
    action: "Nothing, or create a pool for it with `nodeSelector` or `models: [mixed]`.",
};

pub const STACK_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A third-party DaemonSet serves the node beside this operator's, which was there first, or a DRA driver \
               allocates the same GPUs.",
    action: "Remove one of the two from the node as described in the message.",
};

pub const POLICY_OVERLAP: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "Several policies select the node. The one with the highest `priority` governs it, otherwise the oldest; \
               `status.overlaps` of each policy counts such nodes.",
    action: "Narrow the `nodeSelector` of one of them, or set `priority`.",
};

pub const INVALID_ANNOTATION: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The Node's annotation `gpu.nodestack.dev/gpu-count` is not a number from 1 to 64, and is ignored.",
    action: "Set it to such a number, or remove it.",
};

pub const STAGE_PROVEN: Entry =
    Entry { list: List::NodeCondition, condition: "", meaning: "The stage works.", action: "" };

pub const STAGE_PENDING: Entry = Entry {
    list: List::NodeCondition,
    condition: "",
    meaning: "The stage is waiting for an earlier one.",
    action: "See the condition of the earlier stage.",
};
