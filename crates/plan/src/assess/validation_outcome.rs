//! The outcome of a test, from what its pod has come to.

use gpu_operator_crd::validated::ValidationResult;
use k8s_openapi::jiff::Timestamp;

use crate::{
    settings::VALIDATION_WAITS,
    time::older,
    world::{ContainerState, PodEnd, PodFacts},
};

/// Kubelet's word where the deadline of a pod has passed.
const OVERDUE: &str = "DeadlineExceeded";
/// How kubelet's words begin where a pod came that it has nothing left for, such as `OutOfnvidia.com/gpu`.
const OUT_OF: &str = "OutOf";

/// What a test that passes says: NVIDIA's samples do.
const PASSED: &str = "Test PASSED";

/// By what a test that has ended well has passed.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'w> {
    /// By that alone.
    ExitCode,
    /// By what it has said at the end, once that has been asked for.
    Words(Option<&'w Result<String, String>>),
}

/// What has come of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It may still pass.
    Open,
    /// It has ended well, and what it has said has to be read.
    Unread,
    /// That could not be read, or not all of it, for this reason, and is tried again.
    Unreadable(String),
    /// That came of it, with what is to be said of it.
    Ended(ValidationResult, String),
}

/// What has come of a test.
#[must_use]
pub fn outcome(pod: &PodFacts, proof: Proof<'_>, now: Timestamp) -> Outcome {
    let name = &pod.name;
    let Some(end) = &pod.end else {
        let since = pod.created.filter(|created| older(*created, VALIDATION_WAITS, now));
        return match (since, &pod.unschedulable) {
            (Some(since), Some(why)) => Outcome::Ended(
                ValidationResult::Skipped,
                format!("there was no place for pod {name} since {since}: {why}"),
            ),
            _ => Outcome::Open,
        };
    };
    if end.succeeded {
        let late = end.at.or(pod.created).is_none_or(|ended| older(ended, VALIDATION_WAITS, now));
        return ended_well(name, proof, late);
    }
    let (result, message) = if end.reason.starts_with(OUT_OF) {
        (ValidationResult::Skipped, format!("there was no place for pod {name}: {}", end.message))
    } else {
        (ValidationResult::Failed, format!("pod {name}: {}", why_it_failed(pod, end)))
    };
    Outcome::Ended(result, message)
}

fn ended_well(name: &str, proof: Proof<'_>, late: bool) -> Outcome {
    let (result, message) = match proof {
        Proof::ExitCode => (ValidationResult::Passed, format!("pod {name} has passed: its exit code is 0")),
        Proof::Words(None) => return Outcome::Unread,
        Proof::Words(Some(Ok(words))) if words.contains(PASSED) => {
            (ValidationResult::Passed, format!("pod {name} has said {PASSED}"))
        }
        // The runtime may still be writing it.
        Proof::Words(Some(Ok(_))) if !late => return Outcome::Unreadable(format!("it does not say {PASSED}")),
        Proof::Words(Some(Ok(words))) => {
            let words = if words.trim().is_empty() { "nothing at all" } else { words.trim() };
            (ValidationResult::Failed, format!("pod {name} has ended well and not said {PASSED}, but {words}"))
        }
        Proof::Words(Some(Err(why))) if !late => return Outcome::Unreadable(why.clone()),
        // NVIDIA's samples exit with 0 for no other reason, and a log that nobody can read is no fault of the GPUs.
        Proof::Words(Some(Err(why))) => (
            ValidationResult::Passed,
            format!("pod {name} has passed: its exit code is 0, and what it has said cannot be read: {why}"),
        ),
    };
    Outcome::Ended(result, message)
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
