//! Builds the report from the facts. Pure.

use std::collections::BTreeSet;

use gpu_host::{
    nvml::{protocol::Inventory, supervisor::NvmlStatus},
    observe::{
        pci::{Bus, PciGpu},
        pod_resources::{Assignment, Source},
    },
};
use gpu_operator_crd::{
    keys,
    report::{
        Bridges, CudaError, DriverFacts, Gpu, GpuPods, Holder, HostRuntime, InstalledDriver, MigAttributes, MigDevices,
        NvmlFacts, OsRelease, Report, VirtualGpus,
    },
};

use crate::health::node::NodeHealth;

/// Facts read from the host, without NVML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub boot_id: String,
    pub os: OsRelease,
    pub machine: Option<String>,
    pub bus: Bus,
    pub loaded: Option<String>,
    /// Identifies one load of the module.
    pub load_id: Option<u64>,
    /// Whether NVIDIA's driver container has run since the node booted.
    pub container_ran: bool,
    /// The digest of the configuration with which that container has loaded the module.
    pub config_digest: Option<String>,
    pub in_use: bool,
    /// The programs that hold the GPUs, if they are requested.
    pub holders: Option<Vec<Holder>>,
    pub installed: Vec<InstalledDriver>,
    /// What the driver's container waits for before it starts.
    pub waits: Option<String>,
    /// What the kernel has logged about a driver that is not loaded.
    pub load_errors: Vec<String>,
    /// The directory for the toolkit, if one is suitable.
    pub toolkit_folder: Option<&'static str>,
    pub runtimes: Vec<HostRuntime>,
    /// Whether a fabric manager runs, if there are bridges and the host's processes can be listed.
    pub fabric_manager: Option<bool>,
}

// The bounds of the API type: a report that exceeds them is rejected as a whole, so one bad string would hide a node.
const MAX_GPUS: usize = 64;
const MAX_ADDRESS: usize = 32;
const MAX_INSTALLED: usize = 8;
const MAX_DEVICES: usize = 8;
const MAX_HOLDERS: usize = 10;
const MAX_PODS: usize = 10;
const MAX_POD: usize = 317;
const MAX_PRODUCT: usize = 128;
const MAX_MACHINE: usize = 128;
const MAX_UUID: usize = 96;
const MAX_NUMBER: usize = 8;
const MAX_PROFILES: usize = 16;
const MAX_PROFILE: usize = 32;
const MAX_SHORT: usize = 16;
const MAX_NAME: usize = 64;
const MAX_MESSAGE: usize = 1024;

/// Builds the report from the facts, NVML's answer and the health.
///
/// The list of GPUs is that of the bus: a GPU that NVML does not list stays, without anything that needs a driver.
pub fn build_report(facts: &Facts, look: &NvmlStatus, health: &NodeHealth) -> Report {
    let inventory = look.inventory();
    Report {
        probe_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: bounded(&facts.boot_id, MAX_NAME),
        os: OsRelease { id: bounded(&facts.os.id, MAX_NAME), version_id: bounded(&facts.os.version_id, MAX_NAME) },
        selinux: None,
        toolkit_folder: facts.toolkit_folder.map(str::to_owned),
        machine: facts.machine.as_deref().map(|name| bounded(name, MAX_MACHINE)),
        gpus: facts.bus.gpus.iter().take(MAX_GPUS).map(|gpu| merge(gpu, &facts.bus, inventory, health)).collect(),
        passed_through: u32::try_from(facts.bus.passed_through.len()).unwrap_or(u32::MAX),
        passed_through_at: facts.bus.passed_through.iter().take(MAX_GPUS).cloned().collect(),
        vgpu: facts.bus.vgpu.as_ref().map(virtual_gpus),
        bridges: bridges(facts),
        driver: DriverFacts {
            loaded: facts.loaded.as_deref().map(|version| bounded(version, MAX_NAME)),
            load_id: facts.load_id,
            in_use: facts.in_use,
            holders: facts.holders.as_ref().map(|holders| holders.iter().take(MAX_HOLDERS).cloned().collect()),
            container_ran: facts.container_ran,
            config_digest: facts.config_digest.as_deref().map(|digest| bounded(digest, MAX_NAME)),
            installed: facts.installed.iter().take(MAX_INSTALLED).map(installed).collect(),
            waits: facts.waits.as_deref().map(|text| bounded(text, MAX_MESSAGE)),
            load_errors: facts.load_errors.clone(),
            cuda_version: inventory
                .and_then(|inventory| inventory.cuda_version.as_deref())
                .map(|version| bounded(version, MAX_SHORT)),
            cuda_error: None,
        },
        gpu_pods: None,
        nvml: nvml(look, facts.bus.gpus.len()),
        runtimes: facts.runtimes.clone(),
        loaded_runtimes: Vec::new(),
    }
}

