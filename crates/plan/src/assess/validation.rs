//! Validation: a short test on a GPU of a node, if the policy enables it. It is the last step, when all GPUs are allocatable.
//! All of its state is in the cluster: the pod while the test runs, and its result in the GpuNode's status. So a restarted
//! operator neither loses nor repeats a test.

use gpu_operator_crd::{
    GpuNodeStatus,
    gpunode::{Validated, ValidationResult},
    policy::ValidationMode,
    reason::Reason,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{
        member::Member,
        pod_failure::pod_failure,
        validation_outcome::{Outcome, Proof, outcome},
        validation_test,
    },
    note::shown,
    revision,
    settings::{ASK_AGAIN, VALIDATION_RETRY, VALIDATION_RETRY_AT_MOST, VALIDATION_WAITS},
    time::later,
    world::{LogTails, PodFacts, Role},
};

/// The state of a node's validation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValidationState {
    /// The result of the last test, for the node's status.
    pub record: Option<Validated>,
    /// Why a node whose GPUs are all allocatable is not ready, if validation is the cause.
    pub hold: Option<(Reason, String)>,
    /// The pod that should exist on the node: its test is running, or its result is not written yet.
    pub pod: Option<String>,
    /// That pod, if its log has to be read to determine the result.
    pub log_of: Option<String>,
    /// The time of the next check.
    pub check_again: Option<Timestamp>,
}

/// Returns the state of a node's validation.
pub fn of(member: &Member<'_>, log_tails: &LogTails, now: Timestamp) -> ValidationState {
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
        let known = written.as_ref().is_some_and(is_of_this) || member.want().is_some_and(|want| want != member.have);
        let record = if known { written } else { Some(served_before(revision, now)) };
        return ValidationState { record, ..ValidationState::default() };
    }
    match written {
        Some(record) if record.result == ValidationResult::Failed => match again_at(member, &record, &revision) {
            Some(at) if now < at => ValidationState {
                hold: Some((Reason::ValidationFailed, retry_message(&record, at))),
                record: Some(record),
                check_again: Some(at),
                ..ValidationState::default()
            },
            Some(_) => test(member, log_tails, revision, Some(record), now),
            None => test(member, log_tails, revision, None, now),
        },
        Some(record) if is_of_this(&record) => ValidationState { record: Some(record), ..ValidationState::default() },
        _ => test(member, log_tails, revision, None, now),
    }
}

/// Returns when a failed validation is retried; `None` if its revision, image or boot has changed, so that it is tested at
/// once.
fn again_at(member: &Member<'_>, failed: &Validated, revision: &str) -> Option<Timestamp> {
    let same = failed.of == revision
        && failed.image.as_deref() == Some(&*validation_test::image(member))
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

/// Returns the state of a test that is due, or running, or terminated without a written result.
fn test(
    member: &Member<'_>,
    log_tails: &LogTails,
    revision: String,
    failed: Option<Validated>,
    now: Timestamp,
) -> ValidationState {
    let failures = failed.as_ref().map_or(0, |failed| failed.failures);
    let image = validation_test::image(member);
    let name = validation_test::name(&(&member.node.uid, &revision, &image, boot(member), failures));
    let pod = member.pods.iter().copied().find(|pod| pod.role == Role::Validation && pod.name == name);
    let present = pod.filter(|pod| !pod.is_leaving());
    let proof = if validation_test::is_the_users(member) { Proof::ExitCode } else { Proof::Log(log_tails.get(&name)) };
    let outcome = present.map_or(Outcome::Open, |pod| outcome(pod, proof, now));
    let validation = ValidationState { pod: Some(name), ..ValidationState::default() };
    let (result, message) = match outcome {
        Outcome::Ended(result, message) => (result, message),
        Outcome::Unread => {
            // Only a few logs are read at a time.
            let check_again = Some(later(now, ASK_AGAIN));
            let log_of = validation.pod.clone();
            return ValidationState { log_of, check_again, ..until_passed(failed, present, validation, now) };
        }
        Outcome::Unreadable(why) => {
            let check_again = Some(later(now, ASK_AGAIN));
            let unread = format!("the test terminated, but its log cannot be evaluated yet: {why}");
            let validation = until_passed(failed, present, validation, now);
            let hold = validation.hold.filter(|(reason, _)| *reason == Reason::ValidationFailed);
            return ValidationState { hold: hold.or(Some((Reason::Validating, unread))), check_again, ..validation };
        }
        Outcome::Open => return until_passed(failed, present, validation, now),
    };
    let record = Validated {
        result,
        of: revision,
        since: Time(now),
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
    ValidationState { record: Some(record), hold, check_again: Some(again), ..validation }
}

/// Returns the state of a test that may still pass.
fn until_passed(
    failed: Option<Validated>,
    pod: Option<&PodFacts>,
    validation: ValidationState,
    now: Timestamp,
) -> ValidationState {
    let again = failed.as_ref().map(retry_at);
    let hold = match failed.as_ref().zip(again) {
        // Until it passes, the last failure stands, so the status does not change.
        Some((failed, again)) => (Reason::ValidationFailed, retry_message(failed, again)),
        None => under_way(pod, now),
    };
    let waits = pod.filter(|pod| pod.unschedulable.is_some()).and_then(|pod| pod.created);
    ValidationState {
        record: failed,
        hold: Some(hold),
        check_again: waits.map(|since| later(since.local(), VALIDATION_WAITS)),
        ..validation
    }
}

/// Returns the reason and message of a test without a result.
fn under_way(pod: Option<&PodFacts>, now: Timestamp) -> (Reason, String) {
    let Some(pod) = pod else {
        return (Reason::Validating, "the validation pod does not exist yet".to_owned());
    };
    match &pod.unschedulable {
        Some(why) => (Reason::Validating, format!("pod {} is waiting for a GPU: {why}", pod.name)),
        None => {
            pod_failure(pod, now).unwrap_or_else(|| (Reason::Validating, format!("pod {} is testing a GPU", pod.name)))
        }
    }
}

fn served_before(revision: String, now: Timestamp) -> Validated {
    Validated {
        result: ValidationResult::Skipped,
        of: revision,
        since: Time(now),
        message: "the node was ready before validation was enabled".to_owned(),
        failures: 0,
        image: None,
        boot_id: None,
    }
}

/// Returns the node's current boot. Kubelet's is the one by which reports are judged.
fn boot<'m>(member: &'m Member<'_>) -> &'m str {
    let reported = || member.report.map_or("", |report| report.boot_id.as_str());
    if member.node.boot_id.is_empty() { reported() } else { &member.node.boot_id }
}
