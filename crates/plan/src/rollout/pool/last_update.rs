//! The record of a node's last update.

use gpu_operator_crd::gpunode::{LastUpdate, RolloutStep, StageRevisions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::PoolUpdates;
use crate::{
    assess::member::Member,
    rollout::{
        decision::Decision,
        failures::problems,
        goal::{Next, target_of},
        ledger::Ledger,
        update::joins,
    },
};

impl PoolUpdates<'_> {
    pub(super) fn begun_update(&mut self, member: &Member<'_>, rollout: Time) -> LastUpdate {
        let before = self.goals.last_update(member).cloned();
        if let Some(before) = &before
            && self.goals.rolled_back
        {
            return before.clone();
        }
        let canary = self.waves.next() == Next::Canary;
        self.waves.begin();
        // What a node got when it joined during the rollout is not proven.
        let from = before.map_or_else(|| member.have.clone(), |before| before.from);
        LastUpdate { canary, from, ..record(member, rollout) }
    }

    /// Returns the record of an update that goes on, has ended, or ended earlier. One that has been given up is none.
    pub(super) fn last_update(&self, member: &Member<'_>, decision: &Decision) -> Option<LastUpdate> {
        let last_update = member.last_update()?.clone();
        // An update that has failed ends once the node works: from then on it is a canary node that soaks.
        if self.recovered.contains(&member.node.name) {
            return Some(LastUpdate { at: Some(Time(self.terms.clock.now())), ..last_update });
        }
        if member.rollout().is_some() && decision.rollout.is_none() && last_update.at.is_none() {
            let at = Some(Time(self.terms.clock.now()));
            return (decision.labels != last_update.from).then_some(LastUpdate { at, ..last_update });
        }
        // A reboot counts from the release of the driver.
        let awaits = decision.rollout.as_ref().is_some_and(|rollout| rollout.step == RolloutStep::Await);
        let boot_id = if awaits { member.node.boot_id.to_string() } else { last_update.boot_id };
        Some(LastUpdate { boot_id, ..last_update })
    }

    /// A first installation during a rollout counts as an update, if it fails.
    pub(super) fn first_installation(&self, member: &Member<'_>, ledger: &Ledger<'_>) -> Option<LastUpdate> {
        let rollout = ledger.pool(self.name)?.since.clone().filter(|_| joins(member) && !self.goals.rolled_back)?;
        // It is recorded before the labels.
        let recorded = member.last_update().filter(|last_update| last_update.rollout == rollout);
        let at = recorded.and_then(|last_update| last_update.at.clone());
        Some(LastUpdate { at: at.or(Some(Time(self.terms.clock.now()))), ..record(member, rollout) })
    }
}

/// Returns the record of an update that begins in a rollout.
fn record(member: &Member<'_>, rollout: Time) -> LastUpdate {
    LastUpdate {
        rollout,
        revision: target_of(member).unwrap_or_default(),
        boot_id: member.node.boot_id.to_string(),
        canary: false,
        from: StageRevisions::default(),
        unhealthy: problems(member),
        at: None,
    }
}
