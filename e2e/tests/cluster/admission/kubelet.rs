//! A kubelet may write labels and annotations of its own Node, but not make the operator remove what the kubelet may not remove itself.

use anyhow::{Result, bail, ensure};
use gpu_operator_crd::{keys, reason::Reason};
use kube::ResourceExt;

use crate::support::{Fixture, test};

/// A taint that an administrator has set. It does not affect other pods of the test.
const TAINT: &str = "quarantine:PreferNoSchedule";
/// A label of the prefix that kubelets may not write.
const LABEL: &str = "node-restriction.kubernetes.io/tenant";

/// Runs kubectl with the rights of the node's kubelet.
fn as_kubelet(f: &Fixture, args: &[&str]) -> Result<String> {
    let user = format!("--as=system:node:{}", f.host.name());
    f.cluster.kubectl(&[args, &[&user, "--as-group=system:nodes"]].concat())
}

async fn forge_and_opt_out(f: &Fixture) -> Result<()> {
    let node = &f.host.name();
    let label = &format!("{LABEL}-");
    for args in [["taint", "node", node, "quarantine-"], ["label", "node", node, label]] {
        match as_kubelet(f, &args) {
            Err(error) if error.to_string().contains("is not allowed to modify") => {}
            other => bail!("{args:?}: {other:?}"),
        }
    }
    as_kubelet(f, &["annotate", "node", node, &format!("{}={TAINT}", keys::OWN_TAINT)])?;
    // With the value that it has, which changes nothing but the record of who has written it.
    let applied = format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}, labels: {{{LABEL}: a}}}}}}");
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), applied)?;
    let manager = format!("--field-manager={}", keys::LABEL_MANAGER);
    as_kubelet(
        f,
        &["apply", "--server-side", "--force-conflicts", &manager, "-f", &file.path().display().to_string()],
    )?;
    f.apply("{}").await?;
    f.wait_until_ready().await?;
    f.cluster.kubectl(&["label", "node", node, &format!("{}=false", keys::MANAGED)])?;
    f.wait_for_reason(Reason::OptedOut).await?;
    f.wait_for_no_operands().await?;
    let found = f.node().await?;
    let taints = found.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    ensure!(taints.iter().any(|taint| taint.key == "quarantine"), "the taint is gone: {taints:?}");
    ensure!(found.labels().contains_key(LABEL), "the label is gone: {:?}", found.labels());
    Ok(())
}

#[test]
fn a_kubelet_cannot_make_the_operator_remove_a_taint_or_label() {
    test(async |f| {
        let node = &f.host.name();
        let undo = || {
            f.cluster.kubectl(&["taint", "node", node, "quarantine-"])?;
            f.cluster.kubectl(&["label", "node", node, &format!("{LABEL}-"), &format!("{}-", keys::MANAGED)])?;
            f.cluster.kubectl(&["annotate", "node", node, &format!("{}-", keys::OWN_TAINT)])
        };
        f.cluster.kubectl(&["taint", "node", node, TAINT])?;
        f.cluster.kubectl(&["label", "node", node, &format!("{LABEL}=a")])?;
        let outcome = forge_and_opt_out(&f).await;
        undo()?;
        outcome
    });
}
