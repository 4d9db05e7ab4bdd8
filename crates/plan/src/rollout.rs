//! The rollout: which nodes are updated, which revisions each node's labels should name, and which pods are recreated.
//!
//! A revision is a hash of all that disrupts: driver version, images, environment, arguments. It is part of the DaemonSet's name and
//! of the node's label, so a node is updated, and returns, by one write of labels:
//!
//! ```text
//!               goal ≠ had, the node has a slot in the ledger of its policy
//!     ┌──────┐ ────────────────────────────────────────▶ ┌─────────┐  mode Leave: no pod uses a GPU of the node, the probe
//!     │ Idle │   (no pod has to end for what changes:     │  Await  │  lists other programs; other modes: it is cordoned, and
//!     └──────┘ ◀─ straight to Replace) ──────────────── └────┬────┘  pods and programs are awaited, or pods evicted
//!        ▲      something uses the GPUs (Leave), or still     │ nothing does, except pods of DaemonSets that are evicted
//!        │      does at the deadline; halt, pause, window     ▼
//!        │                                               ┌─────────┐  device plugin and MPS removed, probe releases NVML,
//!        │ ◀──────────────────────────────────────────── │ Release │  DaemonSets give way, then a second look for GPU
//!        │      a GPU pod or a program came in between;  └────┬────┘  pods and other programs
//!        │      halt                                          │ nothing holds the GPUs, and none is still offered in the
//!        │                                                    │ other way, if that changes ([`allocation`])
//!        │                                                    ▼
//!        │     ready, and every stage proven             ┌─────────┐
//!        │ ◀──────────────────────────────────────────── │ Replace │  labels name the new revisions; on the node:
//!        │                                               └────┬────┘  guard ─▶ driver ─▶ toolkit ─▶ device plugin
//!        │                                                    │ not ready at the deadline
//!        └──────────────── listed as failed ◀────────────────┘
//! ```
//!
//! [`ledger`] lists the nodes that may be disrupted, [`terms`] limits their number, [`decide`] orders them, [`goal`] lets canary nodes come
//! first and decides whether nodes move to what the policy wants or back, and [`update`] is the picture above. A pool halts while
//! `maxFailures` of its updates have failed ([`failures`]).
//!
//! An update waits for the pods of a node if it reloads the driver, changes the MIG layout, or takes MPS's daemon away, brings or replaces
//! it; the settings decide that ([`change`]). Others wait for none. A node that has no revision yet gets the wanted ones at once, or those
//! that its pool has proven while a rollout is stopped ([`pool`]). One that has failed and offers no GPU gets them at once, too, unless its
//! pool is halted: nothing is taken from any pod there. A toolkit that restarts the container runtime is always serialized
//! ([`runtime_restart`]). A label that another user changes or removes is no update: the revisions that `GpuNode.spec.current` records are
//! restored at once.
//!
//! What does not disrupt (resources, pull secrets, tolerations, …) changes the template in place and takes effect when the pod is
//! next created. A pod with an outdated template is deleted only if it cannot start: the new template may contain the cure
//! ([`recreate_pods`]).

mod allocation;
pub mod change;
pub mod decision;
pub mod eviction;
pub mod failures;
pub mod goal;
pub mod leaving;
pub mod ledger;
pub mod pool;
pub mod preflight;
pub mod recreate_pods;
pub mod runtime_restart;
pub mod terms;
pub mod toolkit_restart;
pub mod update;
pub mod window;

use std::{collections::BTreeMap, mem::take};

use gpu_operator_crd::{ClusterGpuPolicy, NodeName, PolicyName, PoolName, policy_status::Slot};

use crate::{
    assess::{AssessedFleet, Assessment, PolicyMembers, PoolMembers},
    clock::Clock,
    rollout::{
        decision::PolicyDecision,
        ledger::Ledger,
        pool::PoolUpdates,
        terms::{Budgets, Terms},
    },
    world::{NodeFacts, World},
};

#[derive(Debug, Default)]
pub struct Rollout<'f> {
    /// For the members of each policy.
    pub policies: BTreeMap<&'f PolicyName, PolicyDecision<'f>>,
    /// Slots to spend: their nodes left the pool before the update began.
    pub strays: BTreeMap<NodeName, u32>,
}

