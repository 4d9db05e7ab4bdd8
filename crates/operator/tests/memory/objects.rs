//! The API server of a cluster with large objects, each generated when it is sent.

use std::sync::Arc;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made, Texts};

/// The number of running pods, and of DaemonSets, whose annotations make them as large as etcd accepts.
const LARGE: usize = 100;
/// The size of an object that etcd accepts by default.
const MAX_OBJECT: usize = 1_500_000;
/// One of so many running pods has as many elements as fit into an object.
const MANY_ELEMENTS: usize = 10;

/// Returns an API server with a node, a policy and large objects of tenants.
pub fn cluster() -> Api {
    let api = Api::new();
    let node = json!({
        "metadata": {"name": "node", "uid": "node", "resourceVersion": "1", "labels": {"kubernetes.io/os": "linux"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {}},
    });
    api.put("/api/v1/nodes/node", node);
    let policy = json!({"metadata": {"name": "all", "uid": "all", "resourceVersion": "1"}, "spec": {}});
    api.put("/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/all", policy);
    for (path, object) in
        [("/apis/apps/v1/daemonsets", daemon_set as fn(usize) -> Value), ("/api/v1/pods", running_pod)]
    {
        api.fail(move |made| made.path == path, Fault::Answered(Arc::new(move |made| sent(made, object))));
    }
    api
}

/// Returns the answer to a list or a watch.
fn sent(made: &Made, object: fn(usize) -> Value) -> Texts {
    if made.is_watch() {
        // A watch without a version begins with the existing objects. It stays open.
        let is_first = made.query.get("resourceVersion").is_none_or(String::is_empty);
        let existing = (0..if is_first { LARGE } else { 0 })
            .map(move |number| format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", object(number)));
        return stream::iter(existing).chain(stream::pending()).boxed();
    }
    let number = |name| made.number(name).and_then(|number| usize::try_from(number).ok());
    let first = number("continue").unwrap_or_default();
    let end = number("limit").map_or(LARGE, |limit| LARGE.min(first + limit));
    let next = if end < LARGE { end.to_string() } else { String::new() };
    let metadata = json!({"resourceVersion": "10000", "continue": next});
    let head = format!("{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"items\":[");
    let items = (first..end).map(move |number| {
        let comma = if number == first { "" } else { "," };
        format!("{comma}{}", object(number))
    });
    stream::iter([head].into_iter().chain(items).chain(["]}".to_owned()])).boxed()
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
