//! The explanations of all reasons: the source of the lists in the reference, and of `explain`.

mod driver;
mod entry;
mod failure;
mod node;
mod pod;
mod policy;
mod warning;

use gpu_operator_crd::Reason;
use gpu_operator_diagnose::Mistake;
use strum::IntoEnumIterator;

pub use entry::{Entry, List, plain};

/// A reason of a status, or a finding about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The reason of a node, a policy or a pool.
    Status(Reason),
    /// What is wrong with a pod.
    Pod(Mistake),
}

impl Topic {
    pub fn all() -> impl Iterator<Item = Self> {
        Reason::iter().map(Self::Status).chain(Mistake::iter().map(Self::Pod))
    }

    /// Returns the name, such as `DriverInUse`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status(reason) => reason.as_str(),
            Self::Pod(mistake) => mistake.as_str(),
        }
    }

    /// Returns the topic of a name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|topic| topic.name().eq_ignore_ascii_case(name))
    }

    /// Returns the explanations.
    pub fn entries(self) -> &'static [Entry] {
        match self {
            Self::Status(reason) => of_status(reason),
            Self::Pod(mistake) => std::slice::from_ref(of_pod(mistake)),
        }
    }

    /// Returns the conditions that have the reason, or the type of its Event, as the reference shows them.
    pub fn context(self, entry: &Entry) -> &'static str {
        match self {
            Self::Status(_) => entry.condition,
            Self::Pod(mistake) if mistake.is_warning() => "Warning",
            Self::Pod(_) => "Normal",
        }
    }
}

