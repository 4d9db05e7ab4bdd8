//! The lines between the probe and its NVML child, and the GpuNode as it is read back.

use gpu_host::{
    nvml::{
        protocol::{Inventory, MigState, Request, Response},
        supervisor::NvmlStatus,
    },
    observe::{
        kernel_log::{NewEvents, XidCount, XidSource},
        pci::{Bus, PciGpu},
    },
};
use gpu_operator_crd::{
    gpunode::GpuNode,
    health::{HealthRules, HealthState},
    report::Report,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ApiResource, DynamicObject};
use node_tools::mig::plan;
use nvml_probe::{
    agent::metrics::Metrics,
    health::{
        node::{DriverStart, NodeHealth, NodeLook},
        rules::Rules,
    },
    report::{
        build::{Facts, build_report},
        gpu_node::GpuNodeFields,
    },
};
use proptest::{prelude::*, string::string_regex};
use serde_json::Value;
use test_support::damaged::{self, flood};

use super::{fits_the_api, samples};

/// Lets the probe look twice at the two GPUs of the samples, and reports.
fn look(inventory: Option<Inventory>, fields: &GpuNodeFields) {
    look_at(&["0000:01:00.0", "0000:02:00.0"], inventory, fields);
}

/// Lets the probe look twice at the GPUs on its bus, and returns its report.
fn look_at(on_bus: &[&str], inventory: Option<Inventory>, fields: &GpuNodeFields) -> Report {
    let start = DriverStart { boot_id: "boot".into(), loaded: Some("580.173.02".into()), load_id: Some(1) };
    let gpu = |address: &str| PciGpu { address: address.into(), device_id: "2330".into(), class: "030200".into() };
    let bus = Bus { gpus: on_bus.iter().copied().map(gpu).collect(), ..Bus::default() };
    let mut events = NewEvents::default();
    for xid in inventory.iter().flat_map(|inventory| &inventory.xids) {
        let count = XidCount { xid: xid.xid, count: xid.count, source: XidSource::Nvml, message: String::new() };
        events.xids.entry(xid.pci_address.clone()).or_default().push(count);
    }
    let status = inventory.map_or(NvmlStatus::Failing("ended".into()), NvmlStatus::Answering);
    let rules = Rules::from(fields.rules.clone());
    let facts = Facts { bus, ..Facts::default() };
    let mut health = fields.report.as_ref().map(|report| NodeHealth::restore(&rules, report)).unwrap_or_default();
    let mut now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let metrics = Metrics::new("node");
    let mut last = Report::default();
    for _ in 0..2 {
        let look = NodeLook { start: &start, on_bus: &facts.bus.gpus, nvml: &status, events: &events };
        health.step(&rules, &look, now);
        let report = build_report(&facts, &status, &health);
        fits_the_api(&report);
        metrics.show(&facts.bus.gpus, &status, &health, &events.xids);
        now += SignedDuration::from_secs(1);
        last = report;
    }
    last
}

/// Plans MIG layouts for the GPUs of an inventory.
fn plan_mig(inventory: &Inventory) {
    for mig in inventory.gpus.iter().filter_map(|gpu| gpu.mig.as_ref()) {
        for layout in [&[][..], &[("1g.10gb", 3)], &[("1g.10gb", 1), ("3g.40gb", 1)]] {
            let layout = layout.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            let _ = plan(&layout, &mig.state, &mig.profiles);
        }
    }
}

fn answered(response: Value) {
    if let Ok(Response::Inventory(inventory)) = serde_json::from_value(response) {
        plan_mig(&inventory);
        look(Some(inventory), &GpuNodeFields::default());
    }
}

fn fields(object: Value) -> GpuNodeFields {
    let mut gpu_node = DynamicObject::new("node", &ApiResource::erase::<GpuNode>(&()));
    gpu_node.data = object;
    GpuNodeFields::from(gpu_node)
}

