//! The verdict on a node: its phase, and what keeps it from being ready. Proof of a later stage implies the earlier ones, so
//! the last one is checked first.

use gpu_operator_crd::{
    GpuNodeStatus, NodeConditionType, Phase, keys,
    policy::{MigStrategy, Stage},
    reason::Reason,
    report::{HostRuntime, NvmlState},
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{
        cuda, driver,
        member::{Member, Wait},
        pod_failure::{pod_failure, silent_probe, unmounted},
        validation::ValidationState,
        verdict::{Verdict, gpu_missing, no_pod, runs, stage_pod_failure, starting},
    },
    clock::Clock,
    container_names::INSTALL_TOOLKIT,
    desired::{Desired, driver::DriverChoice, expected_resources::ExpectedResources, toolkit::ToolkitChoice},
    ground::Ground,
    note::{Note, listed},
    settings::{REPORT_GRACE, STAGE_GRACE},
    time::later,
    world::{ContainerState, PublishedGpus},
};

#[derive(Debug)]
pub struct Evidence<'a> {
    pub validation: &'a ValidationState,
    /// Why the host's driver does not support the node's GPUs.
    pub host_driver: Option<String>,
    pub against_driver: Option<&'a Note>,
    pub broken_stage: Option<&'a Verdict>,
    /// What CUDA programs need and the node does not have.
    pub lacks_for_cuda: Option<Verdict>,
}

pub fn judge(member: &Member<'_>, evidence: Evidence<'_>, ground: &Ground<'_>, clock: &Clock) -> Verdict {
    let Evidence { validation, host_driver, against_driver, broken_stage, lacks_for_cuda } = evidence;
    let node = member.node;
    if node.deleting {
        return Verdict::new(last_phase(member), Reason::NodeDeleting, "the Node is being deleted");
    }
    if !node.ready {
        return Verdict::new(last_phase(member), Reason::NodeNotReady, "the Node is not Ready; check its conditions");
    }
    if let Some(verdict) = unproven_plugin(member) {
        return verdict;
    }
    if member.is_complete() && member.is_believable() && against_driver.is_none() {
        let counts = |broken: &&Verdict| {
            let from = member.status().and_then(|status| broken_stage_counts_from(broken, status));
            from.is_some_and(|from| clock.reached(from))
        };
        if let Some(broken) = broken_stage.filter(counts) {
            return broken.clone();
        }
        if let Some(lacks) = lacks_for_cuda {
            return lacks;
        }
        if let Some((reason, message)) = &validation.hold {
            return Verdict::new(Phase::Validation, *reason, message.clone());
        }
        return Verdict::new(Phase::Ready, Reason::AllGpusAllocatable, allocatable(member));
    }
    match &member.target {
        Desired::Unknown if node.runtime_is_silent() => return silent_runtime(member, clock),
        Desired::Unknown => return without_report(member, ground, clock),
        Desired::Unsatisfiable(fault) => return driver::of_fault(member, fault, clock),
        Desired::Variant(_) => {}
    }
    // Without any GPU no driver can start, and the driver's error would be less specific.
    if let Some(verdict) = gpu_missing(member, Phase::Driver).filter(|_| member.on_bus() == 0) {
        return verdict;
    }
    if let Some(why) = host_driver {
        return Verdict::new(Phase::Driver, Reason::DriverUnsupported, why);
    }
    // A toolkit that is being installed may have a problem of its own.
    let (by_toolkit, lacks) = match lacks_for_cuda.filter(|lacks| lacks.phase != Phase::DevicePlugin) {
        Some(lacks) if lacks.reason == Reason::ToolkitInstalling => (Some(lacks), None),
        lacks => (None, lacks),
    };
    driver::judge(member, against_driver, ground, clock)
        .or_else(|| by_claims(member))
        .or(lacks)
        .or_else(|| toolkit(member, ground, clock))
        .or(by_toolkit)
        .or_else(|| mps(member, ground, clock))
        .unwrap_or_else(|| device_plugin(member, ground, clock))
}

/// A limitation of `injection: NRI`: NRI plugins cannot read the device plugin's response to kubelet. It annotates containers, but NVIDIA's
/// NRI plugin reads annotations of pods.
const NRI_IS_IDLE: &str = "pods that request GPUs get them as CDI devices, as with injection: CDI: NVIDIA's NRI plugin serves only pods in this operator's namespace that list devices in an annotation";

