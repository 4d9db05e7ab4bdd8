//! Disruptions: the effects of the operator's writes, GPU pods, crashes, and what an autoscaler does.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, PolicyName, policy::Stage};
use gpu_operator_plan::{
    output::body::LedgerWrite,
    world::{ContainerState, Exit, GpuPod, PodFacts, PodOwner, Role, TaintFact},
};

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
        if let Some(grace) = self.graces.get(name) {
            let gone_by = self.now + *grace;
            self.pod_facts.entry(name.into()).or_default().gone_by.get_or_insert(gone_by);
            return Ok(true);
        }
        for pods in self.gpu_pods.values_mut() {
            pods.retain(|pod| pod != name);
        }
        Ok(true)
    }

    /// Starts a GPU pod with these facts, if kubelet admits it: the device plugin runs and has offered GPUs.
    pub fn start_gpu_pod(&mut self, node: &NodeName, name: &str, facts: GpuPod) {
        let plugin = self.pods.get(&format!("device-plugin@{node}"));
        let offers = self.nodes.get(node).is_some_and(|facts| facts.ready) && self.served(node) > 0;
        let pods = self.gpu_pods.entry(node.clone()).or_default();
        if offers && plugin.is_some_and(PodFacts::running) && !pods.iter().any(|pod| pod == name) {
            pods.push(name.into());
            self.pod_facts.insert(name.into(), facts);
        }
    }

    /// Ends the GPU pods of a node that have been deleted, after their grace period, and creates those of users' DaemonSets again: their
    /// controller ignores cordons.
    pub(super) fn run_gpu_pods(&mut self, node: &NodeName) {
        let (now, facts, graces) = (self.now, &self.pod_facts, &self.graces);
        let is_over = |pod: &String| {
            let gone_by = facts.get(pod).and_then(|facts| facts.gone_by);
            graces.contains_key(pod) && gone_by.is_some_and(|gone_by| gone_by <= now)
        };
        if let Some(pods) = self.gpu_pods.get_mut(node) {
            pods.retain(|pod| !is_over(pod));
        }
        let Some(created) = self.user_sets.get_mut(node) else { return };
        let prefix = format!("team/agent-{node}-");
        if self.gpu_pods.get(node).into_iter().flatten().any(|pod| pod.starts_with(&prefix)) {
            return;
        }
        *created += 1;
        let name = format!("{prefix}{created}");
        self.start_gpu_pod(node, &name, GpuPod { owner: PodOwner::DaemonSet, ..GpuPod::default() });
    }

    /// Lets the main container of a pod crash, once: kubelet starts it again. The GPUs of a device plugin are withdrawn until then.
    pub fn crash(&mut self, pod: &str) {
        let Some(pod) = self.pods.get_mut(pod).filter(|pod| pod.running()) else { return };
        let exit = Exit { code: 1, message: "error: it broke once".into() };
        let container = &mut pod.containers[0];
        container.state = ContainerState::Ended(exit);
        container.ready = false;
        if let Some(node) = self.nodes.get_mut(&pod.node).filter(|_| pod.role == Role::Operand(Stage::DevicePlugin)) {
            node.allocatable = node.allocatable.withdrawn();
        }
        let boot = self.machines.get(&pod.node).map(|machine| Interned::from(machine.boot_id.as_str()));
        *self.crashes.entry((pod.name.clone(), boot.unwrap_or_default())).or_default() += 1;
    }

    /// Lets Cluster Autoscaler take a node away: it taints the node and drains it. It deletes the Node later.
    pub fn take_away(&mut self, node: &NodeName) {
        let taint = TaintFact {
            key: "ToBeDeletedByClusterAutoscaler".into(),
            value: "1767225600".into(),
            effect: "NoSchedule".into(),
        };
        if let Some(facts) = self.nodes.get_mut(node).filter(|facts| !facts.taints.contains(&taint)) {
            facts.taints.push(taint);
            let stays = |pod: &String| self.pod_facts.get(pod).is_some_and(|facts| facts.owner == PodOwner::DaemonSet);
            if let Some(pods) = self.gpu_pods.get_mut(node) {
                pods.retain(stays);
            }
        }
    }
}
