//! The operator shows that a policy is not enforced, which nothing else reports.

use anyhow::{Result, ensure};
use gpu_operator_crd::GpuNode;
use harness::wait::eventually;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::{account, denied, gpu_node};
use crate::support::{Fixture, SHOWN};

/// The probe's service account, its admission policy and the binding.
const PROBE: &str = "nodestack-nvml-probe";

/// Waits until the operator shows whether the policy is enforced.
async fn shown(f: &Fixture, is_enforced: bool) -> Result<()> {
    let value = u8::from(is_enforced);
    let series = format!(r#"gpu_operator_admission_policy_enforced{{admission_policy="{PROBE}"}} {value}"#);
    eventually(SHOWN, "the state of the policy in the metrics", || async {
        let metrics = f.ask_operator("/metrics").await?;
        let lines: Vec<&str> = metrics.lines().filter(|line| line.contains("admission_policy_enforced")).collect();
        ensure!(lines.contains(&series.as_str()), "{series}: {lines:?}");
        Ok(())
    })
    .await
}

/// A deleted binding is shown until it is restored. Meanwhile nothing restricts the probe's account.
pub(super) async fn a_deleted_binding_is_shown(f: &Fixture) -> Result<()> {
    shown(f, true).await?;
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(f.cluster.client());
    let mut binding = bindings.get(PROBE).await?;
    bindings.delete(PROBE, &DeleteParams::default()).await?;
    let gpu_nodes = Api::<GpuNode>::all(account(f, PROBE).await?);
    let create = async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        Ok::<_, anyhow::Error>(gpu_nodes.create(&dry_run, &gpu_node("other", &json!({}))?).await)
    };
    let outcome = async {
        shown(f, false).await?;
        eventually(SHOWN, "a token that no policy restricts", || async { Ok(create().await??) }).await
    }
    .await;
    // Also after a failure: the probes' account needs the binding.
    binding.metadata.resource_version = None;
    binding.metadata.uid = None;
    bindings.create(&PostParams::default(), &binding).await?;
    let _: GpuNode = outcome?;
    shown(f, true).await?;
    eventually(SHOWN, "a restricted token", || async { denied("without a node", create().await?, "names no node") })
        .await
}
