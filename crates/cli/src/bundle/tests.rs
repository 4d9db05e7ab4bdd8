//! Bundles of a cluster in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::Path,
};

use clap::Parser;
use gpu_operator_crd::crds;
use http::StatusCode;
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{ConfigMap, Event, Node, Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use schemars::{JsonSchema, schema_for};
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made};

use super::allowed;
use crate::{context::Context, output::Screen, testing};

const HERE: &str = "namespaces/gpu-operator";
const PROBE: &str = "registry.example.com:5000/gpu/probe";
const DRIVER: &str = "nvcr.io/nvidia/driver:595.91.07-ubuntu24.04";

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    bundle: super::SupportBundle,
}

/// Returns an object of a schema with all of its fields. Each text that the schema does not restrict to some words or times is a secret that
/// names its path.
fn maximal(kind: &str, schema: &Value, root: &Value, path: &str) -> Value {
    let below = |schema: &Value, name: &str| {
        maximal(kind, schema, root, &if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") })
    };
    if let Some(name) = schema["$ref"].as_str() {
        return maximal(kind, root.pointer(name.trim_start_matches('#')).expect("a definition"), root, path);
    }
    if let Some(of) = schema["properties"].as_object() {
        return of
            .iter()
            .map(|(name, schema)| (name.clone(), below(schema, name)))
            .collect::<serde_json::Map<_, _>>()
            .into();
    }
    match schema["type"].as_str() {
        Some("object") if schema["additionalProperties"].is_object() => {
            json!({"key": below(&schema["additionalProperties"], "key")})
        }
        Some("object") => json!({"key": below(&json!({"type": "string"}), "key")}),
        Some("array") => json!([maximal(kind, &schema["items"], root, path)]),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        _ if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| json!(format!("CANARY<{kind} {path}>"))),
    }
}

fn secrets_in(text: &str) -> BTreeSet<String> {
    text.split("CANARY<").skip(1).filter_map(|rest| Some(rest.split_once('>')?.0.to_owned())).collect()
}

fn maximal_of<K: JsonSchema>(kind: &str) -> Value {
    let schema = schema_for!(K).to_value();
    maximal(kind, &schema, &schema, "")
}

fn metadata(kind: &str) -> Value {
    let schema = schema_for!(ObjectMeta).to_value();
    maximal(kind, &schema, &schema, "metadata")
}

fn maximal_of_crd(kind: &str) -> Value {
    let crds = crds();
    let (_, crd) = crds.iter().find(|(_, crd)| crd.spec.names.kind == kind).expect("a CRD");
    let schema = crd.spec.versions[0].schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let schema = serde_json::to_value(schema).expect("JSON");
    let mut object = maximal(kind, &schema, &schema, "");
    object["metadata"] = metadata(kind);
    object
}

/// Sets what the bundle depends on.
fn with(mut object: Value, changes: &Value) -> Value {
    json_patch::merge(&mut object, changes);
    object
}

fn own(name: &str, labels: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels, "annotations": {"gpu.nodestack.dev/cordon": "own-annotation"}}})
}

/// Sets the name and image of a container, and adds one with an upstream image, with its status if there is one.
fn set_containers(object: &mut Value, pod: &str, name: &str, image: &str) {
    let two = |list: &mut Value, image_of: &str| {
        let mut other = list[0].clone();
        list[0]["name"] = name.into();
        list[0][image_of] = image.into();
        other["name"] = "upstream".into();
        other[image_of] = DRIVER.into();
        list.as_array_mut().expect("a list").push(other);
    };
    two(object.pointer_mut(&format!("{pod}/containers")).expect("containers"), "image");
    if let Some(statuses) = object.pointer_mut("/status/containerStatuses") {
        two(statuses, "image");
    }
}

fn pod(name: &str, labels: &Value, node: &str, container: &str, image: &str) -> Value {
    let mut pod = with(maximal_of::<Pod>("Pod"), &own(name, labels));
    pod["spec"]["nodeName"] = node.into();
    set_containers(&mut pod, "/spec", container, image);
    pod
}

