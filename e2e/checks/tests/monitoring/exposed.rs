//! The metrics that operator and probe expose, read from their response to a scrape with all series present.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_host::{
    nvml::{protocol::Inventory, supervisor::NvmlStatus},
    observe::{
        kernel_log::{XidCount, XidSource, XidsByGpu},
        pci::PciGpu,
        pod_resources::{Assignment, Source},
    },
};
use gpu_operator::{drive::Written, error::Error, metrics::Metrics};
use gpu_operator_crd::{
    ClusterGpuPolicyStatus, ConditionType,
    health::{HealthRules, HealthState},
    report::Report,
};
use gpu_operator_plan::{
    Plan,
    output::{body::Body, write::Write},
    world::TaintWrite,
};
use nvml_probe::{
    agent::metrics::Metrics as ProbeMetrics,
    health::{node::NodeHealth, rules::Rules},
};
use serde_json::{Value, json};

pub struct Metric {
    /// The name in the docs: the name of the samples, except for a histogram.
    pub documented: String,
    pub unit: Option<String>,
    /// The values of each label.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// Returns all metrics, by the names of their samples.
pub fn all() -> BTreeMap<String, Metric> {
    let mut all = parse(&operator());
    all.extend(parse(&probe(&ProbeMetrics::new("n1"))));
    assert!(all.len() > 40, "only {} metrics are exposed", all.len());
    all
}

fn operator() -> String {
    use ConditionType::{Accepted, Degraded, Ready, Reconciling, Stalled};
    let metrics = Metrics::default();
    let conditions: Vec<Value> = [Ready, Reconciling, Stalled, Degraded, Accepted]
        .iter()
        .flat_map(|kind| ["True", "False"].map(|status| condition(kind.as_str(), status)))
        .collect();
    let status = json!({"conditions": conditions, "pools": [{"name": "p100"}]});
    let status: ClusterGpuPolicyStatus = serde_json::from_value(status).expect("a status");
    metrics.show(&Plan { statuses: [("all".into(), status)].into(), ..Plan::default() });
    metrics.show_admission_policy("nodestack-nvml-probe", Some(true));
    metrics.show_crd("gpunodes.gpu.nodestack.dev", false);
    let refused = Err(Error::NoAnswer { what: "write".to_owned() });
    metrics.count_event("Published");
    let write = Arc::new(Write::new("a", Body::Taints(TaintWrite::default())));
    metrics.count(&[Written { write: Arc::clone(&write), result: Ok(()) }, Written { write, result: refused }]);
    metrics.text().expect("a text")
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Returns the responses of a probe to several scrapes: with all readings, and with NVML in each state.
fn probe(metrics: &ProbeMetrics) -> String {
    use HealthState::{Degraded, Healthy, Recovering, Unhealthy};
    const GPU: &str = "0000:06:00.0";
    let inventory: Inventory = serde_json::from_value(json!({
        "driverVersion": "580.173.02",
        "cudaVersion": "13.1",
        "gpus": [{"pciAddress": GPU, "uuid": "GPU-six", "name": "NVIDIA H100", "minor": 0,
            "migIds": [{"uuid": "MIG-six", "gpuInstance": 1, "profile": "1g.10gb"}], "readings": {
            "thermal": {"gpu": 41, "memory": 46, "slowdownAt": 87, "shutdownAt": 92, "margin": 46},
            "powerMilliwatts": 71_000, "powerLimitMilliwatts": 700_000, "energyMillijoules": 5_000_000,
            "smClockMhz": 1980, "memoryClockMhz": 2619, "clockReasons": 0, "performanceState": 0,
            "gpuUtilizationPercent": 97, "memoryUtilizationPercent": 33,
            "memoryUsedBytes": 1, "memoryTotalBytes": 6, "processes": 1,
            "ecc": {
                "enabled": true, "volatileCorrected": 1, "volatileUncorrected": 2,
                "aggregateCorrected": 3, "aggregateUncorrected": 4,
            },
            "pages": {"correctable": 5, "uncorrectable": 6, "pending": true},
            "rows": {"correctable": 7, "uncorrectable": 8, "pending": true, "failed": true},
            "nvlinks": [true, false],
            "pcie": {"generation": 4, "maxGeneration": 5, "width": 8, "maxWidth": 16, "replays": 9},
            "mig": true, "computeMode": 0, "persistence": true,
        }}],
    }))
    .expect("an inventory");
    let cause = |kind: &str, severity: &str, recovering: bool| json!({"kind": kind, "severity": severity, "recovering": recovering, "since": "2026-01-01T00:00:00Z"});
    let mut xid = cause("Xid", "Fatal", false);
    xid["xid"] = 79.into();
    let causes = json!([xid, cause("Overheating", "Warning", true)]);
    let seen = XidCount { xid: 79, count: 1, source: XidSource::Nvml, message: String::new() };
    let on_bus = [PciGpu { address: GPU.to_owned(), device_id: "2330".to_owned(), ..PciGpu::default() }];
    let nvml = [
        NvmlStatus::Answering(inventory),
        NvmlStatus::Failing(String::new()),
        NvmlStatus::Released,
        NvmlStatus::Absent(None),
    ];
    let xids = XidsByGpu::from([(GPU.to_owned(), vec![seen])]);
    metrics.show_pods(vec![Assignment {
        namespace: "team".to_owned(),
        pod: "train".to_owned(),
        container: "main".to_owned(),
        source: Source::Resource("nvidia.com/gpu".to_owned()),
        devices: vec!["MIG-six::0".to_owned(), "GPU-six".to_owned()],
    }]);
    let mut text = String::new();
    for (nvml, state) in nvml.iter().zip([Unhealthy, Degraded, Recovering, Healthy]) {
        let health = json!({"state": state, "causes": causes});
        let report: Report =
            serde_json::from_value(json!({"gpus": [{"pciAddress": GPU, "health": health}]})).expect("a report");
        metrics.show(&on_bus, nvml, &NodeHealth::restore(&Rules::from(HealthRules::default()), &report), &xids);
        text += &metrics.text().expect("a text");
    }
    text
}

fn parse(text: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::<String, Metric>::new();
    let (mut family, mut kind, mut unit) = (String::new(), String::new(), None);
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("TYPE"), Some(name), Some(of)) => (family, kind, unit) = (name.into(), of.into(), None),
            (Some("#"), Some("UNIT"), Some(_), Some(of)) => unit = Some(of.to_owned()),
            (Some("#"), ..) => {}
            _ => {
                let end = line.find(['{', ' ']).expect("a value");
                let name = &line[..end];
                let documented = if kind == "histogram" { family.as_str() } else { name }.to_owned();
                let metric = metrics.entry(name.to_owned()).or_insert_with(|| Metric {
                    documented,
                    unit: unit.clone(),
                    labels: BTreeMap::new(),
                });
                let labels = line[end..].strip_prefix('{').and_then(|rest| rest.rsplit_once('}'));
                for label in labels.map_or("", |(labels, _)| labels).split_terminator("\",") {
                    let (name, value) = label.split_once("=\"").expect("a label");
                    metric.labels.entry(name.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
                }
            }
        }
    }
    metrics
}
