//! The label keys outside this operator's prefix that a policy publishes.

use gpu_operator_crd::{ClusterGpuPolicy, keys};

/// Returns whether a label comes from the policy itself: one that it publishes, or one of this operator's own. Pools
/// ignore such a label, whichever writer set it: a node would join a pool by a label that another pool wrote, and could
/// leave it again.
pub fn comes_from(policy: &ClusterGpuPolicy, key: &str) -> bool {
    let published = policy.spec.labels_of(&policy.spec.pools).map(|label| label.key.as_str());
    published.chain(keys::NODE_LABELS).any(|named| named == key)
        || policy.spec.compatibility.wants_gfd() && keys::is_discovered(key)
}
