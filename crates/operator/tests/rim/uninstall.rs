//! The hook for `helm uninstall`: the order in which it removes what the operator keeps in the cluster.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use gpu_operator::uninstall::{Left, uninstall};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    api::{Api, Fault, Made},
    cluster::{GPU_NODES, NODES, POLICIES, SETS},
};

const NAMESPACE: &str = "gpu-operator";
const WITHIN: Duration = Duration::from_mins(4);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/gpu-operator/deployments";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/gpu-operator/leases";
const PRESENT: &str = "gpu.nodestack.dev/present";

/// Creates the objects of an installed chart with two nodes under a policy. The policy exists until the operator removes its finalizer,
/// and a DaemonSet until the garbage collector has deleted its pods.
fn installed() -> Arc<Api> {
    let api = Api::new();
    let collecting = json!({"metadata": {"finalizers": ["foregroundDeletion"]}});
    let policy = json!({
        "metadata": {"finalizers": ["gpu.nodestack.dev/nodes"]},
        "spec": {},
        "status": {"summary": {"message": "waiting for pod a/training on node n1"}},
    });
    let node = json!({"metadata": {"labels": {PRESENT: "true", "mine": "stays"}}});
    for (path, object) in [
        (format!("{POLICIES}/all"), policy),
        (format!("{DEPLOYMENTS}/operator"), json!({"metadata": {}})),
        (format!("{SETS}/nodestack-gpu-detector"), json!({"metadata": {}})),
        (format!("{SETS}/nodestack-nvml-probe"), collecting),
        (format!("{LEASES}/operator"), json!({"metadata": {}})),
        (format!("{NODES}/n1"), node.clone()),
        (format!("{NODES}/n2"), node),
        (format!("{GPU_NODES}/n1"), json!({"metadata": {}})),
        (format!("{GPU_NODES}/n2"), json!({"metadata": {}})),
    ] {
        api.write("installer", &path, |stored| *stored = object);
    }
    api
}

/// Completes the deletion of an object.
fn let_go(api: &Api, path: &str) {
    assert!(!api.get(path)["metadata"]["deletionTimestamp"].is_null(), "{path} is not being deleted");
    api.write("controller", path, |object| object["metadata"]["finalizers"] = json!([]));
}

/// Returns whether an object exists and is not being deleted.
fn stands(api: &Api, path: &str) -> bool {
    let object = api.get(path);
    !object.is_null() && object["metadata"]["deletionTimestamp"].is_null()
}

#[tokio::test(start_paused = true)]
async fn the_operator_goes_after_the_policies_and_its_traces_after_it() {
    let api = installed();
    let client = api.client();
    let hook = async { uninstall(&client, NAMESPACE, "operator", WITHIN).await };
    let others = async {
        sleep(Duration::from_secs(70)).await;
        for path in [format!("{DEPLOYMENTS}/operator"), format!("{SETS}/nodestack-nvml-probe")] {
            assert!(stands(&api, &path), "{path} was deleted before the nodes were left");
        }
        let_go(&api, &format!("{POLICIES}/all"));
        sleep(Duration::from_secs(20)).await;
        assert!(api.get(&format!("{DEPLOYMENTS}/operator")).is_null());
        for path in [format!("{GPU_NODES}/n1"), format!("{LEASES}/operator")] {
            assert!(stands(&api, &path), "{path} was deleted while the probe was running");
        }
        assert_eq!(api.get(&format!("{NODES}/n1"))["metadata"]["labels"][PRESENT], "true");
        let_go(&api, &format!("{SETS}/nodestack-nvml-probe"));
    };
    let (outcome, ()) = tokio::join!(hook, others);
    outcome.expect("nothing is left");
    for collection in [POLICIES, DEPLOYMENTS, SETS, LEASES, GPU_NODES] {
        assert_eq!(api.paths(collection), [""; 0], "{collection}");
    }
    for node in api.all::<Value>(NODES) {
        assert_eq!(node["metadata"]["labels"], json!({"mine": "stays"}));
    }
    // Each workload is deleted with its pods.
    let deleted = api.take().into_iter().filter(|made| made.method == "DELETE" && made.path.contains("/apps/v1/"));
    assert!(deleted.into_iter().all(|made| made.body["propagationPolicy"] == "Foreground"));
}

#[tokio::test(start_paused = true)]
async fn nothing_but_policies_is_deleted_while_nodes_are_in_use() {
    let api = installed();
    let began = Instant::now();
    let error = uninstall(&api.client(), NAMESPACE, "operator", WITHIN).await.expect_err("the policy exists");
    assert!(matches!(&error.left, Left::Policies(policies) if policies.len() == 1), "{error:?}");
    assert!(error.to_string().contains("all (waiting for pod a/training on node n1)"), "{error}");
    assert!(began.elapsed() >= WITHIN && began.elapsed() < WITHIN + Duration::from_secs(5), "{:?}", began.elapsed());
    let writes: Vec<_> = api.take().into_iter().filter(Made::is_write).map(|made| made.url()).collect();
    assert_eq!(writes, [format!("{POLICIES}/all")]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_for_a_time_is_asked_again() {
    // Neither the CRDs nor an object exists, as after an earlier attempt.
    let api = Api::new();
    let until = Instant::now() + Duration::from_secs(30);
    api.fail(
        move |_| {
            if Instant::now() < until { Fault::Refused(StatusCode::SERVICE_UNAVAILABLE) } else { Fault::None }
        },
    );
    uninstall(&api.client(), NAMESPACE, "operator", WITHIN).await.expect("nothing exists");
    api.fail(|made| if made.path == NODES { Fault::Refused(StatusCode::FORBIDDEN) } else { Fault::None });
    let error = uninstall(&api.client(), NAMESPACE, "operator", WITHIN).await.expect_err("nodes cannot be listed");
    assert!(error.left.to_string().starts_with("failed to list the nodes with GPUs"), "{error}");
}
