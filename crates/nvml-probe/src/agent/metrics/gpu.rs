//! The metrics of single GPUs, built from the last look at each scrape: removed GPUs do not linger, and values that a
//! card does not provide are absent.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use gpu_host::{
    nvml::{
        protocol::{Inventory, MigId},
        readings::{Pcie, Readings, Thermal, clocks},
    },
    observe::{
        kernel_log::{XidSource, XidsByGpu},
        pci::PciGpu,
        pod_resources::Assignment,
    },
};
use gpu_operator_crd::health::{Cause, GpuHealth};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use super::pods;
use crate::health::node::NodeHealth;

/// The most numbers of XIDs that are counted separately for one GPU.
const MAX_XIDS: usize = 64;

/// The GPUs of the node by PCI address, as of the last look.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    gpus: Mutex<BTreeMap<String, GpuSeries>>,
    /// What kubelet has assigned to containers.
    assignments: Mutex<Vec<Assignment>>,
}

#[derive(Debug, Default)]
struct GpuSeries {
    /// UUID and model are kept while NVML does not report them: a lost GPU remains the same series.
    uuid: String,
    model: String,
    /// As the UUID, the minor and the MIG devices are kept: their containers still have them.
    minor: Option<u32>,
    mig: Vec<MigId>,
    /// `None` if it could not be read.
    readings: Option<Readings>,
    health: GpuHealth,
    /// How often each XID occurred since the probe started; those beyond the bound are counted without a number.
    xids: BTreeMap<Option<u16>, u64>,
}

impl Gpus {
    pub(super) fn show(&self, on_bus: &[PciGpu], inventory: Option<&Inventory>) {
        let mut gpus = self.lock();
        gpus.retain(|address, _| on_bus.iter().any(|gpu| gpu.address == *address));
        for PciGpu { address, device_id, .. } in on_bus {
            let gpu = gpus.entry(address.clone()).or_default();
            let reported = inventory.and_then(|all| all.gpus.iter().find(|gpu| gpu.pci_address == *address));
            gpu.readings = reported.map(|reported| reported.readings.clone());
            let (uuid, model) =
                reported.map(|reported| (reported.uuid.as_deref(), reported.name.as_deref())).unwrap_or_default();
            if let Some(reported) = reported {
                gpu.minor = reported.minor;
                gpu.mig.clone_from(&reported.mig_ids);
            }
            if let Some(uuid) = uuid.filter(|uuid| *uuid != gpu.uuid) {
                // Another card at the same address starts over.
                if !gpu.uuid.is_empty() {
                    gpu.xids.clear();
                }
                uuid.clone_into(&mut gpu.uuid);
            }
            match model {
                Some(model) => model.clone_into(&mut gpu.model),
                None if gpu.model.is_empty() => gpu.model = format!("10de:{device_id}"),
                None => {}
            }
        }
    }

    /// Replaces what kubelet has assigned to containers.
    pub(super) fn show_pods(&self, assignments: Vec<Assignment>) {
        *self.assignments() = assignments;
    }

