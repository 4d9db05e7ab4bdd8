//! What must hold at every write and after every step, judged by what is true and not by what the operator sees.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName, PolicyName, Revision,
    gpunode::RolloutStep,
    keys,
    policy::{Eviction, GpuPodsMode, Stage},
    policy_status::Slot,
};
use gpu_operator_plan::{
    inventory::records::belongs_to,
    output::{
        body::{Body, Kind, LabelWrite, LedgerWrite, SpecWrite},
        write::Write,
    },
    world::{NodeFacts, PodFacts, PodOwner, Role, TaintWrite},
};
use kube::ResourceExt;

use crate::{
    presence,
    sim::{Faults, Sim},
    truth::{governing, is_used, keeps_driver_loaded, keeps_its_stack, placing, pod, revision_of_pod, starts_gpu_pods},
};

/// A law, and what violates it.
pub type Lawful = Result<(), String>;

/// Checks a write before the API server carries it out.
pub fn holds(sim: &Sim, write: &Write) -> Lawful {
    if let Body::Labels(labels) = &write.body {
        names_what_exists(sim, &write.target.name.as_str().into(), labels)?;
    }
    holds_late(sim, write)
}

/// Checks a write that is carried out when the operator waits for it no longer. What it names may be gone meanwhile.
pub fn holds_late(sim: &Sim, write: &Write) -> Lawful {
    let name = write.target.name.as_str();
    match (&write.body, write.target.kind) {
        (Body::Labels(write), _) => driver_stays(sim, &name.into(), write),
        (Body::Taints(write), _) => only_served_nodes_start(sim, &name.into(), write),
        (Body::Eviction(_), _) => is_its_turn(sim, name),
        (Body::Delete(_), Kind::DaemonSet) => nothing_uses(sim, name),
        (Body::Delete(_), Kind::Pod) => may_be_recreated(sim, name),
        (Body::Finalizer { present: false, .. }, _) => nothing_is_left_of(sim, &name.into()),
        (Body::Spec(write), _) => begins_with_a_slot(sim, &name.into(), write),
        (Body::Ledger(write), _) => ledger_is_within_limits(sim, &name.into(), write),
        _ => Ok(()),
    }
}

/// No startup taint is added, and one is removed only if its policy names the key, and from a Node that has served GPUs on this boot.
fn only_served_nodes_start(sim: &Sim, name: &NodeName, write: &TaintWrite) -> Lawful {
    let Some(node) = sim.nodes.get(name) else { return Ok(()) };
    let added = write.own.iter().filter_map(|own| own.wanted.as_ref()).find(|taint| taint.is_startup());
    if let Some(added) = added {
        return Err(format!("{name} gets taint {added}"));
    }
    let Some(lift) = write.clone().on(&node.uid, &node.boot_id).lifted else { return Ok(()) };
    if sim.has_served(name) { Ok(()) } else { Err(format!("{name} loses taint {} before it is ready", lift.key)) }
}

/// The Node that a write of labels is for, if it still exists.
fn written<'s>(sim: &'s Sim, name: &NodeName, write: &LabelWrite) -> Option<&'s NodeFacts> {
    sim.nodes.get(name).filter(|node| node.uid == write.uid)
}

/// Labels name DaemonSets that exist, and the revisions that the node's GpuNode records.
fn names_what_exists(sim: &Sim, name: &NodeName, write: &LabelWrite) -> Lawful {
    let Some(node) = written(sim, name, write) else { return Ok(()) };
    let record = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.spec.current.as_ref());
    for stage in Stage::ALL {
        let Some(revision) =
            write.labels.get(stage.key()).filter(|revision| !revision.is_empty() && *revision != "none")
        else {
            continue;
        };
        if node.labels.get(stage.key()).is_some_and(|present| *present == revision.as_str()) {
            continue;
        }
        let set = format!("{}-{revision}", stage.as_str());
        if !sim.sets.contains_key(&set) && !sim.deleted_sets.contains(&set) {
            return Err(format!("the label of {name} names {stage:?} {revision}, which does not exist"));
        }
        let recorded = record.map(|record| record.get(stage).map(Revision::as_str));
        if recorded.is_some_and(|recorded| recorded != Some(revision.as_str())) {
            return Err(format!("the label of {name} names {stage:?} {revision}, but {recorded:?} is on record"));
        }
    }
    Ok(())
}

