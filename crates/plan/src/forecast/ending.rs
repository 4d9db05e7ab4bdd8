//! The world of a forecast: as observed, and after something has been applied or has ended well.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNodeSpec, NodeName, Phase, PolicyName,
    gpunode::{LastUpdate, StageRevisions},
    policy::Stage,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::inputs::{self, Inputs};
use crate::{
    inventory::membership::name_of,
    output::{body::Body, write::Plan},
    rollout::{ledger::Content, preflight::PreflightPod},
    world::{ContainerFacts, ContainerState, DaemonSetFacts, Exit, NodeFacts, PodFacts, Role, World},
};

/// No eviction has been attempted: the budgets decide which the API server would allow. All pods are known.
pub fn observed(inputs: Inputs<'_>) -> World {
    let mut world = inputs.world.clone();
    world.refused_evictions = inputs::refused(&world, inputs.budgets);
    let reports = world.gpu_nodes.values_mut().filter(|gpu_node| {
        gpu_node.status.as_ref().and_then(|status| status.report.as_ref()?.gpu_pods.as_ref()).is_some()
    });
    for gpu_node in reports {
        let status = Arc::make_mut(gpu_node).status.as_mut();
        if let Some(report) = status.and_then(|status| status.report.as_mut()) {
            report.gpu_pods = None;
        }
    }
    world
}

pub fn with_policies(world: &World, policies: &[ClusterGpuPolicy], now: Timestamp) -> World {
    let mut world = world.clone();
    for policy in policies {
        let mut policy = policy.clone();
        let name = name_of(&policy);
        if let Some(present) = world.policies.get(&name) {
            policy.status.clone_from(&present.status);
            let annotations = policy.metadata.annotations.take();
            policy.metadata = present.metadata.clone();
            policy.metadata.annotations = annotations.or(policy.metadata.annotations);
        } else {
            policy.metadata.uid = Some(format!("uid-of-{name}"));
            policy.metadata.creation_timestamp = Some(Time(now));
        }
        world.unreadable_policies.remove(&name);
        world.policies.insert(name, Arc::new(policy));
    }
    world
}

pub fn with_daemon_sets(world: &World, plan: &Plan) -> World {
    let mut world = world.clone();
    for write in &plan.writes {
        if let Body::DaemonSet(wanted) = &write.body {
            world.daemon_sets.insert(write.target.name.clone(), Arc::new(DaemonSetFacts::of(&wanted.set)));
        }
    }
    world
}

/// Something that the operator has written, or its result.
#[derive(Clone, Debug)]
pub enum Event {
    Ledger(PolicyName, Content),
    /// A preflight has pulled all images.
    Pulled(String, PreflightPod),
    /// The record, and whether this operator keeps the node cordoned.
    Recorded(NodeName, Box<GpuNodeSpec>, bool),
    /// A node has this revision, and it works.
    Arrived(NodeName, Box<GpuNodeSpec>, StageRevisions),
}

impl Event {
    /// Returns whether that changes anything.
    pub fn happen(self, world: &mut World, now: Timestamp) -> bool {
        match self {
            Self::Ledger(policy, content) => write_ledger(world, &policy, content),
            Self::Pulled(name, pod) => pull(world, name, &pod),
            Self::Recorded(node, spec, cordon) => record(world, &node, *spec, cordon),
            Self::Arrived(node, spec, revisions) => {
                arrive(world, &node, *spec, &revisions, now);
                true
            }
        }
    }
}

fn write_ledger(world: &mut World, policy: &PolicyName, content: Content) -> bool {
    let Some(policy) = world.policies.get_mut(policy) else { return false };
    let rollout = &mut Arc::make_mut(policy).status.get_or_insert_default().rollout;
    let Content { slots, pools } = content;
    let changes = rollout.slots != slots || rollout.pools != pools;
    (rollout.slots, rollout.pools) = (slots, pools);
    changes
}

fn pull(world: &mut World, name: String, pod: &PreflightPod) -> bool {
    let ended = || ContainerState::Ended(Exit { code: 0, message: String::new() });
    let containers = pod.images.iter().map(|image| container(&image.container, ended())).collect();
    let facts = PodFacts { containers, ..pod_on(&pod.node, Role::Preflight, name) };
    let before = world.pods.insert(Arc::new(facts.clone()));
    before.is_none_or(|before| *before != facts)
}

fn pod_on(node: &NodeName, role: Role, name: String) -> PodFacts {
    PodFacts {
        name,
        node: node.clone(),
        role,
        revision: None,
        applied: None,
        created: None,
        sandbox_since: None,
        deletion: None,
        unschedulable: None,
        end: None,
        init: Vec::new(),
        containers: Vec::new(),
    }
}

fn container(name: &str, state: ContainerState) -> ContainerFacts {
    let ready = matches!(state, ContainerState::Running(_));
    ContainerFacts { name: Interned::from(name), state, last_failure: None, ready }
}

fn record(world: &mut World, node: &NodeName, spec: GpuNodeSpec, cordon: bool) -> bool {
    let mut changes = false;
    if let Some(gpu_node) = world.gpu_nodes.get_mut(node)
        && gpu_node.spec != spec
    {
        Arc::make_mut(gpu_node).spec = spec;
        changes = true;
    }
    if let Some(facts) = world.nodes.get_mut(node)
        && facts.own_cordon != cordon
    {
        let facts = Arc::make_mut(facts);
        (facts.own_cordon, facts.cordoned) = (cordon, cordon);
        changes = true;
    }
    changes
}

fn arrive(world: &mut World, node: &NodeName, mut spec: GpuNodeSpec, revisions: &StageRevisions, now: Timestamp) {
    spec.current = Some(revisions.clone());
    spec.rollout = None;
    spec.release_driver = false;
    spec.last_update =
        spec.last_update.map(|last_update| LastUpdate { at: last_update.at.or(Some(Time(now))), ..last_update });
    record(world, node, spec, false);
    let status = world.gpu_nodes.get_mut(node).and_then(|gpu_node| Arc::make_mut(gpu_node).status.as_mut());
    if let Some(status) = status {
        (status.phase, status.reason) = (Phase::Ready, None);
    }
    if let Some(facts) = world.nodes.get_mut(node) {
        name_revisions(Arc::make_mut(facts), revisions);
    }
    if let Some(pods) = world.gpu_pods.get_mut(node) {
        pods.users.clear();
    }
    let operands = world.pods.on(node).filter(|pod| matches!(pod.role, Role::Operand(_)));
    for name in operands.map(|pod| pod.name.clone()).collect::<Vec<_>>() {
        world.pods.remove(&name);
    }
    for stage in Stage::ALL {
        if let Some(revision) = revisions.get(stage) {
            let (name, role) = (format!("{}@{node}", stage.as_str()), Role::Operand(stage));
            let containers = vec![container(stage.as_str(), ContainerState::Running(None))];
            let pod = PodFacts { revision: Some(revision.clone()), containers, ..pod_on(node, role, name) };
            world.pods.insert(Arc::new(pod));
        }
    }
}

fn name_revisions(node: &mut NodeFacts, revisions: &StageRevisions) {
    let mut labels: BTreeMap<_, _> = std::mem::take(&mut node.labels);
    for stage in Stage::ALL {
        match revisions.get(stage) {
            Some(revision) => {
                labels.insert(stage.key().into(), revision.as_str().into());
                node.owned_labels.insert(stage.key().into());
            }
            None => drop(labels.remove(stage.key())),
        }
    }
    node.labels = labels;
}
