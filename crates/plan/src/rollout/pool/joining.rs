//! Nodes that join a pool in the middle of a rollout: while that is stopped, or its canary nodes have not proven it, they get what the pool has
//! proven before.

use gpu_operator_crd::{
    gpunode::{DisruptionScope, RolloutStep, StageRevisions},
    reason::Reason,
};

use super::{PoolUpdates, ROLLED_BACK};
use crate::{
    assess::member::Member,
    note::Note,
    rollout::{
        change::daemon_sets_exist,
        decision::Decision,
        goal::Next,
        ledger::Ledger,
        terms::Budgets,
        update::{WAITS_FOR_BUDGET, settle},
    },
};

const JOINED: &str = "update pending: until the rollout of this pool goes on, a node that joins gets the revision that its nodes had before";

impl<'f> PoolUpdates<'f> {
    /// Whether nodes that join do not get what is being rolled out, because that is stopped or its canary nodes have not proven it.
    pub(super) fn holds_back(&self, ledger: &Ledger<'_>) -> bool {
        let is_stopped = self.is_halted || self.terms.is_paused;
        let is_unproven = is_stopped || self.goals.rolled_back || self.waves.next() != Next::Rest;
        let since = ledger.pool(self.name).and_then(|pool| pool.since.as_ref());
        is_unproven && (since.is_some() || self.members.iter().any(|assessed| assessed.member.is_outdated()))
    }

    /// Gives a node what the nodes of the pool had before, if they had something for its system.
    pub(super) fn proven(&mut self, member: &Member<'_>) -> Option<Decision> {
        let want = member.want()?;
        let proven =
            self.goals.proven(want).filter(|proven| daemon_sets_exist(proven, &self.world.daemon_sets))?.clone();
        let why = if self.goals.rolled_back { ROLLED_BACK } else { JOINED };
        let note = (proven != *want).then(|| Note::new(Reason::RolloutPending, why));
        let decision = self.restart_in_turn(settle(member, proven, self.terms.clock), member);
        Some(Decision { note: decision.note.or(note), ..decision })
    }

    /// Installs on a node that joins what no node of the pool has proven, within the limits of updates.
    pub(super) fn install_in_turn(
        &mut self,
        member: &'f Member<'f>,
        want: StageRevisions,
        ledger: &mut Ledger<'_>,
        budgets: &mut Budgets<'f>,
    ) -> Decision {
        let nothing = settle(member, StageRevisions::default(), self.terms.clock);
        let has_slot = ledger.slot_of(member).is_some();
        let is_possible = member.node.ready && daemon_sets_exist(&want, &self.world.daemon_sets);
        if !is_possible || ledger.failed(self.name).contains(&member.node.name) {
            return nothing;
        }
        if !has_slot && !budgets.allow(member) {
            self.awaits_slot = true;
            return Decision { note: Some(Note::new(Reason::RolloutPending, WAITS_FOR_BUDGET)), ..nothing };
        }
        if !has_slot {
            ledger.claim(member, self.terms.clock);
            budgets.take(member);
        }
        let from = StageRevisions::default();
        let rollout = self.terms.enter(RolloutStep::Replace, DisruptionScope::Nothing, from);
        Decision {
            rollout: Some(rollout),
            last_update: self.first_installation(member, ledger),
            labels: want,
            ..nothing
        }
    }
}
