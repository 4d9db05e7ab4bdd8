//! Updates that have failed: by an error, by the deadline, or because the node is worse than before.

use std::collections::BTreeMap;

use gpu_operator_crd::{GpuNodeStatus, NodeName, PoolName};

use super::{decision::failure, goal::Goals, ledger::Ledger, update::has_nothing_else};
use crate::assess::{Assessment, member::Member};

/// Returns why updates have failed, by node, in the rollout of the settings with this hash. Nodes that have recovered leave the ledger:
/// they are ready with their target, and not with what they were given back.
pub fn of(
    pool: &PoolName,
    members: &[Assessment<'_>],
    goals: &Goals,
    revision: &str,
    ledger: &mut Ledger<'_>,
) -> BTreeMap<NodeName, String> {
    let has_goal = |member: &Member<'_>| {
        member.want().is_some_and(|want| has_nothing_else(&member.have, &goals.of_member(member, want)))
    };
    let has_recovered = |member: &Member<'_>| {
        member.rollout().is_none() && member.status().is_some_and(GpuNodeStatus::is_ready) && has_goal(member)
    };
    for Assessment { member, .. } in members.iter().filter(|assessed| has_recovered(&assessed.member)) {
        ledger.recover(pool, &member.node.name);
    }
    let remembered = ledger.failed(pool);
    let why = |assessed: &Assessment<'_>| {
        let Assessment { member, verdict, .. } = assessed;
        // What failed before the pool was rolled back does not count as a failure to return.
        let is_of_goal = || member.want().is_some_and(|want| goals.of_member(member, want) == member.have);
        let has_begun = member.rollout().is_some() && (!goals.rolled_back || is_of_goal())
            || remembered.contains(&member.node.name);
        let is_new =
            !goals.rolled_back && goals.last_update(member).is_some_and(|last_update| last_update.revision == revision);
        let why = (has_begun || is_new).then(|| failure(member, verdict).or_else(|| got_worse(member, goals)));
        Some((member.node.name.clone(), why??))
    };
    let mut failures: BTreeMap<_, _> = members.iter().filter_map(why).collect();
    for node in remembered {
        failures.entry(node.clone()).or_insert_with(|| format!("the update of node {node} has failed"));
    }
    failures
}

/// Returns why a node that has been updated is worse than before.
fn got_worse(member: &Member<'_>, goals: &Goals) -> Option<String> {
    let last_update = goals.last_update(member).filter(|last_update| last_update.at.is_some())?;
    let more = problems(member).checked_sub(last_update.unhealthy).filter(|more| *more > 0)?;
    Some(format!("node {}: {more} of its GPUs have had a problem since its update", member.node.name))
}

/// Counts the GPUs with a known problem.
pub fn problems(member: &Member<'_>) -> u32 {
    member.health.unhealthy + member.health.degraded
}
