//! Uninstalling leaves nothing, and installing again works.

use anyhow::ensure;
use e2e::eventually;
use gpu_operator_crd::keys;

use crate::support::{READY, test};

#[test]
fn nothing_of_ours_is_left_and_installing_again_works() {
    test(|f| async move {
        let keep = "example.com/mine";
        f.cluster.kubectl(&["label", "--overwrite", "node", f.cluster.node_name(), &format!("{keep}=stays")])?;
        f.apply("{nodeLabels: [accelerator]}").await?;
        f.wait_until_ready().await?;
        ensure!(f.labels_of_ours(&["accelerator"]).await?.contains_key("accelerator"));

        f.cluster.kubectl(&["delete", "clustergpupolicy", "fleet", "--timeout=60s"])?;
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
            // These are Kubernetes' own, in every namespace.
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
        f.cluster.kubectl(&["label", "node", f.cluster.node_name(), &format!("{keep}-")])?;
        Ok(())
    });
}
