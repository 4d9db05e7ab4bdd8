//! Which policy governs a node.

use std::sync::Arc;

use gpu_operator_crd::{ClusterGpuPolicy, PolicyName, keys, reason::Reason};
use kube::ResourceExt;

use super::pools;
use crate::{
    note::Note,
    world::{NodeFacts, World},
};

/// Why no policy governs a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmanaged {
    /// It has no NVIDIA GPU.
    NoGpu,
    /// No policy selects it.
    NoPolicy,
    /// Its label excludes it from all policies.
    OptedOut,
}

/// Returns whether a node's label excludes it from all policies.
#[must_use]
pub fn opted_out(node: &NodeFacts) -> bool {
    node.labels.get(keys::MANAGED).is_some_and(|value| value != "true")
}

/// Returns a note if other policies select a node as well.
#[must_use]
pub fn overlap_note(governing: &PolicyName, others: &[PolicyName]) -> Option<Note> {
    let other = others.first()?;
    let message = format!(
        "policies {governing:?} and {other:?} both select this node; {governing:?} is older and governs it. Narrow either nodeSelector"
    );
    Some(Note::new(Reason::PolicyOverlap, message))
}

/// Returns a policy's name.
#[must_use]
pub fn name_of(policy: &ClusterGpuPolicy) -> PolicyName {
    policy.metadata.name.as_deref().unwrap_or_default().into()
}

/// Returns the policies that are not being deleted, oldest first: if two select a node, the older one governs it.
pub fn by_age(world: &World) -> Vec<&ClusterGpuPolicy> {
    let mut policies: Vec<_> = world
        .policies
        .values()
        .map(Arc::as_ref)
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .collect();
    policies.sort_by_key(|policy| (policy.creation_timestamp(), policy.name_any()));
    policies
}

/// Returns whether a policy selects a node.
#[must_use]
pub fn governs(policy: &ClusterGpuPolicy, node: &NodeFacts) -> bool {
    pools::selects(policy.spec.node_selector.as_ref(), &node.labels)
}
