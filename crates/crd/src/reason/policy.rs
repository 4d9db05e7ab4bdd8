//! The reasons of policies and pools, and the warnings about nodes that work.

/// Appends the reasons of this file to a table, which continues with `reasons`.
macro_rules! policy_reasons {
    ($($table:tt)*) => { reasons! {
        $($table)*

        NoMatchingNodes: Policy("Ready=False"),
            "No node with an NVIDIA GPU matches the policy, or another policy governs those that do (`PolicyOverlap`).",
            "`kubectl get gpunodes` lists the discovered nodes; check `nodeSelector`, and whether a policy with a higher \
             `priority`, or an older one, governs the nodes.";
        NoNodes: Policy("Ready=True"),
            "No node with an NVIDIA GPU matches the policy, whose `readiness.minReadyNodes` is 0.";
        NodesNotReady: Policy("Ready=False, Reconciling=True"),
            "Fewer nodes than `readiness.minReadyNodes` are ready, or nodes are in progress.",
            "`status.attention` lists the nodes that most need attention.";
        RollingOut: Policy("Reconciling=True"),
            "Nodes are being updated to a new revision, or their updates are pending. The message names what delays them all, \
             such as `rollout.maxUnavailable` or a node that became NotReady during its update.",
            "Nothing, or [what the message requires](../guides/rollouts.md#a-node-does-not-move-why).";
        RolloutHalted: PolicyFailure("Stalled=True, pool"),
            "`rollout.maxFailures` updates in the pool have failed, by default one; or updated nodes have rebooted twice; or the \
             new images [cannot be pulled](../concepts/revisions.md#preflight).",
            "Repair the node in the message, or restore the old settings. If the node no longer exists, attempt the \
             updates again (see [Failures](../guides/rollouts.md#failures)): `kubectl annotate clustergpupolicy POLICY --overwrite \
             gpu.nodestack.dev/retry=$(date +%s)`.";
        RolledBack: PolicyFailure("Stalled=True, pool"),
            "The nodes of the pool return, or have returned, to their previous revision after a failure, because of \
             `rollout.onFailure: RollBack`. The message contains the failure. Nothing is attempted again by itself.",
            "Set the earlier version in the policy, or correct its settings; or resolve the failure and attempt it again (see \
             [Going back](../guides/rollouts.md#going-back)): `kubectl annotate clustergpupolicy POLICY --overwrite \
             gpu.nodestack.dev/retry=$(date +%s)`.";
        MinimumNodesReady: Policy("Ready=True, Reconciling=False"),
            "Enough nodes are ready, but not all; others may be in progress.",
            "See `status.attention`.";
        Deleting: Policy("Ready=False, Reconciling=True"),
            "The policy is being deleted: labels are being removed from the nodes.",
            "Wait. The operator must be running.";
        OperatorUninstalled: Policy("all conditions Unknown"),
            "The chart was uninstalled. What runs on the nodes keeps running, also after a reboot, but nothing is installed, \
             updated or reported.",
            "[Install the chart again](../operate/uninstall.md#installing-again), which also completes the deletion of policies.";
        Settled: Policy("Reconciling=False, Stalled=False"),
            "Reconciliation is complete.";
        DevicePluginRestarted: Policy("Event of a Node"),
            "The device plugin withheld GPUs that had recovered, and was restarted.";
        GpusReplaced: Policy("Event of a Node"),
            "After a reboot, all GPUs of the node are of other models than before. The node counts as another machine, and only \
             the new GPUs are expected.";
        AllGpusHealthy: Policy("Degraded=False, the Node's condition"),
            "All GPUs are healthy.";
        PolicyAccepted: Policy("Accepted=True"),
            "Every part of the policy can be applied.";
        InvalidPolicy: PolicyFailure("Accepted=False, Stalled=True, pool"),
            "A part of the policy cannot be applied to the existing nodes, or names an unknown time zone. The affected pool is \
             left unchanged, the others continue.",
            "The message names the pool and the fix.";
        ApplyFailed: PolicyFailure("Stalled=True"),
            "A write to the API server failed. It is retried.",
            "The message contains the API server's error: usually a quota, an admission policy or missing permissions. For the \
             chart's own admission policy it names the image that is from no registry in the chart's value \
             `admission.allowedRegistries`, or has no digest.";
        UnknownModel: PolicyFailure("Stalled=True, pool"),
            "A model in a pool's `match.models` is neither in the catalogue nor on any node.",
            "Set the name in the message, or one that `kubectl get gpunodes` lists.";
        PoolShadowed: PolicyFailure("Stalled=True, pool"),
            "Earlier pools match every node that a pool matches, so it can have no nodes.",
            "Move the pool above those in the message, or narrow their `match`.";
        PoolMatchesOwnLabel: PolicyFailure("Stalled=True, pool"),
            "A pool's `match.nodeSelector` contains a label that the policy itself publishes, or one of this operator's own. \
             Such a label is ignored for matching: otherwise nodes would move between pools because of labels that the operator \
             writes.",
            "Match by `models` or by another label, or remove the key from `nodeLabels`.";

        GpuDegraded: Warning,
            "A GPU works but has a problem, or is recovering.",
            "The message contains the GPU, the cause and the required action.";
        HealthUnknown: Warning,
            "The health of the node's GPUs is unknown: its probe is missing or does not answer, or the GPUs could not be read \
             recently.",
            "Check the probe's pod and its log.";
        ManagerConflict: Warning("also Stalled=True of a policy"),
            "Another field manager, or a mutating webhook, keeps changing what the operator writes: labels, the condition or the \
             taint of a node, which may be not ready because of it, or an object such as a DaemonSet, which makes policies \
             `Stalled`. It is restored less and less often: five times at once, then at intervals of 90 seconds to 10 minutes; \
             everything else continues. A webhook that changes a DaemonSet on admission is no conflict. Or another namespace has \
             components of the operator.",
            "The message names what is changed and, if `metadata.managedFields` does, the other manager. Make it leave that \
             unchanged. The warning disappears within 10 minutes.";
        LabelConflict: Warning,
            "A label key that the policy publishes already has another value on the node. That value is kept; all other labels \
             are written.",
            "Remove the label from the node, or the key from the policy; for keys of GPU feature discovery see [Labels on \
             nodes](../guides/labels.md).";
        LabelMismatch: Warning,
            "A label of the cloud or of NFD names another model than the one on the PCI bus. The model's name follows the label, \
             the driver follows the bus.",
            "Correct the label, or set the node's label `gpu.nodestack.dev/model-override`.";
        MigLayoutDiffers: Warning,
            "The MIG layout of the node's GPUs was changed manually and differs from `devicePlugin.mig`, and pods use them \
             (`status.waitsOn`).",
            "Let the pods finish: the layout is then restored. Or set the current layout, or `mode: Unmanaged`, in the policy.";
        PrecompiledImageMissing: Warning,
            "The policy sets a precompiled driver, and there is none for the node's kernel and operating system: the driver is \
             compiled on the node. The GpuNode's `status.missingImage` contains the image.",
            "Nothing, or mirror the image. It is checked again once the kernel or the driver's branch changes.";
        MixedModels: Warning,
            "The node has GPUs of several models. Its model is `mixed`, it gets one driver that supports them all, and pods \
             cannot select one of its models.",
            "Nothing, or create a pool for it with `nodeSelector` or `models: [mixed]`.";
        StackConflict: Warning,
            "A third-party DaemonSet serves the node beside this operator's, which was there first, or a DRA driver allocates \
             the same GPUs.",
            "Remove one of the two from the node as described in the message.";
        PolicyOverlap: Warning("also Stalled=True of a policy"),
            "Several policies select the node. The one with the highest `priority` governs it, otherwise the oldest; \
             `status.overlaps` of each policy counts such nodes. A policy that governs none of the nodes that it selects is \
             `Stalled`.",
            "Narrow the `nodeSelector` of one of them, set `priority`, or delete one of the two.";
        InvalidAnnotation: Warning,
            "The Node's annotation `gpu.nodestack.dev/gpu-count` is not a number from 1 to 64, and is ignored.",
            "Set it to such a number, or remove it.";
    } };
}
