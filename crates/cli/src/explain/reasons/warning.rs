//! The reasons of warnings about nodes, and those that are only in conditions.

use super::entry::{Entry, List};

/// The text of `GpuDegraded`.
pub const GPU_DEGRADED: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A GPU works but has a problem, or is recovering.",
    action: "The message contains the GPU, the cause and the required action.",
};

/// The text of `HealthUnknown`.
pub const HEALTH_UNKNOWN: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The health of the node's GPUs is unknown: its probe is missing or does not answer, or the GPUs could \
               not be read recently.",
    action: "Check the probe's pod and its log.",
};

/// The text of `ManagerConflict`.
pub const MANAGER_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "Another field manager, or a mutating webhook, keeps changing what the operator writes to the node: its \
               labels, its condition or its taint. They are restored less and less often: five times at once, then at \
               intervals of 90 seconds to 10 minutes. The node may be not ready because of it.",
    action: "The message names what is changed and, if `metadata.managedFields` does, the other manager. Make it \
              leave that unchanged. The warning disappears within 10 minutes.",
};

/// The text of `LabelConflict`.
pub const LABEL_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A label key that the policy publishes already has another value on the node. That value is kept; all \
               other labels are written.",
    action: "Remove the label from the node, or the key from the policy; for keys of GPU feature discovery see \
              [Labels on nodes](../guides/labels.md).",
};

/// The text of `LabelMismatch`.
pub const LABEL_MISMATCH: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A label of the cloud or of NFD names another model than the one on the PCI bus. The model's name \
               follows the label, the driver follows the bus.",
    action: "Correct the label, or set the node's label `gpu.nodestack.dev/model-override`.",
};

/// The text of `MigLayoutDiffers`.
pub const MIG_LAYOUT_DIFFERS: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The MIG layout of the node's GPUs was changed manually and differs from `devicePlugin.mig`, and pods \
               use them (`status.waitsOn`).",
    action: "Let the pods finish: the layout is then restored. Or set the current layout, or `mode: Unmanaged`, in \
              the policy.",
};

/// The text of `PrecompiledImageMissing`.
pub const PRECOMPILED_IMAGE_MISSING: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The policy sets a precompiled driver, and there is none for the node's kernel and operating system: the \
               driver is compiled on the node. The GpuNode's `status.missingImage` contains the image.",
    action: "Nothing, or mirror the image. It is checked again once the kernel or the driver's branch changes.",
};

/// The text of `MixedModels`.
pub const MIXED_MODELS: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The node has GPUs of several models. Its model is `mixed`, it gets one driver that supports them all, \
               and pods cannot select one of its models.",
    action: "Nothing, or create a pool for it with `nodeSelector` or `models: [mixed]`.",
};

/// The text of `StackConflict`.
pub const STACK_CONFLICT: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "A third-party DaemonSet serves the node beside this operator's, which was there first, or a DRA driver \
               allocates the same GPUs.",
    action: "Remove one of the two from the node as described in the message.",
};

/// The text of `PolicyOverlap`.
pub const POLICY_OVERLAP: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "Several policies select the node. The one with the highest `priority` governs it, otherwise the oldest; \
               `status.overlaps` of each policy counts such nodes.",
    action: "Narrow the `nodeSelector` of one of them, or set `priority`.",
};

/// The text of `InvalidAnnotation`.
pub const INVALID_ANNOTATION: Entry = Entry {
    list: List::Warning,
    condition: "",
    meaning: "The Node's annotation `gpu.nodestack.dev/gpu-count` is not a number from 1 to 64, and is ignored.",
    action: "Set it to such a number, or remove it.",
};

/// The text of `StageProven`.
pub const STAGE_PROVEN: Entry =
    Entry { list: List::NodeCondition, condition: "", meaning: "The stage works.", action: "" };

/// The text of `StagePending`.
pub const STAGE_PENDING: Entry = Entry {
    list: List::NodeCondition,
    condition: "",
    meaning: "The stage is waiting for an earlier one.",
    action: "See the condition of the earlier stage.",
};
