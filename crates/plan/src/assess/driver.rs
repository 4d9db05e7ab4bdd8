//! The verdict on the driver stage.

use gpu_operator_crd::{
    GpuNodeStatus,
    policy::Stage,
    reason::Reason,
    report::{CONTAINER_ROOT, DriverFacts, InstalledDriver, Report},
    stage::Phase,
};

use crate::{
    assess::{
        bound_gpus,
        holders::Holders,
        member::{Member, Wait},
        pod_failure::{driver_failure, kernel_cause},
        verdict::{Verdict, no_pod, starting},
    },
    clock::Clock,
    container_names::{DEVICE_NODES, GUARD, INSTALLER},
    desired::driver::{
        DriverChoice,
        choose::{GKE_DRIVER, installed_by_gke},
    },
    ground::Ground,
    note::{Fault, Note},
    settings::{GRACE, ROOT_GRACE},
    world::{ContainerState, PodFacts},
};

/// A loaded module without libraries may belong to an installer that is about to install them, so it counts as a fault only after
/// [`GRACE`].
pub fn of_fault(member: &Member<'_>, fault: &Fault, clock: &Clock) -> Verdict {
    let wait = Wait { passing: Reason::DriverInstalling, failure: fault.reason, grace: GRACE };
    let waited = || member.has_waited(Phase::Driver, wait, clock);
    if fault.reason != Reason::DriverLibraryNotFound || waited() {
        return Verdict::new(Phase::Driver, fault.reason, fault.message.clone());
    }
    let message =
        "an NVIDIA kernel module is loaded, but its libraries are not installed yet; waiting for their installer";
    Verdict::new(Phase::Driver, Reason::DriverInstalling, message)
}

/// Returns `None` for a driver that is proven to work.
pub fn judge(member: &Member<'_>, evidence: Option<&Note>, ground: &Ground<'_>, clock: &Clock) -> Option<Verdict> {
    let phase = Phase::Driver;
    let report = member.report?;
    let loaded = report.driver.loaded.as_deref();
    let (choice, pod) = match member.driver()? {
        _ if member.driver_done() && evidence.is_none() => return None,
        DriverChoice::Preinstalled { root } => return Some(of_preinstalled(member, report, root)),
        choice => (choice, member.pod(Stage::Driver)),
    };
    let wanted = choice
        .version()
        .map_or_else(|| "the driver chosen by its installer".to_owned(), |version| format!("driver {version}"));
    // Specific evidence is more useful than the fact that a pod is starting.
    let or_evidence = |verdict: Verdict| match evidence {
        Some(Note { reason, message, .. }) if verdict.reason == Reason::PodStarting => {
            Verdict::new(phase, *reason, message.clone())
        }
        _ => verdict,
    };
    let Some(pod) = pod else {
        return Some(or_evidence(no_pod(member, ground, Stage::Driver, phase, clock)));
    };
    if let Some(verdict) = bound_gpus::of_pod(report, pod, clock) {
        return Some(verdict);
    }
    if let Some((reason, message)) = driver_failure(pod, &report.driver.load_errors, clock) {
        return Some(Verdict::new(phase, reason, message));
    }
    if member.guard_is_waiting() && member.driver_in_use_by_others() {
        return Some(in_use(member, phase, loaded.unwrap_or("?"), &wanted));
    }
    let other = loaded.filter(|loaded| !choice.fits(loaded));
    let is_there = |found: &InstalledDriver| found.root == choice.root() && choice.fits(&found.version);
    Some(match (other, pod.running_since()) {
        (_, None) if member.driver_in_use_by_others() && runs_init(pod, GUARD) => {
            in_use(member, phase, loaded.unwrap_or("?"), &wanted)
        }
        (Some(other), Some(_)) if choice.root() != CONTAINER_ROOT && report.driver.installed.iter().any(is_there) => {
            Verdict::new(
                phase,
                Reason::RebootNeeded,
                format!("{wanted} is installed, but kernel module {other} is loaded; reboot the node"),
            )
        }
        (Some(other), Some(since)) if clock.passed(since.local(), GRACE) => Verdict::new(
            phase,
            Reason::DriverVersionMismatch,
            format!("kernel module {other} is loaded instead of {wanted}; see the log of pod {}", pod.name),
        ),
        (_, Some(_)) if let Some(Note { reason, message, .. }) = evidence => {
            Verdict::new(phase, *reason, message.clone())
        }
        (_, since) if since.is_some() || runs_init(pod, INSTALLER) => {
            Verdict::new(phase, Reason::DriverInstalling, format!("pod {} is installing {wanted}", pod.name))
        }
        _ => or_evidence(starting(member, ground, phase, pod, clock)),
    })
}

