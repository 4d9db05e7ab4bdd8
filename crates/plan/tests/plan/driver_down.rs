//! A driver container that is down, and a driver root with missing files, are evidence against Ready, whatever is
//! allocatable.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason, report::InstalledDriver};
use gpu_operator_plan::output::body::Kind;
use gpu_operator_plan::world::{ContainerState, GpuPods, PodFacts, World};
use k8s_openapi::jiff::SignedDuration;
use test_support::planned::Planned;

/// Returns a fleet of one ready node, and its world.
fn ready() -> (Sim, World) {
    let sim = Sim::settled_fleet("{}", &["a"]);
    assert_eq!(sim.status("a").phase, Phase::Ready);
    let world = sim.world();
    (sim, world)
}

/// Returns phase, reason, message and allocatable GPUs of the node in a plan, and the pods that the plan recreates.
fn assessed(sim: &Sim, world: World) -> (Phase, Reason, String, u32, Vec<String>) {
    let plan = sim.plan_for(world);
    let status = plan.node_statuses().remove(&"a".into()).cloned().unwrap_or_else(|| sim.status("a"));
    let reason = status.reason().expect("a reason");
    (status.phase, reason, status.message, status.gpus.allocatable, plan.deleted(Kind::Pod).into_iter().collect())
}

pub fn edit_pod(world: &mut World, name: &str, edit: impl FnOnce(&mut PodFacts)) {
    let mut pod = world.pods.remove(name).expect("a pod");
    edit(std::sync::Arc::make_mut(&mut pod));
    world.pods.insert(pod);
}

fn edit_driver_pod(world: &mut World, edit: impl FnOnce(&mut PodFacts)) {
    edit_pod(world, "driver@a", edit);
}

fn edit_installed(sim: &mut Sim, edit: impl FnOnce(&mut Vec<InstalledDriver>)) -> World {
    edit(&mut sim.report("a").driver.installed);
    sim.surroundings();
    sim.world()
}

#[test]
fn without_its_driver_container_a_node_offers_no_gpu() {
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
        edit_driver_pod(&mut world, |pod| {
            pod.sandbox_since = Some((sim.now + SignedDuration::from_secs(1)).into());
            pod.containers[0].state = state;
        });
        let (phase, found, message, gpus, recreated) = assessed(&sim, world);
        assert_eq!((phase, found, gpus), (Phase::Driver, reason, 0), "{message}");
        assert!(message.contains(words), "{message}");
        assert_eq!(recreated, ["device-plugin@a"]);
    }
    let (sim, mut world) = ready();
    world.pods.remove("driver@a");
    let (_, reason, message, ..) = assessed(&sim, world);
    assert_eq!(reason, Reason::DriverDown);
    assert!(message.contains("the driver's container has no pod"), "{message}");
}

#[test]
fn a_plugin_older_than_the_driver_container_is_recreated() {
    let (sim, mut world) = ready();
    assert!(assessed(&sim, world.clone()).4.is_empty());
    let plugin = world.pods.get("device-plugin@a").and_then(|pod| pod.running_since()).expect("a start");
    for (offset, recreated) in [(-1, &[][..]), (0, &[][..]), (1, &["device-plugin@a"][..])] {
        let since = plugin.reported() + SignedDuration::from_secs(offset);
        edit_driver_pod(&mut world, |pod| pod.containers[0].state = ContainerState::Running(Some(since.into())));
        assert_eq!(assessed(&sim, world.clone()).4, recreated, "{offset}");
    }
}

#[test]
fn a_driver_is_not_down_before_its_pod_is_replaced() {
    let (mut sim, mut world) = ready();
    sim.sleep(120);
    let plugin = world.pods.get("device-plugin@a").and_then(|pod| pod.running_since()).expect("a start");
    for (offset, reason, recreated) in
        [(0, Reason::AllGpusAllocatable, &[][..]), (1, Reason::DriverDown, &["device-plugin@a"][..])]
    {
        let since = plugin.reported() + SignedDuration::from_secs(offset);
        edit_driver_pod(&mut world, |pod| {
            pod.revision = Some("another".into());
            pod.containers[0].state = ContainerState::Running(Some(since.into()));
        });
        let (_, found, message, _, pods) = assessed(&sim, world.clone());
        assert_eq!(found, reason, "{offset}: {message}");
        assert_eq!(pods, recreated, "{offset}");
    }
}

