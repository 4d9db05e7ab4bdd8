//! What the nodes of a pool move to: what the policy wants, or, after a failure, what they had when the pool's last complete rollout
//! had ended.

use gpu_operator_crd::{
    gpunode::{Moved, StageRevisions},
    policy_status::PoolRollout,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::assess::{Assessment, member::Member};

/// The goals of the nodes of a pool.
#[derive(Clone, Debug, Default)]
pub struct Goals {
    /// When the pool's rollout began, if there is one.
    since: Option<Time>,
    /// Whether its nodes return to what they had before.
    pub rolled_back: bool,
    /// What nodes had before that now want other groups, for nodes that had nothing.
    earlier: Vec<(StageRevisions, StageRevisions)>,
}

impl Goals {
    /// Returns the goals of the members of a pool of which this is remembered.
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

    /// Returns the record of a node's update in the current rollout.
    pub fn moved<'w>(&self, member: &Member<'w>) -> Option<&'w Moved> {
        member.moved().filter(|moved| Some(&moved.rollout) == self.since.as_ref())
    }

    /// Returns what a node had when the rollout began, if it had anything.
    fn before<'m>(&self, member: &'m Member<'_>) -> Option<&'m StageRevisions> {
        let had = self.moved(member).map_or(&member.have, |moved| &moved.from);
        (*had != StageRevisions::default()).then_some(had)
    }

    /// Returns what a node that wants these groups moves to.
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
