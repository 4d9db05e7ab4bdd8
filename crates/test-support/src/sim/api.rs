//! The API server: the effects of writes by the operator and by others.

use std::collections::BTreeMap;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicySpec, ClusterGpuPolicyStatus, GpuNode, GpuNodeStatus, NodeName, PolicyName, keys,
};
use gpu_operator_plan::{
    Plan,
    loop_memory::LoopState,
    output::{
        body::{Body, DaemonSetWrite, Kind, Part, SpecWrite, Target},
        write::{Urgency, Write},
    },
    pass::Pass,
    time::Uptime,
    world::{PodFacts, RuntimeClassFacts, World},
};
use k8s_openapi::{
    api::{core::v1::Pod, node::v1::RuntimeClass},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::SignedDuration,
};
use kube::ResourceExt;

use super::{Sim, kstatus, machine::new_gpu_node};

/// The answer of the API server to a write: whether it changed anything, or the status code and the reason of a rejection.
pub type Answer = Result<bool, String>;

/// Returns the rejection of a write to an object that does not exist.
pub(super) fn missing(object: impl std::fmt::Display) -> String {
    format!("404: {object}")
}

/// The operator's writes. With mirrors that are up to date, a write that is rejected or that changes nothing is a defect.
impl Sim {
    pub fn carry_out(&mut self, plan: &Plan) {
        self.carry_out_first(plan, usize::MAX);
    }

    /// Carries out the first writes of a plan, like an operator that is killed during a pass.
    pub fn carry_out_first(&mut self, plan: &Plan, count: usize) {
        let (mut carry, mut made) = (LoopState::default(), 0);
        let mut plan = plan.clone();
        // No status waits here.
        plan.writes.iter_mut().for_each(|write| write.urgency = Urgency::Immediate);
        let mut around = self.around(&mut carry, Uptime::ZERO);
        let (pass, requests) = Pass::carry_out(plan, &World::default(), self.now, &mut around);
        self.drive(pass, requests, &mut carry, Uptime::ZERO, |sim, write| {
            made += 1;
            if made <= count {
                if let Some(Err(violated)) = sim.law.map(|law| law(sim, write)) {
                    panic!("{write}: {violated}");
                }
                let wrong = "either rejected, or a write that changes nothing";
                assert_eq!(sim.write(write), Ok(true), "{write}: {wrong}");
            }
            made <= count
        });
    }

    /// Makes a write as the API server does.
    pub fn write(&mut self, write: &Write) -> Answer {
        let Target { kind, part, name } = &write.target;
        let node = || NodeName::from(name.as_str());
        let policy = || PolicyName::from(name.as_str());
        let answer = match &write.body {
            Body::Finalizer { uid, present } => self.put_finalizer(&policy(), uid, *present),
            Body::PolicyStatus(status) => self.apply_policy_status(&policy(), status),
            Body::Ledger(write) => self.apply_ledger(&policy(), write),
            Body::Cordon(is_wanted) => self.apply_cordon(&node(), *is_wanted),
            Body::DaemonSet(write) => Ok(self.apply_set(name, write)),
            Body::RuntimeClass(class) => self.apply_class(name, class),
            Body::Spec(write) => self.apply_spec_of(&node(), write),
            Body::Status(status) => self.apply_status_of(&node(), status),
            Body::Labels(write) => self.apply_labels(&node(), write),
            Body::Presence(is_present) => self.apply_presence(&node(), *is_present),
            Body::Conditions(conditions) => self.apply_conditions(&node(), conditions),
            Body::Taints(write) => self.apply_taints(&node(), write),
            Body::Pod(pod) => self.make_pod(name, pod),
            Body::Eviction(uid) => self.evict(name, uid, false),
            Body::EvictionCheck(uid) => self.evict(name, uid, true),
            Body::Delete(uid) => self.delete(*kind, name, uid.as_deref()),
        };
        if answer.is_ok() {
            let of = match (kind, part) {
                (Kind::ClusterGpuPolicy, _) => "policy".to_owned(),
                (_, Part::Conditions | Part::Taints) => "health".to_owned(),
                (_, Part::Cordon) => "cordon".to_owned(),
                (_, Part::Presence) => "presence".to_owned(),
                (_, Part::Eviction) => "eviction".to_owned(),
                (Kind::GpuNode, _) if !matches!(write.body, Body::Delete(_)) => "node".to_owned(),
                (kind, _) => kind.as_str().to_lowercase(),
            };
            *self.writes.entry(format!("{of}/{name}")).or_default() += 1;
        }
        answer
    }

    fn delete(&mut self, kind: Kind, name: &str, uid: Option<&str>) -> Answer {
        match kind {
            Kind::DaemonSet => {
                let existed = self.sets.contains_key(name);
                self.delete_set(name);
                Ok(existed)
            }
            Kind::RuntimeClass => Ok(self.runtime_classes.remove(name).is_some_and(|before| before.managed)),
            Kind::GpuNode => self.remove_gpu_node(&name.into(), uid),
            Kind::Pod => Ok(self.end_pod(name)),
            Kind::ClusterGpuPolicy | Kind::Node => panic!("{kind:?} {name} is deleted"),
        }
    }

