//! MIG layouts applied by the program as its container runs it, and the resulting report, with the stand-in library.

use std::{fs, process::Command, time::Instant};

use gpu_host::{
    nvml::supervisor::{NvmlStatus, Supervisor},
    observe::driver::CONTAINER_ROOT,
};
use gpu_operator_crd::report::Gpu;
use nvml_probe::{
    health::node::NodeHealth,
    report::build::{Facts, build_report},
};
use serde_json::{Value, json};
use test_support::host::Host;

use crate::{
    PROBE,
    child::{self, patient, probe, target},
    running::{GPUS, VERSION},
};

/// A model without MIG.
const T4: &str = "0x1EB810DE";

/// A host whose first GPU, or both, support MIG.
fn host(first: &Value, second: Option<&Value>) -> Host {
    let host = Host::new();
    for (address, _) in GPUS {
        host.gpu(address, "0x2330");
    }
    host.load(VERSION);
    host.install(CONTAINER_ROOT, VERSION, &[]);
    serve(&host, first, second);
    host
}

fn serve(host: &Host, first: &Value, second: Option<&Value>) {
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
        machine["devices"][0]["mig"] = first.clone();
        match second {
            Some(second) => machine["devices"][1]["mig"] = second.clone(),
            None => machine["devices"][1]["pciDeviceId"] = T4.into(),
        }
    });
}

/// Applies a layout to all GPUs.
fn apply_to_all(host: &Host, layout: &Value) -> Result<(), String> {
    apply(host, &json!({"others": layout}))
}

/// Runs the container's program. Returns its termination message on failure.
fn apply(host: &Host, layout: &Value) -> Result<(), String> {
    let text = host.path("termination-log");
    fs::write(&text, "").unwrap();
    let ended = Command::new(PROBE)
        .args(["mig", "--no-chroot", "--layout", &layout.to_string(), "--host-root"])
        .arg(host.root().as_path())
        .arg("--termination-log")
        .arg(&text)
        .output()
        .unwrap();
    if ended.status.success() { Ok(()) } else { Err(fs::read_to_string(text).unwrap()) }
}

/// Returns the MIG state of the stand-in's GPUs.
fn divisions(host: &Host) -> Value {
    let file = host.path(&format!("{CONTAINER_ROOT}/etc/standin/mig.json"));
    fs::read_to_string(file).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
}

/// Returns NVML's answer.
async fn look(host: &Host) -> NvmlStatus {
    let mut supervisor = Supervisor::new(probe(), patient());
    let look = child::look(&mut supervisor, target(host, false, VERSION), Instant::now()).await;
    assert!(matches!(look, NvmlStatus::Answering(_)), "{look:?}");
    look
}

/// Returns the report's GPUs.
async fn gpus(host: &Host) -> Vec<Gpu> {
    let look = look(host).await;
    let bus = gpu_host::observe::pci::bus(&host.root()).unwrap();
    build_report(&Facts { bus, ..Facts::default() }, &look, &NodeHealth::default()).gpus
}

/// Returns the devices of each GPU in the report.
async fn reported(host: &Host) -> Vec<Option<String>> {
    let devices = |gpu: &Gpu| {
        let devices = gpu.mig_devices.as_ref()?;
        Some(devices.iter().map(|device| format!("{}x{}", device.count, device.profile)).collect::<Vec<_>>().join(" "))
    };
    gpus(host).await.iter().map(devices).collect()
}

#[tokio::test]
async fn mig_devices_are_identified_by_uuid_and_gpu_instance() {
    let host = host(&json!({}), None);
    assert_eq!(apply_to_all(&host, &json!({"1g.10gb": 1, "3g.40gb": 1})), Ok(()));
    let look = look(&host).await;
    let gpu = &look.inventory().unwrap().gpus[0];
    let mut made: Vec<_> =
        divisions(&host)[GPUS[0].0]["instances"].as_array().unwrap().iter().map(|one| one["id"].as_u64()).collect();
    made.sort_unstable();
    let mut found: Vec<_> = gpu.mig_ids.iter().map(|id| id.gpu_instance.map(u64::from)).collect();
    found.sort_unstable();
    assert_eq!(found, made);
    let mut profiles: Vec<_> = gpu.mig_ids.iter().map(|id| (id.profile.as_str(), &id.uuid[..4])).collect();
    profiles.sort_unstable();
    assert_eq!(profiles, [("1g.10gb", "MIG-"), ("3g.40gb", "MIG-")]);
    assert_eq!(gpu.minor, Some(0));
}

