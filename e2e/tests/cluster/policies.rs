//! Invalid policies: each is rejected, or reported on its pool, with its message, and none disturbs running nodes.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use gpu_operator_crd::{policy_status::PoolStatus, reason::Reason};
use harness::wait::eventually;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use test_support::rejected::{REJECTED, Report};

use crate::support::{Fixture, GPUS, SHOWN, test};

/// Returns these metadata fields of the objects of a kind that belong to the node or its policy, one object per line.
fn metadata(f: &Fixture, kind: &str, fields: &str) -> Result<String> {
    let own = match kind {
        "clustergpupolicies" => format!("--field-selector=metadata.name={}", f.policy),
        "gpunodes" => format!("--field-selector=metadata.name={}", f.host.name()),
        "daemonsets" => format!("--selector={}", f.of_policy()),
        "pods" => format!("--field-selector=spec.nodeName={}", f.host.name()),
        _ => bail!("no selector for {kind}"),
    };
    let columns = format!("-o=jsonpath={{range .items[*]}}{{.kind}} {{.metadata['name',{fields}]}}{{\"\\n\"}}{{end}}");
    let found = f.cluster.kubectl(&["get", kind, "--namespace", f.cluster.namespace(), &own, &columns])?;
    ensure!(!found.is_empty(), "no {kind} found");
    Ok(found)
}

/// Returns the output of `kubectl apply` for a policy with this spec.
fn kubectl_apply(f: &Fixture, spec: &str) -> Result<String> {
    let head = "apiVersion: gpu.nodestack.dev/v1alpha1\nkind: ClusterGpuPolicy\nmetadata: {name: POLICY}\nspec:\n";
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), format!("{}  {spec}\n", head.replace("POLICY", &f.policy)))?;
    f.cluster.kubectl(&["apply", "-f", &file.path().display().to_string()])
}

/// Applies a policy with this spec as API clients do.
async fn server_side_apply(f: &Fixture, spec: &str) -> Result<()> {
    let policy = json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "ClusterGpuPolicy", "metadata": {"name": f.policy},
        "spec": serde_yaml::from_str::<Value>(spec)?,
    });
    let params = PatchParams::apply("another-client").force().validation_strict();
    f.policies().patch(&f.policy, &params, &Patch::Apply(&policy)).await?;
    Ok(())
}

#[test]
fn an_invalid_edit_is_rejected_with_the_documented_message() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.wait_until_settled(Duration::from_secs(3)).await?;
        // Status changes of pods and DaemonSets by kubelet and controllers do not count.
        let all = || {
            let statuses =
                ["clustergpupolicies", "gpunodes"].map(|kind| (kind, "'uid','generation','resourceVersion'"));
            let others = ["daemonsets", "pods"].map(|kind| (kind, "'uid','generation'"));
            statuses
                .into_iter()
                .chain(others)
                .map(|(kind, fields)| metadata(&f, kind, fields))
                .collect::<Result<String>>()
        };
        let before = all()?;
        for row in REJECTED.by_rule.iter().chain(&REJECTED.by_type) {
            let written = &row.written;
            let Err(rejection) = kubectl_apply(&f, written) else { bail!("accepted: {written}") };
            let rejection = format!("{rejection:#}");
            ensure!(rejection.contains(&row.at) && rejection.contains(&row.message), "{written}: {rejection}");
            ensure!(server_side_apply(&f, written).await.is_err(), "accepted by server-side apply: {written}");
        }
        let after = all()?;
        ensure!(before == after, "{before}\n{after}");
        Ok(())
    });
}

/// Returns whether the test's node, an H100 node that no pool selects, gets a row's message without a new revision.
fn shows_here(row: &Report) -> bool {
    row.pool.is_some()
        && (row.message.starts_with("node h100 ") || !row.message.starts_with("node "))
        && !row.written.contains("{name: rest}")
        // The node is not ready without the GPUs that its pool promises.
        && !row.written.contains("gpusPerNode")
}

/// Waits until the policy's status has the reason and message of the docs for a pool.
async fn wait_for_mark(f: &Fixture, row: &Report) -> Result<()> {
    let name = row.pool.as_deref().context("a row without a pool")?;
    let message = row.message.replace("node h100 ", &format!("node {} ", f.host.name()));
    let message = &message;
    eventually(SHOWN, &format!("the mark on pool {name}"), || async move {
        let pools = f.policies().get(&f.policy).await?.status.context("no status")?.pools;
        let pool: PoolStatus = pools.into_iter().find(|pool| pool.name == name).context("no such pool")?;
        let reason = pool.reason().map(Reason::as_str);
        ensure!(reason == Some(row.reason.as_str()) && pool.message == *message, "{reason:?}: {}", pool.message);
        Ok(())
    })
    .await
}

#[test]
fn an_error_that_depends_on_nodes_is_reported_on_the_pool() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("keeps-running").await?;
        let sets = || metadata(&f, "daemonsets", "'uid','generation'");
        let pods = || metadata(&f, "pods", "'uid'");
        let before = (sets()?, pods()?);
        let marks: Vec<_> = REJECTED.reported.iter().filter(|row| shows_here(row)).collect();
        ensure!(marks.len() >= 4, "only {} rows apply to this node", marks.len());
        for row in marks {
            f.apply(&row.written).await?;
            wait_for_mark(&f, row).await.with_context(|| row.written.clone())?;
            f.wait_for_condition("Accepted", "False").await?;
            f.wait_for_condition("Ready", "True").await?;
        }
        f.wait_until_settled(Duration::from_secs(3)).await?;
        let after = (sets()?, pods()?);
        ensure!(before == after, "{before:?}\n{after:?}");
        ensure!(f.allocatable().await? == GPUS);
        f.apply("{}").await?;
        f.wait_for_condition("Accepted", "True").await
    });
}
