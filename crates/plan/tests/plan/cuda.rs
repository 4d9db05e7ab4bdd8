//! What CUDA programs need beside allocatable GPUs: the NVLink fabric, and the device nodes of unified memory.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{
    Phase,
    health::{Action, Cause, CauseKind, GpuHealth, HealthState, Severity},
    reason::Reason,
    report::{Bridges, CudaError},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Returns a settled node with a driver of the host.
pub fn on_host(spec: &str) -> Sim {
    let mut sim = crate::validation::node(spec, Faults::default());
    sim.host_driver("a", "580.173.02", true);
    sim.settle();
    sim
}

/// Returns a settled node with six `NVSwitches` of the A100 and no fabric manager.
pub fn without_fabric_manager(driver: &str) -> Sim {
    let mut sim = crate::validation::node("{}", Faults::default());
    sim.host_driver("a", driver, true);
    sim.report("a").bridges = Some(bridges("1af1", Some(false)));
    sim.settle();
    sim
}

fn bridges(id: &str, fabric_manager: Option<bool>) -> Bridges {
    Bridges { count: 6, device_ids: vec![id.into()], fabric_manager }
}

/// What a host looks like whose module nvidia-uvm is not loaded.
pub fn unload_unified_memory(sim: &mut Sim) {
    sim.report("a").driver.installed[0].missing_devices = vec!["nvidia-uvm".into(), "nvidia-uvm-tools".into()];
    sim.settle();
}

fn reached(sim: &Sim) -> (Phase, Reason, String) {
    let status = sim.status("a");
    (status.phase, status.reason().expect("a reason"), status.message)
}

fn is_ready(sim: &Sim) -> bool {
    sim.status("a").is_ready()
}

#[test]
fn switches_without_a_fabric_manager_are_not_ready() {
    let mut sim = without_fabric_manager("580.173.02");
    let (phase, reason, message) = reached(&sim);
    assert_eq!((phase, reason), (Phase::Driver, Reason::FabricStarting), "{message}");
    for words in ["nv-fabricmanager", "10de:1af1", "802", "nvidia-fabricmanager-580", "580.173.02"] {
        assert!(message.contains(words), "{words}: {message}");
    }
    // Settling itself takes some minutes.
    sim.sleep(2 * 60);
    sim.settle();
    assert_eq!(reached(&sim).1, Reason::FabricStarting, "the fabric may still come up");
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    sim.sleep(10 * 60);
    sim.settle();
    assert_eq!(reached(&sim).1, Reason::FabricNotReady);
    sim.settle();
    assert_eq!(reached(&sim).1, Reason::FabricNotReady, "it stays a failure");
    sim.report("a").bridges = Some(bridges("1af1", Some(true)));
    sim.settle();
    assert!(is_ready(&sim), "{:?}", reached(&sim));
    // It ends while the node is in use.
    sim.report("a").bridges = Some(bridges("1af1", Some(false)));
    sim.settle();
    assert_eq!(reached(&sim).1, Reason::FabricStarting);
}

#[test]
fn a_fabric_manager_is_missed_only_beside_switches() {
    for (bridges, ready) in [
        (Some(bridges("22a3", Some(false))), false),
        (Some(bridges("22a3", Some(true))), true),
        // Its processes could not be listed.
        (Some(bridges("22a3", None)), true),
        // Another bridge of NVIDIA's.
        (Some(bridges("1ad3", Some(false))), true),
        (None, true),
    ] {
        let mut sim = on_host("{}");
        sim.report("a").bridges = bridges.clone();
        sim.settle();
        assert_eq!(is_ready(&sim), ready, "{bridges:?}: {:?}", reached(&sim));
    }
    let mut sim = on_host("{}");
    sim.report("a").bridges = Some(bridges("1af1", Some(false)));
    sim.report("a").driver.loaded = None;
    sim.settle();
    assert!(!reached(&sim).2.contains("fabric"), "{:?}", reached(&sim));
}

fn set_outside(sim: &mut Sim, gpus: usize) {
    let since = Time(sim.now);
    for (index, gpu) in sim.report("a").gpus.iter_mut().enumerate() {
        gpu.health = GpuHealth { state: HealthState::Healthy, ..GpuHealth::default() };
        if index < gpus {
            let cause = Cause {
                kind: CauseKind::FabricNotReady.into(),
                severity: Severity::Fatal,
                xid: None,
                count: None,
                evidence: "the GPU has not joined the NVLink fabric (state 2)".into(),
                since: since.clone(),
                recovering: false,
            };
            gpu.health = GpuHealth {
                state: HealthState::Unhealthy,
                action: Action::RebootNode.into(),
                causes: vec![cause],
                ..GpuHealth::default()
            };
        }
    }
    sim.settle();
}

