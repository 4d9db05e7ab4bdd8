//! Pods that the API server refuses.

use k8s_openapi::api::core::v1::Event;

use super::*;

fn refused(kind: &str, reason: &str, message: &str) -> Option<RefusedPods> {
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": "web.1", "namespace": "team", "creationTimestamp": "2026-01-01T00:50:00Z"},
        "involvedObject": {"apiVersion": "apps/v1", "kind": kind, "namespace": "team", "name": "web", "uid": "u"},
        "reason": reason, "message": message, "lastTimestamp": "2026-01-01T00:55:00Z",
    }))
    .unwrap();
    let (key, refused) = RefusedPods::of(&event)?;
    assert_eq!(key, "team/web.1");
    Some(refused)
}

const NO_LIMIT: &str = r#"Error creating: Pod "web-x" is invalid: spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"#;
const NO_CLASS: &str = r#"Error creating: pods "web-x" is forbidden: pod rejected: RuntimeClass "nvidia" not found"#;

#[test]
fn what_the_api_server_says_is_understood_and_nothing_else() {
    let unequal = r#"create Pod web-0 in StatefulSet web failed error: Pod "web-0" is invalid: spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2"#;
    for (message, expected) in [
        (NO_LIMIT, Some(Fault::NoLimit)),
        (NO_CLASS, Some(Fault::NoRuntimeClass("nvidia".into()))),
        (unequal, Some(Fault::Unequal("nvidia.com/gpu".into()))),
        (&unequal.replace("nvidia.com/gpu", "example.com/fpga"), None),
        (&NO_CLASS.replace("nvidia", "gvisor"), None),
        (
            "Error creating: pods \"web-x\" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1",
            None,
        ),
        ("Error creating: pods \"web-x\" is forbidden: violates PodSecurity", None),
        ("", None),
    ] {
        assert_eq!(refused("ReplicaSet", "FailedCreate", message).map(|refused| refused.fault), expected, "{message}");
    }
    assert!(refused("Node", "FailedCreate", NO_LIMIT).is_none());
    assert!(refused("ReplicaSet", "GpuRequestWithoutLimit", NO_LIMIT).is_none(), "an Event of ours is no refusal");
}

#[test]
fn a_refusal_is_told_of_on_the_owner_and_stands_for_as_long_as_it_is_said_again() {
    let mut symptoms = Symptoms::default();
    let refusal = Arc::new(refused("ReplicaSet", "FailedCreate", NO_CLASS).unwrap());
    // Each try of the controller's may be an Event of its own.
    symptoms.refused.insert("team/web.1".into(), Arc::clone(&refusal));
    symptoms.refused.insert("team/web.2".into(), refusal);
    let standing = diagnose(&symptoms, &World::default(), now());
    let [finding] = &standing.findings[..] else { panic!("{standing:?}") };
    assert_eq!(finding.reason, Mistake::RuntimeClassMissing);
    let Subject::Namespaced { kind, name, api_version, .. } = &finding.subject else { panic!("{finding:?}") };
    assert_eq!((api_version.as_str(), kind.as_str(), name.as_str()), ("apps/v1", "ReplicaSet", "web"));
    let over = standing.check_again.unwrap();
    assert_eq!(diagnose(&symptoms, &World::default(), over), Diagnosis::default());
}
