//! Pods that pull the images of a revision on one node before any node moves to it, and missing images of precompiled drivers.

use std::time::Duration;

use gpu_operator_crd::{NodeName, gpunode::StageRevisions, keys, policy::Stage, reason::Reason};

use crate::{
    assess::{
        member::Member,
        pod_failure::{self, container_failure, unschedulable},
    },
    clock::Clock,
    desired::driver::{self, DriverChoice, Subject},
    ground::{Ground, preflight_prefix},
    note::Note,
    revision,
    world::{ContainerFacts, ContainerState, PodFacts, Role},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    Underway,
    Done,
    Failed(String),
}

/// The beginning of the names of the pods for a revision, the same on all nodes.
pub fn prefix(goal: &StageRevisions) -> String {
    format!("{}-{}", keys::PREFLIGHT, revision::short(goal, 10))
}

pub fn name(goal: &StageRevisions, node: &NodeName) -> String {
    format!("{}-{}", prefix(goal), revision::short(node, 6))
}

pub fn pod_on<'w>(member: &Member<'w>, prefix: &str) -> Option<&'w PodFacts> {
    member.pods.iter().copied().find(|pod| pod.role == Role::Preflight && preflight_prefix(pod) == Some(prefix))
}

/// `limit` is how long it may take. The exit codes of the containers prove nothing: an image may not contain the command.
pub fn state(pod: &PodFacts, limit: Duration, clock: &Clock) -> Pull {
    if !pod.containers.is_empty() && pod.containers.iter().all(is_pulled) {
        return Pull::Done;
    }
    if let Some(end) = &pod.end {
        return Pull::Failed(format!("kubelet ended pod {}: {}: {}", pod.name, end.reason, end.message));
    }
    let waiting = pod.containers.iter().filter(|container| !is_pulled(container));
    let failure = unschedulable(pod, clock)
        .or_else(|| waiting.into_iter().find_map(|container| container_failure(pod, container, clock)));
    let is_overdue = || pod.created.is_some_and(|created| clock.passed(created.local(), limit));
    match failure {
        Some((_, message)) => Pull::Failed(message),
        None if is_overdue() => Pull::Failed(format!("pod {} has not pulled its images by its deadline", pod.name)),
        None => Pull::Underway,
    }
}

/// Whether kubelet has pulled the image: everything else that may fail comes later.
fn is_pulled(container: &ContainerFacts) -> bool {
    match &container.state {
        ContainerState::Running(_) | ContainerState::Ended(_) => true,
        ContainerState::Waiting { reason, .. } => {
            ["CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"]
                .contains(&reason.as_str())
        }
    }
}

// A missing image of a precompiled driver is recorded in the GpuNode, and the driver is compiled on the node until a different image is
// wanted. Without the record the node would alternate between the two.

/// Returns the precompiled image that the policy selects, if it does not exist.
pub fn missing_precompiled(ground: &Ground<'_>, member: &Member<'_>) -> Option<String> {
    // This is called for every node, and most policies select no precompiled driver.
    let settings = member.pool.settings.driver;
    if !settings.container.precompiled.unwrap_or_default() {
        return None;
    }
    let status = member.status()?;
    if member.target.is_unknown() {
        return status.missing_image.clone();
    }
    let (report, choice) = (member.report?, member.driver()?);
    let subject = Subject {
        catalogue: ground.catalogue(),
        images: &member.policy.spec.images,
        node: member.node,
        has_driver: member.have.driver.is_some(),
        discovery: &member.discovery,
        report,
        missing_image: status.missing_image.as_deref(),
    };
    let image = driver::wants_precompiled(settings, &subject, choice)?;
    let known = status.missing_image.as_ref() == Some(&image);
    let want = member.want();
    let now_seen = || {
        let Some(want) = want else { return false };
        want.driver == member.have.driver && member.pod(Stage::Driver).is_some_and(pod_failure::lacks_its_image)
            || !ground.missing_images.is_empty() && ground.missing_images.contains(prefix(want).as_str())
    };
    (known || choice.is_precompiled() && now_seen()).then_some(image)
}

