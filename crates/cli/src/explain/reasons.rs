//! The explanations of all reasons: the source of the lists in the reference, and of `explain`.

mod entry;
mod failure;
mod node;
mod policy;

use gpu_operator_crd::Reason;
use gpu_operator_diagnose::Mistake;
use serde::Serialize;
use strum::IntoEnumIterator;

use crate::output::{Screen, Tone, wrap};

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
        Reason::FabricStarting => &[node::FABRIC_STARTING],
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
        Reason::StagePending => &[node::STAGE_PENDING],
        Reason::StageProven => &[node::STAGE_PROVEN],
        Reason::ProbeMissing => &[failure::PROBE_MISSING],
        Reason::GpuNodeUnreadable => &[failure::GPU_NODE_UNREADABLE],
        Reason::DriverInUse => &[failure::DRIVER_IN_USE],
        Reason::DriverDown => &[failure::DRIVER_DOWN],
        Reason::DriverRootIncomplete => &[failure::DRIVER_ROOT_INCOMPLETE],
        Reason::DriverVersionMismatch => &[failure::DRIVER_VERSION_MISMATCH],
        Reason::RebootNeeded => &[failure::REBOOT_NEEDED],
        Reason::KernelHeadersUnavailable => &[failure::KERNEL_HEADERS_UNAVAILABLE],
        Reason::SecureBootRejectsModule => &[failure::SECURE_BOOT_REJECTS_MODULE],
        Reason::DriverImageNotFound => &[failure::DRIVER_IMAGE_NOT_FOUND],
        Reason::DownloadFailed => &[failure::DOWNLOAD_FAILED],
        Reason::ChecksumMissing => &[failure::CHECKSUM_MISSING],
        Reason::ChecksumMismatch => &[failure::CHECKSUM_MISMATCH],
        Reason::DriverNotLoaded => &[failure::DRIVER_NOT_LOADED],
        Reason::DriverNotInstalled => &[failure::DRIVER_NOT_INSTALLED],
        Reason::DriverLibraryNotFound => &[failure::DRIVER_LIBRARY_NOT_FOUND],
        Reason::GpuBoundToOtherDriver => &[failure::GPU_BOUND_TO_OTHER_DRIVER],
        Reason::NvmlFailed => &[failure::NVML_FAILED],
        Reason::FabricNotReady => &[failure::FABRIC_NOT_READY],
        Reason::DeviceNodesMissing => &[failure::DEVICE_NODES_MISSING],
        Reason::CudaInitFailed => &[failure::CUDA_INIT_FAILED],
        Reason::NoDriverImageForOS => &[failure::NO_DRIVER_IMAGE_FOR_OS],
        Reason::DriverUnsupported => &[failure::DRIVER_UNSUPPORTED],
        Reason::UnknownGpu => &[failure::UNKNOWN_GPU],
        Reason::ImagePullFailed => &[failure::IMAGE_PULL_FAILED],
        Reason::ContainerCrashed => &[failure::CONTAINER_CRASHED],
        Reason::UntoleratedTaint => &[failure::UNTOLERATED_TAINT],
        Reason::RuntimeUnsupported => &[failure::RUNTIME_UNSUPPORTED],
        Reason::CdiDisabled => &[failure::CDI_DISABLED],
        Reason::RuntimeConfigRejected => &[failure::RUNTIME_CONFIG_REJECTED],
        Reason::RuntimeDown => &[failure::RUNTIME_DOWN],
        Reason::MigBlocked => &[failure::MIG_BLOCKED],
        Reason::MigResetNeeded => &[failure::MIG_RESET_NEEDED],
        Reason::MigLayoutRefused => &[failure::MIG_LAYOUT_REFUSED],
        Reason::DevicePluginUnsupported => &[failure::DEVICE_PLUGIN_UNSUPPORTED],
        Reason::PodUnschedulable => &[failure::POD_UNSCHEDULABLE],
        Reason::PodsForbidden => &[failure::PODS_FORBIDDEN],
        Reason::TooManyGpus => &[failure::TOO_MANY_GPUS],
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
        Reason::AllGpusHealthy => &[policy::ALL_GPUS_HEALTHY],
        Reason::PolicyAccepted => &[policy::POLICY_ACCEPTED],
        Reason::InvalidPolicy => &[policy::INVALID_POLICY],
        Reason::ApplyFailed => &[policy::APPLY_FAILED],
        Reason::UnknownModel => &[policy::UNKNOWN_MODEL],
        Reason::PoolShadowed => &[policy::POOL_SHADOWED],
        Reason::PoolMatchesOwnLabel => &[policy::POOL_MATCHES_OWN_LABEL],
        Reason::GpuDegraded => &[node::GPU_DEGRADED],
        Reason::HealthUnknown => &[node::HEALTH_UNKNOWN],
        Reason::ManagerConflict => &[node::MANAGER_CONFLICT, policy::MANAGER_CONFLICT],
        Reason::LabelConflict => &[node::LABEL_CONFLICT],
        Reason::LabelMismatch => &[node::LABEL_MISMATCH],
        Reason::MigLayoutDiffers => &[node::MIG_LAYOUT_DIFFERS],
        Reason::PrecompiledImageMissing => &[node::PRECOMPILED_IMAGE_MISSING],
        Reason::MixedModels => &[node::MIXED_MODELS],
        Reason::StackConflict => &[node::STACK_CONFLICT],
        Reason::PolicyOverlap => &[node::POLICY_OVERLAP, policy::POLICY_OVERLAP],
        Reason::InvalidAnnotation => &[node::INVALID_ANNOTATION],
    }
}