pub fn with_health(mut report: Report, health: &NodeHealth) -> Report {
    for gpu in &mut report.gpus {
        gpu.health = health.of(&gpu.pci_address);
    }
    report
}

/// Returns the report with the pods that have GPUs, as `<namespace>/<name>`.
pub fn with_gpu_pods(report: Report, names: Option<BTreeSet<String>>) -> Report {
    let gpu_pods = names.map(|names| GpuPods {
        count: u32::try_from(names.len()).unwrap_or(u32::MAX),
        names: names.iter().take(MAX_PODS).map(|name| bounded(name, MAX_POD)).collect(),
    });
    Report { gpu_pods, ..report }
}

pub fn with_cuda_error(error: Option<CudaError>, mut report: Report) -> Report {
    report.driver.cuda_error = error.map(|error| CudaError { name: bounded(&error.name, MAX_NAME), ..error });
    report
}

fn merge(gpu: &PciGpu, bus: &Bus, inventory: Option<&Inventory>, health: &NodeHealth) -> Gpu {
    let nvml = inventory.and_then(|inventory| inventory.gpus.iter().find(|known| known.pci_address == gpu.address));
    Gpu {
        pci_address: bounded(&gpu.address, MAX_ADDRESS),
        device_id: bounded(&gpu.device_id, MAX_NUMBER),
        pci_class: Some(bounded(&gpu.class, MAX_NUMBER)).filter(|class| !class.is_empty()),
        held_by: bus.held_by.get(&gpu.address).map(|driver| bounded(driver, MAX_NAME)),
        product: nvml.and_then(|known| known.name.as_deref()).map(|name| bounded(name, MAX_PRODUCT)),
        uuid: nvml.and_then(|known| known.uuid.as_deref()).map(|uuid| bounded(uuid, MAX_UUID)),
        mig_devices: nvml.and_then(|known| known.mig_devices.as_deref()).map(mig_devices),
        memory_mib: nvml.and_then(|known| known.memory_mib).map(whole),
        compute_capability: nvml
            .and_then(|known| known.compute_capability.as_deref())
            .map(|capability| bounded(capability, MAX_NUMBER)),
        mig_capable: nvml.and_then(|known| known.mig_capable),
        fabric_clique: nvml.and_then(|known| known.fabric_clique.as_deref()).map(|clique| bounded(clique, MAX_NAME)),
        health: health.of(&gpu.address),
    }
}

/// Limits the profiles to the bounds of the report.
fn mig_devices(devices: &[MigDevices]) -> Vec<MigDevices> {
    let bounded = |devices: &MigDevices| {
        let MigDevices { profile, count, attributes } = devices;
        let attributes = attributes.map(|has| MigAttributes { memory_mib: whole(has.memory_mib), ..has });
        MigDevices { profile: bounded(profile, MAX_PROFILE), count: *count, attributes }
    };
    devices.iter().take(MAX_PROFILES).map(bounded).collect()
}