/// Reports that the driver is compiled on the node instead.
pub fn precompiled_note(member: &Member<'_>, image: &str) -> Option<Note> {
    let compiles = matches!(member.driver(), Some(DriverChoice::Container { kernel: None, .. }));
    let message = format!(
        "image {image} does not exist, so the driver is compiled on the node; the image is checked again when the kernel or the driver's branch changes"
    );
    compiles.then(|| Note::new(Reason::PrecompiledImageMissing, message))
}

#[cfg(test)]
mod tests {
    use gpu_operator_common::interned::Interned;
    use k8s_openapi::jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::world::{Exit, PodEnd};

    const LIMIT: Duration = Duration::from_mins(30);

    fn pod(states: &[ContainerState]) -> PodFacts {
        let container = |state: &ContainerState| ContainerFacts {
            name: Interned::from("toolkit-install-toolkit"),
            state: state.clone(),
            last_failure: None,
            ready: false,
        };
        PodFacts {
            name: "preflight-a-b".into(),
            node: "n".into(),
            role: Role::Preflight,
            revision: None,
            applied: None,
            created: Some(Timestamp::UNIX_EPOCH.into()),
            sandbox_since: None,
            deletion: None,
            unschedulable: None,
            end: None,
            init: vec![],
            containers: states.iter().map(container).collect(),
        }
    }

    fn waiting(reason: &str) -> ContainerState {
        ContainerState::Waiting { reason: reason.into(), message: "words".into() }
    }

    #[test]
    fn only_the_pull_counts() {
        let ended = |code| ContainerState::Ended(Exit { code, message: String::new() });
        let failed = |words: &str| Pull::Failed(words.to_owned());
        let unschedulable = PodFacts { unschedulable: Some("0/1 nodes".into()), ..pod(&[]) };
        let end = PodEnd { succeeded: false, reason: "OutOfpods".into(), message: "full".into(), at: None };
        let rejected = PodFacts { end: Some(end.clone()), ..pod(&[]) };
        let evicted = PodFacts { end: Some(end), ..pod(&[ended(0), waiting("ContainerCreating")]) };
        let not_pulled = "pod preflight-a-b, container toolkit-install-toolkit: words";
        let rejection = "kubelet ended pod preflight-a-b: OutOfpods: full";
        for (pod, seconds, expected) in [
            (pod(&[]), 1, Pull::Underway),
            (pod(&[waiting("ContainerCreating")]), 1, Pull::Underway),
            (pod(&[ended(0), waiting("")]), 1, Pull::Underway),
            (
                pod(&[ended(0), waiting("")]),
                1801,
                failed("pod preflight-a-b has not pulled its images by its deadline"),
            ),
            (pod(&[ended(0), ended(128)]), 9000, Pull::Done),
            (pod(&[ContainerState::Running(None)]), 1, Pull::Done),
            (pod(&[waiting("RunContainerError"), waiting("CreateContainerError")]), 1, Pull::Done),
            (pod(&[waiting("CreateContainerConfigError"), waiting("CrashLoopBackOff")]), 1, Pull::Done),
            (pod(&[ended(128), waiting("ErrImagePull")]), 1, failed(not_pulled)),
            (pod(&[waiting("RunContainerError"), waiting("ErrImageNeverPull")]), 1, failed(not_pulled)),
            (unschedulable.clone(), 1, Pull::Underway),
            (unschedulable, 100, failed("pod preflight-a-b cannot be scheduled: 0/1 nodes")),
            (rejected, 1, failed(rejection)),
            (evicted, 1, failed(rejection)),
        ] {
            let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
            assert_eq!(state(&pod, LIMIT, &Clock::at(now)), expected, "{pod:?}");
        }
    }
}
