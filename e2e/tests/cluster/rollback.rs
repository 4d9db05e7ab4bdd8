//! A rollout over all real nodes: canary, soak, a failure, and the way back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster::standin::DriverMode;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode,
    gpunode::RolloutStep,
    keys,
    policy::Stage,
    policy_status::{ClusterGpuPolicyStatus, RolloutStatus},
    reason::Reason,
};
use harness::wait::eventually;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{DEFAULT_DRIVER, Fixture, HOSTNAME, READY, everywhere};

const OTHER: &str = "590.10.01";

/// Applies a policy to all nodes, with this driver and these labels of pods.
async fn apply(nodes: &[Fixture], policies: Api<ClusterGpuPolicy>, driver: &str, pod_labels: Value) -> Result<()> {
    let names: Vec<String> = nodes.iter().map(|f| f.host.name()).collect();
    let spec = json!({
        "deletionPolicy": "Now",
        "images": {"registry": "localhost:5999"},
        "nodeSelector": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names.iter().map(String::as_str).chain(["of-no-node"]).collect::<Vec<_>>()}]},
        "podMetadata": {"labels": pod_labels},
        "defaults": {"driver": {"version": driver}},
        "rollout": {"canary": {"nodes": 1, "soak": "8s"}, "onFailure": "RollBack", "gpuPods": {"mode": "Await"}},
    });
    let policy = ClusterGpuPolicy::new("fleet", serde_json::from_value(spec)?);
    policies.patch("fleet", &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await?;
    Ok(())
}

async fn status(nodes: &[Fixture]) -> Result<ClusterGpuPolicyStatus> {
    let policy = nodes[0].policies().get("fleet").await?;
    let status = policy.status.context("no status")?;
    ensure!(status.observed_generation == policy.metadata.generation, "the policy has changed");
    Ok(status)
}

fn loaded(nodes: &[Fixture]) -> Vec<Option<String>> {
    nodes.iter().map(|f| f.host.standin().loaded_driver()).collect()
}

/// Returns the identities of the pods of all stages on all nodes.
async fn operands(nodes: &[Fixture]) -> Result<Vec<Option<String>>> {
    let mut uids = Vec::new();
    for f in nodes {
        for stage in Stage::ALL {
            uids.extend(f.operands(stage).await?.iter().map(ResourceExt::uid));
        }
    }
    Ok(uids)
}

#[test]
fn a_failure_after_the_canary_node_returns_all_nodes() {
    everywhere(async |mut nodes| {
        // Updates begin in the order of the names.
        nodes.sort_by_key(|f| f.host.name());
        nodes.truncate(3);
        let all_have = |driver: &str| nodes.iter().map(|_| Some(driver.to_owned())).collect::<Vec<_>>();
        apply(&nodes, nodes[0].policies(), DEFAULT_DRIVER, json!({})).await?;
        let ready = || async {
            let status = status(&nodes).await?;
            ensure!(
                status.nodes.ready == status.nodes.total && status.rollout == RolloutStatus::default(),
                "{status:?}"
            );
            Ok(())
        };
        eventually(READY, "a ready fleet", ready).await?;
        let before = operands(&nodes).await?;
        apply(&nodes, nodes[0].policies(), DEFAULT_DRIVER, json!({"team": "a"})).await?;
        eventually(READY, "the labels in effect", ready).await?;
        ensure!(operands(&nodes).await? == before, "a label of pods has recreated pods");

        let [canary, second, ..] = nodes.as_slice() else { bail!("too few nodes") };
        canary.run_gpu_pod("training").await?;
        // The installation of another driver does not end there.
        second.host.standin().set_driver_mode(&DriverMode::Hold)?;
        apply(&nodes, nodes[0].policies(), OTHER, json!({"team": "a"})).await?;
        // The canary node is cordoned until its pod has ended.
        eventually(READY, "the cordon of the canary node", || async {
            let node = canary.node().await?;
            ensure!(node.annotations().contains_key(keys::CORDON), "{:?}", node.spec);
            ensure!(node.spec.and_then(|spec| spec.unschedulable) == Some(true), "no cordon");
            Ok(())
        })
        .await?;
        ensure!(loaded(&nodes) == all_have(DEFAULT_DRIVER), "{:?}", loaded(&nodes));
        canary.cluster.kubectl(&["delete", "pod", "training", "-n", &canary.users()])?;
        second
            .wait_for_status("the soak of the canary node", |status| {
                ensure!(status.message.contains("canary nodes of this pool have to work until"), "{}", status.message);
                Ok(())
            })
            .await?;
        let mut canary_only = all_have(DEFAULT_DRIVER);
        canary_only[0] = Some(OTHER.to_owned());
        ensure!(loaded(&nodes) == canary_only, "{:?}", loaded(&nodes));
        canary.run_gpu_pod("on-the-new-driver").await?;
        canary.cluster.kubectl(&["delete", "pod", "on-the-new-driver", "-n", &canary.users()])?;

        eventually(READY, "the update of the second node", || async {
            let gpu_node = Api::<GpuNode>::all(second.cluster.client()).get(&second.host.name()).await?;
            let step = gpu_node.spec.rollout.map(|rollout| rollout.step);
            ensure!(step == Some(RolloutStep::Replace) && second.host.standin().loaded_driver().is_none(), "{step:?}");
            Ok(())
        })
        .await?;
        is_not_disturbed_by_others(&nodes).await?;
        // The second node fails, and the first one returns.
        second.host.standin().set_driver_mode(&DriverMode::Crash { message: "no kernel headers".into() })?;
        eventually(READY, "the decision to return", || async {
            let pools = status(&nodes).await?.rollout.pools;
            ensure!(pools.iter().any(|pool| pool.rolled_back.contains("no kernel headers")), "{pools:?}");
            Ok(())
        })
        .await?;
        second.host.standin().set_driver_mode(&DriverMode::Ok)?;
        eventually(READY, "all nodes with their first driver", || have_returned(&nodes)).await?;
        canary.run_gpu_pod("on-the-first-driver").await?;
        a_failed_driver_does_not_come_again(&nodes).await?;

        Ok(())
    });
}

