//! After every kind of restart the node becomes ready again without intervention.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::policy::Stage;
use harness::wait::eventually;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{EvictParams, ListParams},
};

use crate::{
    health::{FAST, a_fault_is_reported_without_an_operator},
    support::{DEFAULT_DRIVER, Fixture, GPUS, PLAIN_STAGES, READY, alone, long_test, test},
};

async fn wait_for_a_working_gpu_pod(f: &Fixture, name: &str) -> Result<()> {
    f.wait_until_ready().await?;
    f.run_gpu_pod(name).await
}

/// Returns how often the plugin has registered with a kubelet.
async fn registrations(f: &Fixture) -> Result<usize> {
    let plugin = f.operand(Stage::DevicePlugin).await?.name_any();
    let log = f.cluster.kubectl(&["logs", "-n", f.cluster.namespace(), &plugin, "-c", "device-plugin"])?;
    Ok(log.lines().filter(|line| line.contains("Registered device plugin for")).count())
}

#[test]
fn a_node_recovers_from_a_restart_of_each_operand() {
    long_test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        for stage in PLAIN_STAGES {
            f.remake(stage).await?;
            f.wait_until_ready().await?;
        }
        wait_for_a_working_gpu_pod(&f, "after-restarts").await
    });
}

#[test]
fn a_node_recovers_from_a_restart_of_kubelet_and_containerd() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let before = registrations(&f).await?;
        f.host.restart_containerd()?;
        f.host.restart_kubelet()?;
        f.cluster.kubectl(&["wait", "--for=condition=Ready", "node", &f.host.name(), "--timeout=5m"])?;
        // A restarted kubelet has no plugins, and rejects GPU pods until the plugins have registered again. Its Node
        // may still show their GPUs meanwhile.
        eventually(READY, "the plugin's registration with the new kubelet", || async {
            ensure!(registrations(&f).await? > before);
            Ok(())
        })
        .await?;
        // The new kubelet may publish no GPUs at first, and the operator's earlier status stays for a short time.
        f.wait_for_allocatable(GPUS, READY).await?;
        wait_for_a_working_gpu_pod(&f, "after-kubelet").await
    });
}

#[test]
fn a_node_recovers_from_a_reboot() {
    alone(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let boot = f.status().await?.report.map(|report| report.driver.loaded);
        ensure!(boot == Some(Some(DEFAULT_DRIVER.to_owned())), "{boot:?}");
        // The reboot unloads the driver, and the same DaemonSet's pod loads it again. The status from before the reboot stays until the
        // operator is running again.
        f.reboot_with_driver().await?;
        wait_for_a_working_gpu_pod(&f, "after-reboot").await
    });
}

/// Sets the number of the operator's replicas by the chart.
fn scale(f: &Fixture, replicas: u32) -> Result<String> {
    let (chart, values) = (f.cluster.chart().display().to_string(), f.cluster.values().display().to_string());
    let replicas = format!("operator.replicas={replicas}");
    let namespace = f.cluster.namespace();
    f.cluster.helm(&[
        "upgrade",
        f.cluster.release(),
        &chart,
        "--namespace",
        namespace,
        "--values",
        &values,
        "--set",
        &replicas,
        "--wait",
        "--timeout",
        "2m",
    ])
}

/// Returns the name of the pod that leads, as soon as it is another one than `before`.
async fn leader(f: &Fixture, before: &str) -> Result<String> {
    let leases = Api::<Lease>::namespaced(f.cluster.client(), f.cluster.namespace());
    eventually(READY, "the next leader", || async {
        let holder = leases.get("nodestack-gpu-operator").await?.spec.and_then(|spec| spec.holder_identity);
        let holder = holder.filter(|holder| !holder.is_empty() && holder != before).context("no leader")?;
        // A pod that was killed holds the Lease until it expires.
        f.pods(f.cluster.namespace()).get(&holder).await?;
        Ok(holder)
    })
    .await
}

/// Evicts the leader of two replicas, and waits until another one leads.
async fn hand_over(f: &Fixture) -> Result<()> {
    scale(f, 2)?;
    // Both are ready, and the budget knows it.
    let budget = ["wait", "poddisruptionbudget/nodestack-gpu-operator", "--for=jsonpath={.status.currentHealthy}=2"];
    f.cluster.kubectl(&[&budget[..], &["-n", f.cluster.namespace(), "--timeout=5m"]].concat())?;
    let first = leader(f, "").await?;
    f.pods(f.cluster.namespace()).evict(&first, &EvictParams::default()).await?;
    leader(f, &first).await?;
    f.wait_until_ready().await
}

/// Returns the number of restarts of all containers in the operator's namespace.
async fn restarts(f: &Fixture) -> Result<i32> {
    let pods = f.pods(f.cluster.namespace()).list(&ListParams::default()).await?;
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    Ok(statuses.map(|container| container.restart_count).sum())
}

async fn operands(f: &Fixture) -> Result<Vec<Option<String>>> {
    let mut uids = Vec::new();
    for stage in PLAIN_STAGES {
        uids.push(f.operand(stage).await?.metadata.uid);
    }
    Ok(uids)
}

#[test]
fn a_settled_operator_writes_nothing_and_may_be_away() {
    alone(async |f| {
        // Earlier tests may have restarted operator and probe.
        let before = restarts(&f).await?;
        f.apply(FAST).await?;
        f.wait_until_ready().await?;
        // The report follows allocatable shortly after; from then on nothing may change.
        f.wait_until_settled(Duration::from_secs(10)).await?;
        let after = restarts(&f).await?;
        ensure!(after == before, "{before} restarts before, {after} after");

        f.run_gpu_pod("busy").await?;
        let before = operands(&f).await?;
        let outcome = hand_over(&f).await;
        // This ends one of the two replicas, whichever leads.
        scale(&f, 1)?;
        outcome?;
        a_fault_is_reported_without_an_operator(&f).await?;
        ensure!(operands(&f).await? == before, "pods were recreated");
        Ok(())
    });
}
