//! The API server: the effects of writes by the operator and by others.

use std::collections::BTreeMap;

use gpu_operator_common::interned::{Interned, Interner};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicySpec, GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName, PolicyName, keys,
};
use gpu_operator_plan::{
    Plan,
    output::{
        daemon_sets::DaemonSetWrite, gpu_node::SpecWrite, node_labels::LabelWrite, plan::FinalizerWrite, writes::Write,
    },
    world::{HealthCondition, PodFacts, RuntimeClassFacts, TaintFact},
};
use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::{Sim, kstatus};

/// Returns a GpuNode as the API server creates it.
pub fn new_gpu_node(name: &NodeName, now: Timestamp) -> GpuNode {
    let mut gpu_node = GpuNode::new(name.as_str(), GpuNodeSpec::default());
    gpu_node.metadata.generation = Some(1);
    gpu_node.metadata.uid = Some(format!("uid-gpu-node-{name}-{now}"));
    gpu_node.metadata.creation_timestamp = Some(Time(now));
    gpu_node
}

/// The operator's writes. A write that the API server would reject, or that changes nothing, is a defect.
impl Sim {
    pub fn carry_out(&mut self, plan: &Plan) {
        self.carry_out_first(plan, usize::MAX);
    }

    /// Carries out the first writes of a plan, like an operator that is killed during a pass.
    pub fn carry_out_first(&mut self, plan: &Plan, count: usize) {
        plan.stages().iter().flatten().take(count).for_each(|write| self.write(write));
    }

    fn write(&mut self, write: &Write<'_>) {
        let (object, changed) = match write {
            Write::Finalizer(name, write) => (format!("policy/{name}"), self.put_finalizer(name, write)),
            Write::DaemonSet(name, write) => (format!("daemonset/{name}"), self.apply_set(name, write)),
            Write::Spec(name, write) => (format!("node/{name}"), self.apply_spec_of(name, write)),
            Write::Labels(name, write) => (format!("node/{name}"), self.apply_labels(name, write)),
            Write::Condition(name, condition) => (format!("health/{name}"), self.apply_condition(name, *condition)),
            Write::Taint(name, own) => (format!("health/{name}"), self.apply_taint(name, *own)),
            Write::Status(name, status) => (format!("node/{name}"), self.apply_status_of(name, status)),
            Write::PolicyStatus(name, status) => {
                let policy = self.policies.get_mut(*name).expect("404: a status for no policy");
                let before = policy.status.replace((*status).clone());
                kstatus::check_policy(policy);
                (format!("policy/{name}"), before.as_ref() != Some(*status))
            }
            Write::Prune(name) => (format!("daemonset/{name}"), self.sets.remove(*name).is_some()),
            Write::RuntimeClass(name, class) => {
                let facts = RuntimeClassFacts::of(class);
                let before = self.runtime_classes.insert((*name).into(), facts.clone());
                assert!(before.as_ref().is_none_or(|before| before.managed), "409: a third-party RuntimeClass");
                (format!("runtimeclass/{name}"), before != Some(facts))
            }
            Write::PruneClass(name) => {
                let before = self.runtime_classes.remove(*name);
                (format!("runtimeclass/{name}"), before.is_some_and(|before| before.managed))
            }
            Write::PruneGpuNode(name, uid) => {
                assert!(!self.nodes.contains_key(*name), "GpuNode {name} has a Node");
                let before = self.gpu_nodes.remove(*name);
                (format!("gpunode/{name}"), before.is_some_and(|before| before.uid().as_deref() == Some(*uid)))
            }
            Write::Recreate(name) => (format!("pod/{name}"), self.pods.remove(*name).is_some()),
            Write::Pod(name, pod) => (format!("pod/{name}"), self.make_pod(name, pod)),
        };
        assert!(changed, "a write of {object} that changes nothing");
        *self.writes.entry(object).or_default() += 1;
    }

    fn put_finalizer(&mut self, name: &PolicyName, write: &FinalizerWrite) -> bool {
        let policy = self.policies.get_mut(name).expect("404: a finalizer for no policy");
        assert_eq!(policy.uid().as_ref(), Some(&write.uid), "409: a finalizer for another policy");
        let before = policy.metadata.finalizers.clone();
        policy.metadata.finalizers = write.present.then(|| vec![keys::FINALIZER.into()]);
        let changed = before != policy.metadata.finalizers;
        self.collect_policy(name);
        changed
    }

