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