#[test]
fn a_past_crash_is_reported_until_it_expires() {
    let (mut sim, _) = ready();
    sim.sleep(60);
    let since = sim.now;
    sim.report("a").driver.installed.clear();
    sim.surroundings();
    let mut world = sim.world();
    edit_driver_pod(&mut world, |pod| {
        pod.containers[0].state = ContainerState::Running(Some(since.into()));
        pod.containers[0].last_failure = Some(gpu_operator_plan::world::Exit { code: 137, message: "killed".into() });
    });
    let plan = sim.plan_for(world.clone());
    assert_eq!(plan.check_again, Some(since + SignedDuration::from_secs(20)));
    assert_eq!(assessed(&sim, world.clone()).1, Reason::ContainerCrashed);
    sim.sleep(20);
    assert_eq!(assessed(&sim, world).1, Reason::DriverInstalling);
}

#[test]
fn an_incomplete_driver_root_is_reported_with_what_to_do() {
    type Edit = fn(&mut Vec<InstalledDriver>);
    let missing: Edit = |installed| installed[0].missing_devices = vec!["nvidia-uvm".into()];
    let gone: Edit = Vec::clear;
    for (edit, words) in
        [(missing, "/run/nvidia/driver/dev lacks nvidia-uvm"), (gone, "there is no libnvidia-ml.so.595")]
    {
        let (mut sim, _) = ready();
        sim.sleep(60);
        let world = edit_installed(&mut sim, edit);
        let (phase, reason, message, gpus, recreated) = assessed(&sim, world);
        assert_eq!((phase, reason, gpus), (Phase::Driver, Reason::DriverInstalling, 0), "{message}");
        assert_eq!(recreated, ["device-plugin@a"], "no GPU pod is scheduled there");
        sim.sleep(600);
        let (_, reason, message, ..) = assessed(&sim, sim.world());
        assert_eq!(reason, Reason::DriverRootIncomplete);
        assert!(message.contains(words) && message.contains("delete pod driver@a"), "{message}");
    }
}

#[test]
fn the_probe_releases_a_failing_driver_only_if_no_pod_uses_it() {
    for (holders, released) in [(&["default/busy"][..], false), (&[][..], true)] {
        let (sim, mut world) = ready();
        edit_driver_pod(&mut world, |pod| {
            let crash = gpu_operator_plan::world::Exit { code: 1, message: "no headers".into() };
            pod.containers[0].state =
                ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: String::new() };
            (pod.containers[0].last_failure, pod.containers[0].ready) = (Some(crash), false);
        });
        let running = holders.iter().map(|pod| sim.gpu_pod(pod)).collect();
        world.gpu_pods.insert("a".into(), GpuPods { users: running, ..GpuPods::default() });
        let plan = sim.plan_for(world);
        let spec = plan.specs().remove(&"a".into());
        assert_eq!(spec.is_some_and(|write| write.spec.release_driver), released, "{holders:?}");
    }
}

#[test]
fn a_first_installation_is_not_a_driver_that_is_down() {
    let waiting = |reason: &str| ContainerState::Waiting { reason: reason.into(), message: String::new() };
    for (allocatable, phase, known, crashed, reason) in [
        (0u32, Phase::Driver, None, false, Reason::PodStarting),
        (1, Phase::Driver, None, false, Reason::PodStarting),
        (1, Phase::Ready, None, false, Reason::DriverDown),
        (0, Phase::Driver, Some(Reason::DriverDown), false, Reason::DriverDown),
        (0, Phase::Driver, None, true, Reason::DriverDown),
    ] {
        let (sim, mut world) = ready();
        edit_driver_pod(&mut world, |pod| {
            pod.containers[0].state = waiting("PodInitializing");
            pod.containers[0].ready = false;
            pod.containers[0].last_failure =
                crashed.then(|| gpu_operator_plan::world::Exit { code: 1, message: "no headers".into() });
        });
        edit_pod(&mut world, "device-plugin@a", |plugin| plugin.containers[0].state = waiting("PodInitializing"));
        let node = std::sync::Arc::make_mut(world.nodes.get_mut(&"a".into()).expect("the Node"));
        node.allocatable = allocatable.into();
        let gpu_node = std::sync::Arc::make_mut(world.gpu_nodes.get_mut(&"a".into()).expect("a GpuNode"));
        let status = gpu_node.status.as_mut().expect("a status");
        (status.phase, status.reason) = (phase, known.map(Into::into));
        assert_eq!(assessed(&sim, world).1, reason, "{allocatable} {phase:?} {known:?} {crashed}");
    }
}