fn virtual_gpus(known: &VirtualGpus) -> VirtualGpus {
    let short = |text: &Option<String>| text.as_deref().map(|text| bounded(text, MAX_SHORT));
    VirtualGpus {
        present: known.present,
        host_driver_version: short(&known.host_driver_version),
        host_driver_branch: short(&known.host_driver_branch),
    }
}

fn bridges(facts: &Facts) -> Option<Bridges> {
    let ids: BTreeSet<&str> = facts.bus.bridges.iter().map(String::as_str).collect();
    (!ids.is_empty()).then(|| Bridges {
        count: u32::try_from(facts.bus.bridges.len()).unwrap_or(u32::MAX),
        device_ids: ids.into_iter().take(MAX_DEVICES).map(|id| bounded(id, MAX_NUMBER)).collect(),
        fabric_manager: facts.fabric_manager,
    })
}

fn installed(driver: &InstalledDriver) -> InstalledDriver {
    let few = |names: &[String]| names.iter().take(MAX_DEVICES).map(|name| bounded(name, MAX_NAME)).collect();
    InstalledDriver {
        root: driver.root.clone(),
        version: bounded(&driver.version, MAX_NAME),
        missing_devices: few(&driver.missing_devices),
        unlisted_devices: few(&driver.unlisted_devices),
    }
}

fn nvml(look: &NvmlStatus, on_bus: usize) -> NvmlFacts {
    let message = match look {
        NvmlStatus::Absent(why) => why.clone(),
        NvmlStatus::Answering(inventory) => differences(inventory, on_bus),
        NvmlStatus::Failing(why) => Some(why.clone()),
        NvmlStatus::Released => None,
    };
    let gpus = look.inventory().map(|inventory| inventory.count);
    NvmlFacts { state: look.state(), gpus, message: message.map(|message| bounded(&message, MAX_MESSAGE)) }
}

