//! Nodes that a policy no longer governs: nothing is taken from running GPU pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{GpuNode, PolicyName, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};

use crate::support::{Fixture, PLAIN_STAGES, READY, long_test};

/// The finalizer that the garbage collector removes once it has deleted what the object owns.
const COLLECTING: &str = "foregroundDeletion";

/// Returns the name, the uid and the restarts of a pod.
fn identity(pod: &Pod) -> (String, Option<String>, Vec<i32>) {
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let restarts = status.into_iter().flatten().map(|container| container.restart_count).collect();
    (pod.name_any(), pod.uid(), restarts)
}

/// Returns the identities of the node's operands and of its GPU pod.
async fn running(f: &Fixture) -> Result<Vec<(String, Option<String>, Vec<i32>)>> {
    let mut pods = vec![identity(&f.pods(&f.users()).get("training").await?)];
    for stage in PLAIN_STAGES {
        pods.push(identity(&f.operand(stage).await?));
    }
    Ok(pods)
}

#[test]
fn a_lost_selector_or_policy_does_not_affect_running_pods() {
    long_test(async |f| {
        f.apply("{deletionPolicy: WhenIdle}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("training").await?;
        let before = running(&f).await?;

        // A selector that matches nothing, for half of the grace period.
        f.apply("{deletionPolicy: WhenIdle, nodeSelector: {matchLabels: {no: node}}}").await?;
        f.wait_for_reason(Reason::Leaving).await?;
        // That nothing happens is the subject of this part.
        tokio::time::sleep(Duration::from_secs(30)).await;
        f.apply("{deletionPolicy: WhenIdle}").await?;
        f.wait_until_ready().await?;
        ensure!(running(&f).await? == before, "{before:?}, {:?}", running(&f).await?);

        // Argo CD deletes a renamed policy in the foreground.
        let successor = f.successor();
        successor.apply("{defaults: {driver: {version: 590.10.01}}}").await?;
        let delete = ["delete", "clustergpupolicy", &f.policy, "--cascade=foreground", "--wait=false"];
        f.cluster.kubectl(&delete)?;
        eventually(READY, "the end of the garbage collection", || async {
            let policy = f.policies().get(&f.policy).await.context("the policy is gone before its nodes have left")?;
            ensure!(!policy.finalizers().iter().any(|finalizer| finalizer == COLLECTING), "{:?}", policy.finalizers());
            let gpu_node = Api::<GpuNode>::all(f.cluster.client()).get(&f.host.name()).await?;
            let policy = gpu_node.spec.policy.as_ref().map(PolicyName::as_str);
            ensure!(policy == Some(&successor.policy), "{:?}", gpu_node.spec);
            Ok(())
        })
        .await?;
        successor.wait_for_reason(Reason::GpuPodsInUse).await?;
        ensure!(running(&f).await? == before, "{before:?}, {:?}", running(&f).await?);

        // Once the pod has ended, the node moves to the successor, and the policy is gone.
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        eventually(READY, "the end of the policy", || async {
            let left = f.policies().get_opt(&f.policy).await?;
            ensure!(left.is_none(), "{:?}", left.and_then(|policy| policy.status).map(|status| status.summary));
            Ok(())
        })
        .await?;
        successor.wait_until_ready().await?;

        // A deleted policy without a successor waits for the pods, and names them.
        successor.apply("{deletionPolicy: WhenIdle, defaults: {driver: {version: 590.10.01}}}").await?;
        f.run_gpu_pod("training").await?;
        let driver = identity(&f.operand(Stage::Driver).await?);
        f.cluster.kubectl(&["delete", "clustergpupolicy", &successor.policy, "--wait=false"])?;
        let pod = format!("{}/training", f.users());
        eventually(READY, "the policy's status with the pod", || async {
            let status = successor.policies().get(&successor.policy).await?.status.context("no status")?;
            ensure!(status.nodes.leaving == 1 && status.summary.message.contains(&pod), "{:?}", status.summary);
            Ok(())
        })
        .await?;
        ensure!(f.status().await?.waits_on == [pod], "{:?}", f.status().await?.waits_on);
        ensure!(identity(&f.operand(Stage::Driver).await?) == driver, "the driver's pod was recreated");
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        f.cluster.kubectl(&["wait", "--for=delete", "clustergpupolicy", &successor.policy, "--timeout=5m"])?;
        ensure!(f.operators_labels(&[]).await?.is_empty(), "{:?}", f.operators_labels(&[]).await?);
        Ok(())
    });
}
