//! The list of all checks, from which `docs/reference/checks.md` is generated, too.

use crate::check::{
    cluster,
    facts::{Facts, Judged},
    installation, namespace,
};

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

#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name, which is stable.
    pub code: &'static str,
    pub title: &'static str,
    pub severity: Severity,
    pub stage: Stage,
    pub looks_at: &'static str,
    pub matters: &'static str,
    pub remedy: &'static str,
    pub(super) judge: for<'f> fn(&'f Facts) -> Judged<'f>,
}

impl Check {
    /// Returns whether it is made before the installation, or after it.
    pub fn applies(&self, before: bool) -> bool {
        self.stage == Stage::Always || (self.stage == Stage::Before) == before
    }
}

pub const CHECKS: [Check; 12] = [
    Check {
        code: "KubernetesVersion",
        title: "version of Kubernetes",
        severity: Severity::Error,
        stage: Stage::Before,
        looks_at: "The version of the API server.",
        matters: "The operator is tested with Kubernetes 1.32 and later; Helm does not install the chart on older clusters.",
        remedy: "Upgrade the control plane.",
        judge: cluster::kubernetes_version,
    },
    Check {
        code: "InstallRights",
        title: "rights to install the chart",
        severity: Severity::Error,
        stage: Stage::Before,
        looks_at: "Whether you may create the kinds of objects that the chart contains.",
        matters: "Helm stops at the first object that it may not create, and leaves a part of the release in the cluster.",
        remedy: "Install the chart as an administrator of the cluster.",
        judge: cluster::install_rights,
    },
    Check {
        code: "AdmissionPolicyApi",
        title: "API of admission policies",
        severity: Severity::Error,
        stage: Stage::Before,
        looks_at: "Whether the API server serves ValidatingAdmissionPolicies.",
        matters: "The chart restricts with them what the accounts of operator, probe and detector may write.",
        remedy: "Remove the setting of the API server that disables `admissionregistration.k8s.io/v1`.",
        judge: cluster::admission_policy_api,
    },
    Check {
        code: "ThirdPartyStack",
        title: "third-party GPU stacks",
        severity: Severity::Warning,
        stage: Stage::Before,
        looks_at: "DaemonSets of NVIDIA's GPU Operator, and others that reach a node and install a driver, a toolkit, a device plugin or a DRA \
                   driver.",
        matters: "Their nodes are left unchanged, unless the policy takes over. A Helm release of NVIDIA's GPU Operator must not be upgraded to \
                  this chart.",
        remedy: "Install this chart as a Helm release of its own, such as `nodestack`. To move nodes, follow [Coming from NVIDIA's GPU \
                 Operator](../guides/migration.md), [GKE](../start/gke.md) or [Coexistence with other GPU stacks](../guides/coexistence.md).",
        judge: cluster::third_party_stack,
    },
    Check {
        code: "PodSecurity",
        title: "Pod Security standard",
        severity: Severity::Error,
        stage: Stage::Before,
        looks_at: "The label `pod-security.kubernetes.io/enforce` of the operator's namespace.",
        matters: "The pods of driver, toolkit, device plugin and probe are privileged, which the standards `baseline` and `restricted` reject.",
        remedy: "Label the namespace with `pod-security.kubernetes.io/enforce=privileged`.",
        judge: namespace::pod_security,
    },
    Check {
        code: "ResourceQuota",
        title: "quotas of the namespace",
        severity: Severity::Error,
        stage: Stage::Before,
        looks_at: "ResourceQuotas of the operator's namespace that are used up, or that limit processor time or memory without a LimitRange that \
                   sets defaults.",
        matters: "Each node has a pod of the detector, and each node with GPUs about five more, most of them without such limits. The API server \
                  rejects them.",
        remedy: "Raise the quota to ten pods for each node, limit it to other pods by a scope, or add a LimitRange with defaults.",
        judge: namespace::resource_quota,
    },
    Check {
        code: "SingleInstallation",
        title: "one installation",
        severity: Severity::Error,
        stage: Stage::Always,
        looks_at: "Deployments of this operator in all namespaces.",
        matters: "Two operators revert each other's writes. One installation per cluster is supported.",
        remedy: "Uninstall all but one, or set `--operator-namespace` to the namespace of the existing one.",
        judge: installation::single_installation,
    },
    Check {
        code: "Crds",
        title: "CRDs",
        severity: Severity::Error,
        stage: Stage::Always,
        looks_at: "The two CRDs, which remain when the chart is uninstalled: their condition `Established`, their served version, and their schema \
                   revision. Before the installation they may be missing or older.",
        matters: "Without them there are no policies, and neither operator nor probes can store anything. The API server drops fields that its CRDs \
                  do not have.",
        remedy: "Update the CRDs before operator and probe: [Outdated CRDs](../operate/upgrade.md#outdated-crds).",
        judge: installation::crds,
    },
    Check {
        code: "OperatorReady",
        title: "operator",
        severity: Severity::Error,
        stage: Stage::After,
        looks_at: "The operator's Deployment, and whether a ready pod of it holds its Lease.",
        matters: "While no operator leads, existing GPU pods keep running, and no node makes progress.",
        remedy: "See the log and the Events of its pods.",
        judge: installation::operator_ready,
    },
    Check {
        code: "OperatorVersion",
        title: "version of the operator",
        severity: Severity::Warning,
        stage: Stage::After,
        looks_at: "The label `app.kubernetes.io/version` of the operator's Deployment, compared with the version of this program.",
        matters: "A program of another version may not show, or not understand, what the operator reports.",
        remedy: "Use the program of the operator's version.",
        judge: installation::operator_version,
    },
    Check {
        code: "DaemonSets",
        title: "detector and probe",
        severity: Severity::Error,
        stage: Stage::After,
        looks_at: "The DaemonSets `nodestack-gpu-detector` and `nodestack-nvml-probe`, and the number of nodes with the label \
                   `gpu.nodestack.dev/present=true`. Nodes that are not Ready do not count.",
        matters: "The detector finds the nodes that have GPUs. A node whose probe does not run makes no progress, and the health of its GPUs is \
                  unknown.",
        remedy: "See the Events of the DaemonSets and their pods, and the chart's values `nodeSelector`, `affinity` and `tolerations` of `detector` \
                 and `probe`.",
        judge: installation::daemon_sets,
    },
    Check {
        code: "AdmissionPolicies",
        title: "admission policies",
        severity: Severity::Error,
        stage: Stage::After,
        looks_at: "The ValidatingAdmissionPolicies that the operator's arguments name, and their bindings.",
        matters: "They restrict what the accounts of operator, probe and detector may write, for example if a node is compromised.",
        remedy: "Run `helm upgrade` with the chart and the values of this installation.",
        judge: installation::admission_policies,
    },
];
