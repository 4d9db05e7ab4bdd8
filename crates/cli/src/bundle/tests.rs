//! Bundles of a cluster in memory.

use std::{collections::BTreeMap, io::Read};

use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    archive::{About, Manifest, pack},
    collect::{Options, collect},
    pods::LogOptions,
};
use crate::{context::Context, output::Screen, testing::FakeApi};

const NAMESPACE: &str = "/namespaces/gpu-operator";
/// Larger than every archive of these tests.
const LIMIT: usize = 1 << 20;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    bundle: super::SupportBundle,
}

fn about(nodes: Vec<String>) -> About {
    About {
        collected_at: Timestamp::UNIX_EPOCH,
        cli_version: "0",
        server_version: None,
        operator_namespace: "gpu-operator".to_owned(),
        nodes,
    }
}

fn options(nodes: usize) -> Options {
    Options { nodes, logs: LogOptions { enabled: true, since: None, limit: 1000 }, all_logs: LIMIT, progress: |_| {} }
}

async fn bundle(api: &FakeApi, options: Options, limit: usize) -> (Vec<u8>, Manifest) {
    let collected = collect(&api.client(), "gpu-operator", options).await;
    pack(collected.contents, &about(collected.nodes), limit).expect("an archive")
}

/// Returns the files of an archive.
fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(archive)).entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("UTF-8");
        files.insert(path.strip_prefix("gpu-fleet-support-bundle/").expect("the folder").to_owned(), content);
    }
    files
}

fn pod(name: &str, app: &str, node: &str) -> Value {
    let state = json!({"running": {}});
    let last = json!({"terminated": {}});
    json!({
        "metadata": {"name": name, "namespace": "gpu-operator", "labels": {
            "app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "gpu-operator",
        }},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "metrics", "containerPort": 9400}]}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "c", "state": state, "lastState": last}]},
    })
}

/// Adds a pod with a log and metrics.
fn add_pod(api: &FakeApi, name: &str, app: &str, node: &str) {
    let path = format!("/api/v1{NAMESPACE}/pods/{name}");
    api.add_json(&path, pod(name, app, node));
    api.add_text(&format!("{path}/log"), "started with token=CANARY-log\nready\n");
    api.add_text(&format!("/api/v1{NAMESPACE}/pods/{name}:9400/proxy/metrics"), "up{url=\"http://a:CANARY@b\"} 1\n");
}

/// Returns a cluster with three nodes, of which c needs attention. All credentials contain CANARY.
fn cluster() -> FakeApi {
    let api = FakeApi::default();
    let group = "/apis/gpu.nodestack.dev/v1alpha1";
    let last_applied = json!({"kubectl.kubernetes.io/last-applied-configuration": "CANARY"});
    api.add_json(
        &format!("{group}/clustergpupolicies/all"),
        json!({
            "metadata": {"name": "all", "annotations": last_applied, "managedFields": [{"manager": "CANARY"}]},
            "spec": {
                "driver": {"url": "https://me:CANARY@mirror/a.run?sig=CANARY", "pullSecrets": [{"name": "regcred"}]},
                "proxy": {"httpsProxy": "http://me:CANARY@proxy:3128"},
            },
            "status": {"attention": [{"node": "c"}]},
        }),
    );
    for name in ["a", "b", "c"] {
        let labels = json!({"x": "y"});
        let annotations = json!({"example.com/token": "CANARY", "gpu.nodestack.dev/cordon": "1"});
        let ready = json!([{"type": "Ready", "status": "True", "message": "token=CANARY"}]);
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        api.add_json(&format!("/api/v1/nodes/{name}"), json!({"metadata": metadata, "status": {"conditions": ready}}));
        let gpu_node = json!({"metadata": {"name": name}, "spec": {}, "status": {"phase": "Ready"}});
        api.add_json(&format!("{group}/gpunodes/{name}"), gpu_node);
        add_pod(&api, &format!("probe-{name}"), "nvml-probe", name);
    }
    add_pod(&api, "operator", "nodestack-gpu-operator", "a");
    api.add_json(&format!("/api/v1{NAMESPACE}/pods/other"), json!({"metadata": {"name": "other"}, "spec": {}}));
    let container = json!({
        "name": "driver",
        "args": ["--token=CANARY", "--password", "CANARY"],
        "env": [{"name": "NGC_API_KEY", "value": "CANARY"}, {"name": "HTTPS_PROXY", "value": "me:CANARY@proxy:3128"}],
    });
    let meta = json!({"annotations": {"example.com/token": "CANARY"}});
    let spec = json!({"containers": [container], "imagePullSecrets": [{"name": "regcred"}]});
    let labels = json!({"gpu.nodestack.dev/stage": "driver"});
    api.add_json(
        &format!("/apis/apps/v1{NAMESPACE}/daemonsets/driver"),
        json!({"metadata": {"name": "driver", "labels": labels}, "spec": {"template": {"metadata": meta, "spec": spec}}}),
    );
    let event =
        |message: &str| json!({"metadata": {"name": "e"}, "reportingComponent": "gpu-operator", "message": message});
    api.add_json(&format!("/api/v1{NAMESPACE}/events/e"), event("Authorization: Bearer CANARY"));
    api.add_json("/api/v1/namespaces/default/events/e", event("pull from https://me:CANARY@registry"));
    let secret = json!({"metadata": {"name": "regcred"}, "data": {".dockerconfigjson": "CANARY"}});
    api.add_json(&format!("/api/v1{NAMESPACE}/secrets/regcred"), secret);
    api.add_json(
        "/version",
        json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "", "buildDate": "",
            "goVersion": "", "compiler": "", "platform": "",
        }),
    );
    api
}

