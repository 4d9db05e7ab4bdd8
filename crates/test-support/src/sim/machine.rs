//! Machines: hardware, host drivers, and faults.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName, Report, keys,
    report::{Gpu, InstalledDriver, NvmlState, OsRelease},
};
use gpu_operator_plan::world::{Exit, NodeFacts, Role};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time},
    jiff::Timestamp,
};

use super::{
    Sim,
    faults::{Faults, Program},
    pod::end_test,
    pod_json::rebooted,
};

pub(super) const CONTAINER_ROOT: &str = "/run/nvidia/driver";
pub(super) const HOST_ROOT: &str = "/";

/// Returns the newest Ubuntu version up to 22.04 that has a driver image for GPUs: branch 470 has none after 20.04.
fn ubuntu(device_ids: &[&str]) -> &'static str {
    if device_ids.contains(&"102d") { "20.04" } else { "22.04" }
}

/// Returns a GpuNode as the API server creates it.
pub fn new_gpu_node(name: &NodeName, now: Timestamp) -> GpuNode {
    let mut gpu_node = GpuNode::new(name.as_str(), GpuNodeSpec::default());
    gpu_node.metadata.generation = Some(1);
    gpu_node.metadata.uid = Some(format!("uid-gpu-node-{name}-{now}"));
    gpu_node.metadata.creation_timestamp = Some(Time(now));
    gpu_node
}

impl Sim {
    /// Adds a node with GPUs of one model that has reported.
    pub fn join(&mut self, name: impl Into<NodeName>, device_id: &str, count: u32) {
        self.join_mixed(name, &vec![device_id; count as usize]);
    }

    /// Adds a node with a GPU of each PCI device id that has reported.
    pub fn join_mixed(&mut self, name: impl Into<NodeName>, device_ids: &[&str]) {
        let name = name.into();
        self.join_silent(&name, device_ids);
        self.node_mut(&name).labels.insert(keys::PRESENT.into(), "true".into());
        self.write_report(&name);
    }

    /// Adds a node with GPUs whose probe has not reported yet.
    pub fn join_silent(&mut self, name: impl Into<NodeName>, device_ids: &[&str]) {
        let name = name.into();
        self.join_plain(&name);
        self.report(&name).os.version_id = ubuntu(device_ids).into();
        self.plug(name, device_ids);
    }

    /// Replaces the GPUs of a machine by one of each PCI device id. All of them support MIG.
    pub fn plug(&mut self, node: impl Into<NodeName>, device_ids: &[&str]) {
        let gpus = device_ids.iter().enumerate().map(|(index, device_id)| Gpu {
            pci_address: format!("0000:{:02x}:00.0", index + 6),
            device_id: (*device_id).into(),
            mig_capable: Some(true),
            ..Gpu::default()
        });
        self.report(node).gpus = gpus.collect();
    }

    /// Adds a node without GPUs.
    pub fn join_plain(&mut self, name: impl Into<NodeName>) {
        let name = name.into();
        let labels = BTreeMap::from([("kubernetes.io/hostname".into(), name.as_str().into())]);
        let node = NodeFacts {
            name: name.clone(),
            uid: format!("uid-{name}-{}", self.now),
            ready: true,
            created: Some(self.now.into()),
            boot_id: format!("boot-{name}-{}", self.now).into(),
            arch: "amd64".into(),
            runtime: "containerd://2.1.4".into(),
            kernel: "6.8.0-60-generic".into(),
            labels: labels.clone(),
            ..NodeFacts::default()
        };
        let machine = Report {
            boot_id: node.boot_id.to_string(),
            os: OsRelease { id: "ubuntu".into(), version_id: ubuntu(&[]).into() },
            ..Report::default()
        };
        self.machines.insert(name.clone(), machine);
        self.user_labels.insert(name.clone(), labels);
        self.nodes.insert(name, node);
    }

    /// Returns the state of a machine, which the probe reports, so that a test can change it.
    pub fn report(&mut self, node: impl Into<NodeName>) -> &mut Report {
        self.machines.entry(node.into()).or_default()
    }

    /// Installs a host driver of this version, and loads it now and on every start if `loaded`.
    pub fn host_driver(&mut self, node: impl Into<NodeName>, version: &str, loaded: bool) {
        self.host_driver_in(HOST_ROOT, node, version, loaded);
    }

    /// As [`Self::host_driver`], in a directory of the host.
    pub fn host_driver_in(&mut self, root: &str, node: impl Into<NodeName>, version: &str, loaded: bool) {
        let node = node.into();
        let driver = &mut self.report(&node).driver;
        driver.installed.push(InstalledDriver {
            root: root.into(),
            version: version.into(),
            ..InstalledDriver::default()
        });
        if loaded {
            driver.loaded = Some(version.into());
            self.boots_with.insert(node, version.into());
        }
    }

    /// Replaces the driver of the host's packages, if it has one, while the earlier module stays loaded.
    pub fn upgrade_packages(&mut self, node: &NodeName) {
        let installed = &mut self.report(node).driver.installed;
        if let Some(found) = installed.iter_mut().find(|found| found.root == HOST_ROOT) {
            found.version = "550.2.2".into();
            self.boots_with.insert(node.clone(), "550.2.2".into());
        }
    }