/// Returns the explanations of a reason.
#[expect(clippy::too_many_lines, reason = "one line for each reason")]
fn of_status(reason: Reason) -> &'static [Entry] {
    match reason {
        Reason::AllGpusAllocatable => &[node::ALL_GPUS_ALLOCATABLE],
        Reason::GpusPassedThrough => &[node::GPUS_PASSED_THROUGH],
        Reason::RolloutPending => &[node::ROLLOUT_PENDING],
        Reason::ForeignDevicePlugin => &[node::FOREIGN_DEVICE_PLUGIN],
        Reason::ForeignStack => &[node::FOREIGN_STACK],
        Reason::ForeignDraDriver => &[node::FOREIGN_DRA_DRIVER],
        Reason::NoPolicy => &[node::NO_POLICY],
        Reason::OptedOut => &[node::OPTED_OUT],
        Reason::Leaving => &[node::LEAVING],
        Reason::WaitingForReport => &[node::WAITING_FOR_REPORT],
        Reason::PodStarting => &[node::POD_STARTING],
        Reason::DriverInstalling => &[node::DRIVER_INSTALLING],
        Reason::ToolkitInstalling => &[node::TOOLKIT_INSTALLING],
        Reason::RuntimeTurnPending => &[node::RUNTIME_TURN_PENDING],
        Reason::RuntimeConfigDrifted => &[node::RUNTIME_CONFIG_DRIFTED],
        Reason::WaitingForAllocatable => &[node::WAITING_FOR_ALLOCATABLE],
        Reason::Validating => &[node::VALIDATING],
        Reason::GpuPodsInUse => &[node::GPU_PODS_IN_USE],
        Reason::EvictingPods => &[node::EVICTING_PODS],
        Reason::EvictionBlocked => &[node::EVICTION_BLOCKED],
        Reason::GpusHeld => &[node::GPUS_HELD],
        Reason::ReleasingGpus => &[node::RELEASING_GPUS],
        Reason::NodeNotReady => &[node::NODE_NOT_READY],
        Reason::NodeDeleting => &[node::NODE_DELETING],
        Reason::StagePending => &[warning::STAGE_PENDING],
        Reason::StageProven => &[warning::STAGE_PROVEN],
        Reason::ProbeMissing => &[failure::PROBE_MISSING],
        Reason::GpuNodeUnreadable => &[failure::GPU_NODE_UNREADABLE],
        Reason::DriverInUse => &[driver::DRIVER_IN_USE],
        Reason::DriverDown => &[driver::DRIVER_DOWN],
        Reason::DriverRootIncomplete => &[driver::DRIVER_ROOT_INCOMPLETE],
        Reason::DriverVersionMismatch => &[driver::DRIVER_VERSION_MISMATCH],
        Reason::RebootNeeded => &[driver::REBOOT_NEEDED],
        Reason::KernelHeadersUnavailable => &[driver::KERNEL_HEADERS_UNAVAILABLE],
        Reason::DriverImageNotFound => &[driver::DRIVER_IMAGE_NOT_FOUND],
        Reason::DownloadFailed => &[driver::DOWNLOAD_FAILED],
        Reason::ChecksumMissing => &[driver::CHECKSUM_MISSING],
        Reason::ChecksumMismatch => &[driver::CHECKSUM_MISMATCH],
        Reason::DriverNotLoaded => &[driver::DRIVER_NOT_LOADED],
        Reason::DriverNotInstalled => &[driver::DRIVER_NOT_INSTALLED],
        Reason::DriverLibraryNotFound => &[driver::DRIVER_LIBRARY_NOT_FOUND],
        Reason::NouveauLoaded => &[driver::NOUVEAU_LOADED],
        Reason::NvmlFailed => &[driver::NVML_FAILED],
        Reason::NoDriverImageForOS => &[driver::NO_DRIVER_IMAGE_FOR_OS],
        Reason::DriverUnsupported => &[driver::DRIVER_UNSUPPORTED],
        Reason::UnknownGpu => &[driver::UNKNOWN_GPU],
        Reason::ImagePullFailed => &[failure::IMAGE_PULL_FAILED],
        Reason::ContainerCrashed => &[failure::CONTAINER_CRASHED],
        Reason::UntoleratedTaint => &[failure::UNTOLERATED_TAINT],
        Reason::RuntimeUnsupported => &[failure::RUNTIME_UNSUPPORTED],
        Reason::RuntimeConfigRejected => &[failure::RUNTIME_CONFIG_REJECTED],
        Reason::RuntimeDown => &[failure::RUNTIME_DOWN],
        Reason::MigBlocked => &[failure::MIG_BLOCKED],
        Reason::MigResetNeeded => &[failure::MIG_RESET_NEEDED],
        Reason::MigLayoutRefused => &[failure::MIG_LAYOUT_REFUSED],
        Reason::DevicePluginUnsupported => &[failure::DEVICE_PLUGIN_UNSUPPORTED],
        Reason::PodUnschedulable => &[failure::POD_UNSCHEDULABLE],
        Reason::PodsForbidden => &[failure::PODS_FORBIDDEN],
        Reason::GpuMissing => &[failure::GPU_MISSING],
        Reason::GpuUnhealthy => &[failure::GPU_UNHEALTHY],
        Reason::ValidationFailed => &[failure::VALIDATION_FAILED],
        Reason::ProgressDeadlineExceeded => &[failure::PROGRESS_DEADLINE_EXCEEDED],
        Reason::NoMatchingNodes => &[policy::NO_MATCHING_NODES],
        Reason::NoNodes => &[policy::NO_NODES],
        Reason::NodesNotReady => &[policy::NODES_NOT_READY],
        Reason::RollingOut => &[policy::ROLLING_OUT],
        Reason::RolloutHalted => &[policy::ROLLOUT_HALTED],
        Reason::RolledBack => &[policy::ROLLED_BACK],
        Reason::MinimumNodesReady => &[policy::MINIMUM_NODES_READY],
        Reason::Deleting => &[policy::DELETING],
        Reason::OperatorUninstalled => &[policy::OPERATOR_UNINSTALLED],
        Reason::Settled => &[policy::SETTLED],
        Reason::DevicePluginRestarted => &[policy::DEVICE_PLUGIN_RESTARTED],
        Reason::GpusReplaced => &[policy::GPUS_REPLACED],
        Reason::CrdsOutdated => &[policy::CRDS_OUTDATED],
        Reason::CrdsNewer => &[policy::CRDS_NEWER],
        Reason::AllGpusHealthy => &[policy::ALL_GPUS_HEALTHY],
        Reason::PolicyAccepted => &[policy::POLICY_ACCEPTED],
        Reason::InvalidPolicy => &[policy::INVALID_POLICY],
        Reason::ApplyFailed => &[policy::APPLY_FAILED],
        Reason::UnknownModel => &[policy::UNKNOWN_MODEL],
        Reason::PoolShadowed => &[policy::POOL_SHADOWED],
        Reason::PoolMatchesOwnLabel => &[policy::POOL_MATCHES_OWN_LABEL],
        Reason::GpuDegraded => &[warning::GPU_DEGRADED],
        Reason::HealthUnknown => &[warning::HEALTH_UNKNOWN],
        Reason::ManagerConflict => &[warning::MANAGER_CONFLICT, policy::MANAGER_CONFLICT],
        Reason::LabelConflict => &[warning::LABEL_CONFLICT],
        Reason::LabelMismatch => &[warning::LABEL_MISMATCH],
        Reason::MigLayoutDiffers => &[warning::MIG_LAYOUT_DIFFERS],
        Reason::PrecompiledImageMissing => &[warning::PRECOMPILED_IMAGE_MISSING],
        Reason::MixedModels => &[warning::MIXED_MODELS],
        Reason::StackConflict => &[warning::STACK_CONFLICT],
        Reason::PolicyOverlap => &[warning::POLICY_OVERLAP, policy::POLICY_OVERLAP],
        Reason::InvalidAnnotation => &[warning::INVALID_ANNOTATION],
    }
}

/// Returns the explanation of a finding.
fn of_pod(mistake: Mistake) -> &'static Entry {
    match mistake {
        Mistake::LegacyGpuResource => &pod::LEGACY_GPU_RESOURCE,
        Mistake::HostDriverMounted => &pod::HOST_DRIVER_MOUNTED,
        Mistake::GpuNotRequested => &pod::GPU_NOT_REQUESTED,
        Mistake::GpuRequestWithoutLimit => &pod::GPU_REQUEST_WITHOUT_LIMIT,
        Mistake::RuntimeClassMissing => &pod::RUNTIME_CLASS_MISSING,
        Mistake::RuntimeClassNotNamed => &pod::RUNTIME_CLASS_NOT_NAMED,
        Mistake::RuntimeHandlerMissing => &pod::RUNTIME_HANDLER_MISSING,
        Mistake::CudaTooNew => &pod::CUDA_TOO_NEW,
        Mistake::NoNodeFits => &pod::NO_NODE_FITS,
        Mistake::GpuNodesNotReady => &pod::GPU_NODES_NOT_READY,
    }
}