#[test]
fn all_samples_can_be_parsed() {
    for response in samples("nvml_response") {
        let response: Response = serde_json::from_slice(&response).unwrap();
        answered(serde_json::to_value(response).unwrap());
    }
    for request in samples("nvml_request") {
        let _: Request = serde_json::from_slice(&request).unwrap();
    }
    for report in samples("report") {
        let fields = fields(serde_json::from_slice(&report).unwrap());
        assert!(fields.report.is_some() && fields.rules != HealthRules::default());
        look(None, &fields);
    }
}

/// The sample is what the NVML of an H200 with driver 580.159.04 answered; only the UUID is another one.
#[test]
fn a_real_gpu_at_its_power_limit_is_healthy_and_partitionable() {
    let response: Response = serde_json::from_str(include_str!("../../corpus/nvml_response/h200.json")).unwrap();
    let Response::Inventory(inventory) = response else { panic!("no inventory: {response:?}") };
    let mig = inventory.gpus[0].mig.clone().unwrap();
    let report = look_at(&["0000:00:06.0"], Some(inventory), &GpuNodeFields::default());
    let [gpu] = &report.gpus[..] else { panic!("one GPU: {report:?}") };
    let health = &gpu.health;
    assert_eq!((health.state, &health.causes[..]), (HealthState::Healthy, &[][..]));
    assert_eq!(
        (gpu.product.as_deref(), gpu.memory_mib, gpu.mig_capable),
        (Some("NVIDIA H200"), Some(143_771), Some(true))
    );
    for layout in [vec![("1g.18gb", 7)], vec![("3g.71gb", 1), ("1g.18gb+me", 1), ("2g.35gb", 1)]] {
        let layout = layout.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let idle = MigState { clients: vec![], ..mig.state.clone() };
        assert!(plan(&layout, &idle, &mig.profiles).is_ok(), "{layout:?}");
        assert!(plan(&layout, &mig.state, &mig.profiles).is_err(), "a program uses the GPU");
    }
}

#[test]
fn a_flood_of_gpus_is_reported_within_the_bounds() {
    let response: Response = serde_json::from_str(include_str!("../../corpus/nvml_response/h100.json")).unwrap();
    let Response::Inventory(mut inventory) = response else { panic!("no inventory: {response:?}") };
    inventory.gpus = vec![inventory.gpus[0].clone(); 500];
    inventory.refused = vec![inventory.refused[0].clone(); 5000];
    inventory.xids =
        (0..60_000).map(|xid| gpu_host::nvml::protocol::NvmlXid { xid, ..inventory.xids[0].clone() }).collect();
    inventory.gpus[0].name = Some(String::from_utf8(flood(b"name")).unwrap());
    look(Some(inventory), &GpuNodeFields::default());
}

proptest! {
    #![proptest_config(test_support::random::config(256))]

    #[test]
    fn responses_with_extreme_values(response in damaged::json(&samples("nvml_response"))) {
        answered(response);
    }

    #[test]
    fn responses_that_are_damaged(line in damaged::bytes(samples("nvml_response"))) {
        if let Ok(response) = serde_json::from_slice(&line) {
            answered(response);
        }
    }

    #[test]
    fn requests_that_are_damaged(
        line in damaged::bytes(samples("nvml_request")),
        deep in string_regex("(\\[|\\{\"with_mig\":){0,400}").unwrap(),
    ) {
        if let Ok(request) = serde_json::from_slice::<Request>(&line) {
            let again = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
            prop_assert_eq!(request, again);
        }
        prop_assert!(serde_json::from_str::<Request>(&deep).is_err());
    }

    #[test]
    fn a_gpu_node_as_read_back(
        object in damaged::json(&samples("report")),
        response in damaged::json(&samples("nvml_response")),
    ) {
        let fields = fields(object);
        match serde_json::from_value(response) {
            Ok(Response::Inventory(inventory)) => look(Some(inventory), &fields),
            _ => look(None, &fields),
        }
    }
}
