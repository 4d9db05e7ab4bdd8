//! The checks by code, with their categories, titles and severities.

use serde::Serialize;
use strum::{EnumIter, IntoStaticStr};

/// A check. The name of a variant is its code, which is stable.
#[derive(EnumIter, IntoStaticStr, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    // The cluster.
    KubernetesVersion,
    InstallRights,
    AdmissionPolicyApi,
    SingleInstallation,
    LeftoverCrds,
    OperatorPlacement,

    // Nodes.
    KubeletSkew,
    ContainerRuntime,
    RuntimeCdi,
    DriverImage,

    // The namespace of the operator.
    PodSecurity,
    ComputeQuota,
    PodQuota,
    DefaultLimits,
    BlockingWebhooks,

    // Third-party GPU stacks.
    NvidiaOperator,
    GkeAddOn,
    DraDriver,
    ThirdPartyStack,

    // The installation.
    CrdsInstalled,
    CrdSchema,
    OperatorAvailable,
    OperatorVersion,
    ProbeVersion,
    DetectorReady,
    ProbeReady,
    PodsAdmitted,
    ImagesPulled,
    AdmissionPolicies,

    // The fleet.
    NodesReady,
    ProbesReport,
    NodesWithoutPolicy,
    PoliciesAccepted,
    PoliciesProgress,
    PolicyOverlap,
    NodesProgress,
    RuntimeClasses,
    GpusHealthy,
}

/// A group of checks.
#[derive(clap::ValueEnum, EnumIter, IntoStaticStr, Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Category {
    /// The cluster, and the rights of the user.
    Cluster,
    /// The nodes that have GPUs.
    Nodes,
    /// The namespace of the operator.
    Namespace,
    /// Other GPU stacks.
    ThirdParty,
    /// The objects of the chart.
    Installation,
    /// Policies, GPU nodes and GPUs.
    Fleet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something does not work.
    Error,
    /// Something may not work as expected.
    Warning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Only before the installation.
    Before,
    /// Before and after the installation.
    Always,
    /// Only after the installation.
    After,
}

impl Category {
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Nodes => "Nodes",
            Self::Namespace => "Namespace of the operator",
            Self::ThirdParty => "Third-party GPU stacks",
            Self::Installation => "Installation",
            Self::Fleet => "Fleet",
        }
    }
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

struct Properties(Category, Severity, &'static str);

impl Check {
    pub fn code(self) -> &'static str {
        self.into()
    }

    pub fn category(self) -> Category {
        self.properties().0
    }

    pub fn severity(self) -> Severity {
        self.properties().1
    }

    pub fn title(self) -> &'static str {
        self.properties().2
    }

    pub fn stage(self) -> Stage {
        match (self, self.category()) {
            (Self::InstallRights | Self::LeftoverCrds | Self::OperatorPlacement, _) => Stage::Before,
            (_, Category::Installation | Category::Fleet) => Stage::After,
            (_, Category::Cluster | Category::Nodes | Category::Namespace | Category::ThirdParty) => Stage::Always,
        }
    }

    /// Returns whether it is made before the installation, or after it.
    pub fn applies(self, before: bool) -> bool {
        match self.stage() {
            Stage::Before => before,
            Stage::Always => true,
            Stage::After => !before,
        }
    }

    /// Returns the name of the page of the reference that explains it, without its suffix.
    pub fn page(self) -> &'static str {
        if self.stage() == Stage::After { "checks-installed" } else { "checks" }
    }

    /// Returns the title of this page, under which the check is listed by its code.
    pub fn page_title(self) -> &'static str {
        if self.stage() == Stage::After { "Checks of the installation" } else { "Checks before the installation" }
    }

    fn properties(self) -> Properties {
        use Category::{Cluster, Fleet, Installation, Namespace, Nodes, ThirdParty};
        use Severity::{Error, Warning};
        match self {
            Self::KubernetesVersion => Properties(Cluster, Error, "version of Kubernetes"),
            Self::InstallRights => Properties(Cluster, Error, "rights to install the chart"),
            Self::AdmissionPolicyApi => Properties(Cluster, Error, "API of admission policies"),
            Self::SingleInstallation => Properties(Cluster, Error, "one installation"),
            Self::LeftoverCrds => Properties(Cluster, Warning, "CRDs of another version"),
            Self::OperatorPlacement => Properties(Cluster, Warning, "a node for the operator"),
            Self::KubeletSkew => Properties(Nodes, Warning, "versions of kubelets"),
            Self::ContainerRuntime => Properties(Nodes, Warning, "container runtimes"),
            Self::RuntimeCdi => Properties(Nodes, Warning, "CDI in container runtimes"),
            Self::DriverImage => Properties(Nodes, Warning, "driver images for the operating systems"),
            Self::PodSecurity => Properties(Namespace, Error, "Pod Security standard"),
            Self::ComputeQuota => Properties(Namespace, Error, "quotas of processor time and memory"),
            Self::PodQuota => Properties(Namespace, Error, "quotas of pods"),
            Self::DefaultLimits => Properties(Namespace, Warning, "default limits of containers"),
            Self::BlockingWebhooks => Properties(Namespace, Warning, "webhooks that can block pods"),
            Self::NvidiaOperator => Properties(ThirdParty, Warning, "NVIDIA's GPU Operator"),
            Self::GkeAddOn => Properties(ThirdParty, Warning, "GKE's GPU add-on"),
            Self::DraDriver => Properties(ThirdParty, Warning, "DRA driver"),
            Self::ThirdPartyStack => Properties(ThirdParty, Warning, "other drivers and device plugins"),
            Self::CrdsInstalled => Properties(Installation, Error, "CRDs"),
            Self::CrdSchema => Properties(Installation, Warning, "fields of the CRDs"),
            Self::OperatorAvailable => Properties(Installation, Error, "operator"),
            Self::OperatorVersion => Properties(Installation, Warning, "version of the operator"),
            Self::ProbeVersion => Properties(Installation, Warning, "versions of probes"),
            Self::DetectorReady => Properties(Installation, Error, "detector"),
            Self::ProbeReady => Properties(Installation, Error, "probe"),
            Self::PodsAdmitted => Properties(Installation, Error, "admission of pods"),
            Self::ImagesPulled => Properties(Installation, Error, "images"),
            Self::AdmissionPolicies => Properties(Installation, Error, "admission policies"),
            Self::NodesReady => Properties(Fleet, Warning, "nodes with GPUs"),
            Self::ProbesReport => Properties(Fleet, Error, "reports of probes"),
            Self::NodesWithoutPolicy => Properties(Fleet, Warning, "nodes without a policy"),
            Self::PoliciesAccepted => Properties(Fleet, Error, "settings of policies"),
            Self::PoliciesProgress => Properties(Fleet, Error, "progress of policies"),
            Self::PolicyOverlap => Properties(Fleet, Warning, "overlapping policies"),
            Self::NodesProgress => Properties(Fleet, Error, "progress of nodes"),
            Self::RuntimeClasses => Properties(Fleet, Error, "RuntimeClasses"),
            Self::GpusHealthy => Properties(Fleet, Warning, "health of GPUs"),
        }
    }
}
