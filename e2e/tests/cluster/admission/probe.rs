//! The probe can write its own node's report and nothing else: its role and the admission policy deny all other writes.

use anyhow::{Context, Result};
use gpu_operator_crd::GpuNode;
use harness::wait::eventually;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{account, account_of_pod, denied, enforced::a_deleted_binding_is_shown, gpu_node};
use crate::support::{Fixture, PROBE_PODS, READY, test};

/// The probe's service account.
const ACCOUNT: &str = "nodestack-nvml-probe";

/// Returns a client with the token of the probe's own pod.
async fn probe(f: &Fixture) -> Result<Client> {
    let pods = f.pods_here(PROBE_PODS).await?;
    account_of_pod(f, ACCOUNT, &pods.first().context("no pod of the probe")?.name_any()).await
}

#[test]
fn the_probe_can_write_only_its_own_report() {
    test(async |f| {
        let own = &f.host.name();
        let api = Api::<GpuNode>::all(probe(&f).await?);
        let status =
            |status: Value| json!({"apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "status": status});
        let report = |boot: &str| status(json!({"report": {"bootID": boot}}));
        let apply = PatchParams::apply("nvml-probe").force();
        let create = PostParams::default();

        // Another node's report, which the role would allow.
        denied("create another's", api.create(&create, &gpu_node("other", &json!({}))?).await, "of that name only")?;
        Api::<GpuNode>::all(f.cluster.client()).create(&create, &gpu_node("other", &json!({}))?).await?;
        denied(
            "another's status",
            api.patch_status("other", &apply, &Patch::Apply(report("x"))).await,
            "of that name only",
        )?;

        // Other fields of its own node's GpuNode.
        let merge = PatchParams::default();
        denied(
            "own phase",
            api.patch_status(own, &merge, &Patch::Merge(status(json!({"phase": "Ready"})))).await,
            "report",
        )?;
        denied(
            "own spec",
            api.patch(own, &merge, &Patch::Merge(json!({"spec": {"releaseDriver": true}}))).await,
            "forbidden",
        )?;
        denied(
            "own labels",
            api.patch(own, &merge, &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))).await,
            "forbidden",
        )?;
        denied("own deletion", api.delete(own, &DeleteParams::default()).await, "forbidden")?;
        f.cluster.kubectl(&["delete", "gpunode", own, "other"])?;
        // The real probe may recreate the GpuNode first; then the create fails because the object exists.
        denied("create with a spec", api.create(&create, &gpu_node(own, &json!({"policy": "mine"}))?).await, "")
            .or_else(|error| if format!("{error}").contains("AlreadyExists") { Ok(()) } else { Err(error) })?;

        // Any other object.
        let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(probe(&f).await?);
        denied(
            "label a Node",
            nodes.patch(own, &merge, &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}))).await,
            "forbidden",
        )?;
        denied("read a Node", nodes.get(own).await, "forbidden")?;

        // A token that is not bound to a node.
        let unbound = Api::<GpuNode>::all(account(&f, ACCOUNT).await?);
        denied("without a node", unbound.create(&create, &gpu_node("other", &json!({}))?).await, "names no node")?;

        // Its own node's report.
        eventually(READY, "the probe's own report", || async {
            api.patch_status(own, &apply, &Patch::Apply(report("from the test"))).await?;
            Ok(())
        })
        .await?;
        // Here, because no other test needs the binding.
        a_deleted_binding_is_shown(&f).await
    });
}
