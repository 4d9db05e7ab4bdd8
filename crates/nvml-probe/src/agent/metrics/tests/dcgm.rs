use gpu_host::{
    nvml::protocol::{MigId, Response},
    observe::pod_resources::{Assignment, Source},
};

use super::*;

fn dcgm(metrics: &Metrics) -> String {
    let text = metrics.text().unwrap();
    let lines = text.lines().filter(|line| line.contains("DCGM_"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the values by name, without labels.
fn values(metrics: &Metrics) -> Vec<String> {
    let value = |line: &str| {
        let (name, rest) = line.split_once('{')?;
        Some(format!("{} {}", name.trim_start_matches("DCGM_FI_DEV_"), rest.rsplit_once("} ")?.1))
    };
    dcgm(metrics).lines().filter_map(value).collect()
}

/// Returns a GPU with all of its ids.
fn numbered(uuid: &str, readings: Readings) -> NvmlGpu {
    NvmlGpu { index: Some(3), minor: Some(5), ..known(SIX, uuid, readings) }
}

fn assigned(pod: &str, device: &str) -> Assignment {
    let source = Source::Resource("nvidia.com/gpu".into());
    let container = format!("{pod}-main");
    Assignment { namespace: "team".into(), pod: pod.into(), container, source, devices: vec![device.into()] }
}

#[test]
fn all_fields_of_a_gpu_are_written_as_dcgm_writes_them() {
    let metrics = Metrics::with_dcgm_names("n1");
    show(&metrics, &[SIX], &answering(vec![numbered("GPU-six", everything())]));
    let xids = XidsByGpu::from([(SIX.to_owned(), vec![came(79, 1, XidSource::Nvml)])]);
    metrics.add_xids(&NodeHealth::default(), &xids);
    assert_eq!(dcgm(&metrics), include_str!("dcgm.txt"));
    let text = metrics.text().unwrap();
    assert!(text.contains("nvml_probe_gpu_temperature_celsius{node="), "{text}");
    assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
}

/// What a real H200 reported: under load to an older version of the probe, and at rest to this one. At rest, `nvidia-smi` reported 0 MiB
/// used, 143,156 MiB free, 616 MiB reserved and 84.30 W.
#[test]
fn a_real_h200_has_the_fields_that_it_reports() {
    let at_load = [
        "SM_CLOCK 1500",
        "MEM_CLOCK 3201",
        "GPU_TEMP 61",
        "MEMORY_TEMP 47",
        "POWER_USAGE 688.271",
        "TOTAL_ENERGY_CONSUMPTION 8590870",
        "PCIE_REPLAY_COUNTER 0",
        "GPU_UTIL 100",
        "MEM_COPY_UTIL 23",
        "FB_USED 882",
        "UNCORRECTABLE_REMAPPED_ROWS 0",
        "CORRECTABLE_REMAPPED_ROWS 0",
        "ROW_REMAP_FAILURE 0",
    ];
    let at_rest = [
        "SM_CLOCK 345",
        "MEM_CLOCK 3201",
        "GPU_TEMP 38",
        "MEMORY_TEMP 38",
        "POWER_USAGE 84.166",
        "TOTAL_ENERGY_CONSUMPTION 3912795",
        "PCIE_REPLAY_COUNTER 0",
        "GPU_UTIL 0",
        "MEM_COPY_UTIL 0",
        "FB_FREE 143155",
        "FB_USED 0",
        "FB_RESERVED 615",
        "UNCORRECTABLE_REMAPPED_ROWS 0",
        "CORRECTABLE_REMAPPED_ROWS 0",
        "ROW_REMAP_FAILURE 0",
    ];
    for (response, expected, index, minor) in [
        // The older version read neither the index nor the minor.
        (include_str!("../../../../tests/corpus/nvml_response/h200.json"), &at_load[..], "", ""),
        (
            include_str!("../../../../tests/corpus/nvml_response/h200_idle.json"),
            &at_rest,
            "gpu=\"0\",",
            "device=\"nvidia0\",",
        ),
    ] {
        let Response::Inventory(inventory) = serde_json::from_str(response).unwrap() else { panic!("no inventory") };
        let metrics = Metrics::with_dcgm_names("n1");
        show(&metrics, &["0000:00:06.0"], &NvmlStatus::Answering(inventory));
        assert_eq!(values(&metrics), expected);
        let labels = format!(
            "{{{index}UUID=\"GPU-0a1b2c3d-0000-1111-2222-444455556666\",pci_bus_id=\"00000000:00:06.0\",{minor}\
             modelName=\"NVIDIA H200\",hostname=\"n1\",DCGM_FI_DRIVER_VERSION=\"580.159.04\"}}"
        );
        assert_eq!(samples(&metrics.text().unwrap(), &["DCGM_", &labels]).len(), expected.len());
    }
}

#[test]
fn dcgms_names_are_off_by_default() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX], &answering(vec![numbered("GPU-six", everything())]));
    assert_eq!(dcgm(&metrics), "");
}

