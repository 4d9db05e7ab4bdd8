//! A driver's container that is down, and a root that lacks what programs need, are evidence against Ready, whatever is
//! allocatable.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{Phase, keys, reason::Reason, report::InstalledDriver};
use gpu_operator_plan::world::{ContainerState, World};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A fleet of one node that is ready, and its world.
fn ready() -> (Sim, World) {
    let sim = Sim::settled_fleet("{}", &["a"]);
    assert_eq!(sim.status("a").phase, Phase::Ready);
    let world = sim.world();
    (sim, world)
}

/// Returns the node's status in a plan and the pods that the plan recreates.
fn judged(sim: &Sim, world: World) -> (Phase, Reason, String, u32, Vec<String>) {
    let plan = sim.plan_for(world);
    let status = plan.gpu_nodes.get("a").and_then(|write| write.status.clone()).unwrap_or_else(|| sim.status("a"));
    let reason = status.reason.expect("a reason");
    (status.phase, reason, status.message, status.gpus.allocatable, plan.recreate.into_iter().collect())
}

fn edit_driver_pod(world: &mut World, edit: impl FnOnce(&mut gpu_operator_plan::world::PodFacts)) {
    let pod = world.pods.get_mut("driver@a").expect("the driver's pod");
    edit(std::sync::Arc::make_mut(pod));
}

fn edit_installed(sim: &mut Sim, edit: impl FnOnce(&mut Vec<InstalledDriver>)) -> World {
    edit(&mut sim.report("a").driver.installed);
    sim.surroundings();
    sim.world()
}

#[test]
fn a_container_that_is_down_takes_its_gpus_out_of_service_and_its_plugin_with_it() {
    let waiting = |reason: &str| ContainerState::Waiting { reason: reason.into(), message: String::new() };
    for (state, reason, words) in [
        (waiting("ContainerCreating"), Reason::DriverDown, "of pod driver@a is waiting: ContainerCreating"),
        (
            ContainerState::Ended(gpu_operator_plan::world::Exit { code: 137, message: "killed".into() }),
            Reason::ContainerCrashed,
            "exit code 137: killed",
        ),
    ] {
        let (sim, mut world) = ready();
        edit_driver_pod(&mut world, |pod| pod.containers[0].state = state);
        let (phase, said, message, gpus, renewed) = judged(&sim, world);
        assert_eq!((phase, said, gpus), (Phase::Driver, reason, 0), "{message}");
        assert!(message.contains(words), "{message}");
        assert_eq!(renewed, ["device-plugin@a"]);
    }
    let (sim, mut world) = ready();
    world.pods.remove("driver@a");
    let (_, reason, message, ..) = judged(&sim, world);
    assert_eq!(reason, Reason::DriverDown);
    assert!(message.contains("the driver's container has no pod"), "{message}");
}

#[test]
fn a_container_that_has_started_again_has_the_plugin_of_before_recreated_once() {
    let (sim, mut world) = ready();
    assert!(judged(&sim, world.clone()).4.is_empty());
    let plugin = world.pods["device-plugin@a"].running_since().expect("a start");
    for (offset, renewed) in [(-1, &[][..]), (0, &[][..]), (1, &["device-plugin@a"][..])] {
        let since: Timestamp = plugin + SignedDuration::from_secs(offset);
        edit_driver_pod(&mut world, |pod| pod.containers[0].state = ContainerState::Running(Some(since)));
        assert_eq!(judged(&sim, world.clone()).4, renewed, "{offset}");
    }
}

#[test]
fn a_crash_that_a_container_has_got_over_is_looked_at_again_when_it_counts_no_more() {
    let (mut sim, _) = ready();
    sim.sleep(60);
    let since = sim.now;
    sim.report("a").driver.installed.clear();
    sim.surroundings();
    let mut world = sim.world();
    edit_driver_pod(&mut world, |pod| {
        pod.containers[0].state = ContainerState::Running(Some(since));
        pod.containers[0].last_failure = Some(gpu_operator_plan::world::Exit { code: 137, message: "killed".into() });
    });
    let plan = sim.plan_for(world.clone());
    assert_eq!(plan.check_again, Some(since + SignedDuration::from_secs(20)));
    assert_eq!(judged(&sim, world.clone()).1, Reason::ContainerCrashed);
    sim.sleep(20);
    assert_eq!(judged(&sim, world).1, Reason::DriverInstalling);
}