/// No driver is replaced or removed under a GPU pod.
fn driver_stays(sim: &Sim, name: &NodeName, write: &LabelWrite) -> Lawful {
    let Some(node) = written(sim, name, write).filter(|_| is_used(sim, name) && keeps_its_stack(sim, name)) else {
        return Ok(());
    };
    let labelled = || placing(sim, node, Stage::Driver).map(|revision| revision.as_str().into());
    let had: Option<Revision> = revision_of_pod(sim, name, Stage::Driver).or_else(labelled);
    let gets = write.labels.get(keys::DRIVER).map(String::as_str);
    let is_replaced = had.as_ref().is_some_and(|had| Some(had.as_str()) != gets);
    if is_replaced && !gets.is_some_and(|gets| keeps_driver_loaded(sim, name, gets)) {
        return Err(format!("the driver of {name} is replaced under a GPU pod: {had:?} by {gets:?}"));
    }
    Ok(())
}

/// No DaemonSet is deleted that a node with a GPU pod names, or whose driver or toolkit it has. A pod may get a GPU while the device
/// plugin is going, after the node was found idle. The pods of a node that has left, and a toolkit that the node's label no longer
/// names, are going, but stay while the node does not answer.
fn nothing_uses(sim: &Sim, set: &str) -> Lawful {
    let has_left = |node: &NodeFacts| {
        let gpu_node = sim.gpu_nodes.get(&node.name);
        node.owned_labels.is_empty() && gpu_node.is_some_and(|gpu_node| gpu_node.spec.policy.is_none())
    };
    let has = |node: &NodeFacts| {
        Stage::ALL.into_iter().any(|stage| {
            let is_named = |revision: &str| set == format!("{}-{revision}", stage.as_str());
            node.labels.get(stage.key()).is_some_and(|revision| is_named(revision))
                || matches!(stage, Stage::Driver | Stage::Toolkit)
                    && !has_left(node)
                    && (stage == Stage::Driver || node.ready)
                    && revision_of_pod(sim, &node.name, stage).is_some_and(|revision| is_named(revision.as_str()))
                    && !(stage == Stage::Driver && has_followed(sim, node))
        })
    };
    let uses = |node: &&NodeFacts| is_used(sim, &node.name) && keeps_its_stack(sim, &node.name) && has(node);
    match sim.nodes.values().find(uses) {
        Some(node) => Err(format!("{set} is deleted while GPU pods use it on {}", node.name)),
        None => Ok(()),
    }
}

/// Returns whether a node's label names a driver whose container keeps the loaded module when it replaces the one that runs.
fn has_followed(sim: &Sim, node: &NodeFacts) -> bool {
    placing(sim, node, Stage::Driver).is_some_and(|revision| keeps_driver_loaded(sim, &node.name, revision.as_str()))
}

/// No running pod is recreated, except a test, one that uses the root of a driver that is gone, and a device plugin that applies the MIG
/// layout to a GPU that lacks it, while no pod uses a GPU of the node.
fn may_be_recreated(sim: &Sim, name: &str) -> Lawful {
    let pod = sim.pods.get(name).filter(|pod| pod.running());
    let is_one_off = |pod: &PodFacts| matches!(pod.role, Role::Validation | Role::Preflight);
    let partitions = |pod: &PodFacts| sim.lacks_mig_layout(pod) && !is_used(sim, &pod.node);
    match pod.filter(|pod| !is_one_off(pod) && !holds_an_old_root(sim, pod) && !partitions(pod)) {
        Some(_) => Err(format!("{name} runs and is recreated")),
        None => Ok(()),
    }
}

/// Returns whether a pod of the plugin or of the MPS daemon started before the driver container, which may be down or gone.
fn holds_an_old_root(sim: &Sim, holder: &PodFacts) -> bool {
    let recorded = sim.gpu_nodes.get(&holder.node).and_then(|gpu_node| gpu_node.spec.current.as_ref());
    let has_driver = recorded.is_some_and(|current| current.driver.is_some())
        || sim.nodes.get(&holder.node).is_some_and(|node| node.labels.contains_key(keys::DRIVER));
    let started = pod(sim, &holder.node, Stage::Driver).and_then(PodFacts::running_since);
    matches!(holder.role, Role::Operand(Stage::DevicePlugin | Stage::Mps))
        && has_driver
        && started.is_none_or(|started| holder.running_since() < Some(started))
}

