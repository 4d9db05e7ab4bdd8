//! Reasons and condition types of status. A reason is the `reason` of a condition, a GpuNode, an Event and a
//! metric's label, so that the same word can be looked up everywhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumIter, EnumString, IntoStaticStr};

/// The reason for the state of a node or policy.
#[derive(
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    EnumIter,
    EnumString,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
pub enum Reason {
    // Ready.
    /// All expected GPUs are allocatable.
    AllGpusAllocatable,
    /// Some GPUs are passed through to virtual machines and not counted; all others are allocatable.
    GpusPassedThrough,
    /// The node is ready at its current revision; its update to a new revision is pending.
    RolloutPending,
    /// A third-party device plugin advertises the node's GPUs; the operator installs none. Until the GPUs have been allocatable for two
    /// minutes, they may be those of a plugin that is gone.
    ForeignDevicePlugin,
    /// A third party provides more of the node's GPU stack than the device plugin; the operator does not install those
    /// components.
    ForeignStack,
    /// A third-party DRA driver allocates the node's GPUs to resource claims; no device plugin is installed.
    ForeignDraDriver,

    // In progress.
    /// No policy governs the node.
    NoPolicy,
    /// The node's label `gpu.nodestack.dev/managed` excludes it from every policy.
    OptedOut,
    /// No policy governs the node any more. Its GPU stack is kept for a minute, and then until no pod uses a GPU.
    Leaving,
    /// The probe has not reported yet.
    WaitingForReport,
    /// The operand's pod does not exist yet, or is starting.
    PodStarting,
    /// The driver's container is installing the driver.
    DriverInstalling,
    /// The GPUs have not joined their NVLink fabric yet, or its fabric manager does not run yet.
    FabricStarting,
    /// The toolkit's installer is running.
    ToolkitInstalling,
    /// The restart of the container runtime is pending: runtimes are restarted on one node of a pool at a time.
    RuntimeTurnPending,
    /// NVIDIA's runtime was removed from the container runtime's configuration and is being added again, or is no longer its
    /// default.
    RuntimeConfigDrifted,
    /// The device plugin is running; kubelet has not published its GPUs yet.
    WaitingForAllocatable,
    /// The validation pod is waiting for a GPU or running its test.
    Validating,
    /// An update is waiting until no pod uses a GPU of this node.
    GpuPodsInUse,
    /// The pods that use the GPUs of this node are being evicted before an update.
    EvictingPods,
    /// An update is waiting, because a pod that uses a GPU of this node cannot be evicted at present.
    EvictionBlocked,
    /// An update is waiting until programs that use the driver without a GPU of their own have ended.
    GpusHeld,
    /// The node's GPUs are being released before its driver is replaced.
    ReleasingGpus,

    // The node is unavailable.
    /// The Node is not Ready.
    NodeNotReady,
    /// The Node is being deleted.
    NodeDeleting,

    // Conditions of stages.
    /// An earlier stage of the node does not work yet.
    StagePending,
    /// The stage is proven to work.
    StageProven,

