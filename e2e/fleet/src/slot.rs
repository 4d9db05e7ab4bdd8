//! One node of the agent: its model, the objects that the API shows for it, and what has been written.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{GpuHealth, GpuNode, GpuNodeSpec, NodeName, Report, keys, report::NvmlState};
use gpu_operator_plan::world::Resources;
use k8s_openapi::jiff::Timestamp;
use nvml_probe::report::gpu_node::GpuNodeView;
use serde_json::Value;
use test_support::sim::Sim;

use super::{
    node::FleetNode,
    pod::{Kind, PlacedPod, whole_seconds},
    writes::Write,
};

/// The maximum number of steps of a turn.
const MAX_STEPS: usize = 100;

/// One node.
pub(super) struct Slot {
    pub node: FleetNode,
    /// The model of this node alone: its machine and its pods.
    pub sim: Sim,
    name: NodeName,
    /// Whether its Node object exists.
    pub present: bool,
    /// Whether its kubelet and its probe are running.
    pub alive: bool,
    pub labels: BTreeMap<String, String>,
    pub pods: BTreeMap<String, PlacedPod>,
    /// Its GpuNode, as the watch shows it.
    pub seen: GpuNodeView,
    written: LastWritten,
    pub turn: Turn,
    /// When it has its next turn without a change.
    pub timer: Option<Timestamp>,
}

/// The state of a node's turn. A node never has two turns at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has nothing to do.
    None,
    Queued,
    Running,
    /// Its turn is running, and something has changed since it began.
    RunningAndChanged,
}

/// What was last written to the API.
#[derive(Default)]
struct LastWritten {
    statuses: BTreeMap<String, Value>,
    ended: BTreeSet<String>,
    boot: String,
    gpus: Resources,
    detected: bool,
    report: Option<Report>,
}

impl Slot {
    pub fn new(node: FleetNode, pods: BTreeMap<String, PlacedPod>) -> Self {
        let mut slot = Self {
            sim: node.sim(),
            name: node.name.as_str().into(),
            present: false,
            alive: true,
            labels: BTreeMap::new(),
            pods: BTreeMap::new(),
            seen: GpuNodeView::Absent,
            written: LastWritten { boot: node.boot_id(), ..LastWritten::default() },
            turn: Turn::None,
            timer: None,
            node,
        };
        for pod in pods.into_values() {
            slot.place(pod);
        }
        slot
    }

    /// Makes the next turn write statuses and report again: others may have written while the node was away.
    pub fn forget_written(&mut self) {
        let LastWritten { boot, gpus, .. } = std::mem::take(&mut self.written);
        self.written = LastWritten { boot, gpus, ..LastWritten::default() };
    }

    /// Makes the next turn write the report again, because the GpuNode is gone.
    pub fn forget_report(&mut self) {
        self.written.report = None;
        self.written.detected = false;
    }

    /// Returns the number of GPUs that was last written to the Node.
    pub fn gpus(&self) -> Option<u32> {
        self.written.gpus.names().next().map(|_| self.written.gpus.total())
    }

    pub fn is_idle(&self) -> bool {
        self.turn == Turn::None && self.timer.is_none()
    }

