//! Validation: a short test on a GPU of a node, where the policy asks for it. It comes last, when all GPUs are allocatable,
//! and everything that it goes by is in the cluster: the pod while the test lasts, and what came of it in the GpuNode's
//! status, so that an operator that starts anew neither loses nor repeats one.

use gpu_operator_crd::{
    GpuNodeStatus,
    policy::ValidationMode,
    reason::Reason,
    validated::{Validated, ValidationResult},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{
        member::Member,
        pod_failure::hold_up,
        validation_outcome::{Outcome, Proof, outcome},
        validation_test,
    },
    note::clip,
    revision,
    settings::{ASK_AGAIN, VALIDATION_RETRY, VALIDATION_RETRY_AT_MOST, VALIDATION_WAITS},
    time::later,
    world::{LastWords, PodFacts, Role},
};

/// Where the validation of a node stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// What came of the last one: what the status should say.
    pub record: Option<Validated>,
    /// What keeps a node that is complete from being ready.
    pub hold: Option<(Reason, String)>,
    /// The pod that belongs on the node: it tests, or what came of it is not written yet.
    pub pod: Option<String>,
    /// That pod, where its log has to be read before it is known what has come of it.
    pub asks: Option<String>,
    /// When to look again.
    pub check_again: Option<Timestamp>,
}

/// Where the validation of a node stands.
#[must_use]
pub fn of(member: &Member<'_>, last_words: &LastWords, now: Timestamp) -> Trial {
    let mode = member.policy.spec.readiness.validation.mode.unwrap_or_default();
    if mode == ValidationMode::Never {
        return Trial::default();
    }
    // What was written of another Node of this name says nothing of this one.
    let of_this_node =
        |status: &&GpuNodeStatus| status.gpus.seen_on.as_ref().is_none_or(|seen| *seen == member.node.uid);
    let written = member.status().filter(of_this_node).and_then(|status| status.validation.clone());
    let revision = revision::short(&member.have, 16);
    let is_of_this = |record: &Validated| record.of == revision || mode == ValidationMode::OnInstall;
    let steady = member.status().is_some_and(GpuNodeStatus::is_ready) && member.rollout().is_none();
    if steady {
        // What serves is not put to the test: it was ready before anybody asked, and stays it.
        let known = written.as_ref().is_some_and(is_of_this) || member.want().is_some_and(|want| want != member.have);
        let record = if known { written } else { Some(served_before(revision, now)) };
        return Trial { record, ..Trial::default() };
    }
    match written {
        Some(record) if record.result == ValidationResult::Failed => match again_at(member, &record, &revision) {
            Some(at) if now < at => Trial {
                hold: Some((Reason::ValidationFailed, said(&record, at))),
                record: Some(record),
                check_again: Some(at),
                ..Trial::default()
            },
            Some(_) => test(member, last_words, revision, Some(record), now),
            None => test(member, last_words, revision, None, now),
        },
        Some(record) if is_of_this(&record) => Trial { record: Some(record), ..Trial::default() },
        _ => test(member, last_words, revision, None, now),
    }
}

/// When a failed validation is tried again; `None` where it is another one by now.
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

fn said(failed: &Validated, again: Timestamp) -> String {
    format!(
        "{}; tried again at {again}, or once the revision or the image is another or the node was rebooted",
        failed.message
    )
}

/// A test that is due, or under way, or over and not written of yet.
fn test(
    member: &Member<'_>,
    last_words: &LastWords,
    revision: String,
    failed: Option<Validated>,
    now: Timestamp,
) -> Trial {
    let failures = failed.as_ref().map_or(0, |failed| failed.failures);
    let image = validation_test::image(member);
    let name = validation_test::name(&(&member.node.uid, &revision, &image, boot(member), failures));
    let pod = member.pods.iter().copied().find(|pod| pod.role == Role::Validation && pod.name == name);
    let present = pod.filter(|pod| !pod.is_leaving());
    let proof =
        if validation_test::is_the_users(member) { Proof::ExitCode } else { Proof::Words(last_words.get(&name)) };
    let outcome = present.map_or(Outcome::Open, |pod| outcome(pod, proof, now));
    let trial = Trial { pod: Some(name), ..Trial::default() };
    let (result, message) = match outcome {
        Outcome::Ended(result, message) => (result, message),
        Outcome::Unread => {
            // Of many, only some are read at a time.
            let check_again = Some(later(now, ASK_AGAIN));
            let asks = trial.pod.clone();
            return Trial { asks, check_again, ..until_passed(failed, present, trial, now) };
        }
        Outcome::Unreadable(why) => {
            let check_again = Some(later(now, ASK_AGAIN));
            let unread = format!("a test has ended, and its log cannot be read yet: {why}");
            let trial = until_passed(failed, present, trial, now);
            let hold = trial.hold.filter(|(reason, _)| *reason == Reason::ValidationFailed);
            return Trial { hold: hold.or(Some((Reason::Validating, unread))), check_again, ..trial };
        }
        Outcome::Open => return until_passed(failed, present, trial, now),
    };
    let record = Validated {
        result,
        of: revision,
        since: Time(now),
        message: clip(&message),
        failures: 0,
        image: None,
        boot_id: None,
    };
    if result != ValidationResult::Failed {
        return Trial { record: Some(record), ..trial };
    }
    let record =
        Validated { failures: failures + 1, image: Some(image), boot_id: Some(boot(member).to_owned()), ..record };
    let again = retry_at(&record);
    let hold = Some((Reason::ValidationFailed, said(&record, again)));
    Trial { record: Some(record), hold, check_again: Some(again), ..trial }
}

/// A test that may still pass.
fn until_passed(failed: Option<Validated>, pod: Option<&PodFacts>, trial: Trial, now: Timestamp) -> Trial {
    let again = failed.as_ref().map(retry_at);
    let hold = match failed.as_ref().zip(again) {
        // Until it passes, the last word stands, and nothing has to be written.
        Some((failed, again)) => (Reason::ValidationFailed, said(failed, again)),
        None => under_way(pod, now),
    };
    let waits = pod.filter(|pod| pod.unschedulable.is_some()).and_then(|pod| pod.created);
    Trial { record: failed, hold: Some(hold), check_again: waits.map(|since| later(since, VALIDATION_WAITS)), ..trial }
}

/// What is to be said of a test that is under way.
fn under_way(pod: Option<&PodFacts>, now: Timestamp) -> (Reason, String) {
    let Some(pod) = pod else {
        return (Reason::Validating, "the validation's pod is not there yet".to_owned());
    };
    match &pod.unschedulable {
        Some(why) => (Reason::Validating, format!("pod {} waits for a GPU: {why}", pod.name)),
        None => hold_up(pod, now).unwrap_or_else(|| (Reason::Validating, format!("pod {} tests a GPU", pod.name))),
    }
}

fn served_before(revision: String, now: Timestamp) -> Validated {
    Validated {
        result: ValidationResult::Skipped,
        of: revision,
        since: Time(now),
        message: "the node was ready before validation was asked for".to_owned(),
        failures: 0,
        image: None,
        boot_id: None,
    }
}

fn boot<'m>(member: &'m Member<'_>) -> &'m str {
    member.report().map_or("", |report| report.boot_id.as_str())
}
