//! What is evicted is evicted once, for an update that then comes.

use gpu_operator_crd::policy::{Eviction, RolloutGpuPods};
use gpu_operator_plan::{
    output::{body::Body, write::Write},
    world::{GpuPod, PodOwner},
};

use super::{Event, Fleet, History, Law, NEW, Policy, event::Pod};
use crate::{law::Lawful, sim::Sim, truth::governing};

/// No pod is evicted beside one that is kept, and none twice. An update that has evicted pods goes on, unless something arises later that
/// prevents it.
pub const NOTHING_IN_VAIN: Law = Law { at_write: nothing_beside_kept_pods, after_step: nothing_in_vain };

fn nothing_beside_kept_pods(history: &History, sim: &Sim, write: &Write) -> Lawful {
    let (Body::Eviction(_), pod) = (&write.body, &write.target.name) else { return Ok(()) };
    let Some((node, pods)) = sim.gpu_pods.iter().find(|(_, pods)| pods.contains(pod)) else { return Ok(()) };
    let settings = governing(sim, node).map(|policy| policy.spec.rollout.gpu_pods.clone()).unwrap_or_default();
    if let Some(kept) = pods.iter().find(|pod| is_kept(&sim.gpu_pod(pod), &settings)) {
        return Err(format!("{pod} of {node} is evicted beside {kept}, which is kept"));
    }
    if history.nodes.get(node).is_some_and(|past| past.evicted.contains(pod)) {
        return Err(format!("{pod} of {node} is evicted twice"));
    }
    Ok(())
}

fn is_kept(pod: &GpuPod, settings: &RolloutGpuPods) -> bool {
    let keeps_owner = match pod.owner {
        PodOwner::Kubelet | PodOwner::Operator => true,
        PodOwner::None => settings.bare_pods != Some(Eviction::Evict),
        PodOwner::Controller | PodOwner::DaemonSet => false,
    };
    keeps_owner || pod.has_empty_dir && settings.empty_dir != Some(Eviction::Evict)
}

fn nothing_in_vain(history: &History, _: &Sim) -> Lawful {
    match history.nodes.iter().find_map(|(name, past)| Some((name, past.in_vain.as_ref()?))) {
        Some((name, why)) => Err(format!("{name}: {why}")),
        None => Ok(()),
    }
}

fn evicting(laws: &'static [Law], windows: &'static str) -> Fleet {
    Fleet::settled(Policy { mode: "Evict", windows, ..Policy::default() }, 3, laws)
}

#[test]
fn nothing_is_evicted_beside_a_daemon_sets_pod_that_is_kept() {
    let mut fleet = evicting(&[NOTHING_IN_VAIN], "[]");
    let events = [
        (Event::PodStarts("a", Pod::Plain), 5),
        (Event::PodStarts("a", Pod::OfSetWithData), 5),
        (Event::Driver(NEW), 300),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn nothing_is_evicted_beside_a_pod_that_comes_back_kept() {
    for pod in [Pod::Bare, Pod::EmptyDir] {
        let mut fleet = evicting(&[NOTHING_IN_VAIN], "[]");
        let events =
            [(Event::PodStarts("a", Pod::Plain), 5), (Event::PodStarts("a", pod), 5), (Event::Driver(NEW), 300)];
        assert_eq!(fleet.go(&events), Ok(()), "{pod:?}");
    }
}

#[test]
fn a_pause_does_not_give_up_what_has_evicted() {
    let mut fleet = evicting(&[NOTHING_IN_VAIN], "[]");
    let events = [
        (Event::PodStarts("a", Pod::Slow), 5),
        (Event::Driver(NEW), 60),
        (Event::Paused(true), 60),
        (Event::Paused(false), 900),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_window_that_closes_does_not_give_up_what_has_evicted() {
    // The fleet has settled at 00:20.
    let mut fleet = evicting(&[NOTHING_IN_VAIN], "[{start: '00:00', duration: 30m}]");
    let events = [(Event::PodStarts("a", Pod::Slow), 300), (Event::Driver(NEW), 900)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn one_crash_elsewhere_does_not_give_up_what_has_evicted() {
    let mut fleet = evicting(&[NOTHING_IN_VAIN, super::failures::ONLY_FAILURES_COUNT], "[]");
    let events = [
        (Event::PodStarts("b", Pod::Slow), 5),
        (Event::Driver(NEW), 150),
        (Event::Crashes("a", gpu_operator_crd::policy::Stage::DevicePlugin), 300),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}
