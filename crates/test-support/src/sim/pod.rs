//! Pods as kubelet reports them: their containers start, wait and end.

use std::mem::replace;

use gpu_operator_crd::{NodeName, Report};
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Exit, ObservedTime, PodEnd, PodFacts, Role};
use k8s_openapi::{api::core::v1::PodSpec, jiff::Timestamp};

use super::faults::Faults;

/// The init container that stands for all that is slow about a pod's start.
pub(super) const SLOW_STEP: &str = "slow-step";

/// Returns whether a pod that starts slowly has not completed its slow step yet.
pub(super) fn is_slow(pod: &mut PodFacts, now: Timestamp, faults: &Faults) -> bool {
    if faults.slow == 0 {
        return false;
    }
    let since = start(pod, SLOW_STEP, now);
    if now.duration_since(since.local()).as_secs() < faults.slow {
        return true;
    }
    pod.init.retain(|init| init.name != SLOW_STEP);
    false
}

/// Lets an init container of a pod run, unless it does already, and returns since when.
fn start(pod: &mut PodFacts, name: &str, now: Timestamp) -> ObservedTime {
    let at = pod.init.iter().position(|init| init.name == name).unwrap_or_else(|| {
        let state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
        pod.init.push(ContainerFacts { name: name.into(), state, last_failure: None, ready: false });
        pod.init.len() - 1
    });
    pod.init[at].running_since().unwrap_or_else(|| {
        pod.init[at].state = ContainerState::Running(Some(now.into()));
        now.into()
    })
}

/// The init container of a toolkit pod that restarts the container runtime.
pub(super) const RESTART: &str = "restart-runtime";

/// Returns whether a toolkit pod restarts the container runtime.
pub(super) fn restarts_runtime(template: &PodSpec) -> bool {
    template.init_containers.iter().flatten().any(|init| init.name == RESTART)
}

/// Lets a driver pod wait at its guard while the loaded driver is in use.
pub(super) fn wait_at_guard(pod: &mut PodFacts, now: Timestamp) {
    start(pod, "guard-driver-in-use", now);
}

/// Ends a test: with success, or with a failure.
pub fn end_test(pod: &mut PodFacts, failure: Option<Exit>) {
    let (reason, message) = (String::new(), String::new());
    pod.end = Some(PodEnd { succeeded: failure.is_none(), reason, message, at: None });
    let exit = failure.unwrap_or(Exit { code: 0, message: "Completed".into() });
    for container in &mut pod.containers {
        container.state = ContainerState::Ended(exit.clone());
        container.ready = false;
    }
}

/// Returns the result of the gate before the later stages: a driver is loaded and installed, in the requested version
/// if one is set, and if a container installs the driver, that container runs.
pub(super) fn gate_opens(template: &PodSpec, machine: &Report, driver_runs: bool) -> bool {
    let gate = template.init_containers.iter().flatten().find_map(|init| init.args.as_ref()).expect("a gate");
    let value = |flag: &str| gate.iter().skip_while(|arg| *arg != flag).nth(1);
    let Some(loaded) = &machine.driver.loaded else { return false };
    value("--version").is_none_or(|wanted| wanted == loaded || loaded.starts_with(&format!("{wanted}.")))
        && (driver_runs || value("--pid-file").is_none())
        && machine
            .driver
            .installed
            .iter()
            .any(|found| Some(&found.root) == value("--driver-root") && found.version == *loaded)
}

pub(super) fn new_pod(name: &str, node: &NodeName, role: Role, now: Timestamp) -> PodFacts {
    let state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
    let main = ContainerFacts { name: "main".into(), state, last_failure: None, ready: false };
    PodFacts {
        name: name.into(),
        node: node.clone(),
        role,
        revision: None,
        applied: None,
        created: Some(now.into()),
        sandbox_since: Some(now.into()),
        deletion: None,
        unschedulable: None,
        end: None,
        init: vec![],
        containers: vec![main],
    }
}

pub(super) fn run(pod: &mut PodFacts, now: Timestamp) {
    for container in &mut pod.containers {
        // A container that found its configuration overwritten fails again on every restart.
        if matches!(&container.state, ContainerState::Ended(exit) if exit.message.starts_with("RuntimeConfigDrifted")) {
            continue;
        }
        if !matches!(container.state, ContainerState::Running(_)) {
            let before = replace(&mut container.state, ContainerState::Running(Some(now.into())));
            if let ContainerState::Ended(exit) = before {
                container.last_failure = Some(exit).filter(|exit| exit.code != 0);
            }
        }
        container.ready = true;
    }
}
