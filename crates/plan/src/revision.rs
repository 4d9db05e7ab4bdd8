//! Content hashes: they name revisions, and show whether an object has the wanted content.

use gpu_operator_crd::{gpunode::StageRevisions, policy::Stage};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::world::{Interned, NodeFacts};

/// Returns the hash of a value's JSON, in `digits` hexadecimal digits (at most 16).
#[must_use]
pub fn short(content: &impl Serialize, digits: usize) -> String {
    // Serializing plain data does not fail; if it did, the hash would still be a valid name.
    let digest = Sha256::digest(serde_json::to_vec(content).unwrap_or_default());
    let number = digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{number:016x}").chars().take(digits).collect()
}

/// Returns the group of a stage, to be changed.
pub fn slot(groups: &mut StageRevisions, stage: Stage) -> &mut Option<String> {
    match stage {
        Stage::Driver => &mut groups.driver,
        Stage::Toolkit => &mut groups.toolkit,
        Stage::Mps => &mut groups.mps,
        Stage::DevicePlugin => &mut groups.device_plugin,
    }
}

/// Returns the group of a stage.
#[must_use]
pub fn group(groups: &StageRevisions, stage: Stage) -> Option<&str> {
    match stage {
        Stage::Driver => groups.driver.as_deref(),
        Stage::Toolkit => groups.toolkit.as_deref(),
        Stage::Mps => groups.mps.as_deref(),
        Stage::DevicePlugin => groups.device_plugin.as_deref(),
    }
}

/// Returns the name of the DaemonSet of a stage and group.
#[must_use]
pub fn daemon_set_name(stage: Stage, group: &str) -> String {
    format!("{}-{group}", stage.as_str())
}

/// Returns the groups in a node's labels.
#[must_use]
pub fn node_groups(node: &NodeFacts) -> StageRevisions {
    groups_of(|key| node.labels.get(key).map(Interned::as_str))
}

/// Returns the groups in labels. `value_of` returns the value of a label key.
#[must_use]
pub fn groups_of<'l>(value_of: impl Fn(&str) -> Option<&'l str>) -> StageRevisions {
    let mut groups = StageRevisions::default();
    for stage in Stage::ALL {
        *slot(&mut groups, stage) = value_of(stage.key()).filter(|value| !value.is_empty()).map(str::to_owned);
    }
    groups
}
