//! The state of a simulated node's host and containers, and what follows from it: which driver is installed, loaded and in
//! use.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use nvml_probe::report::gpu_node::Requests;

use super::{
    node::FleetNode,
    pod::{CONTAINER_ROOT, PlacedPod, PodState, Program, Run},
};

/// The state of a node's host and of the containers on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// The number of reboots.
    pub boots: u32,
    /// The version of the loaded kernel module.
    pub module: Option<String>,
    /// The version of the driver whose container has its root mounted.
    pub container_root: Option<String>,
    /// The driver that an installer has put on the host. It survives reboots.
    pub installed: Option<InstalledVersion>,
    /// Whether a driver's container has recorded that it has loaded the module.
    pub state_file: bool,
    /// Whether the toolkit is installed. It survives reboots.
    pub toolkit: bool,
    /// Whether kubelet has ever published GPUs.
    pub has_published: bool,
    pub pods: BTreeMap<String, PodState>,
}

/// A driver that an installer has put on the host.
#[derive(Clone, Debug)]
pub(super) struct InstalledVersion {
    pub root: String,
    pub version: String,
}

/// The inputs of a machine's turn.
pub(super) struct Inputs<'a> {
    pub node: &'a FleetNode,
    pub placed: &'a [PlacedPod],
    /// What the operator requests of the probe.
    pub requests: Requests,
    pub now: Timestamp,
}

impl Machine {
    /// Returns a node that has just booted.
    pub fn new(node: &FleetNode) -> Self {
        Self { module: module_at_boot(node), ..Self::default() }
    }

    /// Reboots the node: what was in memory is gone, and all containers start again.
    pub fn reboot(&mut self, node: &FleetNode) {
        self.boots += 1;
        self.module = module_at_boot(node);
        self.container_root = None;
        self.state_file = false;
        for pod in self.pods.values_mut() {
            *pod = PodState { restarts: pod.restarts + 1, since: pod.since, ..PodState::default() };
        }
    }

    /// Returns the version of the driver's libraries under a root.
    pub fn library<'a>(&'a self, root: &str, node: &'a FleetNode) -> Option<&'a str> {
        if root == CONTAINER_ROOT {
            return self.container_root.as_deref();
        }
        if let Some(installed) = self.installed.as_ref().filter(|installed| installed.root == root) {
            return Some(&installed.version);
        }
        node.own_driver().map(|(version, _)| version).filter(|_| root == node.host_driver_root)
    }

    /// Returns the roots under which a driver may be installed.
    pub fn roots<'a>(&'a self, node: &'a FleetNode) -> impl Iterator<Item = &'a str> {
        let installed = self.installed.as_ref().map(|installed| installed.root.as_str());
        let own = node.host_driver_root.as_str();
        [own, CONTAINER_ROOT].into_iter().chain(installed.filter(move |root| *root != own))
    }

    /// Returns whether the driver is in use: by the probe's NVML, by the device plugin, or by a pod with a GPU.
    pub fn in_use(&self, inputs: &Inputs<'_>) -> bool {
        self.nvml_held(inputs)
            || self.runs(inputs, |program| matches!(program, Program::DevicePlugin(_)))
            || inputs.staying().any(|pod| pod.uses_gpu && self.is_running(pod))
    }

    /// Returns whether the probe has NVML open: the driver is loaded, its library is installed, and the probe need not release
    /// it.
    pub fn nvml_held(&self, inputs: &Inputs<'_>) -> bool {
        !inputs.requests.release
            && self.runs(inputs, |program| *program == Program::Probe)
            && self.module.is_some()
            && self.roots(inputs.node).any(|root| self.library(root, inputs.node) == self.module.as_deref())
    }

    /// Returns whether a running pod's main container runs a program that passes the test.
    pub fn runs(&self, inputs: &Inputs<'_>, is: impl Fn(&Program) -> bool) -> bool {
        self.running(inputs).any(is)
    }

    /// Returns the main programs of the running pods.
    pub fn running<'i>(&self, inputs: &Inputs<'i>) -> impl Iterator<Item = &'i Program> {
        let pods = inputs.staying().filter(|pod| self.is_running(pod));
        pods.flat_map(|pod| &pod.main).map(|container| &container.program)
    }

    /// Returns whether a pod runs its main containers.
    pub fn is_running(&self, pod: &PlacedPod) -> bool {
        self.pods.get(&pod.uid).is_some_and(PodState::is_running)
    }

    /// Returns when the first of the containers that are starting will be running.
    pub fn next_start(&self, inputs: &Inputs<'_>) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for pod in inputs.staying() {
            let Some(state) = self.pods.get(&pod.uid) else { continue };
            let containers = pod.init.iter().zip(&state.init).chain(pod.main.iter().zip(&state.main));
            for (container, run) in containers {
                if let Run::Starting(since) = run {
                    let at = inputs.started_at(&container.program, *since);
                    next = Some(next.map_or(at, |next| next.min(at)).max(inputs.now));
                }
            }
        }
        next
    }
}

impl<'a> Inputs<'a> {
    /// Returns the pods that are not being deleted.
    pub fn staying(&self) -> impl Iterator<Item = &'a PlacedPod> + use<'a> {
        self.placed.iter().filter(|pod| !pod.deleting)
    }

    /// Returns when a container is running whose start began at `since`.
    pub fn started_at(&self, program: &Program, since: Timestamp) -> Timestamp {
        let seconds = if program.is_operand() { self.node.behaviour.pod_seconds } else { 0 };
        since + SignedDuration::from_secs(seconds.into())
    }
}

fn module_at_boot(node: &FleetNode) -> Option<String> {
    node.own_driver().filter(|(_, loaded)| *loaded).map(|(version, _)| version.to_owned())
}