fn of_preinstalled(member: &Member<'_>, report: &Report, root: &str) -> Verdict {
    let phase = Phase::Driver;
    let loaded = report.driver.loaded.as_deref();
    let bound = || if loaded.is_none() { bound_gpus::on_host(report) } else { None };
    if let Some(verdict) = foreign_installer(member, loaded).or_else(bound) {
        return verdict;
    }
    let installed = report.driver.installed.iter().find(|found| found.root == root);
    if let Some(which) = installed_by_gke(member.node).filter(|_| installed.is_none() || loaded.is_none()) {
        let message = format!(
            "GKE installs the driver according to the node's label {GKE_DRIVER}={which}; waiting for it under {root}"
        );
        return Verdict::new(phase, Reason::DriverInstalling, message);
    }
    let Some(installed) = installed.map(|found| found.version.as_str()) else {
        return nothing_there(loaded, root);
    };
    match loaded {
        None => not_loaded(report, installed),
        Some(loaded) => other_is_loaded(loaded, installed),
    }
}

fn not_loaded(report: &Report, installed: &str) -> Verdict {
    let (reason, advice, kernel) = match kernel_cause(&report.driver.load_errors) {
        Some((reason, advice, sentence)) => (Some(reason), advice, format!(" (kernel log: {sentence})")),
        None => (None, None, String::new()),
    };
    let advice = advice.unwrap_or("load it (modprobe nvidia) or reboot the node");
    let message =
        format!("driver {installed} is installed on the host, but its kernel module is not loaded{kernel}; {advice}");
    let reason = reason.filter(|reason| *reason != Reason::ContainerCrashed).unwrap_or(Reason::DriverNotLoaded);
    Verdict::new(Phase::Driver, reason, message)
}

/// For a host whose libraries are not of the loaded driver, as after an upgrade of its packages: NVML and new GPU containers fail. A host
/// without found libraries proves nothing.
pub fn replaced_on_host(member: &Member<'_>) -> Option<Verdict> {
    let driver = &member.report?.driver;
    let loaded = driver.loaded.as_deref().filter(|_| !has_nvidias_container(member))?;
    let on_host = driver.installed.iter().find(|found| found.root != CONTAINER_ROOT)?;
    let is_found = driver.installed.iter().any(|found| found.version == loaded);
    (!is_found).then(|| other_is_loaded(loaded, &on_host.version))
}

/// A pending driver may have another source than the one that the node has.
fn has_nvidias_container(member: &Member<'_>) -> bool {
    let wants_nvidias = || matches!(member.driver(), Some(DriverChoice::Container { .. }));
    member.have.driver.is_some() && member.pod(Stage::Driver).map_or_else(wants_nvidias, PodFacts::is_nvidia_driver)
}

fn other_is_loaded(loaded: &str, installed: &str) -> Verdict {
    let message =
        format!("kernel module {loaded} is loaded, but driver {installed} is installed on the host; reboot the node");
    Verdict::new(Phase::Driver, Reason::RebootNeeded, message)
}

fn foreign_installer(member: &Member<'_>, loaded: Option<&str>) -> Option<Verdict> {
    let owner = member.external.present(Stage::Driver).filter(|_| loaded.is_none())?;
    let message = format!(
        "{owner} installs the driver on this node, but no kernel module is loaded yet; if this takes too long, see the log of its pod on this node (kubectl logs -c NAME for an init container)"
    );
    Some(Verdict::new(Phase::Driver, Reason::DriverInstalling, message))
}

/// For a directory in the policy that contains no driver, or not the loaded one.
fn nothing_there(loaded: Option<&str>, root: &str) -> Verdict {
    let (reason, message) = match loaded {
        Some(loaded) => (
            Reason::DriverLibraryNotFound,
            format!(
                "kernel module nvidia {loaded} is loaded, but libnvidia-ml.so.{loaded} is not under {root}; set driver.installDir to the directory that contains it"
            ),
        ),
        None => (
            Reason::DriverNotInstalled,
            format!(
                "no driver is installed under {root} and no driver is loaded; install one there, or correct driver.installDir"
            ),
        ),
    };
    Verdict::new(Phase::Driver, reason, message)
}

fn in_use(member: &Member<'_>, phase: Phase, loaded: &str, wanted: &str) -> Verdict {
    let loaded = format!("driver {loaded}");
    let why = if loaded == wanted {
        format!("{loaded} is loaded and in use, and this driver image would reload it")
    } else {
        format!("{loaded} is loaded and in use, so {wanted} cannot replace it")
    };
    let advice = "stop the programs that use the GPUs, or reboot the node";
    let pods = member.gpu_pods.iter().flat_map(|pods| pods.holders().map(|pod| pod.name.clone()));
    let waits_on = pods.chain(Holders::of(member).names()).take(10).collect();
    Verdict { waits_on, ..Verdict::new(phase, Reason::DriverInUse, format!("{why}; {advice}")) }
}

fn runs_init(pod: &PodFacts, name: &str) -> bool {
    pod.init.iter().any(|init| init.name == name && matches!(init.state, ContainerState::Running(_)))
}

