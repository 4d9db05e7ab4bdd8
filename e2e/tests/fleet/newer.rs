//! Objects as a newer version writes them: values that this version does not know keep no node from being served.

use anyhow::{Context, Result, ensure};
use fleet::FleetNode;
use gpu_operator_crd::{
    GpuHealth, Phase,
    health::{Cause, HealthState, Severity},
    open::Open,
    reason::Reason,
};
use harness::wait::eventually;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::{DEADLINE, Fixture, QUIET, test};

/// The PCI device id of a model that the catalogue lacks.
const CUSTOM: &str = "fff1";
/// A kind of cause, an action, an architecture, a reason and a phase that this version does not know.
const KIND: &str = "OpticalLinkFlapping";
const ACTION: &str = "CleanConnector";
const ARCHITECTURE: &str = "Feynman";
const REASON: &str = "WaitingForOptics";
const PHASE: &str = "Remediation";

#[test]
fn values_of_a_newer_version_are_kept_and_nodes_are_served() {
    test(|f| async move {
        let mut known = FleetNode::with_gpus("known-model", "2330", 8);
        known.health.insert(3, health());
        f.fleet.join([known, FleetNode::with_gpus("unknown-architecture", CUSTOM, 4)]).await?;
        f.apply(&format!(
            "{{models: [{{name: nvidia-f100, pciIDs: [{CUSTOM}], architecture: {ARCHITECTURE}, driver: {{firstBranch: 595}}, modules: OpenOnly}}]}}"
        ))
        .await?;
        f.until_reason("known-model", Reason::GpuDegraded).await?;
        f.until_reason("unknown-architecture", Reason::AllGpusAllocatable).await?;
        f.fleet.quiet(QUIET, DEADLINE).await?;

        // As a newer operator leaves it. This one reads it, and writes its own findings.
        let newer = json!({"status": {"phase": PHASE, "reason": REASON, "health": "Remediating"}});
        let (gpu_nodes, params) = (f.gpu_nodes(), PatchParams::default());
        let newer = gpu_nodes.patch_status("known-model", &params, &Patch::Merge(&newer)).await?;
        let status = newer.status.context("no status")?;
        ensure!(status.reason == Some(Open::Other(REASON.into())), "{:?}", status.reason);
        f.until_reason("known-model", Reason::GpuDegraded).await?;
        is_kept_and_shown(&f).await?;

        // The node goes on being served.
        f.fleet.change("known-model", |node| node.faults.publishes = Some(7));
        f.until_reason("known-model", Reason::WaitingForAllocatable).await?;
        f.fleet.change("known-model", |node| node.faults.publishes = None);
        f.until_reason("known-model", Reason::GpuDegraded).await?;
        is_kept_and_shown(&f).await?;
        Ok(f)
    });
}

fn health() -> GpuHealth {
    let cause = Cause {
        kind: Open::Other(KIND.into()),
        severity: Severity::Warning,
        xid: None,
        count: None,
        evidence: "4 link resets".into(),
        since: Time(Timestamp::UNIX_EPOCH),
        recovering: false,
    };
    GpuHealth {
        state: HealthState::Degraded,
        action: Open::Other(ACTION.into()),
        causes: vec![cause],
        ..GpuHealth::default()
    }
}

/// Checks that the operator's writes have kept what it does not know, and that users see it.
async fn is_kept_and_shown(f: &Fixture) -> Result<()> {
    eventually(DEADLINE, "the health of the node", || async {
        let status = f.gpu_nodes().get("known-model").await?.status.context("no status")?;
        let (phase, health) = (status.phase, status.health);
        ensure!((phase, health) == (Phase::Ready, Some(HealthState::Degraded)), "{phase:?}, {health:?}");
        let report = status.report.context("no report")?;
        let kept = &report.gpus.get(3).context("no GPU")?.health;
        ensure!(kept.action.as_str() == ACTION, "{kept:?}");
        ensure!(kept.causes.iter().map(|cause| cause.kind.as_str()).eq([KIND]), "{kept:?}");
        let shown = status.conditions.iter().find(|condition| condition.type_ == "Healthy").context("no condition")?;
        ensure!(shown.message.contains(KIND) && shown.message.contains(ACTION), "{}", shown.message);
        Ok(())
    })
    .await?;
    let model = f.gpu_nodes().get("unknown-architecture").await?.status.and_then(|status| status.model);
    ensure!(model.as_deref() == Some("nvidia-f100"), "{model:?}");
    let policy = f.policy().await?;
    let kept = policy.spec.models.first().context("no model")?;
    ensure!(kept.architecture.as_str() == ARCHITECTURE, "{kept:?}");
    Ok(())
}
