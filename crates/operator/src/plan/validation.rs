//! Validation: a short test on a GPU of a node, where the policy asks for it. It comes last, when all GPUs are allocatable,
//! and everything that it goes by is in the cluster: the pod while the test lasts, and what came of it in the GpuNode's
//! status, so that an operator that starts anew neither loses nor repeats one.

mod outcome;
mod pod;

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    GpuNodeStatus,
    policy::ValidationMode,
    reason::Reason,
    validated::{Validated, ValidationResult},
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{enroll::Share, gpu_node::clip, hash, is_unreadable, judge::hold_up, member::Member};
use crate::{
    moment::later,
    settings::{ASK_AGAIN, Settings, VALIDATION_RETRY, VALIDATION_RETRY_AT_MOST, VALIDATION_WAITS},
    world::{LastWords, PodFacts, Role, World},
};
use outcome::{Outcome, Proof, outcome};
pub use pod::CONTAINER;

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
pub fn of(member: &Member<'_>, last_words: &LastWords) -> Trial {
    let mode = member.policy.spec.readiness.validation.mode.unwrap_or_default();
    if mode == ValidationMode::Never {
        return Trial::default();
    }
    // What was written of another Node of this name says nothing of this one.
    let of_this_node =
        |status: &&GpuNodeStatus| status.gpus.seen_on.as_ref().is_none_or(|seen| *seen == member.node.uid);
    let written = member.status().filter(of_this_node).and_then(|status| status.validation.clone());
    let revision = hash::short(&member.have, 16);
    let is_of_this = |record: &Validated| record.of == revision || mode == ValidationMode::OnInstall;
    let steady = member.status().is_some_and(GpuNodeStatus::is_ready) && member.rollout().is_none();
    if steady {
        // What serves is not put to the test: it was ready before anybody asked, and stays it.
        let known = written.as_ref().is_some_and(is_of_this) || member.want().is_some_and(|want| want != member.have);
        let record = if known { written } else { Some(served_before(member, revision)) };
        return Trial { record, ..Trial::default() };
    }
    match written {
        Some(record) if record.result == ValidationResult::Failed => match again_at(member, &record, &revision) {
            Some(at) if member.now < at => Trial {
                hold: Some((Reason::ValidationFailed, said(&record, at))),
                record: Some(record),
                check_again: Some(at),
                ..Trial::default()
            },
            Some(_) => test(member, last_words, revision, Some(record)),
            None => test(member, last_words, revision, None),
        },
        Some(record) if is_of_this(&record) => Trial { record: Some(record), ..Trial::default() },
        _ => test(member, last_words, revision, None),
    }
}

/// When a failed validation is tried again; `None` where it is another one by now.
fn again_at(member: &Member<'_>, failed: &Validated, revision: &str) -> Option<Timestamp> {
    let same = failed.of == revision
        && failed.image.as_deref() == Some(&*pod::image(member))
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
fn test(member: &Member<'_>, last_words: &LastWords, revision: String, failed: Option<Validated>) -> Trial {
    let failures = failed.as_ref().map_or(0, |failed| failed.failures);
    let image = pod::image(member);
    let name = pod::name(&(&member.node.uid, &revision, &image, boot(member), failures));
    let pod = member.pods.iter().copied().find(|pod| pod.role == Role::Validation && pod.name == name);
    let present = pod.filter(|pod| !pod.is_leaving());
    let proof = if pod::is_the_users(member) { Proof::ExitCode } else { Proof::Words(last_words.get(&name)) };
    let outcome = present.map_or(Outcome::Open, |pod| outcome(pod, proof, member.now));
    let trial = Trial { pod: Some(name), ..Trial::default() };
    let (result, message) = match outcome {
        Outcome::Ended(result, message) => (result, message),
        Outcome::Unread => {
            // Of many, only some are read at a time.
            let check_again = Some(later(member.now, ASK_AGAIN));
            let asks = trial.pod.clone();
            return Trial { asks, check_again, ..until_passed(member, failed, present, trial) };
        }
        Outcome::Unreadable(why) => {
            let check_again = Some(later(member.now, ASK_AGAIN));
            let unread = format!("a test has ended, and its log cannot be read yet: {why}");
            let trial = until_passed(member, failed, present, trial);
            let hold = trial.hold.filter(|(reason, _)| *reason == Reason::ValidationFailed);
            return Trial { hold: hold.or(Some((Reason::Validating, unread))), check_again, ..trial };
        }
        Outcome::Open => return until_passed(member, failed, present, trial),
    };
    let record = Validated {
        result,
        of: revision,
        since: Time(member.now),
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
fn until_passed(member: &Member<'_>, failed: Option<Validated>, pod: Option<&PodFacts>, trial: Trial) -> Trial {
    let again = failed.as_ref().map(retry_at);
    let hold = match failed.as_ref().zip(again) {
        // Until it passes, the last word stands, and nothing has to be written.
        Some((failed, again)) => (Reason::ValidationFailed, said(failed, again)),
        None => under_way(pod, member.now),
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

fn served_before(member: &Member<'_>, revision: String) -> Validated {
    Validated {
        result: ValidationResult::Skipped,
        of: revision,
        since: Time(member.now),
        message: "the node was ready before validation was asked for".to_owned(),
        failures: 0,
        image: None,
        boot_id: None,
    }
}

fn boot<'m>(member: &'m Member<'_>) -> &'m str {
    member.report().map_or("", |report| report.boot_id.as_str())
}

/// The pods that members wait for and that are not there.
pub fn pods_to_make<'m>(
    settings: &Settings,
    members: impl Iterator<Item = (&'m Member<'m>, bool)>,
) -> BTreeMap<String, Pod> {
    let due = members.filter(|(_, waits)| *waits).filter_map(|(member, _)| Some((member, member.trial.pod.clone()?)));
    due.filter(|(member, name)| member.pods.iter().all(|pod| pod.name != *name))
        .map(|(member, name)| (name.clone(), pod::pod(settings, member, name)))
        .collect()
}

/// The pods that have done their work, or that nobody waits for any more.
pub fn pods_to_end(world: &World, fleet: &BTreeMap<&str, Share<'_>>) -> BTreeSet<String> {
    let there: Vec<&PodFacts> = world
        .pods
        .values()
        .map(AsRef::as_ref)
        .filter(|pod| pod.role == Role::Validation && !pod.is_leaving())
        .collect();
    if there.is_empty() {
        return BTreeSet::new();
    }
    let members = fleet.values().flat_map(|share| share.pools.values().flatten());
    let wanted: BTreeSet<&str> = members.filter_map(|member| member.trial.pod.as_deref()).collect();
    let unreadable = |node: &str| is_unreadable(world, node, world.gpu_nodes.get(node).map(AsRef::as_ref));
    there
        .into_iter()
        .filter(|pod| !wanted.contains(pod.name.as_str()) && !unreadable(pod.node.as_str()))
        .map(|pod| pod.name.clone())
        .collect()
}
