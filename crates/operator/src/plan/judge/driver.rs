//! Judgement of the driver stage.

use gpu_operator_crd::{
    policy::Stage,
    reason::{Phase, Reason},
    report::{CONTAINER_ROOT, InstalledDriver, NvmlState, Report},
};
use k8s_openapi::jiff::Timestamp;

use super::{
    super::{
        driver::{DriverChoice, GKE_DRIVER, GUARD, INSTALLER, installed_by_gke},
        member::Member,
    },
    Verdict, hold_up, no_pod, starting,
};
use crate::{
    moment::older,
    settings::GRACE,
    world::{ContainerState, PodFacts, World},
};

/// What holds the driver up, if anything does.
pub fn judge(member: &Member<'_>, world: &World, now: Timestamp) -> Option<Verdict> {
    let phase = Phase::Driver;
    let report = member.report()?;
    let loaded = report.driver.loaded.as_deref();
    let (choice, pod) = match member.driver()? {
        _ if member.driver_done() => return None,
        DriverChoice::Preinstalled { root } => {
            let installed = report.driver.installed.iter().find(|found| found.root == *root);
            if let Some(which) = installed_by_gke(member.node).filter(|_| installed.is_none() || loaded.is_none()) {
                let message = format!(
                    "GKE installs the driver, as the node's label {GKE_DRIVER}: {which} says; waiting for it under {root}"
                );
                return Some(Verdict::new(phase, Reason::DriverInstalling, message));
            }
            let installed = installed.map_or("?", |found| found.version.as_str());
            return Some(match loaded {
                None => Verdict::new(
                    phase,
                    Reason::DriverNotLoaded,
                    format!(
                        "driver {installed} is installed on the host but its kernel module is not loaded; load it or reboot the node"
                    ),
                ),
                Some(loaded) => Verdict::new(
                    phase,
                    Reason::RebootNeeded,
                    format!("kernel module {loaded} is loaded but the host's driver is {installed}; reboot the node"),
                ),
            });
        }
        choice => (choice, member.pod(Stage::Driver)),
    };
    let version = choice.version().unwrap_or("of its installer's choice");
    let Some(pod) = pod else {
        return Some(no_pod(member, world, Stage::Driver, phase));
    };
    if let Some((reason, message)) = hold_up(pod, now) {
        return Some(Verdict::new(phase, reason, message));
    }
    let other = loaded.filter(|loaded| !choice.fits(loaded));
    let is_there = |found: &InstalledDriver| found.root == choice.root() && choice.fits(&found.version);
    Some(match (other, pod.running_since()) {
        (_, None) if in_use_by_others(report) && runs_init(pod, GUARD) => in_use(phase, loaded.unwrap_or("?"), version),
        (Some(other), Some(_)) if choice.root() != CONTAINER_ROOT && report.driver.installed.iter().any(is_there) => {
            Verdict::new(
                phase,
                Reason::RebootNeeded,
                format!("driver {version} is installed but kernel module {other} is loaded; reboot the node"),
            )
        }
        (Some(other), Some(since)) if older(since, GRACE, now) => Verdict::new(
            phase,
            Reason::DriverVersionMismatch,
            format!("kernel module {other} is loaded instead of {version}; look at the log of pod {}", pod.name),
        ),
        (_, since) if since.is_some() || runs_init(pod, INSTALLER) => {
            Verdict::new(phase, Reason::DriverInstalling, format!("pod {} installs driver {version}", pod.name))
        }
        _ => starting(phase, pod),
    })
}

fn in_use(phase: Phase, loaded: &str, version: &str) -> Verdict {
    let why = if loaded == version {
        format!("driver {loaded} is loaded and in use, and this driver image would load it anew")
    } else {
        format!("driver {loaded} is loaded and in use, so {version} cannot take its place")
    };
    let advice = "end what uses the GPUs or reboot the node";
    Verdict::new(phase, Reason::DriverInUse, format!("{why}; {advice}"))
}

/// While the probe itself holds the driver, it cannot tell whether anybody else does.
fn in_use_by_others(report: &Report) -> bool {
    report.driver.in_use && report.nvml.state != NvmlState::Answering
}

fn runs_init(pod: &PodFacts, name: &str) -> bool {
    pod.init.iter().any(|init| init.name == name && matches!(init.state, ContainerState::Running(_)))
}
