//! NVML's values of a GPU through the child: the stand-in library's C interface on one side, the probe's readings on
//! the other.

use std::time::Duration;

use gpu_host::{
    nvml::{protocol::NvmlXid, readings::Readings},
    observe::driver::CONTAINER_ROOT,
};
use gpu_operator_crd::health::CauseKind;
use serde_json::{Value, json};

use crate::{
    child::{Asked, failure, patient},
    running::{self, GPUS},
};

/// Sets these fields of the first GPU.
fn serve(asked: &Asked, fields: &Value) {
    running::serve(&asked.host, fields);
}

/// Readings in the format of the stand-in's file, with every value present.
fn everything() -> Value {
    json!({
        "thermal": {"gpu": 41, "memory": 46, "slowdownAt": 87, "shutdownAt": 92, "margin": -3, "shutdownMargin": -8},
        "powerMilliwatts": 71_000,
        "powerLimitMilliwatts": 700_000,
        "energyMillijoules": 5_000_000_000_u64,
        "smClockMhz": 1980,
        "memoryClockMhz": 2619,
        "clockReasons": 0x48,
        "performanceState": 2,
        "gpuUtilizationPercent": 97,
        "memoryUtilizationPercent": 33,
        "memoryUsedBytes": 1 << 20,
        "memoryTotalBytes": 81_559_u64 << 20,
        "ecc": {
            "enabled": true,
            "volatileCorrected": 1,
            "volatileUncorrected": 2,
            "aggregateCorrected": 3,
            "aggregateUncorrected": 4,
            "sramThresholdExceeded": true,
        },
        "pages": {"correctable": 5, "uncorrectable": 6, "pending": true},
        "rows": {"correctable": 7, "uncorrectable": 8, "pending": true, "failed": true},
        "nvlinks": [true, false, true],
        "fabric": {"state": 3, "status": 999, "health": 2},
        "pcie": {"generation": 4, "maxGeneration": 5, "width": 8, "maxWidth": 16, "replays": 9},
        "mig": true,
        "computeMode": 3,
        "persistence": true,
        "recoveryAction": 4,
        "inforomCorrupt": true,
        "processes": 10,
    })
}

#[tokio::test]
async fn every_reading_arrives_as_nvml_returns_it() {
    let mut asked = Asked::new(patient());
    let mut readings = everything();
    // The stand-in computes it.
    readings.as_object_mut().unwrap().remove("memoryTotalBytes");
    serve(&asked, &json!({"readings": readings}));
    let inventory = asked.inventory().await;
    let mut expected = everything();
    // The file sets the state of the first three of an H100's eighteen links.
    expected["nvlinks"].as_array_mut().unwrap().resize(18, true.into());
    assert_eq!(serde_json::to_value(&inventory.gpus[0].readings).unwrap(), expected);
    // Different values in every place, so that none is confused with another.
    serve(
        &asked,
        &json!({"readings": {
            "fabric": {"state": 2},
            "ecc": {"sramThresholdExceeded": false},
            "rows": {"failed": true},
            "pages": {"uncorrectable": 1},
        }}),
    );
    let now = asked.inventory().await.gpus.remove(0).readings;
    assert_eq!(now.fabric.map(|fabric| (fabric.state, fabric.health)), Some((2, None)));
    assert_eq!(now.ecc.sram_threshold_exceeded, Some(false));
    assert_eq!(now.rows.map(|rows| (rows.pending, rows.failed)), Some((false, true)));
    assert_eq!(now.pages.map(|pages| (pages.correctable, pages.uncorrectable, pages.pending)), Some((0, 1, None)));
}

