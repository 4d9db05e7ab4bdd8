//! MIG: the layout applied by the program as its container runs it, and told in the report, with the stand-in library.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod support;

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use gpu_operator_crd::report::Gpu;
use nvml_probe::{
    child::{Limits, Look, Supervisor, Target, this_program},
    driver::{CONTAINER_ROOT, all_libraries},
    health::node::NodeHealth,
    mig::Layout,
    report::{Facts, report},
};
use serde_json::{Value, json};
use support::{Host, PROBE};

const GPUS: [(&str, &str); 2] = [("0000:06:00.0", "GPU-six"), ("0000:07:00.0", "GPU-seven")];
const VERSION: &str = "580.173.02";

/// A model without MIG.
const T4: &str = "0x1EB810DE";

/// A host whose first GPU has MIG, or both.
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

/// Runs the container's program; what it says when it ends badly.
fn apply(host: &Host, layout: &Value) -> Result<(), String> {
    let words = host.path("words");
    fs::write(&words, "").unwrap();
    let ended = Command::new(PROBE)
        .args(["mig", "--no-chroot", "--layout", &layout.to_string(), "--host-root"])
        .arg(host.root().as_path())
        .arg("--termination-log")
        .arg(&words)
        .output()
        .unwrap();
    if ended.status.success() { Ok(()) } else { Err(fs::read_to_string(words).unwrap()) }
}

/// How the stand-in has its GPUs divided.
fn divisions(host: &Host) -> Value {
    let file = host.path(&format!("{CONTAINER_ROOT}/etc/standin/mig.json"));
    fs::read_to_string(file).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
}

/// The report's GPUs.
async fn gpus(host: &Host) -> Vec<Gpu> {
    let limits = Limits { answer: Duration::from_mins(1), ..Limits::default() };
    let mut supervisor = Supervisor::new(this_program(PathBuf::from(PROBE)), limits);
    let root = host.root();
    let target = Target::choose(&root, false, "boot", Some(VERSION), &all_libraries(&root, None).unwrap());
    let look = supervisor.look(target, &GPUS.map(|(address, _)| address.to_owned()), Instant::now()).await;
    assert!(matches!(look, Look::Answering(_)), "{look:?}");
    let bus = nvml_probe::pci::bus(&root).unwrap();
    report(&Facts { bus, ..Facts::default() }, &look, &NodeHealth::default()).gpus
}

/// The devices of each GPU, as the report has them.
async fn reported(host: &Host) -> Vec<Option<String>> {
    let devices = |gpu: &Gpu| {
        let devices = gpu.mig_devices.as_ref()?;
        Some(devices.iter().map(|device| format!("{}x{}", device.count, device.profile)).collect::<Vec<_>>().join(" "))
    };
    gpus(host).await.iter().map(devices).collect()
}

#[tokio::test]
async fn a_gpu_that_can_be_divided_is_told_from_one_that_cannot() {
    let told: Vec<_> = gpus(&host(&json!({}), None)).await.iter().map(|gpu| gpu.mig_capable).collect();
    assert_eq!(told, [Some(true), Some(false)]);
}

#[tokio::test]
async fn a_layout_is_applied_changed_and_taken_back_and_the_report_tells_of_it() {
    let host = host(&json!({}), Some(&json!({})));
    assert_eq!(reported(&host).await, [None, None]);
    for (layout, devices) in [
        (json!({"1g.10gb": 7}), "7x1g.10gb"),
        (json!({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}), "2x1g.10gb 1x2g.20gb 1x3g.40gb"),
        (json!({"7g.80gb": 1}), "1x7g.80gb"),
        (json!({"1g.10gb+me": 1, "1g.20gb": 3}), "1x1g.10gb+me 3x1g.20gb"),
    ] {
        assert_eq!(apply(&host, &layout), Ok(()), "{layout}");
        assert_eq!(reported(&host).await, [Some(devices.to_owned()), Some(devices.to_owned())], "{layout}");
    }
    assert_eq!(apply(&host, &json!({})), Ok(()));
    assert_eq!(reported(&host).await, [None, None]);
}

#[test]
fn a_layout_that_is_there_already_is_left_as_it_is_though_somebody_uses_it() {
    let host = host(&json!({}), None);
    let layout = json!({"3g.40gb": 2});
    assert_eq!(apply(&host, &layout), Ok(()));
    let (before, file) = (divisions(&host), host.path(&format!("{CONTAINER_ROOT}/etc/standin/mig.json")));
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    serve(&host, &json!({"clients": [{"pid": 1, "instance": 1}]}), None);
    assert_eq!(apply(&host, &layout), Ok(()));
    assert_eq!((divisions(&host), fs::metadata(&file).unwrap().modified().unwrap()), (before, written));
}

