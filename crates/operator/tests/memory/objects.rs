//! The objects of the cluster, each generated when it is sent.

use serde_json::{Value, json};

/// The number of running pods, and of DaemonSets, whose annotations make them as large as etcd accepts.
const LARGE: usize = 100;
/// The size of an object that etcd accepts by default.
const MAX_OBJECT: usize = 1_500_000;
/// One of so many running pods has as many elements as fit into an object.
const MANY_ELEMENTS: usize = 10;

/// A collection: how many objects it has, and how each is generated.
pub type Collection = (usize, fn(usize) -> Value);

/// Returns the objects of a list or of a watch without a version.
pub fn of(path: &str) -> Collection {
    match path {
        "/api/v1/nodes" => (1, |_| node()),
        "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies" => (1, |_| policy()),
        "/apis/apps/v1/daemonsets" => (LARGE, daemon_set),
        "/api/v1/pods" => (LARGE, running_pod),
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
    let mut pod = json!({
        "metadata": metadata("running", number),
        "spec": {"nodeName": "node", "containers": [{"name": "main", "image": "image"}]},
        "status": {"phase": "Running"},
    });
    if number.is_multiple_of(MANY_ELEMENTS) {
        let volume = |volume| json!({"name": format!("v{volume:05}"), "emptyDir": {}});
        pod["spec"]["volumes"] = (0..MAX_OBJECT / 34).map(volume).collect();
    } else {
        pod["metadata"] = with_annotations(metadata("running", number));
    }
    pod
}