/// Adds a pod with the logs of its two containers.
fn add_pod(api: &Api, pod: Value) {
    let path = format!("/api/v1/{HERE}/pods/{}", pod["metadata"]["name"].as_str().expect("a name"));
    api.put(&path, pod).answer_with(&format!("{path}/log"), "log-of-the-operator\n");
}

/// Returns a cluster with the GPU nodes a, b and c, of which c is not ready, with a secret in every field.
fn cluster() -> Api {
    let api = Api::new();
    let group = "/apis/gpu.nodestack.dev/v1alpha1";
    api.put(
        &format!("{group}/clustergpupolicies/all"),
        with(maximal_of_crd("ClusterGpuPolicy"), &own("all", &json!({}))),
    );
    let part_of = json!({"app.kubernetes.io/part-of": "gpu-operator"});
    let stage = json!({"gpu.nodestack.dev/stage": "driver"});
    for name in ["a", "b", "c"] {
        let phase = json!({"status": {"phase": if name == "c" { "Failed" } else { "Ready" }}});
        let gpu_node = with(with(maximal_of_crd("GpuNode"), &own(name, &json!({}))), &phase);
        api.put(&format!("{group}/gpunodes/{name}"), gpu_node);
        api.put(&format!("/api/v1/nodes/{name}"), with(maximal_of::<Node>("Node"), &own(name, &json!({}))));
        add_pod(&api, pod(&format!("driver-{name}"), &stage, name, "wait", &format!("{PROBE}@sha256:0")));
    }
    let operator =
        json!({"app.kubernetes.io/name": "nodestack-gpu-operator", "app.kubernetes.io/part-of": "gpu-operator"});
    add_pod(&api, pod("operator", &operator, "x", "gpu-operator", &format!("{PROBE}:old")));
    add_pod(&api, pod("other", &json!({}), "a", "nvml-probe", PROBE));
    let mut deployment = with(maximal_of::<Deployment>("Deployment"), &own("operator", &part_of));
    let mut set = with(maximal_of::<DaemonSet>("DaemonSet"), &own("nvml-probe", &part_of));
    set_containers(&mut deployment, "/spec/template/spec", "gpu-operator", &format!("{PROBE}:1"));
    set_containers(&mut set, "/spec/template/spec", "nvml-probe", &format!("{PROBE}:1"));
    api.put(&format!("/apis/apps/v1/{HERE}/deployments/operator"), deployment);
    api.put(&format!("/apis/apps/v1/{HERE}/daemonsets/nvml-probe"), set);
    api.put(&format!("/apis/apps/v1/{HERE}/daemonsets/other"), maximal_of::<DaemonSet>("other"));
    let event = with(maximal_of::<Event>("Event"), &own("e", &json!({})));
    let of_operator = json!({"reportingComponent": "gpu-operator", "message": "message-of-the-operator"});
    api.put("/api/v1/namespaces/default/events/e", with(event.clone(), &of_operator));
    api.put("/api/v1/namespaces/default/events/other", event.clone());
    api.put(&format!("/api/v1/{HERE}/events/e"), event);
    api.put(&format!("/api/v1/{HERE}/secrets/s"), maximal_of::<Secret>("Secret"));
    api.put(&format!("/api/v1/{HERE}/configmaps/c"), maximal_of::<ConfigMap>("ConfigMap"));
    api.answer_with("/version", testing::version("v1.36.0").to_string());
    api
}

/// Returns the files of a bundle, and its manifest.
async fn bundle(api: &Api, arguments: &[&str]) -> (BTreeMap<String, String>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.tar.gz");
    run(api, &path, arguments).await.expect("a bundle");
    let archive = std::fs::File::open(path).expect("an archive");
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(archive)).entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("UTF-8");
        files.insert(path.strip_prefix("gpu-fleet-support-bundle/").expect("the folder").to_owned(), content);
    }
    let manifest = serde_json::from_str(&files["manifest.json"]).expect("JSON");
    (files, manifest)
}

