//! The labels of GPU feature discovery, derived from reports: which facts are omitted. The tests of package e2e compare all labels with
//! those that NVIDIA's program writes on many kinds of machines.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    keys,
    report::{DriverFacts, Gpu, MigAttributes, MigDevices, NvmlFacts, NvmlState, Report, VirtualGpus},
};
use gpu_operator_plan::{output::gfd, world::ResourceLayout};

/// What NVML reports of a product, its memory in MiB.
#[derive(Clone, Copy)]
struct Product {
    name: &'static str,
    memory: u64,
    capability: &'static str,
    class: &'static str,
    mig_capable: bool,
}

const fn product(
    name: &'static str,
    memory: u64,
    capability: &'static str,
    class: &'static str,
    mig_capable: bool,
) -> Product {
    Product { name, memory, capability, class, mig_capable }
}

const T4: Product = product("Tesla T4", 15360, "7.5", "030200", false);
const A100: Product = product("NVIDIA A100-SXM4-40GB", 40960, "8.0", "030200", true);
const DGX_DISPLAY: Product = product("NVIDIA DGX Display", 4096, "7.5", "030000", false);

fn gpu(product: Product) -> Gpu {
    let Product { name, memory, capability, class, mig_capable } = product;
    Gpu {
        product: Some(name.into()),
        memory_mib: Some(memory),
        compute_capability: Some(capability.into()),
        pci_class: Some(class.into()),
        mig_capable: Some(mig_capable),
        ..Gpu::default()
    }
}

const ONE_G: MigAttributes = MigAttributes {
    memory_mib: 4864,
    multiprocessors: 14,
    gpu_slices: 1,
    compute_slices: 1,
    copy_engines: 1,
    decoders: 0,
    encoders: 0,
    jpeg_engines: 0,
    ofa_engines: 0,
};

/// Returns a GPU in MIG mode with these devices.
fn partitioned(product: Product, devices: &[(&str, u32, MigAttributes)]) -> Gpu {
    let devices = devices.iter().map(|(profile, count, attributes)| MigDevices {
        profile: (*profile).into(),
        count: *count,
        attributes: Some(*attributes),
    });
    Gpu { mig_devices: Some(devices.collect()), ..gpu(product) }
}

/// Returns the report of a machine with driver 580.95.05 for which NVML reports all facts.
fn machine(gpus: Vec<Gpu>) -> Report {
    Report {
        machine: Some("PowerEdge R750 (SKU=0A6B;ModelName=X)".into()),
        vgpu: Some(VirtualGpus::default()),
        driver: DriverFacts {
            loaded: Some("580.95.05".into()),
            cuda_version: Some("13.0".into()),
            ..DriverFacts::default()
        },
        nvml: NvmlFacts {
            state: NvmlState::Answering,
            gpus: Some(u32::try_from(gpus.len()).expect("few GPUs")),
            message: None,
        },
        gpus,
        ..Report::default()
    }
}

fn layout(plugin: &str) -> ResourceLayout {
    ResourceLayout::of(&serde_yaml::from_str(plugin).expect("a device plugin"))
}

/// Returns the labels, with keys without the prefix `nvidia.com/`.
fn labels(report: &Report, plugin: &str) -> Option<BTreeMap<String, String>> {
    let labels = gfd::labels(report, &layout(plugin))?;
    let named = |(key, value): (String, String)| {
        assert!(keys::is_discovered(&key) && key != keys::GPU_PRESENT, "{key}");
        (key.strip_prefix(keys::RESOURCES).expect("NVIDIA's prefix").to_owned(), value)
    };
    Some(labels.into_iter().map(named).collect())
}

/// Returns the report of a machine with one T4, changed by a function.
fn changed(change: impl FnOnce(&mut Report)) -> Report {
    let mut report = machine(vec![gpu(T4)]);
    change(&mut report);
    report
}

/// The report and the labels are those of a machine with an H200 and driver 580.159.04, on which the probe and GFD v0.19.3 have run;
/// only the identifiers are others.
#[test]
fn a_real_machine_has_the_labels_that_gfd_wrote_on_it() {
    let report: Report = serde_json::from_str(include_str!("gfd/h200.json")).expect("a report");
    let written = include_str!("gfd/h200.labels").lines().map(|label| label.split_once('=').expect("key=value"));
    let written: BTreeMap<_, _> = written.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let prefixed = |(key, value)| (format!("{}{key}", keys::RESOURCES), value);
    let labels: BTreeMap<_, _> = labels(&report, "{}").into_iter().flatten().map(prefixed).collect();
    assert_eq!(labels, written);
}

