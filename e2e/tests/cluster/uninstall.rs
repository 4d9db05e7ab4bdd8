//! Uninstalling leaves nothing behind, and installing again works.

use std::time::Duration;

use anyhow::ensure;
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{Patch, PatchParams},
};

use crate::support::{READY, alone, test};

#[test]
fn uninstalling_leaves_nothing_and_installing_again_works() {
    alone(async |f| {
        let keep = "example.com/mine";
        f.cluster.kubectl(&["label", "--overwrite", "node", &f.host.name(), &format!("{keep}=stays")])?;
        f.apply("{nodeLabels: [{key: accelerator}]}").await?;
        f.wait_until_ready().await?;
        ensure!(f.operators_labels(&["accelerator"]).await?.contains_key("accelerator"));

        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=60s"])?;
        f.cluster.helm(&["uninstall", "gpu-operator", "--namespace", f.cluster.namespace(), "--wait"])?;
        let left = f.operators_labels(&["accelerator"]).await?;
        ensure!(left.is_empty(), "{left:?}");
        ensure!(f.node().await?.metadata.labels.unwrap_or_default().contains_key(keep), "a user's label was removed");
        ensure!(
            f.node().await?.metadata.annotations.unwrap_or_default().keys().all(|key| !key.starts_with(keys::PREFIX))
        );
        eventually(READY, "an empty namespace", || async {
            let kinds = "daemonsets,deployments,pods,serviceaccounts,roles,rolebindings,configmaps,secrets,services";
            let left = f.cluster.kubectl(&["get", kinds, "-n", f.cluster.namespace(), "-o", "name"])?;
            // These exist in every namespace.
            let left: Vec<_> = left
                .lines()
                .filter(|name| !name.ends_with("/default") && !name.ends_with("/kube-root-ca.crt"))
                .collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await?;
        let crds = f.cluster.kubectl(&["get", "crds", "-o", "name"])?;
        ensure!(
            crds.contains("clustergpupolicies.gpu.nodestack.dev"),
            "the CRDs were deleted, and with them the users' policies"
        );

        f.cluster.install_chart()?;
        f.apply("{nodeLabels: [{key: accelerator}]}").await?;
        f.wait_until_ready().await?;
        f.cluster.helm(&["test", "gpu-operator", "--namespace", f.cluster.namespace(), "--timeout", "2m"])?;

        // Without an operator the documented command removes what it created.
        f.cluster.helm(&["uninstall", "gpu-operator", "--namespace", f.cluster.namespace(), "--wait"])?;
        ensure!(!f.operands(Stage::Driver).await?.is_empty(), "the driver was removed with the operator");
        f.cluster.script("config/remove.sh", &[f.cluster.namespace()])?;
        f.wait_for_no_operands().await?;
        let left = f.operators_labels(&["accelerator", keys::PRESENT]).await?;
        ensure!(left.is_empty(), "{left:?}");
        let kinds = "clustergpupolicies,gpunodes,daemonsets";
        let left = f.cluster.kubectl(&["get", kinds, "-n", f.cluster.namespace(), "-o", "name"])?;
        ensure!(left.is_empty(), "{left:?}");
        f.cluster.kubectl(&["label", "node", &f.host.name(), &format!("{keep}-")])?;
        Ok(())
    });
}

#[test]
fn a_policy_without_any_pods_can_be_deleted() {
    test(async |f| {
        // That driver branch does not support an H100, so no pod is ever created whose deletion could trigger the
        // operator.
        f.apply("{defaults: {driver: {version: 470.256.02}}}").await?;
        let message = f.wait_for_reason(Reason::DriverUnsupported).await?;
        ensure!(message.contains("use a version such as"), "the message does not name a version that works: {message}");
        f.wait_for_condition("Accepted", "False").await?;
        f.wait_until_settled(Duration::from_secs(2)).await?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=20s"])?;
        ensure!(f.operators_labels(&[]).await?.is_empty());
        Ok(())
    });
}

#[test]
fn third_party_daemon_sets_are_never_pruned() {
    test(async |f| {
        // NVIDIA's operator uses this label for its own objects, in a namespace of the same name.
        let third_party = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "third-party", "labels": {"app.kubernetes.io/managed-by": "gpu-operator"}},
            "spec": {
                "selector": {"matchLabels": {"app": "third-party"}},
                "template": {
                    "metadata": {"labels": {"app": "third-party"}},
                    "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost:5999/none:1"}]},
                },
            },
        });
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), f.cluster.namespace());
        sets.patch("third-party", &PatchParams::apply("test"), &Patch::Apply(third_party)).await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=60s"])?;
        let exists = sets.get_opt("third-party").await?.is_some();
        f.cluster.kubectl(&[
            "delete",
            "daemonset",
            "third-party",
            "--ignore-not-found",
            "-n",
            f.cluster.namespace(),
        ])?;
        ensure!(exists, "the DaemonSet was deleted");
        Ok(())
    });
}
