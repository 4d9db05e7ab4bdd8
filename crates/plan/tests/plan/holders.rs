//! Programs that use the driver without a pod that requests a GPU: an update does not take the GPUs from a node that it cannot update.

use gpu_operator_crd::{NodeName, Phase, gpunode::RolloutStep, keys, reason::Reason};
use gpu_operator_plan::{loop_memory::LoopState, time::Uptime, world::Bystander};

use crate::{
    robust::{NEW, OLD, loaded, rollout_spec},
    sim::{Program, Sim},
};

/// Returns a settled fleet with a program on node `a`.
fn fleet(nodes: &[&str], program: Program) -> Sim {
    let mut sim = Sim::settled_fleet(OLD, nodes);
    sim.programs.insert("a".into(), vec![program]);
    sim.surroundings();
    sim
}

fn exporter(pod: fn(String) -> Bystander) -> Program {
    Program::of_pod("dcgm-exporter", pod("monitoring/dcgm-exporter-x7k2p".into()))
}

fn has_plugin(sim: &Sim, node: &str) -> bool {
    sim.nodes[&NodeName::from(node)].labels.contains_key(keys::DEVICE_PLUGIN)
}

#[test]
fn an_update_begins_once_programs_have_ended() {
    for (program, name) in [
        (Program::of_host("nvidia-smi"), "process nvidia-smi (PID 4711) of the host"),
        (exporter(Bystander::Stays), "pod monitoring/dcgm-exporter-x7k2p (process dcgm-exporter)"),
    ] {
        let mut sim = fleet(&["a", "b"], program);
        sim.apply_policy("all", NEW);
        for _ in 0..300 {
            sim.step();
            sim.sleep(1);
            assert!(has_plugin(&sim, "a"), "the node keeps its GPUs");
        }
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::GpusHeld)), "{status:#?}");
        assert!(status.message.contains(name), "{}", status.message);
        assert_eq!(status.waits_on, [name]);
        assert_eq!(sim.report("b").driver.loaded.as_deref(), Some("590.10.01"), "the other node is updated");
        let writes = sim.writes.clone();
        sim.sleep(60);
        sim.run(100);
        assert_eq!(sim.writes, writes, "a node that waits costs no writes");
        sim.programs.clear();
        sim.settle();
        assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
        assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
        assert!(!sim.spec("a").report_holders, "nothing more is listed");
    }
}

#[test]
fn a_program_that_starts_during_the_release_ends_the_update() {
    let mut sim = Sim::settled_fleet(OLD, &["a"]);
    sim.apply_policy("all", NEW);
    crate::robust::step_until_released(&mut sim, "a");
    sim.programs.insert("a".into(), vec![Program::of_host("nvidia-smi")]);
    sim.surroundings();
    let mut waited = 0;
    while sim.is_moving("a") {
        assert_eq!(sim.spec("a").rollout.as_ref().map(|rollout| rollout.step), Some(RolloutStep::Release));
        sim.step();
        sim.sleep(1);
        waited += 1;
        assert!(waited < 120, "{:#?}", sim.status("a"));
    }
    assert!(waited >= 60, "a program that is ending is waited for: {waited} s");
    sim.run(30);
    assert!(has_plugin(&sim, "a"));
    assert_eq!((sim.status("a").phase, sim.status("a").reason()), (Phase::Ready, Some(Reason::GpusHeld)));
}

#[test]
fn a_daemon_set_that_gives_way_is_asked_to_and_comes_back() {
    let mut sim = fleet(&["a"], exporter(Bystander::GivesWay));
    let paused = |sim: &Sim| sim.nodes[&"a".into()].labels.get(keys::CLIENTS).is_some_and(|value| *value == "paused");
    sim.apply_policy("all", NEW);
    let mut was_paused = false;
    for _ in 0..100 {
        sim.step();
        sim.sleep(1);
        was_paused |= paused(&sim);
        let step = sim.spec("a").rollout.as_ref().map(|rollout| rollout.step);
        assert_eq!(
            paused(&sim),
            step.is_some_and(|step| step != RolloutStep::Await),
            "it is away during the update: {step:?}"
        );
    }
    assert!(was_paused && !paused(&sim));
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
    assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
}

#[test]
fn a_driver_container_that_waits_names_the_programs() {
    let mut sim = fleet(&["a"], Program::of_host("nvidia-smi"));
    sim.report("a").driver.waits = Some("DriverInUse: …".into());
    sim.report("a").driver.installed.clear();
    sim.steps(100);
    let status = sim.status("a");
    assert_eq!(status.reason(), Some(Reason::DriverInUse), "{status:#?}");
    assert_eq!(status.waits_on, ["process nvidia-smi (PID 4711) of the host"]);
}

#[test]
fn a_pod_that_has_ended_and_is_still_reported_blocks_nothing() {
    for mode in ["Leave", "Await"] {
        let strategy = format!("{{gpuPods: {{mode: {mode}}}}}");
        let mut sim = Sim::settled_fleet(&rollout_spec(&strategy, "595.91.07"), &["a"]);
        sim.gpu_pods.insert("a".into(), vec!["team/job".into()]);
        sim.apply_policy("all", &rollout_spec(&strategy, "590.10.01"));
        let mut carry = LoopState::default();
        for second in 0..30 {
            sim.pass(&mut carry, Uptime::from_secs(second));
            sim.sleep(1);
        }
        assert_eq!(sim.status("a").waits_on, ["team/job"], "{mode}");
        // It ends: the API server does not list it any more, and kubelet does.
        sim.requests.insert("team/job".into(), "example.com/none".into());
        let begins = (30..700).any(|second| {
            sim.pass(&mut carry, Uptime::from_secs(second));
            sim.sleep(1);
            !has_plugin(&sim, "a")
        });
        assert!(begins, "{mode}: {:#?}", sim.status("a"));
        sim.gpu_pods.clear();
        sim.settle();
        assert_eq!(loaded(&mut sim, "a"), "590.10.01", "{mode}");
    }
}
