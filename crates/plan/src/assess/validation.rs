//! Validation: a short test on a GPU of a node, as the last step, if the policy enables it. Its state is in the cluster, the pod of the
//! test and the result in the GpuNode's status, so a restarted operator neither loses nor repeats a test.

use gpu_operator_common::version::Version;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNodeStatus,
    gpunode::{Validated, ValidationResult},
    keys,
    policy::ValidationMode,
    reason::Reason,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde::Serialize;

use crate::{
    assess::{error_line::error_line, member::Member, pod_failure::pod_failure},
    clock::Clock,
    desired::images,
    note::shown,
    revision,
    settings::{VALIDATION_RETRY, VALIDATION_RETRY_AT_MOST, VALIDATION_WAITS},
    time::later,
    world::{ContainerState, LogTails, PodEnd, PodFacts, Role},
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationState {
    /// The result of the last test.
    pub record: Option<Validated>,
    /// Why a node whose GPUs are all allocatable is not ready.
    pub hold: Option<(Reason, String)>,
    /// The pod whose test is running, or whose result is not written yet.
    pub pod: Option<String>,
    /// That pod, if its log has to be read.
    pub log_of: Option<String>,
}

pub fn of(member: &Member<'_>, log_tails: &LogTails, clock: &Clock) -> ValidationState {
    let mode = member.policy.spec.readiness.validation.mode.unwrap_or_default();
    if mode == ValidationMode::Never {
        return ValidationState::default();
    }
    // A record of a previous Node with this name does not apply to this Node.
    let of_this_node =
        |status: &&GpuNodeStatus| status.gpus.seen_on.as_ref().is_none_or(|seen| *seen == member.node.uid);
    let written = member.status().filter(of_this_node).and_then(|status| status.validation.clone());
    let revision = revision::short(&member.have, 16);
    let is_of_this = |record: &Validated| record.of == revision || mode == ValidationMode::OnInstall;
    let steady = member.status().is_some_and(GpuNodeStatus::is_ready) && member.rollout().is_none();
    if steady {
        // A node that was ready before validation was enabled is not tested and stays ready.
        let known = written.as_ref().is_some_and(is_of_this) || member.want().is_some_and(|want| *want != member.have);
        let record = if known { written } else { Some(served_before(revision, clock)) };
        return ValidationState { record, ..ValidationState::default() };
    }
    match written {
        Some(record) if record.result == ValidationResult::Failed => match again_at(member, &record, &revision) {
            Some(at) if !clock.reached(at) => ValidationState {
                hold: Some((Reason::ValidationFailed, retry_message(&record, at))),
                record: Some(record),
                ..ValidationState::default()
            },
            Some(_) => test(member, log_tails, revision, Some(record), clock),
            None => test(member, log_tails, revision, None, clock),
        },
        Some(record) if is_of_this(&record) => ValidationState { record: Some(record), ..ValidationState::default() },
        _ => test(member, log_tails, revision, None, clock),
    }
}

/// Returns `None` if revision, image or boot has changed, so that the node is tested at once.
fn again_at(member: &Member<'_>, failed: &Validated, revision: &str) -> Option<Timestamp> {
    let same = failed.of == revision
        && failed.image.as_deref() == Some(&*test_image(member))
        && failed.boot_id.as_deref() == Some(boot(member));
    same.then(|| retry_at(failed))
}

fn retry_at(failed: &Validated) -> Timestamp {
    let doublings = failed.failures.saturating_sub(1).min(16);
    let wait = VALIDATION_RETRY.saturating_mul(1 << doublings).min(VALIDATION_RETRY_AT_MOST);
    later(failed.since.0, wait)
}

fn retry_message(failed: &Validated, again: Timestamp) -> String {
    format!(
        "{}; retried at {again}, or when the node is rebooted or its revision or the validation image changes",
        failed.message
    )
}

/// The test is due, or running, or terminated without a written result.
fn test(
    member: &Member<'_>,
    log_tails: &LogTails,
    revision: String,
    failed: Option<Validated>,
    clock: &Clock,
) -> ValidationState {
    let failures = failed.as_ref().map_or(0, |failed| failed.failures);
    let image = test_image(member);
    let name = validation_pod_name(&(&member.node.uid, &revision, &image, boot(member), failures));
    let pod = member.pods.iter().copied().find(|pod| pod.role == Role::Validation && pod.name == name);
    let present = pod.filter(|pod| !pod.is_leaving());
    let proof = if is_users_image(member) { Proof::ExitCode } else { Proof::Log(log_tails.get(&name)) };
    let outcome = present.map_or(Outcome::Open, |pod| outcome(pod, proof, clock));
    let validation = ValidationState { pod: Some(name), ..ValidationState::default() };
    let (result, message) = match outcome {
        Outcome::Ended(result, message) => (result, message),
        Outcome::Unread => {
            // Only a few logs are read at a time.
            clock.ask_again();
            let log_of = validation.pod.clone();
            return ValidationState { log_of, ..until_passed(failed, present, validation, clock) };
        }
        Outcome::Unreadable(why) => {
            clock.ask_again();
            let unread = format!("the test terminated, but its log cannot be evaluated yet: {why}");
            let validation = until_passed(failed, present, validation, clock);
            let hold = validation.hold.filter(|(reason, _)| *reason == Reason::ValidationFailed);
            return ValidationState { hold: hold.or(Some((Reason::Validating, unread))), ..validation };
        }
        Outcome::Open => return until_passed(failed, present, validation, clock),
    };
    let record = Validated {
        result,
        of: revision,
        since: Time(clock.now()),
        message: shown(&message),
        failures: 0,
        image: None,
        boot_id: None,
    };
    if result != ValidationResult::Failed {
        return ValidationState { record: Some(record), ..validation };
    }
    let record =
        Validated { failures: failures + 1, image: Some(image), boot_id: Some(boot(member).to_owned()), ..record };
    let again = retry_at(&record);
    let hold = Some((Reason::ValidationFailed, retry_message(&record, again)));
    ValidationState { record: Some(record), hold, ..validation }
}

fn until_passed(
    failed: Option<Validated>,
    pod: Option<&PodFacts>,
    validation: ValidationState,
    clock: &Clock,
) -> ValidationState {
    let again = failed.as_ref().map(retry_at);
    let hold = match failed.as_ref().zip(again) {
        // Until it passes, the last failure stands, so the status does not change.
        Some((failed, again)) => (Reason::ValidationFailed, retry_message(failed, again)),
        None => under_way(pod, clock),
    };
    ValidationState { record: failed, hold: Some(hold), ..validation }
}

fn under_way(pod: Option<&PodFacts>, clock: &Clock) -> (Reason, String) {
    let Some(pod) = pod else {
        return (Reason::Validating, "the validation pod does not exist yet".to_owned());
    };
    match &pod.unschedulable {
        Some(why) => (Reason::Validating, format!("pod {} is waiting for a GPU: {why}", pod.name)),
        None => pod_failure(pod, clock)
            .unwrap_or_else(|| (Reason::Validating, format!("pod {} is testing a GPU", pod.name))),
    }
}

fn served_before(revision: String, clock: &Clock) -> Validated {
    Validated {
        result: ValidationResult::Skipped,
        of: revision,
        since: Time(clock.now()),
        message: "the node was ready before validation was enabled".to_owned(),
        failures: 0,
        image: None,
        boot_id: None,
    }
}

/// Kubelet's boot ID, by which reports are judged.
fn boot<'m>(member: &'m Member<'_>) -> &'m str {
    let reported = || member.report.map_or("", |report| report.boot_id.as_str());
    if member.node.boot_id.is_empty() { reported() } else { &member.node.boot_id }
}

/// Kubelet's reason for a pod that exceeded its deadline.
const OVERDUE: &str = "DeadlineExceeded";
/// The beginning of kubelet's reason for a pod that it cannot admit, such as `OutOfnvidia.com/gpu`.
const OUT_OF: &str = "OutOf";

/// The line that NVIDIA's samples print if they pass.
const PASSED: &str = "Test PASSED";

/// By what a test that exited with code 0 has passed.
#[derive(Clone, Copy, Debug)]
enum Proof<'w> {
    /// The exit code alone.
    ExitCode,
    /// The end of its log, or the error of reading it; `None` before it is read.
    Log(Option<&'w Result<String, String>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test may still pass.
    Open,
    /// It exited with code 0, and its log has to be read.
    Unread,
    /// The log could not be read completely, and is read again.
    Unreadable(String),
    Ended(ValidationResult, String),
}

fn outcome(pod: &PodFacts, proof: Proof<'_>, clock: &Clock) -> Outcome {
    let name = &pod.name;
    let Some(end) = &pod.end else {
        let since = pod.created.filter(|created| clock.passed(created.local(), VALIDATION_WAITS));
        return match (since, &pod.unschedulable) {
            (Some(since), Some(why)) => Outcome::Ended(
                ValidationResult::Skipped,
                format!("pod {name} could not be scheduled since {}: {why}", since.reported()),
            ),
            _ => Outcome::Open,
        };
    };
    if end.succeeded {
        let late = end.at.or(pod.created).is_none_or(|ended| clock.passed(ended.local(), VALIDATION_WAITS));
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

/// Kubelet's reason comes first, then the exit code and message of the container.
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

/// The first driver branch of a CUDA major version, and the tag of NVIDIA's vectorAdd built with it; newest first. A driver supports all
/// CUDA versions of its branch's major version, and all older ones.
pub const TESTS: [(u32, &str); 2] = [(525, "vectoradd-cuda12.5.0"), (450, "vectoradd-cuda11.7.1")];

/// The tag for older drivers. CUDA 10.2 needs branch 440; for drivers before that NVIDIA has no such image.
pub const OLDEST_TEST: &str = "vectoradd-cuda10.2";

/// The output of a user's image is unknown.
pub fn is_users_image(member: &Member<'_>) -> bool {
    member.policy.spec.readiness.validation.image.is_some()
}

pub fn test_image(member: &Member<'_>) -> String {
    let loaded = member.report.and_then(|report| report.driver.loaded.as_deref());
    let tag = loaded.and_then(Version::leading).map_or(TESTS[0].1, |version| test_for(version.major()));
    test_reference(member.policy, tag)
}

pub fn test_images(policy: &ClusterGpuPolicy) -> impl Iterator<Item = String> {
    TESTS.into_iter().map(|(_, tag)| tag).chain([OLDEST_TEST]).map(|tag| test_reference(policy, tag))
}

fn test_reference(policy: &ClusterGpuPolicy, tag: &str) -> String {
    let spec = &policy.spec;
    images::reference(&spec.images, spec.readiness.validation.image.as_ref(), images::SAMPLES, tag)
}

fn test_for(branch: u32) -> &'static str {
    TESTS.into_iter().find(|(first, _)| branch >= *first).map_or(OLDEST_TEST, |(_, tag)| tag)
}

/// Each test, and each retry, has its own pod.
fn validation_pod_name(of: &impl Serialize) -> String {
    format!("{}-{}", keys::VALIDATION, revision::short(of, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_has_a_cuda_version_that_the_driver_supports() {
        for (driver, tag) in [
            ("595.91.07", "vectoradd-cuda12.5.0"),
            ("525.60.13", "vectoradd-cuda12.5.0"),
            ("515.105.01", "vectoradd-cuda11.7.1"),
            ("470.256.02", "vectoradd-cuda11.7.1"),
            ("450.51.05", "vectoradd-cuda11.7.1"),
            ("440.33.01", "vectoradd-cuda10.2"),
            ("384.81", "vectoradd-cuda10.2"),
        ] {
            assert_eq!(Version::leading(driver).map(|version| test_for(version.major())), Some(tag), "{driver}");
        }
    }
}
