//! The rollout of a policy: which of its waiting nodes get a slot. Nodes that have one come first, then cordoned ones: a cordoned node
//! gets no new GPU pods, so it can be updated in a fleet that is otherwise always busy.

use std::{collections::BTreeMap, mem::take};

use gpu_operator_crd::{ClusterGpuPolicy, PoolName, policy_status::Slot};
use k8s_openapi::jiff::Timestamp;

use super::{budget::Budgets, decision::PolicyDecision, ledger::Ledger, pool::PoolTurns, terms::Terms};
use crate::{assess::Assessment, world::World};

/// Returns the decisions for the members of a policy.
pub fn decide<'f>(
    policy: &'f ClusterGpuPolicy,
    pools: &'f BTreeMap<PoolName, Vec<Assessment<'f>>>,
    world: &'f World,
    may_evict: bool,
    now: Timestamp,
) -> PolicyDecision<'f> {
    let mut ledger = Ledger::of(policy, world, now);
    let mut begin = |name, members: &'f Vec<Assessment<'f>>| {
        let named = members.first().and_then(|assessed| assessed.member.pool.named);
        let terms = Terms::of(policy, named, world, may_evict, now);
        PoolTurns::begin(policy, name, members, world, terms, &mut ledger)
    };
    let mut turns: BTreeMap<&PoolName, PoolTurns<'f>> =
        pools.iter().map(|(name, members)| (name, begin(name, members))).collect();
    let mut budgets = Budgets::of(policy, pools, &ledger);
    let mut waiting: Vec<_> = turns.values_mut().flat_map(|pool| take(&mut pool.waiting)).collect();
    waiting.sort_by_cached_key(|member| (ledger.slot_of(member).is_none(), !member.node.cordoned));
    for member in waiting {
        if let Some(pool) = turns.get_mut(&member.pool.name) {
            pool.take_turn(member, &mut ledger, &mut budgets);
        }
    }
    let awaits_slot = turns.values().any(|pool| pool.awaits_slot);
    let waits_for = awaits_slot.then(|| obstacle(&ledger, pools, world).or_else(|| budgets.exhausted())).flatten();
    let of_pools = turns.values().find_map(|pool| pool.waits_for.strip_prefix("update pending: "));
    let waits_for = waits_for.or(of_pools.map(str::to_owned));
    let pools: BTreeMap<_, _> = turns.into_iter().map(|(name, pool)| (name, pool.end(&mut ledger))).collect();
    ledger.retain(|pool| pools.contains_key(pool));
    let is_decided = |pool: &PoolName, node| pools.get(pool).is_some_and(|pool| pool.nodes.contains_key(node));
    let strays = ledger.ahead(world).filter(|slot| !is_decided(&slot.pool, &slot.node));
    let strays = strays.map(|slot| (slot.node.clone(), slot.turn)).collect();
    PolicyDecision { check_again: ledger.check_again, strays, waits_for, ledger: ledger.changed(), pools }
}

/// Returns why an update that others wait for does not go on, as a message.
fn obstacle(ledger: &Ledger<'_>, pools: &BTreeMap<PoolName, Vec<Assessment<'_>>>, world: &World) -> Option<String> {
    ledger.slots().find_map(|Slot { node, pool, .. }| {
        if world.unreadable_gpu_nodes.contains(node) {
            return Some(format!(
                "GpuNode {node} cannot be parsed, so its node may be in the middle of an update; upgrade the operator to the version that wrote it"
            ));
        }
        let member = pools.get(pool).and_then(|members| members.iter().find(|assessed| assessed.member.node.name == *node));
        let Some(Assessment { verdict, .. }) = member else {
            return Some(format!("node {node} has left pool {pool} in the middle of an update"));
        };
        let reason = verdict.reason;
        let is_away = reason.is_away();
        is_away.then(|| format!("node {node} is being updated and has reason {reason}; bring it back, or delete the Node"))
    })
}
