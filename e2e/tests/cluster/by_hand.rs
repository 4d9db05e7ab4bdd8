//! Manual changes by users, to the operator's objects and to their own nodes.

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, ResourceExt, api::ListParams};

use crate::support::{Fixture, GPUS, READY, started, test};

/// Returns the single DaemonSet of a stage.
async fn set_of(f: &Fixture, stage: Stage) -> Result<DaemonSet> {
    let api = Api::<DaemonSet>::namespaced(f.cluster.client(), f.cluster.namespace());
    let of_stage = ListParams::default().labels(&format!("{}={},{}", keys::STAGE, stage.as_str(), f.of_policy()));
    api.list(&of_stage).await?.items.pop().context("no DaemonSet")
}

#[test]
fn an_edited_daemon_set_is_restored_and_no_pod_is_recreated() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.wait_until_settled(std::time::Duration::from_secs(2)).await?;
        let before = set_of(&f, Stage::DevicePlugin).await?;
        let pod = f.operand(Stage::DevicePlugin).await?;
        let name = before.name_any();
        let edits = [
            // One of the operator's fields is changed, one is removed, and a field is added.
            r#"[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.com/other:1"}]"#,
            r#"[{"op": "remove", "path": "/spec/template/spec/tolerations"}]"#,
            r#"[{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": true}]"#,
            r#"[{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": "ADDED", "value": "1"}}]"#,
        ];
        let namespace = f.cluster.namespace();
        for edit in edits {
            f.cluster.kubectl(&["patch", "daemonset", &name, "-n", namespace, "--type=json", "-p", edit])?;
            eventually(READY, "the restored DaemonSet", || async {
                let after = set_of(&f, Stage::DevicePlugin).await?;
                ensure!(after.spec == before.spec, "{edit}: {:?}", after.spec);
                Ok(())
            })
            .await?;
        }
        f.wait_until_settled(std::time::Duration::from_secs(3)).await?;
        ensure!(f.operand(Stage::DevicePlugin).await?.metadata.uid == pod.metadata.uid, "the pod was recreated");
        f.cluster.kubectl(&["delete", "daemonset", &name, "-n", namespace])?;
        eventually(READY, "the recreated DaemonSet", || async {
            let after = set_of(&f, Stage::DevicePlugin).await?;
            ensure!(after.metadata.uid != before.metadata.uid && after.spec == before.spec, "{:?}", after.metadata);
            Ok(())
        })
        .await?;
        // Its pod is deleted with the old DaemonSet. The node's status may be older than that.
        eventually(READY, "a new pod, and its GPUs", || async {
            let new = f.operand(Stage::DevicePlugin).await?;
            ensure!(new.metadata.uid != pod.metadata.uid && started(&new).is_some(), "{:?}", new.metadata);
            ensure!(f.allocatable().await? == GPUS, "{} are allocatable", f.allocatable().await?);
            Ok(())
        })
        .await?;
        f.wait_for_condition("Ready", "True").await
    });
}

#[test]
fn a_node_that_opts_out_loses_its_labels_and_can_opt_in_again() {
    test(async |f| {
        f.apply("{nodeLabels: [{key: accelerator}]}").await?;
        f.wait_until_ready().await?;
        let node = &f.host.name();
        f.cluster.kubectl(&["label", "node", node, &format!("{}=false", keys::MANAGED)])?;
        f.wait_for_reason(Reason::OptedOut).await?;
        f.wait_for_no_operands().await?;
        let left = f.operators_labels(&["accelerator"]).await?;
        ensure!(left.keys().collect::<Vec<_>>() == [keys::MANAGED], "{left:?}");
        f.cluster.kubectl(&["label", "node", node, &format!("{}-", keys::MANAGED)])?;
        f.wait_until_ready().await
    });
}

#[test]
fn a_label_that_contradicts_the_hardware_is_reported_and_kept() {
    test(async |f| {
        let node = &f.host.name();
        let key = "cloud.google.com/gke-accelerator";
        f.cluster.kubectl(&["label", "node", node, &format!("{key}=nvidia-tesla-k80")])?;
        f.apply("{}").await?;
        let reported = f.wait_for_reason(Reason::LabelMismatch).await;
        let kept = f.node().await?.labels().get(key).cloned();
        f.cluster.kubectl(&["label", "node", node, &format!("{key}-")])?;
        let message = reported?;
        ensure!(message.contains("nvidia-tesla-k80") && message.contains("nvidia-h100-80gb"), "{message}");
        ensure!(kept.as_deref() == Some("nvidia-tesla-k80"), "{kept:?}");
        f.wait_until_ready().await
    });
}
