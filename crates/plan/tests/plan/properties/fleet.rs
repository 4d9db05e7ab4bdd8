//! Random machines: models, operating systems, runtimes, host drivers, labels, and probes that report or do not report.

use gpu_operator_crd::NodeName;
use proptest::{option, prelude::*, sample::select};

use super::events::{startup_taint, taint_at_start};
use crate::sim::{Faults, Sim};

/// PCI ids of H100, T4, K80, P100, V100, both A100, L4 and B200, and of an unknown model.
const MODELS: [&str; 10] = ["2330", "1eb8", "102d", "15f9", "1db6", "20b0", "20b2", "27b8", "2901", "ffff"];

/// An operating system without a driver.
const PLAN_9: (&str, &str) = ("plan9", "4");

/// The label of every GKE node.
const GKE_NODE_POOL: &str = "cloud.google.com/gke-nodepool";

/// The labels on which policies select nodes, and those with which clouds, NFD and users announce GPUs.
const LABELS: [(&str, &[&str]); 9] = [
    (GKE_NODE_POOL, &["gpus"]),
    ("zone", &["a", "b"]),
    ("team", &["x", "y"]),
    ("cloud.google.com/gke-accelerator", &["nvidia-tesla-t4", "nvidia-tesla-k80", "nvidia-of-tomorrow"]),
    ("cloud.google.com/gke-accelerator-count", &["4"]),
    ("karpenter.k8s.aws/instance-gpu-name", &["t4", "l4"]),
    ("feature.node.kubernetes.io/pci-0302_10de.present", &["true"]),
    ("feature.node.kubernetes.io/pci-0302_10de_2330.present", &["true"]),
    (gpu_operator_crd::keys::MODEL_OVERRIDE, &["t4", "custom"]),
];

/// A machine that may join the fleet.
#[derive(Clone, Debug)]
pub struct Machine {
    gpus: Vec<&'static str>,
    os: (&'static str, &'static str),
    arch: &'static str,
    runtime: &'static str,
    /// `None` if the host has no driver, otherwise whether the driver is loaded.
    host_driver: Option<bool>,
    labels: Vec<(&'static str, &'static str)>,
    /// The key and the effect of the startup taint with which it registers.
    startup_taint: Option<(&'static str, &'static str)>,
    probe: Probe,
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    Reports,
    Mute,
    Absent,
}

impl Machine {
    pub fn join(&self, sim: &mut Sim, name: &NodeName) {
        sim.join_silent(name, &self.gpus);
        let report = sim.report(name);
        (report.os.id, report.os.version_id) = (self.os.0.into(), self.os.1.into());
        let (no_probe, mute_probe) = (matches!(self.probe, Probe::Absent), matches!(self.probe, Probe::Mute));
        if no_probe || mute_probe {
            sim.faults.insert(name.clone(), Faults { no_probe, mute_probe, ..Faults::default() });
        }
        if let Some(loaded) = self.host_driver.filter(|_| !self.gpus.is_empty()) {
            sim.host_driver(name, "550.1.1", loaded);
        }
        let node = sim.node_mut(name);
        (node.arch, node.runtime) = (self.arch.into(), self.runtime.into());
        if let Some((key, effect)) = self.startup_taint {
            taint_at_start(node, key, effect);
        }
        for (key, value) in &self.labels {
            sim.label(name, key, Some(value));
        }
    }

    /// Returns whether it can fail for good: its host's driver may never work, there is no driver for its operating system, no policy names
    /// its startup taint, or GPUs with a driver from Google's installers have to be divided.
    pub fn may_fail(&self) -> bool {
        let is_of_google = self.os.0 == "cos" || self.labels.iter().any(|(key, _)| *key == GKE_NODE_POOL);
        self.host_driver.is_some() || self.os == PLAN_9 || self.startup_taint.is_some() || is_of_google
    }

    /// Returns the machine without a host driver.
    pub fn bare(self) -> Self {
        Self { host_driver: None, ..self }
    }

    /// Returns the machine without labels that may name another model than that of its GPUs.
    pub fn named_by_its_gpus(mut self) -> Self {
        self.labels.retain(|(key, _)| [GKE_NODE_POOL, "zone", "team"].contains(key));
        self
    }

    /// Returns the machine with a probe that reports at once.
    pub fn reporting(self) -> Self {
        Self { probe: Probe::Reports, ..self }
    }
}

fn gpus() -> BoxedStrategy<Vec<&'static str>> {
    // Most machines have the same model, so that pools have several nodes.
    let common = (1..9_usize).prop_map(|count| vec![MODELS[0]; count]);
    let alike = (1..9_usize, select(&MODELS[..])).prop_map(|(count, model)| vec![model; count]);
    prop_oneof![8 => common, 6 => alike, 2 => prop::collection::vec(select(&MODELS[..]), 2..4), 1 => Just(vec![])]
        .boxed()
}

/// Returns a label that does not belong to this operator, and its value.
pub fn label() -> BoxedStrategy<(&'static str, &'static str)> {
    select(&LABELS[..]).prop_flat_map(|(key, values)| (Just(key), select(values))).boxed()
}

pub fn machine() -> BoxedStrategy<Machine> {
    let common = ("ubuntu", "22.04");
    let os = prop_oneof![6 => Just(common), 2 => Just(("ubuntu", "24.04")), 1 => Just(("rhel", "9.4")), 1 => Just(("cos", "117")), 1 => Just(PLAN_9)];
    let arch = prop_oneof![4 => Just("amd64"), 1 => Just("arm64")];
    let runtime = prop_oneof![
        6 => Just("containerd://2.1.4"),
        1 => Just("cri-o://1.34.1"),
        3 => Just("containerd://1.7.27"),
    ];
    let host_driver = prop_oneof![8 => Just(None), 1 => Just(Some(true)), 1 => Just(Some(false))];
    let probe = prop_oneof![12 => Just(Probe::Reports), 1 => Just(Probe::Mute), 1 => Just(Probe::Absent)];
    let labels = prop::collection::vec(label(), 0..3);
    let startup_taint = option::weighted(0.3, startup_taint());
    (gpus(), os, arch, runtime, host_driver, labels, startup_taint, probe)
        .prop_map(|(gpus, os, arch, runtime, host_driver, labels, startup_taint, probe)| Machine {
            gpus,
            os,
            arch,
            runtime,
            host_driver,
            labels,
            startup_taint,
            probe,
        })
        .boxed()
}
