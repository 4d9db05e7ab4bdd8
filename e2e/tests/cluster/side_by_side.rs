//! Different nodes with one policy: each gets its own variant, and changes of one node do not affect the others.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use cluster::{
    node::runtime::Runtime,
    standin::{DriverMode, Gpu},
};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys, policy::Stage, reason::Reason, stage::Phase};
use harness::wait::eventually;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{Fixture, HOSTNAME, READY, everywhere};

/// The time without writes after which reports have caught up with the allocatable GPUs.
const QUIET: Duration = Duration::from_secs(5);

/// GPUs of three generations, each with its own driver DaemonSet.
fn machines() -> [(Vec<Gpu>, &'static str); 3] {
    [
        (Gpu::h100(8), "nvidia-h100-80gb"),
        (Gpu::several(4, "Tesla P100-PCIE-16GB", 0x15f8, 16_280), "nvidia-tesla-p100"),
        (Gpu::several(1, "Tesla T4", 0x1eb8, 15_360), "nvidia-tesla-t4"),
    ]
}

async fn is_ready(f: &Fixture, model: &str) -> Result<()> {
    f.wait_for_status(&format!("{} ready", f.host.name()), |status| {
        ensure!(status.phase == Phase::Ready, "{:?}: {}", status.reason, status.message);
        ensure!(status.model.as_deref() == Some(model), "{:?}", status.model);
        Ok(())
    })
    .await
}

/// Returns a Node without the fields that its kubelet updates while nothing changes.
fn without_heartbeats(mut node: Value) -> Value {
    node["metadata"]["resourceVersion"].take();
    node["metadata"]["managedFields"].take();
    for condition in node["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"].take();
    }
    node
}

/// Returns the identity of a pod and of its containers. Kubelet updates the rest of its status up to a minute after its
/// start.
fn what_runs(pod: &Value) -> Value {
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let containers: Vec<_> =
        containers.map(|container| json!([container["containerID"], container["restartCount"]])).collect();
    json!({"uid": pod["metadata"]["uid"], "generation": pod["metadata"]["generation"], "containers": containers})
}

fn by_name<K: Resource + serde::Serialize>(objects: Vec<K>) -> Result<BTreeMap<String, Value>> {
    objects.into_iter().map(|object| Ok((object.name_any(), serde_json::to_value(object)?))).collect()
}

/// Returns all objects of a node: its Node, its GpuNode, its pods, and the DaemonSets of its model.
async fn all_of(f: &Fixture, model: &str) -> Result<BTreeMap<String, Value>> {
    let (client, name) = (f.cluster.client(), f.host.name());
    let mut all = BTreeMap::new();
    let node = Api::<Node>::all(client.clone()).get(&name).await?;
    all.insert("its Node".to_owned(), without_heartbeats(serde_json::to_value(node)?));
    all.insert("its GpuNode".to_owned(), serde_json::to_value(Api::<GpuNode>::all(client.clone()).get(&name).await?)?);
    let here = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let pods = Api::<Pod>::all(client.clone()).list(&here).await?.items;
    all.extend(by_name(pods)?.into_iter().map(|(name, pod)| (name, what_runs(&pod))));
    let sets = Api::<DaemonSet>::namespaced(client, f.cluster.namespace()).list(&ListParams::default()).await?;
    all.extend(by_name(sets.items)?.into_iter().filter(|(name, _)| name.contains(model)));
    Ok(all)
}

/// Changes the last node, waits until the change is complete, and checks that nothing of the other nodes has changed.
async fn affects_only_the_last(
    nodes: &[(Fixture, &str)],
    what: &str,
    happen: impl AsyncFnOnce(&Fixture) -> Result<()>,
) -> Result<()> {
    let ((last, model), others) = nodes.split_last().context("no node")?;
    let before = others_of(others).await?;
    happen(last).await.with_context(|| what.to_owned())?;
    is_ready(last, model).await.with_context(|| format!("after: {what}"))?;
    last.wait_for_allocatable(1, READY).await?;
    let after = others_of(others).await?;
    ensure!(before == after, "{what}: {}", json_patch::diff(&json!(before), &json!(after)));
    Ok(())
}

async fn others_of(others: &[(Fixture, &str)]) -> Result<Vec<BTreeMap<String, Value>>> {
    futures::future::try_join_all(others.iter().map(|(f, model)| all_of(f, model))).await
}

