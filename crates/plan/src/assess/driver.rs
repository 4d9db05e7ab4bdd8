//! The verdict on the driver stage.

use gpu_operator_crd::{
    policy::Stage,
    reason::Reason,
    report::{CONTAINER_ROOT, InstalledDriver, Report},
    stage::Phase,
};
use k8s_openapi::jiff::Timestamp;

use super::nouveau;
use crate::{
    assess::{
        holders::Holders,
        member::Member,
        pod_failure::pod_failure,
        stage_pod::{no_pod, starting},
        verdict::Verdict,
    },
    container_names::{GUARD, INSTALLER},
    desired::{
        driver::{
            choice::DriverChoice,
            choose::{GKE_DRIVER, installed_by_gke},
        },
        fault::Fault,
    },
    note::Note,
    settings::GRACE,
    time::older,
    world::{ContainerState, PodFacts, World},
};

/// Returns the verdict on a node whose policy cannot be applied to it. A loaded module without libraries may belong to an
/// installer that is about to install them, so it counts as a fault only after [`GRACE`].
pub fn of_fault(member: &Member<'_>, fault: &Fault, now: Timestamp) -> Verdict {
    let before = member.status().filter(|before| before.phase == Phase::Driver);
    let waited = before.is_some_and(|before| match before.reason() {
        Some(Reason::DriverInstalling) => before.since().is_some_and(|since| older(since, GRACE, now)),
        reason => reason == Some(fault.reason),
    });
    if fault.reason != Reason::DriverLibraryNotFound || waited {
        return Verdict::new(Phase::Driver, fault.reason, fault.message.clone());
    }
    let message =
        "an NVIDIA kernel module is loaded, but its libraries are not installed yet; waiting for their installer";
    Verdict::new(Phase::Driver, Reason::DriverInstalling, message)
}

/// Returns the verdict on a driver that is not proven to work, or `None` if it is.
pub fn judge(member: &Member<'_>, evidence: Option<&Note>, world: &World, now: Timestamp) -> Option<Verdict> {
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
        return Some(or_evidence(no_pod(member, world, Stage::Driver, phase)));
    };
    if let Some(verdict) = nouveau::of_pod(report, pod, now) {
        return Some(verdict);
    }
    if let Some((reason, message)) = pod_failure(pod, now) {
        return Some(Verdict::new(phase, reason, message));
    }
    if member.driver_waits() && member.is_held_by_others() {
        return Some(in_use(member, phase, loaded.unwrap_or("?"), &wanted));
    }
    let other = loaded.filter(|loaded| !choice.fits(loaded));
    let is_there = |found: &InstalledDriver| found.root == choice.root() && choice.fits(&found.version);
    Some(match (other, pod.running_since()) {
        (_, None) if member.is_held_by_others() && runs_init(pod, GUARD) => {
            in_use(member, phase, loaded.unwrap_or("?"), &wanted)
        }
        (Some(other), Some(_)) if choice.root() != CONTAINER_ROOT && report.driver.installed.iter().any(is_there) => {
            Verdict::new(
                phase,
                Reason::RebootNeeded,
                format!("{wanted} is installed, but kernel module {other} is loaded; reboot the node"),
            )
        }
        (Some(other), Some(since)) if older(since.local(), GRACE, now) => Verdict::new(
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
        _ => or_evidence(starting(phase, pod)),
    })
}

/// Returns the verdict on a driver of the host that is not proven to work.
fn of_preinstalled(member: &Member<'_>, report: &Report, root: &str) -> Verdict {
    let phase = Phase::Driver;
    let loaded = report.driver.loaded.as_deref();
    if let Some(verdict) = foreign_installer(member, loaded).or_else(|| nouveau::of_host(report, loaded)) {
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
        None => Verdict::new(
            phase,
            Reason::DriverNotLoaded,
            format!(
                "driver {installed} is installed on the host, but its kernel module is not loaded; load it (modprobe nvidia) or reboot the node"
            ),
        ),
        Some(loaded) => other_is_loaded(loaded, installed),
    }
}

/// Returns the verdict on a node whose host has the libraries of another driver than the loaded one, as after an upgrade of its
/// packages: NVML and every new GPU container fail. A host whose libraries were not found at all proves nothing.
pub fn replaced_on_host(member: &Member<'_>) -> Option<Verdict> {
    let driver = &member.report?.driver;
    let loaded = driver.loaded.as_deref().filter(|_| !has_nvidias_container(member))?;
    let on_host = driver.installed.iter().find(|found| found.root != CONTAINER_ROOT)?;
    let is_found = driver.installed.iter().any(|found| found.version == loaded);
    (!is_found).then(|| other_is_loaded(loaded, &on_host.version))
}

/// Returns whether NVIDIA's container installs the driver of a node. A pending driver may have another source than the one that the
/// node has.
pub fn has_nvidias_container(member: &Member<'_>) -> bool {
    let wants_nvidias = || matches!(member.driver(), Some(DriverChoice::Container { .. }));
    member.have.driver.is_some() && member.pod(Stage::Driver).map_or_else(wants_nvidias, PodFacts::is_nvidia_driver)
}

fn other_is_loaded(loaded: &str, installed: &str) -> Verdict {
    let message =
        format!("kernel module {loaded} is loaded, but driver {installed} is installed on the host; reboot the node");
    Verdict::new(Phase::Driver, Reason::RebootNeeded, message)
}

/// Returns the verdict on a node whose driver is installed by a third-party DaemonSet, while no module is loaded.
fn foreign_installer(member: &Member<'_>, loaded: Option<&str>) -> Option<Verdict> {
    let owner = member.external.present(Stage::Driver).filter(|_| loaded.is_none())?;
    let message = format!(
        "{owner} installs the driver on this node, but no kernel module is loaded yet; if this takes too long, see the log of its pod on this node (kubectl logs -c NAME for an init container)"
    );
    Some(Verdict::new(Phase::Driver, Reason::DriverInstalling, message))
}

/// Returns the verdict on a driver directory in the policy that contains no driver, or not the loaded one.
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
