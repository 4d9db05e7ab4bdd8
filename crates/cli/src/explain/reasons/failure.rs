//! The failures of nodes, except those of drivers.

use super::entry::{Entry, List};

/// The text of `ProbeMissing`.
pub const PROBE_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "No probe pod runs on the node, or it does not report.",
    action: "Read the message. If there is no pod, make the chart's `probe.affinity`, `probe.nodeSelector` and \
              `probe.tolerations` match the node; if there is one, read its log.",
};

/// The text of `GpuNodeUnreadable`.
pub const GPU_NODE_UNREADABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GpuNode cannot be parsed, because another version of the operator or of its CRDs has written \
               it. The node is left unchanged and keeps its slot, if it is being updated; its policy counts it as \
               `nodes.failed` and its GPUs as `gpus.unknown`.",
    action: "Install the version that wrote it, or delete the GpuNode (`kubectl delete gpunode NODE`): the probe \
              creates it again.",
};

/// The text of `ImagePullFailed`.
pub const IMAGE_PULL_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "An image cannot be pulled.",
    action: "The message contains the runtime's error. Check `images.registry`, `images.pullSecrets` and the tag.",
};

/// The text of `ContainerCrashed`.
pub const CONTAINER_CRASHED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "A container of a stage crashes or cannot be created.",
    action: "The message contains the exit code and the line of its log that reports the error. Read the full log. If \
              the toolkit cannot be installed on a read-only file system, set `toolkit.installDir`.",
};

/// The text of `UntoleratedTaint`.
pub const UNTOLERATED_TAINT: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node has a taint that `tolerations`, of its pool or in `defaults`, do not tolerate, so no operand \
               is scheduled onto it.",
    action: "Add a toleration for the taint in the message, or remove the list: without one every taint is tolerated.",
};

/// The text of `RuntimeUnsupported`.
pub const RUNTIME_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's container runtime does not support the pool's `toolkit` settings: CDI needs containerd 1.7 \
               (with k3s and RKE2 2.0) or CRI-O, NRI needs containerd 2.1 or CRI-O 1.34, and an explicit `runtime` \
               must be the one that runs. Nothing is installed there.",
    action: "The message contains the supported settings.",
};

/// The text of `RuntimeConfigRejected`.
pub const RUNTIME_CONFIG_REJECTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The container runtime did not start with NVIDIA's runtime in its configuration. Its previous \
               configuration was restored, and it runs with that.",
    action: "The message contains the failed check or command, such as a socket that does not answer. Check the \
              runtime's log (`journalctl -u containerd`), correct the file, and delete the toolkit's pod to retry.",
};

/// The text of `RuntimeDown`.
pub const RUNTIME_DOWN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The container runtime was restarted and does not start, even with its previous configuration.",
    action: "Check its log on the node. Running pods are not affected; no pod can start.",
};

/// The text of `MigBlocked`.
pub const MIG_BLOCKED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPUs have to be repartitioned according to `devicePlugin.mig`, and instances that have to be \
               removed are in use. The device plugin waits.",
    action: "The message names the processes: end them. The change is retried by itself.",
};

/// The text of `MigResetNeeded`.
pub const MIG_RESET_NEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "MIG was enabled or disabled, and this GPU needs a reset to apply the change.",
    action: "Reboot the node, or reset the GPU (`nvidia-smi --gpu-reset`) while it is not in use.",
};

/// The text of `MigLayoutRefused`.
pub const MIG_LAYOUT_REFUSED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The node's GPUs do not support MIG or the profile in the message, or cannot fit all of \
               `devicePlugin.mig.layout`, or the node lacks a GPU that the layout names in `devices`.",
    action: "Correct the layout. If a profile is not supported, the message lists the supported profiles.",
};

/// The text of `DevicePluginUnsupported`.
pub const DEVICE_PLUGIN_UNSUPPORTED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The device plugin in the policy does not work with the node's driver, or with other settings of the \
               policy. The node is left unchanged.",
    action: "The message contains the supported settings.",
};

/// The text of `PodUnschedulable`.
pub const POD_UNSCHEDULABLE: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The stage's pod cannot be scheduled onto its node.",
    action: "The message contains the scheduler's error: usually a taint that `tolerations` lacks, or insufficient \
              CPU or memory.",
};

/// The text of `PodsForbidden`.
pub const PODS_FORBIDDEN: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The API server rejects the stage's pods, or those of the probe if the policy has no nodes.",
    action: "Label the namespace `pod-security.kubernetes.io/enforce=privileged`. On GKE set the chart's \
              `resourceQuota.enabled=true`. If service account `nodestack-gke-device-plugin` is not found, \
              `devicePlugin.healthMonitoring` needs the chart's `gkeHealthMonitoring=true`. Otherwise the message \
              names the policy that rejects the pods.",
};

/// The text of `GpuMissing`.
pub const GPU_MISSING: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The PCI bus shows fewer GPUs than expected; the message has the last known PCI addresses of the missing \
               ones.",
    action: "A GPU may have fallen off the bus: check the kernel log. If it was removed permanently, annotate the \
              node: `kubectl annotate node NODE gpu.nodestack.dev/gpu-count=7`. If all GPUs were replaced by other \
              models while the machine was running, reboot it or annotate the node in the same way: only after a \
              reboot such GPUs count as another machine (`GpusReplaced`). If the pool's `gpusPerNode` is too high, \
              correct it.",
};

/// The text of `GpuUnhealthy`.
pub const GPU_UNHEALTHY: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The probe reports that a GPU must not be used, and fewer GPUs are healthy than `health.minHealthyGpus`. \
               On a node that is Ready nevertheless it is a warning.",
    action: "The message contains the GPU's PCI address, its most severe cause and the required action; see [GPU \
              health](../operate/health.md).",
};

/// The text of `ValidationFailed`.
pub const VALIDATION_FAILED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The test in `readiness.validation` failed or could not be run. It is retried after a minute, and then \
               with twice the delay each time, up to an hour; immediately after a reboot, with another revision, or \
               with another `validation.image`.",
    action: "The message contains the exit code and the end of the test's log. Search the kernel log for `Xid` lines; \
              to use the node without the test, set `mode: Never`.",
};

/// The text of `ProgressDeadlineExceeded`.
pub const PROGRESS_DEADLINE_EXCEEDED: Entry = Entry {
    list: List::Failure,
    condition: "",
    meaning: "The phase lasted longer than `readiness.progressDeadline`.",
    action: "The message contains the last state: check that.",
};
