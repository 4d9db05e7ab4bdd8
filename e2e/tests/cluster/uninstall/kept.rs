//! An uninstallation that keeps what runs, and the installation that adopts it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use kube::ResourceExt;

use super::{PUBLISHED, uninstall};
use crate::support::{DEFAULT_DRIVER, Fixture, GPUS, PLAIN_STAGES, READY};

/// Returns the UID of each pod of an operand, and how often its containers have been restarted.
async fn operands(nodes: [&Fixture; 3]) -> Result<BTreeMap<String, (Option<String>, i32)>> {
    let mut found = BTreeMap::new();
    for f in nodes {
        for stage in PLAIN_STAGES {
            for pod in f.operands(stage).await? {
                let containers = pod.status.iter().filter_map(|status| status.container_statuses.as_ref()).flatten();
                let restarts = containers.map(|container| container.restart_count).sum();
                found.insert(pod.name_any(), (pod.uid(), restarts));
            }
        }
    }
    Ok(found)
}

/// Returns whether the operator has cordoned the node.
async fn is_cordoned(f: &Fixture) -> Result<bool> {
    let node = f.node().await?;
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
    ensure!(
        cordoned == node.annotations().contains_key(keys::CORDON),
        "a cordon without its record, or the record alone"
    );
    Ok(cordoned)
}

/// Waits until the operator has cordoned the node, because its update awaits a pod.
async fn awaits(f: &Fixture) -> Result<()> {
    f.wait_for_reason(Reason::GpuPodsInUse).await?;
    eventually(READY, "a cordon", || async {
        ensure!(is_cordoned(f).await?);
        Ok(())
    })
    .await
}

/// Checks that nothing is left on a node that only an operator can undo.
async fn is_quiet(f: &Fixture) -> Result<()> {
    ensure!(!is_cordoned(f).await?, "{} is cordoned", f.host.name());
    let node = f.node().await?;
    ensure!(!node.labels().contains_key(keys::CLIENTS), "{:?}", node.labels());
    ensure!(node.labels().contains_key(keys::PRESENT) && node.labels().contains_key(PUBLISHED), "{:?}", node.labels());
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().all(|condition| !condition.type_.starts_with(keys::PREFIX)), "{conditions:?}");
    let status = f.policies().get(&f.policy).await?.status.context("no status")?;
    let reason = Reason::OperatorUninstalled.as_str();
    ensure!(status.summary.status == "Unknown" && status.summary.reason == reason, "{:?}", status.summary);
    ensure!(
        status.conditions.iter().all(|it| it.status == "Unknown" && it.reason == reason),
        "{:?}",
        status.conditions
    );
    Ok(())
}

/// Uninstalls the chart while an update awaits a pod, lets pods and a node start without an operator, and installs the chart again. The first
/// of the nodes has a GPU pod.
pub async fn what_runs_is_kept_and_adopted(nodes: [&Fixture; 3]) -> Result<()> {
    let [f, other, _] = nodes;
    f.apply(&format!(
        "{{deletionPolicy: WhenIdle, rollout: {{gpuPods: {{mode: Await}}}}, readiness: {{nodeCondition: true}}, nodeLabels: [{{key: {PUBLISHED}}}],
          defaults: {{driver: {{version: 590.10.01}}}}}}"
    ))
    .await?;
    awaits(f).await?;
    let before = operands(nodes).await?;
    uninstall(f, &[])?;
    for f in nodes {
        is_quiet(f).await?;
    }
    ensure!(operands(nodes).await? == before, "operands were restarted");
    let namespaced = |kinds: &str| f.cluster.kubectl(&["get", kinds, "-n", f.cluster.namespace(), "-o", "name"]);
    let gone = namespaced("deployments,jobs,leases")?;
    ensure!(gone.is_empty(), "{gone}");

    // What is deleted or restarted comes back by itself.
    f.remake(Stage::DevicePlugin).await?;
    f.wait_for_allocatable(GPUS, READY).await?;
    other.reboot_with_driver().await?;

    let before = operands(nodes).await?;
    f.cluster.install_chart()?;
    // The update goes on, and awaits the same pod.
    awaits(f).await?;
    for f in nodes {
        f.wait_until_ready().await?;
    }
    ensure!(operands(nodes).await? == before, "the installation has restarted operands");
    ensure!(f.host.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER), "the driver was replaced under a pod");
    Ok(())
}
