//! The API server: the effects of writes that concern disruptions.

use gpu_operator_crd::{NodeName, PolicyName};
use gpu_operator_plan::output::body::LedgerWrite;

use super::{
    Sim,
    api::{Answer, missing},
};

impl Sim {
    pub(super) fn apply_ledger(&mut self, name: &PolicyName, write: &LedgerWrite) -> Answer {
        let policy = self.policies.get_mut(name).ok_or_else(|| missing(name))?;
        let status = policy.status.get_or_insert_default();
        let before = (status.rollout.slots.clone(), status.rollout.pools.clone());
        let is_same = policy.metadata.generation == write.generation && before == write.before;
        if policy.metadata.uid.as_ref() != Some(&write.uid) || !is_same {
            return Err(format!("409: policy {name} has changed"));
        }
        status.rollout.slots.clone_from(&write.slots);
        status.rollout.pools.clone_from(&write.pools);
        Ok(before != (write.slots.clone(), write.pools.clone()))
    }

    pub(super) fn apply_cordon(&mut self, name: &NodeName, is_wanted: bool) -> Answer {
        let node = self.nodes.get_mut(name).ok_or_else(|| missing(name))?;
        if if is_wanted { node.cordoned } else { !node.own_cordon } {
            return Ok(false);
        }
        (node.cordoned, node.own_cordon) = (is_wanted, is_wanted);
        Ok(true)
    }

    /// Evicts a pod, unless a budget forbids that: then the operator knows why when it plans again. A pod of a DaemonSet comes back at
    /// once as long as its node offers GPUs.
    pub(super) fn evict(&mut self, name: &str, uid: &str, dry_run: bool) -> Answer {
        if uid != self.gpu_pod(name).uid {
            return Err(format!("409: another pod {name}"));
        }
        if let Some(why) = self.budgets.get(name) {
            self.refused_evictions.insert(name.into(), format!("failed to evict pod {name}: {why}"));
            return Ok(true);
        }
        self.refused_evictions.remove(name);
        if dry_run {
            self.allowed_evictions.insert(name.into(), uid.into());
            return Ok(true);
        }
        for pods in self.gpu_pods.values_mut() {
            pods.retain(|pod| pod != name);
        }
        Ok(true)
    }
}
