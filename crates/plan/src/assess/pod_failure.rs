//! What is the matter with a pod, or with there being none, in the words of whoever says it.

use gpu_operator_crd::{policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::installer_log::{complaint, says_not_found},
    settings::GRACE,
    time::older,
    world::{ContainerFacts, ContainerState, Exit, PodFacts, Role, World},
};

/// The chart's name for the probe's DaemonSet.
const PROBE_DAEMON_SET: &str = "nvml-probe";

/// What the API server says to the probe's pods, while there are none.
#[must_use]
pub fn probe_refusal(world: &World) -> Option<&str> {
    refusal(world, PROBE_DAEMON_SET, |pod| pod.role == Role::Probe)
}

/// What the API server says to a DaemonSet's pods, if that still holds: it has taken none since. A quota takes some and
/// refuses others.
pub fn refusal<'w>(world: &'w World, set: &str, is_of_set: impl Fn(&PodFacts) -> bool) -> Option<&'w str> {
    let refusal = world.refusals.get(set)?;
    let words = refusal.message.as_str();
    let forbidden = words.contains("forbidden") || words.contains("denied");
    let taken = world.pods.values().filter(|pod| is_of_set(pod)).filter_map(|pod| pod.created).max();
    let taken_since = taken.is_some_and(|taken| refusal.at.is_some_and(|at| taken > at));
    (words.contains("exceeded quota") || forbidden && !taken_since).then_some(words)
}

/// What keeps a pod from running, in the words of whoever keeps it.
#[must_use]
pub fn hold_up(pod: &PodFacts, now: Timestamp) -> Option<(Reason, String)> {
    if let Some(message) = &pod.unschedulable {
        // For a moment every pod is that, and one that takes another's place until the other is gone.
        let long = pod.created.is_some_and(|created| older(created, GRACE, now));
        return long.then(|| (Reason::PodUnschedulable, format!("pod {}: {message}", pod.name)));
    }
    pod.init.iter().chain(&pod.containers).find_map(|container| container_hold_up(pod, container, now))
}

fn container_hold_up(pod: &PodFacts, container: &ContainerFacts, now: Timestamp) -> Option<(Reason, String)> {
    let named = |message: &str| format!("pod {}, container {}: {message}", pod.name, container.name);
    let crashed = |exit| crashed(pod, container, exit);
    match (&container.state, &container.last_failure) {
        (ContainerState::Ended(exit), _) if exit.code != 0 => Some(crashed(exit)),
        (ContainerState::Running(Some(since)), Some(exit)) if !older(*since, GRACE, now) => Some(crashed(exit)),
        (ContainerState::Waiting { reason, message }, last) => match (reason.as_str(), last) {
            ("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull", _) => {
                let words = pull_error(message);
                if pod.role == Role::Operand(Stage::Driver) && says_not_found(words) {
                    let advice = "check the version, or write driver.image with an image of your own";
                    return Some((Reason::DriverImageNotFound, named(&format!("{words}; {advice}"))));
                }
                Some((Reason::ImagePullFailed, named(words)))
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

fn crashed(pod: &PodFacts, container: &ContainerFacts, exit: &Exit) -> (Reason, String) {
    let words = if exit.message.is_empty() { "no message" } else { exit.message.as_str() };
    if let Some((reason, words)) = named_reason(words) {
        return (reason, words.to_owned());
    }
    let message = format!("pod {}, container {}: exit code {}: {words}", pod.name, container.name, exit.code);
    match complaint(words).filter(|_| pod.role == Role::Operand(Stage::Driver)) {
        // The advice first: last words can be long.
        Some((reason, advice)) => (reason, format!("{advice} ({message})")),
        None => (Reason::ContainerCrashed, message),
    }
}

/// Whether a pod cannot start because there is no image of its name.
#[must_use]
pub fn lacks_its_image(pod: &PodFacts) -> bool {
    pod.init.iter().chain(&pod.containers).any(|container| match &container.state {
        ContainerState::Waiting { reason, message } => {
            ["ErrImagePull", "ImagePullBackOff"].contains(&reason.as_str()) && says_not_found(pull_error(message))
        }
        _ => false,
    })
}

/// The reason that a container of ours names itself, and what it says of it.
#[must_use]
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

/// Kubelet says the same twice, once with `Back-off pulling image …: ErrImagePull: ` before it; without that the two
/// are one message, and one transition.
fn pull_error(message: &str) -> &str {
    message.split_once("ErrImagePull: ").map_or(message, |(_, error)| error)
}
