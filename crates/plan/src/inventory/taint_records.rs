//! Which records of taints are believed. The annotation [`keys::OWN_TAINT`] of a Node records the taint that this operator has set, but
//! the node's kubelet can write it as well, and may not remove a taint itself. So a taint is removed only if a policy confirms its key: in
//! its spec, or in its status, which lists each key before the first taint with it.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use gpu_operator_crd::{ClusterGpuPolicy, NodeName, keys, policy_status::MAX_PUBLISHED_KEYS};

use crate::world::World;

/// Returns the world without the records that no policy confirms. While a policy cannot be parsed, such a record may be of that policy, so
/// that it is ignored and not removed.
pub fn confirmed(world: &World) -> Cow<'_, World> {
    let policies = world.policies.values();
    let named: BTreeSet<&str> =
        policies.flat_map(|policy| policy.spec.taint_keys().into_iter().chain(listed(policy))).collect();
    let is_confirmed = |key: &str| key == keys::UNHEALTHY_TAINT || named.contains(key);
    let recorded = world.nodes.values().filter_map(|node| Some((&node.name, node.own_taint.as_ref()?)));
    let doubtful: Vec<NodeName> =
        recorded.filter(|(_, taint)| !is_confirmed(&taint.key)).map(|(node, _)| node.clone()).collect();
    if doubtful.is_empty() {
        return Cow::Borrowed(world);
    }
    let mut believed = world.clone();
    for name in doubtful {
        if let Some(node) = believed.nodes.get_mut(&name) {
            Arc::make_mut(node).own_taint = None;
        }
    }
    Cow::Owned(believed)
}

/// Returns whether nodes may get a taint with this key from a policy: after a change of the policy, the record of the taint is believed.
pub fn is_published(policy: &ClusterGpuPolicy, key: &str) -> bool {
    key == keys::UNHEALTHY_TAINT || listed(policy).any(|listed| listed == key)
}

/// Returns the keys that the status of a policy lists: those that it names, and earlier ones that nodes still have.
pub fn published(policy: &ClusterGpuPolicy, world: &World) -> Vec<String> {
    let named = policy.spec.taint_keys();
    // The nodes are searched only for a key that the policy does not name any more.
    let is_used =
        |key: &str| world.nodes.values().any(|node| node.own_taint.as_ref().is_some_and(|taint| taint.key == key));
    let earlier = listed(policy).filter(|key| !named.contains(key) && is_used(key));
    named.iter().copied().chain(earlier).take(MAX_PUBLISHED_KEYS).map(str::to_owned).collect()
}

fn listed(policy: &ClusterGpuPolicy) -> impl Iterator<Item = &str> {
    policy.status.iter().flat_map(|status| &status.published_keys).map(String::as_str)
}
