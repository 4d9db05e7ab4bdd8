use gpu_operator_crd::keys;
use serde_json::json;

use super::*;

#[test]
fn messages_and_containers_of_a_pod_are_bounded() {
    let long = "ä".repeat(100_000);
    let waiting = json!({"waiting": {"reason": long, "message": long}});
    let ended = json!({"terminated": {"exitCode": 1, "message": long}});
    let status = |state: &serde_json::Value| json!({"name": "c", "ready": false, "restartCount": 1, "image": "", "imageID": "", "state": state, "lastState": ended});
    let pod = json!({
        "metadata": {"name": "driver-x", "labels": {keys::STAGE: "driver"}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {
            "phase": "Failed", "reason": long, "message": long,
            "conditions": [{"type": "PodScheduled", "status": "False", "message": long}],
            "initContainerStatuses": vec![status(&waiting); 100], "containerStatuses": vec![status(&ended); 100],
        },
    });
    let facts = PodFacts::of(&serde_json::from_value(pod).unwrap()).unwrap();
    assert_eq!((facts.init.len(), facts.containers.len()), (32, 32));
    // Each has a reason or an end before it, and a message; the pod has a reason and two messages.
    let texts = 32 * 3 + 32 * 2 + 3;
    assert_eq!(format!("{facts:?}").matches('ä').count(), texts * 4096 / 2);
}

/// Returns the facts of a pod of the driver whose init container has the first, and whose main container both states.
fn driver(sandbox: &serde_json::Value, state: &serde_json::Value, last: &serde_json::Value) -> PodFacts {
    let status = |last: &serde_json::Value| json!({"name": "c", "ready": false, "restartCount": 1, "image": "", "imageID": "", "state": state, "lastState": last});
    let none = json!({});
    let conditions = [json!({"type": "PodScheduled", "status": "True"}), sandbox.clone()];
    let pod = json!({
        "metadata": {"name": "driver-x", "labels": {keys::STAGE: "driver"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "a", "containers": []},
        "status": {
            "phase": "Running", "conditions": conditions,
            "initContainerStatuses": [status(&none)], "containerStatuses": [status(last)],
        },
    });
    PodFacts::of(&serde_json::from_value(pod).unwrap()).unwrap()
}

#[test]
fn what_ended_with_an_earlier_sandbox_has_not_failed() {
    let sandbox =
        |ready, since| json!({"type": "PodReadyToStartContainers", "status": ready, "lastTransitionTime": since});
    let up = sandbox("True", "2026-01-01T12:00:00Z");
    let down = sandbox("False", "2026-01-01T12:00:00Z");
    let unreported = json!({"type": "Ready", "status": "True"});
    let ended = |code, at: &str| json!({"terminated": {"exitCode": code, "reason": "Unknown", "finishedAt": at}});
    let before = "2026-01-01T11:59:50Z";
    let (at_once, after) = ("2026-01-01T12:00:00Z", "2026-01-01T12:00:01Z");
    // Kubelet reports no time for a container that its runtime no longer knows.
    let unseen = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
    let running = json!({"running": {"startedAt": "2026-01-01T12:00:05Z"}});
    for (sandbox, end, counts) in [
        (&up, ended(255, before), false),
        (&up, ended(143, before), false),
        (&up, ended(255, at_once), false),
        (&up, ended(255, after), true),
        (&up, unseen.clone(), false),
        (&down, ended(255, after), false),
        (&unreported, ended(255, before), true),
        (&unreported, unseen.clone(), true),
    ] {
        let has_failed = |state: &ContainerState| matches!(state, ContainerState::Ended(_));
        let facts = driver(sandbox, &end, &json!({}));
        for container in facts.init.iter().chain(&facts.containers) {
            assert_eq!(has_failed(&container.state), counts, "{sandbox} {end}");
        }
        assert_eq!(driver(sandbox, &running, &end).containers[0].last_failure.is_some(), counts, "{sandbox} {end}");
    }
    let since = |sandbox| driver(sandbox, &running, &json!({})).sandbox_since.map(|since| since.reported().to_string());
    assert_eq!(since(&up).as_deref(), Some("2026-01-01T12:00:00Z"));
    assert_eq!(since(&down), None);
    assert_eq!(since(&unreported).as_deref(), Some("2026-01-01T00:00:00Z"));
}
