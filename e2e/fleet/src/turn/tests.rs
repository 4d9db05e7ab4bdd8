use cluster::node::real_node::HostDriver;
use gpu_operator_crd::report::NvmlState;
use nvml_probe::report::gpu_node::Requests;

use super::*;
use crate::{
    node::FleetNode,
    pod::{CONTAINER_ROOT, PlacedPod},
};

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
