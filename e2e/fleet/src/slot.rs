//! One node of the agent: its machine, the objects that the API shows for it, and what has been written.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::Report;
use k8s_openapi::{api::core::v1::PodStatus, jiff::Timestamp};
use nvml_probe::report::gpu_node::GpuNodeView;

use super::{
    machine::{Inputs, Machine},
    node::FleetNode,
    pod::PlacedPod,
    published::Gpus,
    writes::Write,
};

/// One node.
pub(super) struct Slot {
    pub node: FleetNode,
    pub machine: Machine,
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
    statuses: BTreeMap<String, PodStatus>,
    ended: BTreeSet<String>,
    reboots: u32,
    gpus: Option<Gpus>,
    detected: bool,
    report: Option<Report>,
}

impl Slot {
    pub fn new(node: FleetNode, pods: BTreeMap<String, PlacedPod>) -> Self {
        Self {
            machine: Machine::new(&node),
            node,
            present: false,
            alive: true,
            labels: BTreeMap::new(),
            pods,
            seen: GpuNodeView::Absent,
            written: LastWritten::default(),
            turn: Turn::None,
            timer: None,
        }
    }

    /// Makes the next turn write statuses and report again: others may have written while the node was away.
    pub fn forget_written(&mut self) {
        let LastWritten { reboots, gpus, .. } = self.written;
        self.written = LastWritten { reboots, gpus, ..LastWritten::default() };
    }

    /// Makes the next turn write the report again, because the GpuNode is gone.
    pub fn forget_report(&mut self) {
        self.written.report = None;
        self.written.detected = false;
    }

    /// Returns the number of GPUs that was last written to the Node.
    pub fn gpus(&self) -> Option<u32> {
        self.written.gpus.map(|gpus| gpus.count)
    }

    pub fn is_idle(&self) -> bool {
        self.turn == Turn::None && self.timer.is_none()
    }

    /// Lets the machine have its turn. Returns the writes, and when the next turn comes without a change.
    pub fn take_turn(&mut self, now: Timestamp) -> (Vec<Write>, Option<Timestamp>) {
        let placed: Vec<PlacedPod> = self.pods.values().cloned().collect();
        let requests = self.seen.requests().unwrap_or_default();
        let outcome = self.machine.turn(&Inputs { node: &self.node, placed: &placed, requests, now });
        let mut writes = Vec::new();
        let reboots = self.machine.boots;
        if self.written.reboots != reboots {
            writes.push(Write::Boot(self.node.name.clone(), reboots, self.node.boot_id(reboots)));
        }
        for (uid, status) in outcome.statuses {
            if self.written.statuses.get(&uid) != Some(&status) {
                writes.push(Write::Status(self.pods[&uid].clone(), Box::new(status)));
            }
        }
        for uid in outcome.ended.into_iter().filter(|uid| !self.written.ended.contains(uid)) {
            writes.push(Write::End(self.pods[&uid].clone()));
        }
        if let Some(gpus) = outcome.gpus.filter(|gpus| self.written.gpus != Some(*gpus)) {
            writes.push(Write::Gpus(self.node.name.clone(), gpus));
        }
        if outcome.detected && !self.written.detected {
            writes.push(Write::Detect(self.node.name.clone()));
        }
        if let Some(report) = outcome.report.filter(|report| self.written.report.as_ref() != Some(report)) {
            writes.push(Write::Report(self.node.name.clone(), self.seen.clone(), Box::new(report)));
        }
        (writes, outcome.next)
    }

    /// Records that a write has succeeded.
    pub fn record(&mut self, write: Write) {
        match write {
            Write::Status(pod, status) => drop(self.written.statuses.insert(pod.uid, *status)),
            Write::End(pod) => drop(self.written.ended.insert(pod.uid)),
            Write::Boot(_, reboots, _) => self.written.reboots = reboots,
            Write::Gpus(_, gpus) => self.written.gpus = Some(gpus),
            Write::Detect(_) => self.written.detected = true,
            Write::Report(_, _, report) => self.written.report = Some(*report),
        }
    }

    pub fn remove_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.written.statuses.remove(uid);
        self.written.ended.remove(uid);
    }
}