#[tokio::test]
async fn no_credential_is_in_the_bundle() {
    let api = cluster();
    let (archive, manifest) = bundle(&api, options(50), LIMIT).await;
    let files = unpacked(&archive);
    for (path, content) in &files {
        assert!(!content.contains("CANARY"), "{path}: {content}");
    }
    // The places of all credentials are in the bundle, without them.
    for path in [
        "policies/all.json",
        "daemonsets/driver.json",
        "nodes/a.json",
        "logs/probe-a/c.log",
        "logs/operator/c.previous.log",
        "metrics/probe-a.txt",
        "events/gpu-operator.json",
        "events/default.json",
    ] {
        assert!(files[path].contains("***"), "{path}: {}", files[path]);
    }
    assert!(files["policies/all.json"].contains("regcred") && files["gpunodes/a.json"].contains("Ready"));
    assert!(!files.contains_key("pods/other.json"), "a pod of another application");
    assert!(manifest.not_read.is_empty() && manifest.left_out.is_empty(), "{manifest:?}");
    let of_secrets = |request: &&String| request.contains("/secrets") || request.contains("/configmaps");
    assert_eq!(api.requests().iter().find(of_secrets), None);
    let writes: Vec<String> = api.requests().into_iter().filter(|request| !request.starts_with("GET ")).collect();
    assert!(writes.is_empty(), "{writes:?}");
}

#[tokio::test]
async fn bundles_of_one_cluster_are_equal() {
    let api = cluster();
    let (first, manifest) = bundle(&api, options(50), LIMIT).await;
    let (second, _) = bundle(&api, options(50), LIMIT).await;
    assert!(first == second, "the archives differ");
    // Two bundles may be made within one second, so the times are compared with zero.
    assert_eq!(first[4..8], [0; 4], "the time in the header");
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(first.as_slice())).entries().expect("entries") {
        let header = entry.expect("an entry").header().clone();
        let found = (header.mtime().ok(), header.uid().ok(), header.gid().ok(), header.mode().ok());
        assert_eq!(found, (Some(0), Some(0), Some(0), Some(0o644)));
    }
    let files = unpacked(&first);
    let listed: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    let found: Vec<&str> = files.keys().map(String::as_str).filter(|path| *path != "manifest.json").collect();
    assert_eq!(listed, found);
    for file in &manifest.files {
        let content = files[&file.path].as_bytes();
        assert_eq!((file.size, &file.sha256), (content.len(), &super::archive::sha256(content)), "{}", file.path);
    }
    let in_archive: Value = serde_json::from_str(&files["manifest.json"]).expect("JSON");
    assert_eq!(in_archive, serde_json::to_value(&manifest).expect("JSON"));
}

#[tokio::test]
async fn nodes_that_need_attention_fit_first() {
    let api = cluster();
    let (_, manifest) = bundle(&api, options(1), LIMIT).await;
    assert_eq!(manifest.about.nodes, ["c"]);
    let has = |manifest: &Manifest, path: &str| manifest.files.iter().any(|file| file.path == path);
    assert!(has(&manifest, "logs/probe-c/c.log") && has(&manifest, "gpunodes/a.json"));
    assert!(!has(&manifest, "logs/probe-a/c.log") && !has(&manifest, "pods/probe-a.json"));
    assert!(manifest.left_out.iter().any(|left| left.what == "pods, logs and metrics of 2 other nodes"));
    let (whole, _) = bundle(&api, options(50), LIMIT).await;
    let mut seen = Vec::new();
    for limit in (0..whole.len() + 8000).step_by(500) {
        let (archive, manifest) = bundle(&api, options(50), limit).await;
        let left_out = |path: &str| manifest.left_out.iter().any(|left| left.what == path);
        let nodes: Vec<&str> =
            ["a", "b", "c"].into_iter().filter(|name| has(&manifest, &format!("pods/probe-{name}.json"))).collect();
        assert!(
            ["a", "b", "c"].iter().all(|name| nodes.contains(name) || left_out(&format!("pods/probe-{name}.json")))
        );
        assert!(archive.len() <= limit || manifest.files.is_empty(), "{limit}: {}", archive.len());
        if seen.last() != Some(&nodes) {
            seen.push(nodes);
        }
    }
    assert_eq!(seen, [vec![], vec!["c"], vec!["a", "c"], vec!["a", "b", "c"]]);
}