// Allocatable GPUs seem to prove a driver, but kubelet keeps devices allocatable after a device plugin has registered them, even if
// no container can be started with them any more.

/// Returns the evidence against NVIDIA's driver container. During an update every stage is proven, so none is needed.
pub fn against_driver(member: &Member<'_>, clock: &Clock) -> Option<Note> {
    let facts = &member.report?.driver;
    let pod = member.pod(Stage::Driver);
    if member.rollout().is_some() {
        return None;
    }
    if !has_nvidias_container(member) {
        return left_behind(member);
    }
    // Until a plugin has found the driver, nothing is lost: a container that has just started is still creating its root, and
    // the probe may see the module before kubelet reports that the container runs.
    let plugin = member.pod(Stage::DevicePlugin);
    let was_there = plugin.is_some_and(PodFacts::has_started);
    let known = |reason| member.status().is_some_and(|status| status.reason() == Some(reason));
    let Some((pod, since)) = pod.and_then(|pod| Some((pod, pod.running_since()?))) else {
        if is_served_by_another(member, plugin) {
            return None;
        }
        let has_failed = pod.is_some_and(PodFacts::has_failed);
        let was_ready = member.allocatable() > 0 && member.status().is_some_and(GpuNodeStatus::is_ready);
        let is_unreported = plugin.zip(pod).is_some_and(|(plugin, pod)| plugin.proves_running(pod));
        let is_lost = has_failed || known(Reason::DriverDown) || !is_unreported && (was_there || was_ready);
        return (facts.loaded.is_some() && is_lost).then(|| Note::new(Reason::DriverDown, down(pod)));
    };
    let lacks = lacking(facts, pod)?;
    let is_lost = known(Reason::DriverRootIncomplete) || was_there && clock.passed(since.local(), ROOT_GRACE);
    let reason = if is_lost { Reason::DriverRootIncomplete } else { Reason::DriverInstalling };
    let message = match reason {
        Reason::DriverInstalling => format!("pod {} is installing the driver: {lacks}", pod.name),
        _ => format!("{lacks}; no GPU pod can start: delete pod {} to recreate the driver's root", pod.name),
    };
    Some(Note::new(reason, message))
}

/// For the driver of a third party whose container has ended while it was in use, before this operator's is installed.
fn left_behind(member: &Member<'_>) -> Option<Note> {
    let facts = &member.report?.driver;
    let loaded = facts.loaded.as_deref().filter(|_| facts.container_ran && facts.installed.is_empty())?;
    let is_due = member.have.driver.is_none() && matches!(member.driver(), Some(DriverChoice::Container { .. }));
    is_due.then(|| {
        let message = format!(
            "driver {loaded} is loaded, but its libraries are gone with the container that installed it; running GPU pods keep their GPUs, but no other GPU pod can start on this node until this operator has installed the driver"
        );
        Note::new(Reason::DriverDown, message)
    })
}

/// Whether the driver's container of another revision still runs, and the device plugin was started after it.
fn is_served_by_another(member: &Member<'_>, plugin: Option<&PodFacts>) -> bool {
    let found = plugin.and_then(PodFacts::running_since);
    let mut drivers = member.pods_of(Stage::Driver).filter_map(PodFacts::running_since);
    drivers.any(|started| found.is_some_and(|found| started <= found))
}

/// Returns what the driver's root lacks.
fn lacking(facts: &DriverFacts, pod: &PodFacts) -> Option<String> {
    // A running plugin found a loaded driver and keeps it loaded: a report without one is outdated.
    let loaded = facts.loaded.as_ref()?;
    let root = facts.installed.iter().find(|found| found.root == CONTAINER_ROOT && found.version == *loaded);
    let Some(root) = root else {
        return Some(format!(
            "driver {loaded} is loaded, but there is no libnvidia-ml.so.{loaded} under {CONTAINER_ROOT}"
        ));
    };
    (!root.missing_devices.is_empty()).then(|| {
        let missing = root.missing_devices.join(", ");
        format!("{CONTAINER_ROOT}/dev lacks {missing}, which container {DEVICE_NODES} of pod {} creates", pod.name)
    })
}

fn down(pod: Option<&PodFacts>) -> String {
    let state = match pod {
        None => "has no pod".to_owned(),
        Some(pod) => match pod.containers.first().map(|container| &container.state) {
            Some(ContainerState::Waiting { reason, .. }) if !reason.is_empty() => {
                format!("of pod {} is waiting: {reason}", pod.name)
            }
            Some(ContainerState::Ended(exit)) => {
                format!("of pod {} terminated with exit code {}", pod.name, exit.code)
            }
            _ => format!("of pod {} is not running", pod.name),
        },
    };
    format!(
        "the driver's container {state}; running GPU pods keep their GPUs, but no other GPU pod can start on this node until the container is running again"
    )
}
