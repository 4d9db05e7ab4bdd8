//! Drivers: where they come from, and why they do not work.

use super::{A, Scenario, Steps};
use crate::{
    causes::bound_to,
    cuda::{fail_initialisation, on_host, unload_unified_memory, without_fabric_manager},
    driver_down::edit_pod,
    sim::{Faults, Sim},
    sources::{GKE_DRIVER, NODE_POOL, node},
};
use gpu_operator_crd::{reason::Reason, report::DriverFacts};
use gpu_operator_plan::world::ContainerState;

const UBUNTU: (&str, &str) = ("ubuntu", "22.04");

/// Returns a node whose driver container crashes with this message.
fn crashing(words: &str) -> Sim {
    node("{}", UBUNTU, &[]).faulty(Faults { driver_crash: Some(words.into()), ..Faults::default() })
}

/// Returns a node where these driver images do not exist.
fn without_image(spec: &str, os: (&str, &str), tag: &str) -> Sim {
    let missing_images = [tag.to_owned()].into();
    node(spec, os, &[]).faulty(Faults { missing_images, ..Faults::default() })
}

/// Returns a node whose module is loaded in this version, while a pod uses it.
fn in_use(spec: &str, loaded: &str) -> Sim {
    node(spec, UBUNTU, &[]).then(|sim| {
        sim.report("a").driver.loaded = Some(loaded.into());
        sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    })
}

/// Returns a ready node with a change in the root of its driver, at a later time.
fn incomplete(seconds: i64) -> Sim {
    node("{}", UBUNTU, &[]).run_for(60).then(|sim| {
        sim.sleep(60);
        sim.report("a").driver.installed[0].missing_devices = vec!["nvidia-uvm".into()];
        sim.run(5);
        sim.sleep(seconds);
    })
}

