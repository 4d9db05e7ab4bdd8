//! The vocabulary of status: phases, reasons and condition types. A reason is at once a condition's or node's
//! `reason`, the `reason` of an Event and a metric's label, so that one word can be looked up everywhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// How far a node is. Phases follow each other; a node that is held up stays in the phase that holds it.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
)]
pub enum Phase {
    /// No policy governs the node.
    #[default]
    Unmanaged,
    /// The node is known to have GPUs; its probe has not reported yet.
    Discovery,
    /// The driver is not proven yet.
    Driver,
    /// The driver works; the container toolkit is not in place yet.
    Toolkit,
    /// Driver and toolkit work; allocatable has not reached what is expected.
    DevicePlugin,
    /// All GPUs are allocatable; the validation that the policy asks for has not passed yet.
    Validation,
    /// The Node is Ready and its allocatable has reached what its hardware promises.
    Ready,
}

/// Why a node or policy is where it is.
#[derive(
    Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub enum Reason {
    // Well.
    /// Allocatable has reached what is expected.
    AllGpusAllocatable,
    /// Some of the node's GPUs are bound to `vfio-pci` for virtual machines and not counted; all others are allocatable.
    GpusPassedThrough,
    /// Ready at its present revision; its turn for a new one has not come.
    RolloutPending,
    /// Somebody else's device plugin offers the node's GPUs; ours is not placed.
    ForeignDevicePlugin,
    /// Somebody else installs more of the node's GPU stack than the device plugin; ours is not placed.
    ForeignStack,
    /// Somebody else's DRA driver hands out the node's GPUs by claims; no device plugin is placed.
    ForeignDraDriver,

    // On the way.
    /// No policy governs the node.
    NoPolicy,
    /// The node's label `gpu.nodestack.dev/managed` takes it out of every policy.
    OptedOut,
    /// The probe has not reported yet.
    WaitingForReport,
    /// The operand's pod is not there yet, or is starting.
    PodStarting,
    /// The driver's container is installing.
    DriverInstalling,
    /// The toolkit's installer is running.
    ToolkitInstalling,
    /// The container runtime is to be restarted, which is done on one node of a pool at a time.
    RuntimeTurnPending,
    /// NVIDIA's runtime was taken out of the container runtime's configuration and is entered again.
    RuntimeConfigDrifted,
    /// The device plugin runs; kubelet has not published its GPUs yet.
    WaitingForAllocatable,
    /// The validation's pod waits for a GPU, or tests it.
    Validating,
    /// A new revision waits until no pod uses a GPU of this node.
    GpuPodsInUse,
    /// The node's GPUs are being released before its driver moves.
    ReleasingGpus,

    // Held up by the node itself.
    /// The Node is not Ready.
    NodeNotReady,
    /// The Node is being deleted.
    NodeDeleting,

    // Failures.
    /// No probe pod of ours runs on the node, or it does not report.
    ProbeMissing,
    /// The loaded driver is in use, so another one cannot take its place.
    DriverInUse,
    /// The container that keeps the node's driver is not running, though its driver is loaded.
    DriverDown,
    /// The driver's root lacks its library or the device nodes that programs open.
    DriverRootIncomplete,
    /// The loaded kernel module is not of the wanted version.
    DriverVersionMismatch,
    /// The driver that is installed is another one than the one that is loaded; a reboot makes them one.
    RebootNeeded,
    /// The kernel headers that the driver is compiled against cannot be had.
    KernelHeadersUnavailable,
    /// There is no driver image of this name, for this operating system or kernel.
    DriverImageNotFound,
    /// The installing container cannot download what it needs.
    DownloadFailed,
    /// A driver is installed on the host but its kernel module is not loaded.
    DriverNotLoaded,
    /// No driver is installed on a node whose pool says Preinstalled.
    DriverNotInstalled,
    /// A kernel module is loaded that this operator has not installed, and its libraries are not found.
    DriverLibraryNotFound,
    /// The kernel's own driver for NVIDIA GPUs, nouveau, holds the GPUs.
    NouveauLoaded,
    /// The driver cannot be asked: NVML answers with an error.
    NvmlFailed,
    /// No driver image is published for the node's operating system.
    NoDriverImageForOS,
    /// The driver that the policy asks for does not support the model.
    DriverUnsupported,
    /// The catalogue does not know the node's GPU, so that no driver can be chosen for it.
    UnknownGpu,
    /// An image cannot be pulled.
    ImagePullFailed,
    /// A container of an operand crashes.
    ContainerCrashed,
    /// The node has a taint that the policy's tolerations leave out, so that no operand comes onto it.
    UntoleratedTaint,
    /// The node's container runtime cannot do what the policy asks of it.
    RuntimeUnsupported,
    /// The container runtime does not come back with NVIDIA's runtime in its configuration, and goes on without.
    RuntimeConfigRejected,
    /// The container runtime does not come back.
    RuntimeDown,
    /// GPUs cannot be divided by MIG as the policy wants, because somebody uses them.
    MigBlocked,
    /// MIG is turned on or off only by a reset of the GPU.
    MigResetNeeded,
    /// GPUs cannot be divided by MIG as the policy wants at all.
    MigLayoutRefused,
    /// The device plugin that the policy asks for cannot work with the node's driver, or with what else it asks for.
    DevicePluginUnsupported,
    /// The operand's pod cannot be scheduled onto its node.
    PodUnschedulable,
    /// The API server refuses the operand's pods.
    PodsForbidden,
    /// How many GPUs to expect is not known.
    ExpectedUnknown,
    /// The PCI bus shows fewer GPUs than are expected.
    GpuMissing,
    /// A GPU must not be used, by the probe's judgement.
    GpuUnhealthy,
    /// The validation's test has failed, or could not be run.
    ValidationFailed,
    /// The phase has lasted longer than `readiness.progressDeadline`.
    ProgressDeadlineExceeded,

    // Of a policy or a pool.
    /// No node matches the policy.
    NoMatchingNodes,
    /// Fewer nodes than `readiness.minReadyNodes` are ready.
    NodesNotReady,
    /// Nodes are being moved to a new revision.
    RollingOut,
    /// A pool's rollout stands still after a failure.
    RolloutHalted,
    /// Enough nodes are ready.
    MinimumNodesReady,
    /// The policy is being deleted.
    Deleting,
    /// Nothing is left to do.
    Settled,
    /// The device plugin withheld GPUs that are well again, and was started anew.
    DevicePluginRestarted,
    /// Nothing is wrong with any GPU.
    AllGpusHealthy,
    /// Every part of the policy can be carried out.
    PolicyAccepted,
    /// A part of the policy cannot be carried out; the message says what to write instead.
    InvalidPolicy,
    /// A write to the API server failed.
    ApplyFailed,
    /// A pool asks for a model that neither the catalogue nor any node knows.
    UnknownModel,
    /// Earlier pools take every node that a pool matches.
    PoolShadowed,
    /// A pool matches nodes by a label that the policy itself publishes.
    PoolMatchesOwnLabel,

    // Of a node that works, and yet worth a look.
    /// Something is wrong with a GPU that works.
    GpuDegraded,
    /// Nothing is known of the health of GPUs: the probe is silent, or they could not be asked lately.
    HealthUnknown,
    /// A key that the policy publishes carries another value already.
    LabelConflict,
    /// A label names another model than the one on the PCI bus.
    LabelMismatch,
    /// GPUs are not divided by MIG as the policy wants any more, and pods use them.
    MigLayoutDiffers,
    /// There is no precompiled driver for the node's kernel, so that it is compiled on the node.
    PrecompiledImageMissing,
    /// The node has GPUs of several models.
    MixedModels,
    /// Somebody else's DaemonSet does on the node what one of ours does, or hands out the same GPUs.
    StackConflict,
    /// Several policies select the node; the oldest has it.
    PolicyOverlap,
    /// An annotation of ours has a value that cannot be read.
    InvalidAnnotation,
}