/// A policy is not gone before everything that was created for it: no Node that it governed has a label, a taint or a condition of
/// this operator, and no RuntimeClass is there for it.
fn nothing_is_left_of(sim: &Sim, policy: &PolicyName) -> Lawful {
    for node in sim.nodes.values() {
        let former = sim.gpu_nodes.get(&node.name).and_then(|gpu_node| gpu_node.spec.policy.as_ref());
        // Of a node whose policy is not recorded, it may be this one.
        if former == Some(policy) || former.is_none() && governing(sim, &node.name).is_none() {
            is_clean(node).map_err(|left| format!("policy {policy} is gone, and {} has {left}", node.name))?;
        }
    }
    match sim.runtime_classes.iter().find(|(_, class)| class.policies.contains(policy)) {
        Some((name, _)) => Err(format!("policy {policy} is gone, and RuntimeClass {name} is there for it")),
        None => Ok(()),
    }
}

/// A Node has nothing of this operator. A label that another manager set is emptied to be removed, and nothing waits for that.
fn is_clean(node: &NodeFacts) -> Lawful {
    let label =
        node.owned_labels.iter().find(|key| node.labels.get(key.as_str()).is_none_or(|value| !value.is_empty()));
    let taint = node.own_taint.as_ref().or(node.taints.iter().find(|taint| node.owns(taint)));
    match (label, node.own_conditions.first_key_value(), taint, node.own_cordon) {
        (None, None, None, false) => Ok(()),
        left => Err(format!("{left:?}")),
    }
}

/// A pod is evicted only if its node is cordoned for its update, and its policy evicts such pods; one of a DaemonSet only if it would not
/// come back at once.
fn is_its_turn(sim: &Sim, pod: &str) -> Lawful {
    let Some((node, _)) = sim.gpu_pods.iter().find(|(_, pods)| pods.iter().any(|other| other == pod)) else {
        return Ok(());
    };
    let facts = sim.gpu_pod(pod);
    let step = sim.gpu_nodes.get(node).and_then(|gpu_node| Some(gpu_node.spec.rollout.as_ref()?.step));
    let settings = governing(sim, node).map(|policy| policy.spec.rollout.gpu_pods.clone()).unwrap_or_default();
    let is_allowed = match facts.owner {
        PodOwner::Controller => step == Some(RolloutStep::Await),
        PodOwner::None => step == Some(RolloutStep::Await) && settings.bare_pods == Some(Eviction::Evict),
        PodOwner::DaemonSet => step == Some(RolloutStep::Release) && !serves_gpus(sim, node),
        PodOwner::Kubelet | PodOwner::Operator => false,
    };
    let is_kept = facts.has_empty_dir && settings.empty_dir != Some(Eviction::Evict);
    let evicts = settings.mode == Some(GpuPodsMode::Evict) && sim.settings.evicts_pods;
    if is_allowed && !is_kept && evicts && sim.nodes[node].cordoned {
        return Ok(());
    }
    Err(format!("{pod} of node {node} is evicted in step {step:?}: {facts:?}, {settings:?}"))
}

/// Returns whether a device plugin runs on a node, so that kubelet gives GPUs to pods.
fn serves_gpus(sim: &Sim, name: &NodeName) -> bool {
    pod(sim, name, Stage::DevicePlugin).is_some_and(PodFacts::running)
}

/// An update begins only with a slot for it in the ledger of its policy.
fn begins_with_a_slot(sim: &Sim, name: &NodeName, write: &SpecWrite) -> Lawful {
    let before = sim.gpu_nodes.get(name).filter(|before| before.metadata.generation == write.generation);
    let Some(before) = before.filter(|before| before.spec.rollout.is_none() && write.spec.rollout.is_some()) else {
        return Ok(());
    };
    let slots = write.spec.policy.as_ref().map(|policy| slots(sim, policy)).unwrap_or_default();
    let is_it = |slot: &Slot| {
        slot.node == *name && before.uid().as_ref() == Some(&slot.uid) && slot.update == write.spec.updates_begun
    };
    if write.spec.updates_begun > before.spec.updates_begun && slots.iter().any(is_it) {
        return Ok(());
    }
    Err(format!("update {} of {name} begins without a slot: {slots:?}", write.spec.updates_begun))
}

