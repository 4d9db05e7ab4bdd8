//! The reasons of policies and pools.

use super::entry::{Entry, List};

/// The text of `NoMatchingNodes`.
pub const NO_MATCHING_NODES: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False",
    meaning: "No node with an NVIDIA GPU matches the policy, or another policy governs those that do \
               (`PolicyOverlap`).",
    action: "`kubectl get gpunodes` lists the discovered nodes; check `nodeSelector`, and whether a policy with a \
              higher `priority`, or an older one, governs the nodes.",
};

/// The text of `NoNodes`.
pub const NO_NODES: Entry = Entry {
    list: List::Policy,
    condition: "Ready=True",
    meaning: "No node with an NVIDIA GPU matches the policy, whose `readiness.minReadyNodes` is 0.",
    action: "",
};

/// The text of `NodesNotReady`.
pub const NODES_NOT_READY: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False, Reconciling=True",
    meaning: "Fewer nodes than `readiness.minReadyNodes` are ready, or nodes are in progress.",
    action: "`status.attention` lists the nodes that most need attention.",
};

/// The text of `MinimumNodesReady`.
pub const MINIMUM_NODES_READY: Entry = Entry {
    list: List::Policy,
    condition: "Ready=True, Reconciling=False",
    meaning: "Enough nodes are ready, but not all; others may be in progress.",
    action: "See `status.attention`.",
};

/// The text of `RollingOut`.
pub const ROLLING_OUT: Entry = Entry {
    list: List::Policy,
    condition: "Reconciling=True",
    meaning: "Nodes are being updated to a new revision, or their updates are pending. The message names what delays \
               them all, such as `rollout.maxUnavailable` or a node that became NotReady during its update.",
    action: "Nothing, or [what the message requires](../guides/rollouts.md#a-node-does-not-move-why).",
};

/// The text of `RolloutHalted`.
pub const ROLLOUT_HALTED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "As many updates in the pool have failed as `rollout.maxFailures`, by default one, so its other nodes \
               stay at their revision; or the images of the new revision [cannot be \
               pulled](../concepts/revisions.md#preflight).",
    action: "Repair the node in the message, or restore the old settings. If the node no longer exists, change the \
              policy's annotation `gpu.nodestack.dev/retry`: see [Failures](../guides/rollouts.md#failures).",
};

/// The text of `RolledBack`.
pub const ROLLED_BACK: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "The nodes of the pool return, or have returned, to their previous revision after a failure, because of \
               `rollout.onFailure: RollBack`. The message contains the failure. Nothing is attempted again by itself.",
    action: "Set the earlier version in the policy, or correct its settings; or resolve the failure and change the \
              policy's annotation `gpu.nodestack.dev/retry`: see [Going back](../guides/rollouts.md#going-back).",
};

/// The text of `CrdsOutdated`.
pub const CRDS_OUTDATED: Entry = Entry {
    list: List::Policy,
    condition: "Degraded=True",
    meaning: "A CRD is of an older version than the operator, so the API server may drop fields that the operator \
               writes. Nodes are served as before, but nothing is removed and no update begins.",
    action: "Update the CRDs by `helm upgrade`, or [by kubectl](../operate/upgrade.md#crds-of-another-version).",
};

/// The text of `CrdsNewer`.
pub const CRDS_NEWER: Entry = Entry {
    list: List::Policy,
    condition: "Degraded=True",
    meaning: "A CRD is of a newer version than the operator, which may not know fields of policies. Nodes are served as \
               before, but nothing is removed and no update begins.",
    action: "Upgrade the operator, or [restore its CRDs](../operate/upgrade.md#crds-of-another-version).",
};

/// The text of `AllGpusHealthy`.
pub const ALL_GPUS_HEALTHY: Entry = Entry {
    list: List::Policy,
    condition: "Degraded=False, the Node's condition",
    meaning: "All GPUs are healthy.",
    action: "",
};