/// Kubelet reports the pods of a node one by one, in any order.
#[test]
fn a_plugin_that_has_started_proves_that_the_driver_runs() {
    for (age, reason, known) in [
        (0, "PodInitializing", Reason::AllGpusAllocatable),
        (0, "CrashLoopBackOff", Reason::DriverDown),
        (-60, "PodInitializing", Reason::DriverDown),
    ] {
        let (sim, mut world) = ready();
        let plugin = world.pods.get("device-plugin@a").and_then(|pod| pod.running_since()).expect("a start");
        edit_driver_pod(&mut world, |pod| {
            pod.sandbox_since = Some((plugin.reported() - SignedDuration::from_secs(age)).into());
            pod.containers[0].state = ContainerState::Waiting { reason: reason.into(), message: String::new() };
        });
        let (_, found, _, _, recreated) = assessed(&sim, world);
        assert_eq!(
            (found, recreated.is_empty()),
            (known, known != Reason::DriverDown),
            "{age} {reason}: {recreated:?}"
        );
    }
}

#[test]
fn users_of_a_failing_driver_are_listed_only_if_it_is_loaded() {
    for loaded in [false, true] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
        sim.faults.insert("a".into(), Faults { driver_crash: Some("no headers".into()), ..Faults::default() });
        sim.run(60);
        sim.report("a").driver.loaded = loaded.then(|| "580.1.1".into());
        sim.surroundings();
        let plan = gpu_operator_plan::plan(&sim.settings, &sim.catalogue, &sim.world(), sim.now);
        assert_eq!(plan.questions.gpu_pods.len(), usize::from(loaded));
    }
}

#[test]
fn a_report_from_before_the_driver_was_loaded_is_no_evidence() {
    let (mut sim, _) = ready();
    let driver = &mut sim.report("a").driver;
    (driver.loaded, driver.installed) = (None, vec![]);
    let mut world = sim.world();
    let report = sim.report("a").clone();
    let gpu_node = std::sync::Arc::make_mut(world.gpu_nodes.get_mut(&"a".into()).expect("a GpuNode"));
    gpu_node.status.as_mut().expect("a status").report = Some(report);
    assert_eq!(assessed(&sim, world).0, Phase::Ready);
}

#[test]
fn users_of_the_driver_are_removed_before_its_container() {
    let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
    sim.delete_policy("all");
    let plan = sim.plan();
    let labels: Vec<_> = plan.labels()[&"a".into()].labels.keys().cloned().collect();
    assert_eq!(labels, [keys::DRIVER], "{:?}", plan.labels()[&"a".into()]);
    assert!(plan.specs().get(&"a".into()).as_ref().is_some_and(|write| write.spec.release_driver));
    sim.settle();
    assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
    assert!(!sim.spec("a").release_driver, "once the container is gone, the probe may open the driver again");
    // The plan waits for a probe that does not release the driver, but not indefinitely.
    let mut sim = Sim::settled_fleet("{deletionPolicy: Now}", &["a"]);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.delete_policy("all");
    sim.run(20);
    assert!(sim.node("a").labels.contains_key(keys::DRIVER));
    sim.sleep(60);
    sim.settle();
    assert!(!sim.node("a").labels.contains_key(keys::DRIVER));
}

