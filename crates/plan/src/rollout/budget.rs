//! The budgets of a policy and of its pools: how many of their nodes may be disrupted at a time, and how many may be unavailable for
//! whatever reason.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{ClusterGpuPolicy, NodeName, PoolName, policy::RolloutStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::ledger::Ledger;
use crate::{
    assess::{Assessment, member::Member},
    int_or_percent,
};

/// The default of `maxParallel` of a policy.
const MAX_PARALLEL: u32 = 1;
/// The default of `maxUnavailable` of a policy, in percent.
const MAX_UNAVAILABLE: &str = "25%";

/// The budgets of a policy and of its pools.
#[derive(Clone, Debug)]
pub struct Budgets<'f> {
    policy: Budget,
    pools: BTreeMap<&'f PoolName, Budget>,
    /// Nodes that are unavailable, or will be by an update or a slot that they have.
    unavailable: BTreeSet<&'f NodeName>,
}

/// What is used of a budget, and its limits.
#[derive(Clone, Debug, Default)]
struct Budget {
    slots: u32,
    max_parallel: Option<u32>,
    unavailable: u32,
    max_unavailable: Option<u32>,
}

impl Budget {
    fn of(strategy: &RolloutStrategy, nodes: usize) -> Self {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let max_unavailable = strategy.max_unavailable.as_ref().map(|most| int_or_percent::of(most, nodes).max(1));
        Self { max_parallel: strategy.max_parallel, max_unavailable, ..Self::default() }
    }

    fn has_room(&self, is_unavailable: bool) -> bool {
        self.max_parallel.is_none_or(|most| self.slots < most)
            && (is_unavailable || self.max_unavailable.is_none_or(|most| self.unavailable < most))
    }
}

impl<'f> Budgets<'f> {
    /// Returns the budgets of a policy with these members.
    pub fn of(
        policy: &ClusterGpuPolicy,
        pools: &'f BTreeMap<PoolName, Vec<Assessment<'_>>>,
        ledger: &Ledger<'_>,
    ) -> Self {
        let defaults = RolloutStrategy {
            max_parallel: Some(policy.spec.rollout.max_parallel.unwrap_or(MAX_PARALLEL)),
            max_unavailable: policy
                .spec
                .rollout
                .max_unavailable
                .clone()
                .or(Some(IntOrString::String(MAX_UNAVAILABLE.into()))),
            ..RolloutStrategy::default()
        };
        let of_pool = |(name, members): (&'f PoolName, &'f Vec<Assessment<'_>>)| {
            let named = members.first().and_then(|assessed| assessed.member.pool.named);
            (name, named.map(|pool| Budget::of(&pool.rollout, members.len())).unwrap_or_default())
        };
        let mut budgets = Self {
            policy: Budget::of(&defaults, pools.values().map(Vec::len).sum()),
            pools: pools.iter().map(of_pool).collect(),
            unavailable: BTreeSet::new(),
        };
        for slot in ledger.slots() {
            budgets.count_slot(&slot.pool);
        }
        let with_slot: BTreeMap<&NodeName, &PoolName> = ledger.slots().map(|slot| (&slot.node, &slot.pool)).collect();
        for Assessment { member, .. } in pools.values().flatten() {
            let slot = with_slot.get(&member.node.name);
            // An update that began in another policy or pool has its slot there. A cordon that is not undone yet is still a
            // disruption.
            if member.rollout().is_some() || member.node.own_cordon {
                match slot {
                    None => budgets.count_slot(&member.pool.name),
                    Some(pool) if **pool != member.pool.name => budgets.count_slot_of_pool(&member.pool.name),
                    Some(_) => {}
                }
            }
            if is_unavailable(member) || slot.is_some() || member.rollout().is_some() {
                budgets.count_unavailable(member);
            }
        }
        budgets
    }

    /// Returns whether a node may get a slot. One that is unavailable anyway needs nothing else.
    pub fn allow(&self, member: &Member<'_>) -> bool {
        let is_unavailable = self.unavailable.contains(&member.node.name);
        self.policy.has_room(is_unavailable)
            && self.pools.get(&member.pool.name).is_none_or(|pool| pool.has_room(is_unavailable))
    }

    /// Returns which limit nodes wait for although there is a slot for them, as a message.
    pub fn exhausted(&self) -> Option<String> {
        let is_full = |most: Option<u32>, used| most.is_some_and(|most| used >= most);
        let is_exhausted = |budget: &&Budget| {
            !is_full(budget.max_parallel, budget.slots) && is_full(budget.max_unavailable, budget.unavailable)
        };
        let Budget { unavailable, .. } = [&self.policy].into_iter().chain(self.pools.values()).find(is_exhausted)?;
        let nodes = match unavailable {
            1 => "1 node is being updated, has failed, or is".to_owned(),
            _ => format!("{unavailable} nodes are being updated, have failed, or are"),
        };
        Some(format!("rollout.maxUnavailable is reached: {nodes} NotReady, cordoned or being deleted"))
    }

    /// Counts the slot that a node gets.
    pub fn take(&mut self, member: &'f Member<'_>) {
        self.count_slot(&member.pool.name);
        self.count_unavailable(member);
    }

    fn count_slot(&mut self, pool: &PoolName) {
        self.policy.slots += 1;
        self.count_slot_of_pool(pool);
    }

    fn count_slot_of_pool(&mut self, pool: &PoolName) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.slots += 1;
        }
    }

    fn count_unavailable(&mut self, member: &'f Member<'_>) {
        if self.unavailable.insert(&member.node.name) {
            self.policy.unavailable += 1;
            if let Some(pool) = self.pools.get_mut(&member.pool.name) {
                pool.unavailable += 1;
            }
        }
    }
}

/// Returns whether pods get no GPU of a node, whatever the rollout does.
fn is_unavailable(member: &Member<'_>) -> bool {
    !member.node.serves() || member.was_failing() && member.allocatable() == 0
}