    // Failures.
    /// The probe's pod is not running on the node, or does not report.
    ProbeMissing,
    /// The node's GpuNode cannot be parsed.
    GpuNodeUnreadable,
    /// The loaded driver is in use and cannot be replaced.
    DriverInUse,
    /// The container that provides the node's driver is not running, although its driver is loaded.
    DriverDown,
    /// The driver's root lacks its library or device nodes that programs need.
    DriverRootIncomplete,
    /// The loaded kernel module has a different version than the wanted one.
    DriverVersionMismatch,
    /// The installed driver has a different version than the loaded one; a reboot loads it.
    RebootNeeded,
    /// The kernel headers that are needed to compile the driver are not available.
    KernelHeadersUnavailable,
    /// The kernel rejects the driver's modules, which are not signed with a key that the node trusts.
    SecureBootRejectsModule,
    /// There is no driver image with this name, for this operating system or kernel.
    DriverImageNotFound,
    /// The installer cannot download the driver or its packages.
    DownloadFailed,
    /// The policy has no checksum for the `.run` file of source `RunFile`, which is therefore not executed.
    ChecksumMissing,
    /// The `.run` file that the installer found has another checksum than the one in the policy, and was not executed.
    ChecksumMismatch,
    /// A driver is installed on the host, but its kernel module is not loaded.
    DriverNotLoaded,
    /// No driver is installed on a node of a pool with source Preinstalled, or on a node with virtual GPUs, which need a guest driver.
    DriverNotInstalled,
    /// A kernel module is loaded that the operator did not install, and its libraries were not found.
    DriverLibraryNotFound,
    /// GPUs are bound to another kernel driver than NVIDIA's, such as nouveau.
    GpuBoundToOtherDriver,
    /// NVML returns an error, so that the driver cannot be queried.
    NvmlFailed,
    /// The GPUs have not joined their NVLink fabric, or no fabric manager runs on a machine with `NVSwitches`: CUDA does not
    /// work.
    FabricNotReady,
    /// The host, or the device plugin's CDI specification, lacks device nodes that every CUDA program opens.
    DeviceNodesMissing,
    /// `cuInit` fails on the node, so that no CUDA program can start.
    CudaInitFailed,
    /// No driver image is published for the node's operating system.
    NoDriverImageForOS,
    /// The driver's version, or its flavour of kernel modules, does not support the node's model.
    DriverUnsupported,
    /// The catalogue lacks the node's GPU, so that no driver can be chosen.
    UnknownGpu,
    /// An image cannot be pulled.
    ImagePullFailed,
    /// A container of an operand is crashing.
    ContainerCrashed,
    /// The node has a taint that the policy's tolerations do not cover, so that operands are not scheduled on it.
    UntoleratedTaint,
    /// The node's container runtime does not support what the policy requests.
    RuntimeUnsupported,
    /// The container runtime has CDI disabled, or does not read the device plugin's CDI specifications, so no container can have a GPU.
    CdiDisabled,
    /// The container runtime does not start with NVIDIA's runtime in its configuration; the previous configuration was
    /// restored.
    RuntimeConfigRejected,
    /// The container runtime does not start.
    RuntimeDown,
    /// GPUs cannot be partitioned by MIG as requested because they are in use.
    MigBlocked,
    /// The GPU must be reset to enable or disable MIG.
    MigResetNeeded,
    /// GPUs of this node do not support the requested MIG layout.
    MigLayoutRefused,
    /// The device plugin in the policy does not work with the node's driver, or with another setting of the policy.
    DevicePluginUnsupported,
    /// The operand's pod cannot be scheduled on its node.
    PodUnschedulable,
    /// The API server rejects the operand's pods.
    PodsForbidden,
    /// More GPUs are allocatable than the node has, although the operator's device plugin serves it: another plugin offers them as well.
    TooManyGpus,
    /// Fewer GPUs than expected are on the PCI bus.
    GpuMissing,
    /// A GPU must not be used, as judged by the probe.
    GpuUnhealthy,
    /// The validation test failed, or could not be run.
    ValidationFailed,
    /// The phase has lasted longer than `readiness.progressDeadline`.
    ProgressDeadlineExceeded,

    // Policies and pools.
    /// No node matches the policy.
    NoMatchingNodes,
    /// No node matches the policy, whose `readiness.minReadyNodes` is 0.
    NoNodes,
    /// Fewer nodes than `readiness.minReadyNodes` are ready.
    NodesNotReady,
    /// Nodes are being updated to a new revision.
    RollingOut,
    /// A pool's rollout is halted after a failure.
    RolloutHalted,
    /// The nodes of a pool return, or have returned, to their previous revision after a failure.
    RolledBack,
    /// Enough nodes are ready.
    MinimumNodesReady,
    /// The policy is being deleted.
    Deleting,
    /// The operator was uninstalled. What runs on the nodes keeps running.
    OperatorUninstalled,
    /// Nothing is left to do.
    Settled,
    /// The device plugin was restarted because it withheld GPUs that had recovered.
    DevicePluginRestarted,
    /// After a reboot, all GPUs of the node are of other models than before.
    GpusReplaced,
    /// All GPUs are healthy.
    AllGpusHealthy,
    /// All settings of the policy are valid for its nodes.
    PolicyAccepted,
    /// A setting of the policy is invalid for its nodes; the message names the correction.
    InvalidPolicy,
    /// A write to the API server failed.
    ApplyFailed,
    /// A pool matches a model that neither the catalogue nor any node has.
    UnknownModel,
    /// No node reaches the pool: pools listed earlier match all of its nodes.
    PoolShadowed,
    /// A pool matches nodes by a label that the policy itself publishes.
    PoolMatchesOwnLabel,

    // Warnings about nodes that work.
    /// A GPU works but has a problem.
    GpuDegraded,
    /// The health of GPUs is unknown: the probe does not report, or could not query them recently.
    HealthUnknown,
    /// Another manager keeps changing what the operator writes.
    ManagerConflict,
    /// A label that the policy publishes already has a different value.
    LabelConflict,
    /// A label names a different model than the one on the PCI bus.
    LabelMismatch,
    /// GPUs are no longer partitioned by MIG as the policy requests, and pods use them.
    MigLayoutDiffers,
    /// There is no precompiled driver for the node's kernel; the driver is compiled on the node.
    PrecompiledImageMissing,
    /// The node has GPUs of several models.
    MixedModels,
    /// A third-party DaemonSet provides the same component as the operator, or allocates the same GPUs.
    StackConflict,
    /// Several policies select the node; the oldest governs it.
    PolicyOverlap,
    /// An annotation for the operator has an invalid value.
    InvalidAnnotation,
}

