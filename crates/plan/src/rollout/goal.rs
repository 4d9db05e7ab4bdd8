//! What the nodes of a pool move to: what the policy wants or, after a failure, what they had when the last complete rollout ended. And in
//! which order: canary nodes first, the others once these have worked for long enough.

use std::time::Duration;

use gpu_operator_crd::{
    GpuNodeStatus,
    gpunode::{LastUpdate, StageRevisions},
    policy::Canary,
    policy_status::{PoolRollout, RolloutTarget},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{Assessment, PoolMembers, member::Member},
    clock::Clock,
    desired::has_nothing_else,
    pool_settings::int_or_percent,
    revision::short,
    time::later,
};

/// How long a node has to work after its update, if its canary nodes do not have to work for longer.
pub const SOAK: Duration = Duration::from_mins(10);

/// Returns the hash of revisions that a node should get.
pub fn target(want: &StageRevisions) -> String {
    short(want, 16)
}

/// Returns the hash of what a node should get, if that is known.
pub fn target_of(member: &Member<'_>) -> Option<String> {
    member.want().map(target)
}

#[derive(Clone, Debug, Default)]
pub struct Goals {
    /// When the pool's rollout began.
    since: Option<Time>,
    /// Whether the nodes return to what they had before.
    pub rolled_back: bool,
    /// What nodes had before, by what they want now.
    targets: Vec<RolloutTarget>,
}

