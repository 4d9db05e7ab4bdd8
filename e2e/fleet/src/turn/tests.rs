use cluster::node::real_node::HostDriver;
use gpu_operator_crd::{
    health::{GpuHealth, HealthState},
    report::{InstalledDriver, NvmlState},
};
use k8s_openapi::jiff::SignedDuration;
use nvml_probe::report::gpu_node::Requests;

use super::*;
use crate::{node::FleetNode, pod::PlacedPod, program::CONTAINER_ROOT};

const VERSION: &str = "595.91.07";

/// A node, the pods on it, and a clock.
struct Bench {
    node: FleetNode,
    machine: Machine,
    pods: Vec<PlacedPod>,
    requests: Requests,
    now: Timestamp,
}

impl Bench {
    fn new(node: FleetNode) -> Self {
        let machine = Machine::new(&node);
        Self { node, machine, pods: vec![probe_pod()], requests: Requests::default(), now: Timestamp::UNIX_EPOCH }
    }

    /// Returns a node with probe, driver, toolkit and plugin.
    fn with_stack(version: &str) -> Self {
        let mut bench = Self::new(FleetNode::with_gpus("n", "2330", 8));
        bench.pods.extend([plugin_pod(version), toolkit_pod(version), driver_pod(version)]);
        bench
    }

    fn turn(&mut self) -> Outcome {
        let inputs = Inputs { node: &self.node, placed: &self.pods, requests: self.requests, now: self.now };
        self.machine.turn(&inputs)
    }

    fn after(&mut self, seconds: i64) -> Outcome {
        self.now += SignedDuration::from_secs(seconds);
        self.turn()
    }

    fn delete(&mut self, uid: &str) {
        for pod in self.pods.iter_mut().filter(|pod| pod.uid == uid) {
            pod.deleting = true;
        }
    }

    fn replace(&mut self, pod: PlacedPod) {
        self.pods.retain(|other| other.uid != pod.uid);
        self.pods.push(pod);
    }
}

fn container(name: &str, program: Program) -> PlacedContainer {
    PlacedContainer { name: name.into(), image: format!("x/{name}:1"), program }
}

fn pod(uid: &str, init: Vec<PlacedContainer>, main: PlacedContainer) -> PlacedPod {
    let (namespace, name) = ("ns".into(), uid.to_owned());
    PlacedPod { uid: uid.into(), namespace, name, deleting: false, uses_gpu: false, init, main: vec![main] }
}

fn probe_pod() -> PlacedPod {
    pod("probe", vec![], container("nvml-probe", Program::Probe))
}

fn driver_pod(version: &str) -> PlacedPod {
    let guard = container("guard", Program::Guard { version: version.into() });
    pod("driver", vec![guard], container("driver", Program::Driver { version: version.into() }))
}

fn gate(version: &str) -> PlacedContainer {
    container(
        "gate",
        Program::WaitDriver { root: CONTAINER_ROOT.into(), version: Some(version.into()), container: false },
    )
}

fn toolkit_pod(version: &str) -> PlacedPod {
    let install = container("install-toolkit", Program::InstallToolkit);
    pod("toolkit", vec![gate(version), install], container("hold", Program::Other))
}

fn plugin_pod(version: &str) -> PlacedPod {
    let toolkit = container("wait-for-toolkit", Program::WaitToolkit);
    pod("plugin", vec![gate(version), toolkit], container("device-plugin", Program::DevicePlugin(Sharing::default())))
}

fn offered(outcome: &Outcome) -> Option<u32> {
    outcome.gpus.map(|gpus| gpus.count)
}

fn phase(outcome: &Outcome, uid: &str) -> String {
    outcome.statuses[uid].phase.clone().unwrap()
}