impl Reason {
    /// Returns the reason's name in status.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether the node cannot proceed until a user, or time, resolves a problem. Failures are Warning Events,
    /// halt the rollout of their pool and make the policy Stalled.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            Self::ProbeMissing
                | Self::GpuNodeUnreadable
                | Self::DriverInUse
                | Self::DriverDown
                | Self::DriverRootIncomplete
                | Self::DriverVersionMismatch
                | Self::RebootNeeded
                | Self::KernelHeadersUnavailable
                | Self::SecureBootRejectsModule
                | Self::DriverImageNotFound
                | Self::DownloadFailed
                | Self::ChecksumMissing
                | Self::ChecksumMismatch
                | Self::DriverNotLoaded
                | Self::DriverNotInstalled
                | Self::DriverLibraryNotFound
                | Self::GpuBoundToOtherDriver
                | Self::NvmlFailed
                | Self::FabricNotReady
                | Self::DeviceNodesMissing
                | Self::CudaInitFailed
                | Self::NoDriverImageForOS
                | Self::DriverUnsupported
                | Self::UnknownGpu
                | Self::ImagePullFailed
                | Self::ContainerCrashed
                | Self::UntoleratedTaint
                | Self::RuntimeUnsupported
                | Self::CdiDisabled
                | Self::RuntimeConfigRejected
                | Self::RuntimeDown
                | Self::MigBlocked
                | Self::MigResetNeeded
                | Self::MigLayoutRefused
                | Self::DevicePluginUnsupported
                | Self::PodUnschedulable
                | Self::PodsForbidden
                | Self::TooManyGpus
                | Self::GpuMissing
                | Self::GpuUnhealthy
                | Self::ValidationFailed
                | Self::ProgressDeadlineExceeded
                | Self::InvalidPolicy
                | Self::ApplyFailed
                | Self::RolloutHalted
                | Self::RolledBack
                | Self::UnknownModel
                | Self::PoolShadowed
                | Self::PoolMatchesOwnLabel
        )
    }

    /// Returns whether the Node itself is unavailable.
    pub fn is_away(self) -> bool {
        matches!(self, Self::NodeNotReady | Self::NodeDeleting)
    }

    /// Returns whether the node's GPUs are offered by other means, so that the node is excluded from readiness.
    pub fn counts_apart(self) -> bool {
        self == Self::ForeignDraDriver
    }

    /// Returns whether the progress deadline of the node is suspended: it is unavailable, excluded from readiness, or
    /// waiting for other nodes, for GPU pods, which have a timeout of their own, or for a short fixed time.
    pub fn stops_the_clock(self) -> bool {
        let waits_for_pods = matches!(self, Self::GpuPodsInUse | Self::EvictingPods | Self::EvictionBlocked);
        let waits = waits_for_pods || matches!(self, Self::RuntimeTurnPending | Self::ForeignDevicePlugin);
        self.is_away() || self.counts_apart() || waits
    }

    /// Returns whether the reason is a warning about a node that works.
    pub fn is_note(self) -> bool {
        matches!(
            self,
            Self::GpuMissing
                | Self::GpuUnhealthy
                | Self::GpuDegraded
                | Self::HealthUnknown
                | Self::ManagerConflict
                | Self::LabelConflict
                | Self::LabelMismatch
                | Self::MigLayoutDiffers
                | Self::PrecompiledImageMissing
                | Self::MixedModels
                | Self::StackConflict
                | Self::PolicyOverlap
                | Self::InvalidAnnotation
        )
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The conditions of a policy, as defined by kstatus where it defines them.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Enough nodes can run GPU pods.
    Ready,
    /// The operator is making changes that users should wait for. Never together with `Stalled`.
    Reconciling,
    /// The operator cannot proceed until a user, or time, resolves a problem.
    Stalled,
    /// GPUs have problems, or their health is unknown.
    Degraded,
    /// All settings of the policy are valid for its nodes.
    Accepted,
}

/// The conditions of a GpuNode, as defined by kstatus where it defines them.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeConditionType {
    /// GPU pods can be scheduled on the node.
    Ready,
    /// The node cannot proceed until a user, or time, resolves a problem.
    Stalled,
    /// The driver works.
    DriverReady,
    /// The container runtime can give GPUs to containers.
    ToolkitReady,
    /// All expected GPUs are allocatable.
    DevicePluginReady,
    /// No GPU has a problem that makes it unusable.
    Healthy,
}

impl NodeConditionType {
    /// Returns the condition's `type`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl ConditionType {
    /// Returns the condition's `type`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
