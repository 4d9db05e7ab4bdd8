//! The readings of GPUs under the names, labels and units of dcgm-exporter, on which dashboards and alerts rely. Pure: GPUs in, text out.
//!
//! Only readings that mean the same are served, and each only of a GPU that has it.

use std::fmt;

use gpu_host::nvml::readings::Readings;
use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::pods::Container;

const MIB: u64 = 1024 * 1024;

/// A GPU that NVML has reported.
#[derive(Debug)]
pub(super) struct Gpu<'a> {
    /// PCI address as sysfs writes it.
    pub address: &'a str,
    pub uuid: &'a str,
    pub model: &'a str,
    pub node: &'a str,
    /// The version of the driver that reported it last.
    pub driver_version: &'a str,
    pub index: Option<u32>,
    /// The number in `/dev/nvidia<number>`.
    pub minor: Option<u32>,
    /// `None` if it could not be read.
    pub readings: Option<&'a Readings>,
    /// The last XID since the probe started.
    pub last_xid: Option<u16>,
    /// The containers that have it. Each has its own series.
    pub containers: Vec<Container<'a>>,
}

/// A value as DCGM writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Whole(i64),
    Real(f64),
}

struct Field {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    value: fn(&Gpu<'_>) -> Option<Value>,
}

const fn gauge(name: &'static str, help: &'static str, value: fn(&Gpu<'_>) -> Option<Value>) -> Field {
    Field { name, kind: MetricType::Gauge, help, value }
}

/// Returns a field that only grows. In OpenMetrics the samples of a counter end in `_total`, which DCGM's names do not.
/// Samples of type unknown have no suffix, and Prometheus stores the same samples for every type.
const fn growing(name: &'static str, help: &'static str, value: fn(&Gpu<'_>) -> Option<Value>) -> Field {
    Field { kind: MetricType::Unknown, ..gauge(name, help, value) }
}

const FIELDS: &[Field] = &[
    gauge("DCGM_FI_DEV_SM_CLOCK", "Clock of the streaming multiprocessors, in MHz.", |gpu| {
        whole(gpu.readings?.sm_clock_mhz)
    }),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory, in MHz.", |gpu| whole(gpu.readings?.memory_clock_mhz)),
    gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU, in degrees Celsius.", |gpu| {
        whole(gpu.readings?.thermal.gpu)
    }),
    gauge("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of the memory, in degrees Celsius.", |gpu| {
        whole(gpu.readings?.thermal.memory)
    }),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power drawn by the GPU, in watts.", |gpu| {
        gpu.readings?.power_milliwatts.map(|power| Value::Real(f64::from(power) / 1e3))
    }),
    growing("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used since the GPU was started, in mJ.", |gpu| {
        whole(gpu.readings?.energy_millijoules)
    }),
    growing("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Packets repeated on the PCIe link.", |gpu| {
        whole(gpu.readings?.pcie.replays)
    }),
    gauge("DCGM_FI_DEV_GPU_UTIL", "Share of time in which a kernel was running, in percent.", |gpu| {
        whole(gpu.readings?.gpu_utilization_percent)
    }),
    gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Share of time in which memory was accessed, in percent.", |gpu| {
        whole(gpu.readings?.memory_utilization_percent)
    }),
    gauge("DCGM_FI_DEV_XID_ERRORS", "The last XID since the probe started.", |gpu| whole(gpu.last_xid)),
    gauge("DCGM_FI_DEV_FB_FREE", "Free memory, in MiB.", |gpu| mib(gpu.readings?.memory_free_bytes)),
    gauge("DCGM_FI_DEV_FB_USED", "Memory in use, in MiB.", |gpu| mib(gpu.readings?.memory_used_bytes)),
    gauge("DCGM_FI_DEV_FB_RESERVED", "Memory reserved by the driver, in MiB.", |gpu| {
        mib(gpu.readings?.memory_reserved_bytes)
    }),
    growing("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Memory rows replaced for uncorrectable errors.", |gpu| {
        whole(Some(gpu.readings?.rows?.uncorrectable))
    }),
    growing("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Memory rows replaced for correctable errors.", |gpu| {
        whole(Some(gpu.readings?.rows?.correctable))
    }),
    gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a memory row could not be replaced: 1 or 0.", |gpu| {
        whole(Some(gpu.readings?.rows?.failed))
    }),
];

pub(super) fn encode(gpus: &[Gpu<'_>], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let series: Vec<Vec<_>> = gpus.iter().map(Gpu::series).collect();
    for field in FIELDS {
        let values = gpus.iter().zip(&series).filter_map(|(gpu, series)| Some(((field.value)(gpu)?, series)));
        let mut samples = values.flat_map(|(value, series)| series.iter().map(move |of| (of, value))).peekable();
        if samples.peek().is_none() {
            continue;
        }
        let mut metric = encoder.encode_descriptor(field.name, field.help, None, field.kind)?;
        for (labels, value) in samples {
            let sample = metric.encode_family(labels)?;
            match value {
                Value::Whole(value) => ConstGauge::new(value).encode(sample)?,
                Value::Real(value) => ConstGauge::new(value).encode(sample)?,
            }
        }
    }
    Ok(())
}

type Labels = Vec<(&'static str, String)>;

impl Gpu<'_> {
    /// Returns the labels of each series: one for each container, or one without a container.
    fn series(&self) -> Vec<Labels> {
        let of = |container: &Container<'_>| {
            let Container { namespace, pod, name } = container;
            let own = [("container", name), ("namespace", namespace), ("pod", pod)];
            let own = own.map(|(label, value)| (label, (*value).to_owned()));
            self.labels().into_iter().chain(own).collect()
        };
        if self.containers.is_empty() { vec![self.labels()] } else { self.containers.iter().map(of).collect() }
    }

    fn labels(&self) -> Labels {
        let labels = [
            ("gpu", self.index.map(|index| index.to_string())),
            ("UUID", Some(self.uuid.to_owned())),
            ("pci_bus_id", Some(bus_id(self.address))),
            ("device", self.minor.map(|minor| format!("nvidia{minor}"))),
            ("modelName", Some(self.model.to_owned())),
            ("hostname", Some(self.node.to_owned())),
            ("DCGM_FI_DRIVER_VERSION", Some(self.driver_version.to_owned())),
        ];
        labels.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Returns a PCI address as NVML writes it: the domain with eight digits, and letters in upper case.
fn bus_id(address: &str) -> String {
    let (domain, rest) = address.split_once(':').unwrap_or(("", address));
    format!("{domain:0>8}:{rest}").to_uppercase()
}

/// Returns a number, unless it is too large to be one.
fn whole(value: Option<impl TryInto<i64>>) -> Option<Value> {
    value?.try_into().ok().map(Value::Whole)
}

fn mib(bytes: Option<u64>) -> Option<Value> {
    whole(Some(bytes? / MIB))
}
