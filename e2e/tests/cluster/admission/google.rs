//! The account of Google's device plugin can write one condition of its own Node.

use anyhow::{Context, Result, ensure};
use cluster::node::real_node::RealNode;
use gpu_operator_plan::manifests::device_plugin::gke::ACCOUNT;
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{account, account_of_pod, denied};
use crate::support::{Fixture, READY, test};

const CONDITION: &str = "XidCriticalError";
const CONDITIONS: &str = "of a Node's conditions the device plugin may only write XidCriticalError";
const FIELDS: &str = "of a Node the device plugin may only write its conditions";

/// Creates a pod with the plugin's account on the node, and returns its name.
fn pod(f: &Fixture) -> Result<String> {
    let name = format!("google-of-{}", f.host.name());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": f.cluster.namespace()},
        "spec": {
            "serviceAccountName": ACCOUNT, "automountServiceAccountToken": false, "nodeName": f.host.name(),
            "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "localhost:5999/nvml-probe:dev", "args": ["hold"]}],
        },
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), pod.to_string())?;
    f.cluster.kubectl(&["apply", "-f", &file.path().display().to_string()])?;
    Ok(name)
}

/// Returns a patch that adds a condition or changes it.
fn condition(kind: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": "True"}]}})
}

/// Updates the status as the plugin does: all of it, by a client that does not know the newer fields. A dry run.
async fn update(nodes: &Api<Node>, name: &str) -> Result<()> {
    let mut node = serde_json::to_value(nodes.get(name).await?)?;
    let status = node["status"].as_object_mut().context("no status")?;
    status.remove("runtimeHandlers");
    status["nodeInfo"].as_object_mut().context("no nodeInfo")?.remove("swap");
    let conditions = status["conditions"].as_array_mut().context("no conditions")?;
    conditions.push(json!({"type": CONDITION, "status": "True"}));
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    nodes.replace_status(name, &dry_run, &serde_json::from_value(node)?).await?;
    Ok(())
}

#[test]
fn googles_plugin_writes_one_condition_of_its_node() {
    test(async |f| {
        let (own, nodes) = (&f.host.name(), f.cluster.nodes());
        let other = &nodes.iter().map(RealNode::name).find(|name| name != own).context("no other node")?;
        let pod = pod(&f)?;
        let nodes = Api::<Node>::all(account_of_pod(&f, ACCOUNT, &pod).await?);
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let write = async |name: &str, patch: Value| nodes.patch_status(name, &dry_run, &Patch::Strategic(patch)).await;

        write(own, condition(CONDITION)).await.context("its condition")?;
        // Kubelet may write the status between the two requests.
        eventually(READY, "the update of the whole status", || update(&nodes, own)).await?;
        denied("another node", write(other, condition(CONDITION)).await, "may write the status of that Node only")?;
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        denied("another condition", write(own, not_ready).await, CONDITIONS)?;
        denied("a new condition", write(own, condition("example.com/A")).await, CONDITIONS)?;
        for (what, patch) in [
            ("capacity", json!({"status": {"capacity": {"nvidia.com/gpu": "64"}}})),
            ("the boot", json!({"status": {"nodeInfo": {"bootID": "a"}}})),
            ("a label", json!({"metadata": {"labels": {"example.com/a": "b"}}})),
            ("a removed label", json!({"metadata": {"labels": {"kubernetes.io/os": null}}})),
        ] {
            denied(what, write(own, patch).await, FIELDS)?;
        }
        let unbound = Api::<Node>::all(account(&f, ACCOUNT).await?);
        let patch = Patch::Strategic(condition(CONDITION));
        denied("without a node", unbound.patch_status(own, &dry_run, &patch).await, "names no node")?;
        let nothing = f.cluster.kubectl(&["delete", "pod", &pod, "-n", f.cluster.namespace(), "--wait=false"])?;
        ensure!(nothing.contains("deleted"), "{nothing}");
        Ok(())
    });
}