    pub(super) fn add_xids(&self, health: &NodeHealth, xids: &XidsByGpu) {
        for (address, gpu) in &mut *self.lock() {
            gpu.health = health.of(address);
            // Earlier XIDs were counted by the previous process, or by none.
            let came = xids
                .get(address)
                .into_iter()
                .flatten()
                .filter(|xid| !matches!(xid.source, XidSource::EarlierKernelLog(_)));
            for xid in came {
                let is_told_apart = gpu.xids.len() < MAX_XIDS || gpu.xids.contains_key(&Some(xid.xid));
                let count = gpu.xids.entry(is_told_apart.then_some(xid.xid)).or_default();
                *count = count.saturating_add(xid.count);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, GpuSeries>> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn assignments(&self) -> MutexGuard<'_, Vec<Assignment>> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn encode_pods(&self, gpus: &BTreeMap<String, GpuSeries>, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let assignments = self.assignments();
        let mut samples = gpus.iter().flat_map(|(address, gpu)| {
            let containers = pods::containers(gpu.ids(), &assignments).into_iter();
            containers.map(move |labels| (gpu.labels(address, labels), 1.0))
        });
        let Some(first) = samples.next() else { return Ok(()) };
        let help = "A container to which kubelet has assigned the GPU or one of its MIG devices. Always 1.";
        let mut metric = encoder.encode_descriptor("gpu_pod_info", help, None, MetricType::Gauge)?;
        for (labels, value) in std::iter::once(first).chain(samples) {
            ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Gpus {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let gpus = self.lock();
        for family in FAMILIES {
            let samples = gpus.iter().flat_map(|(address, gpu)| {
                let own = (family.samples)(gpu).into_iter();
                own.map(move |(labels, value)| (gpu.labels(address, labels), value))
            });
            let mut samples = samples.peekable();
            if samples.peek().is_none() {
                continue;
            }
            let unit = family.unit.map(|unit| Unit::Other(unit.to_owned()));
            let mut metric = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), family.kind)?;
            for (labels, value) in samples {
                let sample = metric.encode_family(&labels)?;
                match family.kind {
                    MetricType::Counter => ConstCounter::new(value).encode(sample)?,
                    _ => ConstGauge::new(value).encode(sample)?,
                }
            }
        }
        self.encode_pods(&gpus, &mut encoder)
    }
}

type Labels = Vec<(&'static str, String)>;

impl GpuSeries {
    fn ids(&self) -> pods::Gpu<'_> {
        pods::Gpu { uuid: &self.uuid, minor: self.minor, mig: &self.mig }
    }

    fn labels(&self, address: &str, own: Labels) -> Labels {
        let which = [("pci_address", address), ("uuid", &self.uuid), ("model", &self.model)];
        which.map(|(name, value)| (name, value.to_owned())).into_iter().chain(own).collect()
    }
}

/// Values, each with the labels that distinguish it from the others of the same GPU.
type Samples = Vec<(Labels, f64)>;

struct Family {
    name: &'static str,
    unit: Option<&'static str>,
    kind: MetricType,
    help: &'static str,
    samples: fn(&GpuSeries) -> Samples,
}

const fn gauge(name: &'static str, help: &'static str, samples: fn(&GpuSeries) -> Samples) -> Family {
    Family { name, unit: None, kind: MetricType::Gauge, help, samples }
}

const fn counter(name: &'static str, help: &'static str, samples: fn(&GpuSeries) -> Samples) -> Family {
    Family { kind: MetricType::Counter, ..gauge(name, help, samples) }
}

impl Family {
    const fn of(self, unit: &'static str) -> Self {
        Self { unit: Some(unit), ..self }
    }
}

const FAMILIES: &[Family] = &[
    gauge("gpu_info", "Settings, limits and pending repairs of the GPU, as labels. Always 1.", |gpu| {
        read(gpu, |now| vec![(properties(now), 1.0)])
    }),
    gauge("gpu_health", "The health state of the GPU and the recommended action, as labels. Always 1.", |gpu| {
        let state: &'static str = gpu.health.state.into();
        vec![(vec![("state", state.to_owned()), ("action", gpu.health.action.as_str().to_owned())], 1.0)]
    }),
    gauge("gpu_cause", "1 for each cause that affects the health of the GPU.", causes),
    counter("gpu_xids", "XIDs since the probe started.", |gpu| {
        let number = |xid: Option<u16>| xid.map_or_else(|| "other".to_owned(), |xid| xid.to_string());
        gpu.xids.iter().map(|(xid, count)| (vec![("xid", number(*xid))], real(*count))).collect()
    }),
    gauge("gpu_temperature", "Temperature of the GPU and of its memory.", |gpu| {
        read(gpu, |now| each("sensor", [("gpu", degrees(now.thermal.gpu)), ("memory", degrees(now.thermal.memory))]))
    })
    .of("celsius"),
    gauge("gpu_temperature_margin", "Degrees left until the GPU slows down.", |gpu| {
        read(gpu, |now| one(degrees(now.thermal.until_slowdown())))
    })
    .of("celsius"),
    gauge("gpu_power", "Power drawn by the GPU.", |gpu| {
        read(gpu, |now| one(now.power_milliwatts.map(|power| f64::from(power) / 1e3)))
    })
    .of("watts"),
    gauge("gpu_power_limit", "Power limit in force.", |gpu| {
        read(gpu, |now| one(now.power_limit_milliwatts.map(|power| f64::from(power) / 1e3)))
    })
    .of("watts"),
    counter("gpu_energy", "Energy used since the GPU was started.", |gpu| {
        read(gpu, |now| one(now.energy_millijoules.map(|energy| real(energy) / 1e3)))
    })
    .of("joules"),
    gauge("gpu_clock", "Clock of the streaming multiprocessors and of the memory.", |gpu| {
        read(gpu, |now| {
            let hertz = |megahertz: Option<u32>| megahertz.map(|megahertz| f64::from(megahertz) * 1e6);
            each("clock", [("sm", hertz(now.sm_clock_mhz)), ("memory", hertz(now.memory_clock_mhz))])
        })
    })
    .of("hertz"),
    gauge("gpu_clock_event", "A reason for the current clocks, or None. Always 1.", |gpu| {
        read(gpu, |now| now.clock_reasons.map(clock_events).unwrap_or_default())
    }),
    gauge("gpu_performance_state", "Performance state: 0 is the fastest, 15 the slowest.", |gpu| {
        read(gpu, |now| one(now.performance_state.map(f64::from)))
    }),
    gauge("gpu_utilization", "Share of time in which a kernel was running, and in which memory was accessed.", |gpu| {
        read(gpu, |now| {
            let ratio = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
            let (gpu, memory) = (ratio(now.gpu_utilization_percent), ratio(now.memory_utilization_percent));
            each("engine", [("gpu", gpu), ("memory", memory)])
        })
    })
    .of("ratio"),
    gauge("gpu_memory_used", "Memory in use.", |gpu| read(gpu, |now| one(now.memory_used_bytes.map(real)))).of("bytes"),
    gauge("gpu_memory_size", "Total memory.", |gpu| read(gpu, |now| one(now.memory_total_bytes.map(real)))).of("bytes"),
    gauge("gpu_processes", "Processes that compute on the GPU.", |gpu| {
        read(gpu, |now| one(now.processes.map(f64::from)))
    }),
    counter("gpu_ecc_volatile_errors", "Memory errors since the driver was loaded.", |gpu| {
        read(gpu, |now| errors(now.ecc.volatile_corrected, now.ecc.volatile_uncorrected))
    }),
    counter("gpu_ecc_aggregate_errors", "Memory errors over the lifetime of the GPU.", |gpu| {
        read(gpu, |now| errors(now.ecc.aggregate_corrected, now.ecc.aggregate_uncorrected))
    }),
    gauge("gpu_remapped_rows", "Replaced memory rows, by kind of error.", |gpu| {
        read(gpu, |now| errors(now.rows.map(|rows| rows.correctable), now.rows.map(|rows| rows.uncorrectable)))
    }),
    gauge("gpu_retired_pages", "Retired memory pages, by kind of error.", |gpu| {
        read(gpu, |now| errors(now.pages.map(|pages| pages.correctable), now.pages.map(|pages| pages.uncorrectable)))
    }),
    gauge("gpu_active_nvlinks", "Active NVLinks. The label is the number of all NVLinks of the GPU.", |gpu| {
        read(gpu, |now| {
            let active = now.active_nvlinks().and_then(|active| u32::try_from(active).ok());
            labelled(vec![("total", now.nvlinks.len().to_string())], whole(active))
        })
    }),
    gauge(
        "gpu_pcie_generation",
        "Generation of the PCIe link. The labels are its lanes, and the most that GPU and slot support.",
        |gpu| {
            read(gpu, |now| {
                let Pcie { generation, width, max_generation, max_width, .. } = now.pcie;
                let labels = reported([("lanes", width), ("max_generation", max_generation), ("max_lanes", max_width)]);
                labelled(labels, whole(generation))
            })
        },
    ),
    counter("gpu_pcie_replays", "Packets repeated on the PCIe link since the driver was loaded.", |gpu| {
        read(gpu, |now| one(now.pcie.replays.map(real)))
    }),
];

fn read(gpu: &GpuSeries, samples: fn(&Readings) -> Samples) -> Samples {
    gpu.readings.as_ref().map(samples).unwrap_or_default()
}

fn one(value: Option<f64>) -> Samples {
    labelled(Labels::new(), value)
}

fn labelled(labels: Labels, value: Option<f64>) -> Samples {
    value.map(|value| (labels, value)).into_iter().collect()
}

fn reported<T: ToString, const N: usize>(values: [(&'static str, Option<T>); N]) -> Labels {
    values.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))).collect()
}

fn each<const N: usize>(label: &'static str, values: [(&'static str, Option<f64>); N]) -> Samples {
    let reported = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
    reported.map(|(name, value)| (vec![(label, name.to_owned())], value)).collect()
}

