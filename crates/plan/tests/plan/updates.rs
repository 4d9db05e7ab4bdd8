//! Which writes begin an update, and when none may.

use gpu_operator_plan::output::{body::Body, write::Write};

use crate::sim::Sim;

/// Returns whether a node is in an update after a write.
pub fn begins_an_update(write: &Write) -> bool {
    matches!(&write.body, Body::Spec(write) if write.spec.rollout.is_some())
}

/// While a CRD is of another version than the operator's, nothing is pruned, and no update begins.
pub fn wait_for_the_crds(sim: &Sim, write: &Write) -> Result<(), String> {
    if write.prunes() {
        return Err(format!("{write} with CRDs of another version"));
    }
    let moves = sim.gpu_nodes.get(&write.target.name.as_str().into()).is_some_and(|node| node.spec.rollout.is_some());
    if begins_an_update(write) && !moves {
        return Err(format!("an update of node {} begins with CRDs of another version", write.target.name));
    }
    Ok(())
}