impl Goals {
    /// `pool` is what the ledger remembers.
    pub fn of(pool: Option<&PoolRollout>, members: &[Assessment<'_>]) -> Self {
        let mut goals = Self::default();
        if let Some(pool) = pool {
            goals.since.clone_from(&pool.since);
            goals.rolled_back = !pool.rolled_back.is_empty();
            goals.targets.clone_from(&pool.targets);
        }
        // Nothing that a settled pool has had matters, and it may have thousands of nodes.
        let is_settled = |member: &Member<'_>| member.want().is_none_or(|want| *want == member.have);
        if pool.is_some() || !members.iter().all(|assessed| is_settled(&assessed.member)) {
            for assessed in members {
                goals.learn(&assessed.member);
            }
        }
        goals
    }

    /// Learns what nodes had that want the same as this one.
    fn learn(&mut self, member: &Member<'_>) {
        let Some(revision) = target_of(member) else { return };
        let before = self.before(member).cloned();
        let known = self.targets.iter().position(|known| known.revision == revision);
        let index = known.unwrap_or_else(|| {
            self.targets.push(RolloutTarget { revision, ..RolloutTarget::default() });
            self.targets.len() - 1
        });
        let known = &mut self.targets[index];
        if let Some(before) = before.filter(|_| known.proven == StageRevisions::default()) {
            known.proven = before;
        }
    }

    pub fn targets(&self) -> &[RolloutTarget] {
        &self.targets
    }

    pub fn last_update<'w>(&self, member: &Member<'w>) -> Option<&'w LastUpdate> {
        member.last_update().filter(|last_update| Some(&last_update.rollout) == self.since.as_ref())
    }

    /// Returns the last update of a node, if it was to what the node should get now, and the node was not given back what it had.
    pub fn update_to_want<'w>(&self, member: &Member<'w>) -> Option<&'w LastUpdate> {
        let want = member.want()?;
        let lasts = member.rollout().is_some() || has_nothing_else(&member.have, want);
        self.last_update(member).filter(|last_update| last_update.revision == target(want) && lasts)
    }

    /// Returns what a node had when the rollout began.
    fn before<'m>(&self, member: &'m Member<'_>) -> Option<&'m StageRevisions> {
        let had = self.last_update(member).map_or(&member.have, |last_update| &last_update.from);
        (*had != StageRevisions::default()).then_some(had)
    }

    /// Returns what nodes had, before the rollout, that want these revisions.
    pub fn proven(&self, want: &StageRevisions) -> Option<&StageRevisions> {
        let wanted = target(want);
        let known = self.targets.iter().find(|known| known.revision == wanted)?;
        Some(&known.proven).filter(|proven| **proven != StageRevisions::default())
    }

    /// Returns what a node with this wanted revision moves to.
    pub fn of_member(&self, member: &Member<'_>, want: &StageRevisions) -> StageRevisions {
        let before = || self.before(member).or_else(|| self.proven(want));
        self.rolled_back.then(before).flatten().unwrap_or(want).clone()
    }

    /// Returns until when a failure of a node counts against its update: as long as it is to work at least.
    pub fn soaks_until(&self, member: &Member<'_>, canary: Option<&Canary>, progress: Duration) -> Option<Timestamp> {
        let last_update = self.last_update(member)?;
        let soak = canary.and_then(|canary| canary.soak).map_or(SOAK, |soak| SOAK.max(soak.into()));
        // The first installation is no step of an update.
        let installs = if last_update.from == StageRevisions::default() { progress } else { Duration::ZERO };
        Some(later(last_update.at.as_ref()?.0, soak.max(installs)))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Waves {
    /// The number of missing canary nodes.
    missing: u32,
    /// Whether a canary node is not done.
    is_underway: bool,
    /// Until when they have to work, once all are done.
    soaks_until: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The node is a canary node.
    Canary,
    Rest,
    Underway,
    /// The canary nodes have to work until then.
    Soaking(Timestamp),
}

impl Waves {
    /// A canary node counts unless its update has failed or it lacks a GPU. `failed` is whether the update of a node has failed.
    pub fn of(
        canary: Option<&Canary>,
        pool: &PoolMembers<'_>,
        goals: &Goals,
        failed: impl Fn(&Member<'_>) -> bool,
        clock: &Clock,
    ) -> Self {
        let Some(canary) = canary.filter(|_| !goals.rolled_back) else { return Self::default() };
        let updated =
            pool.assessed.iter().filter_map(|assessed| Some((assessed, goals.update_to_want(&assessed.member)?)));
        let updated: Vec<_> =
            updated.filter(|(_, last_update)| last_update.from != StageRevisions::default()).collect();
        if updated.iter().any(|(_, last_update)| !last_update.canary) {
            return Self::default();
        }
        let counts = |assessed: &Assessment<'_>| !failed(&assessed.member) && !assessed.verdict.lacks_a_gpu();
        let canaries: Vec<_> = updated.into_iter().filter(|(assessed, _)| counts(assessed)).collect();
        let all = u32::try_from(pool.count()).unwrap_or(u32::MAX);
        let begun = u32::try_from(canaries.len()).unwrap_or(u32::MAX);
        let soak = canary.soak.map_or(Duration::ZERO, Into::into);
        let works = |member: &Member<'_>| member.status().is_some_and(GpuNodeStatus::is_ready);
        let is_done = |(assessed, last_update): &(&Assessment<'_>, &LastUpdate)| {
            last_update.at.is_some() && assessed.member.rollout().is_none() && works(&assessed.member)
        };
        let ended = canaries.iter().filter_map(|(_, last_update)| Some(last_update.at.as_ref()?.0)).max();
        Self {
            missing: int_or_percent(&canary.nodes, all).max(1).saturating_sub(begun),
            is_underway: !canaries.iter().all(is_done),
            soaks_until: ended.map(|ended| later(ended, soak)).filter(|until| !clock.reached(*until)),
        }
    }

    pub fn next(&self) -> Next {
        match self {
            Self { missing: 1.., .. } => Next::Canary,
            Self { is_underway: true, .. } => Next::Underway,
            Self { soaks_until: Some(until), .. } => Next::Soaking(*until),
            Self { .. } => Next::Rest,
        }
    }

    pub fn begin(&mut self) {
        if self.missing > 0 {
            self.missing -= 1;
            self.is_underway = true;
        }
    }
}