#[test]
fn a_gpu_without_readings_has_no_dcgm_series() {
    let metrics = Metrics::with_dcgm_names("n1");
    // NVML has not reported the second one.
    show(&metrics, &[SIX, SEVEN], &answering(vec![numbered("GPU-six", Readings::default())]));
    let xids = XidsByGpu::from([(SEVEN.to_owned(), vec![came(79, 1, XidSource::Nvml)])]);
    metrics.add_xids(&NodeHealth::default(), &xids);
    assert_eq!(dcgm(&metrics), "");
    // DCGM's sentinels of missing values are not far below this number.
    let huge = Readings { energy_millijoules: Some(u64::MAX), ..warm(41) };
    show(&metrics, &[SIX], &answering(vec![numbered("GPU-six", huge)]));
    assert_eq!(values(&metrics), ["GPU_TEMP 41"]);
    show(&metrics, &[SIX], &NvmlStatus::Failing("hung".into()));
    assert_eq!(dcgm(&metrics), "");
}

#[test]
fn the_pci_address_is_written_as_nvml_writes_it() {
    const ADDRESS: &str = "000a:3b:00.0";
    let metrics = Metrics::with_dcgm_names("n1");
    show(&metrics, &[ADDRESS], &answering(vec![known(ADDRESS, "GPU-a", warm(41))]));
    assert_eq!(samples(&metrics.text().unwrap(), &["DCGM_", r#"pci_bus_id="0000000A:3B:00.0""#]).len(), 1);
}

#[test]
fn each_pod_of_a_shared_gpu_has_a_dcgm_series() {
    let metrics = Metrics::with_dcgm_names("n1");
    let mig = MigId { uuid: "MIG-one".into(), gpu_instance: Some(1), profile: "1g.10gb".into() };
    let gpu = |readings| NvmlGpu { mig_ids: vec![mig.clone()], ..numbered("GPU-six", readings) };
    show(&metrics, &[SIX], &answering(vec![gpu(warm(41))]));
    let series = |assignments| {
        metrics.show_pods(assignments);
        let text = dcgm(&metrics);
        let ends = samples(&text, &["GPU_TEMP"]).into_iter().map(|line| line.split_once("580.173.02\"").unwrap().1);
        ends.map(str::to_owned).collect::<Vec<_>>()
    };
    // A container with two replicas has one series.
    let shared = [assigned("a", "GPU-six::0"), assigned("a", "GPU-six::1"), assigned("b", "GPU-six::2")];
    let of = |pod: &str| format!(r#",container="{pod}-main",namespace="team",pod="{pod}"}} 41"#);
    assert_eq!(series(shared.to_vec()), [of("a"), of("b")]);
    // The readings are those of the GPU, of which a MIG device is a part.
    assert_eq!(series(vec![assigned("mig", "MIG-one")]), ["} 41"]);
    assert_eq!(series(Vec::new()), ["} 41"]);
}

#[test]
fn the_last_xid_stays_until_the_gpu_is_replaced() {
    let metrics = Metrics::with_dcgm_names("n1");
    let six = |uuid| answering(vec![numbered(uuid, Readings::default())]);
    let xids = |xids: Vec<XidCount>| {
        metrics.add_xids(&NodeHealth::default(), &XidsByGpu::from([(SIX.to_owned(), xids)]));
        values(&metrics)
    };
    let now = Timestamp::UNIX_EPOCH;
    show(&metrics, &[SIX], &six("GPU-six"));
    assert_eq!(xids(vec![came(48, 1, XidSource::EarlierKernelLog(now))]), [""; 0]);
    let later = vec![came(79, 2, XidSource::KernelLog(now)), came(31, 1, XidSource::Nvml)];
    assert_eq!(xids(later), ["XID_ERRORS 31"]);
    // A GPU that is lost is not readable, and its XID is the reason.
    show(&metrics, &[SIX], &NvmlStatus::Failing("hung".into()));
    assert_eq!(xids(vec![]), ["XID_ERRORS 31"]);
    show(&metrics, &[SIX], &six("GPU-other"));
    assert_eq!(xids(vec![]), [""; 0]);
}