#[test]
fn gpus_outside_of_the_fabric_fail_after_a_grace() {
    for spec in ["{}", "{health: {minHealthyGPUs: 0}}"] {
        let mut sim = on_host(spec);
        set_outside(&mut sim, 8);
        let (phase, reason, message) = reached(&sim);
        assert_eq!((phase, reason), (Phase::Driver, Reason::FabricStarting), "{spec}: {message}");
        assert!(message.contains("8 of 8 GPUs") && message.contains("nv-fabricmanager"), "{message}");
        sim.sleep(11 * 60);
        sim.settle();
        assert_eq!(reached(&sim).1, Reason::FabricNotReady, "{spec}");
        set_outside(&mut sim, 0);
        assert!(is_ready(&sim), "{:?}", reached(&sim));
    }
    // As many as the policy allows.
    let mut sim = on_host("{health: {minHealthyGPUs: 6}}");
    set_outside(&mut sim, 2);
    assert!(is_ready(&sim), "{:?}", reached(&sim));
}

#[test]
fn a_host_without_nvidia_uvm_is_not_ready_with_cdi() {
    let mut sim = on_host("{}");
    assert!(is_ready(&sim), "{:?}", reached(&sim));
    unload_unified_memory(&mut sim);
    let (phase, reason, message) = reached(&sim);
    assert_eq!((phase, reason), (Phase::Driver, Reason::DeviceNodesMissing), "{message}");
    assert!(
        message.contains("lacks nvidia-uvm, nvidia-uvm-tools") && message.contains("nvidia-modprobe -u -c 0"),
        "{message}"
    );
    // They exist now, but the plugin wrote its specification before.
    let installed = &mut sim.report("a").driver.installed[0];
    installed.unlisted_devices = std::mem::take(&mut installed.missing_devices);
    sim.settle();
    let (phase, reason, message) = reached(&sim);
    assert_eq!((phase, reason), (Phase::DevicePlugin, Reason::DeviceNodesMissing), "{message}");
    assert!(message.contains("delete the pod") && message.contains("pod device-plugin@a"), "{message}");
    sim.report("a").driver.installed[0].unlisted_devices.clear();
    sim.settle();
    assert!(is_ready(&sim), "{:?}", reached(&sim));
    // The plugin, which opens it, creates this one.
    sim.report("a").driver.installed[0].missing_devices = vec!["nvidiactl".into()];
    sim.settle();
    assert!(is_ready(&sim), "{:?}", reached(&sim));
}

/// What the probe reports when `cuInit` has failed twice.
pub fn fail_initialisation(sim: &mut Sim, code: u32, name: &str) {
    sim.report("a").driver.cuda_error = Some(CudaError { code, name: name.into() });
    sim.settle();
}

#[test]
fn a_node_on_which_cuda_does_not_start_is_not_ready() {
    for (code, name, words) in [
        (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot"),
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cuda-compat"),
        (999, "CUDA_ERROR_UNKNOWN", "kernel log"),
        (4711, "", "error 4711,"),
    ] {
        let mut sim = on_host("{}");
        fail_initialisation(&mut sim, code, name);
        let (phase, reason, message) = reached(&sim);
        assert_eq!((phase, reason), (Phase::Driver, Reason::CudaInitFailed), "{message}");
        assert!(message.contains(words) && message.contains(name), "{message}");
        sim.report("a").driver.cuda_error = None;
        sim.settle();
        assert!(is_ready(&sim), "{:?}", reached(&sim));
    }
    // The fabric of an A100, which does not report it, may still be starting.
    let mut sim = on_host("{}");
    sim.report("a").bridges = Some(bridges("1af1", Some(true)));
    fail_initialisation(&mut sim, 802, "CUDA_ERROR_SYSTEM_NOT_READY");
    let (_, reason, message) = reached(&sim);
    assert_eq!(reason, Reason::FabricStarting, "{message}");
    sim.sleep(11 * 60);
    sim.settle();
    assert_eq!(reached(&sim).1, Reason::FabricNotReady);
}

#[test]
fn a_host_may_create_the_nodes_late_in_its_boot() {
    let mut sim = on_host("{}");
    sim.report("a").driver.installed[0].missing_devices = vec!["nvidia-uvm".into()];
    sim.run(30);
    let (phase, reason, message) = reached(&sim);
    assert_eq!((phase, reason), (Phase::Driver, Reason::DriverInstalling), "{message}");
    assert!(message.contains("lacks nvidia-uvm") && sim.condition("all", "Stalled").0 == "False", "{message}");
    let mut late = sim.clone();
    late.report("a").driver.installed[0].missing_devices.clear();
    late.run(5);
    assert!(is_ready(&late), "{:?}", reached(&late));
    sim.run(60);
    assert_eq!(reached(&sim).1, Reason::DeviceNodesMissing);
}

#[test]
fn nvidias_runtime_creates_the_nodes_itself() {
    let mut sim = on_host("{defaults: {toolkit: {injection: Runtime}}}");
    assert!(is_ready(&sim), "{:?}", reached(&sim));
    unload_unified_memory(&mut sim);
    assert!(is_ready(&sim), "{:?}", reached(&sim));
}
