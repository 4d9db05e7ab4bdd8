//! Uninstalling leaves nothing behind, and installing again works.

use std::time::Duration;

use anyhow::ensure;
use e2e::eventually;
use gpu_operator_crd::{keys, reason::Reason};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api,
    api::{Patch, PatchParams},
};

use crate::support::{READY, alone, test};

#[test]
fn nothing_of_ours_is_left_and_installing_again_works() {
    alone(|f| async move {
        let keep = "example.com/mine";
        f.cluster.kubectl(&["label", "--overwrite", "node", &f.host.name(), &format!("{keep}=stays")])?;
        f.apply("{nodeLabels: [accelerator]}").await?;
        f.wait_until_ready().await?;
        ensure!(f.labels_of_ours(&["accelerator"]).await?.contains_key("accelerator"));

        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=60s"])?;
        f.cluster.helm(&["uninstall", "gpu-operator", "--namespace", f.cluster.namespace(), "--wait"])?;
        let left = f.labels_of_ours(&["accelerator"]).await?;
        ensure!(left.is_empty(), "{left:?}");
        ensure!(f.node().await?.metadata.labels.unwrap_or_default().contains_key(keep), "a label of others went");
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
        ensure!(crds.contains("clustergpupolicies.gpu.nodestack.dev"), "CRDs stay, and with them what users wrote");

        f.cluster.install_chart()?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.cluster.kubectl(&["label", "node", &f.host.name(), &format!("{keep}-")])?;
        Ok(())
    });
}

#[test]
fn a_policy_that_never_got_anywhere_can_be_deleted() {
    test(|f| async move {
        // An H100 has no driver of that branch, so no pod ever comes and goes that could wake anybody.
        f.apply("{defaults: {driver: {version: 470.256.02}}}").await?;
        let message = f.wait_for_reason(Reason::DriverUnsupported).await?;
        ensure!(message.contains("write"), "it says what to write instead: {message}");
        f.wait_for_condition("Accepted", "False").await?;
        f.wait_until_settled(Duration::from_secs(2)).await?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=20s"])?;
        ensure!(f.labels_of_ours(&[]).await?.is_empty());
        Ok(())
    });
}

#[test]
fn daemon_sets_of_others_are_never_pruned() {
    test(|f| async move {
        // As NVIDIA's operator labels its own objects, in a namespace of the same name.
        let theirs = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "gpu-operator"}},
            "spec": {
                "selector": {"matchLabels": {"app": "theirs"}},
                "template": {
                    "metadata": {"labels": {"app": "theirs"}},
                    "spec": {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "localhost:5999/none:1"}]},
                },
            },
        });
        let sets = Api::<DaemonSet>::namespaced(f.cluster.client(), f.cluster.namespace());
        sets.patch("theirs", &PatchParams::apply("test"), &Patch::Apply(theirs)).await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=60s"])?;
        let there = sets.get_opt("theirs").await?.is_some();
        f.cluster.kubectl(&["delete", "daemonset", "theirs", "--ignore-not-found", "-n", f.cluster.namespace()])?;
        ensure!(there, "it was deleted");
        Ok(())
    });
}
