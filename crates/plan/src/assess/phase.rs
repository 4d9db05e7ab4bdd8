//! Judgement: how far a node is and what holds it up. Proof of a later stage implies the earlier ones, so the last is
//! looked at first.

use gpu_operator_crd::{
    keys,
    policy::Stage,
    reason::{Phase, Reason},
    report::{HostRuntime, NvmlState},
};
use k8s_openapi::jiff::Timestamp;

use super::driver;
use crate::{
    assess::{
        driver_evidence::against_driver,
        member::Member,
        pod_failure::hold_up,
        stage_pod::{gpu_missing, no_pod, runs, stage_hold_up, starting},
        validation::Trial,
        verdict::Verdict,
    },
    container_names::INSTALL_TOOLKIT,
    desired::{driver::choice::DriverChoice, node::Desired, toolkit::choice::ToolkitChoice},
    world::{ContainerState, World},
};

/// How far a node is and what holds it up.
#[must_use]
pub fn judge(
    member: &Member<'_>,
    trial: &Trial,
    host_driver: Option<String>,
    world: &World,
    now: Timestamp,
) -> Verdict {
    let node = member.node;
    if node.deleting {
        return Verdict::new(last_phase(member), Reason::NodeDeleting, "the Node is being deleted");
    }
    if !node.ready {
        return Verdict::new(last_phase(member), Reason::NodeNotReady, "the Node is not Ready; look at its conditions");
    }
    if member.is_complete() && member.is_believable() && against_driver(member, now).is_none() {
        if let Some((reason, message)) = &trial.hold {
            return Verdict::new(Phase::Validation, *reason, message.clone());
        }
        return Verdict::new(Phase::Ready, Reason::AllGpusAllocatable, allocatable(member));
    }
    match &member.desired {
        Desired::Unknown if node.runtime_is_silent() => return silent_runtime(member, now),
        Desired::Unknown => return without_report(member, now),
        Desired::Unsatisfiable(fault) => return driver::of_fault(member, fault, now),
        Desired::Variant(_) => {}
    }
    // Without any GPU no driver can start, and its words would say less.
    if let Some(verdict) = gpu_missing(member, Phase::Driver).filter(|_| member.on_bus() == 0) {
        return verdict;
    }
    if let Some(why) = host_driver {
        return Verdict::new(Phase::Driver, Reason::DriverUnsupported, why);
    }
    driver::judge(member, world, now)
        .or_else(|| by_claims(member))
        .or_else(|| toolkit(member, world, now))
        .or_else(|| mps(member, world, now))
        .unwrap_or_else(|| device_plugin(member, world, now))
}

/// What a user of `injection: Nri` may not expect. The device plugin cannot answer kubelet in a way that NRI plugins read: its
/// annotations are a container's, and NVIDIA's NRI plugin reads those of pods.
const NRI_IS_IDLE: &str = "pods that request GPUs get them as CDI devices, as with injection: Cdi: NVIDIA's NRI plugin serves only pods of this operator's namespace that name devices in an annotation";

