//! Why a pod does not run or does not exist, from the error of the API server, the scheduler, kubelet, or the container itself.

use gpu_operator_crd::{policy::Stage, reason::Reason};

use crate::{
    assess::{
        error_line::error_line,
        installer_log::{Cause, cause},
    },
    clock::Clock,
    container_names::PREFLIGHT_DRIVER,
    ground::{
        Ground, PROBE_DAEMON_SET,
        pull_error::{PullError, lacks_image, without_back_off},
    },
    settings::GRACE,
    world::{ContainerFacts, ContainerState, Exit, PodFacts, Role},
};

/// Whether the API server has decided that, so that it answers the same next time.
pub fn is_decided(refusal: &str) -> bool {
    ["forbidden", "denied", "exceeded quota"].iter().any(|word| refusal.contains(word))
}

/// Returns `None` for a pod that runs or is still starting.
pub fn pod_failure(pod: &PodFacts, clock: &Clock) -> Option<(Reason, String)> {
    driver_failure(pod, &[], clock)
}

/// Like [`pod_failure`], for a driver about which the kernel has logged something: only that has the cause if the module was not loaded.
pub fn driver_failure(pod: &PodFacts, load_errors: &[String], clock: &Clock) -> Option<(Reason, String)> {
    if pod.unschedulable.is_some() {
        return unschedulable(pod, clock);
    }
    let mut containers = pod.init.iter().chain(&pod.containers);
    containers.find_map(|container| failure(pod, container, load_errors, clock))
}

/// Returns kubelet's error about the volumes of a pod whose sandbox does not exist: only an Event has it. Many such errors pass.
pub fn unmounted(ground: &Ground<'_>, pod: &PodFacts) -> Option<(Reason, String)> {
    let refusal = ground.refusals.get(pod.name.as_str()).filter(|_| pod.sandbox_since.is_none())?;
    Some((Reason::ContainerCrashed, format!("pod {} cannot start: {refusal}", pod.name)))
}

/// Returns why a probe does not report. `since` is when it should have reported, such as ` since the node was booted`.
pub fn silent_probe(pod: Option<&PodFacts>, failure: Option<(Reason, String)>, since: &str) -> String {
    match (failure, pod) {
        (Some((reason, message)), _) => format!("the probe does not report: {reason}: {message}"),
        (None, Some(pod)) => format!("probe pod {} is running but has not reported{since}; see its log", pod.name),
        (None, None) => format!(
            "DaemonSet {PROBE_DAEMON_SET} has no pod on the node; check its affinity, node selector and tolerations"
        ),
    }
}

/// The scheduler's words for a node on which another pod excludes this one.
const BESIDE_ANOTHER: &str = "anti-affinity";

/// Every pod is unschedulable for a moment, and a replacement until the scheduler tries again after the previous pod is gone, which may
/// take a minute: no pod of this operator has another anti-affinity.
pub fn unschedulable(pod: &PodFacts, clock: &Clock) -> Option<(Reason, String)> {
    let message = pod.unschedulable.as_ref().filter(|message| !message.contains(BESIDE_ANOTHER))?;
    let long = pod.created.is_some_and(|created| clock.passed(created.local(), GRACE));
    long.then(|| (Reason::PodUnschedulable, format!("pod {} cannot be scheduled: {message}", pod.name)))
}

/// Returns `None` for a container that runs or is still starting.
pub fn container_failure(pod: &PodFacts, container: &ContainerFacts, clock: &Clock) -> Option<(Reason, String)> {
    failure(pod, container, &[], clock)
}

fn failure(
    pod: &PodFacts,
    container: &ContainerFacts,
    load_errors: &[String],
    clock: &Clock,
) -> Option<(Reason, String)> {
    let named = |message: &str| format!("pod {}, container {}: {message}", pod.name, container.name);
    let crashed = |exit| crashed(pod, container, exit, load_errors);
    match (&container.state, container.last_failure.as_ref().filter(|exit| exit.is_failure())) {
        (ContainerState::Ended(exit), _) if exit.is_failure() => Some(crashed(exit)),
        (ContainerState::Running(Some(since)), Some(exit)) if !clock.passed(since.local(), GRACE) => {
            Some(crashed(exit))
        }
        (ContainerState::Waiting { reason, message }, last) => match (reason.as_str(), last) {
            ("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull", _) => {
                let words = without_back_off(message);
                let is_driver = pod.role == Role::Operand(Stage::Driver) || container.name == PREFLIGHT_DRIVER;
                Some(match PullError::of(words) {
                    PullError::Missing if is_driver => {
                        let advice = "check driver.version, or set your own image in driver.image";
                        (Reason::DriverImageNotFound, named(&format!("{words}; {advice}")))
                    }
                    PullError::Denied => {
                        let advice = "the registry denies the request: check that images.pullSecrets names a secret with valid credentials for it, and that the image exists";
                        (Reason::ImagePullFailed, named(&format!("{words}; {advice}")))
                    }
                    _ => (Reason::ImagePullFailed, named(words)),
                })
            }
            ("CrashLoopBackOff", Some(exit)) => Some(crashed(exit)),
            ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError", _) => {
                Some((Reason::ContainerCrashed, named(&format!("{reason}: {message}"))))
            }
            _ => None,
        },
        _ => None,
    }
}

fn crashed(pod: &PodFacts, container: &ContainerFacts, exit: &Exit, load_errors: &[String]) -> (Reason, String) {
    let words = if exit.message.is_empty() { "no message" } else { exit.message.as_str() };
    if let Some((reason, words)) = named_reason(words) {
        return (reason, words.to_owned());
    }
    let named = |line: &str| format!("pod {}, container {}: exit code {}: {line}", pod.name, container.name, exit.code);
    if let Some(Cause { reason, advice, line }) = cause(words).filter(|_| pod.role == Role::Operand(Stage::Driver)) {
        return (reason, format!("{advice} ({})", named(&line)));
    }
    let line = named(&error_line(words));
    match kernel_cause(load_errors) {
        Some((reason, Some(advice), sentence)) => (reason, format!("{advice} ({line}; kernel log: {sentence})")),
        Some((reason, None, sentence)) => (reason, format!("{line}; kernel log: {sentence}")),
        None => (Reason::ContainerCrashed, line),
    }
}

/// Returns why the kernel has not loaded a driver: the reason, how to fix it if that is known, and what it has logged.
pub fn kernel_cause(load_errors: &[String]) -> Option<(Reason, Option<&'static str>, String)> {
    let log = load_errors.join("\n");
    match cause(&log) {
        Some(Cause { reason, advice, line }) => Some((reason, Some(advice), line)),
        None => (!log.is_empty()).then(|| (Reason::ContainerCrashed, None, error_line(&log))),
    }
}

pub fn lacks_its_image(pod: &PodFacts) -> bool {
    pod.init.iter().chain(&pod.containers).any(lacks_image)
}

/// Returns the reason at the beginning of this operator's own containers' messages, and the rest.
pub fn named_reason(words: &str) -> Option<(Reason, &str)> {
    let (name, words) = words.split_once(": ")?;
    let known = [
        Reason::RuntimeConfigDrifted,
        Reason::RuntimeConfigRejected,
        Reason::RuntimeDown,
        Reason::MigBlocked,
        Reason::MigResetNeeded,
        Reason::MigLayoutRefused,
    ];
    known.into_iter().find(|reason| reason.as_str() == name).map(|reason| (reason, words))
}
