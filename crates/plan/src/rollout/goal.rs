//! What the nodes of a pool move to: what the policy wants or, after a failure, what they had when the last complete rollout ended. And in
//! which order: canary nodes first, the others once these have worked for long enough.

use std::time::Duration;

use gpu_operator_crd::{
    gpunode::{LastUpdate, StageRevisions},
    policy::Canary,
    policy_status::PoolRollout,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{Assessment, member::Member},
    desired::effective_spec,
    time::later,
};

#[derive(Clone, Debug, Default)]
pub struct Goals {
    /// When the pool's rollout began.
    since: Option<Time>,
    /// Whether the nodes return to what they had before.
    pub rolled_back: bool,
    /// What nodes had before, by what they want now, for nodes that had nothing.
    earlier: Vec<(StageRevisions, StageRevisions)>,
}

impl Goals {
    /// `pool` is what the ledger remembers.
    pub fn of(pool: Option<&PoolRollout>, members: &[Assessment<'_>]) -> Self {
        let Some(pool) = pool else { return Self::default() };
        let mut goals =
            Self { since: pool.since.clone(), rolled_back: !pool.rolled_back.is_empty(), earlier: Vec::new() };
        if goals.rolled_back {
            let earlier = |member: &Member<'_>| Some((member.want()?, goals.before(member)?.clone()));
            goals.earlier = members.iter().filter_map(|assessed| earlier(&assessed.member)).collect();
        }
        goals
    }

    pub fn last_update<'w>(&self, member: &Member<'w>) -> Option<&'w LastUpdate> {
        member.last_update().filter(|last_update| Some(&last_update.rollout) == self.since.as_ref())
    }

    /// Returns what a node had when the rollout began.
    fn before<'m>(&self, member: &'m Member<'_>) -> Option<&'m StageRevisions> {
        let had = self.last_update(member).map_or(&member.have, |last_update| &last_update.from);
        (*had != StageRevisions::default()).then_some(had)
    }

    /// Returns what a node with this wanted revision moves to.
    pub fn of_member(&self, member: &Member<'_>, want: StageRevisions) -> StageRevisions {
        if !self.rolled_back {
            return want;
        }
        if let Some(before) = self.before(member) {
            return before.clone();
        }
        let of_others = self.earlier.iter().find(|(wanted, _)| *wanted == want).map(|(_, had)| had.clone());
        of_others.unwrap_or(want)
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
    /// `revision` is the hash of the settings.
    pub fn of(
        canary: Option<&Canary>,
        members: &[Assessment<'_>],
        goals: &Goals,
        revision: &str,
        now: Timestamp,
    ) -> Self {
        let Some(canary) = canary.filter(|_| !goals.rolled_back) else { return Self::default() };
        let last_update =
            members.iter().filter_map(|assessed| Some((&assessed.member, goals.last_update(&assessed.member)?)));
        let last_update: Vec<_> = last_update.filter(|(_, last_update)| last_update.revision == revision).collect();
        if last_update.iter().any(|(_, last_update)| !last_update.canary) {
            return Self::default();
        }
        let all = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let begun = u32::try_from(last_update.len()).unwrap_or(u32::MAX);
        let soak = canary.soak.map_or(Duration::ZERO, Into::into);
        let is_underway =
            last_update.iter().any(|(member, last_update)| last_update.at.is_none() || member.rollout().is_some());
        let ended = last_update.iter().filter_map(|(_, last_update)| Some(last_update.at.as_ref()?.0)).max();
        Self {
            missing: effective_spec::int_or_percent(&canary.nodes, all).max(1).saturating_sub(begun),
            is_underway,
            soaks_until: ended.map(|ended| later(ended, soak)).filter(|until| now < *until),
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
