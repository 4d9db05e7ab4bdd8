//! Makes a check from facts.

use crate::check::{
    cluster, code::Check, facts::Facts, fleet, installation, judgement::Judged, namespace, nodes, third_party,
};

/// Returns the result of a check.
pub fn judge(check: Check, facts: &Facts) -> Judged<'_> {
    match check {
        Check::KubernetesVersion => cluster::kubernetes_version(facts),
        Check::InstallRights => cluster::install_rights(facts),
        Check::AdmissionPolicyApi => cluster::admission_policy_api(facts),
        Check::SingleInstallation => cluster::single_installation(facts),
        Check::LeftoverCrds => cluster::leftover_crds(facts),
        Check::OperatorPlacement => cluster::operator_placement(facts),
        Check::KubeletSkew => nodes::kubelet_skew(facts),
        Check::ContainerRuntime => nodes::container_runtime(facts),
        Check::RuntimeCdi => nodes::runtime_cdi(facts),
        Check::DriverImage => nodes::driver_image(facts),
        Check::PodSecurity => namespace::pod_security(facts),
        Check::ComputeQuota => namespace::compute_quota(facts),
        Check::PodQuota => namespace::pod_quota(facts),
        Check::DefaultLimits => namespace::default_limits(facts),
        Check::BlockingWebhooks => namespace::blocking_webhooks(facts),
        Check::NvidiaOperator => third_party::nvidia_operator(facts),
        Check::GkeAddOn => third_party::gke_add_on(facts),
        Check::DraDriver => third_party::dra_driver(facts),
        Check::ThirdPartyStack => third_party::third_party_stack(facts),
        Check::CrdsInstalled => installation::crds_installed(facts),
        Check::CrdSchema => installation::crd_schema(facts),
        Check::OperatorAvailable => installation::operator_available(facts),
        Check::OperatorVersion => installation::operator_version(facts),
        Check::ProbeVersion => installation::probe_version(facts),
        Check::DetectorReady => installation::detector_ready(facts),
        Check::ProbeReady => installation::probe_ready(facts),
        Check::PodsAdmitted => installation::pods_admitted(facts),
        Check::ImagesPulled => installation::images_pulled(facts),
        Check::AdmissionPolicies => installation::admission_policies(facts),
        Check::NodesReady => fleet::nodes_ready(facts),
        Check::ProbesReport => fleet::probes_report(facts),
        Check::NodesWithoutPolicy => fleet::nodes_without_policy(facts),
        Check::PoliciesAccepted => fleet::policies_accepted(facts),
        Check::PoliciesProgress => fleet::policies_progress(facts),
        Check::PolicyOverlap => fleet::policy_overlap(facts),
        Check::NodesProgress => fleet::nodes_progress(facts),
        Check::RuntimeClasses => fleet::runtime_classes(facts),
        Check::GpusHealthy => fleet::gpus_healthy(facts),
    }
}
