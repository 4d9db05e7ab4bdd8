//! Content hashes: they name revisions, and show whether an object has the wanted content.

use gpu_operator_crd::{Revision, gpunode::StageRevisions, policy::Stage};
use k8s_openapi::api::core::v1::PodSpec;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::world::{DaemonSets, NodeFacts};

pub fn hash(content: &impl Serialize) -> u64 {
    // Serializing plain data does not fail; if it did, the hash would still be a valid name.
    let digest = Sha256::digest(serde_json::to_vec(content).unwrap_or_default());
    digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Returns the hash of a value's JSON, in `digits` hexadecimal digits (at most 16).
pub fn short(content: &impl Serialize, digits: usize) -> String {
    format!("{:016x}", hash(content)).chars().take(digits).collect()
}

pub fn daemon_set_name(stage: Stage, revision: &Revision) -> String {
    format!("{}-{revision}", stage.as_str())
}

pub fn pod_spec<'w>(sets: &'w DaemonSets, stage: Stage, revision: &Revision) -> Option<&'w PodSpec> {
    let set = sets.get(&daemon_set_name(stage, revision))?;
    set.spec.as_ref()?.template.spec.as_ref()
}

/// Whether the revision of a device plugin is a DRA driver.
pub fn is_by_claims(sets: &DaemonSets, revision: &Revision) -> bool {
    let set = sets.get(&daemon_set_name(Stage::DevicePlugin, revision));
    set.is_some_and(|set| set.resource_layout.by_claims)
}

/// Returns the revisions in a node's labels, which any user may have written.
pub fn labelled_revisions(node: &NodeFacts) -> StageRevisions {
    let mut revisions = StageRevisions::default();
    for stage in Stage::ALL {
        *revisions.get_mut(stage) = node.labels.get(stage.key()).filter(|value| !value.is_empty()).map(Revision::from);
    }
    revisions
}
