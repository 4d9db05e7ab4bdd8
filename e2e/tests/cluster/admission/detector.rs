//! The detector can create the GpuNode of its own node and nothing else.

use anyhow::{Context, Result, bail};
use gpu_operator_crd::GpuNode;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{account_of_pod, denied, gpu_node};
use crate::support::{DETECTOR_PODS, Fixture, test};

/// Returns the API of GpuNodes for the token of the detector's own pod.
async fn gpu_nodes(f: &Fixture) -> Result<Api<GpuNode>> {
    let pods = f.pods_here(DETECTOR_PODS).await?;
    let pod = pods.first().context("no pod of the detector")?.name_any();
    Ok(Api::all(account_of_pod(f, "nodestack-gpu-detector", &pod).await?))
}

#[test]
fn the_detector_can_only_create_the_gpunode_of_its_node() {
    test(async |f| {
        let (own, api) = (&f.host.name(), gpu_nodes(&f).await?);
        let create = PostParams { dry_run: true, ..PostParams::default() };
        denied("another's", api.create(&create, &gpu_node("other", &json!({}))?).await, "of that name only")?;
        let taken = gpu_node(own, &json!({"policy": "mine"}))?;
        denied("a spec", api.create(&create, &taken).await, "only the operator may write the spec")?;
        denied("read", api.get(own).await, "cannot get")?;
        denied("list", api.list(&ListParams::default()).await, "cannot list")?;
        denied("delete", api.delete(own, &DeleteParams::default()).await, "cannot delete")?;
        let report = json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "status": {"report": {"bootID": "x"}},
        });
        let apply = PatchParams::apply("gpu-detector").force();
        denied("a report", api.patch_status(own, &apply, &Patch::Apply(report)).await, "cannot patch")?;
        match api.create(&create, &gpu_node(own, &json!({}))?).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => bail!("its own GpuNode, which exists: {other:?}"),
        }
    });
}
