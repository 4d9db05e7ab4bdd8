//! The outcome of a test, from what its pod has come to.

use gpu_operator_crd::validated::ValidationResult;
use k8s_openapi::jiff::Timestamp;

use crate::{
    moment::older,
    settings::VALIDATION_WAITS,
    world::{ContainerState, PodEnd, PodFacts},
};

/// Kubelet's word where the deadline of a pod has passed.
const OVERDUE: &str = "DeadlineExceeded";
/// How kubelet's words begin where a pod came that it has nothing left for, such as `OutOfnvidia.com/gpu`.
const OUT_OF: &str = "OutOf";

/// What has come of a test, with what is to be said of it; nothing while it may still pass.
#[must_use]
pub fn outcome(pod: &PodFacts, now: Timestamp) -> Option<(ValidationResult, String)> {
    let name = &pod.name;
    let Some(end) = &pod.end else {
        let since = pod.created.filter(|created| older(*created, VALIDATION_WAITS, now))?;
        let why = pod.unschedulable.as_ref()?;
        return Some((ValidationResult::Skipped, format!("there was no place for pod {name} since {since}: {why}")));
    };
    Some(if end.succeeded {
        (ValidationResult::Passed, format!("pod {name} has passed"))
    } else if end.reason.starts_with(OUT_OF) {
        (ValidationResult::Skipped, format!("there was no place for pod {name}: {}", end.message))
    } else {
        (ValidationResult::Failed, format!("pod {name}: {}", why_it_failed(pod, end)))
    })
}

/// The test's own words first, and what kubelet has to say where it was kubelet that ended it.
fn why_it_failed(pod: &PodFacts, end: &PodEnd) -> String {
    let containers = pod.containers.iter().find_map(|container| match &container.state {
        ContainerState::Ended(exit) if exit.code != 0 => Some(format!("exit code {}: {}", exit.code, exit.message)),
        ContainerState::Waiting { reason, message } if !reason.is_empty() => Some(format!("{reason}: {message}")),
        _ => None,
    });
    let kubelets = match end.reason.as_str() {
        "" => None,
        OVERDUE => Some("it has not ended within readiness.validation.timeout".to_owned()),
        reason => Some(format!("{reason}: {}", end.message)),
    };
    let words: Vec<String> = kubelets.into_iter().chain(containers).collect();
    if words.is_empty() { "it has failed and said nothing".to_owned() } else { words.join("; ") }
}