#[test]
fn what_blocks_a_layout_is_named_and_an_instance_in_use_survives_where_the_rest_fits_beside_it() {
    let host = host(&json!({}), None);
    assert_eq!(apply(&host, &json!({"1g.10gb": 7})), Ok(()));
    host.write("proc/4711/comm", "python\n");
    let used = |instance: u32| serve(&host, &json!({"clients": [{"pid": 4711, "instance": instance}]}), None);
    // The first instance lies where neither a 3g nor a 4g needs it.
    let instances = divisions(&host)[GPUS[0].0]["instances"].as_array().unwrap().clone();
    let at = |start: u32| instances.iter().find(|instance| instance["start"] == start).unwrap()["id"].as_u64().unwrap();
    used(u32::try_from(at(0)).unwrap());
    let words = apply(&host, &json!({"7g.80gb": 1})).unwrap_err();
    assert!(words.starts_with("MigBlocked: GPU 0000:06:00.0") && words.contains("python (4711)"), "{words}");
    assert_eq!(apply(&host, &json!({"1g.10gb": 1, "3g.40gb": 1})), Ok(()));
    let kept = divisions(&host)[GPUS[0].0]["instances"][0].clone();
    assert_eq!((kept["id"].as_u64(), kept["start"].as_u64()), (Some(at(0)), Some(0)));
}

#[test]
fn a_client_of_the_whole_gpu_keeps_mig_from_being_turned_on() {
    let host = host(&json!({"clients": [{"pid": 4711}]}), None);
    let words = apply(&host, &json!({"1g.10gb": 7})).unwrap_err();
    assert!(words.contains("MigBlocked") && words.contains("a process (4711)"), "{words}");
}

#[test]
fn a_mode_that_a_reset_brings_says_so_until_it_is_reset() {
    let host = host(&json!({"needsReset": true}), None);
    for _ in 0..2 {
        let words = apply(&host, &json!({"1g.10gb": 1})).unwrap_err();
        assert!(words.starts_with("MigResetNeeded: GPU 0000:06:00.0"), "{words}");
    }
    serve(&host, &json!({}), None);
    assert_eq!(apply(&host, &json!({"1g.10gb": 1})), Ok(()));
}

#[test]
fn a_layout_that_a_gpu_cannot_have_is_refused_with_what_it_has() {
    let host = host(&json!({}), None);
    let words = apply(&host, &json!({"1g.5gb": 1})).unwrap_err();
    assert!(words.starts_with("MigLayoutRefused") && words.contains("it has 1g.10gb, 2g.20gb"), "{words}");
    // What is there stays as it was, but for the mode.
    let words = apply(&host, &json!({"7g.80gb": 2})).unwrap_err();
    assert!(words.contains("no room for all"), "{words}");
}

#[test]
fn a_node_without_mig_refuses_a_layout_and_has_none_turned_off() {
    let host = Host::new();
    host.load(VERSION);
    host.install(CONTAINER_ROOT, VERSION, &[]);
    host.serve_with(CONTAINER_ROOT, &GPUS[..1], |machine| machine["devices"][0]["pciDeviceId"] = T4.into());
    assert!(apply(&host, &json!({"1g.10gb": 1})).unwrap_err().contains("no GPU of this node has MIG"));
    assert_eq!(apply(&host, &json!({})), Ok(()));
}

#[test]
fn an_instance_that_nobody_can_use_is_made_anew() {
    let host = host(&json!({}), None);
    host.write(
        &format!("{CONTAINER_ROOT}/etc/standin/mig.json"),
        &json!({GPUS[0].0: {"enabled": true, "pending": true, "instances":
            [{"id": 3, "profile": 9, "start": 0, "compute": false}]}})
        .to_string(),
    );
    assert_eq!(apply(&host, &json!({"3g.40gb": 1})), Ok(()));
    let instances = divisions(&host)[GPUS[0].0]["instances"].clone();
    assert_eq!(instances.as_array().unwrap().len(), 1);
    assert_eq!(instances[0]["compute"], true, "{instances}");
}

#[test]
fn layouts_are_objects_of_counts() {
    assert_eq!(serde_json::from_str::<Layout>(r#"{"1g.10gb": 7}"#).unwrap(), Layout::from([("1g.10gb".to_owned(), 7)]));
    assert!(apply(&host(&json!({}), None), &json!(["1g.10gb"])).is_err());
}
