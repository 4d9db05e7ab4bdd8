//! The shared object, loaded as the product loads NVIDIA's.

use std::{fs, fs::File};

use nvml_wrapper::{
    bitmasks::event::EventTypes,
    enum_wrappers::device::{RetirementCause, TemperatureSensor},
    enums::event::XidError,
    error::NvmlError,
};
use standin_nvml::shared_object;

use super::driver_root::{DriverRoot, VERSION, init, install};

#[test]
fn nvml_wrapper_reads_the_inventory() {
    let root = DriverRoot::with_gpus(&["GPU-a", "GPU-b"]);
    let nvml = init(&install(&root)).unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), VERSION);
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_010);
    assert_eq!(nvml.sys_nvml_version().unwrap(), format!("13.{VERSION}"));
    assert_eq!(nvml.device_count().unwrap(), 2);

    let second = nvml.device_by_index(1).unwrap();
    assert_eq!(second.uuid().unwrap(), "GPU-b");
    assert_eq!(second.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(second.minor_number().unwrap(), 1);
    assert_eq!(second.index().unwrap(), 1);
    assert_eq!(second.memory_info().unwrap().total, 81_559 << 20);
    let pci = second.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.domain, pci.bus, pci.device), ("00000000:01:00.0", 0, 1, 0));
    assert_eq!(pci.pci_device_id, 0x2330_10DE);
    let capability = second.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));

    assert_eq!(nvml.device_by_uuid("GPU-b").unwrap().minor_number().unwrap(), 1);
    assert_eq!(nvml.device_by_pci_bus_id("0000:01:00.0").unwrap().minor_number().unwrap(), 1);
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-c"), Err(NvmlError::NotFound)));
    assert!(matches!(second.serial(), Err(NvmlError::NotSupported)));
    assert_eq!(second.mig_mode().unwrap().current, 0);
}

#[test]
fn nvml_wrapper_receives_an_xid() {
    let root = DriverRoot::with_gpus(&["GPU-a", "GPU-b"]);
    let nvml = init(&install(&root)).unwrap();
    let gpu = nvml.device_by_index(1).unwrap();
    assert_eq!(gpu.supported_event_types().unwrap(), EventTypes::CRITICAL_XID_ERROR);
    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap()).unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));

    root.serve(&["GPU-a", "GPU-b"], r#""healthy":{"GPU-b":false},"#);
    let event = set.wait(10_000).unwrap();
    assert_eq!(event.device.uuid().unwrap(), "GPU-b");
    assert!(matches!(event.event_data, Some(XidError::Value(79))));
}

#[test]
fn nvml_wrapper_reads_the_state() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let nvml = init(&install(&root)).unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.temperature(TemperatureSensor::Gpu), Err(NvmlError::NotSupported)));
    root.serve_one(
        r#""readings":{"thermal":{"gpu":41},"pages":{"correctable":1,"uncorrectable":2},"nvlinks":[true,false],
        "processes":3,"inforomCorrupt":true}"#,
    );
    assert_eq!(gpu.temperature(TemperatureSensor::Gpu).unwrap(), 41);
    assert_eq!(gpu.retired_pages(RetirementCause::DoubleBitEccError).unwrap().len(), 2);
    assert!(matches!(gpu.are_pages_pending_retired(), Err(NvmlError::NotSupported)));
    assert!(!gpu.link_wrapper_for(1).is_active().unwrap());
    assert!(gpu.link_wrapper_for(17).is_active().unwrap());
    assert!(matches!(gpu.link_wrapper_for(18).is_active(), Err(NvmlError::InvalidArg)));
    assert_eq!(gpu.running_compute_processes_count().unwrap(), 3);
    assert!(matches!(gpu.validate_info_rom(), Err(NvmlError::CorruptedInfoROM)));
}

#[test]
fn dropping_nvml_wrapper_releases_the_driver() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let nvml = init(&install(&root)).unwrap();
    let lock = File::open(root.path("etc/standin/lock/nvml.lock")).unwrap();
    assert!(lock.try_lock().is_err());
    drop(nvml);
    lock.try_lock().unwrap();
}

#[test]
fn the_version_in_the_file_name_must_be_the_loaded_one() {
    let root = DriverRoot::with_gpus(&["GPU-a"]);
    let library = install(&root);
    root.load("580.173.02");
    assert!(matches!(init(&library), Err(NvmlError::LibRmVersionMismatch)));
}

#[test]
fn every_function_of_nvml_is_exported() {
    let library = fs::read(shared_object().unwrap()).unwrap();
    let functions = include_str!("../../functions.txt").lines().filter(|line| !line.starts_with('#'));
    let mut there = 0;
    for name in functions.filter_map(|line| line.split(' ').nth(1)) {
        // In the symbol table each name is between two NULs.
        let symbol = [b"\0", name.as_bytes(), b"\0"].concat();
        assert!(library.windows(symbol.len()).any(|bytes| bytes == symbol), "{name}");
        there += 1;
    }
    assert!(there > 400, "{there}");
}