/// Returns status and reason of a condition of node `a`.
fn condition(sim: &Sim, kind: &str) -> (String, String) {
    let conditions = sim.status("a").conditions;
    let found = conditions.into_iter().find(|found| found.type_ == kind).expect("a condition");
    (found.status, found.reason)
}

#[test]
fn replaced_packages_of_the_host_require_a_reboot() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.host_driver("a", "580.173.02", true);
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
    // Unattended upgrades.
    sim.report("a").driver.installed[0].version = "580.178.04".into();
    sim.steps(30);
    assert_eq!(sim.status("a").phase, Phase::Ready, "the module may be about to be loaded again");
    assert_eq!(condition(&sim, "DriverReady"), ("False".into(), "RebootNeeded".into()));
    sim.steps(60);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::RebootNeeded)), "{}", status.message);
    assert!(status.message.contains("580.173.02 is loaded") && status.message.contains("driver 580.178.04"));
    assert_eq!(status.gpus.allocatable, 8, "running pods keep their GPUs");
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RebootNeeded".into()));
    assert!(sim.pods.contains_key("device-plugin@a"));
    sim.boots_with("a", "580.178.04");
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    assert_eq!(condition(&sim, "DriverReady").0, "True");
}

/// Libraries where the probe does not find them, as of NixOS, are no evidence, and neither are those of another driver beside them.
#[test]
fn libraries_that_were_not_found_are_no_evidence() {
    type Edit = fn(&mut Vec<InstalledDriver>);
    let none: Edit = Vec::clear;
    let beside: Edit = |installed| {
        let root = "/home/kubernetes/bin/nvidia".into();
        installed.push(InstalledDriver { root, version: "535.1.1".into(), ..InstalledDriver::default() });
    };
    for edit in [none, beside] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.host_driver("a", "580.173.02", true);
        sim.apply_policy("all", "{}");
        sim.settle();
        edit(&mut sim.report("a").driver.installed);
        sim.steps(100);
        assert_eq!(sim.status("a").phase, Phase::Ready, "{}", sim.status("a").message);
    }
}

#[test]
fn a_toolkit_or_mps_daemon_that_breaks_counts_after_a_grace() {
    let mps = "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}";
    for (spec, stage, phase, kind) in [
        ("{}", Stage::Toolkit, Phase::Toolkit, "ToolkitReady"),
        (mps, Stage::Mps, Phase::DevicePlugin, "DevicePluginReady"),
    ] {
        let pod = &format!("{}@a", stage.as_str());
        for (reason, faults) in [
            (Reason::ContainerCrashed, Faults { crashing: Some(stage), ..Faults::default() }),
            (Reason::PodsForbidden, Faults { pods_forbidden: Some("exceeded quota"), ..Faults::default() }),
        ] {
            let mut sim = Sim::settled_fleet(spec, &["a"]);
            let allocatable = sim.status("a").gpus.allocatable;
            sim.faults.insert("a".into(), faults);
            if reason == Reason::PodsForbidden {
                sim.pods.remove(pod);
            }
            sim.steps(30);
            assert_eq!(sim.status("a").phase, Phase::Ready, "{pod}: it may be restarting");
            assert_eq!(condition(&sim, kind), ("False".into(), reason.as_str().into()), "{pod}");
            sim.steps(60);
            let status = sim.status("a");
            assert_eq!((status.phase, status.reason()), (phase, Some(reason)), "{pod}: {}", status.message);
            assert_eq!(status.gpus.allocatable, allocatable, "{pod}");
            assert_eq!(sim.condition("all", "Ready").0, "False", "{pod}");
            sim.faults.clear();
            sim.settle();
            assert_eq!(sim.status("a").phase, Phase::Ready, "{pod}: {}", sim.status("a").message);
            assert_eq!(condition(&sim, kind).0, "True", "{pod}");
        }
        // A restart is too short for a change of the phase.
        let mut sim = Sim::settled_fleet(spec, &["a"]);
        sim.pods.remove(pod);
        for _ in 0..20 {
            sim.step();
            sim.sleep(1);
            assert_eq!(sim.status("a").phase, Phase::Ready, "{pod}");
        }
    }
}
