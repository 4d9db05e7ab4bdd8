//! The operator's account can write of a Node only the operator's fields.

use anyhow::{Context, Result};
use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{OPERATOR, account, denied};
use crate::support::{HOSTNAME, test};

/// The beginning of the denials, for other fields, other keys and other conditions.
const FIELDS: &str = "the operator may only write labels, annotations, taints, unschedulable and conditions, not ";
const KEYS: &str = "the operator may write no labels of kubernetes.io and k8s.io to a Node, and only annotations of ";
const CONDITIONS: &str =
    "of a Node's conditions the operator may only write gpu.nodestack.dev/GpuHealthy and gpu.nodestack.dev/GpuReady";
const STARTUP: &str = "the operator may add no startup taint to a Node, only remove those that are there: ";
const RESERVED: &str =
    "the operator may neither add nor remove taints of kubernetes.io and k8s.io, except startup taints: ";

/// The API of Nodes for the operator's account. All writes are dry runs.
struct Nodes {
    api: Api<Node>,
    node: String,
}

impl Nodes {
    async fn merge(&self, patch: &Value) -> Result<Node, kube::Error> {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        self.api.patch(&self.node, &dry_run, &Patch::Merge(patch)).await
    }

    async fn merge_status(&self, patch: &Value) -> Result<Node, kube::Error> {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        self.api.patch_status(&self.node, &dry_run, &Patch::Merge(patch)).await
    }

    async fn apply_condition(&self, kind: &str) -> Result<Node, kube::Error> {
        let conditions = json!([{"type": kind, "status": "False"}]);
        let node = json!({"apiVersion": "v1", "kind": "Node", "status": {"conditions": conditions}});
        let apply = PatchParams::apply(keys::HEALTH_MANAGER).force().dry_run();
        self.api.patch_status(&self.node, &apply, &Patch::Apply(&node)).await
    }
}

#[test]
fn the_operator_writes_only_its_own_fields_of_a_node() {
    test(async |f| {
        let nodes = Nodes { api: Api::all(account(&f, OPERATOR).await?), node: f.host.name() };
        for (what, patch) in [
            ("labels", json!({"metadata": {"labels": {(keys::MODEL): "a", "gpu/nividia": "b", "nvidia.com/c": "d"}}})),
            ("cordon", json!({"metadata": {"annotations": {(keys::CORDON): "true"}}, "spec": {"unschedulable": true}})),
            ("taint", json!({"spec": {"taints": [{"key": "example.com/gpu", "effect": "NoSchedule"}]}})),
            // The domain only ends with the same letters.
            ("a similar label", json!({"metadata": {"labels": {"notkubernetes.io/a": "b"}}})),
        ] {
            nodes.merge(&patch).await.context(what)?;
        }
        for condition in keys::NODE_CONDITIONS {
            nodes.apply_condition(condition).await.context(condition)?;
        }

        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]);
        for (what, patch, words) in [
            ("a label", json!({"metadata": {"labels": {"kubernetes.io/a": "b"}}}), KEYS),
            ("a subdomain", json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}), KEYS),
            ("k8s.io", json!({"metadata": {"labels": {"topology.k8s.io/a": "b"}}}), KEYS),
            ("a removed label", json!({"metadata": {"labels": {HOSTNAME: null}}}), KEYS),
            ("an annotation", json!({"metadata": {"annotations": {"example.com/a": "b"}}}), KEYS),
            ("a finalizer", json!({"metadata": {"finalizers": ["example.com/a"]}}), FIELDS),
            ("an owner", json!({"metadata": {"ownerReferences": owner}}), FIELDS),
            ("the spec", json!({"spec": {"providerID": "a"}}), FIELDS),
        ] {
            denied(what, nodes.merge(&patch).await, words)?;
        }
        let label = json!({"metadata": {"labels": {"kubernetes.io/a": "b"}}});
        denied("a label beside the status", nodes.merge_status(&label).await, KEYS)?;
        let capacity = json!({"status": {"capacity": {"nvidia.com/gpu": "64"}}});
        denied("the status", nodes.merge_status(&capacity).await, FIELDS)?;
        denied("another condition", nodes.apply_condition("Ready").await, CONDITIONS)?;
        denied("a new condition", nodes.apply_condition("example.com/A").await, CONDITIONS)?;
        let own = json!([{"type": keys::HEALTH_CONDITION, "status": "True"}]);
        let only_own = json!({"status": {"conditions": own}});
        denied("removed conditions", nodes.merge_status(&only_own).await, CONDITIONS)
    });
}

/// Returns a patch of a Node's taints, which are one list.
fn taints(keys: &[&str]) -> Value {
    let taints: Vec<_> = keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    json!({"spec": {"taints": taints}})
}

#[test]
fn the_operator_removes_startup_taints_and_adds_none() {
    test(async |f| {
        let node = f.host.name();
        let (by_admin, nodes) = (Api::<Node>::all(f.cluster.client()), Api::all(account(&f, OPERATOR).await?));
        let nodes = Nodes { api: nodes, node: node.clone() };
        let autoscaler = format!("{}other", keys::AUTOSCALER_STARTUP_PREFIX);
        let (own, foreign) = ("example.com/gpu", "node.kubernetes.io/example");
        let [startup, autoscaler] = [keys::STARTUP_TAINT, autoscaler.as_str()];
        for added in [startup, autoscaler] {
            denied(added, nodes.merge(&taints(&[added])).await, STARTUP)?;
        }
        denied("a taint of Kubernetes", nodes.merge(&taints(&[foreign])).await, RESERVED)?;

        let set = async |patch: Value| by_admin.patch(&node, &PatchParams::default(), &Patch::Merge(patch)).await;
        set(taints(&[startup, autoscaler, foreign])).await?;
        let outcome = async {
            nodes.merge(&taints(&[foreign])).await.context("both startup taints are removed")?;
            nodes
                .merge(&taints(&[foreign, autoscaler, own]))
                .await
                .context("one is removed, and another taint is added")?;
            denied("a removed taint", nodes.merge(&taints(&[startup, autoscaler])).await, RESERVED)?;
            let mut changed = taints(&[startup, autoscaler, foreign]);
            changed["spec"]["taints"][0]["value"] = json!("changed");
            denied("a changed value", nodes.merge(&changed).await, STARTUP)
        };
        let outcome = outcome.await;
        set(json!({"spec": {"taints": null}})).await?;
        outcome
    });
}
