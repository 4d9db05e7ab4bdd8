//! The objects of the cluster, each generated when it is sent.

use serde_json::{Value, json};

/// The number of running pods, and of DaemonSets, whose annotations make them as large as etcd accepts.
const LARGE: usize = 100;
/// The size of an object that etcd accepts by default.
const MAX_OBJECT: usize = 1_500_000;
/// The number of pending pods that request GPUs.
const PENDING: usize = 2000;
/// One of so many pending pods has more than the operator keeps of a pod …
const LARGE_FACTS: usize = 4;
/// … and one of so many has as many elements as fit into an object.
const MANY_ELEMENTS: usize = 100;
/// The number of tolerations of the others, which the operator just keeps.
const MAX_TOLERATIONS: usize = 62;
/// The number of rejections of pods, with strings as long as etcd accepts.
const REJECTIONS: usize = 100;

/// The number of pods that the operator keeps.
pub const KEPT: usize = PENDING - PENDING / LARGE_FACTS;

/// A collection: how many objects it has, and how each is generated.
pub type Collection = (usize, fn(usize) -> Value);

/// Returns the objects of a list or of a watch without a version.
pub fn of(path: &str, query: &str) -> Collection {
    match path {
        "/api/v1/nodes" => (1, |_| node()),
        "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies" => (1, |_| policy()),
        "/apis/apps/v1/daemonsets" => (LARGE, daemon_set),
        "/api/v1/pods" if query.contains("status.phase%3DPending") => (PENDING, pending_pod),
        "/api/v1/pods" => (LARGE + PENDING, |number| match number.checked_sub(LARGE) {
            Some(number) => pending_pod(number),
            None => running_pod(number),
        }),
        "/api/v1/events" if query.contains("FailedCreate") => (REJECTIONS, rejection),
        "/api/v1/namespaces/team/events" => (REJECTIONS, event_of_pod),
        _ => (0, |_| Value::Null),
    }
}

fn metadata(kind: &str, number: usize) -> Value {
    let name = format!("{kind}-{number:05}");
    json!({
        "name": name, "namespace": "team", "uid": name, "resourceVersion": (number + 1).to_string(),
        "creationTimestamp": "2020-01-01T00:00:00Z",
    })
}

fn with_annotations(mut metadata: Value) -> Value {
    metadata["annotations"] = json!({"filler": "x".repeat(MAX_OBJECT)});
    metadata
}

fn node() -> Value {
    json!({
        "metadata": {"name": "node", "uid": "node", "resourceVersion": "1", "labels": {"kubernetes.io/os": "linux"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {}},
    })
}

pub fn policy() -> Value {
    json!({"metadata": {"name": "all", "uid": "all", "resourceVersion": "1"}, "spec": {}})
}

fn daemon_set(number: usize) -> Value {
    let labels = json!({"app": "nvidia-driver-installer"});
    json!({
        "metadata": with_annotations(metadata("nvidia-driver-installer", number)),
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}},
    })
}

fn running_pod(number: usize) -> Value {
    json!({
        "metadata": with_annotations(metadata("running", number)),
        "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "image"}]},
        "status": {"phase": "Running"},
    })
}

/// Returns a pod with a mistake, for which no node fits.
fn pending_pod(number: usize) -> Value {
    let limits = json!({"limits": {"nvidia.com/gpu": "8", "alpha.kubernetes.io/nvidia-gpu": "1"}});
    let mut spec = json!({"containers": [{"name": "main", "image": "image", "resources": limits}]});
    if number.is_multiple_of(MANY_ELEMENTS) {
        let volume = |volume| json!({"name": format!("v{volume:05}"), "emptyDir": {}});
        spec["volumes"] = (0..MAX_OBJECT / 34).map(volume).collect();
    } else if number.is_multiple_of(LARGE_FACTS) {
        let variable = |name: &str| json!({"name": name, "value": "x".repeat(4096)});
        let env = [variable("NVIDIA_REQUIRE_CUDA"), variable("NVIDIA_VISIBLE_DEVICES")];
        let container = |container| json!({"name": format!("c{container}"), "image": "image", "env": env});
        let more: Vec<_> = (0..16).map(container).collect();
        spec["containers"].as_array_mut().expect("a list").extend(more);
    } else {
        let toleration = |toleration| {
            let key = format!("{number}-{toleration}-{}", "k".repeat(40));
            json!({"key": key, "operator": "Equal", "value": "v".repeat(63), "effect": "NoSchedule"})
        };
        spec["tolerations"] = (0..MAX_TOLERATIONS).map(toleration).collect();
    }
    json!({"metadata": metadata("pending", number), "spec": spec, "status": {"phase": "Pending"}})
}

fn rejection(number: usize) -> Value {
    let about = json!({
        "apiVersion": "x".repeat(MAX_OBJECT / 3), "kind": "ReplicaSet", "namespace": "team", "name": format!("web-{number}"),
        "uid": "x".repeat(MAX_OBJECT / 3),
    });
    let class = format!("nvidia-{}", "x".repeat(MAX_OBJECT / 3));
    json!({
        "metadata": metadata("rejection", number), "involvedObject": about, "reason": "FailedCreate",
        "lastTimestamp": k8s_openapi::jiff::Timestamp::now().to_string(),
        "message": format!("pod rejected: RuntimeClass \"{class}\" not found"),
    })
}

fn event_of_pod(number: usize) -> Value {
    json!({
        "metadata": metadata("event", number), "involvedObject": {}, "reason": "FailedScheduling",
        "message": "x".repeat(MAX_OBJECT),
    })
}
