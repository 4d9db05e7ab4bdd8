//! Which writes begin an update.

use gpu_operator_plan::output::{body::Body, write::Write};

/// Returns whether a node is in an update after a write.
pub fn begins_an_update(write: &Write) -> bool {
    matches!(&write.body, Body::Spec(write) if write.spec.rollout.is_some())
}