fn slots(sim: &Sim, policy: &PolicyName) -> Vec<Slot> {
    let status = sim.policies.get(policy).and_then(|policy| policy.status.as_ref());
    status.map(|status| status.rollout.slots.clone()).unwrap_or_default()
}

/// No more slots are given than the policy allows, and none is taken that may be used.
fn ledger_is_within_limits(sim: &Sim, name: &PolicyName, write: &LedgerWrite) -> Lawful {
    let Some(policy) = sim.policies.get(name).filter(|policy| policy.metadata.generation == write.generation) else {
        return Ok(());
    };
    let before = slots(sim, name);
    if before != write.before.0 {
        return Ok(());
    }
    let most = policy.spec.rollout.max_parallel.unwrap_or(1) as usize;
    if write.slots.iter().any(|slot| !before.contains(slot)) && write.slots.len() > most {
        return Err(format!("more than {most} slots: {:?}", write.slots));
    }
    let may_be_used = |slot: &&Slot| {
        let gpu_node = sim.gpu_nodes.get(&slot.node).filter(|gpu_node| gpu_node.uid().as_ref() == Some(&slot.uid));
        gpu_node.is_some_and(|gpu_node| {
            let GpuNodeSpec { updates_begun, rollout, .. } = &gpu_node.spec;
            *updates_begun < slot.update || *updates_begun == slot.update && rollout.is_some()
        })
    };
    match before.iter().filter(|slot| !write.slots.contains(slot)).find(may_be_used) {
        Some(slot) => Err(format!("{slot:?} is freed and may be used")),
        None => Ok(()),
    }
}

/// At no time are GPUs of a node both allocatable and in slices: two pods would get the same one.
pub fn of_allocation(sim: &Sim) -> Lawful {
    for node in sim.nodes.values() {
        let gpus = node.allocatable.total();
        if gpus > 0 && sim.gpu_slices.values().any(|slice| slice.node == node.name) {
            return Err(format!("{gpus} GPUs of {} are allocatable beside its slices", node.name));
        }
    }
    Ok(())
}

/// Every node that is being updated has a slot in the ledger of a policy.
pub fn of_budgets(sim: &Sim) -> Lawful {
    let all: Vec<Slot> = sim.policies.keys().flat_map(|policy| slots(sim, policy)).collect();
    let lacks_slot = |(name, gpu_node): &(&NodeName, &GpuNode)| {
        let is_it =
            |slot: &Slot| slot.uid == gpu_node.uid().unwrap_or_default() && slot.update == gpu_node.spec.updates_begun;
        let has_policy = gpu_node.spec.policy.as_ref().is_some_and(|policy| sim.policies.contains_key(policy));
        let node = sim.nodes.get(*name);
        gpu_node.spec.rollout.is_some()
            && has_policy
            && node.is_some_and(|node| belongs_to(gpu_node, node))
            && !all.iter().any(is_it)
    };
    match sim.gpu_nodes.iter().find(lacks_slot) {
        Some((name, gpu_node)) => Err(format!("{name} is updated without a slot: {:?} {all:?}", gpu_node.spec)),
        None => Ok(()),
    }
}

/// The labels of each node name the revisions on record.
pub fn of_records(sim: &Sim) -> Lawful {
    for (name, node) in &sim.nodes {
        let Some(current) = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.spec.current.as_ref()) else {
            continue;
        };
        for stage in Stage::ALL {
            let label = node.labels.get(stage.key()).map(Interned::as_str).filter(|label| !label.is_empty());
            let recorded = current.get(stage).map(Revision::as_str);
            if label != recorded {
                return Err(format!("{name}: {stage:?} is {label:?}, and {recorded:?} is on record"));
            }
        }
    }
    Ok(())
}

