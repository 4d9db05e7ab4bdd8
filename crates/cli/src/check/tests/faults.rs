//! For each check, a fault that it finds.

use gpu_operator_crd::{ConditionType, Reason, keys, policy_status::Overlap};
use gpu_operator_plan::world::TaintFact;
use k8s_openapi::api::core::v1::{Event, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::cluster::{node, operator, third_party};
use crate::{
    check::{
        code::Check,
        facts::{Facts, Host, Webhook},
    },
    read::ReadError,
};

/// Changes facts so that a check does not pass.
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn cause(check: Check, facts: &mut Facts) {
    match check {
        Check::KubernetesVersion => facts.kubernetes = Ok("v1.31.9".to_owned()),
        Check::InstallRights => list(&mut facts.rights)[3].is_allowed = false,
        Check::AdmissionPolicyApi => {
            facts.admission = Err(ReadError::NotInstalled("validatingadmissionpolicies".to_owned()));
        }
        Check::SingleInstallation => list(&mut facts.operators).push(of(operator("other"))),
        Check::OperatorPlacement => {
            for host in list(&mut facts.nodes) {
                host.facts.taints = vec![TaintFact::from(&of::<Taint>(json!({"key": "gpu", "effect": "NoSchedule"})))];
            }
        }
        Check::KubeletSkew => host(facts).facts.kubelet = "v1.32.9".into(),
        Check::ContainerRuntime => host(facts).facts.runtime = "frakti://1".into(),
        Check::RuntimeCdi => host(facts).facts.runtime = "containerd://1.6.36".into(),
        Check::DriverImage => {
            let mut other = node("c", &json!({"kubernetes.io/os": "linux", keys::PRESENT: "true"}));
            other["status"]["nodeInfo"]["osImage"] = "Debian GNU/Linux 12 (bookworm)".into();
            list(&mut facts.nodes).push(Host::try_from(other).expect("a node"));
        }
        Check::PodSecurity => {
            let labels = [("pod-security.kubernetes.io/enforce".to_owned(), "baseline".to_owned())];
            facts.labels = Ok(Some(labels.into()));
        }
        Check::ComputeQuota => {
            let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "1Ti"}}});
            list(&mut facts.quotas).push(of(quota));
        }
        Check::PodQuota => {
            let status = json!({"hard": {"pods": "10"}, "used": {"pods": "10"}});
            list(&mut facts.quotas).push(of(json!({"metadata": {"name": "pods"}, "spec": {}, "status": status})));
        }
        Check::DefaultLimits => {
            let limits = json!([{"type": "Container", "default": {"memory": "512Mi"}}]);
            list(&mut facts.limits).push(of(json!({"metadata": {"name": "small"}, "spec": {"limits": limits}})));
        }
        Check::BlockingWebhooks => {
            let rule =
                json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
            let (name, rules) = ("ValidatingWebhookConfiguration scan (a.b.c)".to_owned(), vec![of(rule)]);
            list(&mut facts.webhooks).push(Webhook { name, rules, fails_closed: true, ..Webhook::default() });
        }
        Check::NvidiaOperator => {
            let pod = json!({"containers": [], "nodeSelector": {"nvidia.com/gpu.deploy.driver": "true"}});
            list(&mut facts.daemon_sets).push(third_party("nvidia-driver-daemonset", &pod));
        }
        Check::GkeAddOn => list(&mut facts.daemon_sets).push(third_party("nvidia-gpu-device-plugin", &plugin())),
        Check::DraDriver => {
            let volumes = json!([{"name": "r", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}]);
            let pod = json!({"containers": [{"name": "gpus"}], "volumes": volumes});
            list(&mut facts.daemon_sets).push(third_party("nvidia-dra-driver-gpu-kubelet-plugin", &pod));
        }
        Check::ThirdPartyStack => list(&mut facts.daemon_sets).push(third_party("nvidia-device-plugin-ds", &plugin())),
        Check::CrdsInstalled => drop(list(&mut facts.crds).pop()),
        Check::LeftoverCrds | Check::CrdSchema => drop_field(facts),
        Check::OperatorAvailable => list(&mut facts.operators)[0].status = None,
        Check::OperatorVersion => {
            let version = "app.kubernetes.io/version".to_owned();
            list(&mut facts.operators)[0].labels_mut().insert(version, "9.9.9".to_owned());
        }
        Check::ProbeVersion => {
            let report = status(facts).report.as_mut().expect("a report");
            report.probe_version = "0.0.1".to_owned();
        }
        Check::DetectorReady => set(facts, "nodestack-gpu-detector").number_ready -= 1,
        Check::ProbeReady => set(facts, "nodestack-nvml-probe").desired_number_scheduled -= 1,
        Check::PodsAdmitted => {
            set(facts, "nodestack-nvml-probe").current_number_scheduled -= 1;
            list(&mut facts.rejections).push(rejection("nodestack-nvml-probe"));
        }
        Check::ImagesPulled => {
            let state = json!({"waiting": {"reason": "ImagePullBackOff"}});
            let container = json!({
                "name": "c", "image": "nvcr.io/nvidia/driver:x", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            });
            let pod = json!({"metadata": {"name": "driver-x"}, "status": {"initContainerStatuses": [container]}});
            list(&mut facts.pending).push(of(pod));
        }
        Check::AdmissionPolicies => drop(list(&mut facts.bindings).pop()),
        Check::NodesReady => host(facts).facts.ready = false,
        Check::ProbesReport => status(facts).reason = Some(gpu_operator_crd::Open::Known(Reason::ProbeMissing)),
        Check::NodesWithoutPolicy => gpu_node(facts).spec.policy = None,
        Check::PoliciesAccepted => set_condition(facts, ConditionType::Accepted, "False"),
        Check::PoliciesProgress => set_condition(facts, ConditionType::Stalled, "True"),
        Check::PolicyOverlap => {
            let overlap = Overlap { policy: "other".into(), nodes: 2, governed_by: "all".into() };
            policy(facts).status.as_mut().expect("a status").overlaps.push(overlap);
        }
        Check::NodesProgress => {
            let status = status(facts);
            status.reason = Some(gpu_operator_crd::Open::Known(Reason::GpuBoundToOtherDriver));
            "the GPUs are bound to nouveau; blacklist it and reboot the node".clone_into(&mut status.message);
        }
        Check::RuntimeClasses => list(&mut facts.runtime_classes).clear(),
        Check::GpusHealthy => status(facts).gpus.unhealthy = 1,
    }
}

