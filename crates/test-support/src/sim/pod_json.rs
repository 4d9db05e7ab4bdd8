//! Pods as the API server stores them: what kubelet reports of the facts of a pod, and what it reports after a reboot.

use std::collections::BTreeMap;

use gpu_operator_crd::keys;
use gpu_operator_plan::{
    time::add,
    world::{ContainerFacts, ContainerState, Exit, PodEnd, PodFacts, Role},
};
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Value, json};

/// Returns what kubelet reports of the containers of a pod, whose sandbox is ready since then.
pub fn status(
    init: &[ContainerFacts],
    containers: &[ContainerFacts],
    since: Option<Timestamp>,
    end: Option<&PodEnd>,
) -> Value {
    let has_begun = |container: &ContainerFacts| {
        container.last_failure.is_some() || !matches!(container.state, ContainerState::Waiting { .. })
    };
    let is_initialized = containers.iter().any(has_begun);
    let phase = match end {
        Some(end) if end.succeeded => "Succeeded",
        Some(_) => "Failed",
        None if is_initialized => "Running",
        None => "Pending",
    };
    let is_ready = end.is_none() && containers.iter().all(|container| container.ready);
    let started = containers.iter().filter_map(ContainerFacts::running_since).map(Timestamp::from).max();
    let condition = |kind: &str, is_met: bool, since: Option<Timestamp>| {
        let status = if is_met { "True" } else { "False" };
        json!({"type": kind, "status": status, "lastTransitionTime": since})
    };
    // An exit that is a fact was in this sandbox.
    let ended = since.map(|since| add(since, SignedDuration::from_secs(1)));
    let statuses = |containers: &[ContainerFacts]| {
        containers.iter().map(|container| json_of_container(container, ended)).collect::<Vec<_>>()
    };
    json!({
        "phase": phase,
        "startTime": since,
        "conditions": [
            condition("PodReadyToStartContainers", since.is_some(), since),
            condition("Initialized", is_initialized, started.or(since)),
            condition("ContainersReady", is_ready, started.or(since)),
            condition("Ready", is_ready, started.or(since)),
        ],
        "initContainerStatuses": statuses(init), "containerStatuses": statuses(containers),
    })
}

pub fn json_of_pod(pod: &PodFacts) -> Value {
    let (label, selector) = match pod.role {
        Role::Operand(stage) => (json!({keys::STAGE: stage.as_str()}), json!({stage.key(): pod.revision})),
        Role::Probe => (json!({"app.kubernetes.io/name": "nvml-probe"}), json!({})),
        Role::Validation => (json!({keys::STAGE: keys::VALIDATION}), json!({})),
        Role::Preflight => (json!({keys::STAGE: keys::PREFLIGHT}), json!({})),
    };
    let applied: BTreeMap<_, _> = pod.applied.iter().map(|applied| (keys::APPLIED, applied)).collect();
    let message = pod.unschedulable.as_ref();
    let scheduled = if message.is_some() { "False" } else { "True" };
    let since = pod.sandbox_since.map(Timestamp::from);
    let mut status = status(&pod.init, &pod.containers, since, pod.end.as_ref());
    let conditions = status["conditions"].as_array_mut().expect("a list");
    conditions.push(json!({"type": "PodScheduled", "status": scheduled, "message": message}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "labels": label, "annotations": applied, "creationTimestamp": pod.created,
        },
        "spec": {"nodeName": pod.node, "nodeSelector": selector, "containers": []},
        "status": status,
    })
}

fn json_of_container(container: &ContainerFacts, ended: Option<Timestamp>) -> Value {
    let exit = |Exit { code, message }: &Exit| json!({"terminated": {"exitCode": code, "message": message, "finishedAt": ended}});
    let state = match &container.state {
        ContainerState::Waiting { reason, message } => json!({"waiting": {"reason": reason, "message": message}}),
        ContainerState::Running(since) => json!({"running": {"startedAt": since}}),
        ContainerState::Ended(ended) => exit(ended),
    };
    let last = container.last_failure.as_ref().map_or_else(|| json!({}), exit);
    json!({
        "name": container.name, "ready": container.ready, "restartCount": u8::from(container.last_failure.is_some()), "image": "", "imageID": "",
        "state": state, "lastState": last,
    })
}

/// Returns the facts of a pod after a reboot of its node. Containerd did not see the ends of the containers: when it starts again, it
/// reports exit code 255 and `Unknown`, first as their state, and once they have been started in the next sandbox, as their last state.
pub(super) fn rebooted(pod: &PodFacts, now: Timestamp) -> PodFacts {
    let mut json = json_of_pod(&PodFacts { sandbox_since: Some(now.into()), ..pod.clone() });
    for statuses in ["initContainerStatuses", "containerStatuses"] {
        for status in json["status"][statuses].as_array_mut().into_iter().flatten() {
            let started = &status["state"]["running"]["startedAt"];
            if status["state"]["running"].is_null() {
                continue;
            }
            let end =
                json!({"terminated": {"exitCode": 255, "reason": "Unknown", "startedAt": started, "finishedAt": now}});
            (status["state"], status["lastState"], status["ready"]) = (end.clone(), end, json!(false));
        }
    }
    let pod: Pod = serde_json::from_value(json).expect("a Pod");
    PodFacts::of(&pod).expect("a pod of this operator")
}