/// `may_evict` is whether the operator has the right to evict pods.
pub fn decide<'f>(fleet: &'f AssessedFleet<'f>, may_evict: bool, clock: &'f Clock) -> Rollout<'f> {
    let mut rollout = Rollout::default();
    let others: Vec<_> = fleet.unsettled(&fleet.world.nodes).map(|(_, node)| node.as_ref()).collect();
    for (name, policy) in &fleet.world.policies {
        let Some(PolicyMembers { pools, .. }) = fleet.policies.get(name) else { continue };
        let decision = decide_policy(policy, pools, &others, fleet.world, may_evict, clock);
        for (node, update) in &decision.strays {
            let known = rollout.strays.entry(node.clone()).or_default();
            *known = (*known).max(*update);
        }
        rollout.policies.insert(name, decision);
    }
    // The node of such a slot may be a member of another pool.
    let pools = rollout.policies.values_mut().flat_map(|policy| policy.pools.values_mut());
    for nodes in pools.map(|pool| &mut pool.nodes) {
        for (node, update) in &rollout.strays {
            if let Some(decision) = nodes.get_mut(node) {
                decision.updates_begun = decision.updates_begun.max(*update);
            }
        }
    }
    rollout
}

// Nodes that have a slot come first, then cordoned ones: a cordoned node gets no new GPU pods, so it can be updated in a fleet that is
// otherwise always busy.

fn decide_policy<'f>(
    policy: &'f ClusterGpuPolicy,
    pools: &'f BTreeMap<PoolName, PoolMembers<'f>>,
    others: &[&NodeFacts],
    world: &'f World,
    may_evict: bool,
    clock: &'f Clock,
) -> PolicyDecision<'f> {
    let mut ledger = Ledger::of(policy, world, clock);
    let mut begin = |name, members: &'f PoolMembers<'f>| {
        let terms = Terms::of(members.settings, may_evict, world, clock);
        (name, PoolUpdates::begin(name, members, others, world, terms, &mut ledger))
    };
    let mut updates: BTreeMap<&PoolName, PoolUpdates<'f>> =
        pools.iter().map(|(name, members)| begin(name, members)).collect();
    let mut budgets = Budgets::of(policy, pools, &ledger);
    let mut waiting: Vec<_> = updates.values_mut().flat_map(|pool| take(&mut pool.waiting)).collect();
    waiting.sort_by_cached_key(|member| (ledger.slot_of(member).is_none(), !member.node.cordoned));
    for member in waiting {
        if let Some(pool) = updates.get_mut(&member.pool.name) {
            pool.take_turn(member, &mut ledger, &mut budgets);
        }
    }
    let awaits_slot = updates.values().any(|pool| pool.awaits_slot);
    let waits_for = awaits_slot.then(|| obstacle(&ledger, pools, world).or_else(|| budgets.exhausted())).flatten();
    let of_pools = updates.values().find_map(|pool| pool.waits_for.strip_prefix("update pending: "));
    let waits_for = waits_for.or(of_pools.map(str::to_owned));
    let pools: BTreeMap<_, _> = updates.into_iter().map(|(name, pool)| (name, pool.end(&mut ledger))).collect();
    ledger.bound(|pool| pools.contains_key(pool));
    let is_decided = |pool: &PoolName, node| pools.get(pool).is_some_and(|pool| pool.nodes.contains_key(node));
    let strays = ledger.unused_slots(world).filter(|slot| !is_decided(&slot.pool, &slot.node));
    let strays = strays.map(|slot| (slot.node.clone(), slot.update)).collect();
    PolicyDecision { strays, waits_for, ledger: ledger.changed(), pools }
}

/// Returns why an update that others wait for does not go on.
fn obstacle(ledger: &Ledger<'_>, pools: &BTreeMap<PoolName, PoolMembers<'_>>, world: &World) -> Option<String> {
    ledger.slots().find_map(|Slot { node, pool, .. }| {
        if world.unreadable_gpu_nodes.contains(node) {
            return Some(format!(
                "GpuNode {node} cannot be parsed, so its node may be in the middle of an update; upgrade the operator to the version that wrote it"
            ));
        }
        let members = pools.get(pool).map(|members| members.assessed.as_slice()).unwrap_or_default();
        let member = members.iter().find(|assessed| assessed.member.node.name == *node);
        let Some(Assessment { verdict, .. }) = member else {
            return Some(format!("node {node} has left pool {pool} in the middle of an update"));
        };
        let reason = verdict.reason;
        let is_away = reason.is_away();
        is_away.then(|| format!("node {node} is being updated and has reason {reason}; bring it back, or delete the Node"))
    })
}
