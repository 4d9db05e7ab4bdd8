use gpu_host::{
    nvml::{
        protocol::{Inventory, NvmlGpu, RefusedGpu},
        supervisor::NvmlStatus,
    },
    observe::{
        kernel_log::{NewEvents, XidsByGpu},
        pci::PciGpu,
    },
};
use gpu_operator_crd::{
    health::HealthState::{Healthy, Recovering, Unhealthy},
    report::{DriverFacts, Report},
};

use super::*;
use crate::health::node::{DriverStart, NodeHealth, NodeLook};

const ADDRESSES: [&str; 3] = ["0000:06:00.0", "0000:07:00.0", "0000:08:00.0"];

fn bus() -> Vec<PciGpu> {
    ADDRESSES.map(|address| PciGpu { address: address.into(), device_id: "2330".into(), ..PciGpu::default() }).into()
}

fn start(boot_id: &str, load_id: u64) -> DriverStart {
    DriverStart { boot_id: boot_id.into(), loaded: Some("580.1".into()), load_id: Some(load_id) }
}

fn answering(readings: &[(&str, Readings)]) -> NvmlStatus {
    let gpus = readings.iter().map(|(address, readings)| NvmlGpu {
        pci_address: (*address).into(),
        name: Some("H100".into()),
        readings: readings.clone(),
        ..NvmlGpu::default()
    });
    NvmlStatus::Answering(Inventory { gpus: gpus.collect(), ..Inventory::default() })
}

fn step(node: &mut NodeHealth, start: &DriverStart, look: &NvmlStatus, xids: &XidsByGpu) -> [HealthState; 3] {
    let heard = NewEvents { xids: xids.clone(), ..NewEvents::default() };
    node.step(
        &Rules::default(),
        &NodeLook { start, on_bus: &bus(), nvml: look, events: &heard },
        "2026-01-01T00:00:00Z".parse().unwrap(),
    );
    ADDRESSES.map(|address| node.of(address).state)
}

fn all_well() -> NvmlStatus {
    answering(&ADDRESSES.map(|address| (address, well())))
}

fn xid(address: &str, xid: u16) -> XidsByGpu {
    XidsByGpu::from([(address.to_owned(), vec![event(xid, 1)])])
}

#[test]
fn a_fault_of_one_gpu_affects_that_gpu_only() {
    let mut node = NodeHealth::default();
    step(&mut node, &start("boot", 1), &all_well(), &XidsByGpu::default());
    let states = step(&mut node, &start("boot", 1), &all_well(), &xid(ADDRESSES[1], 48));
    assert_eq!(states, [Healthy, Unhealthy, Healthy]);
    let lost = RefusedGpu { pci_address: ADDRESSES[2].into(), kind: CauseKind::GpuLost, message: "lost".into() };
    let NvmlStatus::Answering(mut inventory) = answering(&[(ADDRESSES[0], well()), (ADDRESSES[1], well())]) else {
        panic!("it answers")
    };
    inventory.refused.push(lost);
    let states = step(&mut node, &start("boot", 1), &NvmlStatus::Answering(inventory), &XidsByGpu::default());
    assert_eq!(states, [Healthy, Unhealthy, Unhealthy]);
}

#[test]
fn a_gpu_on_the_bus_that_nvml_does_not_list_is_detected() {
    let mut node = NodeHealth::default();
    let look = answering(&[(ADDRESSES[0], well()), (ADDRESSES[1], well())]);
    step(&mut node, &start("boot", 1), &look, &XidsByGpu::default());
    step(&mut node, &start("boot", 1), &look, &XidsByGpu::default());
    let health = node.of(ADDRESSES[2]);
    assert_eq!((health.state, health.causes[0].kind.known()), (Unhealthy, Some(CauseKind::NotListed)));
}

#[test]
fn a_reboot_and_a_reload_are_restarts_even_without_the_probe() {
    for (after, state) in
        [(start("boot", 1), Unhealthy), (start("again", 1), Recovering), (start("boot", 2), Recovering)]
    {
        let mut node = NodeHealth::default();
        step(&mut node, &start("boot", 1), &all_well(), &xid(ADDRESSES[0], 48));
        let gpus = ADDRESSES.map(|address| gpu_operator_crd::report::Gpu {
            pci_address: address.into(),
            health: node.of(address),
            ..Default::default()
        });
        let DriverStart { boot_id, loaded, load_id } = start("boot", 1);
        let driver = DriverFacts { loaded, load_id, ..DriverFacts::default() };
        let report = Report { boot_id, driver, gpus: gpus.into(), ..Report::default() };

        let mut unloaded = start("boot", 1);
        unloaded.loaded = None;
        let mut restored = NodeHealth::restore(&Rules::default(), &report);
        for node in [&mut node, &mut restored] {
            step(node, &unloaded, &NvmlStatus::Absent(None), &XidsByGpu::default());
            assert_eq!(step(node, &after, &all_well(), &XidsByGpu::default())[0], state, "{after:?}");
        }
    }
}

#[test]
fn the_majority_of_a_model_sets_the_expected_number_of_nvlinks() {
    let links = |active: usize| wrong(|now| now.nvlinks = (0..18).map(|link| link < active).collect());
    let mut node = NodeHealth::default();
    let look = answering(&[(ADDRESSES[0], links(18)), (ADDRESSES[1], links(18)), (ADDRESSES[2], links(17))]);
    step(&mut node, &start("boot", 1), &look, &XidsByGpu::default());
    let states = step(&mut node, &start("boot", 1), &look, &XidsByGpu::default());
    assert_eq!(states, [Healthy, Healthy, Unhealthy]);
}