fn allocatable(member: &Member<'_>) -> String {
    let (units, gpus) = (member.allocatable(), member.expected.unwrap_or_default());
    // A third-party plugin may offer each GPU to several pods.
    let whole = member.expected_units() == member.expected && units <= gpus;
    let resources = match (whole, units, gpus) {
        _ if member.resource_layout.by_claims => format!("{units} GPUs are allocatable by resource claims"),
        (true, 1, _) => "1 GPU is allocatable".to_owned(),
        (true, ..) => format!("{units} GPUs are allocatable"),
        (false, _, 1) => format!("{units} units of 1 GPU are allocatable"),
        (false, ..) => format!("{units} units of {gpus} GPUs are allocatable"),
    };
    let driver = member.report.map(|report| &report.driver);
    let driver = match (member.driver(), driver.and_then(|driver| driver.loaded.as_deref())) {
        (Some(DriverChoice::Preinstalled { .. }), Some(version)) => {
            Some(format!("driver {version} is installed on the host and left unchanged"))
        }
        _ => None,
    };
    let runtime = match member.toolkit() {
        Some(ToolkitChoice::Host(runtime)) => Some(of_host_runtime(member, runtime)),
        Some(ToolkitChoice::Nri { .. }) => Some(NRI_IS_IDLE.to_owned()),
        _ => None,
    };
    let class = member.toolkit().and_then(ToolkitChoice::class_to_name);
    let class = class.map(|class| format!("pods that request GPUs must set runtimeClassName: {class}"));
    [Some(resources), driver, runtime, class].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn of_host_runtime(member: &Member<'_>, HostRuntime { file, handler, .. }: &HostRuntime) -> String {
    if member.report.is_some_and(|report| report.runtimes.iter().any(|found| found.file == *file)) {
        return format!("runtime {handler} is configured on the host and left unchanged");
    }
    format!(
        "runtime {handler} of the host is no longer in {file}; restore it, or set foreignStack: TakeOver so that this operator installs its own"
    )
}

/// While it may be the node's former plugin whose GPUs are still allocatable.
fn unproven_plugin(member: &Member<'_>) -> Option<Verdict> {
    let is_unproven = member.report.is_some() && member.external.is_unproven();
    is_unproven.then(|| {
        let message = format!(
            "{} {} are allocatable, but no device plugin of this operator runs on this node; if that lasts for two minutes, a third-party one serves the node, and this operator installs none beside it ({})",
            member.allocatable(),
            member.requestable_name(),
            member.external.candidates()
        );
        Verdict::new(Phase::DevicePlugin, Reason::ForeignDevicePlugin, message)
    })
}

/// A node that is NotReady or being deleted keeps its phase.
fn last_phase(member: &Member<'_>) -> Phase {
    match member.status().map(|status| status.phase) {
        // Ready means that pods can be scheduled, which is not the case now.
        Some(Phase::Ready) => Phase::DevicePlugin,
        // A policy governs the node now.
        Some(Phase::Unmanaged) | None => Phase::Discovery,
        Some(phase) => phase,
    }
}

/// The Node becomes NotReady if that lasts. The toolkit's pod, if it restarted the runtime, has the more specific error.
fn silent_runtime(member: &Member<'_>, clock: &Clock) -> Verdict {
    if let Some((reason, message)) = member.pod(Stage::Toolkit).and_then(|pod| pod_failure(pod, clock)) {
        return Verdict::new(Phase::Toolkit, reason, message);
    }
    let message = "kubelet does not report the version of its container runtime, because the runtime does not answer; the node's components are left unchanged";
    Verdict::new(last_phase(member), Reason::NodeNotReady, message)
}

fn without_report(member: &Member<'_>, ground: &Ground<'_>, clock: &Clock) -> Verdict {
    let failure = member.probe_pod().and_then(|pod| pod_failure(pod, clock));
    let (late, since) = if member.report_is_outdated() {
        let wait = Wait { passing: Reason::WaitingForReport, failure: Reason::ProbeMissing, grace: REPORT_GRACE };
        (member.has_waited(Phase::Discovery, wait, clock), " since the node was booted")
    } else {
        (member.report_due().is_none_or(|due| clock.reached(due)), "")
    };
    if failure.is_none() && !late {
        let message = format!("the probe has not yet reported{since}");
        return Verdict::new(Phase::Discovery, Reason::WaitingForReport, message);
    }
    let failure = failure.or_else(|| unmounted(ground, member.probe_pod()?));
    Verdict::new(Phase::Discovery, Reason::ProbeMissing, silent_probe(member.probe_pod(), failure, since))
}

/// Returns `None` for a toolkit that is proven to work.
fn toolkit(member: &Member<'_>, ground: &Ground<'_>, clock: &Clock) -> Option<Verdict> {
    let phase = Phase::Toolkit;
    if member.want()?.toolkit.is_none() {
        // Some plugins need none, and some hosts have one.
        return handler_missing(member, phase);
    }
    let Some(pod) = member.pod(Stage::Toolkit) else {
        return Some(no_pod(member, ground, Stage::Toolkit, phase, clock));
    };
    if pod.running() {
        return handler_missing(member, phase);
    }
    if let Some(verdict) = stage_pod_failure(member, Stage::Toolkit, pod, phase, clock) {
        return Some(verdict);
    }
    let installing =
        pod.init.iter().any(|init| init.name == INSTALL_TOOLKIT && matches!(init.state, ContainerState::Running(_)));
    Some(if installing {
        Verdict::new(phase, Reason::ToolkitInstalling, format!("pod {} is installing the container toolkit", pod.name))
    } else {
        starting(member, ground, phase, pod, clock)
    })
}

/// For a kubelet that does not list NVIDIA's runtime yet. One that lists no runtimes at all, because its container runtime does not report
/// them, proves nothing.
fn handler_missing(member: &Member<'_>, phase: Phase) -> Option<Verdict> {
    let handler = member.toolkit()?.handler()?;
    let known = &member.node.runtime_handlers;
    let missing = !known.is_empty() && !known.contains(handler);
    missing.then(|| {
        let message = match member.toolkit() {
            Some(ToolkitChoice::Host(runtime)) => {
                format!(
                    "runtime {handler} is configured in {}, but kubelet does not list it; restart the container runtime",
                    runtime.file
                )
            }
            _ => format!("kubelet does not list runtime {handler} yet"),
        };
        Verdict::new(phase, Reason::ToolkitInstalling, message)
    })
}

/// For GPUs that are allocated to resource claims instead of by a device plugin.
fn by_claims(member: &Member<'_>) -> Option<Verdict> {
    let how = member.external.by_claims()?;
    let missing = gpu_missing(member, Phase::DevicePlugin).map(|verdict| verdict.message);
    // Problems of the GPUs affect claims as well.
    let unhealthy = member.health.note.as_ref().map(|note| note.message.clone());
    let message = [Some(how), missing, unhealthy].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Some(Verdict::new(Phase::DevicePlugin, Reason::ForeignDraDriver, message))
}

fn mps(member: &Member<'_>, ground: &Ground<'_>, clock: &Clock) -> Option<Verdict> {
    // Until its update begins, a node that has no daemon yet waits for its device plugin alone.
    member.have.mps.as_ref()?;
    runs(member, ground, Stage::Mps, clock).err()
}

fn device_plugin(member: &Member<'_>, ground: &Ground<'_>, clock: &Clock) -> Verdict {
    let phase = Phase::DevicePlugin;
    let waits_for = if member.want().is_some_and(|want| want.device_plugin.is_none()) {
        let awaited = member.external.awaited(Stage::DevicePlugin);
        awaited
            .unwrap_or_else(|| "waiting for the third-party device plugin (devicePlugin.flavor: External)".to_owned())
    } else {
        match runs(member, ground, Stage::DevicePlugin, clock) {
            Ok(pod) => format!("waiting for kubelet and pod {}", pod.name),
            Err(verdict) => return verdict,
        }
    };
    // It is known for every node with a report: the GPUs on the bus count, and a node without any is no GPU node.
    let expected = member.expected.unwrap_or_default();
    if let Some(verdict) = gpu_missing(member, phase) {
        return verdict;
    }
    let nvml = member.report.map(|report| &report.nvml);
    if let Some(nvml) = nvml.filter(|nvml| nvml.state == NvmlState::Failing) {
        let error = nvml.message.as_deref().unwrap_or("no answer");
        let message = format!("NVML fails: {error}; search the node's kernel log for NVRM and Xid");
        return Verdict::new(phase, Reason::NvmlFailed, message);
    }
    if member.health.unhealthy > 0 {
        let message = member.health.note.as_ref().map(|note| note.message.clone()).unwrap_or_default();
        return Verdict::new(phase, Reason::GpuUnhealthy, message);
    }
    let lacking =
        member.expected_resources.as_ref().and_then(|expected_resources| expected_resources.lacks(&member.served));
    let waits_for = lacking.and_then(|(name, there, _)| withheld(member, name, there)).unwrap_or(waits_for);
    let message = match lacking {
        Some(_) if member.resource_layout.by_claims => unpublished(member, &waits_for),
        None if member.expected_units() == Some(0) => {
            "the GPUs are in MIG mode and have no MIG device; create MIG devices, or set devicePlugin.mig.strategy: None"
                .to_owned()
        }
        Some((name, there, promised)) if name != keys::GPU_RESOURCE || member.expected_units() != member.expected => {
            format!("{there} of {promised} {name} are allocatable; {waits_for}")
        }
        _ => format!("{} of {expected} GPUs are allocatable; {waits_for}", member.allocatable()),
    };
    Verdict::new(phase, Reason::WaitingForAllocatable, message)
}

/// For GPUs that the DRA driver does not publish, or with a taint.
fn unpublished(member: &Member<'_>, waits_for: &str) -> String {
    let PublishedGpus { usable, tainted, .. } = &member.published;
    let gpus = member.report.map(|report| report.gpus.as_slice()).unwrap_or_default();
    let known: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
    let missing = known.iter().filter(|uuid| !usable.contains(**uuid));
    let described =
        missing.map(|uuid| if tainted.contains(*uuid) { format!("{uuid} (tainted)") } else { (*uuid).to_owned() });
    let described: Vec<_> = described.collect();
    let which = if described.is_empty() { String::new() } else { format!(" without {}", listed(&described)) };
    let expected = member.expected.unwrap_or_default();
    format!("{} of {expected} GPUs are published in ResourceSlices{which}; {waits_for}", usable.len())
}

/// For devices that a serving plugin reports as unhealthy, if no other cause is known.
fn withheld(member: &Member<'_>, name: &str, there: u32) -> Option<String> {
    let withheld = member.node.withheld.amount(name);
    // For a plugin that has just started, or is gone, kubelet lists all devices, and none is allocatable.
    (withheld > 0 && there > 0).then(|| {
        let plugin =
            member.pod(Stage::DevicePlugin).map_or("the device plugin".to_owned(), |pod| format!("pod {}", pod.name));
        let (verb, them) = if withheld == 1 { ("is", "it") } else { ("are", "them") };
        format!(
            "{withheld} more {verb} registered but not allocatable: {plugin} reports {them} as unhealthy; see its log"
        )
    })
}

// Allocatable GPUs seem to prove a stage that broke after its node had become ready, but no new GPU pod can start: kubelet keeps devices
// allocatable as long as the device plugin runs.

/// The stages that GPU pods need while they start. The driver's container has evidence of its own, and without a device plugin no GPU is
/// allocatable.
const NEEDED: [Stage; 2] = [Stage::Toolkit, Stage::Mps];

/// Returns the verdict on the first broken stage. After a reboot that is not reported yet, nothing is known of the stages.
pub fn broken_stage(member: &Member<'_>, ground: &Ground<'_>, clock: &Clock) -> Option<Verdict> {
    member.report?;
    let needed = || NEEDED.into_iter().filter(|stage| member.have.get(*stage).is_some());
    driver::replaced_on_host(member)
        .or_else(|| needed().find_map(|stage| runs(member, ground, stage, clock).err()))
        .or_else(|| too_many_gpus(member))
        .or_else(|| cuda::other_default(member))
}

/// For more allocatable GPUs than this operator's plugin can offer: kubelet lists those of the plugin that has registered last. A pool's
/// number of GPUs is a minimum. While MIG devices are not known, their number is no measure.
fn too_many_gpus(member: &Member<'_>) -> Option<Verdict> {
    let plugin = member.pod(Stage::DevicePlugin).filter(|pod| pod.running() && member.rollout().is_none())?;
    let (report, layout) = (member.report?, &member.resource_layout);
    if layout.mig != MigStrategy::None && report.nvml.state != NvmlState::Answering {
        return None;
    }
    // With a DRA driver kubelet has none.
    let gpus = if layout.by_claims { 0 } else { member.expected?.max(member.on_bus()) };
    let whole = ExpectedResources::of(gpus, 0, Some(report), layout);
    let (name, there, whole) = whole.exceeded(&member.node.allocatable)?;
    let (own, others) = (&plugin.name, member.external.candidates());
    let message = if layout.by_claims {
        format!(
            "{there} {name} are allocatable beside the GPUs of the DRA driver, pod {own}: a device plugin serves this node, too ({others}); remove it, or write allocation.mode: DevicePlugin and devicePlugin.flavor: External"
        )
    } else {
        format!(
            "{there} {name} are allocatable, but the node's GPUs make {whole}: another device plugin serves this node beside pod {own} ({others}); remove one of the two, or write devicePlugin.flavor: External; if there is no other one, delete pod {own} to register its GPUs again"
        )
    };
    Some(Verdict::new(Phase::DevicePlugin, Reason::TooManyGpus, message))
}

/// Returns when a broken stage, which may only be restarting, counts against Ready. It is recorded in the stage's condition, so the time is
/// measured by this operator's clock alone.
fn broken_stage_counts_from(broken: &Verdict, status: &GpuNodeStatus) -> Option<Timestamp> {
    let kind = match broken.phase {
        Phase::Driver => NodeConditionType::DriverReady,
        Phase::Toolkit => NodeConditionType::ToolkitReady,
        _ => NodeConditionType::DevicePluginReady,
    };
    let mut conditions = status.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == kind.as_str() && condition.status == "False")?;
    Some(later(condition.last_transition_time.0, STAGE_GRACE))
}
