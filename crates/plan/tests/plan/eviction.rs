//! `gpuPods.mode: Evict`: which pods are evicted in a node's turn, and what a node waits for.

use std::collections::BTreeMap;

use gpu_operator_crd::{Phase, gpunode::RolloutStep, reason::Reason};
use gpu_operator_plan::{
    output::body::Body,
    world::{GpuPod, PodOwner},
};

use crate::{
    robust::{loaded, updating_fleet},
    sim::Sim,
};

const NEW: &str = "590.10.01";

/// Returns a fleet whose driver changes, each node with a pod of a ReplicaSet, `team/web-NODE`.
fn fleet(nodes: &[&str], gpu_pods: &str) -> Sim {
    let mut sim = updating_fleet(nodes, &format!("{{gpuPods: {{mode: Evict{gpu_pods}}}}}"));
    for node in nodes {
        sim.gpu_pods.insert((*node).into(), vec![format!("team/web-{node}")]);
    }
    sim
}

/// Adds a pod with these facts to a node.
fn add(sim: &mut Sim, node: &str, name: &str, facts: GpuPod) {
    sim.gpu_pods.entry(node.into()).or_default().push(name.into());
    sim.pod_facts.insert(name.into(), facts);
}

/// Returns the pods that the operator has tried to evict, in their order.
fn evicted(sim: &Sim) -> Vec<&str> {
    let writes = sim.plans.iter().flat_map(|plan| &plan.writes);
    let mut pods: Vec<_> = writes
        .filter(|write| matches!(write.body, Body::Eviction(_)))
        .map(|write| write.target.name.as_str())
        .collect();
    pods.dedup();
    pods
}

fn owned_by(owner: PodOwner) -> GpuPod {
    GpuPod { owner, ..GpuPod::default() }
}

#[test]
fn what_must_not_be_evicted_is_named_and_nothing_else_is() {
    let job = GpuPod { labels: BTreeMap::from([("kind".into(), "training".into())]), ..GpuPod::default() };
    let scratch = GpuPod { has_empty_dir: true, ..GpuPod::default() };
    let both = GpuPod { has_empty_dir: true, ..owned_by(PodOwner::None) };
    for (settings, facts, words) in [
        ("", owned_by(PodOwner::None), Some("has no controller and is not evicted")),
        (", barePods: Evict", owned_by(PodOwner::None), None),
        ("", scratch.clone(), Some("has data in an emptyDir volume")),
        (", emptyDir: Evict", scratch, None),
        (", barePods: Evict", both.clone(), Some("has data in an emptyDir volume")),
        (", barePods: Evict, emptyDir: Evict", both, None),
        (", barePods: Evict", owned_by(PodOwner::Kubelet), Some("is static and cannot be evicted")),
        (", waitForJobs: {matchLabels: {kind: training}}", job.clone(), Some("gpuPods.waitForJobs have ended")),
        (", waitForJobs: {matchLabels: {kind: other}}", job, None),
    ] {
        let mut sim = fleet(&["a"], settings);
        add(&mut sim, "a", "team/other", facts);
        sim.run(120);
        let status = sim.status("a");
        let Some(words) = words else {
            assert_eq!((loaded(&mut sim, "a").as_str(), evicted(&sim).len()), (NEW, 2), "{settings}: {status:?}");
            continue;
        };
        assert!(evicted(&sim).is_empty() && sim.node("a").cordoned, "{settings}");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpuPodsInUse)), "{settings}");
        assert!(status.message.contains(words) && status.message.contains("at the latest"), "{}", status.message);
        assert_eq!(status.waits_on, ["team/other"], "{settings}");
        // Once it has ended, the others follow.
        sim.gpu_pods.entry("a".into()).or_default().retain(|pod| pod != "team/other");
        sim.run(120);
        assert_eq!(loaded(&mut sim, "a"), NEW, "{settings}");
        assert_eq!(evicted(&sim), ["team/web-a"], "{settings}");
    }
}

#[test]
fn a_budget_or_a_finalizer_that_delays_an_eviction_is_named() {
    let budget = "The disruption budget web needs 2 healthy pods and has 2 currently";
    let mut sim = fleet(&["a"], "");
    sim.budgets.insert("team/web-a".into(), budget.into());
    sim.run(60);
    let status = sim.status("a");
    assert_eq!(
        (status.reason(), &status.waits_on[..]),
        (Some(Reason::EvictionBlocked), &["team/web-a".to_owned()][..])
    );
    assert!(status.message.contains(budget), "{}", status.message);
    assert_eq!(sim.node("a").allocatable.total(), 8, "the node keeps everything");
    // Then it is deleted, but a finalizer keeps it.
    sim.budgets.clear();
    sim.refused_evictions.clear();
    let gone_by = Some(sim.now);
    let finalizers = vec!["example.com/backup".to_owned()];
    sim.pod_facts.insert("team/web-a".into(), GpuPod { gone_by, finalizers, ..GpuPod::default() });
    let before = evicted(&sim).len();
    sim.run(60);
    let status = sim.status("a");
    assert_eq!((status.reason(), evicted(&sim).len()), (Some(Reason::EvictionBlocked), before), "no second eviction");
    assert!(status.message.contains("it has finalizers: example.com/backup"), "{}", status.message);
    sim.gpu_pods.clear();
    sim.run(120);
    assert_eq!(loaded(&mut sim, "a"), NEW);
}

#[test]
fn pods_of_daemon_sets_are_evicted_once_the_plugin_is_gone() {
    let mut sim = fleet(&["a"], "");
    add(&mut sim, "a", "team/agent", owned_by(PodOwner::DaemonSet));
    while evicted(&sim).is_empty() {
        sim.steps(1);
    }
    sim.budgets.insert("team/agent".into(), "The disruption budget agent needs 1 healthy pods".into());
    sim.run(60);
    assert_eq!(evicted(&sim), ["team/web-a", "team/agent"]);
    let status = sim.status("a");
    assert_eq!(sim.spec("a").rollout.as_ref().map(|rollout| rollout.step), Some(RolloutStep::Release));
    assert!(status.message.contains("The disruption budget agent"), "{}", status.message);
    sim.budgets.clear();
    sim.run(120);
    assert_eq!(loaded(&mut sim, "a"), NEW);
}

#[test]
fn without_the_right_to_evict_pods_no_update_begins() {
    let mut sim = fleet(&["a"], "");
    sim.settings.evicts_pods = false;
    sim.run(60);
    assert!(evicted(&sim).is_empty() && !sim.node("a").cordoned);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    let message = sim.message("all", "Stalled");
    assert!(message.contains("operator.evictPods: true"), "{message}");
    sim.settings.evicts_pods = true;
    sim.run(120);
    assert_eq!(loaded(&mut sim, "a"), NEW);
}