impl Phase {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Reason {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a person, or time, has to mend something before the node goes on. Failures are Warning Events, halt
    /// their pool's rollout and make the policy Stalled.
    #[must_use]
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            Self::ProbeMissing
                | Self::DriverInUse
                | Self::DriverDown
                | Self::DriverRootIncomplete
                | Self::DriverVersionMismatch
                | Self::RebootNeeded
                | Self::KernelHeadersUnavailable
                | Self::DriverImageNotFound
                | Self::DownloadFailed
                | Self::DriverNotLoaded
                | Self::DriverNotInstalled
                | Self::DriverLibraryNotFound
                | Self::NouveauLoaded
                | Self::NvmlFailed
                | Self::NoDriverImageForOS
                | Self::DriverUnsupported
                | Self::UnknownGpu
                | Self::ImagePullFailed
                | Self::ContainerCrashed
                | Self::UntoleratedTaint
                | Self::RuntimeUnsupported
                | Self::RuntimeConfigRejected
                | Self::RuntimeDown
                | Self::MigBlocked
                | Self::MigResetNeeded
                | Self::MigLayoutRefused
                | Self::DevicePluginUnsupported
                | Self::PodUnschedulable
                | Self::PodsForbidden
                | Self::ExpectedUnknown
                | Self::GpuMissing
                | Self::GpuUnhealthy
                | Self::ValidationFailed
                | Self::ProgressDeadlineExceeded
                | Self::InvalidPolicy
                | Self::ApplyFailed
                | Self::RolloutHalted
                | Self::UnknownModel
                | Self::PoolShadowed
                | Self::PoolMatchesOwnLabel
        )
    }

    /// Whether the Node itself is not there to go on.
    #[must_use]
    pub fn is_away(self) -> bool {
        matches!(self, Self::NodeNotReady | Self::NodeDeleting)
    }

    /// Whether a node offers its GPUs another way, and so counts apart from those that are to be ready.
    #[must_use]
    pub fn counts_apart(self) -> bool {
        self == Self::ForeignDraDriver
    }

    /// Whether a node is held up by being away or by others, or not held up at all, so that no deadline of its own runs.
    #[must_use]
    pub fn stops_the_clock(self) -> bool {
        self.is_away() || self.counts_apart() || self == Self::RuntimeTurnPending
    }

    /// Whether it is said of a node that works, and is yet worth somebody's look.
    #[must_use]
    pub fn is_note(self) -> bool {
        matches!(
            self,
            Self::GpuMissing
                | Self::GpuUnhealthy
                | Self::GpuDegraded
                | Self::HealthUnknown
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

/// The conditions of a policy, with the meaning that kstatus gives them.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// Enough nodes can run GPU pods.
    Ready,
    /// The operator is still moving something.
    Reconciling,
    /// Something stands still until a person or time mends it.
    Stalled,
    /// Something is wrong with GPUs, or nothing is known of them.
    Degraded,
    /// Every part of the policy can be carried out.
    Accepted,
}

impl ConditionType {
    /// The word as it stands in a condition's `type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