#[tokio::test]
async fn gpus_with_and_without_mig_support_are_distinguished() {
    let told: Vec<_> = gpus(&host(&json!({}), None)).await.iter().map(|gpu| gpu.mig_capable).collect();
    assert_eq!(told, [Some(true), Some(false)]);
}

#[tokio::test]
async fn a_layout_is_applied_changed_and_removed_and_reported() {
    let host = host(&json!({}), Some(&json!({})));
    assert_eq!(reported(&host).await, [None, None]);
    for (layout, devices) in [
        (json!({"1g.10gb": 7}), "7x1g.10gb"),
        (json!({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}), "2x1g.10gb 1x2g.20gb 1x3g.40gb"),
        (json!({"7g.80gb": 1}), "1x7g.80gb"),
        (json!({"1g.10gb+me": 1, "1g.20gb": 3}), "1x1g.10gb+me 3x1g.20gb"),
    ] {
        assert_eq!(apply_to_all(&host, &layout), Ok(()), "{layout}");
        assert_eq!(reported(&host).await, [Some(devices.to_owned()), Some(devices.to_owned())], "{layout}");
    }
    assert_eq!(apply_to_all(&host, &json!({})), Ok(()));
    assert_eq!(reported(&host).await, [None, None]);
}

#[test]
fn an_existing_layout_is_left_unchanged_even_if_it_is_in_use() {
    let host = host(&json!({}), None);
    let layout = json!({"3g.40gb": 2});
    assert_eq!(apply_to_all(&host, &layout), Ok(()));
    let (before, file) = (divisions(&host), host.path(&format!("{CONTAINER_ROOT}/etc/standin/mig.json")));
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    serve(&host, &json!({"clients": [{"pid": 1, "instance": 1}]}), None);
    assert_eq!(apply_to_all(&host, &layout), Ok(()));
    assert_eq!((divisions(&host), fs::metadata(&file).unwrap().modified().unwrap()), (before, written));
}

#[test]
fn users_that_block_a_layout_are_named_instances_that_fit_stay() {
    let host = host(&json!({}), None);
    assert_eq!(apply_to_all(&host, &json!({"1g.10gb": 7})), Ok(()));
    host.write("proc/4711/comm", "python\n");
    let used = |instance: u32| serve(&host, &json!({"clients": [{"pid": 4711, "instance": instance}]}), None);
    // The first instance is where neither a 3g nor a 4g needs it.
    let instances = divisions(&host)[GPUS[0].0]["instances"].as_array().unwrap().clone();
    let at = |start: u32| instances.iter().find(|instance| instance["start"] == start).unwrap()["id"].as_u64().unwrap();
    used(u32::try_from(at(0)).unwrap());
    let text = apply_to_all(&host, &json!({"7g.80gb": 1})).unwrap_err();
    assert!(text.starts_with("MigBlocked: GPU 0000:06:00.0") && text.contains("python (4711)"), "{text}");
    assert_eq!(apply_to_all(&host, &json!({"1g.10gb": 1, "3g.40gb": 1})), Ok(()));
    let kept = divisions(&host)[GPUS[0].0]["instances"][0].clone();
    assert_eq!((kept["id"].as_u64(), kept["start"].as_u64()), (Some(at(0)), Some(0)));
}

#[test]
fn a_process_on_the_whole_gpu_prevents_enabling_mig() {
    let host = host(&json!({"clients": [{"pid": 4711}]}), None);
    let text = apply_to_all(&host, &json!({"1g.10gb": 7})).unwrap_err();
    assert!(text.contains("MigBlocked") && text.contains("a process (4711)"), "{text}");
}

#[test]
fn a_mode_change_that_needs_a_reset_is_reported_until_the_reset() {
    let host = host(&json!({"needsReset": true}), None);
    for _ in 0..2 {
        let text = apply_to_all(&host, &json!({"1g.10gb": 1})).unwrap_err();
        assert!(text.starts_with("MigResetNeeded: GPU 0000:06:00.0"), "{text}");
    }
    serve(&host, &json!({}), None);
    assert_eq!(apply_to_all(&host, &json!({"1g.10gb": 1})), Ok(()));
}

