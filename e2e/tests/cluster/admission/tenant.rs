//! A tenant with the role `edit` in a namespace that admits only restricted pods cannot keep a node from getting its GPU stack.

use anyhow::{Result, bail, ensure};
use gpu_operator_crd::keys;
use serde_json::{Value, json};

use crate::support::{Fixture, HOSTNAME, test};

/// The name of the tenant's namespace and of its service account. One test uses it.
const TENANT: &str = "tenant";

/// A DaemonSet of the tenant that claims to install NVIDIA's driver on a node.
fn claimed(node: &str, container: &Value) -> Value {
    let labels = json!({"app": "nvidia-driver-installer", "app.kubernetes.io/component": "nvidia-driver", (keys::STAGE): "driver"});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "nvidia-driver-daemonset", "namespace": TENANT, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {HOSTNAME: node}, "tolerations": [{"operator": "Exists"}],
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
                    "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                },
            },
        },
    })
}

fn as_tenant(f: &Fixture, args: &[&str]) -> Result<String> {
    let user = format!("--as=system:serviceaccount:{TENANT}:{TENANT}");
    f.cluster.kubectl(&[args, &[&user]].concat())
}

fn apply(f: &Fixture, object: &Value) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), object.to_string())?;
    as_tenant(f, &["apply", "-f", &file.path().display().to_string()])
}

async fn attack(f: &Fixture) -> Result<()> {
    let node = &f.host.name();
    let image = "localhost:5999/nvml-probe:dev";
    let drop = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let restricted = json!({"name": "main", "image": image, "args": ["hold"], "securityContext": drop});
    apply(f, &claimed(node, &restricted))?;
    // Its pods run on the node and have all names and labels, but nothing of the host.
    f.cluster.kubectl(&["rollout", "status", "daemonset/nvidia-driver-daemonset", "-n", TENANT, "--timeout=5m"])?;
    let privileged = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root", "namespace": TENANT},
        "spec": {"containers": [{"name": "main", "image": image, "securityContext": {"privileged": true}}]}});
    for (what, outcome) in [
        ("a privileged pod", apply(f, &privileged)),
        ("a label of a node", as_tenant(f, &["label", "node", node, &format!("{}=x", keys::MODEL)])),
        ("a GpuNode", as_tenant(f, &["delete", "gpunode", node, "--wait=false"])),
        ("a policy", as_tenant(f, &["get", "clustergpupolicies"])),
        ("the operator's pods", as_tenant(f, &["get", "pods", "-n", f.cluster.namespace()])),
    ] {
        match outcome {
            Err(error) if format!("{error:#}").contains("orbidden") => {}
            other => bail!("{what}: {other:?}"),
        }
    }
    f.apply("{}").await?;
    f.wait_until_ready().await?;
    let foreign = f.status().await?.foreign;
    ensure!(foreign.is_empty(), "the tenant's DaemonSet counts as a GPU stack: {foreign:?}");
    Ok(())
}

#[test]
fn a_tenant_with_edit_cannot_stop_the_stack_of_a_node() {
    test(async |f| {
        let kubectl = |args: &[&str]| f.cluster.kubectl(args);
        kubectl(&["create", "namespace", TENANT])?;
        kubectl(&["label", "namespace", TENANT, "pod-security.kubernetes.io/enforce=restricted"])?;
        kubectl(&["create", "serviceaccount", TENANT, "-n", TENANT])?;
        let account = format!("--serviceaccount={TENANT}:{TENANT}");
        kubectl(&["create", "rolebinding", TENANT, "-n", TENANT, "--clusterrole=edit", &account])?;
        let outcome = attack(&f).await;
        kubectl(&["delete", "namespace", TENANT, "--timeout=5m"])?;
        outcome
    });
}
