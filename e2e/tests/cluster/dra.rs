//! Pools whose GPUs are allocated by a DRA driver, beside those with a device plugin: the same pods run on both, and claims survive the
//! driver's end and a reboot.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use gpu_operator_crd::{Phase, policy::Stage};
use harness::wait::eventually;
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{Fixture, GPUS, HOSTNAME, READY, long_test_on_two_nodes, started};

const DRIVER: &str = "gpu.nvidia.com";
/// The name of the claims, and of the pods that use them.
const CLAIMED: &str = "by-claim";
const PLAIN: &str = "by-resource";

/// Applies one policy with a pool of each kind, or with two that have a device plugin.
async fn apply(plugin: &Fixture, claims: &Fixture, mode: &str) -> Result<()> {
    let pool = |f: &Fixture, mode: &str| {
        json!({
            "name": f.host.name(),
            "match": {"nodeSelector": {"matchLabels": {HOSTNAME: f.host.name()}}},
            "allocation": {"mode": mode},
        })
    };
    let names = [plugin.host.name(), claims.host.name()];
    let policy = json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1",
        "kind": "ClusterGpuPolicy",
        "metadata": {"name": plugin.policy_with(claims)},
        "spec": {
            "deletionPolicy": "Now",
            "images": {"registry": "localhost:5999"},
            "nodeSelector": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]},
            "pools": [pool(plugin, "DevicePlugin"), pool(claims, mode)],
        },
    });
    let params = PatchParams::apply("test").force();
    plugin.policies().patch(&plugin.policy_with(claims), &params, &Patch::Apply(&policy)).await?;
    Ok(())
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let text = client.request_text(http::Request::get(path).body(Vec::new())?).await?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the names of the GPUs in a node's slices.
async fn published(client: &Client, node: &str) -> Result<BTreeSet<String>> {
    let path =
        format!("/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName={node},spec.driver={DRIVER}");
    let slices = get(client, &path).await?;
    let devices =
        slices["items"].as_array().into_iter().flatten().filter_map(|slice| slice["spec"]["devices"].as_array());
    Ok(devices.flatten().filter_map(|device| Some(device["name"].as_str()?.to_owned())).collect())
}

/// Fails once the GPUs of a node are both allocatable and in slices, by which two pods would get one GPU.
async fn offered_twice(client: Client, node: String) -> Result<()> {
    loop {
        // What is in slices before and after is so in between.
        let before = published(&client, &node).await.unwrap_or_default();
        if let Ok(object) = get(&client, &format!("/api/v1/nodes/{node}")).await {
            let allocatable = object["status"]["allocatable"]["nvidia.com/gpu"].as_str().unwrap_or("0");
            let after = published(&client, &node).await.unwrap_or_default();
            ensure!(
                allocatable == "0" || before.is_empty() || after.is_empty(),
                "{allocatable} GPUs of {node} are allocatable, and its slices have {after:?}"
            );
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Prints the nodes, for people who read the test's log.
fn show(f: &Fixture, step: &str) -> Result<()> {
    eprintln!("-- {step}\n{}", f.cluster.kubectl(&["get", "gpunodes"])?);
    Ok(())
}

/// Waits until a node is Ready with this number of GPUs allocatable, and in slices.
async fn wait_for_gpus(f: &Fixture, allocatable: u32, claims: u32) -> Result<()> {
    let name = f.host.name();
    eventually(READY, &format!("{name} with {allocatable} allocatable GPUs and {claims} in slices"), || async {
        let devices = published(&f.cluster.client(), &name).await?;
        let found = (f.allocatable().await?, u32::try_from(devices.len())?);
        ensure!(found == (allocatable, claims), "{found:?}");
        let status = f.status().await?;
        ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
        Ok(())
    })
    .await
}

/// Creates a claim for one GPU, and a pod that uses it and is restarted when it ends.
async fn create_claimed(f: &Fixture) -> Result<()> {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": DRIVER}});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": CLAIMED},
        "spec": {"devices": {"requests": [request]}},
    });
    let path = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", f.users());
    let create =
        http::Request::post(path).header("Content-Type", "application/json").body(serde_json::to_vec(&claim)?)?;
    f.cluster.client().request_text(create).await.context("creating the claim")?;
    let mut pod = f.gpu_pod(CLAIMED, &["/usr/bin/entrypoint", "hold"]);
    pod["spec"]["restartPolicy"] = "Always".into();
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": CLAIMED}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    f.create(pod).await
}

/// Returns the GPU that a pod sees.
fn gpu_of(f: &Fixture, pod: &str) -> Result<String> {
    f.sees_one_gpu(pod)?;
    let is_gpu = |file: &String| file.strip_prefix("nvidia").is_some_and(|minor| minor.parse::<u32>().is_ok());
    f.lists(pod, "/dev")?.into_iter().find(is_gpu).context("no GPU")
}