/// What the scheduler can give out, in a sentence.
fn allocatable(member: &Member<'_>) -> String {
    let (units, gpus) = (member.allocatable(), member.expected.unwrap_or_default());
    let whole = member.promised() == member.expected;
    let told = if whole {
        format!("{units} GPUs are allocatable")
    } else {
        format!("{units} parts of {gpus} GPUs are allocatable")
    };
    let driver = member.report().map(|report| &report.driver);
    let driver = match (member.driver(), driver.and_then(|driver| driver.loaded.as_deref())) {
        (Some(DriverChoice::Preinstalled { .. }), Some(version)) => {
            Some(format!("driver {version} is the host's and left alone"))
        }
        _ => None,
    };
    let runtime = match member.toolkit() {
        Some(ToolkitChoice::Host(runtime)) => Some(of_host_runtime(member, runtime)),
        Some(ToolkitChoice::Nri { .. }) => Some(NRI_IS_IDLE.to_owned()),
        _ => None,
    };
    [Some(told), driver, runtime].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn of_host_runtime(member: &Member<'_>, HostRuntime { file, handler, .. }: &HostRuntime) -> String {
    if member.report().is_some_and(|report| report.runtimes.iter().any(|found| found.file == *file)) {
        return format!("runtime {handler} is the host's and left alone");
    }
    format!(
        "runtime {handler} was the host's and is in {file} no more; write foreignStack: TakeOver to let this operator install its own"
    )
}

/// A node that is away keeps the phase it had.
fn last_phase(member: &Member<'_>) -> Phase {
    match member.status().map(|status| status.phase) {
        // Ready promises that pods can be scheduled, which is not so now.
        Some(Phase::Ready) => Phase::DevicePlugin,
        // Somebody governs it now.
        Some(Phase::Unmanaged) | None => Phase::Discovery,
        Some(phase) => phase,
    }
}

/// Such a Node is about to be NotReady, if the runtime does not come back. Who restarted it knows more.
fn silent_runtime(member: &Member<'_>, now: Timestamp) -> Verdict {
    if let Some((reason, message)) = member.pod(Stage::Toolkit).and_then(|pod| hold_up(pod, now)) {
        return Verdict::new(Phase::Toolkit, reason, message);
    }
    let message = "kubelet cannot tell the version of its container runtime, which does not answer; what is on the node stays as it is";
    Verdict::new(last_phase(member), Reason::NodeNotReady, message)
}

fn without_report(member: &Member<'_>, now: Timestamp) -> Verdict {
    if let Some((reason, message)) = member.probe_pod().and_then(|pod| hold_up(pod, now)) {
        return Verdict::new(
            Phase::Discovery,
            Reason::ProbeMissing,
            format!("the probe does not report: {reason}: {message}"),
        );
    }
    if member.report_due().is_none_or(|due| now >= due) {
        let message = match member.probe_pod() {
            Some(pod) => format!("pod {} runs but has not reported; look at its log", pod.name),
            None => "no pod of DaemonSet nvml-probe is on the node; look at its affinity and tolerations".to_owned(),
        };
        return Verdict::new(Phase::Discovery, Reason::ProbeMissing, message);
    }
    Verdict::new(Phase::Discovery, Reason::WaitingForReport, "the probe has not reported yet")
}

fn toolkit(member: &Member<'_>, world: &World, now: Timestamp) -> Option<Verdict> {
    let phase = Phase::Toolkit;
    if member.want()?.toolkit.is_none() {
        // Some plugins need none, and some hosts bring it.
        return handler_missing(member, phase);
    }
    let Some(pod) = member.pod(Stage::Toolkit) else {
        return Some(no_pod(member, world, Stage::Toolkit, phase));
    };
    if pod.running() {
        return handler_missing(member, phase);
    }
    if let Some(verdict) = stage_hold_up(member, Stage::Toolkit, pod, phase, now) {
        return Some(verdict);
    }
    let installing =
        pod.init.iter().any(|init| init.name == INSTALL_TOOLKIT && matches!(init.state, ContainerState::Running(_)));
    Some(if installing {
        Verdict::new(phase, Reason::ToolkitInstalling, format!("pod {} installs the container toolkit", pod.name))
    } else {
        starting(phase, pod)
    })
}

/// That kubelet does not know NVIDIA's runtime yet. One that tells of no runtimes at all, for want of a container runtime
/// that does, proves nothing.
fn handler_missing(member: &Member<'_>, phase: Phase) -> Option<Verdict> {
    let handler = member.toolkit()?.handler()?;
    let known = &member.node.runtime_handlers;
    let missing = !known.is_empty() && !known.contains(handler);
    missing.then(|| {
        let message = match member.toolkit() {
            Some(ToolkitChoice::Host(runtime)) => {
                format!(
                    "{} has runtime {handler}, and kubelet does not know it; restart the container runtime",
                    runtime.file
                )
            }
            _ => format!("kubelet does not know runtime {handler} yet"),
        };
        Verdict::new(phase, Reason::ToolkitInstalling, message)
    })
}

/// That claims of pods get the node's GPUs, and no device plugin.
fn by_claims(member: &Member<'_>) -> Option<Verdict> {
    let how = member.external.by_claims()?;
    let missing = gpu_missing(member, Phase::DevicePlugin).map(|verdict| verdict.message);
    // What is the matter with its GPUs concerns claims as well.
    let sick = member.health.note.as_ref().map(|note| note.message.clone());
    let message = [Some(how), missing, sick].into_iter().flatten().collect::<Vec<_>>().join("; ");
    Some(Verdict::new(Phase::DevicePlugin, Reason::ForeignDraDriver, message))
}

fn mps(member: &Member<'_>, world: &World, now: Timestamp) -> Option<Verdict> {
    member.want()?.mps?;
    runs(member, world, Stage::Mps, now).err()
}

fn device_plugin(member: &Member<'_>, world: &World, now: Timestamp) -> Verdict {
    let phase = Phase::DevicePlugin;
    let waits_for = if member.want().is_some_and(|want| want.device_plugin.is_none()) {
        let awaited = member.external.awaited(Stage::DevicePlugin);
        awaited
            .unwrap_or_else(|| "waiting for the third-party device plugin (devicePlugin.flavor: External)".to_owned())
    } else {
        match runs(member, world, Stage::DevicePlugin, now) {
            Ok(pod) => format!("waiting for kubelet and pod {}", pod.name),
            Err(verdict) => return verdict,
        }
    };
    let Some(expected) = member.expected else {
        let message = "how many GPUs to expect is not known: the bus shows none; write gpusPerNode in the node's pool";
        return Verdict::new(phase, Reason::ExpectedUnknown, message);
    };
    if let Some(verdict) = gpu_missing(member, phase) {
        return verdict;
    }
    let nvml = member.report().map(|report| &report.nvml);
    if let Some(nvml) = nvml.filter(|nvml| nvml.state == NvmlState::Failing) {
        let message = nvml.message.as_deref().unwrap_or("NVML does not answer");
        return Verdict::new(phase, Reason::NvmlFailed, message);
    }
    if member.health.unhealthy > 0 {
        let message = member.health.note.as_ref().map(|note| note.message.clone()).unwrap_or_default();
        return Verdict::new(phase, Reason::GpuUnhealthy, message);
    }
    let lacking = member.promise.as_ref().and_then(|promise| promise.lacks(&member.node.allocatable));
    let waits_for = lacking.and_then(|(name, there, _)| withheld(member, name, there)).unwrap_or(waits_for);
    let message = match lacking {
        None if member.promised() == Some(0) => {
            "its GPUs are in MIG mode and have no MIG device; make some, or write devicePlugin.mig.strategy: None"
                .to_owned()
        }
        Some((name, there, promised)) if name != keys::GPU_RESOURCE || member.promised() != member.expected => {
            format!("{there} of {promised} {name} are allocatable; {waits_for}")
        }
        _ => format!("{} of {expected} GPUs are allocatable; {waits_for}", member.allocatable()),
    };
    Verdict::new(phase, Reason::WaitingForAllocatable, message)
}

/// What a device plugin that serves holds back, where nothing else is known to be the matter.
fn withheld(member: &Member<'_>, name: &str, there: u32) -> Option<String> {
    let withheld = member.node.withheld.amount(name);
    // Of a plugin that has just begun, or is gone, kubelet knows all and offers none.
    (withheld > 0 && there > 0).then(|| {
        let plugin =
            member.pod(Stage::DevicePlugin).map_or("the device plugin".to_owned(), |pod| format!("pod {}", pod.name));
        format!("kubelet knows {withheld} more, which {plugin} holds for unhealthy: its log says why")
    })
}