pub const SCENARIOS: &[Scenario] = &[
    (Reason::FabricStarting, A, || without_fabric_manager("580.173.02")),
    (Reason::FabricNotReady, A, || {
        without_fabric_manager("580.173.02").then(|sim| {
            sim.sleep(11 * 60);
            sim.settle();
        })
    }),
    (Reason::DeviceNodesMissing, A, || on_host("{}").then(unload_unified_memory)),
    (Reason::CudaInitFailed, A, || on_host("{}").then(|sim| fail_initialisation(sim, 999, "CUDA_ERROR_UNKNOWN"))),
    (Reason::DriverInstalling, A, || {
        node("{}", UBUNTU, &[]).run_for(60).then(|sim| {
            sim.report("a").driver = DriverFacts::default();
            sim.node_mut("a").allocatable = 0.into();
        })
    }),
    (Reason::DriverInstalling, A, || incomplete(0)),
    (Reason::DriverInstalling, A, || node("{}", ("cos", "117"), &[(NODE_POOL, "gpus"), (GKE_DRIVER, "latest")])),
    (Reason::DriverInstalling, A, || {
        node("{}", UBUNTU, &[]).then(|sim| sim.report("a").driver.loaded = Some("535.261.03".into())).run_for(5)
    }),
    (Reason::DriverInUse, A, || in_use("{defaults: {driver: {source: Container, version: 535.309.01}}}", "470.256.02")),
    (Reason::DriverDown, A, || {
        node("{}", UBUNTU, &[]).run_for(60).plan_with(|world| {
            // The pod was created again, after the start of the plugin.
            let started = world.pods.get("device-plugin@a").and_then(|pod| pod.running_since()).expect("a start");
            edit_pod(world, "driver@a", |pod| {
                pod.sandbox_since = Some((started.reported() + jiff::SignedDuration::from_secs(1)).into());
                let (reason, message) = ("ContainerCreating".into(), String::new());
                pod.containers[0].state = ContainerState::Waiting { reason, message };
            });
        })
    }),
    (Reason::DriverRootIncomplete, A, || incomplete(600)),
    (Reason::DriverVersionMismatch, A, || {
        node("{}", UBUNTU, &[]).faulty(Faults { loads_instead: Some("570.1.1".into()), ..Faults::default() })
    }),
    (Reason::RebootNeeded, A, || {
        node("{}", UBUNTU, &[]).then(|sim| {
            sim.host_driver("a", "535.309.01", false);
            sim.report("a").driver.loaded = Some("470.256.02".into());
        })
    }),
    (Reason::RebootNeeded, A, || crashing("Failed to initialize NVML: Driver/library version mismatch")),
    (Reason::KernelHeadersUnavailable, A, || crashing("E: Unable to locate package linux-headers-6.8.0-60-generic")),
    (Reason::SecureBootRejectsModule, A, || {
        crashing("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service")
    }),
    (Reason::DownloadFailed, A, || crashing("curl: (6) Could not resolve host: us.download.nvidia.com")),
    (Reason::ChecksumMismatch, A, || {
        crashing("run-file installer: checksum mismatch: the file at https://m/a.run has SHA-256 00, and 11 is wanted")
    }),
    (Reason::DownloadFailed, A, || crashing("curl: (22) The requested URL returned error: 404")),
    (Reason::ContainerCrashed, A, || crashing("cc1: internal compiler error")),
    (Reason::ContainerCrashed, A, || crashing("Segmentation fault")),
    (Reason::DriverImageNotFound, A, || without_image("{}", UBUNTU, "595.91.07")),
    (Reason::PrecompiledImageMissing, A, || {
        without_image(
            "{defaults: {driver: {container: {precompiled: true}}}}",
            ("ubuntu", "24.04"),
            "595-6.8.0-60-generic-ubuntu24.04",
        )
    }),
    (Reason::DriverNotLoaded, A, || node("{}", UBUNTU, &[]).then(|sim| sim.host_driver("a", "580.1.1", false))),
    (Reason::DriverNotInstalled, A, || node("{defaults: {driver: {source: Preinstalled}}}", UBUNTU, &[])),
    (Reason::DriverNotInstalled, A, || {
        node("{defaults: {driver: {source: Preinstalled, preinstalled: {installDir: /opt/vendor}}}}", UBUNTU, &[])
    }),
    (Reason::DriverLibraryNotFound, A, || {
        node("{}", UBUNTU, &[]).then(|sim| sim.report("a").driver.loaded = Some("535.261.03".into())).run_for(60)
    }),
    (Reason::DriverLibraryNotFound, A, || {
        node("{defaults: {driver: {source: Preinstalled, preinstalled: {installDir: /opt/vendor}}}}", UBUNTU, &[])
            .then(|sim| sim.report("a").driver.loaded = Some("535.261.03".into()))
    }),
    (Reason::GpuBoundToOtherDriver, A, || {
        bound_to("nouveau", "{}").then(|sim| sim.host_driver("a", "580.173.02", false))
    }),
    (Reason::GpuBoundToOtherDriver, A, || {
        bound_to("NovaCore", "{}").then(|sim| sim.host_driver("a", "580.173.02", false))
    }),
    (Reason::GpuBoundToOtherDriver, A, || crashing("NVRM: GPU 0000:01:00.0 is already bound to NovaCore.")),
    (Reason::ImagePullFailed, A, || {
        let pull_error =
            Some("unexpected status from HEAD request to https://m/v2/driver/manifests/1: 403 Forbidden".into());
        without_image("{}", UBUNTU, "595.91.07")
            .then(|sim| sim.faults.entry("a".into()).or_default().pull_error = pull_error)
    }),
    (Reason::NoDriverImageForOS, A, || node("{}", ("centos", "7"), &[])),
    (Reason::NoDriverImageForOS, A, || {
        node("{defaults: {driver: {source: CloudInstaller, version: 450.66}}}", ("centos", "7"), &[])
    }),
    (Reason::ChecksumMissing, A, || {
        node(
            "{defaults: {driver: {source: RunFile, version: 450.66, image: {repository: own/a, tag: a}}}}",
            ("centos", "7"),
            &[],
        )
    }),
    (Reason::DriverUnsupported, A, || node("{defaults: {driver: {version: 390.157}}}", UBUNTU, &[])),
    (Reason::DriverUnsupported, A, || {
        let faults = Faults { publishes: Some(0), ..Faults::default() };
        let kepler = Sim::new().gpu_node("a", "102d", 4).policy("all", "{}").faulty(faults);
        kepler.then(|sim| sim.host_driver("a", "550.54.14", true))
    }),
    (Reason::DraUnsupported, A, || {
        node("{defaults: {driver: {version: 550.163.01}, allocation: {mode: DRA}}}", UBUNTU, &[])
    }),
    (Reason::DevicePluginUnsupported, A, || {
        node(
            "{defaults: {driver: {source: CloudInstaller}, devicePlugin: {sharing: {mps: {replicas: 4}}}}}",
            ("cos", "117"),
            &[],
        )
    }),
];