/// Returns the explanation of a finding.
fn of_pod(mistake: Mistake) -> &'static Entry {
    match mistake {
        Mistake::LegacyGpuResource => &policy::LEGACY_GPU_RESOURCE,
        Mistake::HostDriverMounted => &policy::HOST_DRIVER_MOUNTED,
        Mistake::GpuNotRequested => &policy::GPU_NOT_REQUESTED,
        Mistake::RuntimeClassNotNamed => &policy::RUNTIME_CLASS_NOT_NAMED,
        Mistake::RuntimeHandlerMissing => &policy::RUNTIME_HANDLER_MISSING,
        Mistake::CudaTooNew => &policy::CUDA_TOO_NEW,
        Mistake::NoNodeFits => &policy::NO_NODE_FITS,
        Mistake::GpuNodesNotReady => &policy::GPU_NODES_NOT_READY,
    }
}

/// The explanation of a reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonReport {
    pub reason: &'static str,
    /// What it means: one entry for each kind of objects that have it.
    pub meanings: Vec<Meaning>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meaning {
    /// What the reason is, such as `a failure of a node`.
    pub kind: &'static str,
    /// The conditions that have it, or the type of its Event.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub context: &'static str,
    pub text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// The title of the page of the documentation that lists it.
    pub page: &'static str,
}

/// Returns the explanation of a reason.
pub fn report(topic: Topic) -> ReasonReport {
    let meanings = topic.entries().iter().map(|entry| Meaning {
        kind: entry.list.title(),
        context: topic.context(entry),
        text: plain(entry.meaning),
        action: plain(entry.action),
        page: entry.list.page(),
    });
    ReasonReport { reason: topic.name(), meanings: meanings.collect() }
}

/// Returns an explanation as text.
pub fn text(report: &ReasonReport, screen: Screen) -> String {
    let mut lines = Vec::new();
    for Meaning { kind, context, text, action, page } in &report.meanings {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let context = if context.is_empty() { String::new() } else { format!(" ({context})") };
        let title = screen.paint(Tone::Strong, report.reason);
        lines.extend(wrap(&format!("{title}: {kind}{context}"), "", 2));
        lines.extend(wrap(text, "  ", 2));
        lines.push(String::new());
        let action = if action.is_empty() { "Nothing." } else { action };
        lines.extend(wrap(action, "Do: ", 4));
        lines.push(format!("See: {page}"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::Reason;
    use gpu_operator_diagnose::Mistake;

    use super::*;
    use crate::output::{WIDTH, columns};

    #[test]
    fn every_reason_is_explained_in_short_lines_without_links() {
        for topic in Topic::all() {
            let text = text(&report(topic), Screen::default());
            assert!(!text.contains("]("), "{text}");
            assert!(text.lines().count() >= 4 && text.contains("\nDo: ") && text.contains("\nSee: "), "{text}");
            // Who has the program need not have a checkout.
            assert!(!text.contains("docs/") && !text.contains(".md"), "{text}");
            let long = |line: &&str| columns(line) > WIDTH && line.trim_start().contains(' ');
            assert_eq!(text.lines().find(long), None, "{text}");
        }
    }

    #[test]
    fn a_reason_of_nodes_and_policies_has_both_meanings() {
        let print = |topic| text(&report(topic), Screen::default());
        insta::assert_snapshot!(print(Topic::Status(Reason::PolicyOverlap)));
        insta::assert_snapshot!(print(Topic::Status(Reason::DriverInUse)));
        insta::assert_snapshot!(print(Topic::Pod(Mistake::CudaTooNew)));
    }
}
