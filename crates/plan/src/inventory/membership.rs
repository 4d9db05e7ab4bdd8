//! Which policy governs a node.

use std::{cmp::Reverse, sync::Arc};

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
    /// A GPU was detected on it, and its probe has not reported it yet.
    Unreported,
    /// No policy selects it.
    NoPolicy,
    /// Its label excludes it from all policies.
    OptedOut,
}

/// Returns whether a node's label excludes it from all policies.
pub fn opted_out(node: &NodeFacts) -> bool {
    node.labels.get(keys::MANAGED).is_some_and(|value| value != "true")
}

/// Returns a note if other policies select a node as well.
pub fn overlap_note(governing: &PolicyName, others: &[PolicyName]) -> Option<Note> {
    let other = others.first()?;
    let message = format!(
        "policies {governing:?} and {other:?} both select this node; {governing:?} governs it, because it has a higher priority or is older. Narrow either nodeSelector, or set priority"
    );
    Some(Note::new(Reason::PolicyOverlap, message))
}

pub fn name_of(policy: &ClusterGpuPolicy) -> PolicyName {
    policy.metadata.name.as_deref().unwrap_or_default().into()
}

/// Returns the policies that are not being deleted, in order of precedence: if several select a node, the first of them governs it.
/// A backup that is restored, or an engine such as Argo CD that creates policies again, changes their age but not their priority.
pub fn by_precedence(world: &World) -> Vec<&ClusterGpuPolicy> {
    let mut policies: Vec<_> = world
        .policies
        .values()
        .map(Arc::as_ref)
        .filter(|policy| policy.metadata.deletion_timestamp.is_none())
        .collect();
    policies.sort_by_key(|policy| (Reverse(policy.spec.priority), policy.creation_timestamp(), policy.name_any()));
    policies
}

/// Returns whether a policy selects a node.
pub fn governs(policy: &ClusterGpuPolicy, node: &NodeFacts) -> bool {
    pools::selects(policy.spec.node_selector.as_ref(), &node.labels)
}
