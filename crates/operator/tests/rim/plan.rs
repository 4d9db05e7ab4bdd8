//! `kubectl gpu-fleet plan` on a cluster: what it reads, and that it writes nothing.

use std::{fs, path::PathBuf, time::Duration};

use gpu_operator_cli::{
    objects::{Objects, ObjectsError},
    plan::{Report, report},
};
use gpu_operator_crd::ClusterGpuPolicy;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made, clock};

use crate::cluster::{Cluster, GPU_NODES, NODES, PODS, POLICIES, SETS};

const TEAM: &str = "/api/v1/namespaces/team/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/team/poddisruptionbudgets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/gpu-operator/deployments";

fn policy(spec: Value) -> ClusterGpuPolicy {
    ClusterGpuPolicy::new("all", serde_json::from_value(spec).expect("a spec"))
}

fn evicts() -> ClusterGpuPolicy {
    let driver = json!({"driver": {"version": "590.10.01"}});
    policy(json!({"rollout": {"gpuPods": {"mode": "Evict"}}, "defaults": driver}))
}

/// Adds an operator that may evict pods, a GPU pod on the first node, and a budget that forbids its eviction.
fn furnish(api: &Api) {
    api.write("helm", &format!("{DEPLOYMENTS}/nodestack-gpu-operator"), |object| {
        let container = json!({"name": "gpu-operator", "args": ["run", "--evict-pods"]});
        *object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "nodestack-gpu-operator"}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
        });
    });
    api.write("user", &format!("{TEAM}/web"), |pod| {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": true});
        let container = json!({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        let running = json!({"name": "main", "state": {"running": {}}, "ready": true, "restartCount": 0, "image": "", "imageID": ""});
        *pod = json!({
            "metadata": {"labels": {"app": "web"}, "ownerReferences": [owner]},
            "spec": {"nodeName": "n000", "containers": [container]},
            "status": {"phase": "Running", "containerStatuses": [running]},
        });
    });
    api.write("user", &format!("{BUDGETS}/web"), |budget| {
        *budget = json!({
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
        });
    });
}

fn summary(report: &Report) -> Vec<(String, Option<u32>, bool)> {
    let updates = report.policies.iter().flat_map(|forecast| &forecast.updates);
    updates.map(|update| (update.node.to_string(), update.wave, update.blocked_by.is_some())).collect()
}

/// Exports all objects to a folder, as `kubectl get` does.
fn exported(api: &Api) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("plan");
    fs::create_dir_all(&folder).expect("a folder");
    let kinds = [
        // Pods come first, although only those on GPU nodes are kept.
        ("Pod", PODS),
        ("Pod", TEAM),
        ("ClusterGpuPolicy", POLICIES),
        ("GpuNode", GPU_NODES),
        ("Node", NODES),
        ("DaemonSet", SETS),
        ("PodDisruptionBudget", BUDGETS),
        ("Deployment", DEPLOYMENTS),
    ];
    let of_kind = |(kind, path): (&str, &str)| {
        let mut objects = api.all::<Value>(path);
        for object in &mut objects {
            object["kind"] = kind.into();
        }
        objects
    };
    let items: Vec<Value> = kinds.into_iter().flat_map(of_kind).collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "items": items});
    fs::write(folder.join("cluster.json"), list.to_string()).expect("a file");
    folder
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_a_policy_disrupts_and_writes_nothing() {
    let cluster = Cluster::running(3);
    cluster.run_for(Duration::from_mins(5)).await;
    assert!(cluster.is_ready(), "{}", cluster.policy());
    furnish(&cluster.api);
    let client = cluster.api.client();
    cluster.api.take();
    let objects = Objects::of_cluster(&client, "gpu-operator").await.expect("objects");
    let made = cluster.api.take();
    assert!(made.iter().all(|made| made.method == Method::GET && !made.is_watch()), "{made:#?}");
    assert_eq!(made.len(), 8, "one list of each kind: {made:#?}");
    let planned = report(&objects, &[evicts()], clock()).expect("a report");
    let expected = [("n000", 1, true), ("n001", 2, false), ("n002", 3, false)];
    let expected = expected.map(|(node, wave, blocked)| (node.to_owned(), Some(wave), blocked));
    assert_eq!(summary(&planned), expected, "{planned:#?}");
    assert!(planned.notes.is_empty(), "{:?}", planned.notes);
    let unchanged = report(&objects, &[policy(json!({}))], clock()).expect("a report");
    assert!(unchanged.policies.iter().all(gpu_operator_plan::forecast::Forecast::is_empty), "{unchanged:#?}");
    // The same objects in files lead to the same plan.
    let objects = Objects::of_folder(&exported(&cluster.api), "gpu-operator").expect("objects");
    let from_files = report(&objects, &[evicts()], clock()).expect("a report");
    assert_eq!((from_files.policies, from_files.notes), (planned.policies, planned.notes));
}

#[tokio::test]
async fn a_plan_names_every_right_that_is_missing() {
    let api = Api::new();
    furnish(&api);
    let forbid = |paths: &'static [&'static str]| {
        api.heal();
        let is_forbidden = |made: &Made| paths.iter().any(|path| made.path.ends_with(path));
        api.fail(is_forbidden, Fault::Refused(StatusCode::FORBIDDEN));
    };
    forbid(&["/pods", "/nodes", "/deployments"]);
    let error = Objects::of_cluster(&api.client(), "gpu-operator").await.expect_err("missing rights");
    assert!(matches!(&error, ObjectsError::Forbidden(rights) if rights.len() == 2), "{error}");
    let text = error.to_string();
    assert!(text.contains("list nodes (apiGroup \"\")") && text.contains("list pods (apiGroup \"\")"), "{text}");
    forbid(&["/poddisruptionbudgets", "/deployments"]);
    let objects = Objects::of_cluster(&api.client(), "gpu-operator").await.expect("objects");
    let notes = report(&objects, &[evicts()], clock()).expect("a report").notes.join("\n");
    for words in
        ["list poddisruptionbudgets (apiGroup \"policy\")", "which evictions", "no operator found in namespace"]
    {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}