    fn put_finalizer(&mut self, name: &PolicyName, uid: &str, present: bool) -> Answer {
        let policy = self.policies.get_mut(name).ok_or_else(|| missing(name))?;
        if policy.uid().as_deref() != Some(uid) {
            return Err("409: a finalizer for another policy".into());
        }
        let before = policy.metadata.finalizers.clone();
        policy.metadata.finalizers = present.then(|| vec![keys::FINALIZER.into()]);
        let changed = before != policy.metadata.finalizers;
        self.collect_policy(name);
        Ok(changed)
    }

    fn apply_policy_status(&mut self, name: &PolicyName, status: &ClusterGpuPolicyStatus) -> Answer {
        let policy = self.policies.get_mut(name).ok_or_else(|| missing(name))?;
        let before = policy.status.clone();
        let mut status = status.clone();
        if let Some(before) = &before {
            // Another field manager owns the ledger.
            status.rollout.slots.clone_from(&before.rollout.slots);
            status.rollout.pools.clone_from(&before.rollout.pools);
        }
        policy.status = Some(status);
        kstatus::check_policy(policy);
        Ok(before != policy.status)
    }

    fn apply_class(&mut self, name: &str, class: &RuntimeClass) -> Answer {
        let before = self.runtime_classes.get(name);
        if before.is_some_and(|before| !before.managed) {
            return Err(format!("409: RuntimeClass {name} of another manager"));
        }
        let facts = RuntimeClassFacts::of(class);
        let changed = before != Some(&facts);
        self.runtime_classes.insert(name.into(), facts);
        Ok(changed)
    }

    fn apply_set(&mut self, name: &str, write: &DaemonSetWrite) -> bool {
        let mut set = write.set.clone();
        let before = self.sets.get(name);
        let generation = before.and_then(|before| before.metadata.generation).unwrap_or_default();
        let same_spec = before.is_some_and(|before| before.spec == set.spec);
        set.metadata.generation = Some(if same_spec { generation } else { generation + 1 });
        let changed = before != Some(&set);
        self.sets.insert(name.into(), set);
        self.deleted_sets.remove(name);
        changed
    }

    fn make_pod(&mut self, name: &str, pod: &Pod) -> Answer {
        let mut facts = PodFacts::of(pod).expect("a pod of this operator");
        if !self.nodes.contains_key(&facts.node) {
            // The pod garbage collector deletes it.
            return Ok(true);
        }
        facts.created = Some(self.now.into());
        if self.pods.contains_key(name) {
            return Err(format!("409: pod {name} already exists"));
        }
        self.pods.insert(name.into(), facts);
        self.templates.extend(pod.spec.clone().map(|spec| (name.to_owned(), spec)));
        Ok(true)
    }

    fn apply_spec_of(&mut self, name: &NodeName, SpecWrite { spec, owner, uid, generation, .. }: &SpecWrite) -> Answer {
        let before = self.gpu_nodes.get(name).cloned();
        if uid.is_some() && before.as_ref().and_then(ResourceExt::uid) != *uid {
            return Err(format!("409: another GpuNode {name}, or none"));
        }
        let is_planned_for = |gpu_node: &GpuNode| uid.is_none() || gpu_node.metadata.generation == *generation;
        if !before.as_ref().is_none_or(is_planned_for) {
            return Err(format!("409: GpuNode {name} has changed"));
        }
        let mut gpu_node = before.clone().unwrap_or_else(|| new_gpu_node(name, self.now));
        if before.is_some() && gpu_node.spec != *spec {
            gpu_node.metadata.generation = gpu_node.metadata.generation.map(|generation| generation + 1);
        }
        gpu_node.spec = spec.clone();
        gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
        let changed = before.as_ref() != Some(&gpu_node);
        self.gpu_nodes.insert(name.clone(), gpu_node);
        Ok(changed)
    }

    fn remove_gpu_node(&mut self, name: &NodeName, uid: Option<&str>) -> Answer {
        let found = self.gpu_nodes.get(name).ok_or_else(|| missing(name))?;
        if found.uid().as_deref() != uid {
            return Err(format!("409: another GpuNode {name}"));
        }
        self.gpu_nodes.remove(name);
        Ok(true)
    }

    fn apply_status_of(&mut self, name: &NodeName, status: &GpuNodeStatus) -> Answer {
        let gpu_node = self.gpu_nodes.get_mut(name).ok_or_else(|| missing(name))?;
        let before = gpu_node.status.clone();
        let report = before.as_ref().and_then(|status| status.report.clone());
        gpu_node.status = Some(GpuNodeStatus { report, ..status.clone() });
        kstatus::check_gpu_node(gpu_node);
        Ok(before != gpu_node.status)
    }
}