#[test]
fn a_gpu_that_leaves_the_bus_is_forgotten() {
    let mut node = NodeHealth::default();
    step(&mut node, &start("boot", 1), &all_well(), &xid(ADDRESSES[0], 48));
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    node.step(
        &Rules::default(),
        &NodeLook {
            start: &start("boot", 1),
            on_bus: &[],
            nvml: &NvmlStatus::Absent(None),
            events: &NewEvents::default(),
        },
        now,
    );
    assert_eq!(node.of(ADDRESSES[0]), GpuHealth::default());
}

#[test]
fn xids_between_two_looks_affect_their_gpu_only() {
    let mut node = NodeHealth::default();
    step(&mut node, &start("boot", 1), &all_well(), &XidsByGpu::default());
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    node.add_xids(&Rules::default(), &xid(ADDRESSES[1], 48), now);
    node.add_xids(&Rules::default(), &xid("0000:99:00.0", 48), now);
    assert_eq!(ADDRESSES.map(|address| node.of(address).state), [Healthy, Unhealthy, Healthy]);
    assert_eq!(node.of("0000:99:00.0"), GpuHealth::default());
}

/// The node's GPUs have these causes.
fn causes(node: &NodeHealth) -> Vec<Vec<(CauseKind, Option<u16>, String)>> {
    let of = |address: &str| {
        let causes = node.of(address).causes.into_iter().filter(|cause| !cause.recovering);
        causes.filter_map(|cause| Some((cause.kind.known()?, cause.xid, cause.evidence))).collect()
    };
    ADDRESSES.map(of).into()
}

#[test]
fn a_fatal_error_of_a_switch_affects_every_gpu_until_a_restart() {
    let mut node = NodeHealth::default();
    let error = XidCount {
        xid: 23001,
        count: 1,
        source: XidSource::KernelLog("2026-01-01T00:00:00Z".parse().unwrap()),
        message: "Fatal, Link 12 Always Fatal".into(),
    };
    let events = NewEvents { switch_errors: [("0000:c3:00.0".to_owned(), vec![error])].into(), ..NewEvents::default() };
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let on_bus = bus();
    let look = NodeLook { start: &start("boot", 1), on_bus: &on_bus, nvml: &all_well(), events: &events };
    node.step(&Rules::default(), &look, now);
    let text = "NVSwitch 0000:c3:00.0 reported SXid 23001: Fatal, Link 12 Always Fatal";
    let expected = vec![vec![(CauseKind::NvSwitchError, Some(23001), text.to_owned())]; 3];
    assert_eq!(causes(&node), expected);
    // Readings do not show it, and a restarted probe may not find it in the log any more.
    let gpu = |address: &str| gpu_operator_crd::report::Gpu {
        pci_address: address.into(),
        health: node.of(address),
        ..gpu_operator_crd::report::Gpu::default()
    };
    let driver = DriverFacts { loaded: Some("580.1".into()), load_id: Some(1), ..DriverFacts::default() };
    let gpus = ADDRESSES.map(gpu).into();
    let report = Report { boot_id: "boot".into(), driver, gpus, ..Report::default() };
    let mut restored = NodeHealth::restore(&Rules::default(), &report);
    for _ in 0..20 {
        assert_eq!(step(&mut restored, &start("boot", 1), &all_well(), &XidsByGpu::default()), [Unhealthy; 3]);
    }
    assert_eq!(causes(&restored), expected);
    assert_eq!(step(&mut restored, &start("next boot", 1), &all_well(), &XidsByGpu::default()), [Recovering; 3]);
}

#[test]
fn a_restart_has_the_time_that_the_log_shows() {
    let mut node = NodeHealth::default();
    step(&mut node, &start("boot", 1), &all_well(), &xid(ADDRESSES[0], 48));
    let loaded: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    let seen = |xid, source| vec![XidCount { xid, count: 1, source, message: String::new() }];
    let heard = NewEvents {
        xids: XidsByGpu::from([(ADDRESSES[0].to_owned(), seen(79, XidSource::EarlierKernelLog(loaded)))]),
        driver_loaded: Some(loaded),
        ..NewEvents::default()
    };
    let now = loaded + Duration::from_secs(30);
    node.step(
        &Rules::default(),
        &NodeLook { start: &start("boot", 2), on_bus: &bus(), nvml: &all_well(), events: &heard },
        now,
    );
    let causes = node.of(ADDRESSES[0]).causes;
    let outline: Vec<_> = causes.iter().map(|cause| (cause.xid, cause.recovering)).collect();
    assert_eq!(outline, [(Some(79), false), (Some(48), true)]);
}

#[test]
fn xids_of_a_driver_that_is_no_longer_loaded_are_over() {
    let mut node = NodeHealth::default();
    let unloaded = DriverStart { loaded: None, load_id: None, ..start("boot", 1) };
    step(&mut node, &unloaded, &NvmlStatus::Absent(None), &xid(ADDRESSES[0], 79));
    assert_eq!(step(&mut node, &start("boot", 1), &all_well(), &XidsByGpu::default()), [Healthy; 3]);
}
