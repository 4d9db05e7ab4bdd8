use gpu_host::{
    nvml::{
        protocol::{Inventory, NvmlGpu},
        readings::{Ecc, Fabric, Pcie, Readings, RemappedRows, RetiredPages, Thermal, clocks},
    },
    observe::kernel_log::{XidCount, XidSource},
};
use gpu_operator_crd::health::{Cause, CauseKind, GpuHealth, HealthState, Severity};
use gpu_operator_crd::report::{Gpu, Report};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::*;
use crate::health::rules::Rules;

const SIX: &str = "0000:06:00.0";
const SEVEN: &str = "0000:07:00.0";

fn bus(addresses: &[&str]) -> Vec<PciGpu> {
    addresses
        .iter()
        .map(|address| PciGpu { address: (*address).into(), device_id: "2330".into(), ..PciGpu::default() })
        .collect()
}

fn known(address: &str, uuid: &str, readings: Readings) -> NvmlGpu {
    let name = Some("NVIDIA H100".to_owned());
    NvmlGpu { pci_address: address.into(), uuid: Some(uuid.into()), name, readings, ..NvmlGpu::default() }
}

fn answering(gpus: Vec<NvmlGpu>) -> NvmlStatus {
    NvmlStatus::Answering(Inventory { driver_version: "580.173.02".into(), gpus, ..Inventory::default() })
}

fn warm(celsius: i64) -> Readings {
    Readings { thermal: Thermal { gpu: Some(celsius), ..Thermal::default() }, ..Readings::default() }
}

fn came(xid: u16, count: u64, source: XidSource) -> XidCount {
    XidCount { xid, count, source, message: String::new() }
}

/// Returns the samples whose name and labels contain all of these parts.
fn samples<'a>(text: &'a str, parts: &[&str]) -> Vec<&'a str> {
    text.lines().filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part))).collect()
}

fn show(metrics: &Metrics, addresses: &[&str], look: &NvmlStatus) {
    metrics.show(&bus(addresses), look, &NodeHealth::default(), &XidsByGpu::new());
}