    /// Returns the programs that use the driver of a node without a GPU pod.
    pub fn programs_on(&self, node: &NodeName) -> impl Iterator<Item = &Program> {
        // The operator may ask for a node that has been deleted.
        let paused = self.nodes.get(node).is_some_and(|node| node.labels.contains_key(keys::CLIENTS));
        self.programs.get(node).into_iter().flatten().filter(move |program| !paused || !program.gives_way())
    }

    /// Returns whether GPU pods or other programs use the driver of a node.
    pub fn is_used(&self, node: &NodeName) -> bool {
        self.gpu_pods.get(node).is_some_and(|pods| !pods.is_empty()) || self.programs_on(node).next().is_some()
    }

    /// Binds the last of a machine's GPUs to vfio-pci, and those that were bound to it before to NVIDIA's driver.
    pub fn pass_through(&mut self, node: impl Into<NodeName>, count: usize) {
        let report = self.report(node);
        let device_id = report.gpus.first().map(|gpu| gpu.device_id.clone()).unwrap_or_default();
        let back = report.passed_through_at.drain(..);
        let back = back.map(|pci_address| Gpu {
            pci_address,
            device_id: device_id.clone(),
            mig_capable: Some(true),
            ..Gpu::default()
        });
        report.gpus.extend(back);
        let bound = report.gpus.split_off(report.gpus.len().saturating_sub(count));
        report.passed_through = u32::try_from(bound.len()).expect("few GPUs");
        report.passed_through_at = bound.into_iter().map(|gpu| gpu.pci_address).collect();
    }

    /// Lets a machine load this version on every start.
    pub fn boots_with(&mut self, node: impl Into<NodeName>, version: &str) {
        self.boots_with.insert(node.into(), version.into());
    }

    /// Reboots a machine, with `lost` GPUs missing afterwards. Kubelet publishes the new boot at once unless it is late.
    pub fn reboot(&mut self, node: impl Into<NodeName>, lost: usize) {
        let node = node.into();
        let Some(machine) = self.machines.get_mut(&node) else { return };
        machine.boot_id.push('\'');
        let boot_id = machine.boot_id.as_str().into();
        machine.gpus.truncate(machine.gpus.len().saturating_sub(lost));
        machine.nvml.state = NvmlState::Absent;
        machine.driver.installed.retain(|installed| installed.root != CONTAINER_ROOT);
        machine.driver.container_ran = false;
        machine.driver.config_digest = None;
        machine.driver.loaded = self.boots_with.get(&node).cloned();
        self.gpu_pods.remove(&node);
        self.programs.remove(&node);
        for pod in self.pods.values_mut().filter(|pod| pod.node == node) {
            if pod.role == Role::Preflight {
                continue;
            }
            if pod.role == Role::Validation {
                let exit = Exit { code: 255, message: String::new() };
                end_test(pod, Some(exit));
                continue;
            }
            *pod = rebooted(pod, self.now);
        }
        if self.faults.get(&node).is_some_and(|faults| faults.late_kubelet) {
            return;
        }
        self.wipe_slices(&node);
        let facts = self.node_mut(node);
        facts.boot_id = boot_id;
        facts.allocatable = facts.allocatable.withdrawn();
    }

    /// Lets the detector create the GpuNode of a machine with GPUs.
    pub fn detect(&mut self, node: &NodeName) {
        if self.machines.get(node).is_some_and(|machine| !machine.gpus.is_empty()) {
            self.gpu_nodes.entry(node.clone()).or_insert_with(|| new_gpu_node(node, self.now));
        }
    }

    /// Returns whether the probe of a node works, if the node is ready.
    pub fn has_working_probe(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(NodeFacts::is_labelled_present)
            && self.faults.get(node).is_none_or(Faults::probe_reports)
    }

    /// Lets the probe, if it runs and works, write its report, and create the GpuNode if the machine has GPUs.
    pub fn write_report(&mut self, node: &NodeName) {
        let works = self.nodes[node].ready && self.has_working_probe(node);
        let Some(machine) = self.machines.get(node).filter(|_| works) else { return };
        if !machine.gpus.is_empty() {
            self.gpu_nodes.entry(node.clone()).or_insert_with(|| new_gpu_node(node, self.now));
        }
        if let Some(gpu_node) = self.gpu_nodes.get(node) {
            let reported = self.with_report(node, gpu_node);
            self.gpu_nodes.insert(node.clone(), reported);
        }
    }

    /// Returns a GpuNode with the current report of its probe, if the probe works.
    pub fn with_report(&self, node: &NodeName, gpu_node: &GpuNode) -> GpuNode {
        let works = self.has_working_probe(node) && self.nodes.get(node).is_some_and(|node| node.ready);
        let mut gpu_node = gpu_node.clone();
        if let Some(machine) = self.machines.get(node).filter(|_| works) {
            let status = gpu_node.status.get_or_insert_with(GpuNodeStatus::default);
            if status.report.as_ref() != Some(machine) {
                status.report = Some(machine.clone());
                let entry = ManagedFieldsEntry {
                    manager: Some(keys::PROBE_MANAGER.into()),
                    subresource: Some("status".into()),
                    time: Some(Time(self.now)),
                    ..ManagedFieldsEntry::default()
                };
                gpu_node.metadata.managed_fields = Some(vec![entry]);
            }
        }
        gpu_node
    }
}