async fn updates_begun(nodes: &[Fixture]) -> Result<Vec<u32>> {
    let gpu_nodes = Api::<GpuNode>::all(nodes[0].cluster.client());
    let updates = nodes.iter().map(|f| {
        let (gpu_nodes, name) = (gpu_nodes.clone(), f.host.name());
        async move { Ok(gpu_nodes.get(&name).await?.spec.updates_begun) }
    });
    futures::future::try_join_all(updates).await
}

/// Ends the processes of the container of a stage.
async fn crash_once(f: &Fixture, stage: Stage) -> Result<()> {
    let pod = f.operand(stage).await?;
    let statuses = pod.status.and_then(|status| status.container_statuses).context("no containers")?;
    let id = statuses[0].container_id.clone().context("no container")?;
    let id = id.rsplit('/').next().unwrap_or_default().to_owned();
    f.host.exec(&["ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", &id]).map(drop)
}

/// Neither a reboot of an updated node nor a crash of its device plugin is a failure of the update.
async fn is_not_disturbed_by_others(nodes: &[Fixture]) -> Result<()> {
    nodes[0].reboot()?;
    eventually(READY, "the new driver after the reboot", || async {
        ensure!(loaded(nodes)[0].as_deref() == Some(OTHER), "{:?}", loaded(nodes));
        ensure!(nodes[0].status().await?.is_ready(), "{:?}", nodes[0].status().await?);
        Ok(())
    })
    .await?;
    crash_once(&nodes[0], Stage::DevicePlugin).await?;
    eventually(READY, "the device plugin after its crash", || async {
        ensure!(nodes[0].status().await?.is_ready(), "{:?}", nodes[0].status().await?);
        Ok(())
    })
    .await?;
    let pools = status(nodes).await?.rollout.pools;
    ensure!(pools.iter().all(|pool| pool.rolled_back.is_empty() && pool.failed.is_empty()), "{pools:?}");
    Ok(())
}

async fn have_returned(nodes: &[Fixture]) -> Result<()> {
    ensure!(
        loaded(nodes) == nodes.iter().map(|_| Some(DEFAULT_DRIVER.to_owned())).collect::<Vec<_>>(),
        "{:?}",
        loaded(nodes)
    );
    let status = status(nodes).await?;
    ensure!(status.nodes.ready == status.nodes.total && status.rollout.slots.is_empty(), "{status:?}");
    let stalled = status.conditions.iter().find(|condition| condition.type_ == "Stalled");
    ensure!(stalled.is_some_and(|stalled| stalled.reason == Reason::RolledBack.as_str()), "{stalled:?}");
    for f in nodes {
        let node = f.node().await?;
        ensure!(!node.annotations().contains_key(keys::CORDON), "a cordon is left on {}", node.name_any());
    }
    Ok(())
}

/// The policy selects no node for half a minute.
async fn a_failed_driver_does_not_come_again(nodes: &[Fixture]) -> Result<()> {
    let updates = updates_begun(nodes).await?;
    apply(&[], nodes[0].policies(), OTHER, json!({"team": "a"})).await?;
    let left = Instant::now();
    eventually(READY, "nodes that have left for half a minute", || async {
        ensure!(left.elapsed() > Duration::from_secs(30) && status(nodes).await?.nodes.total == 0);
        Ok(())
    })
    .await?;
    apply(nodes, nodes[0].policies(), OTHER, json!({"team": "a"})).await?;
    eventually(READY, "all nodes with their first driver", || have_returned(nodes)).await?;
    nodes[0].wait_until_quiet("fleet", Duration::from_secs(5)).await?;
    ensure!(updates_begun(nodes).await? == updates, "the driver that failed is installed again");
    Ok(())
}