/// Deletes one of the test's own pods, and waits until it is gone.
async fn delete(f: &Fixture, pod: &str) -> Result<()> {
    f.cluster.kubectl(&["delete", "pod", pod, "-n", &f.users(), "--wait=false"])?;
    eventually(READY, &format!("the end of pod {pod}"), || async {
        match f.pods(&f.users()).get_opt(pod).await? {
            Some(left) => bail!("{:?}", left.status.and_then(|status| status.phase)),
            None => Ok(()),
        }
    })
    .await
}

/// Deletes the pod that uses the claim, and then the claim, which is unprepared by then.
async fn delete_claimed(f: &Fixture) -> Result<()> {
    delete(f, CLAIMED).await?;
    f.cluster.kubectl(&["delete", "resourceclaim", CLAIMED, "-n", &f.users(), "--timeout=5m"]).map(drop)
}

fn start_of(pod: &Pod) -> Result<Timestamp> {
    started(pod).context("the pod's container is not running")
}

/// Kills the DRA driver while a claim is prepared, and deletes the pod that has it before the next driver is running.
async fn the_driver_ends_before_a_pod(f: &Fixture) -> Result<()> {
    let before = f.runs(CLAIMED).await?;
    let gpu = gpu_of(f, CLAIMED)?;
    f.remake(Stage::DevicePlugin).await?;
    wait_for_gpus(f, 0, GPUS).await?;
    let after = f.runs(CLAIMED).await?;
    ensure!(start_of(&after)? == start_of(&before)?, "the pod's container was restarted");
    ensure!(gpu_of(f, CLAIMED)? == gpu, "the pod has another GPU");
    show(f, "the DRA driver's pod was replaced under a pod with a claim")?;

    let driver = f.operand(Stage::DevicePlugin).await?.name_any();
    f.cluster.kubectl(&["delete", "pod", &driver, "-n", f.cluster.namespace(), "--grace-period=1", "--wait=false"])?;
    delete_claimed(f).await?;
    wait_for_gpus(f, 0, GPUS).await?;
    show(f, "the pod has ended beside a restarted DRA driver")
}

/// Reboots the node while a claim is prepared. The pod is started again once the driver is loaded and its claim is prepared.
async fn the_node_reboots_with_a_claim(f: &Fixture) -> Result<()> {
    create_claimed(f).await?;
    let before = start_of(&f.runs(CLAIMED).await?)?;
    f.reboot()?;
    show(f, "the node was rebooted with a prepared claim")?;
    f.wait_for_driver().await?;
    eventually(READY, "the pod, started again", || async {
        let pod = f.pods(&f.users()).get(CLAIMED).await?;
        ensure!(start_of(&pod)? > before, "the container from before the reboot");
        Ok(())
    })
    .await?;
    gpu_of(f, CLAIMED)?;
    wait_for_gpus(f, 0, GPUS).await?;
    show(f, "the node and its pod are back")?;
    delete_claimed(f).await
}

#[test]
fn both_kinds_of_pools_run_the_same_pods() {
    long_test_on_two_nodes(async |plugin, claims| {
        let watches = [&plugin, &claims].map(|f| tokio::spawn(offered_twice(f.cluster.client(), f.host.name())));
        apply(&plugin, &claims, "DRA").await?;
        wait_for_gpus(&plugin, GPUS, 0).await?;
        wait_for_gpus(&claims, 0, GPUS).await?;
        show(&claims, "one policy, one pool of each kind")?;

        for f in [&plugin, &claims] {
            f.run_gpu_pod(PLAIN).await?;
            f.sees_one_gpu(PLAIN)?;
        }
        create_claimed(&claims).await?;
        claims.runs(CLAIMED).await?;
        let (plain, claimed) = (gpu_of(&claims, PLAIN)?, gpu_of(&claims, CLAIMED)?);
        ensure!(plain != claimed, "both pods have {plain}");
        show(&claims, "pods by resource on both nodes, and one by claim")?;

        the_driver_ends_before_a_pod(&claims).await?;
        delete(&claims, PLAIN).await?;
        the_node_reboots_with_a_claim(&claims).await?;

        // No GPU of the node is in use, so it changes at once.
        apply(&plugin, &claims, "DevicePlugin").await?;
        wait_for_gpus(&claims, GPUS, 0).await?;
        show(&claims, "the second pool has a device plugin as well")?;
        claims.run_gpu_pod(PLAIN).await?;
        plugin.sees_one_gpu(PLAIN)?;

        for watch in watches {
            if watch.is_finished() {
                watch.await??;
            }
        }
        Ok(())
    });
}