fn errors(correctable: Option<u64>, uncorrectable: Option<u64>) -> Samples {
    each("error", [("correctable", correctable.map(real)), ("uncorrectable", uncorrectable.map(real))])
}

/// Returns a sample for each reason in NVML's bits. Without a reason there is a sample as well: no reason is not the same as
/// no reading.
fn clock_events(reasons: u64) -> Samples {
    let mut names: Vec<_> = clocks::NAMES.iter().filter(|(bit, _)| reasons & bit != 0).map(|(_, name)| *name).collect();
    if names.is_empty() {
        names.push("None");
    }
    names.into_iter().map(|name| (vec![("reason", name.to_owned())], 1.0)).collect()
}

/// Returns what rarely changes: a series for each would have the same value most of the time.
fn properties(now: &Readings) -> Labels {
    let rows = now.rows.as_ref();
    let mut labels = reported([
        ("ecc", now.ecc.enabled),
        ("mig", now.mig),
        ("persistence", now.persistence),
        ("row_remap_pending", rows.map(|rows| rows.pending)),
        ("row_remap_failed", rows.map(|rows| rows.failed)),
        ("page_retirement_pending", now.pages.and_then(|pages| pages.pending)),
    ]);
    labels.extend(reported([("compute_mode", now.compute_mode)]));
    let Thermal { slowdown_at, shutdown_at, .. } = now.thermal;
    labels.extend(reported([("slowdown_celsius", slowdown_at), ("shutdown_celsius", shutdown_at)]));
    labels
}

fn causes(gpu: &GpuSeries) -> Samples {
    let labels = |cause: &Cause| {
        let severity: &'static str = cause.severity.into();
        let mut labels = vec![("kind", cause.kind.as_str().to_owned()), ("severity", severity.to_owned())];
        labels.push(("recovering", cause.recovering.to_string()));
        labels.extend(cause.xid.map(|xid| ("xid", xid.to_string())));
        labels
    };
    gpu.health.causes.iter().map(|cause| (labels(cause), 1.0)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "Prometheus stores every value as a float")]
fn real(value: u64) -> f64 {
    value as f64
}

fn whole(value: Option<u32>) -> Option<f64> {
    value.map(f64::from)
}

fn degrees(value: Option<i64>) -> Option<f64> {
    value.and_then(|degrees| i32::try_from(degrees).ok()).map(f64::from)
}