    /// Updates a pod. A new one starts, and one that is being deleted ends.
    pub fn place(&mut self, pod: PlacedPod) {
        let uid = &pod.id.uid;
        if let Some(known) = self.pods.get_mut(uid) {
            if pod.deleting && !known.deleting {
                known.deleting = true;
                end(&mut self.sim, &pod);
            }
            return;
        }
        if let Kind::Own(facts) = &pod.kind
            && !pod.deleting
        {
            self.sim.templates.insert(facts.name.clone(), pod.spec.clone());
            self.sim.pods.insert(facts.name.clone(), (**facts).clone());
        }
        self.pods.insert(uid.clone(), pod);
    }

    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid).filter(|pod| !pod.deleting) {
            end(&mut self.sim, &pod);
        }
        self.written.statuses.remove(uid);
        self.written.ended.remove(uid);
    }

    /// Lets the node do everything that it can do now. Returns the writes, and when the next turn comes without a change.
    pub fn take_turn(&mut self, now: Timestamp) -> (Vec<Write>, Option<Timestamp>) {
        self.observe(now);
        let state = |sim: &Sim| (sim.nodes.clone(), sim.machines.clone(), sim.pods.clone());
        let mut before = state(&self.sim);
        // A step of one pod may let another one continue.
        for _ in 0..MAX_STEPS {
            self.sim.start_probe(&self.name);
            self.sim.run_kubelet(&self.name);
            let after = state(&self.sim);
            if after == before {
                break;
            }
            before = after;
        }
        (self.writes(), self.sim.next_by_time(&self.name))
    }

    /// Gives the model what happens around its machine.
    fn observe(&mut self, now: Timestamp) {
        let (sim, name) = (&mut self.sim, &self.name);
        sim.now = whole_seconds(now);
        sim.faults.insert(name.clone(), self.node.faults.clone());
        let requests = self.seen.requests().unwrap_or_default();
        let spec = GpuNodeSpec {
            release_driver: requests.release,
            report_holders: requests.holders,
            ..GpuNodeSpec::default()
        };
        sim.gpu_nodes.insert(name.clone(), GpuNode::new(name.as_str(), spec));
        let staying = || self.pods.values().filter(|pod| !pod.deleting);
        let users = staying().filter(|pod| pod.uses_gpu());
        let users = users.map(|pod| format!("{}/{}", pod.id.namespace, pod.id.name)).collect();
        sim.gpu_pods.insert(name.clone(), users);
        sim.foreign_sets = staying().filter_map(|pod| Some((pod.id.uid.clone(), pod.third_party()?))).collect();
        let has_probe = sim.pods.contains_key(&format!("{}@{name}", keys::PROBE_NAME));
        let labels = &mut sim.node_mut(name).labels;
        *labels = self.labels.iter().map(|(key, value)| (key.into(), value.into())).collect();
        // The model takes this label for the pod of the probe.
        labels.insert(keys::PRESENT.into(), if has_probe { "true" } else { "false" }.into());
    }

    /// Returns the writes that make the API show the state of the model.
    fn writes(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        let (node, facts) = (&self.node.name, self.sim.node(&self.name));
        if *self.written.boot != *facts.boot_id {
            writes.push(Write::Boot(node.clone(), facts.boot_id.to_string()));
        }
        for (uid, pod) in self.pods.iter().filter(|(_, pod)| !pod.deleting) {
            let modelled = match &pod.kind {
                Kind::Own(facts) => self.sim.pods.get(&facts.name),
                Kind::Detector | Kind::OfDaemonSet(_) | Kind::Other => None,
            };
            let status = pod.status(modelled);
            if self.written.statuses.get(uid) != Some(&status) {
                writes.push(Write::Status(pod.id.clone(), Box::new(status)));
            }
        }
        let ended = self.pods.values().filter(|pod| pod.deleting && !self.written.ended.contains(&pod.id.uid));
        writes.extend(ended.map(|pod| Write::End(pod.id.clone())));
        if self.written.gpus != facts.allocatable {
            writes.push(Write::Gpus(node.clone(), facts.allocatable.clone()));
        }
        let mut staying = self.pods.values().filter(|pod| !pod.deleting);
        let detected =
            staying.any(|pod| matches!(pod.kind, Kind::Detector)) && !self.sim.machines[&self.name].gpus.is_empty();
        if detected && !self.written.detected {
            writes.push(Write::Detect(node.clone()));
        }
        let report = self.sim.has_working_probe(&self.name).then(|| self.report());
        if let Some(report) = report.filter(|report| self.written.report.as_ref() != Some(report)) {
            writes.push(Write::Report(node.clone(), self.seen.clone(), Box::new(report)));
        }
        writes
    }

    /// Returns the probe's report: that of the model, with what only NVML knows of each of these GPUs.
    fn report(&self) -> Report {
        let mut report = self.sim.machines[&self.name].clone();
        let is_answering = report.nvml.state == NvmlState::Answering;
        for (index, gpu) in report.gpus.iter_mut().enumerate() {
            gpu.uuid = is_answering.then(|| self.node.gpu_uuid(index));
            if !is_answering {
                gpu.health = GpuHealth::default();
            } else if let Some(health) = self.node.health.get(&index) {
                gpu.health = health.clone();
            }
        }
        report
    }

    /// Records that a write has succeeded.
    pub fn record(&mut self, write: Write) {
        match write {
            Write::Status(pod, status) => drop(self.written.statuses.insert(pod.uid, *status)),
            Write::End(pod) => drop(self.written.ended.insert(pod.uid)),
            Write::Boot(_, boot_id) => self.written.boot = boot_id,
            Write::Gpus(_, gpus) => self.written.gpus = gpus,
            Write::Detect(_) => self.written.detected = true,
            Write::Report(_, _, report) => self.written.report = Some(*report),
        }
    }
}

fn end(sim: &mut Sim, pod: &PlacedPod) {
    if let Kind::Own(facts) = &pod.kind {
        sim.end_pod(&facts.name);
    }
}