/// No other controller ends a driver's pod under a GPU pod, because its DaemonSet is gone. `before` is the state before the DaemonSet
/// controller took a step for a node. What the labels select is judged where they are written.
pub fn of_controllers(before: &Sim, after: &Sim, name: &NodeName) -> Lawful {
    let Some(revision) = revision_of_pod(before, name, Stage::Driver) else { return Ok(()) };
    let stays = revision_of_pod(after, name, Stage::Driver).is_some_and(|now| now == revision);
    let exists = before.sets.contains_key(&format!("driver-{}", revision.as_str()));
    let follows = before.nodes.get(name).is_some_and(|node| has_followed(before, node));
    if stays || exists || follows || !is_used(before, name) || !keeps_its_stack(before, name) {
        return Ok(());
    }
    Err(format!("the driver's pod of {name} ends under a GPU pod, because its DaemonSet is gone"))
}

/// Once the fleet has settled, a node is ready only if a new GPU pod would start on it, as far as its probe and its kubelet report
/// what they see.
pub fn of_ready_nodes(sim: &Sim) -> Lawful {
    let is_reported = |name: &NodeName| {
        sim.nodes[name].ready
            && sim.faults.get(name).is_none_or(|faults| faults.probe_reports() && !faults.late_kubelet)
    };
    let is_ready = |name: &NodeName| {
        let status = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.status.as_ref());
        governing(sim, name).is_some() && status.is_some_and(GpuNodeStatus::is_ready)
    };
    let wrong = sim.nodes.keys().find(|name| is_reported(name) && is_ready(name) && !starts_gpu_pods(sim, name));
    match wrong {
        Some(name) => Err(format!("node {name} is ready, and no GPU pod would start there: {:#?}", sim.status(name))),
        None => Ok(()),
    }
}

/// Once the fleet has settled, no node has given up its device plugin for an update that a program prevents, as far as its probe
/// reports the program.
pub fn of_programs(sim: &Sim) -> Lawful {
    let is_stuck = |(name, gpu_node): (&NodeName, &GpuNode)| {
        let reports = sim.nodes[name].ready && sim.faults.get(name).is_none_or(Faults::probe_reports);
        let releases = gpu_node.spec.rollout.as_ref().is_some_and(|rollout| rollout.step == RolloutStep::Release);
        reports && releases && sim.programs_on(name).any(|program| !program.gives_way())
    };
    match sim.gpu_nodes.iter().find(|found| is_stuck(*found)) {
        Some((name, _)) => Err(format!("the update of {name} waits for a program: {:#?}", sim.status(name))),
        None => Ok(()),
    }
}

/// Once no policy is left, nothing is left of this operator, and nothing of others was taken.
pub fn of_the_end(sim: &Sim) -> Lawful {
    if !sim.policies.is_empty() || !sim.sets.is_empty() {
        return Err(format!("left: {:?} {:?}", sim.policies.keys(), sim.sets.keys()));
    }
    for node in sim.nodes.values() {
        let (name, users) = (&node.name, &sim.user_labels[&node.name]);
        let mut labels = node.labels.clone();
        labels.remove(keys::PRESENT);
        if labels != *users {
            return Err(format!("the labels of {name} are {labels:?}, and those of users {users:?}"));
        }
        let allowed = [keys::MANAGED, keys::MODEL_OVERRIDE, keys::PRESENT];
        let left = |key: &&Interned| key.starts_with(keys::PREFIX) && !allowed.contains(&key.as_str());
        if let Some(key) = node.labels.keys().find(left) {
            return Err(format!("{name} has {key}"));
        }
        is_clean(node).map_err(|left| format!("{name} has {left}"))?;
    }
    presence::of_labels(sim)?;
    if let Some((name, _)) = sim.runtime_classes.iter().find(|(_, class)| class.managed) {
        return Err(format!("RuntimeClass {name} is left"));
    }
    let runs = |pod: &&PodFacts| pod.role != Role::Probe && sim.nodes[&pod.node].ready;
    if let Some(pod) = sim.pods.values().find(runs) {
        return Err(format!("pod {} is left", pod.name));
    }
    // The number of updates stays.
    let is_clean = |spec: &GpuNodeSpec| GpuNodeSpec { updates_begun: 0, ..spec.clone() } == GpuNodeSpec::default();
    match sim.gpu_nodes.iter().find(|(_, gpu_node)| !is_clean(&gpu_node.spec)) {
        Some((name, gpu_node)) => Err(format!("GpuNode {name} has {:?}", gpu_node.spec)),
        None => Ok(()),
    }
}
