//! What the pods have in common that this operator creates on one node, without a DaemonSet.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, NodeName, keys, policy::Pool};
use k8s_openapi::{
    api::core::v1::{
        Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Resource;

use crate::{manifests::pod, settings::Settings};

/// The node of a pod, and why it is there.
#[derive(Clone, Copy, Debug)]
pub struct OneOff<'a> {
    /// The operator's settings.
    pub settings: &'a Settings,
    /// The policy that the node belongs to.
    pub policy: &'a ClusterGpuPolicy,
    /// Its pool in the policy, if it is a named one.
    pub pool: Option<&'a Pool>,
    pub node: &'a NodeName,
    /// The value of [`keys::STAGE`].
    pub stage: &'a str,
}

/// Returns a pod that ends by itself and is placed by the scheduler, only on its node. It never preempts.
pub fn pod(of: OneOff<'_>, name: String, spec: PodSpec) -> Pod {
    let OneOff { settings, policy, pool, node, stage } = of;
    let labels = BTreeMap::from([
        (keys::STAGE.to_owned(), stage.to_owned()),
        (keys::POLICY.to_owned(), policy.meta().name.clone().unwrap_or_default()),
        (keys::MANAGED_BY.to_owned(), keys::MANAGER.to_owned()),
    ]);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels),
            owner_references: policy.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            affinity: Some(only_on(node)),
            tolerations: Some(tolerations(policy, pool)),
            priority_class_name: Some(keys::VALIDATION_PRIORITY.to_owned()),
            image_pull_secrets: pod::pull_secrets(settings, policy),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            // It has nothing to clean up.
            termination_grace_period_seconds: Some(1),
            ..spec
        }),
        status: None,
    }
}

/// Returns an affinity for one node, like that of the DaemonSet controller.
fn only_on(node: &NodeName) -> Affinity {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_string()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![field]), ..NodeSelectorTerm::default() };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}

/// Returns the operands' tolerations, and one of a cordon, which the DaemonSet controller adds to its pods.
fn tolerations(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Vec<Toleration> {
    let mut tolerations = pod::tolerations(policy, pool);
    tolerations.push(Toleration {
        key: Some("node.kubernetes.io/unschedulable".to_owned()),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    });
    tolerations
}