async fn run(api: &Api, path: &Path, arguments: &[&str]) -> Result<(), super::BundleError> {
    let file = path.to_str().expect("UTF-8");
    let arguments = [&["x", "--output-file", file], arguments].concat();
    let (namespace, now) = ("default".to_owned(), Timestamp::UNIX_EPOCH);
    let context = Context { client: api.client(), namespace, screen: Screen::default(), now };
    Arguments::parse_from(arguments).bundle.run(&context).await.map(drop)
}

fn planted(api: &Api) -> BTreeSet<String> {
    api.objects().iter().flat_map(|object| secrets_in(&object.to_string())).collect()
}

fn is_listed(kind: &str, path: &str) -> bool {
    allowed::paths(kind).iter().any(|listed| {
        let mut parts = path.split('.');
        listed.split('.').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
    })
}

#[tokio::test]
async fn the_bundle_contains_the_listed_fields_only() {
    let api = cluster();
    let (files, _) = bundle(&api, &[]).await;
    let text = files.into_values().collect::<String>();
    let found = secrets_in(&text);
    let listed = |secret: &&String| secret.split_once(' ').is_some_and(|(kind, path)| is_listed(kind, path));
    let expected: BTreeSet<String> = planted(&api).iter().filter(listed).cloned().collect();
    assert_eq!(found, expected);
    for own in ["own-annotation", "message-of-the-operator", "log-of-the-operator"] {
        assert!(text.contains(own), "{own}");
    }
    // To review when it changes: can a user, or another program, write a secret there?
    let mut fields: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for secret in &found {
        let (object, field) = secret.rsplit_once(['.', ' ']).expect("a kind");
        fields.entry(object).or_default().push(field);
    }
    let lines = fields.into_iter().map(|(object, fields)| format!("{object}: {}", fields.join(" ")));
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
}

#[test]
fn each_listed_field_exists() {
    let workloads = [maximal_of::<Deployment>(""), maximal_of::<DaemonSet>("")];
    for (kind, objects) in [
        ("ClusterGpuPolicy", &[maximal_of_crd("ClusterGpuPolicy")][..]),
        ("GpuNode", &[maximal_of_crd("GpuNode")]),
        ("Node", &[maximal_of::<Node>("")]),
        ("DaemonSet", &workloads),
        ("Pod", &[maximal_of::<Pod>("")]),
        ("Event", &[maximal_of::<Event>("")]),
    ] {
        for path in allowed::paths(kind) {
            let parts: Vec<&str> = path.split('.').collect();
            assert!(objects.iter().any(|object| has(object, &parts)), "{kind}: {path}");
        }
    }
}

/// Returns whether an object has a field.
fn has(object: &Value, path: &[&str]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match object {
        Value::Object(of) => of.iter().any(|(name, value)| (name == first || *first == "*") && has(value, rest)),
        Value::Array(items) => items.iter().any(|item| has(item, path)),
        _ => false,
    }
}

