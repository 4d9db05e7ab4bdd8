//! Pods that the API server rejects.

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
fn only_relevant_errors_of_the_api_server_are_parsed() {
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
    assert!(
        refused("ReplicaSet", "GpuRequestWithoutLimit", NO_LIMIT).is_none(),
        "an Event of this operator is not a rejection"
    );
}

#[test]
fn a_rejection_is_reported_on_the_owner_while_it_is_repeated() {
    let mut symptoms = Symptoms::default();
    let refusal = Arc::new(refused("ReplicaSet", "FailedCreate", NO_CLASS).unwrap());
    // Each attempt of the controller may create its own Event.
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

/// Returns the rejection from kubelet's Event about a container that the runtime did not start.
fn not_started(condition: &str) -> Option<RefusedPods> {
    let message = format!(
        "Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: \
         unable to start container process: error during container init: error running prestart hook #0: exit status 1, \
         stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: unsatisfied condition: \
         {condition}"
    );
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": "p.1", "namespace": "team", "creationTimestamp": "2026-01-01T00:50:00Z"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "uid-p",
            "fieldPath": "spec.containers{main}",
        },
        "source": {"component": "kubelet", "host": "n1"},
        "reason": "Failed", "message": message, "lastTimestamp": "2026-01-01T00:55:00Z",
    }))
    .unwrap();
    RefusedPods::of(&event).map(|(_, refused)| refused)
}

#[test]
fn rejections_with_longer_names_than_exist_are_not_kept() {
    for (length, kept) in [(100, true), (3000, false)] {
        let class = format!("nvidia-{}", "x".repeat(length));
        assert_eq!(refused("Job", "FailedCreate", &NO_CLASS.replace("nvidia", &class)).is_some(), kept, "{length}");
    }
}

#[test]
fn a_container_rejected_for_its_cuda_version_is_reported() {
    for (said, condition) in [
        (
            "cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container",
            Some("cuda>=12.8"),
        ),
        ("cuda>=12.8 (cuda=12.2)", Some("cuda>=12.8")),
        ("driver>=525: unknown", Some("driver>=525")),
        ("brand=tesla", None),
        ("", None),
    ] {
        let found = not_started(said).map(|refused| refused.finding());
        let Some(condition) = condition else {
            assert_eq!(found, None, "{said}");
            continue;
        };
        let finding = found.unwrap_or_else(|| panic!("{said}"));
        assert_eq!((finding.reason, finding.subject.uid()), (Mistake::CudaTooNew, "uid-p"));
        let words = format!("container main: its image requires {condition}, and the driver of node n1 does not");
        assert!(finding.message.contains(&words), "{}", finding.message);
    }
    // Other failures to start are not reported, because kubelet's Events suffice.
    let mut event = json!({
        "metadata": {"name": "p.1", "namespace": "team", "creationTimestamp": "2026-01-01T00:50:00Z"},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": "p", "uid": "uid-p"},
        "reason": "Failed", "message": "Error: ErrImagePull",
    });
    assert!(RefusedPods::of(&serde_json::from_value(event.clone()).unwrap()).is_none());
    event["involvedObject"]["kind"] = "ReplicaSet".into();
    event["message"] = NO_LIMIT.into();
    assert!(
        RefusedPods::of(&serde_json::from_value(event).unwrap()).is_none(),
        "controllers report rejections with another reason"
    );
}

#[test]
fn the_same_mistake_from_spec_and_runtime_is_one_finding() {
    let mut world = world("{}");
    node(&mut world, "old", "nvidia-tesla-p100", 8);
    edit(&mut world, "old", |_, gpu_node| {
        let report = json!({"driver": {"loaded": "375.26", "cudaVersion": "8.0"}, "gpus": [{"product": "Tesla P100"}]});
        gpu_node.status.as_mut().unwrap().report = Some(serde_json::from_value(report).unwrap());
    });
    let spec = "{nodeName: old, containers: [{name: main, image: 'nvidia/cuda:11.7.1-base', resources: {limits: {nvidia.com/gpu: '1'}}}]}";
    let mut symptoms = symptoms(&[pod("p", spec)]);
    symptoms.refused.insert("team/p.1".into(), Arc::new(not_started("cuda>=11.7").unwrap()));
    let diagnosis = diagnose(&symptoms, &world, now());
    let found: Vec<_> = diagnosis.findings.iter().map(|finding| finding.reason).collect();
    assert_eq!(found, [Mistake::CudaTooNew], "{diagnosis:?}");
}
