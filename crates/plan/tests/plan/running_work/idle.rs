//! What takes the GPUs from all pods of a node waits until none uses them.

use gpu_operator_crd::{
    NodeName,
    policy::{GpuPodsMode, Stage},
};
use gpu_operator_plan::{
    output::{body::Body, write::Write},
    world::{PodFacts, PodOwner},
};
use k8s_openapi::api::core::v1::PodSpec;

use super::{
    BUDGETS, Event, Fleet, History, Law, NEW, Policy,
    event::{HALVES, MPS, Pod, WHOLE},
};
use crate::{
    law::Lawful,
    sim::Sim,
    truth::{governing, pod},
};

/// While a GPU pod runs, no MPS daemon begins, ends or is replaced, and the GPUs are not divided in another way. If a pod starts in between,
/// the node gets its groups back.
pub const IDLE_GPUS: Law = Law { at_write: idle_gpus, after_step: pods_do_not_block };

fn idle_gpus(_: &History, sim: &Sim, write: &Write) -> Lawful {
    let (Body::Labels(labels), name) = (&write.body, write.target.name.as_str().into()) else { return Ok(()) };
    let Some(node) = sim.nodes.get(&name).filter(|_| is_in_use(sim, &name)) else { return Ok(()) };
    let has = |stage: Stage| node.labels.get(stage.key()).map(|revision| revision.as_str().to_owned());
    let gets = |stage: Stage| labels.labels.get(stage.key()).cloned();
    let Some(plugin) = has(Stage::DevicePlugin) else { return Ok(()) };
    if has(Stage::Mps) != gets(Stage::Mps) {
        let (had, gets) = (has(Stage::Mps), gets(Stage::Mps));
        return Err(format!("the MPS daemon of {name} changes under a GPU pod: {had:?} to {gets:?}"));
    }
    let had = layout_of(sim, &plugin);
    match gets(Stage::DevicePlugin).map(|gets| layout_of(sim, &gets)) {
        // Without a layout, the GPUs are left unchanged.
        Some(gets) if gets.is_some() && gets != had => {
            Err(format!("the MIG layout of {name} changes under a GPU pod: {had:?} to {gets:?}"))
        }
        _ => Ok(()),
    }
}

/// Returns whether GPU pods run on a node that do not give way: those of DaemonSets end last where pods are evicted, once the plugin is gone.
fn is_in_use(sim: &Sim, name: &NodeName) -> bool {
    let Some(policy) = governing(sim, name) else { return false };
    let evicts = policy.spec.rollout.gpu_pods.mode == Some(GpuPodsMode::Evict);
    let stays = |pod: &String| !evicts || sim.gpu_pod(pod).owner != PodOwner::DaemonSet;
    sim.gpu_pods.get(name).is_some_and(|pods| pods.iter().any(stays))
}

/// Returns the MIG layout that a revision of the device plugin applies.
fn layout_of(sim: &Sim, revision: &str) -> Option<String> {
    let set = format!("{}-{revision}", Stage::DevicePlugin.as_str());
    let template: &PodSpec = sim.sets.contains_key(&set).then(|| sim.template(&set))?;
    let args = template.init_containers.iter().flatten().filter_map(|init| init.args.as_ref()).flatten();
    args.skip_while(|arg| *arg != "--layout").nth(1).cloned()
}

fn pods_do_not_block(history: &History, sim: &Sim) -> Lawful {
    let begins = |name: &&NodeName| {
        let daemon = pod(sim, name, Stage::Mps).filter(|pod| !pod.has_failed());
        daemon.and_then(PodFacts::running_since).is_some_and(|since| since.local() == sim.now)
    };
    // A node that is given back what it had gets its daemon again.
    let is_under_update = |name: &&NodeName| sim.is_moving(*name) && is_in_use(sim, name);
    if let Some(name) = sim.nodes.keys().filter(is_under_update).find(begins) {
        return Err(format!("the MPS daemon of {name} begins under a GPU pod"));
    }
    let blocked = history.nodes.iter().find_map(|(name, past)| Some((name, past.blocked?)));
    match blocked.filter(|(_, since)| sim.now.duration_since(*since).as_secs() > 120) {
        Some((name, since)) => {
            Err(format!("since {since} GPU pods of {name} block its update, which has taken the device plugin"))
        }
        None => Ok(()),
    }
}

fn fleet(mode: &'static str, plugin: &'static str) -> Fleet {
    Fleet::settled(Policy { mode, plugin, gpu_pods: ", timeout: 10m", ..Policy::default() }, 2, &[BUDGETS, IDLE_GPUS])
}

#[test]
fn no_mps_daemon_begins_or_ends_under_a_gpu_pod() {
    for (from, to) in [("{}", MPS), (MPS, "{}"), (MPS, "{sharing: {mps: {replicas: 4}}}")] {
        for mode in ["Leave", "Await"] {
            let mut fleet = fleet(mode, from);
            let events = [(Event::PodStarts("a", Pod::Plain), 5), (Event::Plugin(to), 300)];
            assert_eq!(fleet.go(&events), Ok(()), "{mode}: {from} to {to}");
        }
    }
}

#[test]
fn a_pod_that_starts_before_the_plugin_ends_keeps_its_gpus() {
    for (mode, to) in [("Leave", HALVES), ("Await", HALVES), ("Evict", HALVES), ("Leave", MPS)] {
        let mut fleet = fleet(mode, if to == HALVES { WHOLE } else { "{}" });
        assert_eq!(fleet.go(&[(Event::PodComesLate("a"), 0), (Event::Plugin(to), 900)]), Ok(()), "{mode}");
    }
}

#[test]
fn a_layout_does_not_wait_for_a_daemon_sets_pod_without_end() {
    let mut fleet = fleet("Evict", WHOLE);
    assert_eq!(fleet.go(&[(Event::SetComes("a"), 30), (Event::Plugin(HALVES), 900)]), Ok(()));
}

#[test]
fn a_layout_waits_for_pods_while_a_gpu_is_missing() {
    let of_some = "{mig: {strategy: Mixed, layout: [{devices: [0, 7], profiles: [{profile: 3g.40gb, count: 2}]}]}}";
    let mut fleet = fleet("Leave", WHOLE);
    let events = [(Event::PodStarts("a", Pod::Plain), 5), (Event::LosesGpu("a"), 30), (Event::Plugin(of_some), 300)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_driver_waits_for_pods_in_every_mode() {
    for mode in ["Leave", "Await", "Evict"] {
        for pod in [Event::PodStarts("a", Pod::Plain), Event::PodComesLate("a")] {
            let mut fleet = fleet(mode, "{}");
            assert_eq!(fleet.go(&[(pod, 5), (Event::Driver(NEW), 900)]), Ok(()), "{mode}, {pod:?}");
        }
    }
}
