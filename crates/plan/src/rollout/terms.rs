//! The terms of updates: what the settings of a policy and a pool mean for each step, and how many nodes may be disrupted or unavailable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpu_operator_crd::{
    ClusterGpuPolicy, NodeName, PoolName,
    gpunode::{DisruptionScope, Rollout, RolloutStep, StageRevisions},
    policy::{GpuPodsMode, RolloutStrategy},
};
use k8s_openapi::apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString};

use super::window::Windows;
use crate::{
    assess::{Assessment, PoolMembers, member::Member},
    clock::Clock,
    pool_settings::{PoolSettings, int_or_percent},
    rollout::ledger::Ledger,
    settings::PROGRESS_DEADLINE,
    summary::SettledMember,
    time::later,
    world::World,
};

/// The default of `gpuPods.timeout`.
const TIMEOUT: Duration = Duration::from_hours(4);

#[derive(Clone, Debug)]
pub struct Terms<'c> {
    pub strategy: RolloutStrategy,
    /// By the pool or by the policy.
    pub is_paused: bool,
    may_evict: bool,
    /// How long GPU pods are awaited on a cordoned node.
    pub timeout: Duration,
    /// How long every other step, and a preflight, may take.
    pub progress_deadline: Duration,
    pub windows: Windows,
    /// Why the API server does not evict pods, by `namespace/name`.
    pub refused_evictions: &'c BTreeMap<String, String>,
    /// The pods that the API server would evict, with their UIDs.
    pub allowed_evictions: &'c BTreeMap<String, String>,
    pub clock: &'c Clock,
}

impl<'c> Terms<'c> {
    pub fn of(pool: &PoolSettings<'_>, may_evict: bool, world: &'c World, clock: &'c Clock) -> Self {
        let (policy, strategy) = (pool.policy, pool.rollout.clone());
        Self {
            is_paused: [strategy.paused, policy.spec.rollout.paused].contains(&Some(true)),
            may_evict,
            timeout: strategy.gpu_pods.timeout.map_or(TIMEOUT, Into::into),
            progress_deadline: policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into),
            refused_evictions: &world.refused_evictions,
            allowed_evictions: &world.allowed_evictions,
            windows: Windows::of(&strategy.windows, clock),
            strategy,
            clock,
        }
    }

    pub fn cordon(&self) -> bool {
        self.mode() != GpuPodsMode::Leave
    }

    pub fn evicts(&self) -> bool {
        self.mode() == GpuPodsMode::Evict && self.may_evict
    }

    /// The operator may not evict pods, although it should.
    pub fn lacks_right(&self) -> bool {
        self.mode() == GpuPodsMode::Evict && !self.may_evict
    }

    /// Returns why no update begins until a user changes that.
    pub fn suspended(&self) -> Option<&'static str> {
        self.is_paused.then_some("update pending: the rollout is paused by rollout.paused")
    }

    fn mode(&self) -> GpuPodsMode {
        self.strategy.gpu_pods.mode.unwrap_or_default()
    }

    /// Returns the record of an update that enters this step now.
    pub fn enter(&self, step: RolloutStep, scope: DisruptionScope, from: StageRevisions) -> Rollout {
        let deadline = match step {
            // Without a cordon a node does not wait.
            RolloutStep::Await => self.cordon().then_some(self.timeout),
            RolloutStep::Release | RolloutStep::Replace => Some(self.progress_deadline),
        };
        let deadline = deadline.map(|after| Time(self.clock.later(after)));
        Rollout { step, scope, from, since: Time(self.clock.now()), deadline, evicting: false }
    }

    /// Returns the record of an update that goes on with this step; `is_another` begins it again.
    pub fn go_on(&self, rollout: &Rollout, step: RolloutStep, is_another: bool) -> Rollout {
        if step == rollout.step && !is_another {
            return rollout.clone();
        }
        self.enter(step, rollout.scope, rollout.from.clone())
    }

    pub fn again(&self, rollout: &Rollout) -> Rollout {
        self.go_on(rollout, rollout.step, true)
    }

    pub fn is_over(&self, rollout: &Rollout) -> bool {
        let deadline = rollout.deadline.as_ref().map(|deadline| deadline.0);
        // A record of an earlier version has none.
        let deadline = deadline
            .or_else(|| (rollout.step != RolloutStep::Await).then(|| later(rollout.since.0, self.progress_deadline)));
        deadline.is_some_and(|deadline| self.clock.reached(deadline))
    }
}

