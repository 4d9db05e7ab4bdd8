//! The labels outside our own prefix that a policy wants on a node, from wherever they come: keys that it names, and labels that
//! it has written in place of other programs. What becomes of them on the Node is the same for all.

use gpu_operator_crd::{
    ClusterGpuPolicy, keys,
    policy::{Labels, Pool},
};

use crate::{assess::member::Member, output::gfd};

/// The labels that a node's policy wants published on it.
#[must_use]
pub fn of(member: &Member<'_>) -> Labels {
    let mut labels = if member.policy.spec.compatibility.wants_gfd() { discovered(member) } else { Labels::new() };
    // What a user has written himself is meant so.
    labels.extend(named(member.policy, member.named_pool, member.model()));
    labels
}

/// The keys that the policy names. Those that carry the model wait until it is known.
fn named(policy: &ClusterGpuPolicy, pool: Option<&Pool>, model: Option<&str>) -> Labels {
    let of_all = policy.spec.node_labels.iter().map(|key| (key, None));
    let of_pool = pool.into_iter().flat_map(|pool| &pool.node_labels).map(|label| (&label.key, label.value.as_deref()));
    of_all.chain(of_pool).filter_map(|(key, value)| Some((key.clone(), value.or(model)?.to_owned()))).collect()
}

/// What GPU feature discovery would write, by the last report that tells of it. Without one the labels that are there already
/// stay: that nobody tells of a node's GPUs changes none of them.
fn discovered(member: &Member<'_>) -> Labels {
    let report = member.report();
    let mut labels = report.and_then(|report| gfd::labels(report, &member.offer)).unwrap_or_else(|| {
        let ours = member.node.owned_labels.iter().filter(|key| keys::is_discovered(key));
        ours.filter_map(|key| Some((key.to_string(), member.node.labels.get(key)?.to_string()))).collect()
    });
    if member.on_bus() > 0 || member.node.owned_labels.contains(keys::GPU_PRESENT) {
        labels.insert(keys::GPU_PRESENT.to_owned(), "true".to_owned());
    }
    labels
}
