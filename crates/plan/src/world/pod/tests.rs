use gpu_operator_crd::keys;
use serde_json::json;

use super::*;

#[test]
fn no_message_of_a_pod_has_the_credentials_of_a_url() {
    let text = "curl: (56) proxy http://me:canary@proxy:3128 denied";
    let container = json!({
        "name": "install-driver", "ready": false, "restartCount": 1, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": text}},
        "lastState": {"terminated": {"exitCode": 1, "message": text}},
    });
    let ended = json!({
        "name": "driver", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": {"terminated": {"exitCode": 1, "message": text}},
    });
    let pod = json!({
        "metadata": {"name": "driver-x", "labels": {keys::STAGE: "driver"}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {
            "phase": "Failed", "message": text,
            "initContainerStatuses": [container], "containerStatuses": [ended],
        },
    });
    let facts = PodFacts::of(&serde_json::from_value(pod).unwrap()).unwrap();
    let facts = format!("{facts:?}");
    assert!(!facts.contains("canary"), "{facts}");
    assert_eq!(facts.matches("http://***@proxy:3128 denied").count(), 4, "{facts}");
}
