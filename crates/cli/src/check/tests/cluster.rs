//! A healthy cluster, as its API server stores it.

use std::sync::LazyLock;

use gpu_operator_crd::crds;
use k8s_openapi::{
    api::apps::v1::DaemonSet, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde_json::{Value, json};
use test_api_server::Api;

use crate::{
    check::{facts::Facts, gather::gather},
    testing,
};

pub const NAMESPACE: &str = "gpu-operator";
const GPU_NODES: [&str; 2] = ["a", "b"];
const ADMISSION: [&str; 2] = ["nodestack-nvml-probe", "nodestack-gpu-operator-nodes"];

static CRDS: LazyLock<Vec<CustomResourceDefinition>> =
    LazyLock::new(|| crds().into_iter().map(|(_, crd)| crd).collect());

/// Reads what the checks are made from.
pub async fn facts(api: &Api, before: bool) -> Facts {
    gather(&api.client(), NAMESPACE, before).await.expect("facts")
}

/// Returns a cluster in which the chart is installed, with two nodes with GPUs that are ready.
pub fn healthy() -> Api {
    let api = empty();
    for name in GPU_NODES {
        let labels = json!({"kubernetes.io/os": "linux", "gpu.nodestack.dev/present": "true"});
        api.put(&format!("/api/v1/nodes/{name}"), node(name, &labels));
    }
    for crd in CRDS.iter() {
        let mut crd = crd.clone();
        let established = json!({"conditions": [
            {"type": "Established", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ], "storedVersions": ["v1alpha1"], "acceptedNames": {"kind": "X", "plural": "x"}});
        crd.status = Some(serde_json::from_value(established).expect("a status"));
        api.add(&crd);
    }
    api.put(&in_namespace("apis/apps/v1", "deployments", "nodestack-gpu-operator"), operator(NAMESPACE));
    for (name, app, nodes) in [("nodestack-gpu-detector", "gpu-detector", 3), ("nodestack-nvml-probe", "nvml-probe", 2)]
    {
        api.add(&daemon_set(name, app, nodes));
    }
    for name in ADMISSION {
        let meta = json!({"name": name});
        let group = "/apis/admissionregistration.k8s.io/v1";
        let binding = json!({"metadata": meta, "spec": {"policyName": name, "validationActions": ["Deny"]}});
        api.put(&format!("{group}/validatingadmissionpolicies/{name}"), json!({"metadata": meta, "spec": {}}));
        api.put(&format!("{group}/validatingadmissionpolicybindings/{name}"), binding);
    }
    let labels = json!({"app.kubernetes.io/name": "nodestack-gpu-operator"});
    for (name, ready) in [("operator-1", "False"), ("operator-2", "True")] {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let pod = json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}});
        api.put(&in_namespace("api/v1", "pods", name), pod);
    }
    let lease = json!({"metadata": {"name": "l", "labels": labels}, "spec": {"holderIdentity": "operator-2"}});
    api.put(&in_namespace("apis/coordination.k8s.io/v1", "leases", "l"), lease);
    api
}

/// Returns a cluster with one node of the control plane, in which the chart is not installed and can be.
pub fn empty() -> Api {
    let api = Api::new();
    api.answer_with("/version", testing::version("v1.36.3").to_string());
    let labels = json!({"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""});
    api.put("/api/v1/nodes/control", node("control", &labels));
    api.put(&format!("/api/v1/namespaces/{NAMESPACE}"), json!({"metadata": {"name": NAMESPACE, "labels": {}}}));
    review(&api, true);
    api
}

/// Sets whether the user has the rights to install the chart.
pub fn review(api: &Api, is_allowed: bool) {
    let answer = json!({"metadata": {}, "spec": {}, "status": {"allowed": is_allowed}});
    api.answer_with("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", answer.to_string());
}

/// Returns a Node that is Ready.
pub fn node(name: &str, labels: &Value) -> Value {
    let info = json!({
        "osImage": "Ubuntu 24.04.2 LTS", "containerRuntimeVersion": "containerd://2.1.4", "kubeletVersion": "v1.36.3",
        "kernelVersion": "6.8.0-60-generic", "architecture": "amd64", "bootID": "1",
    });
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    json!({"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info, "conditions": conditions}})
}

pub fn in_namespace(api: &str, plural: &str, name: &str) -> String {
    format!("/{api}/namespaces/{NAMESPACE}/{plural}/{name}")
}

pub fn operator(namespace: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": "nodestack-gpu-operator", "app.kubernetes.io/version": env!("CARGO_PKG_VERSION")});
    let arguments: Vec<&str> = ADMISSION.into_iter().flat_map(|name| ["--admission-policy", name]).collect();
    let pod = json!({"containers": [{"name": "gpu-operator", "args": arguments}]});
    json!({
        "metadata": {"name": "nodestack-gpu-operator", "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "selector": {}, "template": {"spec": pod}},
        "status": {"availableReplicas": 1},
    })
}

fn daemon_set(name: &str, app: &str, nodes: i32) -> DaemonSet {
    let pod = json!({"containers": [{"name": app, "image": format!("registry.example.com/{app}:1")}]});
    let set = json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": app}},
        "spec": {"selector": {}, "template": {"spec": pod}},
        "status": {
            "numberReady": nodes, "desiredNumberScheduled": nodes, "currentNumberScheduled": nodes, "numberMisscheduled": 0,
        },
    });
    serde_json::from_value(set).expect("a DaemonSet")
}