/// Returns how NVML and the bus differ: which GPUs NVML does not open, and whether NVML counts more than there are.
fn differences(inventory: &Inventory, on_bus: usize) -> Option<String> {
    let refused = inventory.refused.iter().map(|refused| format!("{}: {}", refused.pci_address, refused.message));
    let more = usize::try_from(inventory.count).is_ok_and(|count| count > on_bus);
    let more = more.then(|| format!("NVML counts more GPUs ({}) than are on the PCI bus ({on_bus})", inventory.count));
    let text = refused.chain(more).collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

/// Limits a number: the API server reads a greater one as a fraction, and rejects it.
fn whole(number: u64) -> u64 {
    number.min(i64::MAX.unsigned_abs())
}

/// Truncates a text: the API's bounds count characters, not bytes.
fn bounded(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

/// Returns the pods with GPUs as `<namespace>/<name>`. `offered` lists the node's GPU resources in addition to those with NVIDIA's prefix.
pub fn gpu_pods(assignments: &[Assignment], offered: &[String]) -> BTreeSet<String> {
    let with_gpus = assignments.iter().filter(|assignment| is_gpu(assignment, offered));
    with_gpus.map(|Assignment { namespace, pod, .. }| format!("{namespace}/{pod}")).collect()
}

fn is_gpu(assignment: &Assignment, offered: &[String]) -> bool {
    match &assignment.source {
        _ if assignment.devices.is_empty() => false,
        Source::Resource(name) => name.starts_with(keys::RESOURCES) || offered.contains(name),
        Source::Claim(driver) => driver == keys::GPU_DRIVER,
    }
}

#[cfg(test)]
mod tests {
    use gpu_host::nvml::protocol::{NvmlGpu, RefusedGpu};
    use gpu_operator_crd::{health::CauseKind, report::NvmlState};

    use super::*;

    fn facts(addresses: &[&str]) -> Facts {
        let gpus = addresses
            .iter()
            .map(|address| PciGpu {
                address: (*address).to_owned(),
                device_id: "102d".to_owned(),
                class: "030200".to_owned(),
            })
            .collect();
        let bus = Bus { gpus, ..Bus::default() };
        Facts { boot_id: "boot".to_owned(), bus, loaded: Some("470.256.02".to_owned()), ..Facts::default() }
    }

    fn known(address: &str, uuid: &str) -> NvmlGpu {
        NvmlGpu {
            pci_address: address.to_owned(),
            uuid: Some(uuid.to_owned()),
            name: Some("Tesla K80".to_owned()),
            memory_mib: Some(11441),
            compute_capability: Some("3.7".to_owned()),
            mig_capable: Some(false),
            fabric_clique: Some("6b2c0001-0203-aabb-0405-060708090aff.1".to_owned()),
            ..NvmlGpu::default()
        }
    }

    fn answering(gpus: Vec<NvmlGpu>, refused: Vec<RefusedGpu>) -> NvmlStatus {
        NvmlStatus::Answering(Inventory {
            driver_version: "470.256.02".to_owned(),
            cuda_version: Some("11.4".to_owned()),
            count: u32::try_from(gpus.len()).unwrap(),
            gpus,
            refused,
            ..Inventory::default()
        })
    }

    fn report(facts: &Facts, look: &NvmlStatus) -> Report {
        build_report(facts, look, &NodeHealth::default())
    }

    #[test]
    fn nvml_values_are_joined_with_the_bus_by_address() {
        let look = answering(vec![known("0000:07:00.0", "GPU-seven"), known("0000:06:00.0", "GPU-six")], vec![]);
        let report = report(&facts(&["0000:06:00.0", "0000:07:00.0"]), &look);
        let uuids: Vec<_> = report.gpus.iter().map(|gpu| gpu.uuid.as_deref()).collect();
        assert_eq!(uuids, [Some("GPU-six"), Some("GPU-seven")]);
        assert_eq!(report.gpus[0].product.as_deref(), Some("Tesla K80"));
        assert_eq!(report.gpus[0].memory_mib, Some(11441));
        assert_eq!(report.driver.cuda_version.as_deref(), Some("11.4"));
        assert_eq!(report.nvml, NvmlFacts { state: NvmlState::Answering, gpus: Some(2), message: None });
        let six = &report.gpus[0];
        assert_eq!((six.pci_class.as_deref(), six.compute_capability.as_deref()), (Some("030200"), Some("3.7")));
        let clique = Some("6b2c0001-0203-aabb-0405-060708090aff.1");
        assert_eq!((six.mig_capable, six.fabric_clique.as_deref()), (Some(false), clique));
    }

    #[test]
    fn an_unlisted_gpu_stays_and_the_message_has_the_reason() {
        let lost = RefusedGpu { pci_address: "0000:06:00.0".into(), kind: CauseKind::GpuLost, message: "lost".into() };
        let look = answering(vec![known("0000:07:00.0", "GPU-seven")], vec![lost]);
        let report = report(&facts(&["0000:06:00.0", "0000:07:00.0"]), &look);
        let uuids: Vec<_> = report.gpus.iter().map(|gpu| (gpu.pci_address.as_str(), gpu.uuid.as_deref())).collect();
        assert_eq!(uuids, [("0000:06:00.0", None), ("0000:07:00.0", Some("GPU-seven"))]);
        assert_eq!(report.nvml.state, NvmlState::Answering);
        assert_eq!(report.nvml.message.as_deref(), Some("0000:06:00.0: lost"));
    }

    #[test]
    fn a_gpu_that_only_nvml_lists_is_not_added() {
        let look = answering(vec![known("0000:09:00.0", "GPU-nine")], vec![]);
        assert!(report(&facts(&[]), &look).gpus.is_empty());
        let NvmlStatus::Answering(mut inventory) = look else { panic!("it answers") };
        inventory.count = 1;
        let message = report(&facts(&[]), &NvmlStatus::Answering(inventory)).nvml.message.unwrap();
        assert!(message.contains("more GPUs (1) than are on the PCI bus (0)"), "{message}");
    }

    #[test]
    fn without_an_answer_the_values_that_need_a_driver_are_absent() {
        for (look, state, message) in [
            (NvmlStatus::Absent(None), NvmlState::Absent, None),
            (NvmlStatus::Absent(Some("why".into())), NvmlState::Absent, Some("why")),
            (NvmlStatus::Failing("hung".into()), NvmlState::Failing, Some("hung")),
            (NvmlStatus::Released, NvmlState::Released, None),
        ] {
            let report = report(&facts(&["0000:06:00.0"]), &look);
            assert_eq!(report.nvml, NvmlFacts { state, gpus: None, message: message.map(str::to_owned) });
            assert_eq!(report.gpus[0].uuid, None);
            assert_eq!(report.driver.cuda_version, None);
            assert_eq!(report.driver.loaded.as_deref(), Some("470.256.02"));
        }
    }

    #[test]
    fn no_report_exceeds_the_bounds_of_its_type() {
        let mut facts = facts(&["0000:06:00.0"; 100]);
        facts.boot_id = "ü".repeat(100);
        facts.os.id = "x".repeat(100);
        facts.machine = Some("x".repeat(1000));
        let long = Some("1".repeat(100));
        facts.bus.vgpu =
            Some(VirtualGpus { present: true, host_driver_version: long.clone(), host_driver_branch: long });
        facts.bus.bridges = (0..100).map(|number| format!("{number}").repeat(20)).collect();
        facts.installed =
            vec![InstalledDriver { root: "/".into(), version: "1.".repeat(100), ..InstalledDriver::default() }; 20];
        let report = report(&facts, &NvmlStatus::Failing("ü".repeat(5000)));
        assert_eq!(report.gpus.len(), 64);
        assert_eq!(report.boot_id.chars().count(), 64);
        assert_eq!(report.os.id.len(), 64);
        assert_eq!(report.machine.unwrap().len(), 128);
        assert_eq!(report.vgpu.unwrap().host_driver_branch.unwrap().len(), 16);
        let bridges = report.bridges.unwrap();
        assert_eq!((bridges.count, bridges.device_ids.len(), bridges.device_ids[0].len()), (100, 8, 8));
        assert_eq!(report.driver.installed.len(), 8);
        assert_eq!(report.driver.installed[0].version.len(), 64);
        assert_eq!(report.nvml.message.unwrap().chars().count(), 1024);
    }

    #[test]
    fn a_pod_counts_once_and_only_with_gpus() {
        let of = |pod: &str, source, devices: &[&str]| Assignment {
            namespace: "team".into(),
            pod: pod.into(),
            container: "main".into(),
            source,
            devices: devices.iter().map(|id| (*id).to_owned()).collect(),
        };
        let resource = |name: &str| Source::Resource(name.into());
        let assignments = [
            of("two", resource("nvidia.com/gpu"), &["GPU-1", "GPU-2"]),
            of("two", resource("nvidia.com/gpu"), &["GPU-3"]),
            of("mig", resource("nvidia.com/mig-1g.10gb"), &["MIG-1"]),
            of("renamed", resource("team.example/h100"), &["GPU-4"]),
            of("claims", Source::Claim("gpu.nvidia.com".into()), &["gpu-0"]),
            of("nic", resource("vendor.example/nic"), &["nic0"]),
            of("channel", Source::Claim("compute-domain.nvidia.com".into()), &["channel-0"]),
            of("none", resource("nvidia.com/gpu"), &[]),
        ];
        let names = |offered: &[String]| gpu_pods(&assignments, offered).into_iter().collect::<Vec<_>>();
        assert_eq!(names(&[]), ["team/claims", "team/mig", "team/two"]);
        let renamed = names(&["team.example/h100".to_owned()]);
        assert_eq!(renamed, ["team/claims", "team/mig", "team/renamed", "team/two"]);
    }
}