#[tokio::test]
async fn a_value_that_a_card_does_not_support_is_absent() {
    let mut asked = Asked::new(patient());
    // A Quadro K620, which has no MIG, NVLink or fabric.
    serve(&asked, &json!({"pciDeviceId": "0x13BB10DE"}));
    let readings = serde_json::to_value(&asked.inventory().await.gpus[0].readings).unwrap();
    let mut there = Vec::new();
    leaves("", &readings, &mut there);
    let memory = ["/memoryTotalBytes", "/memoryUsedBytes"];
    let of_its_slot = ["/pcie/generation", "/pcie/maxGeneration", "/pcie/maxWidth", "/pcie/width"];
    assert_eq!(there, [&["/computeMode"], &memory[..], &of_its_slot, &["/persistence", "/processes"]].concat());

    // A GB10, which uses the processor's memory.
    serve(&asked, &json!({"pciDeviceId": "0x2E1210DE"}));
    let gpu = asked.inventory().await.gpus.remove(0);
    assert_eq!((gpu.memory_mib, gpu.readings.memory_total_bytes), (None, None));
    assert_eq!(gpu.compute_capability.as_deref(), Some("12.1"));
}

#[tokio::test]
async fn memory_of_a_library_before_r510_is_read_by_the_older_call() {
    let mut asked = Asked::new(patient());
    serve(&asked, &json!({"readings": {"memoryUsedBytes": 1 << 20, "memoryReservedBytes": 558 << 20}}));
    asked.host.hide(CONTAINER_ROOT, "580.173.02", "nvmlDeviceGetMemoryInfo_v2");
    let gpu = asked.inventory().await.gpus.remove(0);
    assert_eq!(gpu.memory_mib, Some(81_559));
    let Readings { memory_total_bytes, memory_used_bytes, .. } = gpu.readings;
    // It counts what is reserved as used.
    assert_eq!((memory_total_bytes, memory_used_bytes), (Some(81_559 << 20), Some(559 << 20)));
}

fn leaves(path: &str, value: &Value, there: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(&format!("{path}/{name}"), value, there);
            }
        }
        Value::Array(list) if list.is_empty() => {}
        _ => there.push(path.to_owned()),
    }
}

#[tokio::test]
async fn a_gpu_that_cannot_be_opened_is_listed_and_others_are_read() {
    let mut asked = Asked::new(patient());
    for (code, kind) in [
        (4, CauseKind::NoPermission),
        (6, CauseKind::NotListed),
        (8, CauseKind::InsufficientPower),
        (11, CauseKind::CannotOpen),
        (14, CauseKind::InforomCorrupt),
        (15, CauseKind::GpuLost),
        (16, CauseKind::ResetRequired),
        (28, CauseKind::NotListed),
        (999, CauseKind::CannotOpen),
    ] {
        serve(&asked, &json!({"error": code}));
        let inventory = asked.inventory().await;
        let refused: Vec<_> = inventory.refused.iter().map(|gpu| (gpu.pci_address.as_str(), gpu.kind)).collect();
        assert_eq!(refused, [("0000:06:00.0", kind)], "{code}");
        let opened: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.pci_address.as_str()).collect();
        assert_eq!(opened, ["0000:07:00.0"], "{code}");
        assert_eq!(inventory.count, 2);
    }
}

#[tokio::test]
async fn xids_are_counted_by_gpu_and_number() {
    let mut asked = Asked::new(patient());
    assert_eq!(asked.inventory().await.xids, []);
    serve(&asked, &json!({"xids": [{"xid": 31, "perSecond": 1000}, {"xid": 79}]}));
    let (mut flood, mut lost) = (0, 0);
    while flood < 500 || lost == 0 {
        for NvmlXid { pci_address, xid, count } in asked.inventory().await.xids {
            assert_eq!(pci_address, GPUS[0].0);
            *(if xid == 31 { &mut flood } else { &mut lost }) += count;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lost, 1);
    serve(&asked, &json!({}));
    // Those in transit.
    asked.inventory().await;
    asked.inventory().await;
    assert_eq!(asked.inventory().await.xids, []);
}

#[tokio::test]
async fn slow_calls_are_waited_for_and_a_failed_init_is_reported() {
    let mut asked = Asked::new(patient());
    asked.host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine["slowMillis"] = 3.into());
    assert_eq!(asked.inventory().await.gpus.len(), 2);
    asked.supervisor.end().await.unwrap();
    asked.host.serve_with(CONTAINER_ROOT, &GPUS, |machine| machine["initError"] = 18.into());
    let why = failure(asked.after(0).await);
    assert!(why.contains("reload the driver or reboot"), "{why}");
}
