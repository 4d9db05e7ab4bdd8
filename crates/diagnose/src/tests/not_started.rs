//! Containers that the runtime does not start.

use super::*;

/// Returns kubelet's Event about a container that the runtime did not start.
fn not_started(condition: &str) -> Event {
    let message = format!(
        "Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: \
         unable to start container process: error during container init: error running prestart hook #0: exit status 1, \
         stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: unsatisfied condition: \
         {condition}"
    );
    event("Failed", &message)
}

fn event(reason: &str, message: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"name": "p.1", "namespace": "team", "creationTimestamp": "2026-01-01T00:40:00Z"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "uid-p",
            "fieldPath": "spec.containers{main}",
        },
        "source": {"component": "kubelet", "host": "n1"},
        "reason": reason, "message": message, "lastTimestamp": "2026-01-01T00:45:00Z",
    }))
    .unwrap()
}

#[test]
fn a_container_rejected_for_its_cuda_version_is_reported() {
    // What the image requires is not in the pod's spec.
    let pod = pod("p", "{nodeName: n1, containers: [{name: main, image: app}]}");
    let found = |event: Event, now: &str| {
        let diagnosis = diagnose(&pod, Some(&[event]), &World::default(), now.parse().unwrap());
        diagnosis.findings.into_iter().map(|finding| (finding.reason, finding.message)).collect::<Vec<_>>()
    };
    let now = "2026-01-01T01:04:59Z";
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
        let found = found(not_started(said), now);
        let Some(condition) = condition else {
            assert_eq!(found, [], "{said}");
            continue;
        };
        let [(Mistake::CudaTooNew, message)] = &found[..] else { panic!("{said}: {found:?}") };
        let words = format!("container main: its image requires {condition}, and the driver of node n1 does not");
        assert!(message.contains(&words), "{message}");
    }
    assert_eq!(
        found(not_started("cuda>=12.8"), "2026-01-01T01:05:00Z"),
        [],
        "kubelet has not repeated it for 20 minutes"
    );
    // Kubelet's Events about other failures suffice.
    assert_eq!(found(event("Failed", "Error: ErrImagePull"), now), []);
    assert_eq!(found(event("BackOff", "unsatisfied condition: cuda>=12.8"), now), []);
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
    let diagnosis = diagnose(&pod("p", spec), Some(&[not_started("cuda>=11.7")]), &world, now());
    let found: Vec<_> = diagnosis.findings.iter().map(|finding| finding.reason).collect();
    assert_eq!(found, [Mistake::CudaTooNew], "{diagnosis:?}");
}