#[test]
fn facts_of_the_machine_are_sanitized_for_labels() {
    for (name, label) in [
        (Some("Standard NC64as T4 v3"), Some("Standard-NC64as-T4-v3")),
        (Some("  DGX  A100 "), Some("DGX-A100")),
        (Some("a\tb (c)/d"), Some("ab-cd")),
        (Some(""), Some("")),
        (None, Some("unknown")),
        // These are not valid label values.
        (Some("PRIMERGY RX2540 -"), None),
        (Some("name of a machine that is longer than any label of Kubernetes can be long"), None),
    ] {
        let labels = labels(&changed(|report| report.machine = name.map(Into::into)), "{}").expect("labels");
        assert_eq!(labels.get("gpu.machine").map(String::as_str), label, "{name:?}");
    }
}

#[test]
fn a_driver_version_is_split_into_labels_if_it_is_known() {
    for (version, revision) in [("390.157", Some("")), ("470.256.02", Some("02")), ("550", None), ("1.2.3.4", None)] {
        let labels = labels(&changed(|report| report.driver.loaded = Some(version.into())), "{}");
        assert_eq!(labels.map(|labels| labels["cuda.driver.rev"].clone()).as_deref(), revision, "{version}");
    }
}

#[test]
fn facts_that_nvml_does_not_report_are_omitted() {
    type Change = fn(&mut Report);
    let rows: [(&str, Change); 11] = [
        ("no report of GPUs", |report| report.gpus.clear()),
        ("NVML is released", |report| {
            report.nvml = NvmlFacts { state: NvmlState::Released, ..NvmlFacts::default() };
        }),
        ("NVML fails", |report| report.nvml.state = NvmlState::Failing),
        ("NVML counts a GPU that it cannot open", |report| report.nvml.gpus = Some(2)),
        ("an older probe", |report| report.nvml.gpus = None),
        ("no name", |report| report.gpus[0].product = None),
        ("no compute capability", |report| report.gpus[0].compute_capability = None),
        ("no MIG capability", |report| report.gpus[0].mig_capable = None),
        ("no module", |report| report.driver.loaded = None),
        ("no CUDA version", |report| report.driver.cuda_version = None),
        ("only a display GPU", |report| report.gpus = vec![gpu(DGX_DISPLAY)]),
    ];
    for (case, change) in rows {
        assert_eq!(labels(&changed(change), "{}"), None, "{case}");
    }
    let mut unread = partitioned(A100, &[("1g.5gb", 7, ONE_G)]);
    unread.mig_devices.iter_mut().flatten().for_each(|devices| devices.attributes = None);
    let unread = machine(vec![unread]);
    assert_eq!(labels(&unread, "{mig: {strategy: Single}}"), None);
    assert_eq!(labels(&unread, "{mig: {strategy: Mixed}}"), None);
    assert!(labels(&unread, "{}").is_some());
    let by_mps = machine(vec![partitioned(A100, &[("1g.5gb", 7, ONE_G)])]);
    assert_eq!(labels(&by_mps, "{mig: {strategy: Single}, sharing: {mps: {replicas: 2}}}"), None);
}

#[test]
fn unlisted_gpus_are_not_counted_and_unknown_memory_omitted() {
    let mut report = machine(vec![gpu(T4), Gpu { pci_class: Some("030000".into()), ..Gpu::default() }]);
    report.nvml.gpus = Some(1);
    let found = labels(&report, "{}").expect("labels");
    assert_eq!((found["gpu.count"].as_str(), found["gpu.mode"].as_str()), ("1", "compute"));
    for memory in [None, Some(0)] {
        let labels = labels(&changed(|report| report.gpus[0].memory_mib = memory), "{}").expect("labels");
        assert!(!labels.contains_key("gpu.memory"));
    }
    let unread = labels(&changed(|report| report.gpus[0].pci_class = None), "{}").expect("labels");
    assert_eq!(unread["gpu.mode"], "unknown");
}