/// Writes by users and other managers.
impl Sim {
    /// Creates a policy or changes its spec, written as YAML.
    pub fn apply_policy(&mut self, name: impl Into<PolicyName>, spec: &str) {
        self.apply_spec(name, serde_yaml::from_str(spec).expect("a policy's spec"));
    }

    pub fn apply_spec(&mut self, name: impl Into<PolicyName>, spec: ClusterGpuPolicySpec) {
        let name = name.into();
        let created = Time(self.now + SignedDuration::from_secs(self.created.into()));
        // A policy that is created again has another uid.
        let uid = format!("uid-{name}{}", "'".repeat(self.created as usize));
        let count = &mut self.created;
        let policy = self.policies.entry(name.clone()).or_insert_with(|| {
            let mut policy = ClusterGpuPolicy::new(name.as_str(), ClusterGpuPolicySpec::default());
            policy.metadata.uid = Some(uid);
            policy.metadata.creation_timestamp = Some(created);
            policy.metadata.generation = Some(0);
            *count += 1;
            policy
        });
        if policy.spec != spec || policy.metadata.generation == Some(0) {
            policy.spec = spec;
            policy.metadata.generation = policy.metadata.generation.map(|generation| generation + 1);
        }
    }

    pub fn delete_policy(&mut self, name: impl Into<PolicyName>) {
        let (name, now) = (name.into(), Time(self.now));
        self.policies.get_mut(&name).expect("a policy").metadata.deletion_timestamp.get_or_insert(now);
        self.collect_policy(&name);
    }

    /// Deletes a policy in the foreground, as Argo CD does: what it owns is deleted first, whatever its finalizers.
    pub fn delete_policy_in_foreground(&mut self, name: impl Into<PolicyName>) {
        let name = name.into();
        let uid = self.policies[&name].uid();
        self.collect(uid.as_ref());
        self.delete_policy(name);
    }

    /// Removes a deleted policy without finalizers, and its DaemonSets.
    fn collect_policy(&mut self, name: &PolicyName) {
        let policy = &self.policies[name];
        if policy.metadata.deletion_timestamp.is_none() || !policy.finalizers().is_empty() {
            return;
        }
        let uid = policy.uid();
        self.policies.remove(name);
        self.collect(uid.as_ref());
    }

    /// Deletes what an object owns.
    fn collect(&mut self, uid: Option<&String>) {
        self.sets.retain(|_, set| set.owner_references().iter().all(|owner| Some(&owner.uid) != uid));
    }

    /// Sets or removes a label as a user. Setting the current value changes nothing, not even the owner.
    pub fn label(&mut self, node: impl Into<NodeName>, key: &str, value: Option<&str>) {
        let node = node.into();
        let facts = self.nodes.get_mut(&node).expect("a node");
        if facts.labels.get(key).map(Interned::as_str) == value {
            return;
        }
        let users = self.user_labels.entry(node).or_default();
        facts.owned_labels.remove(key);
        for labels in [users, &mut facts.labels] {
            match value {
                Some(value) => drop(labels.insert(key.into(), value.into())),
                None => drop(labels.remove(key)),
            }
        }
    }

    /// Deletes a Node with everything that belongs to it.
    pub fn leave(&mut self, node: &NodeName) {
        self.nodes.remove(node);
        self.user_labels.remove(node);
        self.machines.remove(node);
        self.boots_with.remove(node);
        self.gpu_nodes.remove(node);
        self.wipe_slices(node);
        self.gpu_pods.remove(node);
        self.faults.remove(node);
        self.user_sets.remove(node);
        self.pods.retain(|_, pod| pod.node != *node);
    }

    /// Deletes a Node whose probe is still running: once the GpuNode is deleted with the Node, the probe creates it again.
    pub fn leave_with_a_running_probe(&mut self, node: &NodeName) {
        let machine = self.machines.get(node).cloned();
        self.leave(node);
        let mut gpu_node = new_gpu_node(node, self.now);
        gpu_node.status = Some(GpuNodeStatus { report: machine, ..GpuNodeStatus::default() });
        self.gpu_nodes.insert(node.clone(), gpu_node);
    }

    /// Edits a DaemonSet as a user, which increments its generation.
    pub fn edit_set(&mut self, name: &str, edit: impl FnOnce(&mut k8s_openapi::api::apps::v1::DaemonSet)) {
        let set = self.sets.get_mut(name).expect("a DaemonSet");
        edit(set);
        set.metadata.generation = set.metadata.generation.map(|generation| generation + 1);
    }

    pub fn delete_set(&mut self, name: &str) {
        self.sets.remove(name);
        self.deleted_sets.insert(name.into());
    }

    /// Returns the number of writes so far for each object of a kind.
    pub fn writes_to(&self, kind: &str) -> BTreeMap<&str, u32> {
        let of_kind = |object: &'_ str| object.split_once('/').is_some_and(|(prefix, _)| prefix == kind);
        self.writes
            .iter()
            .filter(|(object, _)| of_kind(object))
            .map(|(object, count)| (object.as_str(), *count))
            .collect()
    }
}
