//! `config/remove.sh` after an operator that ended in the middle of an update.

use anyhow::{Context, Result, ensure};
use fleet::FleetNode;
use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::support::{Fixture, test};

/// A namespace without the operator's Deployment, which the script requires to be gone.
const NAMESPACE: &str = "default";
const OWN: &str = "cordoned-by-the-operator";
const USERS: &str = "cordoned-by-a-user";

#[test]
fn the_script_undoes_the_operators_cordons_and_no_others() {
    test(|f| async move {
        f.fleet.join([OWN, USERS].map(|name| FleetNode::with_gpus(name, "2330", 1))).await?;
        f.operator.kill()?;
        let outcome = removed(&f).await;
        f.operator.start_again()?;
        f.apply("{}").await?;
        outcome?;
        Ok(f)
    });
}

async fn removed(f: &Fixture) -> Result<()> {
    let nodes = Api::<Node>::all(f.cluster.client());
    // As an update that awaits the pods of a node leaves it.
    let labels = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": OWN, "labels": {(keys::CLIENTS): keys::CLIENTS_PAUSED}},
    });
    nodes.patch(OWN, &PatchParams::apply("gpu-operator/labels"), &Patch::Apply(&labels)).await?;
    f.cluster.kubectl(&["annotate", "node", OWN, &format!("{}=true", keys::CORDON)])?;
    for name in [OWN, USERS] {
        f.cluster.kubectl(&["cordon", name])?;
    }
    f.cluster.script("config/remove.sh", &[NAMESPACE])?;
    for (name, stays) in [(OWN, false), (USERS, true)] {
        let node = nodes.get(name).await?;
        let left: Vec<_> = node.labels().keys().chain(node.annotations().keys()).collect();
        ensure!(!left.iter().any(|key| key.starts_with(keys::PREFIX)), "{name}: {left:?}");
        let cordoned = node.spec.context("no spec")?.unschedulable.unwrap_or_default();
        ensure!(cordoned == stays, "{name} is cordoned: {cordoned}");
    }
    Ok(())
}