/// Sets the Node's condition as the controller manager does after the node has been unreachable for some time.
async fn mark_unreachable(f: &Fixture) -> Result<()> {
    let mut node = f.node().await?;
    let conditions = node.status.as_mut().and_then(|status| status.conditions.as_mut()).context("no conditions")?;
    let ready = conditions.iter_mut().find(|condition| condition.type_ == "Ready").context("no condition Ready")?;
    ready.status = "Unknown".into();
    ready.reason = Some("NodeStatusUnknown".into());
    let patch = json!({"status": {"conditions": [ready]}});
    let nodes = Api::<Node>::all(f.cluster.client());
    nodes.patch_status(&f.host.name(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}

/// Applies one policy without any settings to these nodes.
async fn apply_to_all(nodes: impl Iterator<Item = &Fixture> + Clone) -> Result<()> {
    let names: Vec<String> = nodes.clone().map(|f| f.host.name()).collect();
    let spec = json!({
        "images": {"registry": "localhost:5999"},
        "nodeSelector": {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": names}]},
    });
    let policy = ClusterGpuPolicy::new("fleet", serde_json::from_value(spec)?);
    for f in nodes.take(1) {
        f.policies().patch("fleet", &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await?;
    }
    Ok(())
}

#[test]
fn changes_of_one_node_do_not_affect_the_others() {
    everywhere(async |mut fixtures| {
        // The operator's node comes first, so that it is not the one that changes: another test covers the operator.
        let operators = fixtures[0].operators_node().await?;
        fixtures.sort_by_key(|f| f.host.name() != operators);
        let mut nodes = Vec::new();
        for (f, (gpus, model)) in fixtures.into_iter().zip(machines()) {
            f.plug(&gpus).await?;
            nodes.push((f, model));
        }
        let policies = nodes[0].0.policies();
        apply_to_all(nodes.iter().map(|(f, _)| f)).await?;
        for (f, model) in &nodes {
            is_ready(f, model).await?;
        }
        let status = eventually(READY, "a ready policy", || async {
            let status = policies.get("fleet").await?.status.context("no status")?;
            ensure!(status.nodes.ready == 3 && status.gpus.allocatable == 13, "{:?} {:?}", status.nodes, status.gpus);
            Ok(status)
        })
        .await?;
        let mut pools: Vec<_> = status.pools.iter().map(|pool| pool.name.as_str()).collect();
        pools.sort_unstable();
        ensure!(pools == ["nvidia-h100-80gb", "nvidia-tesla-p100", "nvidia-tesla-t4"], "{pools:?}");
        let cluster = &nodes[0].0.cluster;
        let drivers = format!("{}={}", keys::STAGE, Stage::Driver.as_str());
        let sets = cluster.kubectl(&["get", "daemonsets", "-n", cluster.namespace(), "-l", &drivers, "-o", "name"])?;
        ensure!(sets.lines().count() == 3, "{sets}");
        for (f, _) in &nodes {
            f.wait_until_quiet("fleet", QUIET).await?;
        }

        affects_only_the_last(&nodes, "containerd is restarted", async |f| f.host.restart_containerd()).await?;
        affects_only_the_last(&nodes, "kubelet is stopped for some time", async |f| {
            f.host.stop_kubelet()?;
            mark_unreachable(f).await?;
            f.wait_for_reason(Reason::NodeNotReady).await?;
            f.host.restart_kubelet()
        })
        .await?;
        affects_only_the_last(&nodes, "the driver fails", async |f| {
            f.host.standin().set_driver_mode(&DriverMode::Crash { message: "no kernel headers".into() })?;
            let driver = f.operand(Stage::Driver).await?.name_any();
            f.cluster.kubectl(&["delete", "pod", &driver, "-n", f.cluster.namespace()])?;
            let message = f.wait_for_reason(Reason::ContainerCrashed).await?;
            ensure!(message.contains("no kernel headers"), "{message}");
            f.host.standin().set_driver_mode(&DriverMode::Ok)
        })
        .await
    });
}

#[test]
fn hosts_of_four_kinds_get_their_own_variants_under_one_policy() {
    everywhere(async |fixtures| {
        let of = |runtime| fixtures.iter().filter(move |f| f.host.runtime() == runtime);
        let mut newest = of(Runtime::Containerd2);
        let (Some(plain), Some(with_driver)) = (newest.next(), newest.next()) else { bail!("too few nodes") };
        let old = of(Runtime::Containerd1).next().context("no node with containerd 1.7")?;
        let docker = of(Runtime::Docker).next().context("no node with Docker")?;
        let all = [plain, old, with_driver, docker];
        // containerd keeps the configuration of an earlier test loaded until it is restarted.
        old.host.restart_containerd()?;
        let starts = || all.iter().map(|f| f.host.containerd_starts()).collect::<Result<Vec<_>>>();
        let before = starts()?;
        // As in an operating system image with a driver.
        with_driver.load_host_driver("580.173.02").await?;
        apply_to_all(all.into_iter()).await?;
        for f in all {
            is_ready(f, "nvidia-h100-80gb").await?;
        }
        let mut drivers = Vec::new();
        for f in all {
            drivers.push(!f.operands(Stage::Driver).await?.is_empty());
        }
        ensure!(drivers == [true, true, false, true], "wrong nodes have a driver pod: {drivers:?}");
        let restarts: Vec<usize> = starts()?.iter().zip(&before).map(|(after, before)| after - before).collect();
        ensure!(restarts == [0, 1, 0, 0], "containerd was not restarted only on the node that needs it: {restarts:?}");
        for f in all {
            f.run_gpu_pod("user").await?;
            f.sees_one_gpu("user").with_context(|| f.host.name())?;
        }
        Ok(())
    });
}