fn list<T>(read: &mut Result<T, ReadError>) -> &mut T {
    read.as_mut().expect("facts")
}

fn of<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn host(facts: &mut Facts) -> &mut Host {
    list(&mut facts.nodes).iter_mut().find(|host| host.name() == "a").expect("a node")
}

fn gpu_node(facts: &mut Facts) -> &mut gpu_operator_crd::GpuNode {
    &mut list(&mut facts.gpu_nodes).items[0]
}

fn status(facts: &mut Facts) -> &mut gpu_operator_crd::GpuNodeStatus {
    gpu_node(facts).status.as_mut().expect("a status")
}

fn policy(facts: &mut Facts) -> &mut gpu_operator_crd::ClusterGpuPolicy {
    &mut list(&mut facts.policies).items[0]
}

fn set_condition(facts: &mut Facts, kind: ConditionType, status: &str) {
    let kind: &str = kind.into();
    let conditions = &mut policy(facts).status.as_mut().expect("a status").conditions;
    let condition = conditions.iter_mut().find(|condition| condition.type_ == kind).expect("a condition");
    status.clone_into(&mut condition.status);
    "RolloutHalted".clone_into(&mut condition.reason);
    "pool h100: 1 node has failed; see kubectl describe gpunode a".clone_into(&mut condition.message);
}

fn set<'f>(facts: &'f mut Facts, name: &str) -> &'f mut k8s_openapi::api::apps::v1::DaemonSetStatus {
    let sets = list(&mut facts.daemon_sets).iter_mut();
    sets.filter(|set| set.name_any() == name).find_map(|set| set.status.as_mut()).expect("a status")
}

/// Removes a field from an installed CRD.
fn drop_field(facts: &mut Facts) {
    let crd = list(&mut facts.crds).iter_mut().find(|crd| crd.name_any().starts_with("gpunodes."));
    let version = &mut crd.expect("a CRD").spec.versions[0];
    let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()).expect("a schema");
    let spec = root.properties.as_mut().and_then(|of| of.get_mut("spec")).expect("a spec");
    spec.properties.as_mut().expect("fields").remove("driverRoot");
}

/// Returns the Event of a rejected pod of a DaemonSet.
pub fn rejection(set: &str) -> Event {
    of(json!({
        "metadata": {"name": "x"}, "reason": "FailedCreate",
        "involvedObject": {"kind": "DaemonSet", "name": set},
        "message": "Error creating: pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\"",
    }))
}

fn plugin() -> Value {
    let volumes = json!([{"name": "s", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}]);
    json!({"containers": [{"name": "c", "image": "mirror/plugin:1"}], "volumes": volumes})
}