#[test]
fn a_root_without_library_or_device_nodes_is_reported_with_what_to_do() {
    type Edit = fn(&mut Vec<InstalledDriver>);
    let missing: Edit = |installed| installed[0].missing_devices = vec!["nvidia-uvm".into()];
    let gone: Edit = Vec::clear;
    for (edit, words) in
        [(missing, "/run/nvidia/driver/dev lacks nvidia-uvm"), (gone, "there is no libnvidia-ml.so.595")]
    {
        let (mut sim, _) = ready();
        sim.sleep(60);
        let world = edit_installed(&mut sim, edit);
        let (phase, reason, message, gpus, renewed) = judged(&sim, world);
        assert_eq!((phase, reason, gpus), (Phase::Driver, Reason::DriverInstalling, 0), "{message}");
        assert_eq!(renewed, ["device-plugin@a"], "no GPU pod is sent there");
        sim.sleep(600);
        let (_, reason, message, ..) = judged(&sim, sim.world());
        assert_eq!(reason, Reason::DriverRootIncomplete);
        assert!(message.contains(words) && message.contains("delete pod driver@a"), "{message}");
    }
}

#[test]
fn a_container_that_waits_for_a_driver_in_use_reports_its_users() {
    let (mut sim, _) = ready();
    sim.sleep(60);
    sim.report("a").driver.waits = Some("DriverInUse: …".into());
    sim.report("a").driver.installed.clear();
    sim.surroundings();
    // Only the operator's own pods hold it: the plugin is recreated, and the probe is asked to release it.
    let mut world = sim.world();
    world.gpu_holders.insert("a".into(), vec![]);
    let plan = sim.plan_for(world.clone());
    let (spec, _) = plan.gpu_nodes["a"].spec.clone().expect("a spec");
    assert!(spec.release_driver);
    // A pod holds it: the node waits for that, and its GPUs' health stays known.
    world.gpu_holders.insert("a".into(), vec!["default/busy".into()]);
    let plan = sim.plan_for(world);
    let write = &plan.gpu_nodes["a"];
    assert!(write.spec.is_none(), "{:?}", write.spec);
    let status = write.status.as_ref().expect("a status");
    assert_eq!((status.reason, &status.waits_on), (Some(Reason::DriverInUse), &vec!["default/busy".to_owned()]));
}

#[test]
fn the_probe_lets_go_for_a_driver_that_fails_where_that_wins_something() {
    for (holders, released) in [(&["default/busy"][..], false), (&[][..], true)] {
        let (sim, mut world) = ready();
        edit_driver_pod(&mut world, |pod| {
            let crash = gpu_operator_plan::world::Exit { code: 1, message: "no headers".into() };
            pod.containers[0].state =
                ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: String::new() };
            (pod.containers[0].last_failure, pod.containers[0].ready) = (Some(crash), false);
        });
        world.gpu_holders.insert("a".into(), holders.iter().map(|pod| (*pod).to_owned()).collect());
        let spec = sim.plan_for(world).gpu_nodes["a"].spec.clone();
        assert_eq!(spec.is_some_and(|(spec, _)| spec.release_driver), released, "{holders:?}");
    }
}

#[test]
fn a_report_of_before_the_driver_was_loaded_proves_nothing() {
    let (mut sim, _) = ready();
    let driver = &mut sim.report("a").driver;
    (driver.loaded, driver.installed) = (None, vec![]);
    let mut world = sim.world();
    let report = sim.report("a").clone();
    let gpu_node = std::sync::Arc::make_mut(world.gpu_nodes.get_mut("a").expect("a GpuNode"));
    gpu_node.status.as_mut().expect("a status").report = Some(report);
    assert_eq!(judged(&sim, world).0, Phase::Ready);
}

#[test]
fn what_has_the_driver_open_goes_before_the_container_that_is_to_unload_it() {
    let (mut sim, _) = ready();
    sim.delete_policy("all");
    let plan = sim.plan();
    let labels: Vec<_> = plan.labels["a"].labels.keys().cloned().collect();
    assert_eq!(labels, [keys::DRIVER], "{:?}", plan.labels["a"]);
    assert!(plan.gpu_nodes["a"].spec.as_ref().is_some_and(|(spec, _)| spec.release_driver));
    sim.settle();
    assert!(!sim.nodes["a"].labels.contains_key(keys::DRIVER));
    assert!(!sim.gpu_nodes["a"].spec.release_driver, "once the container is gone the probe may look again");
    // The plan waits for a probe that does not release the driver, but not indefinitely.
    let (mut sim, _) = ready();
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.delete_policy("all");
    sim.run(20);
    assert!(sim.nodes["a"].labels.contains_key(keys::DRIVER));
    sim.sleep(60);
    sim.settle();
    assert!(!sim.nodes["a"].labels.contains_key(keys::DRIVER));
}
