//! The reasons of nodes that are ready, in progress or unavailable, and those of the conditions of stages.

/// Appends the reasons of this file to a table, which continues with `failure_reasons`.
macro_rules! node_reasons {
    ($($table:tt)*) => { failure_reasons! {
        $($table)*

        AllGpusAllocatable: Normal,
            "Allocatable matches the expected resources. Also the reason of a policy whose nodes are all ready.";
        GpusPassedThrough: Normal,
            "Some of the node's GPUs are passed through to virtual machines, and not counted; all others are allocatable.",
            "Nothing. To use them in containers, bind them to NVIDIA's driver.";
        RolloutPending: Normal,
            "The node is at another revision than the policy, and its update is pending. The message names what it is pending \
             for: a limit, a window, a pause, the canary nodes, or a rollout that is halted or was rolled back.",
            "Nothing, or [what the message requires](../guides/rollouts.md#a-node-does-not-move-why).";
        ForeignDevicePlugin: Normal,
            "A third-party device plugin serves the node, so none is placed: the node is ready by its allocatable GPUs. If no \
             name identifies it, the node waits in phase `DevicePlugin` until they have been allocatable for two minutes.",
            "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md).";
        ForeignStack: Normal,
            "Third-party DaemonSets install more of the node's GPU stack than the device plugin, or a pod that belongs to no \
             DaemonSet installs a driver there. This operator does not replace any of it; beside such a pod it places nothing at \
             all.",
            "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md). The message names the pod \
             and the command that deletes it.";
        ForeignDraDriver: Normal,
            "A third-party DRA driver allocates the node's GPUs to resource claims: the message names its DaemonSet. No device \
             plugin is placed beside it; the node offers no `nvidia.com/gpu`, stays in phase `DevicePlugin`, and counts as \
             `excluded`, like a cordoned node; its GPUs are not expected. A policy with only such nodes has no node that could \
             be ready, and reports `NodesNotReady`.",
            "Nothing, or take it over: [Coexistence with other GPU stacks](../guides/coexistence.md).";
        NoPolicy: InProgress,
            "No policy governs the node.",
            "Apply a policy, or widen the `nodeSelector` of an existing one.";
        OptedOut: InProgress,
            "The node's label `gpu.nodestack.dev/managed` is not `true`, which excludes it from every policy. No component of \
             this operator runs on it; policies count it as `nodes.optedOut`.",
            "Nothing, or remove the label.";
        Leaving: InProgress,
            "No policy governs the node any more: its policy is being deleted or no longer selects it, or the label \
             `gpu.nodestack.dev/managed` excludes it. Its components and labels are kept for a minute, and then until no pod \
             uses a GPU; `status.waitsOn` lists the pods. Policies count it as `nodes.leaving`.",
            "Nothing. If the node should not leave, undo the cause: nothing has changed on the node. To speed it up, cordon and \
             drain the node, or set `deletionPolicy: Now`.";
        WaitingForReport: InProgress,
            "The probe has not reported yet, or not since the node was booted: `status.report.bootID` of the GpuNode differs \
             from `status.nodeInfo.bootID` of the Node. Until then the node's labels, its update and what is known of its GPUs \
             stay.",
            "Wait: after a minute the reason becomes `ProbeMissing`.";
        PodStarting: InProgress,
            "The pod of the stage does not exist yet, or is starting; the message names its current container.",
            "Wait. Pulling a driver image for the first time can take minutes.";
        DriverInstalling: InProgress,
            "The driver's container is installing, or a third-party DaemonSet is installing a driver, or a module is loaded \
             whose libraries do not exist yet, or GKE is installing a driver according to the node label \
             `cloud.google.com/gke-gpu-driver-version`.",
            "Wait. To follow the installation, [read the log](../guides/drivers.md#reading-the-log-of-an-installation) of the \
             pod in the message.";
        FabricStarting: InProgress,
            "The NVLink fabric is starting, or `nv-fabricmanager` is. After ten minutes it is `FabricNotReady`.",
            "Wait, if the node has just been booted. Otherwise take the action in the message.";
        ToolkitInstalling: InProgress,
            "The container toolkit's installer is running, or kubelet does not list NVIDIA's runtime yet.",
            "Wait.";
        RuntimeTurnPending: Waiting,
            "The container runtime has to be restarted; restarts happen on one node of a pool at a time. No deadline applies.",
            "Wait. If another node of the pool has failed in its toolkit phase (the policy reports `RolloutHalted` and names \
             it), repair that node.";
        RuntimeConfigDrifted: InProgress,
            "NVIDIA's runtime was removed from the container runtime's configuration, or the configuration was changed after the \
             runtime was added. The toolkit's pod is recreated, which adds the runtime again.",
            "Nothing. If it recurs, find out which program rewrites the file in the message.";
        WaitingForAllocatable: InProgress,
            "The device plugin runs; kubelet has not published all of the node's GPUs yet.",
            "Wait. If the message reports more registered than allocatable GPUs, the device plugin reports the others as \
             unhealthy: read the log of its pod.";
        Validating: InProgress,
            "The pod that tests a GPU of the node is starting, is running, is waiting for a GPU that other pods use, or has \
             terminated and its log has not been read yet.",
            "Wait: if no GPU becomes free within two minutes, the node continues without the test.";
        GpuPodsInUse: Waiting,
            "A new driver or MIG layout is pending until no pod uses a GPU of this node. `status.waitsOn` lists the pods. A node \
             that is cordoned meanwhile stays so until the time in the message at the latest.",
            "Let them finish, or delete them: [none of them is evicted](disruption.md). For a node that is always busy, see \
             [Updating a busy node](#updating-a-busy-node).";
        EvictingPods: Waiting,
            "The node is cordoned, and the pods that use its GPUs are being evicted: `gpuPods: {mode: Evict}`.",
            "Wait; see [how pods are evicted](../guides/eviction.md).";
        EvictionBlocked: Waiting,
            "A pod that uses a GPU of the node cannot be evicted at present. The message has the API server's answer, such as \
             the PodDisruptionBudget that forbids it, or the finalizers of a pod that should be gone. Evictions are attempted \
             again within a minute.",
            "Wait, add replicas, or change the budget. Two budgets that select the same pod forbid its eviction for good: remove \
             one.";
        GpusHeld: InProgress,
            "A new driver revision is pending, because programs use the driver without a pod that requests a GPU: a monitoring \
             agent, a process of the host. `status.waitsOn` lists them.",
            "Stop them. A DaemonSet that uses the driver on every node, such as dcgm-exporter, can [give way by \
             itself](#daemonsets-that-use-the-driver).";
        ReleasingGpus: InProgress,
            "The GPUs are being released, so that the driver, the MIG layout or the MPS daemon can be replaced.",
            "Wait.";
        NodeNotReady: Unavailable,
            "The Kubernetes Node is not Ready, or kubelet does not report a version of its container runtime (it does not \
             answer).",
            "Check the conditions of the Node (`kubectl describe node`).";
        NodeDeleting: Unavailable,
            "The Kubernetes Node is being deleted.";
        StagePending: StageCondition,
            "The stage is waiting for an earlier one.",
            "See the condition of the earlier stage.";
        StageProven: StageCondition,
            "The stage works.";
    } };
}