#[test]
fn readings_are_in_base_units_and_labelled_with_node_and_gpu() {
    let metrics = Metrics::new("n1");
    let readings = Readings {
        power_milliwatts: Some(71_500),
        energy_millijoules: Some(5_000_000_250),
        sm_clock_mhz: Some(1980),
        gpu_utilization_percent: Some(97),
        memory_used_bytes: Some(1 << 20),
        clock_reasons: Some(0x40),
        nvlinks: vec![true, false, true],
        ..warm(41)
    };
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", readings)]));
    let text = metrics.text().unwrap();
    let gpu = r#"{node="n1",pci_address="0000:06:00.0",uuid="GPU-six",model="NVIDIA H100""#;
    for (name, labels, value) in [
        ("gpu_power_watts", "", "71.5"),
        ("gpu_energy_joules_total", "", "5000000.25"),
        ("gpu_clock_hertz", r#",clock="sm""#, "1980000000.0"),
        ("gpu_utilization_ratio", r#",engine="gpu""#, "0.97"),
        ("gpu_memory_used_bytes", "", "1048576.0"),
        ("gpu_temperature_celsius", r#",sensor="gpu""#, "41.0"),
        ("gpu_clock_event", r#",reason="HwThermalSlowdown""#, "1.0"),
        ("gpu_active_nvlinks", r#",total="3""#, "2.0"),
        ("gpu_health", r#",state="Unknown",action="None""#, "1.0"),
    ] {
        let line = format!("nvml_probe_{name}{gpu}{labels}}} {value}");
        assert!(text.lines().any(|there| there == line), "{line}\n{text}");
    }
    assert!(text.contains("# UNIT nvml_probe_gpu_power_watts watts\n"), "{text}");
    assert_eq!(samples(&text, &["driver_info", r#"version="580.173.02""#]).len(), 1, "{text}");
}

#[test]
fn values_that_a_card_does_not_provide_are_absent() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", Readings::default())]));
    let text = metrics.text().unwrap();
    let told: Vec<_> = samples(&text, &["pci_address"])
        .into_iter()
        .filter(|line| !line.contains("gpu_health{") && !line.contains("gpu_info{"))
        .collect();
    assert_eq!(told, [""; 0]);
}

#[test]
fn an_unreported_gpu_stays_the_same_series_without_readings() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", warm(41))]));
    show(&metrics, &[SIX], &NvmlStatus::Failing("hung".into()));
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &["temperature"]), [""; 0]);
    assert_eq!(samples(&text, &["gpu_health", r#"uuid="GPU-six",model="NVIDIA H100""#]).len(), 1, "{text}");
    assert_eq!(samples(&text, &["nvml_state"]), [r#"nvml_probe_nvml_state{node="n1",state="Failing"} 1"#]);
    assert_eq!(samples(&text, &["driver_info"]), [""; 0]);
}

#[test]
fn a_removed_gpu_leaves_no_series_one_without_driver_its_pci_id() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX, SEVEN], &answering(vec![known(SIX, "GPU-six", warm(41))]));
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &[SEVEN, r#"model="10de:2330""#, "gpu_health"]).len(), 1, "{text}");
    show(&metrics, &[SEVEN], &NvmlStatus::Absent(None));
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &[SIX]), [""; 0]);
    assert!(!samples(&text, &[SEVEN]).is_empty());
}

#[test]
fn xids_add_up_until_the_gpu_is_replaced() {
    let metrics = Metrics::new("n1");
    let hear = |uuid: &str, xids: Vec<XidCount>| {
        let xids = XidsByGpu::from([(SIX.to_owned(), xids)]);
        let look = answering(vec![known(SIX, uuid, Readings::default())]);
        metrics.show(&bus(&[SIX]), &look, &NodeHealth::default(), &xids);
    };
    let now = Timestamp::UNIX_EPOCH;
    hear("GPU-six", vec![came(79, 1, XidSource::Nvml), came(13, 1000, XidSource::KernelLog(now))]);
    hear("GPU-six", vec![came(13, 500, XidSource::Nvml), came(48, 7, XidSource::EarlierKernelLog(now))]);
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &["gpu_xids_total", "xid=\"13\"} 1500"]).len(), 1, "{text}");
    assert_eq!(samples(&text, &["gpu_xids_total", "xid=\"79\"} 1"]).len(), 1, "{text}");
    assert_eq!(samples(&text, &["gpu_xids_total"]).len(), 2, "{text}");
    hear("GPU-other", vec![]);
    assert_eq!(samples(&metrics.text().unwrap(), &["gpu_xids_total"]), [""; 0]);
}

#[test]
fn the_number_of_xid_series_is_bounded() {
    let metrics = Metrics::new("n1");
    let flood: Vec<_> = (1..=1000).map(|xid| came(xid, 1, XidSource::Nvml)).collect();
    let look = answering(vec![]);
    metrics.show(&bus(&[SIX]), &look, &NodeHealth::default(), &XidsByGpu::from([(SIX.to_owned(), flood)]));
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &["gpu_xids_total"]).len(), 65);
    assert_eq!(samples(&text, &["xid=\"other\"} 936"]).len(), 1, "{text}");
}

#[test]
fn each_cause_is_a_series_of_its_own() {
    let metrics = Metrics::new("n1");
    let cause = |kind, xid, severity, recovering| Cause {
        kind,
        severity,
        xid,
        count: None,
        evidence: String::new(),
        since: Time(Timestamp::UNIX_EPOCH),
        recovering,
    };
    let causes = vec![
        cause(CauseKind::Xid.into(), Some(79), Severity::Fatal, false),
        cause(CauseKind::Overheating.into(), None, Severity::Warning, true),
    ];
    let health = GpuHealth { state: HealthState::Unhealthy, causes, ..GpuHealth::default() };
    let gpu = Gpu { pci_address: SIX.into(), health, ..Gpu::default() };
    let health = NodeHealth::restore(&Rules::default(), &Report { gpus: vec![gpu], ..Report::default() });
    metrics.show(&bus(&[SIX]), &NvmlStatus::Released, &health, &XidsByGpu::new());
    let text = metrics.text().unwrap();
    let causes = samples(&text, &["gpu_cause{"]);
    assert_eq!(causes.len(), 2, "{text}");
    assert!(causes[0].ends_with(r#",kind="Xid",severity="Fatal",recovering="false",xid="79"} 1.0"#), "{text}");
    assert!(causes[1].ends_with(r#",kind="Overheating",severity="Warning",recovering="true"} 1.0"#), "{text}");
    let [health] = samples(&text, &["gpu_health{"])[..] else { panic!("{text}") };
    assert!(health.ends_with(r#",state="Unhealthy",action="RebootNode"} 1.0"#), "{health}");
}

/// Readings in which a card reports every value, which no real one does: newer ones remap rows, older ones retire pages.
fn everything() -> Readings {
    Readings {
        thermal: Thermal {
            gpu: Some(41),
            memory: Some(46),
            slowdown_at: Some(87),
            shutdown_at: Some(92),
            margin: Some(46),
            shutdown_margin: Some(-5),
        },
        power_milliwatts: Some(71_000),
        power_limit_milliwatts: Some(700_000),
        energy_millijoules: Some(5_000_000),
        sm_clock_mhz: Some(1980),
        memory_clock_mhz: Some(2619),
        clock_reasons: Some(clocks::IDLE),
        performance_state: Some(0),
        gpu_utilization_percent: Some(97),
        memory_utilization_percent: Some(33),
        memory_used_bytes: Some(11 << 20),
        memory_total_bytes: Some(36 << 20),
        ecc: Ecc {
            enabled: Some(true),
            volatile_corrected: Some(1),
            volatile_uncorrected: Some(2),
            aggregate_corrected: Some(3),
            aggregate_uncorrected: Some(4),
            sram_threshold_exceeded: Some(false),
        },
        pages: Some(RetiredPages { correctable: 5, uncorrectable: 6, pending: Some(true) }),
        rows: Some(RemappedRows { correctable: 7, uncorrectable: 8, pending: true, failed: false }),
        nvlinks: vec![true, true, false],
        fabric: Some(Fabric::default()),
        pcie: Pcie {
            generation: Some(4),
            max_generation: Some(5),
            width: Some(8),
            max_width: Some(16),
            replays: Some(9),
        },
        mig: Some(false),
        compute_mode: Some(0),
        persistence: Some(true),
        recovery_action: Some(0),
        inforom_corrupt: Some(false),
        processes: Some(1),
    }
}

#[test]
fn a_gpu_that_reports_everything_has_few_series() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", everything())]));
    let text = metrics.text().unwrap();
    let series = samples(&text, &[SIX]);
    println!("{} series:\n{}", series.len(), series.join("\n"));
    // With a series for each member of every set, each setting and each limit, there would be 59.
    assert!(series.len() <= 59 / 2, "{}", series.len());
}

#[test]
fn settings_limits_and_maxima_are_labels() {
    let metrics = Metrics::new("n1");
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", everything())]));
    let text = metrics.text().unwrap();
    for (name, end) in [
        (
            "gpu_info",
            r#",ecc="true",mig="false",persistence="true",row_remap_pending="true",row_remap_failed="false",page_retirement_pending="true",compute_mode="0",slowdown_celsius="87",shutdown_celsius="92"} 1.0"#,
        ),
        ("gpu_pcie_generation", r#",lanes="8",max_generation="5",max_lanes="16"} 4.0"#),
        ("gpu_active_nvlinks", r#",total="3"} 2.0"#),
    ] {
        let [line] = samples(&text, &[&format!("{name}{{")])[..] else { panic!("{name}: {text}") };
        assert!(line.ends_with(end), "{line}");
    }
}

#[test]
fn each_reason_for_the_clocks_is_a_series_and_none_too() {
    for (reasons, names) in [(0, vec!["None"]), (0x28, vec!["HwSlowdown", "SwThermalSlowdown"])] {
        let metrics = Metrics::new("n1");
        let readings = Readings { clock_reasons: Some(reasons), ..Readings::default() };
        show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", readings)]));
        let text = metrics.text().unwrap();
        let shown: Vec<_> = samples(&text, &["gpu_clock_event{"])
            .into_iter()
            .filter_map(|line| line.split("reason=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(shown, names, "{text}");
    }
}

#[test]
fn the_margin_of_a_card_that_reports_temperatures_is_computed() {
    let metrics = Metrics::new("n1");
    let mut readings = warm(41);
    readings.thermal.slowdown_at = Some(87);
    show(&metrics, &[SIX], &answering(vec![known(SIX, "GPU-six", readings)]));
    let text = metrics.text().unwrap();
    assert_eq!(samples(&text, &["gpu_temperature_margin_celsius{", "} 46.0"]).len(), 1, "{text}");
}

#[test]
fn a_scrape_never_misses_the_state_of_nvml() {
    let metrics = Metrics::new("n1");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100_000 {
                show(&metrics, &[SIX], &NvmlStatus::Released);
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        show(&metrics, &[SIX], &NvmlStatus::Released);
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let text = metrics.text().unwrap();
            assert_eq!(samples(&text, &["nvml_state"]).len(), 1, "{text}");
        }
    });
}

mod pods;
