//! What CUDA programs need beside a driver and allocatable GPUs: the NVLink fabric of a machine with `NVSwitches`, the device nodes of
//! unified memory, and a container runtime that supports CDI. Without them, kubelet starts pods whose programs fail, or no pods. For
//! everything else, CUDA's own initialisation on the node is the evidence.

use gpu_operator_crd::{
    Phase,
    health::CauseKind,
    policy::Stage,
    reason::Reason,
    report::{CDI_SPECS, CudaError, Gpu, InstalledDriver, Report},
};

use crate::{
    assess::{
        member::{Member, Wait},
        verdict::Verdict,
    },
    catalogue::{Catalogue, branch_of},
    clock::Clock,
    desired::{
        container_runtime::{self, Kind, Runtime},
        driver::DriverChoice,
    },
    settings::{FABRIC_GRACE, STAGE_GRACE},
};

/// Begins the names of the nodes that every CUDA program opens.
const UNIFIED_MEMORY: &str = "nvidia-uvm";

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const SYSTEM_NOT_READY: u32 = 802;
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`.
const DRIVER_MISMATCH: u32 = 803;
/// `CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE`.
const COMPAT_NOT_SUPPORTED: u32 = 804;

/// Returns what the node lacks for CUDA programs, as reported in this boot.
pub fn lacking(member: &Member<'_>, catalogue: &Catalogue, clock: &Clock) -> Option<Verdict> {
    let of_driver = || {
        let report = member.report?;
        let loaded = report.driver.loaded.as_deref()?;
        fabric(member, catalogue, report, loaded, clock)
            .or_else(|| unified_memory(member, report, loaded, clock))
            .or_else(|| initialisation(report))
    };
    runtime(member).or_else(of_driver)
}

/// While a fabric comes up, as after a boot, this is a state and not a failure.
fn fabric(member: &Member<'_>, catalogue: &Catalogue, report: &Report, loaded: &str, clock: &Clock) -> Option<Verdict> {
    let message = no_fabric_manager(member, catalogue, report, loaded)
        .or_else(|| not_joined(member, report))
        .or_else(|| not_ready(report))?;
    let wait = Wait { passing: Reason::FabricStarting, failure: Reason::FabricNotReady, grace: FABRIC_GRACE };
    Some(after(wait, member, message, clock))
}

/// Returns a verdict that is a failure only after a grace.
fn after(wait: Wait, member: &Member<'_>, message: String, clock: &Clock) -> Verdict {
    let waited = member.has_waited(Phase::Driver, wait, clock);
    Verdict::new(Phase::Driver, if waited { wait.failure } else { wait.passing }, message)
}

/// A100 and earlier GPUs do not report that they have not joined a fabric.
fn no_fabric_manager(member: &Member<'_>, catalogue: &Catalogue, report: &Report, loaded: &str) -> Option<String> {
    let bridges = report.bridges.as_ref().filter(|bridges| bridges.fabric_manager == Some(false))?;
    let is_switch = |id: &str| u16::from_str_radix(id, 16).is_ok_and(|id| catalogue.is_switch(id));
    let id = bridges.device_ids.iter().find(|id| is_switch(id))?;
    let branch = branch_of(loaded).map_or_else(String::new, |branch| format!("-{branch}"));
    let advice = match (member.driver(), member.pod(Stage::Driver)) {
        (Some(DriverChoice::Container { .. }), Some(pod)) => {
            format!("the driver's container starts it: see the log of pod {}", pod.name)
        }
        _ => format!(
            "install the fabric manager of driver {loaded} on the node (package nvidia-fabricmanager{branch} on Ubuntu) and start its service nvidia-fabricmanager"
        ),
    };
    Some(format!(
        "the machine has NVSwitches (10de:{id}), but no process nv-fabricmanager runs, without which CUDA programs fail with error 802; {advice}"
    ))
}

/// For GPUs that report it. A policy may allow some of them to be unhealthy.
fn not_joined(member: &Member<'_>, report: &Report) -> Option<String> {
    let is_outside = |gpu: &&Gpu| {
        let mut causes = gpu.health.causes.iter().filter(|cause| !cause.recovering);
        causes.any(|cause| cause.kind.known() == Some(CauseKind::FabricNotReady))
    };
    let (outside, all) = (report.gpus.iter().filter(is_outside).count(), report.gpus.len());
    let counts = outside == all || !member.is_complete();
    (outside > 0 && counts).then(|| {
        format!(
            "{outside} of {all} GPUs have not joined the NVLink fabric, without which CUDA programs fail with error 802; see the log of the fabric manager (nv-fabricmanager) that serves the machine's NVSwitches"
        )
    })
}

/// The error that CUDA gives GPUs of every generation that are not initialised by a fabric manager.
fn not_ready(report: &Report) -> Option<String> {
    let error = report.driver.cuda_error.as_ref().filter(|error| error.code == SYSTEM_NOT_READY)?;
    Some(format!(
        "{}: the NVLink fabric is not ready; see the log of the fabric manager (nv-fabricmanager) that serves the machine's NVSwitches",
        failed(error)
    ))
}

fn failed(error: &CudaError) -> String {
    let name = if error.name.is_empty() { String::new() } else { format!(" ({})", error.name) };
    format!("every CUDA program on the node fails with error {}{name}", error.code)
}

fn initialisation(report: &Report) -> Option<Verdict> {
    let error = report.driver.cuda_error.as_ref()?;
    let advice = match error.code {
        DRIVER_MISMATCH => "CUDA's library and the loaded module have different versions: reboot the node",
        COMPAT_NOT_SUPPORTED => {
            "a library of another driver's version is loaded in place of the driver's own: remove the package cuda-compat from the driver's root"
        }
        _ => "see the lines of NVRM in the node's kernel log; a reboot of the node reloads the driver",
    };
    let message = format!("{}, although NVML works; {advice}", failed(error));
    Some(Verdict::new(Phase::Driver, Reason::CudaInitFailed, message))
}

/// Nodes of the host are not created when a container opens them, unlike on the host itself. NVIDIA's runtime creates them, CDI does not.
/// For a driver's container there is evidence of its own. While a host boots, its services may still create them.
fn unified_memory(member: &Member<'_>, report: &Report, loaded: &str, clock: &Clock) -> Option<Verdict> {
    let choice = member.driver().filter(|choice| !matches!(choice, DriverChoice::Container { .. }))?;
    let by_cdi = member.toolkit()?.is_by_cdi() && member.want()?.device_plugin.is_some();
    let is_used = |found: &&InstalledDriver| found.root == choice.root() && found.version == loaded;
    let found = report.driver.installed.iter().find(is_used).filter(|_| by_cdi)?;
    let of_memory = |names: &[String]| {
        let names: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| name.starts_with(UNIFIED_MEMORY)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(missing) = of_memory(&found.missing_devices) {
        let message = format!(
            "/dev of the node lacks {missing}, without which CUDA programs fail; run nvidia-modprobe -u -c 0 on the node now and at every boot (the udev rules of some packages do it if a file in /etc/modules-load.d lists nvidia-uvm)"
        );
        let (passing, failure) = (Reason::DriverInstalling, Reason::DeviceNodesMissing);
        return Some(after(Wait { passing, failure, grace: STAGE_GRACE }, member, message, clock));
    }
    let unlisted = of_memory(&found.unlisted_devices)?;
    let pod = member.pod(Stage::DevicePlugin)?;
    let message = format!(
        "the CDI specification of pod {} lacks {unlisted}, without which CUDA programs fail: the pod wrote it before these device nodes existed; delete the pod, so that the next one writes it again",
        pod.name
    );
    Some(Verdict::new(Phase::DevicePlugin, Reason::DeviceNodesMissing, message))
}

/// Returns what the node's container runtime reports against CDI, if containers get their GPUs by CDI: kubelet keeps GPUs allocatable
/// although no container can have them. containerd 2.0 to 2.2 start such containers without their GPUs, later releases do not start them.
fn runtime(member: &Member<'_>) -> Option<Verdict> {
    let choice = member.toolkit().filter(|choice| choice.is_by_cdi())?;
    let loaded = container_runtime::loaded(member.node, member.report)?;
    let runtime = Runtime::of(&member.node.runtime);
    let is_enabled = loaded.cdi != Some(false);
    let is_read = |dir: &String| [CDI_SPECS, "/run/cdi"].contains(&dir.trim_end_matches('/'));
    if is_enabled && (loaded.cdi_spec_dirs.is_empty() || loaded.cdi_spec_dirs.iter().any(is_read)) {
        return None;
    }
    // CRI-O has no other key.
    let by_dirs = is_enabled || runtime.kind == Some(Kind::CriO);
    let has_loaded = if by_dirs {
        format!("cdi_spec_dirs = [{}]", loaded.cdi_spec_dirs.join(", "))
    } else {
        "enable_cdi = false".to_owned()
    };
    let (reason, remedy) = match choice.setup() {
        _ if by_dirs => {
            (Reason::CdiDisabled, format!(": add {CDI_SPECS} to cdi_spec_dirs in its configuration, and restart it"))
        }
        Some(setup) if has_latest(member) => {
            let files = setup.files().collect::<Vec<_>>().join(", ");
            (Reason::ToolkitInstalling, format!("; the toolkit enables CDI in {files}, and restarts it"))
        }
        _ => (
            Reason::CdiDisabled,
            "; the update of the toolkit enables CDI, or set enable_cdi = true in its configuration and restart it"
                .to_owned(),
        ),
    };
    let message = format!("{runtime} has loaded {has_loaded}, so no container can have a GPU{remedy}");
    Some(Verdict::new(Phase::Toolkit, reason, message))
}

fn has_latest(member: &Member<'_>) -> bool {
    member.want().is_some_and(|want| want.toolkit == member.have.toolkit)
}

/// Returns that the container runtime has another default than NVIDIA's runtime, which the toolkit has made the default: its configuration has
/// been changed since.
pub fn other_default(member: &Member<'_>) -> Option<Verdict> {
    let setup = member.toolkit()?.setup().filter(|setup| setup.default)?;
    let loaded = container_runtime::loaded(member.node, member.report)?;
    let is = loaded.default_runtime.as_ref().filter(|is| **is != setup.handler)?;
    let pod = member.pod(Stage::Toolkit).filter(|pod| pod.running() && has_latest(member))?;
    let runtime = Runtime::of(&member.node.runtime);
    let message = format!(
        "the default runtime of {runtime} is {is} instead of {}, so pods without a RuntimeClass get no GPU; delete pod {}: the next one configures the default in {} again",
        setup.handler,
        pod.name,
        setup.files().collect::<Vec<_>>().join(", ")
    );
    Some(Verdict::new(Phase::Toolkit, Reason::RuntimeConfigDrifted, message))
}