/// The text of `DevicePluginRestarted`.
pub const DEVICE_PLUGIN_RESTARTED: Entry = Entry {
    list: List::Policy,
    condition: "Event of a Node",
    meaning: "The device plugin withheld GPUs that had recovered, and was restarted.",
    action: "",
};

/// The text of `GpusReplaced`.
pub const GPUS_REPLACED: Entry = Entry {
    list: List::Policy,
    condition: "Event of a Node",
    meaning: "After a reboot, all GPUs of the node are of other models than before. The node counts as another \
               machine, and only the new GPUs are expected.",
    action: "",
};

/// The text of `OperatorUninstalled`.
pub const OPERATOR_UNINSTALLED: Entry = Entry {
    list: List::Policy,
    condition: "all conditions Unknown",
    meaning: "The chart was uninstalled. What runs on the nodes keeps running, also after a reboot, but nothing is installed, updated or \
              reported.",
    action: "[Install the chart again](../operate/uninstall.md#installing-again), which also completes the deletion of policies.",
};

/// The text of `Settled`.
pub const SETTLED: Entry = Entry {
    list: List::Policy,
    condition: "Reconciling=False, Stalled=False",
    meaning: "Reconciliation is complete.",
    action: "",
};

/// The text of `PolicyAccepted`.
pub const POLICY_ACCEPTED: Entry = Entry {
    list: List::Policy,
    condition: "Accepted=True",
    meaning: "Every part of the policy can be applied.",
    action: "",
};

/// The text of `PolicyOverlap`.
pub const POLICY_OVERLAP: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "A policy with a higher `priority`, or an older one, governs every node that the policy selects.",
    action: "Narrow the `nodeSelector` of that policy, set `priority`, or delete one of the two.",
};

/// The text of `InvalidPolicy`.
pub const INVALID_POLICY: Entry = Entry {
    list: List::Policy,
    condition: "Accepted=False, Stalled=True, pool",
    meaning: "A part of the policy cannot be applied to the existing nodes, or names an unknown time zone. The \
               affected pool is left unchanged, the others continue.",
    action: "The message names the pool and the fix.",
};

/// The text of `UnknownModel`.
pub const UNKNOWN_MODEL: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "A model in a pool's `match.models` is neither in the catalogue nor on any node.",
    action: "Set the name in the message, or one that `kubectl get gpunodes` lists.",
};

/// The text of `PoolShadowed`.
pub const POOL_SHADOWED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "Earlier pools match every node that a pool matches, so it can have no nodes.",
    action: "Move the pool above those in the message, or narrow their `match`.",
};

/// The text of `PoolMatchesOwnLabel`.
pub const POOL_MATCHES_OWN_LABEL: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True, pool",
    meaning: "A pool's `match.nodeSelector` contains a label that the policy itself publishes, or one of this \
               operator's own. Such a label is ignored for matching: otherwise nodes would move between pools because \
               of labels that the operator writes.",
    action: "Match by `models` or by another label, or remove the key from `nodeLabels`.",
};

/// The text of `ApplyFailed`.
pub const APPLY_FAILED: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "A write to the API server failed. It is retried.",
    action: "The message contains the API server's error: usually a quota, an admission policy or missing \
              permissions. For the chart's own admission policy it names the image that is from no registry in the \
              chart's value `admission.allowedRegistries`, or has no digest.",
};

/// The text of `ManagerConflict`.
pub const MANAGER_CONFLICT: Entry = Entry {
    list: List::Policy,
    condition: "Stalled=True",
    meaning: "Another field manager keeps changing an object of the operator, such as a DaemonSet. It is restored \
               less and less often, as described for [nodes](#warnings); everything else continues. A webhook that \
               changes a DaemonSet on admission, for example to use a mirror of an image registry, is not a conflict.",
    action: "The message names the object and, if `metadata.managedFields` does, the other manager. Make it leave the \
              object unchanged.",
};

/// The text of `Deleting`.
pub const DELETING: Entry = Entry {
    list: List::Policy,
    condition: "Ready=False, Reconciling=True",
    meaning: "The policy is being deleted: labels are being removed from the nodes.",
    action: "Wait. The operator must be running.",
};
