//! The hook for `helm uninstall`: the order in which it removes what the operator keeps in the cluster.

use std::time::Duration;

use gpu_operator::uninstall::{Left, Policies, QuietError, Uninstall, UninstallError};
use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{Cluster, GPU_NODES, NODES, POLICIES, SETS},
    sim::Sim,
};

const NAMESPACE: &str = "gpu-operator";
const WITHIN: Duration = Duration::from_mins(4);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/gpu-operator/deployments";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/gpu-operator/leases";
const PRESENT: &str = "gpu.nodestack.dev/present";

/// Creates the objects of an installed chart with two nodes under a policy. The policy exists until the operator removes its finalizer,
/// and a DaemonSet until the garbage collector has deleted its pods.
fn installed() -> Api {
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

/// Runs the hook that deletes policies.
async fn deleting(client: &Client) -> Result<(), UninstallError> {
    Uninstall { policies: Policies::Delete, ..keeping(client) }.run(WITHIN).await
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
    let hook = async { deleting(&client).await };
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
    let error = deleting(&api.client()).await.expect_err("the policy exists");
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
    api.fail(move |_| Instant::now() < until, Fault::Refused(StatusCode::SERVICE_UNAVAILABLE));
    deleting(&api.client()).await.expect("nothing exists");
    api.fail(|made| made.path == NODES, Fault::Refused(StatusCode::FORBIDDEN));
    let error = deleting(&api.client()).await.expect_err("nodes cannot be listed");
    assert!(error.left.to_string().starts_with("failed to list the nodes with GPUs"), "{error}");
}

const WORKLOADS: &str = "/apis/apps/v1/namespaces/gpu-operator/";
const POLICY: &str = "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/all";

/// Returns a cluster whose fleet is installed, with the Deployment and detector of the chart. Its operator has been killed while it kept a
/// node cordoned.
async fn served() -> (Cluster, Sim) {
    let (cluster, sim) = Cluster::new(2);
    let operator = cluster.beside();
    operator.start_replica(&sim, "operator-0");
    cluster.run_surroundings(sim.clone());
    tokio::join!(operator.run_for(Duration::from_mins(5)), cluster.run_for(Duration::from_mins(5)));
    drop(operator);
    assert!(cluster.is_ready(), "{}", cluster.policy());
    cluster.api.write("installer", &format!("{DEPLOYMENTS}/operator"), |object| *object = json!({"metadata": {}}));
    cluster.api.write("gpu-operator/cordon", &format!("{NODES}/n000"), |node| {
        node["metadata"]["annotations"]["gpu.nodestack.dev/cordon"] = json!("true");
        node["spec"]["unschedulable"] = json!(true);
    });
    cluster.api.take();
    (cluster, sim)
}

fn keeping(client: &Client) -> Uninstall<'_> {
    Uninstall { client, namespace: NAMESPACE, operator: "operator", identity: "hook", policies: Policies::Keep }
}

#[tokio::test(start_paused = true)]
async fn policies_and_what_runs_stay_and_another_operator_continues() {
    let (cluster, sim) = served().await;
    let api = &cluster.api;
    let (sets, gpu_nodes) = (api.paths(SETS), api.all::<Value>(GPU_NODES));
    let client = api.client_of("hook");
    keeping(&client).run(WITHIN).await.expect("a quiet fleet");
    let made: Vec<_> = api.take().into_iter().filter(Made::is_write).collect();
    let urls: Vec<_> = made.iter().map(|made| format!("{} {}", made.method, made.url())).collect();
    let mut others: Vec<_> = urls.iter().filter(|url| !url.contains("/leases")).collect();
    // The second deletion shows that the first one is complete.
    others.dedup();
    assert_eq!(
        others,
        [
            &format!("DELETE {WORKLOADS}deployments/operator"),
            &format!("PATCH {NODES}/n000"),
            &format!("PATCH {POLICY}/status"),
        ]
    );
    assert!(urls.last().is_some_and(|last| *last == format!("DELETE {LEASES}/operator")), "{urls:?}");
    assert_eq!(api.get(&format!("{NODES}/n000"))["spec"]["unschedulable"], Value::Null);
    assert_eq!(api.get(&format!("{NODES}/n001"))["metadata"]["labels"][PRESENT], "true");
    let (status, reason, _) = cluster.condition(POLICY, "Ready");
    assert_eq!((status.as_str(), reason.as_str()), ("Unknown", "OperatorUninstalled"));
    assert_eq!((api.paths(SETS), api.all::<Value>(GPU_NODES)), (sets, gpu_nodes));
    // Again, nothing is left to do.
    keeping(&client).run(WITHIN).await.expect("a quiet fleet");
    assert!(api.take().iter().all(|made| !made.is_write() || !made.path.starts_with(NODES) && made.path != POLICY));

    cluster.start_replica(&sim, "operator-1");
    cluster.run_for(Duration::from_mins(5)).await;
    assert!(cluster.is_ready(), "{}", cluster.policy());
    let is_removal = |made: &Made| made.method == Method::DELETE;
    assert!(!api.take().iter().any(is_removal), "something was recreated");
}

#[tokio::test(start_paused = true)]
async fn while_another_operator_leads_nothing_is_written() {
    let (cluster, sim) = served().await;
    cluster.start_replica(&sim, "operator-1");
    cluster.run_for(Duration::from_mins(1)).await;
    cluster.api.write("gpu-operator/cordon", &format!("{NODES}/n001"), |node| {
        node["spec"]["unschedulable"] = json!(true);
    });
    cluster.api.take();
    let client = cluster.api.client_of("hook");
    let outcome = cluster.run_until(Box::pin(keeping(&client).run(WITHIN))).await;
    let error = outcome.expect_err("the Lease is held");
    assert!(matches!(&error.left, Left::Quiet(QuietError::NotLeading(lease)) if lease == "operator"), "{error:?}");
    let made = cluster.api.take().into_iter();
    let writes: Vec<_> = made.filter(|made| made.client == "hook" && made.is_write()).map(|made| made.url()).collect();
    assert!(writes.iter().all(|url| url.ends_with("/deployments/operator")), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_policy_is_waited_for_while_an_operator_exists() {
    let (cluster, _) = served().await;
    let api = &cluster.api;
    api.write("user", POLICY, |policy| policy["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:10:00Z"));
    let client = api.client_of("hook");
    let error = keeping(&client).run(WITHIN).await.expect_err("the policy exists");
    assert!(matches!(&error.left, Left::Policies(policies) if policies.len() == 1), "{error:?}");
    assert!(!api.take().iter().any(Made::is_write));
    // Without an operator the deletion is never completed.
    api.delete(&format!("{DEPLOYMENTS}/operator"));
    keeping(&client).run(WITHIN).await.expect("a quiet fleet");
    assert_eq!(cluster.condition(POLICY, "Ready").1, "OperatorUninstalled");
}

#[tokio::test(start_paused = true)]
async fn without_a_policy_everything_goes() {
    let api = installed();
    api.delete(POLICY);
    let_go(&api, POLICY);
    let client = api.client();
    let hook = async { keeping(&client).run(WITHIN).await };
    let others = async {
        sleep(Duration::from_secs(20)).await;
        let_go(&api, &format!("{SETS}/nodestack-nvml-probe"));
    };
    let (outcome, ()) = tokio::join!(hook, others);
    outcome.expect("nothing is left");
    for collection in [DEPLOYMENTS, SETS, LEASES, GPU_NODES] {
        assert_eq!(api.paths(collection), [""; 0], "{collection}");
    }
}
