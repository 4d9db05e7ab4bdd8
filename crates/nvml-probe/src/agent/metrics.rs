//! The probe's metrics: what the last look found of each GPU, and the probe's own activity. They come from the look
//! itself rather than from the report, so they stay current while the API server is unavailable.
//!
//! Labels are bounded: by the GPUs of one node, by names defined here and by NVML, and by a number of XIDs.

mod gpu;
mod pods;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use gpu_host::{
    nvml::supervisor::NvmlStatus,
    observe::{kernel_log::XidsByGpu, pci::PciGpu, pod_resources::Assignment},
};
use gpu_operator_common::version;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

use self::gpu::Gpus;
use crate::health::node::NodeHealth;

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct ResultLabel {
    result: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct StateLabel {
    state: &'static str,
}

#[derive(EncodeLabelSet, Clone, Debug, PartialEq, Eq, Hash)]
struct DriverLabels {
    version: String,
    cuda_version: Option<String>,
}

#[derive(Debug)]
pub struct Metrics {
    /// It is locked while series are replaced, so that no scrape misses one: an alert on it would start over.
    registry: Mutex<Registry>,
    gpus: Arc<Gpus>,
    looks: Family<ResultLabel, Counter>,
    writes: Family<ResultLabel, Counter>,
    nvml: Family<StateLabel, Gauge>,
    driver: Family<DriverLabels, Gauge>,
}

const DONE: ResultLabel = ResultLabel { result: "Done" };
const WRITTEN: ResultLabel = ResultLabel { result: "Written" };
const FAILED: ResultLabel = ResultLabel { result: "Failed" };

impl Metrics {
    /// Creates the metrics with the node's name as a label, because alerts need it regardless of how the probe is
    /// scraped.
    pub fn new(node: &str) -> Self {
        let label = ("node".into(), node.to_owned().into());
        let mut registry = Registry::with_prefix_and_labels("nvml_probe", std::iter::once(label));
        let metrics = Self {
            gpus: Arc::default(),
            looks: Family::default(),
            writes: Family::default(),
            nvml: Family::default(),
            driver: Family::default(),
            registry: Mutex::default(),
        };
        registry.register("build", "The version and the revision of the sources", Info::new(version::BUILD_LABELS));
        registry.register("looks", "Looks at the node by result", metrics.looks.clone());
        registry.register("report_writes", "Writes of the report by result", metrics.writes.clone());
        registry.register("nvml_state", "The state of NVML, as label. Always 1", metrics.nvml.clone());
        registry.register("driver_info", "The driver that answers", metrics.driver.clone());
        registry.register_collector(Box::new(Arc::clone(&metrics.gpus)));
        // Counters start at zero, so that the first failure is an increase.
        for result in [DONE, FAILED] {
            drop(metrics.looks.get_or_create(&result));
        }
        for result in [WRITTEN, FAILED] {
            drop(metrics.writes.get_or_create(&result));
        }
        Self { registry: Mutex::new(registry), ..metrics }
    }

    /// Shows the result of a look, the resulting health, and the XIDs since the previous look.
    pub fn show(&self, on_bus: &[PciGpu], nvml: &NvmlStatus, health: &NodeHealth, xids: &XidsByGpu) {
        let _no_scrape = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let inventory = nvml.inventory();
        // Outdated series must not linger.
        self.nvml.clear();
        self.nvml.get_or_create(&StateLabel { state: nvml.state().into() }).set(1);
        self.driver.clear();
        if let Some(inventory) = inventory {
            let labels = DriverLabels {
                version: inventory.driver_version.clone(),
                cuda_version: inventory.cuda_version.clone(),
            };
            self.driver.get_or_create(&labels).set(1);
        }
        self.gpus.show(on_bus, inventory);
        self.add_xids(health, xids);
    }

    /// Counts new XIDs, and shows the resulting health.
    pub fn add_xids(&self, health: &NodeHealth, xids: &XidsByGpu) {
        self.gpus.add_xids(health, xids);
    }

    /// Shows the containers that have GPUs, in place of those before.
    pub fn show_pods(&self, assignments: Vec<Assignment>) {
        let _no_scrape = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.gpus.show_pods(assignments);
    }

    pub fn count_look(&self, succeeded: bool) {
        self.looks.get_or_create(if succeeded { &DONE } else { &FAILED }).inc();
    }

    pub fn count_write(&self, succeeded: bool) {
        self.writes.get_or_create(if succeeded { &WRITTEN } else { &FAILED }).inc();
    }

    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