#[tokio::test]
async fn nothing_else_is_read() {
    let api = cluster();
    bundle(&api, &["--logs-since", "2h"]).await;
    let log = |pod: &str, container: &str, previous: &str| {
        format!(
            "GET /api/v1/{HERE}/pods/{pod}/log?&container={container}{previous}&sinceSeconds=7200&tailLines=4000&timestamps=true"
        )
    };
    let logs = [("driver-a", "wait"), ("driver-b", "wait"), ("driver-c", "wait"), ("operator", "gpu-operator")];
    let logs = logs.map(|(pod, container)| ["", "&previous=true"].map(|previous| log(pod, container, previous)));
    let lists = [
        "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies?&limit=500",
        "/apis/gpu.nodestack.dev/v1alpha1/gpunodes?&limit=500",
        "/api/v1/nodes?&limit=500",
        "/apis/apps/v1/namespaces/gpu-operator/deployments?&labelSelector=app.kubernetes.io%2Fpart-of%3Dgpu-operator&limit=500",
        "/apis/apps/v1/namespaces/gpu-operator/daemonsets?&labelSelector=app.kubernetes.io%2Fpart-of%3Dgpu-operator&limit=500",
        "/apis/apps/v1/namespaces/gpu-operator/daemonsets?&labelSelector=gpu.nodestack.dev%2Fstage&limit=500",
        "/api/v1/namespaces/gpu-operator/pods?&labelSelector=app.kubernetes.io%2Fpart-of%3Dgpu-operator&limit=500",
        "/api/v1/namespaces/gpu-operator/pods?&labelSelector=gpu.nodestack.dev%2Fstage&limit=500",
        "/api/v1/namespaces/gpu-operator/events?&limit=500",
        "/api/v1/namespaces/default/events?&fieldSelector=reportingComponent%3Dgpu-operator&limit=500",
        "/version",
    ];
    let expected: BTreeSet<String> =
        lists.iter().map(|path| format!("GET {path}")).chain(logs.into_iter().flatten()).collect();
    assert_eq!(api.take().iter().map(Made::line).collect::<BTreeSet<_>>(), expected);
}

#[tokio::test]
async fn logs_of_nodes_that_are_not_ready_come_first() {
    let api = cluster();
    let (files, manifest) = bundle(&api, &["--nodes", "1"]).await;
    assert_eq!(manifest["nodesWithLogs"], json!(["c"]));
    assert!(
        files.contains_key("logs/driver-c/wait.previous.log") && files.contains_key("logs/operator/gpu-operator.log")
    );
    assert!(!files.contains_key("logs/driver-a/wait.log") && files.contains_key("pods/driver-a.json"));
    assert_eq!(manifest["missing"], json!([{"what": "logs of 2 other nodes", "reason": "--nodes"}]));
    let (files, manifest) = bundle(&api, &["--no-logs"]).await;
    assert!(files.keys().all(|path| !path.starts_with("logs/")) && manifest["missing"] == json!([]), "{manifest}");
}

#[tokio::test]
async fn what_cannot_be_read_is_in_the_manifest() {
    for (plural, what, right, lacks) in [
        ("nodes", "nodes", "list nodes", "nodes/"),
        ("gpunodes", "gpunodes", "list gpunodes.gpu.nodestack.dev", "gpunodes/"),
        ("log", "logs", "get pods/log", "logs/"),
        ("pods", "pods", "list pods", "pods/"),
        ("events", "events in namespace default", "list events", "events/"),
        ("daemonsets", "daemonsets", "list daemonsets.apps", "daemonsets/"),
    ] {
        let api = cluster();
        api.forbid(plural);
        let (files, manifest) = bundle(&api, &[]).await;
        let missing = manifest["missing"].as_array().expect("a list");
        let found: Vec<_> = missing.iter().filter(|absence| absence["what"] == what).collect();
        assert_eq!(found.len(), 1, "{plural}: {missing:?}");
        let reason = found[0]["reason"].as_str().expect("a reason");
        assert!(reason.contains(&format!("the right to {right} is missing")), "{reason}");
        assert!(!files.keys().any(|path| path.starts_with(lacks)), "{plural}");
        assert!(files.contains_key("policies/all.json"), "{plural}");
        // The operator and three nodes.
        assert!(plural != "log" || api.take().iter().filter(|made| made.subresource == "log").count() == 4);
    }
}

#[tokio::test]
async fn the_archive_is_written_unless_the_server_is_down() {
    let api = cluster();
    let (_, manifest) = bundle(&api, &[]).await;
    assert_eq!(
        (&manifest["serverVersion"], &manifest["collectedAt"]),
        (&json!("v1.36.0"), &json!("1970-01-01T00:00:00Z"))
    );
    api.fail(|_| true, Fault::Refused(StatusCode::SERVICE_UNAVAILABLE));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.tar.gz");
    let error = run(&api, &path, &[]).await.expect_err("an error");
    assert!(error.to_string().contains("503 Service Unavailable") && !path.exists(), "{error}");
}
