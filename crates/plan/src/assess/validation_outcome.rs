//! The outcome of a validation test, from the state of its pod.

use gpu_operator_crd::gpunode::ValidationResult;
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::error_line::error_line,
    settings::VALIDATION_WAITS,
    time::older,
    world::{ContainerState, PodEnd, PodFacts},
};

/// Kubelet's reason for a pod that exceeded its deadline.
const OVERDUE: &str = "DeadlineExceeded";
/// The beginning of kubelet's reason for a pod that it cannot admit because a resource is exhausted, such as
/// `OutOfnvidia.com/gpu`.
const OUT_OF: &str = "OutOf";

/// The line that NVIDIA's samples print if they pass.
const PASSED: &str = "Test PASSED";

/// The criterion by which a test that exited with code 0 has passed.
#[derive(Clone, Copy, Debug)]
pub enum Proof<'w> {
    /// The exit code alone.
    ExitCode,
    /// The end of its log, or the error of reading it; `None` before it was read.
    Log(Option<&'w Result<String, String>>),
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is not known yet; the test may still pass.
    Open,
    /// The test exited with code 0, and its log has to be read.
    Unread,
    /// The log could not be read, or not completely, for this reason. It is read again.
    Unreadable(String),
    /// The result, with the message for the record.
    Ended(ValidationResult, String),
}

/// Returns the outcome of a test.
pub fn outcome(pod: &PodFacts, proof: Proof<'_>, now: Timestamp) -> Outcome {
    let name = &pod.name;
    let Some(end) = &pod.end else {
        let since = pod.created.filter(|created| older(created.local(), VALIDATION_WAITS, now));
        return match (since, &pod.unschedulable) {
            (Some(since), Some(why)) => Outcome::Ended(
                ValidationResult::Skipped,
                format!("pod {name} could not be scheduled since {}: {why}", since.reported()),
            ),
            _ => Outcome::Open,
        };
    };
    if end.succeeded {
        let late = end.at.or(pod.created).is_none_or(|ended| older(ended.local(), VALIDATION_WAITS, now));
        return ended_well(name, proof, late);
    }
    let (result, message) = if end.reason.starts_with(OUT_OF) {
        (ValidationResult::Skipped, format!("kubelet did not admit pod {name}: {}", end.message))
    } else {
        (ValidationResult::Failed, format!("pod {name} failed: {}", why_it_failed(pod, end)))
    };
    Outcome::Ended(result, message)
}

fn ended_well(name: &str, proof: Proof<'_>, late: bool) -> Outcome {
    let (result, message) = match proof {
        Proof::ExitCode => (ValidationResult::Passed, format!("pod {name} passed with exit code 0")),
        Proof::Log(None) => return Outcome::Unread,
        Proof::Log(Some(Ok(words))) if words.contains(PASSED) => {
            (ValidationResult::Passed, format!("pod {name} passed: it printed \"{PASSED}\""))
        }
        // The container runtime may still be writing the log.
        Proof::Log(Some(Ok(_))) if !late => {
            return Outcome::Unreadable(format!("the log does not contain \"{PASSED}\""));
        }
        Proof::Log(Some(Ok(words))) => {
            let words = if words.trim().is_empty() { "its log is empty" } else { words.trim() };
            (ValidationResult::Failed, format!("pod {name} exited with code 0 without printing \"{PASSED}\": {words}"))
        }
        Proof::Log(Some(Err(why))) if !late => return Outcome::Unreadable(why.clone()),
        // NVIDIA's samples exit with code 0 only if they pass, and an unreadable log is not a fault of the GPUs.
        Proof::Log(Some(Err(why))) => {
            (ValidationResult::Passed, format!("pod {name} passed with exit code 0; its log cannot be read: {why}"))
        }
    };
    Outcome::Ended(result, message)
}

/// Returns why a pod failed: kubelet's reason if kubelet terminated it, then the exit code and message of its container.
fn why_it_failed(pod: &PodFacts, end: &PodEnd) -> String {
    let containers = pod.containers.iter().find_map(|container| match &container.state {
        ContainerState::Ended(exit) if exit.code != 0 => {
            Some(format!("exit code {}: {}", exit.code, error_line(&exit.message)))
        }
        ContainerState::Waiting { reason, message } if !reason.is_empty() => Some(format!("{reason}: {message}")),
        _ => None,
    });
    let kubelets = match end.reason.as_str() {
        "" => None,
        OVERDUE => Some("not completed within readiness.validation.timeout".to_owned()),
        reason => Some(format!("{reason}: {}", end.message)),
    };
    let words: Vec<String> = kubelets.into_iter().chain(containers).collect();
    if words.is_empty() { "no exit code or message was reported".to_owned() } else { words.join("; ") }
}
