//! Uninstalling leaves nothing behind, and installing again works.

pub mod inventory;
mod kept;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::node::runtime::Runtime;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys, policy::Stage, reason::Reason};
use harness::wait::eventually;
use inventory::Inventory;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams},
};

use crate::support::{Fixture, READY, everywhere, test};

/// A label of the user, and its key.
const KEPT: (&str, &str) = ("example.com/mine=stays", "example.com/mine");
/// The label that the policies publish.
const PUBLISHED: &str = "accelerator";

/// Returns the node of the operator's pod, which has containerd 2, and those with containerd 1.7 and with Docker.
async fn of_all_runtimes(fixtures: &[Fixture]) -> Result<[&Fixture; 3]> {
    let operators = fixtures.first().context("no node")?.operators_node().await?;
    let find = |is: &dyn Fn(&Fixture) -> bool| fixtures.iter().find(|f| is(f)).context("no such node");
    Ok([
        find(&|f| f.host.name() == operators)?,
        find(&|f| f.host.runtime() == Runtime::Containerd1)?,
        find(&|f| f.host.runtime() == Runtime::Docker)?,
    ])
}

/// Applies a policy with a published label to each node, and waits until all are ready.
async fn serve(nodes: [&Fixture; 3], deletion: &str) -> Result<()> {
    for f in nodes {
        f.apply(&format!("{{deletionPolicy: {deletion}, nodeLabels: [{{key: {PUBLISHED}}}]}}")).await?;
    }
    for f in nodes {
        f.wait_until_ready().await?;
        ensure!(f.operators_labels(&[PUBLISHED]).await?.contains_key(PUBLISHED));
    }
    Ok(())
}

fn uninstall(f: &Fixture, more: &[&str]) -> Result<String> {
    f.cluster
        .helm(&[&["uninstall", f.cluster.release(), "--namespace", f.cluster.namespace(), "--wait"], more].concat())
}

/// Lets the hook delete policies. docs/operate/uninstall.md shows the same command.
fn delete_policies_too(f: &Fixture) -> Result<String> {
    let (chart, values) = (f.cluster.chart().display().to_string(), f.cluster.values().display().to_string());
    let release = ["upgrade", f.cluster.release(), &chart, "--namespace", f.cluster.namespace(), "--wait"];
    f.cluster.helm(&[&release[..], &["--values", &values, "--set", "uninstall.policies=Delete"]].concat())
}

/// Removes the objects of the release that `helm uninstall` keeps for the pods on nodes, as docs/operate/uninstall.md shows.
fn delete_kept_objects(f: &Fixture) -> Result<String> {
    let kinds = "resourcequota,serviceaccount,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,deviceclass";
    let release = format!("app.kubernetes.io/instance={},app.kubernetes.io/part-of=gpu-operator", f.cluster.release());
    f.cluster.kubectl(&["delete", kinds, "--namespace", f.cluster.namespace(), "--selector", &release])
}

/// Waits until the chart's namespace is as the API server creates it, and kubelets have removed the GPUs.
async fn wait_until_all_is_gone(nodes: [&Fixture; 3]) -> Result<()> {
    for f in nodes {
        f.wait_for_allocatable(0, READY).await?;
    }
    let [f, ..] = nodes;
    eventually(READY, "an empty namespace", || async {
        let kinds =
            "daemonsets,deployments,pods,jobs,leases,serviceaccounts,roles,rolebindings,configmaps,secrets,services";
        let left = f.cluster.kubectl(&["get", kinds, "-n", f.cluster.namespace(), "-o", "name"])?;
        // These exist in every namespace.
        let left: Vec<_> =
            left.lines().filter(|name| !name.ends_with("/default") && !name.ends_with("/kube-root-ca.crt")).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

#[test]
fn uninstalling_leaves_nothing_and_installing_again_works() {
    everywhere(async |fixtures| {
        let nodes @ [f, other, _] = of_all_runtimes(&fixtures).await?;
        f.cluster.kubectl(&["label", "--overwrite", "node", &f.host.name(), KEPT.0])?;

        // The operator before the policies: the documented command removes what it created.
        serve(nodes, "Now").await?;
        f.cluster.helm(&["test", f.cluster.release(), "--namespace", f.cluster.namespace(), "--timeout", "5m"])?;
        uninstall(f, &["--no-hooks"])?;
        ensure!(!f.operands(Stage::Driver).await?.is_empty(), "the driver was removed with the operator");
        // As an update leaves the node that awaits its pods.
        f.cluster.kubectl(&["annotate", "node", &f.host.name(), &format!("{}=true", keys::CORDON)])?;
        f.cluster.kubectl(&["cordon", &f.host.name()])?;
        f.cluster.script("config/remove.sh", &[f.cluster.namespace()])?;
        delete_kept_objects(f)?;
        wait_until_all_is_gone(nodes).await?;
        let crds = f.cluster.kubectl(&["get", "crds", "-o", "name"])?;
        ensure!(crds.contains("clustergpupolicies.gpu.nodestack.dev"), "the CRDs were deleted");
        f.cluster.kubectl(&["delete", "crd", ClusterGpuPolicy::crd_name(), GpuNode::crd_name()])?;
        // It is rebooted again below, and loses what other tests have left in memory.
        other.reboot()?;
        ensure!(!f.node().await?.spec.context("no spec")?.unschedulable.unwrap_or_default(), "the cordon stays");
        let before = Inventory::take(&nodes).await?;
        before.is_bare()?;
        ensure!(f.node().await?.labels().contains_key(KEPT.1), "a user's label was removed");

        // By default, the policies and what runs on their nodes stay.
        f.cluster.install_chart()?;
        serve(nodes, "WhenIdle").await?;
        f.run_gpu_pod("training").await?;
        let running = f.pods(&f.users()).get("training").await?.uid();
        kept::what_runs_is_kept_and_adopted(nodes).await?;
        ensure!(f.pods(&f.users()).get("training").await?.uid() == running);

        // The value: the policies are deleted, and nodes are left once no pod uses their GPUs.
        delete_policies_too(f)?;
        ensure!(uninstall(f, &[]).is_err(), "uninstalled while a pod uses a GPU");
        let log = f.cluster.kubectl(&["logs", "job/nodestack-gpu-operator-uninstall", "-n", f.cluster.namespace()])?;
        ensure!(log.contains(&format!("{} (", f.policy)) && log.contains("--no-hooks"), "{log}");
        ensure!(f.pods(&f.users()).get("training").await?.uid() == running);
        ensure!(!f.operands(Stage::Driver).await?.is_empty(), "the driver was removed while a pod uses a GPU");
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        eventually(READY, "the end of the operator", || async { uninstall(f, &[]).map(drop) }).await?;
        wait_until_all_is_gone(nodes).await?;
        Inventory::take(&nodes).await?.is_as(&before)?;

        f.cluster.kubectl(&["label", "node", &f.host.name(), &format!("{}-", KEPT.1)])?;
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
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=5m"])?;
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
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=5m"])?;
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