    fn apply_set(&mut self, name: &str, write: &DaemonSetWrite) -> bool {
        let mut set = write.set.clone();
        let before = self.sets.get(name);
        let generation = before.and_then(|before| before.metadata.generation).unwrap_or_default();
        let same_spec = before.is_some_and(|before| before.spec == set.spec);
        set.metadata.generation = Some(if same_spec { generation } else { generation + 1 });
        let changed = before != Some(&set);
        self.sets.insert(name.into(), set);
        changed
    }

    fn make_pod(&mut self, name: &str, pod: &Pod) -> bool {
        let mut facts = PodFacts::of(pod, &Interner::default()).expect("a pod of this operator");
        assert!(self.nodes.contains_key(&facts.node), "a pod for an unknown node");
        facts.created = Some(self.now);
        self.pods.insert(name.into(), facts).is_none()
    }

    fn apply_spec_of(&mut self, name: &NodeName, SpecWrite { spec, owner, .. }: &SpecWrite) -> bool {
        let before = self.gpu_nodes.get(name).cloned();
        let mut gpu_node = before.clone().unwrap_or_else(|| new_gpu_node(name, self.now));
        if before.is_some() && gpu_node.spec != *spec {
            gpu_node.metadata.generation = gpu_node.metadata.generation.map(|generation| generation + 1);
        }
        gpu_node.spec = spec.clone();
        gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
        let changed = before.as_ref() != Some(&gpu_node);
        self.gpu_nodes.insert(name.clone(), gpu_node);
        changed
    }

    fn apply_condition(&mut self, name: &NodeName, condition: Option<&HealthCondition>) -> bool {
        let node = self.nodes.get_mut(name).expect("404: health of no node");
        let before = std::mem::replace(&mut node.health_condition, condition.cloned());
        before != node.health_condition
    }

    fn apply_taint(&mut self, name: &NodeName, own: Option<&TaintFact>) -> bool {
        let node = self.nodes.get_mut(name).expect("404: a taint of no node");
        let before = node.clone();
        node.taints.retain(|taint| !before.owns(taint));
        assert!(!node.taints.iter().any(|taint| own.is_some_and(|own| own.same(taint))), "422: {own:?}");
        node.taints.extend(own.cloned());
        node.own_taint = own.cloned();
        before != *node
    }

    fn apply_status_of(&mut self, name: &NodeName, status: &GpuNodeStatus) -> bool {
        let gpu_node = self.gpu_nodes.get_mut(name).expect("404: a status for no GpuNode");
        let before = gpu_node.status.clone();
        let report = before.as_ref().and_then(|status| status.report.clone());
        gpu_node.status = Some(GpuNodeStatus { report, ..status.clone() });
        kstatus::check_gpu_node(gpu_node);
        before != gpu_node.status
    }

    /// Server-side apply of a node's labels: a label that is no longer applied is removed unless another manager owns
    /// it as well, and a label that another manager has set to another value is a conflict unless the write is forced.
    fn apply_labels(&mut self, name: &NodeName, write: &LabelWrite) -> bool {
        let node = self.nodes.get_mut(name).expect("404: labels for no node");
        let before = node.clone();
        let users = self.user_labels.entry(name.clone()).or_default();
        for key in std::mem::take(&mut node.owned_labels) {
            if !users.contains_key(&key) {
                node.labels.remove(&key);
            }
        }
        for (key, value) in &write.labels {
            let owned = before.owned_labels.contains(key.as_str());
            let third_party = before.labels.get(key.as_str()).filter(|present| *present != value);
            assert!(owned || third_party.is_none() || write.force, "409: label {key} of {name}");
            if users.get(key.as_str()).is_some_and(|third_party| third_party != value) {
                assert!(key.starts_with(keys::PREFIX), "label {key} of {name} is taken from another manager");
                users.remove(key.as_str());
            }
            node.labels.insert(key.into(), value.into());
            node.owned_labels.insert(key.into());
        }
        before != *node
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

    /// Removes a deleted policy without finalizers, and its DaemonSets.
    fn collect_policy(&mut self, name: &PolicyName) {
        let policy = &self.policies[name];
        if policy.metadata.deletion_timestamp.is_none() || !policy.finalizers().is_empty() {
            return;
        }
        let uid = policy.uid();
        self.policies.remove(name);
        self.sets.retain(|_, set| set.owner_references().iter().all(|owner| Some(&owner.uid) != uid.as_ref()));
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
        self.gpu_pods.remove(node);
        self.faults.remove(node);
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
