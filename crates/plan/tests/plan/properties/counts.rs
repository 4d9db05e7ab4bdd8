//! The numbers of a policy's nodes, and the GPUs expected of each, derived from the fleet's own facts.

use std::collections::BTreeSet;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ClusterGpuPolicyStatus, NodeName, PolicyName, keys, policy::Pool, report::Report};
use gpu_operator_plan::{Plan, world::NodeFacts};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use test_support::planned::Planned;

use crate::{
    sim::Sim,
    truth::{annotated, counts, governing, passed_through, reported_gpus, starts_gpu_pods},
};

/// Returns the expected number of GPUs of a node: from its annotation, otherwise from its pool, otherwise the most that
/// were seen on it, otherwise from its cloud's label. GPUs that have been passed through since are not expected; a pool's number
/// holds as long as as many are left.
fn expected(sim: &Sim, plan: &Plan, name: &NodeName) -> Option<u32> {
    let node = &sim.nodes[name];
    let expected_resources = || pool(sim, plan, name)?.gpus_per_node;
    let seen =
        || reported_gpus(sim, name).filter(|gpus| *gpus > 0).max(counts(sim, name).and_then(|gpus| gpus.most_seen));
    let cloud = || node.labels.get("cloud.google.com/gke-accelerator-count")?.parse().ok();
    let passed_through = passed_through(sim, name);
    let left = || Some(seen().or_else(cloud)?.saturating_sub(passed_through));
    let counted = || match expected_resources() {
        Some(promised) => {
            let kept = promised.saturating_sub(passed_through);
            Some(promised.min(left().unwrap_or_default()).max(kept))
        }
        None => left(),
    };
    annotated(node).or_else(counted)
}

/// Returns the named pool of a node: the first that matches. A user may write a cloud's name of a model.
fn pool<'s>(sim: &'s Sim, plan: &Plan, name: &NodeName) -> Option<&'s Pool> {
    let labels = &sim.nodes[name].labels;
    let written = plan.labels().get(name).map(|write| write.labels.get(keys::MODEL).map(String::as_str));
    let model = written.unwrap_or_else(|| labels.get(keys::MODEL).map(Interned::as_str));
    let is_model = |name: &String| model == Some(if name == "t4" { "nvidia-tesla-t4" } else { name });
    let policy = governing(sim, name)?;
    // Pools do not match labels that their policy publishes.
    let published = policy.spec.labels_of(&policy.spec.pools).map(|label| label.key.as_str());
    let published: BTreeSet<&str> = published.chain(keys::NODE_LABELS).collect();
    let discovered = |key: &str| policy.spec.compatibility.wants_gfd() && keys::is_discovered(key);
    let value_of =
        |key: &str| labels.get(key).map(Interned::as_str).filter(|_| !published.contains(key) && !discovered(key));
    policy.spec.pools.iter().find(|pool| {
        (pool.matches.models.is_empty() || pool.matches.models.iter().any(is_model))
            && pool.matches.node_selector.as_ref().is_none_or(|selector| selector.matches(value_of))
    })
}

fn last_report(sim: &Sim, name: &NodeName) -> Option<Report> {
    sim.gpu_nodes.get(name).and_then(|gpu_node| sim.with_report(name, gpu_node).status?.report)
}

/// Returns whether the last report of a node lists the MIG devices of a GPU.
fn reports_mig(sim: &Sim, name: &NodeName) -> bool {
    last_report(sim, name).is_some_and(|report| report.gpus.iter().any(|gpu| gpu.mig_devices.is_some()))
}

/// Numbers of a policy's nodes that are in service: ready, not cordoned and not being deleted.
#[derive(Debug)]
pub struct Count {
    /// Nodes whose allocatable GPUs meet the expectation.
    pub able: u32,
    /// Those of the able nodes that are being updated, and not proven yet, whose kubelet has not reported a reboot, whose probe has
    /// not reported the MIG devices, or anything since the GpuNode was deleted, or on which no new GPU pod would start.
    pub moving: u32,
    /// Nodes that are not able because it is their turn in a rollout.
    pub updating: u32,
    /// The number of nodes that must be able, or in their turn.
    pub required: u32,
}

pub fn count(sim: &Sim, plan: &Plan, policy: &PolicyName) -> Count {
    let is_governed =
        |node: &&NodeFacts| governing(sim, &node.name).is_some_and(|governing| *policy == *governing.name_any());
    let serves = |node: &&NodeFacts| node.ready && !node.cordoned && !node.deleting;
    let is_able = |node: &&NodeFacts| {
        let gpus = sim.served(&node.name);
        // A kubelet that is late still publishes GPUs that are missing on the bus.
        let on_bus = |expected| reported_gpus(sim, &node.name).is_none_or(|on_bus| on_bus >= expected);
        let has_all = |expected| gpus >= expected * sim.replicas(&node.name) && on_bus(expected);
        gpus > 0 && expected(sim, plan, &node.name).is_some_and(has_all)
    };
    let few = |count: usize| u32::try_from(count).expect("few nodes");
    let serving: Vec<_> = sim.nodes.values().filter(is_governed).filter(serves).collect();
    let able: Vec<_> = serving.iter().copied().filter(is_able).collect();
    let all = few(serving.len());
    let required = match sim.policies[policy].spec.readiness.min_ready_nodes.clone() {
        None => all.max(1),
        Some(IntOrString::Int(least)) => u32::try_from(least).expect("a number of nodes"),
        Some(IntOrString::String(percent)) => {
            let percent: u32 = percent.trim_end_matches('%').parse().expect("a percentage");
            (all * percent).div_ceil(100).max(u32::from(percent > 0))
        }
    };
    let rebooted =
        |node: &NodeFacts| sim.machines.get(&node.name).is_some_and(|report| *report.boot_id != *node.boot_id);
    // Into which MIG devices GPUs are divided is known from a report only.
    let is_unknown =
        |node: &NodeFacts| node.allocatable.names().any(|name| name.contains("mig-")) && !reports_mig(sim, &node.name);
    let is_broken = |node: &NodeFacts| !starts_gpu_pods(sim, &node.name);
    let is_unreported = |node: &NodeFacts| last_report(sim, &node.name).is_none();
    let moving = |node: &&&NodeFacts| {
        sim.is_moving(&node.name) || rebooted(node) || is_unknown(node) || is_unreported(node) || is_broken(node)
    };
    let unable = serving.iter().filter(|node| !is_able(node));
    Count {
        able: few(able.len()),
        moving: few(able.iter().filter(moving).count()),
        updating: few(unable.filter(|node| sim.is_moving(&node.name)).count()),
        required,
    }
}

pub fn reports_ready(status: &ClusterGpuPolicyStatus) -> bool {
    status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
