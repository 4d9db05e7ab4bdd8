//! Machines: hardware, host drivers, and how they misbehave.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, Report,
    report::{Gpu, InstalledDriver, NvmlState, OsRelease},
};
use gpu_operator_plan::world::{ContainerState, Exit, NodeFacts, Role};

use super::{Sim, node::end_test};

pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";
pub const HOST_ROOT: &str = "/";

/// How a node misbehaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Driver images of these versions, or tags, cannot be pulled here.
    pub missing_images: BTreeSet<String>,
    /// The driver's container crashes with these words.
    pub driver_crash: Option<String>,
    /// The driver's container loads this version, whatever it is asked for.
    pub loads_instead: Option<String>,
    /// The container runtime does not come back from the toolkit's restart, which ends with these words.
    pub restart: Option<String>,
    /// Pods of the stages take so many seconds each, from when what they wait for is there.
    pub slow: i64,
    /// The API server rejects pods of every stage, with this message.
    pub pods_forbidden: Option<&'static str>,
    /// The plugin runs but kubelet publishes only so many GPUs.
    pub publishes: Option<u32>,
    /// The probe has no pod here.
    pub no_probe: bool,
    /// The probe's pod runs but reports nothing.
    pub mute_probe: bool,
    /// What becomes of a test on the node.
    pub test: Test,
    /// What becomes of dividing its GPUs.
    pub division: Division,
}

/// What becomes of dividing a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Division {
    /// They are divided.
    #[default]
    Done,
    /// They are not, with these words.
    Fails(String),
    /// They are once the probe has released them.
    WaitsForProbe,
}

/// What becomes of a test on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Test {
    /// It passes.
    #[default]
    Passes,
    /// It ends with these words.
    Fails(String),
    /// It comes to no end.
    Hangs,
    /// Other pods have all GPUs, so that the scheduler finds no place for it.
    FindsNoPlace,
}

impl Faults {
    /// Whether the probe reports.
    pub fn tells(&self) -> bool {
        !self.no_probe && !self.mute_probe
    }
}

/// The newest Ubuntu that GPUs have a driver's image for, up to 22.04: that of branch 470 ends with 20.04.
fn ubuntu(device_ids: &[&str]) -> &'static str {
    if device_ids.contains(&"102d") { "20.04" } else { "22.04" }
}

impl Sim {
    /// A node with GPUs of one model, that has reported.
    pub fn join(&mut self, name: &str, device_id: &str, count: u32) {
        self.join_mixed(name, &vec![device_id; count as usize]);
    }

    /// A node with a GPU of each PCI device id, that has reported.
    pub fn join_mixed(&mut self, name: &str, device_ids: &[&str]) {
        self.join_silent(name, device_ids);
        self.tell(name);
    }

    /// A node with GPUs whose probe is yet to report.
    pub fn join_silent(&mut self, name: &str, device_ids: &[&str]) {
        self.join_plain(name);
        let gpus = device_ids.iter().enumerate().map(|(index, device_id)| Gpu {
            pci_address: format!("0000:{:02x}:00.0", index + 6),
            device_id: (*device_id).into(),
            ..Gpu::default()
        });
        let machine = Report {
            boot_id: "boot-1".into(),
            os: OsRelease { id: "ubuntu".into(), version_id: ubuntu(device_ids).into() },
            gpus: gpus.collect(),
            ..Report::default()
        };
        self.machines.insert(name.into(), machine);
    }

    /// A node without GPUs.
    pub fn join_plain(&mut self, name: &str) {
        let labels = BTreeMap::from([("kubernetes.io/hostname".into(), name.into())]);
        let node = NodeFacts {
            name: name.into(),
            uid: format!("uid-{name}-{}", self.now),
            ready: true,
            created: Some(self.now),
            arch: "amd64".into(),
            runtime: "containerd://2.1.4".into(),
            kernel: "6.8.0-60-generic".into(),
            labels: labels.clone(),
            ..NodeFacts::default()
        };
        self.user_labels.insert(name.into(), labels);
        self.nodes.insert(name.into(), node);
    }

    /// Sets the state of a machine, which the probe reports from now on.
    pub fn report(&mut self, node: &str) -> &mut Report {
        self.machines.entry(node.into()).or_default()
    }

    /// A host driver of this version, loaded now and on every start, or only installed.
    pub fn host_driver(&mut self, node: &str, version: &str, loaded: bool) {
        let driver = &mut self.report(node).driver;
        driver.installed.push(InstalledDriver {
            root: HOST_ROOT.into(),
            version: version.into(),
            ..InstalledDriver::default()
        });
        if loaded {
            driver.loaded = Some(version.into());
            self.boots_with.insert(node.into(), version.into());
        }
    }

    /// The machine reboots, and the components of its host start; GPUs may be missing.
    pub fn reboot(&mut self, node: &str, lost: usize) {
        let boots = self.now.to_string();
        let Some(machine) = self.machines.get_mut(node) else { return };
        machine.boot_id = boots;
        machine.gpus.truncate(machine.gpus.len().saturating_sub(lost));
        machine.nvml.state = NvmlState::Absent;
        machine.driver.installed.retain(|installed| installed.root != CONTAINER_ROOT);
        machine.driver.container_ran = false;
        machine.driver.loaded = self.boots_with.get(node).cloned();
        self.gpu_pods.remove(node);
        for pod in self.pods.values_mut().filter(|pod| pod.node == node) {
            if pod.role == Role::Validation {
                let exit = Exit { code: 255, message: String::new() };
                end_test(pod, Some(exit));
                continue;
            }
            for container in &mut pod.containers {
                container.state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
                container.ready = false;
            }
        }
        let facts = self.nodes.get_mut(node).expect("a node");
        facts.allocatable = facts.allocatable.withdrawn();
    }

    /// The probe writes what it sees, if it works; the GpuNode is its to make where there are GPUs.
    pub(super) fn tell(&mut self, node: &str) {
        let works = self.faults.get(node).is_none_or(Faults::tells) && self.nodes[node].ready;
        let Some(machine) = self.machines.get(node).filter(|_| works) else { return };
        if !machine.gpus.is_empty() {
            self.gpu_nodes.entry(node.into()).or_insert_with(|| GpuNode::new(node, GpuNodeSpec::default()));
        }
        if let Some(gpu_node) = self.gpu_nodes.get(node) {
            let told = self.told(node, gpu_node);
            self.gpu_nodes.insert(node.into(), told);
        }
    }

    /// A GpuNode with what its probe tells now.
    pub fn told(&self, node: &str, gpu_node: &GpuNode) -> GpuNode {
        let works =
            self.faults.get(node).is_none_or(Faults::tells) && self.nodes.get(node).is_some_and(|node| node.ready);
        let mut gpu_node = gpu_node.clone();
        if let Some(machine) = self.machines.get(node).filter(|_| works) {
            gpu_node.status.get_or_insert_with(GpuNodeStatus::default).report = Some(machine.clone());
        }
        gpu_node
    }
}