#[tokio::test]
async fn logs_are_cut_at_lines_and_after_redaction() {
    let api = cluster();
    // What precedes @ is only recognized with it.
    let long = format!("{}-----BEGIN PRIVATE KEY-----\nCANARY\n", "by me:CANARY@proxy\n".repeat(100));
    api.add_text(&format!("/api/v1{NAMESPACE}/pods/probe-c/log"), &long);
    for limit in 1..80 {
        let mut options = options(50);
        options.logs.limit = limit;
        let files = unpacked(&bundle(&api, options, LIMIT).await.0);
        assert!(!files["logs/probe-c/c.log"].contains("CANARY"), "{limit}");
    }
    let mut options = options(50);
    options.logs.limit = 100;
    let (_, manifest) = bundle(&api, options, LIMIT).await;
    let left_out = |what: &str| manifest.left_out.iter().any(|left| left.what == what);
    assert!(left_out("logs/probe-c/c.log: earlier lines"), "{:?}", manifest.left_out);
    options.all_logs = 1;
    let (_, manifest) = bundle(&api, options, LIMIT).await;
    assert!(manifest.left_out.iter().any(|left| left.what == "logs of node a"), "{:?}", manifest.left_out);
    options.logs.enabled = false;
    let (_, manifest) = bundle(&api, options, LIMIT).await;
    assert!(manifest.left_out.is_empty() && !manifest.files.iter().any(|file| file.path.starts_with("logs/")));
}

#[tokio::test]
async fn what_cannot_be_read_is_in_the_manifest() {
    for (plural, what, right, lacks) in [
        ("nodes", "nodes", "list nodes", "nodes/"),
        ("gpunodes", "gpunodes", "list gpunodes.gpu.nodestack.dev", "gpunodes/"),
        ("log", "logs", "get pods/log", "logs/"),
        ("proxy", "metrics", "get pods/proxy", "metrics/"),
        ("pods", "pods", "list pods", "pods/"),
        ("events", "events in namespace default", "list events", "events/default.jsonl"),
        ("daemonsets", "daemonsets", "list daemonsets.apps", "daemonsets/"),
    ] {
        let api = cluster();
        api.forbid(plural);
        let (_, manifest) = bundle(&api, options(50), LIMIT).await;
        let found: Vec<_> = manifest.not_read.iter().filter(|absence| absence.what == what).collect();
        assert_eq!(found.len(), 1, "{plural}: {:?}", manifest.not_read);
        assert!(found[0].reason.contains(&format!("the right to {right} is missing")), "{}", found[0].reason);
        assert!(!manifest.files.iter().any(|file| file.path.starts_with(lacks)), "{plural}");
        assert!(manifest.files.iter().any(|file| file.path == "policies/all.json"), "{plural}");
    }
}

#[tokio::test]
async fn the_archive_is_written_unless_the_server_is_down() {
    let api = cluster();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("b.tar.gz");
    let file = path.to_str().expect("UTF-8");
    let Arguments { bundle } = Arguments::parse_from(["x", "--output-file", file, "--logs-since", "2h"]);
    let now = Timestamp::UNIX_EPOCH;
    let context = Context { client: api.client(), namespace: "default".to_owned(), screen: Screen::default(), now };
    bundle.run(&context).await.expect("a bundle");
    let files = unpacked(&std::fs::read(&path).expect("the archive"));
    let manifest: Value = serde_json::from_str(&files["manifest.json"]).expect("JSON");
    assert_eq!(manifest["serverVersion"], "v1.36.0");
    assert_eq!(manifest["collectedAt"], "1970-01-01T00:00:00Z");
    assert!(api.requests().iter().any(|request| request.contains("sinceSeconds=7200")));
    std::fs::remove_file(&path).expect("the archive");
    api.stop();
    let error = bundle.run(&context).await.expect_err("an error");
    assert!(error.to_string().contains("the server is down") && !path.exists(), "{error}");
}
