//! The labels outside this operator's prefix that a policy publishes on a node: keys that the policy sets, and labels
//! that replace those of other programs. On the Node all of them are handled alike.

use gpu_operator_crd::{
    ClusterGpuPolicy, keys,
    policy::{Labels, NodeLabel, Pool},
};

use crate::{assess::member::Member, output::gfd};

/// Returns the labels that a node's policy publishes on it.
pub fn of(member: &Member<'_>) -> Labels {
    let mut labels = if member.policy.spec.compatibility.wants_gfd() { discovered(member) } else { Labels::new() };
    // The user's keys take precedence.
    labels.extend(named(member.policy, member.pool.named, member.model()));
    labels
}

/// Returns the labels that the policy sets. Those with the model as value are omitted until it is known.
fn named(policy: &ClusterGpuPolicy, pool: Option<&Pool>, model: Option<&str>) -> Labels {
    let value = |label: &NodeLabel| Some(label.value.as_deref().or(model)?.to_owned());
    policy.spec.labels_of(pool).filter_map(|label| Some((label.key.clone(), value(label)?))).collect()
}

/// Returns the labels that GPU feature discovery would write, by the last report that includes them. Without such a
/// report the present labels are kept.
fn discovered(member: &Member<'_>) -> Labels {
    let report = member.report;
    let mut labels = report.and_then(|report| gfd::labels(report, &member.offer)).unwrap_or_else(|| {
        let owned = member.node.owned_labels.iter().filter(|key| keys::is_discovered(key));
        owned.filter_map(|key| Some((key.to_string(), member.node.labels.get(key)?.to_string()))).collect()
    });
    if member.on_bus() > 0 || member.node.owned_labels.contains(keys::GPU_PRESENT) {
        labels.insert(keys::GPU_PRESENT.to_owned(), "true".to_owned());
    }
    labels
}