#[test]
fn an_unsupported_layout_is_rejected_with_those_supported() {
    let host = host(&json!({}), None);
    let text = apply_to_all(&host, &json!({"1g.5gb": 1})).unwrap_err();
    assert!(text.starts_with("MigLayoutRefused") && text.contains("it has 1g.10gb, 2g.20gb"), "{text}");
    // The instances are unchanged, except for the mode.
    let text = apply_to_all(&host, &json!({"7g.80gb": 2})).unwrap_err();
    assert!(text.contains("no room for all"), "{text}");
}

#[test]
fn a_node_without_mig_rejects_every_layout_but_an_empty_one() {
    let host = Host::new();
    host.load(VERSION);
    host.install(CONTAINER_ROOT, VERSION, &[]);
    host.serve_with(CONTAINER_ROOT, &GPUS[..1], |machine| machine["devices"][0]["pciDeviceId"] = T4.into());
    assert!(apply_to_all(&host, &json!({"1g.10gb": 1})).unwrap_err().contains("no GPU of this node supports MIG"));
    assert_eq!(apply_to_all(&host, &json!({})), Ok(()));
}

#[test]
fn an_unusable_instance_is_recreated() {
    let host = host(&json!({}), None);
    host.write(
        &format!("{CONTAINER_ROOT}/etc/standin/mig.json"),
        &json!({GPUS[0].0: {"enabled": true, "pending": true, "instances":
            [{"id": 3, "profile": 9, "start": 0, "compute": false}]}})
        .to_string(),
    );
    assert_eq!(apply_to_all(&host, &json!({"3g.40gb": 1})), Ok(()));
    let instances = divisions(&host)[GPUS[0].0]["instances"].clone();
    assert_eq!(instances.as_array().unwrap().len(), 1);
    assert_eq!(instances[0]["compute"], true, "{instances}");
}

#[tokio::test]
async fn each_gpu_gets_the_layout_of_its_index_on_the_bus() {
    let host = host(&json!({}), Some(&json!({})));
    let (sevenths, halves) = (json!({"1g.10gb": 7}), json!({"3g.40gb": 2}));
    for (layout, first, second) in [
        (json!({"devices": {"0": sevenths, "1": halves}}), Some("7x1g.10gb"), Some("2x3g.40gb")),
        // The same devices in total.
        (json!({"devices": {"0": halves, "1": sevenths}}), Some("2x3g.40gb"), Some("7x1g.10gb")),
        (json!({"devices": {"1": halves}, "others": sevenths}), Some("7x1g.10gb"), Some("2x3g.40gb")),
        (json!({"devices": {"1": halves}}), None, Some("2x3g.40gb")),
        // A GPU that is missing from the bus is not the layout's fault.
        (json!({"devices": {"0": halves, "2": sevenths}}), Some("2x3g.40gb"), None),
        (json!({}), None, None),
    ] {
        assert_eq!(apply(&host, &layout), Ok(()), "{layout}");
        let reported = reported(&host).await;
        assert_eq!([reported[0].as_deref(), reported[1].as_deref()], [first, second], "{layout}");
    }
}

#[tokio::test]
async fn a_named_gpu_without_mig_is_an_error_others_are_partitioned() {
    let host = host(&json!({}), None);
    let text = apply(&host, &json!({"devices": {"0": {"1g.10gb": 7}, "1": {"1g.10gb": 7}}})).unwrap_err();
    assert!(text.starts_with("MigLayoutRefused: GPU 1 (0000:07:00.0) does not support MIG"), "{text}");
    assert_eq!(reported(&host).await, [Some("7x1g.10gb".to_owned()), None]);
}

#[test]
fn a_layout_of_another_form_is_rejected() {
    let host = host(&json!({}), None);
    for layout in [json!(["1g.10gb"]), json!({"1g.10gb": 7}), json!({"devices": {"first": {"1g.10gb": 7}}})] {
        assert!(apply(&host, &layout).is_err(), "{layout}");
    }
}
