//! What is true of a fleet, derived from its own facts and not from the operator's conclusions.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, NodeName, Revision,
    gpunode::GpuCounts,
    keys,
    policy::{DeletionPolicy, Stage},
    report::InstalledDriver,
};
use gpu_operator_plan::world::{NodeFacts, PodFacts};
use kube::ResourceExt;

use crate::sim::Sim;

/// Returns the revision in a node's label, if it is one of this operator's and not a value that a user has set.
pub fn placing<'n>(sim: &Sim, node: &'n NodeFacts, stage: Stage) -> Option<&'n Interned> {
    let label = node.labels.get(stage.key())?;
    sim.sets.contains_key(&format!("{}-{label}", stage.as_str())).then_some(label)
}

/// Returns whether GPU pods are running on a node.
pub fn is_used(sim: &Sim, name: &NodeName) -> bool {
    sim.gpu_pods.get(name).is_some_and(|pods| !pods.is_empty())
}

pub fn pod<'s>(sim: &'s Sim, name: &NodeName, stage: Stage) -> Option<&'s PodFacts> {
    sim.pods.get(&format!("{}@{name}", stage.as_str()))
}

pub fn revision_of_pod(sim: &Sim, name: &NodeName, stage: Stage) -> Option<Revision> {
    pod(sim, name, stage)?.revision.clone()
}

/// Returns whether the driver's container of a revision keeps the module that the container on the node has loaded: both have the same
/// environment and arguments, and the module was loaded with them.
pub fn keeps_driver_loaded(sim: &Sim, name: &NodeName, revision: &str) -> bool {
    let old = sim.templates.get(&format!("driver@{name}")).and_then(|pod| pod.containers.first());
    let set = format!("driver-{revision}");
    let new = sim.sets.contains_key(&set).then(|| &sim.template(&set).containers[0]);
    let digest = sim.machines.get(name).and_then(|machine| machine.driver.config_digest.clone());
    old.zip(new).zip(digest).is_some_and(|((old, new), digest)| {
        let mut env = new.env.iter().flatten();
        (&old.env, &old.args) == (&new.env, &new.args) && env.any(|variable| variable.value.as_ref() == Some(&digest))
    })
}

/// Returns whether nothing is taken from the GPU pods of a node: always, unless its former policy requests that, or the node has no
/// GPU.
pub fn keeps_its_stack(sim: &Sim, name: &NodeName) -> bool {
    let former = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.spec.policy.as_ref());
    let removes = former
        .and_then(|former| sim.policies.get(former))
        .is_some_and(|former| former.spec.deletion_policy == Some(DeletionPolicy::Now));
    governing(sim, name).is_some() || is_gpu_node(sim, name) && !removes
}

/// Returns the policy that governs a node: of those that select it the one with the highest priority, otherwise the oldest, if it is a
/// GPU node that has not opted out.
pub fn governing<'s>(sim: &'s Sim, name: &NodeName) -> Option<&'s ClusterGpuPolicy> {
    let node = sim.nodes.get(name)?;
    if node.labels.get(keys::MANAGED).is_some_and(|managed| managed != "true") || !is_gpu_node(sim, name) {
        return None;
    }
    let selects = |policy: &&ClusterGpuPolicy| {
        policy.metadata.deletion_timestamp.is_none()
            && policy
                .spec
                .node_selector
                .as_ref()
                .is_none_or(|selector| selector.matches(|key| node.labels.get(key).map(Interned::as_str)))
    };
    sim.policies
        .values()
        .filter(selects)
        .min_by_key(|policy| (-policy.spec.priority, policy.creation_timestamp(), policy.name_any()))
}

/// Returns whether a node is known to have GPUs: by its probe's last report, which its label records once the GpuNode is gone, otherwise
/// by labels, otherwise by earlier knowledge.
pub fn is_gpu_node(sim: &Sim, name: &NodeName) -> bool {
    let node = &sim.nodes[name];
    let is_forgotten = !sim.gpu_nodes.contains_key(name) && node.is_labelled_absent();
    let report = reported_gpus(sim, name).or(is_forgotten.then_some(0));
    let seen = counts(sim, name).and_then(|gpus| gpus.most_seen).filter(|most| *most > passed_through(sim, name));
    let had = seen.is_some() || annotated(node).is_some();
    if let Some(gpus) = report {
        return gpus > 0 || (had && (is_labelled_as_gpu_node(node) || was_known(sim, name)));
    }
    is_labelled_as_gpu_node(node) || was_known(sim, name)
}

/// Returns whether a new GPU pod would start on a node if it was scheduled there: the pods that it needs are running, and the host's
/// libraries, if there are any, are those of the loaded driver.
pub fn starts_gpu_pods(sim: &Sim, name: &NodeName) -> bool {
    // A label may name a DaemonSet that has been deleted.
    let runs = |stage: Stage| {
        !sim.nodes[name].labels.contains_key(stage.key()) || pod(sim, name, stage).is_some_and(PodFacts::running)
    };
    let fits = sim.machines.get(name).is_none_or(|machine| {
        let driver = &machine.driver;
        let is_loaded = |found: &InstalledDriver| driver.loaded.as_ref() == Some(&found.version);
        driver.loaded.is_none() || driver.installed.is_empty() || driver.installed.iter().any(is_loaded)
    });
    fits && runs(Stage::Toolkit) && runs(Stage::Mps)
}

pub fn is_labelled_as_gpu_node(node: &NodeFacts) -> bool {
    let keys = [
        keys::MODEL_OVERRIDE,
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "feature.node.kubernetes.io/pci-0302_10de_2330.present",
    ];
    keys.iter().any(|key| node.labels.contains_key(*key))
}

pub fn was_known(sim: &Sim, name: &NodeName) -> bool {
    let node = &sim.nodes[name];
    let model = sim.gpu_nodes.get(name).and_then(|gpu_node| gpu_node.status.as_ref()?.model.as_ref());
    model.is_some() || node.labels.contains_key(keys::MODEL) && node.owned_labels.contains(keys::MODEL)
}

/// Returns the number of GPUs that a node's probe reported.
pub fn reported_gpus(sim: &Sim, name: &NodeName) -> Option<u32> {
    let report = sim.with_report(name, sim.gpu_nodes.get(name)?).status?.report?;
    Some(u32::try_from(report.gpus.len()).expect("few GPUs"))
}

/// Returns how many of the GPUs that were seen on a node its probe reports as passed through.
pub fn passed_through(sim: &Sim, name: &NodeName) -> u32 {
    let report = || sim.with_report(name, sim.gpu_nodes.get(name)?).status?.report;
    let (Some(counts), Some(report)) = (counts(sim, name), report()) else { return 0 };
    let passed_through = counts.seen_at.iter().filter(|address| report.passed_through_at.contains(address));
    u32::try_from(passed_through.count()).expect("few GPUs")
}

/// Returns the recorded counts, if they were recorded for this Node object.
pub fn counts<'s>(sim: &'s Sim, name: &NodeName) -> Option<&'s GpuCounts> {
    let gpus = sim.gpu_nodes.get(name)?.status.as_ref().map(|status| &status.gpus)?;
    (gpus.seen_on.as_ref() == Some(&sim.nodes[name].uid)).then_some(gpus)
}

pub fn annotated(node: &NodeFacts) -> Option<u32> {
    node.gpu_count.as_ref()?.parse().ok()
}