fn waiting(outcome: &Outcome, uid: &str) -> String {
    let statuses = outcome.statuses[uid].container_statuses.clone().unwrap();
    let waiting = statuses[0].state.clone().unwrap().waiting.unwrap_or_default();
    format!("{}: {}", waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
}

#[test]
fn a_detector_finds_gpus_where_its_pod_runs() {
    let detector = || pod("detector", vec![], container("detector", Program::Detector));
    let mut bench = Bench::with_stack(VERSION);
    assert!(!bench.turn().detected);
    bench.pods.push(detector());
    assert!(bench.turn().detected);
    bench.node.gpus.clear();
    assert!(!bench.turn().detected);
}

#[test]
fn a_complete_stack_runs_at_once_whatever_the_order_of_its_pods() {
    let mut bench = Bench::with_stack(VERSION);
    let outcome = bench.turn();
    for uid in ["driver", "toolkit", "plugin", "probe"] {
        assert_eq!(phase(&outcome, uid), "Running", "{uid}");
    }
    assert_eq!((offered(&outcome), outcome.next), (Some(8), None));
    let report = outcome.report.unwrap();
    assert_eq!(report.nvml.state, NvmlState::Answering);
    assert_eq!(
        report.driver.installed,
        [InstalledDriver { root: CONTAINER_ROOT.into(), version: VERSION.into(), ..InstalledDriver::default() }]
    );
    assert!(report.gpus.iter().all(|gpu| gpu.uuid.is_some()));
    assert_eq!(bench.after(100), bench.turn(), "time alone changes nothing");
}

#[test]
fn later_stages_wait_and_only_the_plugin_publishes_gpus() {
    let mut bench = Bench::with_stack(VERSION);
    bench.pods.retain(|pod| pod.uid != "driver");
    let outcome = bench.turn();
    assert_eq!((phase(&outcome, "toolkit"), phase(&outcome, "plugin")), ("Pending".into(), "Pending".into()));
    assert_eq!(offered(&outcome), None);
    bench.pods.push(driver_pod("580.1"));
    assert_eq!(offered(&bench.turn()), None, "another version opens no gate");
}

#[test]
fn slow_pods_start_one_after_the_other() {
    let mut bench = Bench::with_stack(VERSION);
    bench.node.behaviour.pod_seconds = 120;
    assert_eq!(bench.turn().next, Some(bench.now + SignedDuration::from_secs(120)));
    assert_eq!(phase(&bench.after(119), "driver"), "Pending");
    assert_eq!(phase(&bench.after(1), "driver"), "Running");
    assert_eq!(phase(&bench.after(120), "toolkit"), "Running");
    assert_eq!(offered(&bench.turn()), None);
    let last = bench.after(120);
    assert_eq!((offered(&last), last.next), (Some(8), None));
}

#[test]
fn a_missing_image_and_a_crash_are_reported_until_resolved() {
    let mut bench = Bench::with_stack(VERSION);
    bench.node.behaviour.driver = DriverBehaviour::ImageMissing;
    let missing = waiting(&bench.turn(), "driver");
    assert!(missing.starts_with("ImagePullBackOff") && missing.contains("ErrImagePull: "), "{missing}");
    bench.node.behaviour.driver = DriverBehaviour::Crash("no headers".into());
    let crashed = bench.turn();
    assert!(waiting(&crashed, "driver").starts_with("CrashLoopBackOff"));
    let last = crashed.statuses["driver"].container_statuses.clone().unwrap()[0].last_state.clone();
    assert_eq!(last.unwrap().terminated.unwrap().message.as_deref(), Some("no headers"));
    bench.node.behaviour.driver = DriverBehaviour::Ok;
    let healed = bench.after(5);
    assert_eq!(offered(&healed), Some(8));
    let after = healed.statuses["driver"].container_statuses.clone().unwrap()[0].clone();
    assert!(after.restart_count == 1 && after.last_state.is_some(), "{after:?}");
}

#[test]
fn another_version_starts_where_the_image_of_one_is_missing() {
    for (missing, offers) in [(VERSION, None), ("590.10.01", Some(8))] {
        let mut bench = Bench::with_stack(VERSION);
        bench.node.behaviour.driver = DriverBehaviour::ImageMissingOf(missing.into());
        assert_eq!(offered(&bench.turn()), offers, "{missing}");
    }
}

#[test]
fn a_deleted_plugin_withdraws_its_gpus_and_its_pod_ends() {
    let mut bench = Bench::with_stack(VERSION);
    bench.turn();
    bench.delete("plugin");
    let outcome = bench.turn();
    assert_eq!((offered(&outcome), outcome.ended), (Some(0), vec!["plugin".to_owned()]));
}

#[test]
fn a_driver_is_replaced_only_after_its_users_have_released_it() {
    let mut bench = Bench::with_stack(VERSION);
    bench.turn();
    for uid in ["plugin", "toolkit"] {
        bench.delete(uid);
    }
    bench.turn();
    bench.delete("driver");
    bench.turn();
    assert_eq!(bench.machine.module.as_deref(), Some(VERSION), "the probe holds the driver");
    bench.replace(driver_pod("580.1"));
    let held = bench.turn();
    assert_eq!(
        phase(&held, "driver"),
        "Running",
        "without its root the probe cannot hold NVML, so the guard lets the driver start"
    );

    let mut bench = Bench::with_stack(VERSION);
    bench.turn();
    bench.pods.retain(|pod| pod.uid == "probe" || pod.uid == "driver");
    bench.requests.release = true;
    assert_eq!(bench.turn().report.unwrap().nvml.state, NvmlState::Released);
    bench.delete("driver");
    assert_eq!(bench.turn().report.unwrap().driver.loaded, None, "the driver is unloaded because nothing uses it");
    bench.replace(driver_pod("580.1"));
    assert_eq!(bench.turn().report.unwrap().driver.loaded.as_deref(), Some("580.1"));
}

#[test]
fn the_guard_blocks_a_driver_while_a_pod_uses_the_loaded_one() {
    let mut bench = Bench::new(FleetNode::with_gpus("n", "2330", 8));
    bench.node.host_driver = HostDriver::Loaded("570.1".into());
    bench.machine = Machine::new(&bench.node);
    let mut training = pod("training", vec![], container("main", Program::Other));
    training.uses_gpu = true;
    bench.pods = vec![probe_pod(), training, driver_pod(VERSION)];
    bench.requests.release = true;
    let held = bench.turn();
    assert_eq!(waiting(&held, "driver"), "PodInitializing: ", "it has not been started");
    assert!(held.report.unwrap().driver.in_use);
    bench.delete("training");
    assert_eq!(phase(&bench.turn(), "driver"), "Running");
}

#[test]
fn a_reboot_restarts_everything_and_keeps_the_disk() {
    let mut bench = Bench::with_stack(VERSION);
    let before = bench.turn().report.unwrap();
    bench.node.gpus.truncate(7);
    bench.pods.retain(|pod| pod.uid != "driver");
    bench.machine.reboot(&bench.node);
    let outcome = bench.after(60);
    let report = outcome.report.clone().unwrap();
    assert!(report.boot_id != before.boot_id && report.gpus.len() == 7 && report.driver.loaded.is_none());
    assert_eq!(offered(&outcome), Some(0), "kubelet keeps the resource");
    assert_eq!(phase(&outcome, "plugin"), "Pending");
    bench.pods.push(driver_pod(VERSION));
    let outcome = bench.turn();
    assert_eq!(offered(&outcome), Some(7));
    assert_eq!(outcome.statuses["plugin"].container_statuses.clone().unwrap()[0].restart_count, 1);
}

#[test]
fn a_host_driver_opens_the_gates_for_its_root() {
    let loaded = HostDriver::Loaded("570.1".into());
    let cases = [
        (loaded.clone(), "/", true),
        (loaded, CONTAINER_ROOT, false),
        (HostDriver::Installed("570.1".into()), "/", false),
    ];
    for (driver, root, opens) in cases {
        let mut bench = Bench::new(FleetNode::with_gpus("n", "2330", 2));
        bench.node.host_driver = driver.clone();
        bench.machine = Machine::new(&bench.node);
        let gate = container("gate", Program::WaitDriver { root: root.into(), version: None, container: false });
        bench.pods.push(pod("toolkit", vec![gate], container("hold", Program::Other)));
        let outcome = bench.turn();
        assert_eq!(phase(&outcome, "toolkit") == "Running", opens, "{driver:?} {root}");
        let report = outcome.report.clone().unwrap();
        assert_eq!(
            report.driver.installed,
            [InstalledDriver { root: "/".into(), version: "570.1".into(), ..InstalledDriver::default() }]
        );
        assert_eq!(report.driver.loaded.is_some(), matches!(driver, HostDriver::Loaded(_)));
    }
}

#[test]
fn an_installers_driver_survives_a_reboot_and_is_loaded_again() {
    let root = "/home/kubernetes/bin/nvidia";
    let mut bench = Bench::new(FleetNode::with_gpus("n", "102d", 4));
    let install = Program::InstallDriver { version: "470.1".into(), root: root.into() };
    let gate = container("gate", Program::WaitDriver { root: root.into(), version: None, container: false });
    let shared = container("device-plugin", Program::DevicePlugin(Sharing { replicas: 3, renamed: true }));
    bench.pods.push(pod("driver", vec![container("install-driver", install)], container("hold", Program::Other)));
    bench.pods.push(pod("plugin", vec![gate], shared));
    let outcome = bench.turn();
    assert_eq!(outcome.gpus, Some(Gpus { count: 12, renamed: true }));
    let driver = outcome.report.unwrap().driver;
    assert_eq!(
        driver.installed,
        [InstalledDriver { root: root.into(), version: "470.1".into(), ..InstalledDriver::default() }]
    );
    bench.pods.retain(|pod| pod.uid != "driver");
    bench.machine.reboot(&bench.node);
    let driver = bench.after(60).report.unwrap().driver;
    assert!(driver.loaded.is_none() && driver.installed.len() == 1);
}

#[test]
fn there_is_a_report_only_if_a_probe_runs_and_reports() {
    let mut bench = Bench::new(FleetNode::with_gpus("n", "2330", 2));
    assert!(bench.turn().report.is_some());
    bench.node.behaviour.reports = false;
    assert!(bench.turn().report.is_none());
    bench.node.behaviour.reports = true;
    bench.delete("probe");
    assert!(bench.turn().report.is_none());
}

#[test]
fn the_health_of_a_gpu_is_reported_while_nvml_answers() {
    let states = |outcome: Outcome| -> Vec<HealthState> {
        outcome.report.unwrap().gpus.iter().map(|gpu| gpu.health.state).collect()
    };
    let mut bench = Bench::with_stack(VERSION);
    bench.node.gpus.truncate(2);
    bench.node.health.insert(1, GpuHealth { state: HealthState::Degraded, ..GpuHealth::default() });
    assert_eq!(states(bench.turn()), [HealthState::Healthy, HealthState::Degraded]);
    bench.requests.release = true;
    assert_eq!(states(bench.turn()), [HealthState::Unknown; 2]);
}