const MAX_PARALLEL: u32 = 1;
/// Of a policy.
const MAX_UNAVAILABLE: &str = "25%";

/// Returns how many of the nodes of a pool may be unavailable, by the pool's or the policy's value.
pub fn max_unavailable(pool: &PoolSettings<'_>, nodes: usize) -> usize {
    let own = pool.rollout.max_unavailable.as_ref();
    let most = own
        .or(pool.policy.spec.rollout.max_unavailable.as_ref())
        .cloned()
        .unwrap_or_else(|| IntOrString::String(MAX_UNAVAILABLE.into()));
    let most = int_or_percent(&most, u32::try_from(nodes).unwrap_or(u32::MAX));
    usize::try_from(most.max(1)).unwrap_or(usize::MAX)
}

#[derive(Clone, Debug)]
pub struct Budgets<'f> {
    policy: Budget,
    pools: BTreeMap<&'f PoolName, Budget>,
    /// Nodes that are unavailable, or will be by an update or a slot.
    unavailable: BTreeSet<&'f NodeName>,
}

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
        let max_unavailable = strategy.max_unavailable.as_ref().map(|most| int_or_percent(most, nodes).max(1));
        Self { max_parallel: strategy.max_parallel, max_unavailable, ..Self::default() }
    }

    fn has_room(&self, is_unavailable: bool) -> bool {
        self.max_parallel.is_none_or(|most| self.slots < most)
            && (is_unavailable || self.max_unavailable.is_none_or(|most| self.unavailable < most))
    }
}

impl<'f> Budgets<'f> {
    pub fn of(policy: &ClusterGpuPolicy, pools: &'f BTreeMap<PoolName, PoolMembers<'f>>, ledger: &Ledger<'_>) -> Self {
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
        let of_pool = |(name, members): (&'f PoolName, &'f PoolMembers<'f>)| {
            let own = members.settings.pool.and_then(|pool| pool.rollout.as_ref());
            (name, own.map(|own| Budget::of(own, members.count())).unwrap_or_default())
        };
        let mut budgets = Self {
            policy: Budget::of(&defaults, pools.values().map(PoolMembers::count).sum()),
            pools: pools.iter().map(of_pool).collect(),
            unavailable: BTreeSet::new(),
        };
        for slot in ledger.slots() {
            budgets.count_slot(&slot.pool);
        }
        let with_slot: BTreeMap<&NodeName, &PoolName> = ledger.slots().map(|slot| (&slot.node, &slot.pool)).collect();
        for Assessment { member, .. } in pools.values().flat_map(|pool| &pool.assessed) {
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
        // Settled nodes have neither a slot nor a cordon.
        let settled = pools.values().flat_map(|pool| &pool.settled);
        for SettledMember { summary, .. } in settled.map(Arc::as_ref).filter(|settled| settled.is_unavailable) {
            budgets.count_unavailable_node(&summary.node, &summary.pool);
        }
        budgets
    }

    /// A node that is unavailable anyway does not count again.
    pub fn allow(&self, member: &Member<'_>) -> bool {
        let is_unavailable = self.unavailable.contains(&member.node.name);
        self.policy.has_room(is_unavailable)
            && self.pools.get(&member.pool.name).is_none_or(|pool| pool.has_room(is_unavailable))
    }

    /// Returns the limit that nodes wait for although there is a slot for them.
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
        self.count_unavailable_node(&member.node.name, &member.pool.name);
    }

    fn count_unavailable_node(&mut self, node: &'f NodeName, pool: &PoolName) {
        if self.unavailable.insert(node) {
            self.policy.unavailable += 1;
            if let Some(pool) = self.pools.get_mut(pool) {
                pool.unavailable += 1;
            }
        }
    }
}

/// Whether pods get no GPU of a node, whatever the rollout does.
pub fn is_unavailable(member: &Member<'_>) -> bool {
    !member.node.serves() || member.was_failing() && member.allocatable() == 0
}
